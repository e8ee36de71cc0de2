"""What is read off a cell: when it reached the target, at what cost, and how good it was for so many dollars or steps.

The target J is 90 % of the median of fixed-16's final rewards; the budget B the median of what fixed-16 paid to J. Both
are settled before any other scheme runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay_server.bench.papers.nitro.cell import Cell, Target

SHARE = 0.9
"""Of fixed-16's median final reward."""


@dataclass(frozen=True)
class Reached:
    """A run's first evaluation at or above J; simulated seconds and dollars."""

    round: int
    time_s: float
    cost: float
    steps: int


def reached(cell: Cell, score: float) -> Reached | None:
    """None where no evaluation was."""
    for number, mean in (*cell.evaluations, (len(cell.counts), cell.final)):
        if mean >= score:
            return Reached(number, cell.elapsed_s[number - 1], cell.cost[number - 1], cell.steps[number - 1])
    return None


def target_of(fixed: Sequence[Cell]) -> Target:
    """J and B of fixed-16's cells, one a seed."""
    final = statistics.median(cell.final for cell in fixed)
    # 90 % of a score below 0 is less of a loss by the same tenth.
    score = final - (1.0 - SHARE) * abs(final)
    return Target(score, budget_of(fixed, score))


def budget_of(fixed: Sequence[Cell], score: float) -> float:
    """B: what fixed-16 paid for a score, median of its cells. One that missed it paid more than any that reached it."""
    return statistics.median(found.cost if (found := reached(cell, score)) else math.inf for cell in fixed)


def score_at(cell: Cell, along: Sequence[float], value: float) -> float:
    """Score where `along` (cost, steps, elapsed_s: one value a round) has that value.

    By a line between evaluations; before the first it is the first one's, and a run that ended before keeps its last.
    """
    rounds = [number for number, _ in cell.evaluations if number < len(cell.counts)]
    means = [mean for number, mean in cell.evaluations if number < len(cell.counts)]
    points = [along[number - 1] for number in (*rounds, len(cell.counts))]
    return float(np.interp(value, points, [*means, cell.final]))
