"""What the scheduler sees before a round, and what it is rewarded with after it (MinionsRL, section 4).

    s_k = (k, L_(k−1), R̄_(k−1), KL(π_k ‖ π_(k−1)), P^l_(k−1), P̄^a_(k−1), P_(k−1), b_k)
    r_k = −β P_k,  and in the last round K also min(0, max R̄ − J) where J was not reached within the budget B

The paper leaves units open. Here R̄ is a share of |J| and b a share of B, so that a policy can be used again for other
targets and budgets; the rest is as the record has it: losses and nats plain, times in seconds. The KL divergence is the
learner's KL(π_old ‖ π), of the policies before and after the round's learning. In the reward R̄ is what the engine
holds against J, the mean of the games of five rounds: with single rounds, which jump, a job that missed J would often
count as one that had it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay_server.serverless.orchestrator import SCORE_ROUNDS
from replay_server.serverless.record import RoundRecord

STATE = (
    "round",
    "loss",
    "score_share",
    "kl",
    "learner_s",
    "actor_s_mean",
    "round_s",
    "budget_left_share",
)
"""The state's numbers in their order."""


@dataclass(frozen=True)
class Goal:
    """What a job is to reach: the score `target` (J), for at most `budget` dollars (B)."""

    target: float
    budget: float

    def __post_init__(self) -> None:
        if not 0.0 < self.budget < math.inf:
            raise ValueError(f"expected a finite budget above 0 dollars, got {self.budget}")
        if self.target == 0.0 or not math.isfinite(self.target):
            raise ValueError(
                f"expected a finite target score other than 0, got {self.target}: scores are seen as shares of it"
            )


def scheduler_state(before: RoundRecord | None, goal: Goal, score: float) -> np.ndarray:
    """s_k, float32 (8,): before round k, of the record of round k − 1 (None before the first).

    `score` is R̄_(k−1): the last mean score that there was, since a round in which no game ended has none.
    """
    if before is None:
        return np.array([1.0, 0.0, score / abs(goal.target), 0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
    return np.array(
        [
            before.round + 1,
            before.statistics["loss"],
            score / abs(goal.target),
            before.statistics["kl"],
            before.learner_s,
            before.actor_s_mean,
            before.round_s,
            (goal.budget - before.cost) / goal.budget,
        ],
        np.float32,
    )


def windowed_scores(rounds: Sequence[RoundRecord]) -> list[float | None]:
    """After each round, what the engine holds against a target: the mean of the games of the last five rounds.

    None before the fifth round, and where no game ended.
    """
    windows = [rounds[max(0, number - SCORE_ROUNDS) : number] for number in range(1, len(rounds) + 1)]
    return [_mean_score(window) if len(window) == SCORE_ROUNDS else None for window in windows]


def best_score(rounds: Sequence[RoundRecord]) -> float | None:
    """max R̄: the best of `windowed_scores`; of a job without five rounds the mean of its games. None without games."""
    scores = [score for score in windowed_scores(rounds) if score is not None]
    return max(scores) if scores else _mean_score(rounds)


def rewards(rounds: Sequence[RoundRecord], goal: Goal, reached: bool, time_weight: float) -> list[float]:
    """r_k of every round of a job that has ended; `time_weight` is β, a second's price.

    `reached`: whether J was. Where that cost more than B it does not count, as in the paper. A job in which no game
    ended at all is penalised as if its best score were 0, or J where that is below.
    """
    found = [-time_weight * each.round_s for each in rounds]
    if not reached or rounds[-1].cost > goal.budget:
        best = best_score(rounds)
        found[-1] += min(0.0, (min(0.0, goal.target) if best is None else best) - goal.target)
    return found


def _mean_score(rounds: Sequence[RoundRecord]) -> float | None:
    games = [score for each in rounds for score in each.scores]
    return sum(games) / len(games) if games else None
