"""MinionsRL: a learned policy decides each round's number of actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler, check_seed, check_truth
from replay_server.serverless.scheduler.decision import Goal, scheduler_state
from replay_server.serverless.scheduler.policy import Decision, SchedulerPolicy


class Minions(PlainScaler):
    """I_k is drawn from the policy's distribution in the state after round k − 1.

    Args:
        goal: what the job is to reach: scores and what is left of the budget are seen as shares of it.
        most: the job's greatest count; a decision above it becomes it.
        seed: of what is drawn, with the round's number: a job that is resumed draws on as it would have.
        greedy: the likeliest number instead.
    """

    def __init__(self, policy: SchedulerPolicy, goal: Goal, most: int, seed: int = 1, greedy: bool = False) -> None:
        check_seed(seed)
        check_truth(greedy=greedy)
        self._policy, self._goal, self._most = policy, goal, most
        self._seed, self._greedy = seed, greedy
        self._score = 0.0
        self.decisions: list[Decision] = []
        """Those of this session, what a policy learns from."""

    def actors(self, before: RoundRecord | None) -> int:
        if before is not None and before.score is not None:
            self._score = before.score
        number = 1 if before is None else before.round + 1
        draw = None if self._greedy else np.random.default_rng([self._seed, number])
        self.decisions.append(self._policy.decide(scheduler_state(before, self._goal, self._score), draw))
        return min(self.decisions[-1].actors, self._most)

    def state(self) -> Mapping[str, Any]:
        return {"score": self._score}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._score = float(state["score"])
