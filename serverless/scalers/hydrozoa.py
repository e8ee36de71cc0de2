"""Hydrozoa: actors are doubled after so many rounds (Nitro, section 6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler, check_whole


class Hydrozoa(PlainScaler):
    """I_k = min(start · 2^⌊(k − 1) / every⌋, most), rounds counted from 1."""

    def __init__(self, most: int, start: int = 8, every: int = 10) -> None:
        check_whole(start=start, every=every)
        if start < 1 or every < 1:
            raise ValueError(f"expected start and every of at least 1, got {start} and {every}")
        self._most, self._start, self._every = most, start, every
        self._round = 0

    def actors(self, before: RoundRecord | None) -> int:
        doublings = min(self._round // self._every, 63)
        self._round += 1
        return min(self._start << doublings, self._most)

    def state(self) -> Mapping[str, Any]:
        return {"round": self._round}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._round = int(state["round"])
