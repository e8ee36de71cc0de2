"""What is written down of a job: every invocation, and every round that they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RoundRecord:
    """One round: what a scaler decides the next one's actors by. Times are seconds, really measured."""

    round: int
    """From 1 on."""
    version: int
    """Of the policy that the round's learning made."""
    actors: int
    """That were asked for."""
    arrived: int
    """Whose fragments were learned from; fewer where some were lost or late."""
    environments: int
    """Of each actor."""
    steps: int
    """Agent steps learned from in this round."""
    total_steps: int
    scores: tuple[float, ...]
    """Unclipped, of the games that ended in this round, exploration and all."""
    statistics: Mapping[str, float]
    """The learner's last update: loss, kl, entropy, … (`replay_server.learner.ppo.Statistics`)."""
    round_s: float
    learner_s: float
    """Of the learner function, submitted to answered."""
    actor_s_mean: float
    actor_s_max: float
    cost: float = 0.0
    """Dollars so far, the price profile's column."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Where the round's time went: dispatch, acting, learning, publishing, waiting, …"""

    @property
    def score(self) -> float | None:
        """Mean score; None where no game ended."""
        return sum(self.scores) / len(self.scores) if self.scores else None
