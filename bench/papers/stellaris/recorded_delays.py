"""Delays as a real job had them: how stale its gradients were, round by round, for a simulated clock to play again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay_server.learner.parameter_state import STALENESS_SHOWN
from replay_server.serverless.run_log import read_rounds


@dataclass(frozen=True)
class RecordedDelays:
    """For each round a distribution, of versions that a learner's policy is older than the newest."""

    rounds: tuple[tuple[int, ...], ...]
    """Of each recorded round, how many gradients had staleness 0, 1, …; none is empty."""

    @classmethod
    def read(cls, folder: Path) -> RecordedDelays:
        """What the rounds of `replay-server train --learners async --logdir` wrote down of their gradients.

        Those above 9 versions, which are written down together, count as the stalest of their round.

        ValueError where there is no such round.
        """
        statistics = [each.statistics for each in read_rounds(folder)]
        rounds = tuple(_counts(each) for each in statistics if each.get("gradients"))
        if not rounds:
            raise ValueError(f"{folder}: no rounds of asynchronous learners in its metrics.jsonl")
        return cls(rounds)

    def draw(self, round_number: int, random: np.random.Generator) -> int:
        """The delay of one gradient of a round, from 1 on; a job longer than the recorded one begins it again."""
        counts = self.rounds[(round_number - 1) % len(self.rounds)]
        among = int(random.integers(sum(counts)))
        return next(delay for delay, up_to in enumerate(itertools.accumulate(counts)) if among < up_to)

    @property
    def mean(self) -> float:
        """Over all recorded gradients, in versions."""
        total = sum(delay * count for counts in self.rounds for delay, count in enumerate(counts))
        return total / sum(map(sum, self.rounds))


def _counts(statistics: Mapping[str, float]) -> tuple[int, ...]:
    """How many gradients of a round had staleness 0, 1, …, up to the stalest."""
    counts = {each: int(statistics[f"staleness_{each}"]) for each in range(STALENESS_SHOWN + 1)}
    stalest = int(statistics["gradient_staleness_max"])
    if above := int(statistics[f"staleness_above_{STALENESS_SHOWN}"]):
        counts[stalest] = above
    return tuple(counts.get(each, 0) for each in range(stalest + 1))
