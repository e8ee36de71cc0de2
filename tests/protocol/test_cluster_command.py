"""`replay-server cluster`: what its commands do, print and refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
from shards import wait_for
from slow_server import pids_in, slow_server

import replay_server as rs

TABLE = rs.Table("atari", capacity=1001, signature={"x": rs.Column("int64")}, rate_limiter=rs.MinSize(10))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replay_server", "cluster", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def started(*words: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "replay_server", "cluster", "start", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready url=redis+cluster://127.0.0.1:"), line
    return process, line.split()[1].removeprefix("url=")


def test_the_command_starts_shows_and_stops_shards(tmp_path: Path) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text(
        'port = 0\n[[tables]]\nname = "atari"\ncapacity = 100\nsampler = { kind = "uniform" }\n'
        '[tables.signature]\nx = { dtype = "int64" }\n'
    )
    process, url = started("--shards", "2", "--config", str(config), "--dir", str(tmp_path / "data"))
    try:
        told = json.loads(run("status", "--json", "--server", url).stdout)
        assert json.loads(run("status", "--json", "--dir", str(tmp_path / "data")).stdout).keys() == told.keys()
        assert [shard["tables"] for shard in told["shards"]] == [{"atari": 0}, {"atari": 0}]
        assert all(shard["running"] and shard["slot_count"] == 8192 for shard in told["shards"])
        shown = run("status", "--server", url).stdout
        assert "2 shards" in shown
        assert f"pid {told['shards'][1]['pid']}" in shown
        stopped = run("stop", "--server", url)
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert process.wait(60) == 0
        lost = run("status", "--server", url)
        assert lost.returncode == 5
        assert "no shard answers" in lost.stderr
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_folder_names_no_other_cluster_that_has_its_ports_by_now(tmp_path: Path) -> None:
    with rs.Cluster(shards=1, directory=tmp_path / "before") as before:
        port = urlsplit(before.servers[0].url).port or 0
    with rs.Cluster(shards=1, directory=tmp_path / "now", port=port) as now:
        for words in (["status"], ["stop"], ["move", "--slots", "5", "--to", "0"]):
            refused = run(*words, "--dir", str(tmp_path / "before"))
            assert refused.returncode == 5
            assert f"no shard of {tmp_path / 'before'} answers" in refused.stderr
        assert now.running
        assert run("status", "--dir", str(tmp_path / "now")).returncode == 0


@pytest.mark.parametrize("password", [None, "a/secret"])
def test_the_command_writes_a_checkpoint_and_begins_with_it(
    tmp_path: Path, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if password is not None:
        monkeypatch.setenv("REPLAY_SERVER_PASSWORD", password)
    data = tmp_path / "data"

    def sizes(url: str) -> list[int]:
        with rs.Client(url) as client:
            shards = client.info("atari").get("shards", {0: client.info("atari")})
        return [shard["size"] for shard in shards.values()]

    process, url = started("--shards", "2", "--port", "0", "--dir", str(data))
    with process:
        with rs.Client(url) as client:
            client.create_table(TABLE)
            client.add("atari", {"x": np.arange(300)})
            done = run("checkpoint", "--server", url.split(",")[0])
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == f"{data.resolve() / 'checkpoint.json'}\n"
            client.add("atari", {"x": np.arange(300)})
            client.checkpoint()  # newer snapshots, which the checkpoint does not name
        assert run("stop", "--server", url).returncode == 0
    for words, expected in (
        (["--dir", str(data), "--restore", "checkpoint"], [150, 150]),
        (["--dir", str(tmp_path / "three"), "--shards", "3", "--restore", done.stdout.strip()], [100] * 3),
        (["--dir", str(tmp_path / "one"), "--shards", "1", "--restore", done.stdout.strip()], [300]),
        (["--dir", str(tmp_path / "three"), "--shards", "3", "--restore"], [100] * 3),
    ):
        process, url = started("--port", "0", *words)
        with process:
            assert sizes(url) == expected
            process.send_signal(signal.SIGTERM)
    refused = run("start", "--port", "0", "--dir", str(tmp_path / "new"), "--restore", "yesterday")
    assert refused.returncode == 1
    assert "expected restore to be" in refused.stderr


def test_a_checkpoint_by_command_is_of_all_shards_or_is_none(tmp_path: Path) -> None:
    with rs.Cluster(shards=2, directory=tmp_path / "two") as cluster:
        manifest = cluster.checkpoint()
        before = manifest.read_text()

        def refused() -> str:
            done = run("checkpoint", "--server", cluster.url)
            assert (done.returncode, done.stdout, manifest.read_text()) == (1, "", before)
            return done.stderr

        with rs.Cluster(shards=1, shard_of=cluster.url, directory=tmp_path / "one"):
            assert "expected all shards to be run by one supervisor" in refused()
            cluster.forget(2)
        (tmp_path / "two" / "shard-1").rename(tmp_path / "elsewhere")
        assert "shard-1 is not there" in refused()
        (tmp_path / "elsewhere").rename(tmp_path / "two" / "shard-1")
        moving = cluster.topology.beginning([5], 1)
        for number, server in enumerate(cluster.servers):
            with redis.Redis.from_url(server.url) as shard:
                shard.execute_command(*moving.arguments(number))
        assert "no slot to be moving" in refused()
    with rs.Server(config={"cluster-enabled": True}) as server:
        done = run("checkpoint", "--server", server.url.replace("redis://", "redis+cluster://"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "these servers have no topology" in done.stderr


def test_a_signal_stops_the_shards_and_their_supervisor(tmp_path: Path) -> None:
    process, url = started("--port", "0", "--dir", str(tmp_path))
    with process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert run("status", "--server", url).returncode == 5


def test_the_command_gives_up_a_start_at_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(slow_server(tmp_path, seconds=600.0)))
    command = [sys.executable, "-m", "replay_server", "cluster", "start", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: pids_in(tmp_path))
        process.terminate()
        assert process.wait(60) == 0
    (starting,) = pids_in(tmp_path)
    assert not Path(f"/proc/{starting}").exists()


def test_wrong_words_are_usage_errors() -> None:
    assert run("restart").returncode == 2
    assert "redis+cluster://" in run("status", "--server", "redis://127.0.0.1").stderr
    assert run("status", "--server", "redis://127.0.0.1").returncode == 2
    apart = run("start", "--transport", "dpdk", "--replicas", "1")
    assert (apart.returncode, "does not go with" in apart.stderr) == (2, True)
    told = run("start", "--transport", "dpdk", "--host", "10.0.0.2")
    assert (told.returncode, "use dpdk-address" in told.stderr) == (2, True)


def test_a_folder_that_is_no_clusters_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[]")
    for folder in (tmp_path, tmp_path / "absent"):
        done = run("status", "--dir", str(folder))
        assert done.returncode == 2
        assert f"expected the folder of a cluster, and {folder / 'cluster.json'} cannot be read" in done.stderr
