"""Shards on one DPDK device (net_tap), each with a queue: their supervisor, and what becomes of them when one ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import replay_server as rs
from replay_server.bench.lab import NETWORK, Lab

pytestmark = pytest.mark.dpdk

TABLE = rs.Table("atari", capacity=1000, signature={"x": rs.Column("int64")})
ITEMS = 100
Start = Callable[..., rs.Cluster]


@pytest.fixture
def settings(lab: Lab, pages: Path) -> dict[str, Any]:
    """Of two shards on the lab's device."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("each of two shards needs a processor of its own")
    own = {"dpdk-eal": f"--huge-dir {pages}", "dpdk-memory": "48mb", "protected-mode": "no"}
    return {**lab.settings("dpdk"), **own}


@pytest.fixture
def start(lab: Lab, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts two shards in the lab, on whose side this thread stands meanwhile."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(lab.folder))
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.on_client())
        options: dict[str, Any] = {"shards": 2, "port": 6379, "directory": tmp_path, "transport": "dpdk"}
        yield lambda **config: stack.enter_context(rs.Cluster([TABLE], **options, config={**settings, **config}))


def sizes(client: rs.Client) -> dict[int, int]:
    """Items by shard."""
    return {number: told["size"] for number, told in client.info("atari")["shards"].items()}


def test_shards_of_a_device_are_started_shown_and_stopped_by_a_host_that_does_not_reach_its_address(
    lab: Lab, settings: dict[str, Any], tmp_path: Path
) -> None:
    file, folder = tmp_path / "shards.toml", tmp_path / "data"
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    file.write_text("\n".join(["port = 6379", "[config]", *lines]))

    def command(prefix: list[str], *words: str) -> list[str]:
        return [*prefix, sys.executable, "-m", "replay_server", "cluster", *words]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(lab.admin_command, *words), capture_output=True, text=True, timeout=120)

    def address(change: str) -> None:
        subprocess.run([*lab.client_command, "ip", "address", change, f"{NETWORK}.2/24", "dev", "tap0"], check=True)

    address("del")
    begin = command(lab.server_command, "start", "--transport", "dpdk", "--config", str(file), "--dir", str(folder))
    with subprocess.Popen(begin, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1].removeprefix("url=")
            assert url == f"redis+cluster://{lab.address}:6379,{lab.address}:6380"
            told = json.loads(run("status", "--json", "--dir", str(folder)).stdout)
            assert [shard["running"] for shard in told["shards"]] == [True, True]
            assert [os.sched_getaffinity(shard["pid"]) for shard in told["shards"]] == [
                {processor} for processor in sorted(os.sched_getaffinity(0))[-2:]
            ]
            assert run("status", "--server", url).returncode == 5  # no shard answers
            address("add")
            with lab.on_client(), rs.Client(url) as client:
                client.create_table(TABLE)
                client.add("atari", {"x": np.arange(ITEMS)})
                assert sizes(client) == {0: ITEMS // 2, 1: ITEMS // 2}
                address("del")
                assert run("move", "--slots", "0-99", "--to", "1", "--dir", str(folder)).returncode == 0
                assert run("checkpoint", "--dir", str(folder)).stdout == f"{folder / 'checkpoint.json'}\n"
                address("add")
                assert sizes(client) == {0: ITEMS // 2, 1: ITEMS // 2}
            stopped = run("stop", "--dir", str(folder))
            assert (stopped.returncode, stopped.stderr) == (0, "")
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_shard_is_killed_all_begin_again_and_the_other_one_has_all_that_it_had(
    start: Start, eventually: Any, victim: int
) -> None:
    # The first one's end ends the other one, which saves by its rules. Else the supervisor has it save.
    cluster = start(save="3600 1000000") if victim == 0 else start()
    other = 1 - victim
    with rs.Client(cluster.url) as client:
        ids = client.add("atari", {"x": np.arange(ITEMS)})
        kept = ids[ids >> np.uint64(56) == other]
        values = client.get("atari", kept).data["x"]
        before = cluster.pids
        os.kill(before[victim], signal.SIGKILL)
        eventually(lambda: cluster.restarts == 2 and cluster.running, "both shards are started again")
        assert not set(before) & set(cluster.pids)
        assert (cluster.numbers, cluster.failing) == ([0, 1], {})
        assert sizes(client) == {victim: 0, other: len(kept)}
        assert np.array_equal(client.get("atari", kept).data["x"], values)
        client.add("atari", {"x": np.arange(ITEMS)})
        assert sizes(client) == {victim: ITEMS // 2, other: len(kept) + ITEMS // 2}
        assert cluster.checkpoint().exists()


def test_a_shard_that_cannot_save_goes_on_and_it_is_said_what_a_killed_one_waits_for(
    start: Start, eventually: Any, tmp_path: Path
) -> None:
    cluster = start()
    first, killed = cluster.pids
    shutil.rmtree(tmp_path / "shard-0")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: "Errors trying to SHUTDOWN" in cluster.failing.get(1, ""), "the reason is told")
    assert f"process {first} does not" in cluster.failing[1]
    url = cluster.servers[0].admin_url  # what the device puts into the other queue is lost, this one's frames among it
    assert url is not None
    with rs.Client(url) as client:
        client.add("atari", {"x": np.arange(ITEMS)})
    assert (cluster.pids[0], cluster.restarts) == (first, 0)


def test_a_shard_that_is_shut_down_stays_away_and_the_first_one_takes_the_others_with_it(
    start: Start, eventually: Any
) -> None:
    cluster = start()
    for number in (1, 0):
        assert not cluster.was_stopped
        url = cluster.servers[number].admin_url
        assert url is not None
        with redis.Redis.from_url(url) as shard:
            shard.shutdown(nosave=True)
        eventually(lambda at=number: not cluster.servers[at].running, "the shard ends")
    assert cluster.was_stopped
    cluster.stop()

    cluster = start()
    url = cluster.servers[0].admin_url
    assert url is not None
    with redis.Redis.from_url(url) as shard:
        shard.shutdown(nosave=True)
    eventually(lambda: cluster.was_stopped, "both shards end")
    assert cluster.servers[1].returncode == 1
    assert cluster.restarts == 0


def test_the_first_shard_can_be_taken_out(start: Start, eventually: Any) -> None:
    cluster = start()
    with rs.Client(cluster.url) as client:
        ids = client.add("atari", {"x": np.arange(ITEMS)})
        kept = ids[ids >> np.uint64(56) == 1]
        cluster.forget(0, lose_items=True)
        eventually(lambda: cluster.restarts == 1 and cluster.running, "the other one is started again")
        assert cluster.numbers == [1]
        assert len(client.get("atari", kept).ids) == ITEMS // 2
        counters: Any = rs.Client(cluster.servers[0].url).redis.info("transport")
        assert counters["transport_queue"] == 0
