"""The same number of actors in every round: what the others are compared with."""

from __future__ import annotations

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler


class Fixed(PlainScaler):
    """`count` actors a round. The scaler `max` (MinionsRL's Max, Nitro's always boosting) has the greatest count."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"expected at least 1 actor, got {count}")
        self._count = count

    def actors(self, before: RoundRecord | None) -> int:
        return self._count
