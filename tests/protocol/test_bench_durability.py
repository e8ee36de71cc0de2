"""``replay-server bench durability``: what each section measures and how it is written down. No timings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.client import Role, run
from replay_server.bench.durability import beside, cost, recovery
from replay_server.bench.durability.pushes import PUSHES, Pushes
from replay_server.bench.main import main as bench
from replay_server.bench.store import OURS, REDIS

pytest.importorskip("ale_py")

SMALL = ["--seconds", "0.2", "--rounds", "2", "--pushers", "2"]


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Pushes:
    return Pushes.record(str(tmp_path_factory.mktemp("recorded")), "lz4")


@pytest.fixture(autouse=True)
def played_once(pushes: Pushes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The game is played once for all tests."""
    monkeypatch.setattr(Pushes, "record", lambda *_: pushes)


def measured(tmp_path: Path, *argv: str) -> dict[str, Any]:
    file = tmp_path / "result.json"
    assert bench(["durability", *argv, *SMALL, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert len(content["rounds"]) == 2
    assert "folder" not in content["settings"]
    assert all(set(measured) == set(content["rounds"][0]) for measured in content["rounds"])
    return content


def test_the_cost_of_the_file_is_that_of_the_same_pushes_with_it_and_without(tmp_path: Path) -> None:
    content = measured(tmp_path, "--section", "cost", "--capacity", "2000", "--rate", "5000")
    for load in cost.LOADS:
        for side in cost.SIDES:
            values = {
                what: content["median"][f"cost.{load}.{side}.{what}"] for what in ("ping_us_p50", "ping_us_p99.9")
            }
            assert 0 < values["ping_us_p50"] <= values["ping_us_p99.9"]
            for what in ("transitions_per_s", "cpu_us_per_transition"):
                name = f"cost.{load}.{side}.{what}"
                assert content["median"][name] > 0
                if side == "off":
                    continue
                in_rounds = [each[name] / each[f"cost.{load}.off.{what}"] for each in content["rounds"]]
                ratio = content["ratio"][f"cost.{load}.{side} {what} / off"]
                assert ratio == pytest.approx(np.median(in_rounds))
        assert content["median"]["cost.paced.off.transitions_per_s"] <= 5000 * 1.01


@pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="needs redis-server: apt-get install redis")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_sets_are_those_of_both_stores_with_their_files_on(tmp_path: Path) -> None:
    content = measured(tmp_path, "--section", "sets", "--requests", "1000", "--sizes", "512", "30000")
    for size in (512, 30_000):
        for pipeline in (1, 16):
            name = f"sets.{size}.P{pipeline}"
            for what in ("requests_per_s", "requests_per_cpu_s"):
                assert all(content["median"][f"{name}.{side}.{what}"] > 0 for side in (OURS, REDIS))
                assert content["ratio"][f"{name}.{what}"] > 0


def test_a_replica_gets_everything_and_a_server_comes_back_with_it(tmp_path: Path) -> None:
    content = measured(tmp_path, "--section", "replica", "recovery", "--gigabytes", "0.001", "--rate", "2000")
    median = content["median"]
    for each in content["rounds"]:
        assert each["sync.mb_per_s"] == pytest.approx(each["table_mb"] / each["sync.seconds"], rel=0.05)
    assert median["line.mb_per_s"] > 0
    assert 0 < median["lag.us_p50"] <= median["lag.us_p99"]
    assert 0 < median["lag.transitions_per_s"] <= 2000 * 1.01
    for source in recovery.SOURCES:
        for who in ("plain", "server"):
            assert median[f"recovery.{source}.{who}.mb_per_s"] > 0
    for name in ("sync / line", "sync / line into a file", "recovery.cold server / plain"):
        assert content["ratio"][name] > 0


def test_pushes_are_transitions_of_the_recorded_game_in_the_table_of_an_ape_x_run(
    pushes: Pushes, tmp_path: Path
) -> None:
    with rs.Server([pushes.table(2000)]) as server, rs.Client(server.url) as client:
        requests = pushes.requests(client)
        assert len(requests) == PUSHES
        beside.fill(server, requests, pushes.transitions, 2 * pushes.transitions, tmp_path)
        assert client.info("apex")["added"] == 2 * pushes.transitions
        batch = client.sample("apex", 64)
        frames = {frame.tobytes() for frame in pushes.recorded.frames.reshape(-1, 84, 84)}
        assert all(frame.tobytes() in frames for frame in batch.data["next_obs"].reshape(-1, 84, 84))
        run(beside.address_of(server), [Role("a", {"single": pushes.single(client)}, rounds=2)], tmp_path)
        assert client.info("apex")["added"] == 2 * pushes.transitions + 2
