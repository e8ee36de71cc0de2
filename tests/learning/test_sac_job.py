"""Continuous actions through all parts of a job, and Pendulum learned by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from replay_server.learner.metrics import read_metrics

MINUTES = 5.0


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "replay_server", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=dict(os.environ),
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_few_updates_go_through_all_parts_and_are_resumed_and_played_again(tmp_path: Path) -> None:
    begun = run(
        tmp_path, "apex", "--env", "Pendulum-v1", "--min-size-to-sample", "200", "--batch-size", "16",
        "--samples-per-insert", "16", "--hidden", "16", "--max-updates", "40", "--eval-every-updates", "20",
        "--eval-episodes", "1", "--final-episodes", "2", "--logdir", "run", "--actors", "1",
        "--precision", "float32", "--learner-threads", "1", "--targets-ahead", "off",
    )  # fmt: skip
    assert "profile sac (chosen for continuous actions)" in begun.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["algo"], config["profile"]) == ("sac", "sac")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ended_by"], summary["updates"], summary["eval_episodes"]) == ("max_updates", 40, 2)
    assert summary["transitions"] >= 200
    reported = read_metrics(tmp_path / "run", "learner")[-1]
    assert reported["temperature"] > 0
    assert np.isfinite([reported["entropy"], reported["policy_loss"]]).all()

    resumed = run(tmp_path, "apex", "--resume", "--logdir", "run", "--max-updates", "60")
    assert "goes on from" in resumed.stdout
    words = ["evaluate", "run", "--checkpoint", "step_60", "--episodes", "3", "--seed", "5", "--json"]
    found, again = (json.loads(run(tmp_path, *words).stdout) for _ in range(2))
    assert (found["checkpoint"], found["checkpoint_step"], found["epsilon"]) == ("checkpoints/step_60", 60, 0.0)
    assert all(-2000 < score < 0 for score in found["scores"])
    assert found["scores"] == again["scores"], "the mean of the policy plays, which nobody draws"


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pendulum_is_learned_within_five_minutes(tmp_path: Path, seed: int) -> None:
    """Judged by 20 fresh games of 200 steps: uniform actions get −1,200, the best known ones about −150.

    The network that is judged is the best of those evaluated until two in a row have a mean of −170.
    """
    run(
        tmp_path, "apex", "--env", "Pendulum-v1", "--seed", str(seed), "--minutes", str(MINUTES),
        "--target-score", "-170", "--target-evaluations", "2", "--eval-every-updates", "500", "--logdir", "run",
    )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    curve = [(row["updates"], round(row["minutes"], 2), round(row["score_mean"])) for row in summary["evaluations"]]
    print(
        f"seed {seed}: {summary['ended_by']}, {summary['eval_mean']:.0f} over 20 games, {summary['minutes']}; {curve}"
    )
    assert summary["eval_episodes"] == 20
    assert summary["eval_mean"] >= -200, curve
