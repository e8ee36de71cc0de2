"""Draws the evaluations of several Ape-X runs into one picture, and prints what each run ended with."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench.plot import Scores, plot_runs


def read_run(folder: Path) -> dict[str, Any]:
    """The run's `summary.json` ("summary"), and of its `scores.csv` "minutes", "frames" and "mean" (lists of float).

    Raises FileNotFoundError for a folder that is no run directory, or of a run without an evaluation.
    """
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise FileNotFoundError(f"{folder}/scores.csv holds no evaluation")
    return {
        "summary": summary,
        **{name: [float(row[name]) for row in rows] for name in ("minutes", "frames", "mean")},
    }


def _final_score(summary: dict[str, Any]) -> str:
    if not summary["eval_episodes"]:  # interrupted, or the server was lost: no last games were played
        return "–"
    return f"{summary['eval_mean']:.1f} ± {summary['eval_std']:.1f} ({summary['eval_episodes']} games)"


def main(argv: Sequence[str], folder: str = "") -> int:
    """``replay-server bench curves RUN … [--plot FILE.png]``."""
    parser = Parser(prog="replay-server bench curves", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory of replay-server apex")
    parser.add_argument("--plot", metavar="FILE.png", help="one curve a run: evaluations against minutes and frames")
    parser.add_argument("--target", type=float, metavar="SCORE", help="that was asked for: a line in the picture")
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
        curves = [
            Scores(name, f"C{number}", run["minutes"], run["frames"], run["mean"])
            for number, (name, run) in enumerate(runs.items())
        ]
        plot_runs(curves, arguments.target, arguments.plot)
    return 0
