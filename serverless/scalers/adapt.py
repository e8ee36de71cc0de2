"""Adapt: actors in proportion to how near the score is to its target (MinionsRL, section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler, clip

ROUNDS = 5
"""Whose scores are taken together."""


class Adapt(PlainScaler):
    """I = clip(Ĵ / J · I_max, 1, I_max), Ĵ the mean score of the last 5 rounds.

    The paper's sum has n + 1 terms and is not divided; it calls the result an average, and this is one. A round in
    which no game ended has no score and does not count; before the first score there is one actor. A score that is not
    positive gives one actor, too: the ratio says nothing there.

    Args:
        target: J, positive.
        most: I_max.
    """

    def __init__(self, target: float, most: int) -> None:
        if not 0.0 < target < math.inf:
            raise ValueError(f"expected a finite target score above 0 to be adapted to, got {target}")
        self._target = target
        self._most = most
        self._scores: list[float] = []

    def actors(self, before: RoundRecord | None) -> int:
        if before is not None and before.score is not None:
            self._scores = [*self._scores, before.score][-ROUNDS:]
        if not self._scores:
            return 1
        mean = sum(self._scores) / len(self._scores)
        return clip(mean / self._target * self._most, 1, self._most)

    def state(self) -> Mapping[str, Any]:
        return {"scores": list(self._scores)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._scores = [float(score) for score in state["scores"]]
