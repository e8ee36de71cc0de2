"""``replay-server bench functions``: its parts add up, and it runs on the process platform."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from replay_server.bench.functions import busy_s, cold_parts, main, options_by_backend
from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation


def test_functions_fill_the_slots_in_order() -> None:
    assert busy_s([], 2) == 0.0
    assert busy_s([1.0, 2.0, 3.0], 1) == 6.0
    assert busy_s([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert busy_s([1.0, 1.0, 3.0], 2) == 4.0


def test_the_parts_of_a_cold_start_add_up_to_what_the_caller_saw() -> None:
    measured = Measured(
        invocation=1, started=13.0, ended=17.5, startup_s=2.0, import_s=1.0, phases={"act": 2.0, "push": 0.5}
    )
    cold = Invocation("r", "actor", 1, 1, "process", 9.0, 10.0, 18.0, "ok", True, "i", 1024, 1, 1, measured)
    parts = cold_parts(cold)
    assert parts == {
        "dispatch": 1.0, "start": 2.0, "import": 1.0, "act": 2.0, "push": 0.5, "rest": 1.0, "return": 0.5
    }  # fmt: skip
    assert sum(parts.values()) == cold.ended - cold.started
    with pytest.raises(ValueError):
        cold_parts(dataclasses.replace(cold, measured=dataclasses.replace(measured, invocation=2)))


def test_options_of_platforms_are_given_by_name() -> None:
    given = ["process.idle_s=2.5", "process.handler=a:b", 'ray.runtime_env={"pip": []}']
    expected = {"process": {"idle_s": 2.5, "handler": "a:b"}, "ray": {"runtime_env": {"pip": []}}}
    assert options_by_backend(given) == expected
    for wrong in ("idle_s=1", "process.idle_s", "nowhere.x=1"):
        with pytest.raises(ValueError, match="backend"):
            options_by_backend([wrong])


def test_it_measures_a_real_cold_start_and_a_round(tmp_path: Path) -> None:
    file = tmp_path / "functions.json"
    said: list[str] = []
    options = ["--env", "CartPole-v1", "--steps", "32", "--actors", "3", "--concurrency", "2", "--calls", "5"]
    assert main([*options, "--rounds", "1", "--json", str(file)], say=said.append) == 0
    content = json.loads(file.read_text())
    (found,) = content["rounds"]
    parts = {name: took for name, took in found.items() if name.startswith("process.cold.")}
    assert sum(parts.values()) == pytest.approx(found["process.cold_ms"], abs=0.1)
    assert {f"process.cold.{part}_ms" for part in ("dispatch", "start", "import", "connect", "act", "push")} <= set(
        parts
    )
    # The kernel tells when a process started to one tick, 10 ms.
    assert all(took > -20 for took in parts.values()), parts
    assert found["process.cold_ms"] > found["process.actor_ms"]
    assert found["process.round_ms"] >= found["process.round.functions_ms"] > 0
    assert content["ratio"]["process overhead / round"] >= 0
    assert "torch" in " ".join(name for name in found if name.startswith("imports."))
    assert any("cold" in line for line in said)
