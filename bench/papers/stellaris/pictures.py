"""Scores of training against simulated time and cost, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from replay_server.bench.papers.stellaris.job import Played

POINTS = 200
WINDOW = 5
"""Rounds that a score is averaged over."""
AXES = (("time_s", "simulated seconds"), ("cost", "simulated dollars"))


def draw_scores(sets: Mapping[str, Mapping[str, Sequence[Played]]], path: str) -> None:
    """Writes a PNG: a row for each environment, time and cost beside each other.

    Lines are means over seeds as far as all of them go, and bands reach from the least to the most of them.

    Args:
        sets: environment → method → jobs, one a seed.
    """
    figure = Figure(figsize=(10, 3.6 * len(sets)), layout="constrained")
    for (env, methods), row in zip(sets.items(), figure.subplots(len(sets), 2, squeeze=False), strict=True):
        for (along, title), axes in zip(AXES, row, strict=True):
            for index, (name, runs) in enumerate(methods.items()):
                where, scores = resampled(runs, along)
                if not len(where):
                    continue
                axes.fill_between(where, scores.min(0), scores.max(0), color=f"C{index}", alpha=0.15, linewidth=0)
                axes.plot(where, scores.mean(0), color=f"C{index}", label=name)
            axes.set(xlabel=title, ylabel=f"score (mean of {WINDOW} rounds)", title=env)
            axes.grid(alpha=0.3)
        row[0].legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def resampled(runs: Sequence[Played], along: str) -> tuple[np.ndarray, np.ndarray]:
    """Points (P,) of time or cost that all runs reached after their first score, and the scores there, (runs, P).

    Empty where a run has no score.
    """
    lines = []
    for run in runs:
        scored = [each for each in run.rounds if "score" in each]
        scores = [
            float(np.mean([each["score"] for each in scored[max(0, number - WINDOW) : number]]))
            for number in range(1, len(scored) + 1)
        ]
        lines.append(([each[along] for each in scored], scores))
    if not all(where for where, _ in lines):
        return np.empty(0), np.empty((len(runs), 0))
    points = np.linspace(max(where[0] for where, _ in lines), min(where[-1] for where, _ in lines), POINTS)
    return points, np.array([np.interp(points, where, scores) for where, scores in lines])
