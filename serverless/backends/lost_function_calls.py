"""Calls of functions that bring no response: why, and which of them are made again, when, and how often. Lost calls of
a client to the server are in `replay_server.lost_calls`.

A call is made again if the platform lost it, if it took longer than its time limit, or if the function failed and says
that another attempt may do better. It is not if the platform says that another attempt would not (a plain
`FunctionError`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay_server.serverless.backends.backend import Call

_RETRY_S = 0.05
"""Rest before the second attempt; twice as long before each further one, at most `_RETRY_S_MAX`."""
_RETRY_S_MAX = 2.0


class FunctionError(Exception):
    """An invocation brought no response. What the platform knows of it goes into its record.

    Args:
        instance: names where it ran, as its measurements would; "" = not known.
        cold: whether the instance had been started for it.
    """

    def __init__(self, message: str, *, instance: str = "", cold: bool = False) -> None:
        super().__init__(message)
        self.instance = instance
        self.cold = cold


class FunctionTimeout(FunctionError):
    """It was ended, because it took longer than its time limit."""


class FunctionLost(FunctionError):
    """Its process died, or the platform lost it."""


class FunctionFailed(FunctionError):
    """The function answered that it failed; `.failure` tells how (`replay_server.rl.function_contract.Failure`)."""

    def __init__(self, message: str, failure: Any) -> None:
        super().__init__(message)
        self.failure = failure


async def answer_of_attempts(
    call: Call,
    attempt: Callable[[int, float, float], Awaitable[tuple[bytes, FunctionError | None, float]]],
    rest: Callable[[float], Awaitable[bool]],
    is_closed: Callable[[], bool],
) -> tuple[bytes, FunctionError | None]:
    """Makes all attempts at a call: the answer of the one that succeeded, or the last one's error.

    Args:
        call: what is called; its deadline bounds all attempts together.
        attempt: makes one: (its number from 1, when it was queued, seconds that it may take) → answer, error, and when
            it ended.
        rest: waits for so many seconds; whether the backend was closed meanwhile.
        is_closed: whether the backend was closed.
    """
    queued = call.queued
    error: FunctionError | None = None
    for number in range(1, call.retries + 2):
        if error is not None and await rest(min(_RETRY_S * 2 ** (number - 2), _RETRY_S_MAX)):
            break
        limit_s = call.timeout_s
        if call.request.deadline:
            limit_s = min(limit_s, call.request.deadline - time.time())
        if is_closed():
            return b"", error or FunctionLost(f"{call.request.request}: the backend was closed before it began")
        if limit_s <= 0:
            late = f"{call.request.request}: its deadline was over before attempt {number}: give it more time"
            return b"", error or FunctionTimeout(late)
        answer, error, ended = await attempt(number, queued, limit_s)
        if error is None:
            return answer, None
        if not _may_do_better(error):
            break
        queued = ended
        call.unfinished = replace(call.unfinished, attempt=number + 1, queued=queued, started=None)
    return b"", error


def _may_do_better(error: FunctionError) -> bool:
    """Whether another attempt may."""
    if isinstance(error, FunctionFailed):
        return error.failure.retry
    return type(error) is not FunctionError
