"""Functions on a platform, as futures: ``backend.submit(request) -> Future[bytes]``.

`Backend` is the same for all platforms: it caps how many invocations run at once, gives each a time limit, tries again
what a platform lost, and records every attempt. A platform (`Platform`) only invokes: one call, one answer or error.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from replay_server.rl.function_contract import Measured


class FunctionError(Exception):
    """An invocation brought no response."""


class FunctionTimeout(FunctionError):
    """It was ended, because it took longer than its time limit."""


class FunctionLost(FunctionError):
    """Its process died, or the platform lost it."""


class FunctionFailed(FunctionError):
    """The function answered that it failed; `.failure` tells how (`replay_server.rl.function_contract.Failure`)."""

    def __init__(self, message: str, failure: Any) -> None:
        super().__init__(message)
        self.failure = failure


class Platform(Protocol):
    """One place where functions run. Methods are called by many threads at once."""

    name: str
    memory_mb: int
    """What an instance is given, or is reckoned to have where the platform does not bound it."""

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function once and returns its answer. FunctionTimeout, FunctionLost."""
        ...

    def prewarm(self, count: int) -> None:
        """Starts instances so that `count` are warm, as far as the platform lets one; waits until they are."""
        ...

    def close(self) -> None:
        """Ends every instance that this started, running ones too."""
        ...


@dataclass(frozen=True)
class Invocation:
    """One attempt, as it was seen from here; what is billed. Times are seconds since 1970, by the caller's clock."""

    request: str
    kind: str
    """actor, learner or evaluation."""
    round: int
    attempt: int
    """1 = the first."""
    platform: str
    queued: float
    """When it was submitted, or its attempt before ended."""
    started: float
    """When it was handed to the platform."""
    ended: float
    """When its answer or its end was there."""
    outcome: str
    """ok, failed (the function said so), timeout, lost."""
    cold: bool
    instance: str
    memory_mb: int
    bytes_in: int
    """Payload of the request and what the function had from the replay server."""
    bytes_out: int
    """Payload of the response and what the function sent to the replay server."""
    measured: Measured | None
    """What the function says of itself; None where no response came."""
    error: str = ""


class Backend:
    """Runs functions on a platform.

    Args:
        concurrency: invocations at a time; more wait in order.
        timeout_s: time limit of one attempt.
        retries: attempts after the first, for what was lost, timed out or says that another attempt may do better.
        on_invocation: is given each attempt's record when it has ended, from a thread of this backend.
    """

    def __init__(
        self,
        platform: Platform,
        *,
        concurrency: int,
        timeout_s: float = 60.0,
        retries: int = 2,
        on_invocation: Callable[[Invocation], None] = lambda invocation: None,
    ) -> None:
        raise NotImplementedError

    def submit(self, payload: bytes, *, timeout_s: float | None = None, retries: int | None = None) -> Future[bytes]:
        """Runs the function with an encoded request; the future's result is the encoded response, of a success.

        Its exception is FunctionFailed, FunctionTimeout or FunctionLost, of the last attempt. A request's deadline
        bounds all attempts together. Cancelling works while it waits.
        """
        raise NotImplementedError

    def prewarm(self, count: int) -> None:
        """Makes `count` instances warm, at most `concurrency`; waits until they are."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancels what waits, ends what runs, and closes the platform."""
        raise NotImplementedError


PLATFORMS = ("process", "ray", "lambda", "http")


def make_platform(name: str, **options: Any) -> Platform:
    """A platform by its name; options are its class's. Its libraries are imported here.

    ModuleNotFoundError names the missing one; ValueError for an unknown name.
    """
    if name == "process":
        from replay_server.serverless.backends.process import ProcessPlatform

        return ProcessPlatform(**options)
    if name == "ray":
        from replay_server.serverless.backends.ray import RayPlatform

        return RayPlatform(**options)
    if name == "lambda":
        from replay_server.serverless.backends.aws_lambda import LambdaPlatform

        return LambdaPlatform(**options)
    if name == "http":
        from replay_server.serverless.backends.http import HttpPlatform

        return HttpPlatform(**options)
    raise ValueError(f"unknown backend {name!r}: expected one of {', '.join(PLATFORMS)}")
