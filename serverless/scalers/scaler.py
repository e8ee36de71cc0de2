"""The interface of scalers: from what a round was to the next round's number of actors."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, Protocol

from replay_server.serverless.record import RoundRecord


class Scaler(Protocol):
    """Decides each round's number of actors. Its state is plain data, saved with every checkpoint."""

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        """What the learner function is to measure after every round, and how: name → options (`learner.policy_probes`).

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


def check_whole(**values: Any) -> None:
    """ValueError, naming it, for a number that is not whole: options come as words, and a count has no halves."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ValueError(f"expected a whole number of {name}, got {value!r}")


def check_seed(seed: Any) -> None:
    """ValueError for what no random numbers can begin with."""
    check_whole(seed=seed)
    if seed < 0:
        raise ValueError(f"expected a seed of at least 0, got {seed}")


def check_truth(**values: Any) -> None:
    """ValueError, naming it, for what is neither true nor false: a word is taken for neither."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"expected {name} true or false, got {value!r}")


def clip(count: float, least: int, most: int) -> int:
    """The whole number below `count`, at least `least` and at most `most`."""
    return max(least, min(most, int(count // 1)))
