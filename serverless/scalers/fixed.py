"""The same number of actors in every round: what the others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord


class Fixed:
    """`count` actors a round. The scaler `max` is this one with the greatest count."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"expected at least 1 actor, came {count}")
        self._count = count

    def actors(self, before: RoundRecord | None) -> int:
        return self._count

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
