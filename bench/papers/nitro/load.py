"""Times of cells that ran while the machine had more or less else to do, put on one footing.

A processor that is shared takes more processor seconds for the same work, so a cell's times tell of its scheme and of
what ran beside it. All schemes act alike: fragments of as many steps by the same network in the same environment. How
long those of a round took, against the median of all cells, is how much slower the machine was then.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable

from replay_server.bench.papers.nitro.cell import Cell, JobSettings, lambda_clock, played_again

NEIGHBOURS = 2
"""Rounds before and after one whose fragments are counted with its own."""


def usual_acting_s(cells: Iterable[Cell]) -> float:
    """Median over cells of their median processor seconds of a fragment. ValueError without cells."""
    medians = [statistics.median(each for one in cell.actor_cpu_s for each in one) for cell in cells]
    if not medians:
        raise ValueError("expected cells to take the usual processor time of")
    return statistics.median(medians)


def at_even_load(cell: Cell, usual_s: float, job: JobSettings) -> Cell:
    """The same training with each round's processor times as if its fragments had taken `usual_s` in the median.

    The learner's seconds are divided by the same factor as the actors'; times and dollars are simulated anew.
    """
    acting, learning = [], []
    for number, (actors, learner) in enumerate(zip(cell.actor_cpu_s, cell.learner_cpu_s, strict=True)):
        near = cell.actor_cpu_s[max(0, number - NEIGHBOURS) : number + NEIGHBOURS + 1]
        slower = statistics.median(each for one in near for each in one) / usual_s
        acting.append(tuple(each / slower for each in actors))
        learning.append(learner / slower)
    even = dataclasses.replace(cell, actor_cpu_s=tuple(acting), learner_cpu_s=tuple(learning))
    return played_again(even, lambda_clock(job))
