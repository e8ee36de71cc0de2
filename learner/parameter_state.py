"""Where a parameter function stands: what is published with the weights, in the same command.

State, policy and the gradients that they were made of are published by one command (`GradientQueue.publish`): a
parameter function that is killed before it has changed nothing. The queue knows the last 4,096 names; here are those of
some rounds, so that one which the queue has forgotten is not applied again either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replay_server.learner.staleness import threshold_bound
from replay_server.rl.gradient_queue import Gradient

ROUNDS_REMEMBERED = 8
"""Rounds whose applied names are kept. A gradient of an earlier one is refused: whether it was applied is not known."""
STALENESS_SHOWN = 9
"""Stalenesses that are told one by one: from 0 up to this, and those above together."""


@dataclass
class Tally:
    """What became of the gradients of the round that is under way."""

    stalenesses: list[int] = field(default_factory=list)
    """Of each that was applied, in that order."""
    rates: float = 0.0
    """Sum of the factors of the learning rate."""
    flushes: int = 0
    duplicates: int = 0
    """Deliveries of one that was there, or had been applied, already."""
    refused: int = 0
    """Of rounds that are no longer remembered, of versions yet to come, not finite, or of another network."""
    dropped: int = 0
    """Staler than is allowed."""
    patience: int = 0
    """Flushes that did not wait for the rule any longer."""

    def statistics(self) -> dict[str, float]:
        """As numbers of a round's record."""
        count = len(self.stalenesses)
        shown = {
            f"staleness_{each}": float(sum(found == each for found in self.stalenesses))
            for each in range(STALENESS_SHOWN + 1)
        }
        return {
            "gradients": float(count),
            "flushes": float(self.flushes),
            "gradient_staleness": sum(self.stalenesses) / count if count else 0.0,
            "gradient_staleness_max": float(max(self.stalenesses, default=0)),
            "learning_rate_factor": self.rates / count if count else 1.0,
            "gradients_duplicate": float(self.duplicates),
            "gradients_refused": float(self.refused),
            "gradients_dropped": float(self.dropped),
            "flushes_of_patience": float(self.patience),
            **shown,
            f"staleness_above_{STALENESS_SHOWN}": float(sum(found > STALENESS_SHOWN for found in self.stalenesses)),
        }


@dataclass
class ParameterState:
    """Plain data but for its class: `plain` and `from_plain` carry it in the note of a learner's state."""

    round: int = 0
    """How many rounds are closed."""
    bound: int | None = None
    """M of the staleness threshold; None while no round had any."""
    applied: dict[str, list[int]] = field(default_factory=dict)
    """Learner → its round, and how many of its gradients, from the first on, need not be looked at again."""
    tally: Tally = field(default_factory=Tally)
    deliveries_twice: int = 0
    """What the server's count of duplicates was when the last round was closed."""

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ParameterState:
        """What `plain` gave; what is not there is as in the beginning (`initialise` of a job that is resumed)."""
        begun = cls()
        return cls(
            round=values.get("round", begun.round),
            bound=values.get("bound", begun.bound),
            applied=dict(values.get("applied", begun.applied)),
            tally=Tally(**values.get("tally", {})),
            deliveries_twice=values.get("deliveries_twice", begun.deliveries_twice),
        )

    def sorted_out(self, waiting: Sequence[Gradient], version: int) -> tuple[list[Gradient], list[Gradient]]:
        """Gradients that are to be applied to the weights of `version`, and those that are not, which are counted."""
        fresh, spent = [], []
        for each in waiting:
            if each.round < 1 or each.round <= self.round - ROUNDS_REMEMBERED or each.version > version:
                self.tally.refused += 1
            elif each.sequence < self.applied.get(each.learner, (0, 0))[1]:
                self.tally.duplicates += 1
            else:
                fresh.append(each)
                continue
            spent.append(each)
        return fresh, spent

    def dispose(self, gradients: Sequence[Gradient]) -> None:
        """Writes down that these need not be looked at again."""
        for each in gradients:
            _, done = self.applied.get(each.learner, (0, 0))
            self.applied[each.learner] = [each.round, max(done, each.sequence + 1)]

    def close_round(self, deliveries_twice: int = 0) -> dict[str, float]:
        """Ends the round: its statistics. The first that had any staleness sets the bound; old names are forgotten.

        Args:
            deliveries_twice: the server's count of duplicates by now; it begins anew with the server.
        """
        self.tally.duplicates += max(0, deliveries_twice - self.deliveries_twice)
        self.deliveries_twice = deliveries_twice
        if self.bound is None:
            self.bound = threshold_bound(self.tally.stalenesses)
        found = self.tally.statistics()
        self.round += 1
        self.tally = Tally()
        kept = self.round - ROUNDS_REMEMBERED
        self.applied = {learner: entry for learner, entry in self.applied.items() if entry[0] > kept}
        return found
