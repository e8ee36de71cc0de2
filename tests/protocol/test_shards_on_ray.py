"""Shards that Ray places, on a real Ray cluster of two nodes: where they are, what they survive, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.topology import Topology

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

from replay_server.codec import pack
from replay_server.jobs import placed_cluster
from replay_server.jobs.job_placed import JobPlaced
from replay_server.jobs.placed_cluster import PlacedCluster
from replay_server.jobs.ray_shards import DETACHED, NAMESPACE, ShardHost, host_name
from replay_server.rl import ray_cluster
from replay_server.rl.ray_cluster import RayCluster

TABLE = rs.Table("t", 1000, {"k": rs.Column("int64")}, sampler=rs.Prioritized(priority_exponent=1.0))
SHARD = np.uint64(56)
TIMEOUT_S = 120.0
"""It only ends a test that hangs."""
OPTIONS: dict[str, Any] = {"port": 0, "password": None, "maxmemory": 0, "config": {}, "restore": None}
COMMAND = [sys.executable, "-m", "replay_server", "cluster"]
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it should have come true by now"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Two nodes on loopback, of two processors each as Ray sees them."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path is short
    with ray_cluster._environment({ray_cluster._LOOPBACK_ONLY: "0"}):
        cluster = Cluster()
        cluster.add_node(temp_dir=folder, **NODE)
        cluster.add_node(**NODE)
        yield cluster
        cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engine(nodes: Cluster) -> Iterator[RayCluster]:
    with RayCluster(nodes.address) as made:
        yield made


@pytest.fixture(scope="module")
def placed(engine: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacedCluster]:
    """Four shards, all processors of the two nodes; tests behind the one that stops it have them for themselves."""
    folder = tmp_path_factory.mktemp("placed")
    options = {**OPTIONS, "directory": str(folder), "start_timeout": TIMEOUT_S}
    cluster = PlacedCluster.start(engine, "test", [TABLE], 4, 2, options)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def client(placed: PlacedCluster) -> Iterator[rs.Client]:
    """With an empty table."""
    with rs.Client(told(placed)["url"]) as made:
        made.reset("t")
        yield made


def told(cluster: PlacedCluster) -> dict[str, Any]:
    answer = cluster.told()
    assert answer is not None
    return answer


def told_in_time(cluster: PlacedCluster) -> dict[str, Any]:
    """Nothing while the supervisor is away."""
    try:
        return told(cluster)
    except rs.ServerError:
        return {}


def wait_for_restarts(cluster: PlacedCluster, before: dict[str, Any], count: int = 1) -> None:
    def are_back() -> bool:
        now = told(cluster)
        return now["restarts"] >= before["restarts"] + count and now["running"]

    wait_for(are_back)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=TIMEOUT_S)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def supervisor_of(shard: int) -> int:
    """The process of the supervisor on the same node as a shard, as Ray names it; 0 while there is none."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                b"Supervisor" in (entry / "cmdline").read_bytes()
                and entry.name.isdigit()
                and parent(int(entry.name)) == parent(parent(shard))
            ):
                return int(entry.name)
    return 0


def groups() -> list[dict[str, Any]]:
    """Placement groups that have not been removed."""
    return [each for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]


def actors() -> list[str]:
    """Those of shards and supervisors that live."""
    named: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["namespace"] == NAMESPACE]


