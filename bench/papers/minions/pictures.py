"""MinionsRL's figures 5 (what the scheduler decides) and 9 (from scratch and fine-tuned)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from replay_server.bench.papers.minions.comparison import Comparison

WINDOW = 10
"""Episodes that a return is averaged over."""


def draw_decisions(comparison: Comparison, schedulers: Sequence[str], path: str) -> None:
    """Figure 5: actors of each round, and its score; mean over the seeds whose job had that round, and their range."""
    figure = Figure(figsize=(5 * len(schedulers), 4), layout="constrained")
    rows = figure.subplots(1, len(schedulers), squeeze=False)[0]
    for axes, name in zip(rows, schedulers, strict=True):
        cells = comparison.cells(name)
        numbers, mean, low, high = by_round([each["actors"] for each in cells])
        axes.fill_between(numbers, low, high, step="mid", alpha=0.2, color="C0", linewidth=0)
        axes.step(numbers, mean, where="mid", color="C0")
        axes.set(title=name[-50:], xlabel="round", ylabel="actors (mean, least and most)", ylim=(0, None))
        axes.title.set_fontsize(8)
        scores, mean, _, _ = by_round([each["scores"] for each in cells])
        beside = axes.twinx()
        beside.plot(scores, mean, color="C1")
        beside.axhline(comparison.goal.target, color="C1", linestyle=":")
        beside.set_ylabel("mean score (·· target)", color="C1")
    figure.suptitle(f"{comparison.job.env}, {len(comparison.seeds)} seeds", fontsize=9)
    _save(figure, path)


def draw_returns(sides: Mapping[str, Sequence[Mapping[str, Any]]], path: str) -> None:
    """Figure 9: return of each episode, and the mean of the last ten."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for index, (name, lines) in enumerate(sides.items()):
        returns = [each["return"] for each in lines]
        numbers = np.arange(1, len(returns) + 1)
        axes.plot(numbers, returns, ".", color=f"C{index}", alpha=0.3)
        means = [float(np.mean(returns[max(0, number - WINDOW) : number])) for number in numbers]
        axes.plot(numbers, means, color=f"C{index}", label=f"{name} ({lines[0]['env']})")
    axes.set(xlabel="episode (a whole job)", ylabel=f"return (line: mean of {WINDOW})")
    axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, path)


def by_round(
    series: Sequence[Sequence[float | None]],
) -> tuple[list[int], list[float], list[float], list[float]]:
    """Of jobs of different lengths: rounds, and mean, least and most of those jobs that have a value there."""
    numbers, columns = [], []
    for number in range(1, max(map(len, series)) + 1):
        values = [float(value) for each in series if len(each) >= number and (value := each[number - 1]) is not None]
        if values:
            numbers.append(number)
            columns.append((float(np.mean(values)), min(values), max(values)))
    mean, low, high = (list(column) for column in zip(*columns, strict=True)) if columns else ([], [], [])
    return numbers, mean, low, high


def _save(figure: Figure, path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
