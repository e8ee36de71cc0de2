"""The interface of scalers: from what a round was to the next round's number of actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from replay_server.serverless.record import RoundRecord


class Scaler(Protocol):
    """Decides each round's number of actors. Its state is plain data, saved with every checkpoint."""

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        """What the learner function is to measure after every round, and how: name → options (`learner.probes`).

        What it finds stands in `RoundRecord.statistics`. {} = nothing but what every round has.
        """
        ...

    def actors(self, before: RoundRecord | None) -> int:
        """How many the next round gets, at least 1; `before` is the round before, None for the first.

        Called once a round, in their order: a scaler that looks further back keeps what it needs in its state.
        """
        ...

    def state(self) -> Mapping[str, Any]:
        """What `restore` takes: numbers, strings, lists and maps of them."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class PlainScaler:
    """What most scalers have in common: nothing to measure, nothing to keep."""

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def clip(count: float, least: int, most: int) -> int:
    """The whole number below `count`, at least `least` and at most `most`."""
    return max(least, min(most, int(count // 1)))
