"""``bench minions``: schedulers on the same jobs, kept as cells; its sums by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from replay_server.bench.papers.minions import comparison as module
from replay_server.bench.papers.minions import main
from replay_server.bench.papers.minions.comparison import Comparison, compare
from replay_server.bench.papers.minions.pictures import by_round
from replay_server.serverless.scheduler.decision import Goal
from replay_server.serverless.scheduler.main import main as scheduler
from replay_server.serverless.settings import TrainSettings

SMALL = [
    "--task", "cartpole", "--rounds", "5", "--steps", "8", "--environments", "1", "--actors-max", "3",
    "--setting", "hidden=8", "--setting", "iterations=1", "--target-score", "500", "--budget", "0.01",
]  # fmt: skip


def played(seed: int, name: str, value: float, cost: float, reached: bool = False) -> dict[str, Any]:
    return {
        "scheduler": name, "seed": seed, "return": value, "reached": reached, "rounds": 2, "ended_by": "rounds",
        "time_s": 3.0 * seed, "cost": cost, "actors": [1, 3], "scores": [None, 5.0], "best_score": 5.0,
        "wall_s": 1.0, "cpu_s": 1.0,
    }  # fmt: skip


def test_what_cells_come_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = tmp_path / "trained"
    training.mkdir()
    (training / "episodes.jsonl").write_text('{"cost": 0.5}\n{"cost": 0.25}\n')
    learned = f"learned:{training}:2"
    comparison = Comparison(TrainSettings(), Goal(10.0, 1.0), tmp_path, (1, 2))
    returns = {learned: (-1.0, -3.0), "random": (-4.0, -4.0), "fixed-2": (-2.0, -6.0), "fixed-4": (-2.0, -3.0)}
    for name, values in returns.items():
        for seed, value in zip((1, 2), values, strict=True):
            cell = played(seed, name, value, 0.1 * seed, reached=seed == 1)
            comparison.path(name, seed).write_text(json.dumps(cell))
    monkeypatch.setattr(module, "jobs", None)  # Nothing is to be played.
    found = compare(comparison, list(returns))
    assert found["best_fixed"] == "fixed-4"
    row = found["schedulers"][learned]
    assert (row["return"], row["reached"], row["time_s"], row["actors"]) == (-2.0, 0.5, 4.5, 2.0)
    assert row["cost"] == pytest.approx(0.15)
    assert row["time_s_reached"] == 3.0
    # Paired: (3, 1) against random, (1, 0) against fixed-4.
    assert found["differences"][learned]["random"]["mean"] == pytest.approx(2.0)
    assert found["differences"][learned]["random"]["low"] >= 1.0
    assert found["differences"][learned]["fixed-4"]["mean"] == pytest.approx(0.5)
    assert found["training"][learned] == pytest.approx(
        {"training": 0.75, "over_1": 0.9, "over_10": 0.225, "over_100": 0.1575}
    )  # fmt: skip


def test_rounds_that_few_jobs_had_are_of_those_alone() -> None:
    assert by_round([[4, 8, 2], [6, None], [2]]) == ([1, 2, 3], [4.0, 8.0, 2.0], [2.0, 8.0, 2.0], [6.0, 8.0, 2.0])


def test_the_command_plays_each_job_once_and_draws_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch, tuned = str(tmp_path / "scratch"), str(tmp_path / "tuned")
    assert scheduler(["train", *SMALL, "--logdir", scratch, "--episodes", "2"]) == 0
    assert scheduler(["train", *SMALL, "--logdir", tuned, "--from-policy", scratch, "--episodes", "1"]) == 0
    capsys.readouterr()
    words = ["--policy", scratch, "--folder", str(tmp_path / "cells"), "--seeds", "1", "--fixed", "1", "3"]
    assert main([*words, "--plot", str(tmp_path / "five.png"), "--json", str(tmp_path / "found.json")]) == 0
    assert "4/4 fixed-3, seed 1" in capsys.readouterr().out
    content = json.loads((tmp_path / "found.json").read_text())
    rows = content["schedulers"]
    assert (rows["fixed-1"]["actors"], rows["fixed-3"]["actors"]) == (1.0, 3.0)
    # How the costs compare depends on how fast this machine was; that each is its job's own does not.
    for name in ("fixed-1", "fixed-3"):
        (cell,) = (tmp_path / "cells").glob(f"{name}.seed=1.*.json")
        assert rows[name]["cost"] == json.loads(cell.read_text())["cost"] > 0.0
    assert main(words) == 0
    assert "minutes left" not in capsys.readouterr().out
    figure = ["--figure", "9", "--scratch", scratch, "--tuned", tuned, "--plot", str(tmp_path / "nine.png")]
    assert main(figure) == 0
    assert "scratch     2 episodes" in capsys.readouterr().out
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in ("five", "nine"))
    with pytest.raises(RuntimeError, match="expected 1 to 3 actors"):
        main([*words, "--fixed", "4"])
