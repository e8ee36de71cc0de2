"""An environment as a newcomer writes one, a dict of a picture and a vector, through all parts of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from pages import REPOSITORY, Page

MEADOW = ["--env", "meadow:Meadow-v0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the modules of the page on environments of one's own."""
    for block in Page(REPOSITORY / "docs/how-to/own-environment.md").blocks:
        if block.mark == "file":
            (tmp_path / block.told).write_text(block.text)
    return tmp_path


def run(folder: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "replay_server", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "."},
        timeout=600,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_a_few_updates_of_a_dict_go_through_all_parts_and_can_be_played_again(folder: Path) -> None:
    run(
        folder, "apex", *MEADOW, "--actors", "1", "--envs-per-actor", "2", "--min-size-to-sample", "100",
        "--batch-size", "16", "--hidden", "16", "--max-updates", "60", "--eval-every-updates", "20",
        "--eval-episodes", "2", "--final-episodes", "2", "--logdir", "run",
        "--precision", "float32", "--learner-threads", "1", "--targets-ahead", "off",  # or it would be measured
    )  # fmt: skip
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["ended_by"], summary["updates"], summary["eval_episodes"]) == ("max_updates", 60, 2)

    resumed = run(folder, "apex", "--resume", "--logdir", "run", "--max-updates", "80")
    assert "goes on from" in resumed.stdout
    played = run(folder, "evaluate", "run", "--checkpoint", "step_80", "--episodes", "3", "--seed", "5", "--json")
    found = json.loads(played.stdout)
    assert (found["checkpoint"], found["checkpoint_step"]) == ("checkpoints/step_80", 80)
    assert len(found["scores"]) == found["episodes"] == 3
    assert found["score_mean"] == pytest.approx(np.mean(found["scores"]))


@pytest.mark.slow
@pytest.mark.learning
def test_a_picture_and_a_vector_are_learned_within_three_minutes(folder: Path) -> None:
    """Judged by fresh games: 0.95 is the best possible mean, random play gets 0.2."""
    limits = ["--minutes", "3", "--target-score", "0.85", "--eval-every-updates", "250", "--final-episodes", "100"]
    run(folder, "apex", *MEADOW, *limits, "--logdir", "run")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    curve = [(round(row["minutes"], 2), round(row["score_mean"], 2)) for row in summary["evaluations"]]
    print(summary["ended_by"], summary["minutes"], summary["eval_mean"], curve)
    assert summary["ended_by"] == "target_score", curve
    assert summary["eval_mean"] >= 0.8, curve
