"""Several operations at once, over a connection each: every request is sent before the first reply is waited for.

So all servers are at work at the same time, and the whole takes as long as the slowest of them, whatever the driver:
nothing here waits, starts a thread or makes a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .driver import Operation, Step
from .exchanges import Exchanges

T = TypeVar("T")


def together(operations: Sequence[Operation[T]], deadline: float | None = None) -> Operation[list[T | Exception]]:
    """Does operations at once; an error of one does not end the others.

    Args:
        operations: each sends its request before it waits for a reply.
        deadline: on the clock `time.monotonic`: a connection on which no reply has begun by then counts as lost. None:
            as long as each operation waits by itself.

    Returns:
        What each returned, in their order, or in its place the exception that it raised.
    """
    results: list[Any] = [None] * len(operations)
    waiting: list[tuple[int, Step]] = []
    try:
        for place, each in enumerate(operations):
            if step := (yield from _taken_on(each, (), results, place, _waits_for_reply)):
                waiting.append((place, step))
        for place, step in waiting:
            if deadline is not None:
                step = (*step[:2], max(0.001, deadline - time.monotonic()))
            yield from _taken_on(operations[place], step, results, place, lambda step: False)
    finally:
        for each in operations:
            each.close()
    return results


def _waits_for_reply(step: Step) -> bool:
    return isinstance(getattr(step[0], "__self__", None), Exchanges) and step[0].__name__ == "receive"


def _taken_on(
    each: Operation[Any], step: Step, results: list[Any], place: int, stops: Callable[[Step], bool]
) -> Operation[Step]:
    """Takes an operation on from a step (none: from its beginning) to the step before which it stops; () at its end."""
    try:
        step = step or next(each)
        while not stops(step):
            try:
                given = yield step
            except BaseException as error:
                step = each.throw(error)
            else:
                step = each.send(given)
        return step
    except StopIteration as stop:
        results[place] = stop.value
    except Exception as error:
        results[place] = error
    return ()


def all_or_error(results: Sequence[T | Exception]) -> list[T]:
    """The results, where none is an exception; else the first exception is raised."""
    done: list[T] = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        done.append(result)
    return done
