"""Counts that were settled before: decay alone, counts of an earlier run in another order, any list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler, check_whole, clip


class Schedule(PlainScaler):
    """The first `rounds` rounds get the first count, as many the next; after the last, that one again."""

    def __init__(self, counts: Sequence[int], rounds: int = 1) -> None:
        if isinstance(counts, str) or not isinstance(counts, Sequence):
            raise ValueError(f"expected a list of counts, got {counts!r}")
        check_whole(rounds=rounds, **{f"count {number}": count for number, count in enumerate(counts, 1)})
        if not counts or min(counts) < 1:
            raise ValueError(f"expected counts of at least 1 actor, got {list(counts)}")
        if rounds < 1:
            raise ValueError(f"expected at least 1 of rounds, got {rounds}")
        self._counts = tuple(int(count) for count in counts)
        self._each = int(rounds)
        self._round = 0

    def actors(self, before: RoundRecord | None) -> int:
        self._round += 1
        return self._counts[min((self._round - 1) // self._each, len(self._counts) - 1)]

    def state(self) -> Mapping[str, Any]:
        return {"round": self._round}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._round = int(state["round"])


def decayed(rounds: int, most: int, least: int, decay: float) -> list[int]:
    """clip(⌊most · decay^k⌋, least, most) for round k from 1 on: Nitro without what it knows of curvature.

    Nitro's own ceiling in round k is that of k − 1, since the score of one round decides the next.
    """
    check_whole(least=least)
    if not 1 <= least <= most or not 0.0 < decay <= 1.0:
        raise ValueError(f"expected 1 to {most} actors at least and a decay in (0, 1], got {least} and {decay}")
    return [clip(most * decay**number, least, most) for number in range(1, rounds + 1)]


def shuffled(counts: Sequence[int], seed: int) -> list[int]:
    """The same counts in a random order."""
    return [int(count) for count in np.random.default_rng(seed).permutation(np.asarray(counts))]


def scaled_to(counts: Sequence[int], total: int, most: int) -> list[int]:
    """Counts in the same proportions whose sum is `total`, each of 1 to `most`.

    Raises ValueError where no such counts are: `total` below one or above `most` actors a round.
    """
    if not len(counts) <= total <= most * len(counts):
        raise ValueError(f"expected a total of {len(counts)} to {most * len(counts)} actors, got {total}")
    low, high = 0.0, float(most * len(counts))
    shares = np.asarray(counts, np.float64)
    for _ in range(100):  # The sum grows with the factor: halve the interval until nothing is left of it.
        factor = (low + high) / 2
        low, high = (factor, high) if np.clip(factor * shares, 1, most).sum() < total else (low, factor)
    exact = np.clip(high * shares, 1, most)
    found = np.floor(exact).astype(int)
    # What rounding down took away goes to those that lost the most by it.
    by_loss = [index for index in np.argsort(found - exact, kind="stable") if found[index] < most]
    for index in by_loss[: total - int(found.sum())]:
        found[index] += 1
    return [int(count) for count in found]
