"""The interface of scalers: from what a round was to the next round's number of actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from replay_server.serverless.record import RoundRecord


class Scaler(Protocol):
    """Decides each round's number of actors. Its state is plain data, saved with every checkpoint."""

    def actors(self, before: RoundRecord | None) -> int:
        """How many the next round gets, at least 1; `before` is the round before, None for the first."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What `restore` takes: numbers, strings, lists and maps of them."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
