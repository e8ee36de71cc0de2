"""Draws the evaluations of several Ape-X runs into one picture, and prints what each run ended with."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replay_server.bench.plot import plot_curves


def read_run(folder: Path) -> dict[str, Any]:
    """The run's `summary.json` ("summary") and the columns of its `scores.csv` ("transitions", "mean": lists of float).

    Raises FileNotFoundError for a folder that is no run directory, or of a run without an evaluation.
    """
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise FileNotFoundError(f"{folder}/scores.csv holds no evaluation")
    return {
        "summary": summary,
        "transitions": [float(row["transitions"]) for row in rows],
        "minutes": [float(row["minutes"]) for row in rows],
        "mean": [float(row["mean"]) for row in rows],
    }


def _final_score(summary: dict[str, Any]) -> str:
    if not summary["eval_episodes"]:  # interrupted, or the server was lost: no last games were played
        return "–"
    return f"{summary['eval_mean']:.1f} ± {summary['eval_std']:.1f} ({summary['eval_episodes']} games)"


def main(argv: Sequence[str], folder: str = "") -> int:
    """``replay-server bench curves RUN … [--plot FILE.png]``."""
    parser = argparse.ArgumentParser(prog="replay-server bench curves", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory of replay-server apex")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="one curve a run: evaluation against transitions")
    arguments = parser.parse_args(argv)

    runs = {folder.name: read_run(folder) for folder in arguments.runs}
    print("| run | seed | ended by | minutes | updates | transitions | evaluations (means) | final score |")
    print("|---|---|---|---|---|---|---|---|")
    for name, run in runs.items():
        summary = run["summary"]
        means = " ".join(f"{mean:.0f}" for mean in run["mean"])
        print(
            f"| {name} | {summary['seed']} | {summary['ended_by']} | {summary['minutes']:.1f} | {summary['updates']} "
            f"| {summary['transitions']} | {means} "
            f"| {_final_score(summary)} |"
        )
    if arguments.plot:
        plot_curves({name: (run["transitions"], run["mean"]) for name, run in runs.items()}, str(arguments.plot))
    return 0
