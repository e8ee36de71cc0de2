"""An operation that blocks, done up to where it would wait for a reply: others go on while the server is at work.

What is begun keeps its connection, so nothing else can read its reply (`driver` tells of the steps of an operation).
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from .connection import Connection
from .driver import Operation, Step, after, run

T = TypeVar("T")


class Begun(Generic[T]):
    """A request that was sent, or a result that needed none. One that nobody refers to any more is given up.

    Raises what the operation raises before its request is sent.
    """

    def __init__(self, operation: Operation[T]) -> None:
        self._operation = operation
        self._step: Step = ()
        self._result: Any = None
        try:
            self._step = next(operation)
            while getattr(self._step[0], "__func__", None) is not Connection.receive:
                self._step = after(operation, self._step)
        except StopIteration as stop:
            self._step, self._result = (), stop.value
        except BaseException:
            operation.close()
            raise
        wait_s = self._step[2] if self._step else None
        self._until = None if wait_s is None else time.monotonic() + wait_s

    @property
    def is_done(self) -> bool:
        """Whether there is no reply to wait for, as where a table is in this process."""
        return not self._step

    def finish(self) -> T:
        """Waits for the reply; once only. Raises what the operation raises."""
        return run(self._operation, self._step) if self._step else self._result

    def close(self) -> None:
        """Gives the request up: its connection is closed."""
        self._operation.close()


def first_answered(begun: Sequence[Begun[Any]]) -> int:
    """Waits until one of the requests has a reply, has failed, or has waited as long as it may; its place.

    A server may answer them in any order, and some not at all before others are finished.
    """
    looks = select.poll()
    places: dict[int, int] = {}
    for place, each in enumerate(begun):
        descriptor = None if each.is_done else each._step[0].__self__.awaited_descriptor()
        if descriptor is None:
            return place
        looks.register(descriptor, select.POLLIN)
        places[descriptor] = place
    untils = [(each._until, place) for place, each in enumerate(begun) if each._until is not None]
    until, impatient = min(untils, default=(None, 0))
    left_ms = None if until is None else max(0, 1000 * (until - time.monotonic()))
    if ready := looks.poll(left_ms):
        return min(places[descriptor] for descriptor, _ in ready)
    begun[impatient]._step = (*begun[impatient]._step[:2], 0.001)  # it has waited here
    return impatient