def test_shards_are_spread_and_sampled_exactly(placed: PlacedCluster, client: rs.Client) -> None:
    (group,) = groups()
    assert len(set(group["bundles_to_node_id"].values())) == 2
    ids = client.add("t", {"k": np.arange(200)}, priorities=np.repeat([1.0, 3.0], 100))
    assert set(ids >> SHARD) == {0, 1, 2, 3}
    batch = client.sample("t", 4000)
    assert np.allclose(batch.probabilities, np.where(batch.data["k"] < 100, 1, 3) / 400)
    assert abs(np.mean(batch.data["k"] >= 100) - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5


def test_a_server_that_is_killed_comes_back_with_its_snapshot_while_clients_go_on(
    placed: PlacedCluster, client: rs.Client
) -> None:
    before = told(placed)
    ids = client.add("t", {"k": np.arange(200)})
    client.checkpoint()
    client.create_table(rs.Table("later", 100, {"x": rs.Column("float32")}))
    os.kill(before["pids"][2], signal.SIGKILL)
    assert len(client.sample("t", 64, timeout=TIMEOUT_S)) == 64
    wait_for_restarts(placed, before)
    after = told(placed)
    assert [a == b for a, b in zip(before["pids"], after["pids"], strict=True)] == [True, True, False, True]
    assert after["url"] == before["url"]
    assert client.get("t", ids).data["k"].tolist() == list(range(200))
    assert client.info("later")["capacity"] == 100


def test_a_process_of_ray_that_is_killed_comes_back_and_so_does_its_shard(
    placed: PlacedCluster, client: rs.Client
) -> None:
    before = told(placed)
    ids = client.add("t", {"k": np.arange(200)})
    client.checkpoint()
    os.kill(parent(before["pids"][1]), signal.SIGKILL)
    wait_for(lambda: not runs(before["pids"][1]))
    wait_for_restarts(placed, before)
    assert client.get("t", ids).data["k"].tolist() == list(range(200))


def test_the_supervisor_is_started_again_and_finds_the_shards_as_they_are(
    placed: PlacedCluster, client: rs.Client
) -> None:
    before = told(placed)
    ids = client.add("t", {"k": np.arange(200)})
    client.checkpoint()
    topology = Topology.from_json(client.command("CLUSTER", "TOPOLOGY"))
    os.kill(before["supervisor"], signal.SIGKILL)

    wait_for(lambda: told_in_time(placed).get("supervisor", before["supervisor"]) != before["supervisor"])
    assert told(placed)["pids"] == before["pids"]
    assert client.get("t", ids).data["k"].tolist() == list(range(200))
    assert Topology.from_json(client.command("CLUSTER", "TOPOLOGY")).shards == topology.shards
    again = told(placed)
    os.kill(before["pids"][0], signal.SIGKILL)
    wait_for_restarts(placed, again)
    assert client.get("t", ids).data["k"].tolist() == list(range(200))


def test_shards_whose_node_is_lost_are_started_on_another_one_and_clients_hear_where(
    nodes: Cluster, placed: PlacedCluster, client: rs.Client
) -> None:
    """The folder is one that both nodes see. Shards that had none there would begin empty."""
    before = told(placed)
    (lost,) = nodes.worker_nodes
    (lost_id,) = (
        each["NodeID"] for each in ray.nodes() if each["ObjectStoreSocketName"] == lost.plasma_store_socket_name
    )
    assert lost_id in groups()[0]["bundles_to_node_id"].values()
    ids = client.add("t", {"k": np.arange(200)})
    client.checkpoint()
    nodes.remove_node(lost, allow_graceful=False)
    # No other node has room. The supervisor may have been on this one.
    wait_for(lambda: len(told_in_time(placed).get("failing", ())) == 2)
    nodes.add_node(**NODE)
    wait_for(lambda: (now := told_in_time(placed)).get("running") and not now["failing"])
    assert len({*told(placed)["pids"]} & {*before["pids"]}) == 2
    assert lost_id not in groups()[0]["bundles_to_node_id"].values()
    assert client.get("t", ids).data["k"].tolist() == list(range(200))
    assert len(client.sample("t", 64, timeout=TIMEOUT_S)) == 64


def test_a_cluster_that_is_stopped_by_its_shards_begins_again_in_its_folder_and_ends_with_its_lease(
    engine: RayCluster, placed: PlacedCluster, client: rs.Client
) -> None:
    url = told(placed)["url"]
    ids = client.add("t", {"k": np.arange(200)})
    folder = Path(client.checkpoint().splitlines()[0]).parents[1]
    assert run("stop", "--server", url).returncode == 0
    wait_for(lambda: placed.told() is None)
    wait_for(lambda: groups() == actors() == [])
    options = {**OPTIONS, "directory": str(folder), "start_timeout": TIMEOUT_S, "restore": "latest"}
    again = PlacedCluster.start(engine, "test", [TABLE], 4, None, options, lease_s=5.0)
    now = told(again)
    with rs.Client(now["url"]) as other:
        assert other.get("t", ids).data["k"].tolist() == list(range(200))
    # The lease: it ends since nobody asks for it any more.
    wait_for(lambda: not actors() and not any(map(runs, now["pids"])) and not groups())


def test_without_restore_nothing_of_an_earlier_run_comes_back(engine: RayCluster, tmp_path: Path) -> None:
    options = {**OPTIONS, "directory": str(tmp_path), "start_timeout": TIMEOUT_S}
    earlier = PlacedCluster.start(engine, "test", [TABLE], 1, None, options)
    try:
        with rs.Client(told(earlier)["url"]) as client:
            client.add("t", {"k": np.arange(200)})
            client.checkpoint()
    finally:
        earlier.stop()
    cluster = PlacedCluster.start(engine, "test", [TABLE], 1, None, options)
    try:
        with rs.Client(told(cluster)["url"]) as client:
            before = told(cluster)
            client.add("t", {"k": np.arange(3)})
            os.kill(before["pids"][0], signal.SIGKILL)
            wait_for_restarts(cluster, before)
            assert client.info("t")["size"] == 0
            client.add("t", {"k": np.arange(7)})
            client.checkpoint()
            before = told(cluster)
            os.kill(before["pids"][0], signal.SIGKILL)
            wait_for_restarts(cluster, before)
            assert client.info("t")["size"] == 7
    finally:
        cluster.stop()


def test_a_start_that_is_given_up_leaves_nothing_behind(engine: RayCluster, tmp_path: Path) -> None:
    options = {**OPTIONS, "directory": str(tmp_path), "start_timeout": TIMEOUT_S}
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(rs.ServerError, match="the start was given up"):
        PlacedCluster.start(engine, "test", [TABLE], 2, None, options, given_up=given_up)
    wait_for(lambda: groups() == actors() == [])


def test_a_cluster_that_does_not_begin_leaves_nothing_behind(
    engine: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "directory": str(tmp_path), "start_timeout": TIMEOUT_S}
    monkeypatch.setattr(placed_cluster, "ROOM_S", 1.0)
    with pytest.raises(rs.ServerError, match="Ray found no 1 nodes with 3 processors each free"):
        PlacedCluster.start(engine, "test", [TABLE], 3, 3, options)
    (tmp_path / "shard-0").mkdir()
    (tmp_path / "shard-0" / "replay.snapshot").write_bytes(b"none")
    with pytest.raises(rs.ServerError, match=r"shard 0: .*exit status 4"):
        PlacedCluster.start(engine, "test", [TABLE], 1, None, {**options, "restore": "latest"})
    assert groups() == actors() == []
    with pytest.raises(rs.ServerError, match="no cluster of the name 'test'"):
        PlacedCluster(engine, "test")


def test_a_stop_that_the_supervisor_does_not_answer_leaves_nothing_behind(
    engine: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "directory": str(tmp_path), "start_timeout": TIMEOUT_S}
    cluster = PlacedCluster.start(engine, "test", [TABLE], 2, None, options)
    pids, supervisor = told(cluster)["pids"], told(cluster)["supervisor"]
    os.kill(supervisor, signal.SIGSTOP)
    monkeypatch.setattr(placed_cluster, "_ANSWER_S", 2.0)
    try:
        cluster.stop(0.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: groups() == actors() == [] and not any(map(runs, pids)))


def test_a_start_ends_hosts_that_are_left_of_another_cluster_of_its_name(engine: RayCluster, tmp_path: Path) -> None:
    further = {**DETACHED, "name": host_name("test", 0)}
    left = engine.place(ShardHost, num_cpus=0, threads=8, further=further)
    setup = {
        "tables": [],
        "options": {**OPTIONS, "start_timeout": TIMEOUT_S},
        "folder": str(tmp_path / "left"),
        "temporary": False,
        "run": "left",
        "first": True,
        "log": None,
    }
    _, pid, why = ray.get(left.start.remote(pack({**setup, "was_on": ""})))
    assert why == ""
    options = {**OPTIONS, "directory": str(tmp_path / "new"), "start_timeout": TIMEOUT_S}
    cluster = PlacedCluster.start(engine, "test", [TABLE], 1, None, options)
    try:
        assert pid not in told(cluster)["pids"]
        wait_for(lambda: not runs(pid))
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("the name 'test' is already taken"), rs.ServerError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_start_that_is_broken_off_removes_its_placement_group(
    engine: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: type
) -> None:
    def place(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "place", place)
    options = {**OPTIONS, "directory": str(tmp_path), "start_timeout": TIMEOUT_S}
    with pytest.raises(expected):
        PlacedCluster.start(engine, "test", [TABLE], 1, None, options)
    assert groups() == []


def test_a_job_begins_without_a_damaged_snapshot_and_leaves_those_of_another_run_alone(
    nodes: Cluster, engine: RayCluster, tmp_path: Path
) -> None:
    snapshots = [tmp_path / "shards" / f"shard-{number}" / "replay.snapshot" for number in range(2)]

    def damage() -> None:
        for snapshot in snapshots:
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            snapshot.write_bytes(b"none")

    def begin(restore: bool, resumed: bool) -> list[str]:
        said: list[str] = []
        place = (f"ray:{nodes.address}", TABLE, 2, tmp_path, 0)
        job = JobPlaced(*place, restore, resumed, {"password": None}, said.append)
        try:
            with rs.Client(job.url) as client:
                assert client.info("t")["size"] == 0
                saved = Path(client.checkpoint().splitlines()[0])
            assert restore == all(any(snapshot.parent.glob("*.snapshot")) for snapshot in snapshots)
        finally:
            job.stop(TIMEOUT_S)
        assert saved.exists() == restore
        return said

    damage()
    said = begin(restore=True, resumed=True)
    assert len(said) == 2
    assert all("a part of the replay that was saved does not come back" in each for each in said)
    damage()
    assert begin(restore=False, resumed=False) == []
    aside = tmp_path / "refused-shards"
    assert [(aside / f"shard-{number}" / "replay.snapshot").read_bytes() for number in range(2)] == [b"none"] * 2


def test_the_commands_start_show_and_stop_them(nodes: Cluster, tmp_path: Path) -> None:
    where = ("--on", f"ray:{nodes.address}", "--name", "told")
    started = run("start", *where, "--shards", "2", "--per-node", "1", "--port", "0", "--dir", str(tmp_path))
    assert (started.returncode, started.stderr) == (0, "")
    pids = [int(pid) for pid in started.stdout.split("pids=")[1].split(",")]
    try:
        again = run("start", *where, "--port", "0", "--dir", str(tmp_path))
        assert "a cluster of the name 'told' is on this Ray cluster already" in again.stderr
        status = json.loads(run("status", *where, "--json").stdout)
        assert [shard["pid"] for shard in status["shards"]] == pids
        assert (status["supervisor"]["restarts"], status["supervisor"]["failing"]) == (0, {})
    finally:
        stopped = run("stop", *where)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert not any(map(runs, pids))
    assert "no cluster of the name 'told'" in run("status", *where).stderr


def test_the_commands_write_a_checkpoint_and_begin_with_it_on_another_number_of_shards(
    nodes: Cluster, tmp_path: Path
) -> None:
    where = ("--on", f"ray:{nodes.address}", "--name", "checkpointed", "--port", "0")

    def begun(*words: str) -> str:
        done = run("start", *where, *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()[1].removeprefix("url=")

    url = begun("--shards", "2", "--dir", str(tmp_path / "two"))
    try:
        with rs.Client(url) as client:
            client.create_table(TABLE)
            client.add("t", {"k": np.arange(100)})
        manifest = run("checkpoint", *where[:4]).stdout.strip()
        assert manifest == str(tmp_path / "two" / "checkpoint.json")
        (tmp_path / "two" / "shard-1").rename(tmp_path / "of another node")
        refused = run("checkpoint", *where[:4])
        assert refused.returncode == 1
        assert "shard-1 is not there" in refused.stderr
        (tmp_path / "of another node").rename(tmp_path / "two" / "shard-1")
    finally:
        run("stop", *where[:4])
    url = begun("--shards", "1", "--dir", str(tmp_path / "one"), "--restore", manifest)
    try:
        with rs.Client(url) as client:
            assert client.info("t")["size"] == 100
    finally:
        run("stop", *where[:4])
    with rs.Cluster(shards=3, directory=tmp_path / "three") as cluster:
        cluster.forget(0)
        manifest = str(cluster.checkpoint())
    refused = run("start", *where, "--shards", "2", "--dir", str(tmp_path / "new"), "--restore", manifest)
    assert refused.returncode == 1
    assert "expected shards of the numbers 0 to 1, and what begins has shard 2" in refused.stderr
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["start", "--on", "mars"], 1, "expected ray or ray:ADDRESS, got 'mars'"),
        (["start", "--on", "ray", "--host", "0.0.0.0"], 2, "--on does not go with"),
        (["start", "--per-node", "2"], 2, "--per-node goes with --on"),
        (["status", "--on", "ray"], 2, "expected ray:ADDRESS"),
    ],
)
def test_what_ray_cannot_do_is_told(words: list[str], status: int, message: str) -> None:
    done = run(*words)
    assert done.returncode == status
    assert message in done.stderr


def test_ray_of_this_host_alone_ends_with_the_command(tmp_path: Path) -> None:
    words = [*COMMAND, "start", "--on", "ray", "--shards", "2", "--port", "0", "--dir", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        pids = [int(pid) for pid in line.split("pids=")[1].split(",")]
        assert all(map(runs, pids))
        # Ray starts a supervisor again, and the command waits for it.
        killed = supervisor_of(pids[0])
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: supervisor_of(pids[0]) not in (0, killed) or process.poll() is not None)
        assert process.poll() is None
        assert all(map(runs, pids))
        with rs.Client(line.split()[1].removeprefix("url=")) as client:
            client.publish_weights("w", {"a": np.ones(2)})
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert not any(map(runs, pids))
