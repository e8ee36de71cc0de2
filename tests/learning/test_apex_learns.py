"""CartPole learned through the real server, judged as the README says: three evaluations in a row, then fresh games."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

IN_TIME = ("--minutes", "4")
"""On two cores that do nothing else."""
ON_ANY_MACHINE = ("--max-transitions", "400000")
"""Four times what seed 1 needs, however long that takes."""


def run_cartpole(folder, seed: int, *words: str) -> dict:
    """Runs the job as a user would; returns its summary."""
    command = [
        sys.executable, "-m", "replay_server.jobs.apex", "--env", "CartPole-v1", "--profile", "cartpole",
        "--actors", "2", "--envs-per-actor", "4", "--seed", str(seed),
        "--target-score", "450", "--target-evaluations", "3", "--eval-episodes", "20", "--final-episodes", "100",
        "--logdir", str(folder / "run"), *words,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=dict(os.environ))
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    curve = [(row["transitions"], round(row["score_mean"])) for row in summary["evaluations"]]
    print(f"seed {seed}: {summary['ended_by']}, {summary['eval_mean']} over 100 games; {curve}")
    return summary


def check_learned(summary: dict, games: int = 100) -> None:
    last_three = [row["score_mean"] for row in summary["evaluations"][-3:]]
    assert summary["ended_by"] == "target_score", summary["evaluations"]
    assert min(last_three) >= 450
    assert (summary["eval_episodes"], summary["eval_mean"] >= 450) == (games, True), summary


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_cartpole_is_learned_by_seed_1(tmp_path):
    check_learned(run_cartpole(tmp_path, 1, *ON_ANY_MACHINE, "--final-episodes", "20"), games=20)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_cartpole_is_learned_from_two_shards_as_from_one_server(tmp_path):
    check_learned(run_cartpole(tmp_path, 1, *ON_ANY_MACHINE, "--replay-shards", "2"))


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_cartpole_is_learned_by_other_seeds(tmp_path, seed):
    check_learned(run_cartpole(tmp_path, seed, *IN_TIME))


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("control", [["--no-prioritized"], ["--n-step", "1"]], ids=["priorities-1", "n-step-1"])
def test_control_runs_complete_and_report_their_curve(tmp_path, control):
    summary = run_cartpole(tmp_path, 1, *IN_TIME, *control)
    assert summary["evaluations"]
    assert summary["eval_episodes"] == 100
