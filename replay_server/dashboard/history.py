"""What was seen of something over time, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

LIMIT = 600
"""Points kept: at one a second, ten minutes in full; of a longer time every second, fourth, … point."""
RATE_POINTS = 3
"""A rate is over this many intervals: what is pushed in batches would jump otherwise."""


class History:
    """Named numbers at points in time, oldest first. None stands for what was not there.

    When `limit` points are there every second one is left out, and points come half as often from then on: of counters
    nothing is lost by that, since rates are taken over the points that stay.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.times: list[float] = []
        self.values: dict[str, list[float | None]] = {}
        self._limit = limit
        self._apart_s = 0.0

    def add(self, time_s: float, values: Mapping[str, float | None]) -> None:
        """Takes the numbers of one moment (seconds since 1970); those that come too soon after the last are left out.

        No values at all are a gap: nothing was to be had then, and no line is drawn across.
        """
        if self.times and time_s - self.times[-1] < self._apart_s * 0.9:
            return
        if len(self.times) >= self._limit:
            # The oldest stays, and the newest: from it the next distance is measured.
            apart_s = (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)
            self.times = _halved(self.times)
            self.values = {name: _halved(column) for name, column in self.values.items()}
            self._apart_s = 2.0 * apart_s
            if time_s - self.times[-1] < self._apart_s * 0.9:
                return
        before = len(self.times)
        self.times.append(time_s)
        for name in {*self.values, *values}:
            self.values.setdefault(name, [None] * before).append(values.get(name))

    def __len__(self) -> int:
        return len(self.times)

    def last(self, name: str) -> float | None:
        """The newest value, None where there is none."""
        column = self.values.get(name)
        return column[-1] if column else None

    def column(self, name: str) -> list[float | None]:
        """All values of a name, as long as `times`."""
        return self.values.get(name) or [None] * len(self.times)

    def rate(self, name: str) -> list[float | None]:
        """What a counter grew by each second; None at its start, in gaps, and where it began again from 0."""
        column = self.column(name)
        rates: list[float | None] = []
        for index, value in enumerate(column):
            first = max(0, index - RATE_POINTS)
            window = column[first : index + 1]
            if index == 0 or value is None or column[index - 1] is None:
                rates.append(None)
                continue
            # Back to the last gap, or to where the counter began again.
            start = index - 1
            while start > first and column[start - 1] is not None and _grows(column[start - 1], column[start]):
                start -= 1
            begin = window[start - first]
            seconds = self.times[index] - self.times[start]
            rates.append((value - begin) / seconds if begin is not None and value >= begin and seconds > 0 else None)
        return rates

    def points(self, name: str, rate: bool = False) -> list[list[float | None]]:
        """[milliseconds since 1970, value] for a chart whose axis is time."""
        column = self.rate(name) if rate else self.column(name)
        return [[round(time_s * 1000), value] for time_s, value in zip(self.times, column)]


def _halved(column: list[Value]) -> list[Value]:
    return [*column[:-1:2], column[-1]]


def _grows(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after >= before
