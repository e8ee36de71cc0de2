"""`replay-server bench curves` reads what runs have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs the extra rl (make setup installs it)")

from replay_server.bench.main import main


def write_run(folder: Path, rows: str, **summary: Any) -> Path:
    folder.mkdir()
    content = {"seed": 7, "ended_by": "minutes", "minutes": 1.5, "updates": 20, "transitions": 300, **summary}
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "scores.csv").write_text(f"minutes,frames,mean\n{rows}")
    return folder


def test_runs_with_and_without_a_final_score_are_told_and_drawn(tmp_path: Path, capsys: Any) -> None:
    ended = write_run(tmp_path / "ended", "0.5,400,20.4\n1,800,31.6\n", eval_episodes=20, eval_mean=30.0, eval_std=2.0)
    cut = write_run(tmp_path / "cut", "0.5,360,-21\n", eval_episodes=0, eval_mean=None, eval_std=None)
    plot = tmp_path / "curves.png"
    assert main(["curves", str(ended), str(cut), "--plot", str(plot), "--target", "30"]) == 0
    told = capsys.readouterr().out
    assert "| ended | 7 | minutes | 1.5 | 20 | 300 | 20 32 | 30.0 ± 2.0 (20 games) |" in told
    assert "| cut | 7 | minutes | 1.5 | 20 | 300 | -21 | – |" in told
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main(["curves", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
