"""Metrics for Weights & Biases: against a stand-in for the library, and the library itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from replay_server.learner.metrics import Metrics
from replay_server.learner.wandb_mirror import STATE, check_wandb, start_wandb


class Run:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.id = given.get("id") or "made-up"
        self.rows: list[dict[str, Any]] = []
        self.defined: dict[str, str | None] = {}
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined[name] = step_metric

    def log(self, row: dict[str, Any]) -> None:
        if "broken" in str(row):
            raise OSError("no network")
        self.rows.append(row)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    made: list[Run] = []

    def init(**given: Any) -> Run:
        made.append(Run(**given))
        return made[-1]

    library = types.ModuleType("wandb")
    library.__dict__.update(init=init, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", library)
    return made


def no_message(text: str) -> None:
    pytest.fail(text)


def test_rows_of_all_writers_are_sent_once_with_steps_of_their_kind(tmp_path: Path, runs: list[Run]) -> None:
    (tmp_path / "config.json").write_text('{"env": "E", "seed": 3}')
    mirror = start_wandb("offline", tmp_path, no_message)
    assert mirror is not None
    learner, job = Metrics(tmp_path, "learner", tensorboard=False), Metrics(tmp_path, "progress", tensorboard=False)
    learner.write(10, {"loss": 0.5, "name": "text", "nested": {"p50": 1.0}, "bad": float("nan")})
    mirror.poll()
    mirror.poll()
    job.write(0, {"frames": 7})
    mirror.close()
    mirror.close()
    (run,) = runs
    assert run.given["config"] == {"env": "E", "seed": 3}
    assert (run.given["mode"], run.given["project"], run.given["name"]) == ("offline", "replay-server", tmp_path.name)
    times = [row.pop(next(name for name in row if name.endswith("/time_s"))) for row in run.rows]
    assert all(time > 0 for time in times)
    assert run.rows == [
        {"learner/step": 10, "learner/loss": 0.5, "learner/nested/p50": 1.0},
        {"progress/step": 0, "progress/frames": 7},
    ]
    assert run.defined["learner/*"] == "learner/step"
    assert run.finished


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path, runs: list[Run]) -> None:
    metrics = Metrics(tmp_path, "round", tensorboard=False)
    for step in range(3):
        metrics.write(step, {"score": step})
        mirror = start_wandb("online", tmp_path, no_message)
        assert mirror is not None
        mirror.close()
    assert [len(run.rows) for run in runs] == [1, 1, 1]
    assert [run.rows[0]["round/step"] for run in runs] == [0, 1, 2]
    assert [run.given["id"] for run in runs] == [None, "made-up", "made-up"]
    assert runs[1].given["resume"] == "allow"


def test_a_line_half_written_waits_for_its_end(tmp_path: Path, runs: list[Run]) -> None:
    mirror = start_wandb("offline", tmp_path, no_message)
    assert mirror is not None
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"kind": "a", "step": 1}\n{"kind": "a", "st')
    mirror.poll()
    assert runs[0].rows == [{"a/step": 1}]
    with open(file, "a") as more:
        more.write('ep": 2}\n')
    mirror.poll()
    assert runs[0].rows == [{"a/step": 1}, {"a/step": 2}]


def test_a_failure_is_told_once_and_ends_nothing(tmp_path: Path, runs: list[Run]) -> None:
    said: list[str] = []
    mirror = start_wandb("offline", tmp_path, said.append)
    assert mirror is not None
    metrics = Metrics(tmp_path, "learner", tensorboard=False)
    metrics.write(1, {"broken": 1})
    for _ in range(3):
        mirror.poll()
    mirror.close()
    assert len(said) == 1
    assert "no network" in said[0]


def test_modes_are_checked_before_a_run_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_wandb("off")
    assert start_wandb("off", tmp_path, no_message) is None
    with pytest.raises(ValueError, match="--wandb: expected off, offline, online"):
        check_wandb("yes")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"replay-server\[wandb\]"):
        check_wandb("offline")


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed (extra wandb)")
def test_the_library_itself_writes_an_offline_run(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from replay_server.learner.metrics import Metrics
from replay_server.learner.wandb_mirror import start_wandb

folder = Path(sys.argv[1])
mirror = start_wandb("offline", folder, sys.exit)
metrics = Metrics(folder, "learner", tensorboard=False)
for step in range(5):
    metrics.write(step, {"loss": 1.0 / (step + 1)})
mirror.close()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"learner/loss" in written.read_bytes()
    assert json.loads((tmp_path / STATE).read_text())["bytes"] == (tmp_path / "metrics.jsonl").stat().st_size
