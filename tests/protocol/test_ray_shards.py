"""What runs in the processes that Ray places for shards, each by itself: what a shard begins with, and who waits."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shards import wait_for

import replay_server as rs
from replay_server.topology import ShardPlace, Topology

pytest.importorskip("ray")

import ray
from ray.exceptions import GetTimeoutError

from replay_server.codec import pack
from replay_server.jobs import ray_shards
from replay_server.jobs.ray_shards import ShardHost, Supervisor, restored_in


def test_what_a_shard_restores_is_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "earlier.snapshot").write_bytes(b"1")
    assert restored_in(tmp_path, "one", True, None, None) is None
    assert restored_in(tmp_path, "one", False, "latest", None) is None
    (tmp_path / "own.snapshot").write_bytes(b"2")
    assert restored_in(tmp_path, "one", False, None, None) == "latest"
    # Another run: with what it is told at first, and then again, until it has snapshots of its own.
    assert restored_in(tmp_path, "two", True, "own.snapshot", None) == "own.snapshot"
    assert restored_in(tmp_path, "two", False, "latest", None) == "own.snapshot"
    (tmp_path / "own.snapshot").write_bytes(b"3")  # one that has a name may be written again
    assert restored_in(tmp_path, "two", False, None, None) == "latest"
    # The disk of another node, which has what an earlier run left there.
    assert restored_in(tmp_path, "three", False, "latest", "log") is None
    assert restored_in(tmp_path, "three", False, "latest", "log") is None
    (tmp_path / "log").mkdir()
    assert restored_in(tmp_path, "three", False, "latest", "log") is None
    with pytest.raises(rs.ServerError, match="of another run of a cluster: move it away"):
        restored_in(tmp_path, "four", False, "latest", "log")
    assert restored_in(tmp_path, "four", False, "latest", None) is None


def test_a_shard_whose_run_file_cannot_be_read_does_not_begin_empty(tmp_path: Path) -> None:
    """Its snapshots would be of before from then on, and go one by one."""
    restored_in(tmp_path, "one", True, None, None)
    (tmp_path / "own.snapshot").write_bytes(b"1")
    file = tmp_path / "run.json"
    there = file.read_text()
    for broken in ("", "[", json.dumps({"run": "one"})):
        file.write_text(broken)
        with pytest.raises(rs.ServerError, match=r"run.json cannot be read"):
            restored_in(tmp_path, "one", False, None, None)
        assert file.read_text() == broken
    file.unlink()
    file.mkdir()
    with pytest.raises(rs.ServerError, match=r"run.json cannot be read.*IsADirectory"):
        restored_in(tmp_path, "one", False, None, None)
    file.rmdir()
    file.write_text(there)
    assert restored_in(tmp_path, "one", False, None, None) == "latest"


class RayOfOneShard:
    """What the supervisor of a shard asks of Ray. The shard's start is over after some looks."""

    def __init__(self) -> None:
        self.looks = 0

    def wait(self, asked: list[str], timeout: float) -> tuple[list[str], list[str]]:
        self.looks += 1
        return (asked, []) if self.looks > 3 else ([], asked)

    def get(self, asked: str, timeout: float | None = None) -> Any:
        if asked == "start" and self.looks <= 3:
            raise GetTimeoutError
        return {"address": "127.0.0.1", "start": ("127.0.0.1:7000", 7, "")}[asked]


def of_one_shard(again: bool) -> ray_shards.ShardsOnRay:
    shards = object.__new__(ray_shards.ShardsOnRay)
    host = {name: SimpleNamespace(remote=lambda *_, name=name: name) for name in ("address", "start", "wait")}
    shards.hosts, shards._asked, shards._begun, shards._folders, shards._config = (
        [SimpleNamespace(**host)],
        {},
        set(),
        {},
        {},
    )
    shards._directory, shards._goes, shards._run, shards._again = Path(), False, "one", again
    shards._stopping, shards._topology = threading.Event(), Topology(1, (ShardPlace(0, "0" * 40, "127.0.0.1", 7001),))
    return shards


def test_a_shard_that_loads_on_ray_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"start_timeout": -100.0, "password": None}  # all that a shard that reads nothing is given has passed
    monkeypatch.setattr(ray_shards, "ray", RayOfOneShard())
    shards = of_one_shard(again=False)
    assert shards._serve(0, [], options).pid == 7
    shards._stopping.set()
    monkeypatch.setattr(ray_shards, "ray", RayOfOneShard())
    with pytest.raises(rs.ServerError, match="GetTimeoutError"):
        shards._serve(0, [], options)
    # A supervisor that was started again looks after the others meanwhile.
    monkeypatch.setattr(ray_shards, "ray", RayOfOneShard())
    assert of_one_shard(again=True)._serve(0, [], options).pid == 0


def test_a_servers_end_on_ray_is_asked_for_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int | None]()

    class Ends:
        def wait(self, asked: list[str], timeout: float) -> tuple[list[str], list[str]]:
            if not told:
                told.append(None)
                other = threading.Thread(target=lambda: told.append(server.returncode))
                other.start()
                other.join(0.5)  # it comes to its end here only if it does not wait for this one
            return asked, []

        def get(self, asked: str) -> int:
            return {"end": 3}[asked]

    monkeypatch.setattr(ray_shards, "ray", Ends())
    host = SimpleNamespace(wait=SimpleNamespace(remote=lambda *_: "end"))
    server = ray_shards._Placed(host, "redis://127.0.0.1:1", 7)
    assert server.returncode == 3
    wait_for(lambda: told == [None, 3])


def test_a_supervisor_that_is_started_again_tries_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(*_: Any) -> None:
        tries.append(1)
        raise KeyError("unexpected")

    monkeypatch.setattr(ray_shards, "ShardsOnRay", fail)
    monkeypatch.setattr(ray_shards, "end_hosts", lambda _: None)
    monkeypatch.setattr(ray_shards, "_AGAIN_S", 0.01)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(was_current_actor_reconstructed=True))
    setup = {"tables": [], "shards": 1, "per_node": 1, "run": "one", "lease_s": 0.0, "options": {"directory": "."}}
    supervisor = Supervisor("test", None, pack(setup))
    wait_for(lambda: len(tries) > 1)
    supervisor.stop(0.0)
    wait_for(lambda: all(thread.name != "begin-again" for thread in threading.enumerate()))
    assert supervisor.begin()[1] == "the cluster was stopped"


def test_a_node_that_others_can_reach_needs_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardHost, "address", lambda _: "0.0.0.0")
    host, options = ShardHost(), {"port": 0, "password": None, "restore": None}
    setup = {"tables": [], "options": options, "folder": str(tmp_path), "temporary": False, "was_on": ""}
    setup |= {"run": "one", "first": True, "log": None}
    place, pid, why = host.start(pack(setup))
    assert (place, pid) == ("", 0)
    assert "there is no password" in why
