"""Functions on a platform, as futures: ``backend.submit(request) -> Future[bytes]``.

`Backend` is the same for all platforms: it caps how many invocations run at once, gives each a time limit, makes lost
calls again (`lost_function_calls`), and records every attempt. A platform (`Platform`) only invokes: one call, one
answer or error.

A platform that blocks gets a thread for each invocation at a time. One that has an event loop (`LoopPlatform`: HTTP and
Lambda) is waited for there, a thousand invocations in one thread. How a call goes is written once, as coroutines: on a
loop they are tasks; in a thread nothing that they await ever suspends them, so that one step runs them to their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from replay_server.rl.function_contract import (
    ContractError,
    Measured,
    Request,
    Response,
    WarmRequest,
    decode_request,
    decode_response,
)
from replay_server.serverless.backends.event_loop import EventLoop
from replay_server.serverless.backends.lost_function_calls import (
    FunctionError,
    FunctionFailed,
    FunctionLost,
    FunctionTimeout,
    answer_of_attempts,
)

T = TypeVar("T")

WARM_S = 120.0
"""Patience with an instance that is made warm."""
CLOSE_S = 10.0
"""Patience with a platform that does not end what runs on it."""

_log = logging.getLogger(__name__)


Attempt = Callable[[bytes, Callable[[], bytes]], bytes]
"""(payload, call) → answer: makes the call, which invokes a function with the payload, and records it."""


def unrecorded(payload: bytes, call: Callable[[], bytes]) -> bytes:
    """An `Attempt` that nobody keeps."""
    return call()


class Platform(Protocol):
    """One place where functions run. Methods are called by many threads at once."""

    @property
    def name(self) -> str: ...

    @property
    def memory_mb(self) -> int:
        """What an instance is given, or is reckoned to have where the platform does not bound it."""
        ...

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function once and returns its answer.

        FunctionTimeout, FunctionLost; a plain FunctionError where another attempt would do no better.
        """
        ...

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """Starts instances so that `count` are warm, as far as the platform lets one; waits until they are.

        Each function that it calls for that, start included, is called through `attempt`.
        """
        ...

    def close(self) -> None:
        """Ends every instance that this started, running ones too."""
        ...


class LoopPlatform(Platform, Protocol):
    """A platform whose invocations are waited for without a thread each."""

    @property
    def loop(self) -> EventLoop | None:
        """Where `invoke_async` is awaited; None = this one only has `invoke`."""
        ...

    async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
        """As `invoke`."""
        ...


@dataclass(frozen=True)
class Invocation:
    """One attempt, as it was seen from here; what is billed. Times are seconds since 1970, by the caller's clock."""

    request: str
    kind: str
    """actor, learner, gradient, parameter, evaluation, or warm: a call that made an instance warm, in no round (0)."""
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


@dataclass(frozen=True)
class Unfinished:
    """An attempt that has no end yet; fields as `Invocation` has them."""

    request: str
    kind: str
    round: int
    attempt: int
    queued: float
    started: float | None
    """None while it waits for its turn."""


class Call(Future[bytes]):
    """A submitted request: its future, which also tells those who `wait` for it at once when it is cancelled."""

    def __init__(self, payload: bytes, request: Request, timeout_s: float, retries: int) -> None:
        super().__init__()
        self.payload = payload
        self.request = request
        self.timeout_s = timeout_s
        self.retries = retries
        self.queued = time.time()
        self.unfinished = Unfinished(request.request, request.kind, request.round, 1, self.queued, None)
        self._begin = threading.RLock()

    def cancel(self) -> bool:
        with self._begin:
            if self.cancelled():
                return True
            if not super().cancel():
                return False
            # A future of the standard library counts as done in `wait` only from here on, which its executors do when
            # its turn comes: never, once they are shut down.
            self.set_running_or_notify_cancel()
            return True

    def begin(self) -> bool:
        """Whether it was not cancelled before; from now on it cannot be."""
        with self._begin:
            return not self.cancelled() and self.set_running_or_notify_cancel()


class Backend:
    """Runs functions on a platform; a context manager.

    Requests start in the order in which they came; one that is tried again keeps its place. Threads are started as they
    are needed, one an invocation, and end with the backend; a platform with an event loop needs none.

    Args:
        concurrency: invocations at a time; more wait in order.
        timeout_s: time limit of one attempt.
        retries: attempts after the first, for what was lost, timed out or says that another attempt may do better.
        on_invocation: is given each attempt's record when it has ended, before the future knows, one record at a time,
            from a thread of this backend or on the platform's loop. What it raises is logged, and changes nothing.
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
        if concurrency < 1:
            raise ValueError(f"concurrency: expected at least 1 invocation at a time, got {concurrency}")
        self.platform = platform
        self.concurrency = concurrency
        self._timeout_s = _checked_timeout(timeout_s)
        self._retries = _checked_retries(retries)
        self._on_invocation = on_invocation
        self._telling = threading.Lock()
        self._change = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._threads: list[threading.Thread] = []
        self._free_threads = 0
        self._tasks = 0
        self._closed = threading.Event()
        self._closed_on_loop = asyncio.Event()
        self._loop: EventLoop | None = getattr(platform, "loop", None)
        self._on_loop = cast(LoopPlatform, platform) if self._loop is not None else None

    def submit(self, payload: bytes, *, timeout_s: float | None = None, retries: int | None = None) -> Future[bytes]:
        """Runs the function with an encoded request; the future's result is the encoded response, of a success.

        Its exception is FunctionFailed, FunctionTimeout or FunctionLost, of the last attempt. A request's deadline
        bounds all attempts together; one whose deadline is over when its turn comes is not invoked. Cancelling works
        while it waits.

        Raises:
            ContractError: the payload is no request.
            RuntimeError: the backend is closed.
        """
        call = Call(
            bytes(payload),
            decode_request(payload),
            self._timeout_s if timeout_s is None else _checked_timeout(timeout_s),
            self._retries if retries is None else _checked_retries(retries),
        )
        with self._change:
            if self._closed.is_set():
                raise RuntimeError(f"the backend on {self.platform.name} is closed: make another one")
            self._waiting.append(call)
            if self._loop is not None:
                self._start_task(self._loop)
            elif self._free_threads >= len(self._waiting):
                self._change.notify()
            elif len(self._threads) < self.concurrency:
                name = f"{self.platform.name}-{len(self._threads)}"
                thread = threading.Thread(target=lambda: _finished(self._serve()), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return call

    def _start_task(self, loop: EventLoop) -> None:
        if self._tasks < self.concurrency:
            self._tasks += 1
            try:
                loop.start(self._serve())
            except RuntimeError:
                self._tasks -= 1
                self._waiting.pop()
                raise RuntimeError(f"the platform {self.platform.name} is closed: make another one") from None

    def unfinished(self) -> list[Unfinished]:
        """The attempts that run or wait now, in the order in which they were asked for."""
        with self._change:
            calls = [*self._running, *self._waiting]
        return [call.unfinished for call in sorted(calls, key=lambda call: call.queued)]

    def prewarm(self, count: int) -> None:
        """Makes `count` instances warm, at most `concurrency`; waits until they are. FunctionError where they fail.

        The calls that it takes are recorded like others: a platform bills them.
        """
        if count < 0:
            raise ValueError(f"expected a count of instances, got {count}")
        if self._closed.is_set():
            raise RuntimeError(f"the backend on {self.platform.name} is closed: make another one")
        if count:
            self.platform.prewarm(min(count, self.concurrency), self._warm)

    def close(self) -> None:
        """Cancels what waits, ends what runs (its futures get FunctionLost), and closes the platform."""
        with self._change:
            self._closed.set()
            waiting = list(self._waiting)
            self._waiting.clear()
            self._change.notify_all()
        for call in waiting:
            call.cancel()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The platform is closed already.
                self._loop.run(self._tell_tasks())
        self.platform.close()
        give_up = time.monotonic() + CLOSE_S
        for thread in self._threads:
            # One without a number never ran: the process had no room for it, or an interrupt came just then.
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, give_up - time.monotonic()))
        with self._change:
            self._change.wait_for(lambda: not self._tasks, max(0.0, give_up - time.monotonic()))
            left = list(self._running)
        for call in left:  # a platform that could not end them
            with contextlib.suppress(InvalidStateError):
                call.set_exception(FunctionLost(f"{call.request.request}: the backend was closed while it ran"))

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def _tell_tasks(self) -> None:
        self._closed_on_loop.set()

    def _warm(self, payload: bytes, invoke: Callable[[], bytes]) -> bytes:
        async def invoked() -> bytes:
            return invoke()

        call = Call(payload, decode_request(payload), self._timeout_s, retries=0)
        with self._change:
            self._running.add(call)
        try:
            answer, error, _ = _finished(self._attempt(call, 1, call.queued, invoked()))
        finally:
            with self._change:
                self._running.discard(call)
        if error is not None and not isinstance(error, FunctionFailed):  # that one the platform tells better
            raise error
        return answer

    async def _serve(self) -> None:
        """A thread, or a task: runs one call after another."""
        while (call := self._next()) is not None:
            try:
                answer, error = await self._run(call)
            except asyncio.CancelledError:
                answer, error = b"", FunctionLost(f"{call.request.request}: its platform was closed while it ran")
            except BaseException as wrong:  # a defect here must not leave somebody waiting
                answer, error = b"", wrong
            with contextlib.suppress(InvalidStateError):
                if error is None:
                    call.set_result(answer)
                else:
                    call.set_exception(error)
            with self._change:
                self._running.discard(call)
            # Else the last of them lives on, payload and all, while this thread waits.
            del call, answer, error

    def _next(self) -> Call | None:
        """The oldest call that was not cancelled. None = the backend closes, or a task finds none that waits.

        A thread waits for one.
        """
        while True:
            with self._change:
                if self._loop is None:
                    self._free_threads += 1
                    self._change.wait_for(lambda: self._waiting or self._closed.is_set())
                    self._free_threads -= 1
                if self._closed.is_set() or not self._waiting:
                    self._tasks -= self._loop is not None
                    self._change.notify_all()
                    return None
                call = self._waiting.popleft()
                self._running.add(call)
            if call.begin():
                return call
            with self._change:
                self._running.discard(call)

    async def _rest(self, seconds: float) -> bool:
        """Waits; whether the backend was closed meanwhile."""
        if self._loop is None:
            return self._closed.wait(seconds)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed_on_loop.wait(), seconds)
        return self._closed.is_set()

    async def _invoke(self, payload: bytes, limit_s: float) -> bytes:
        if self._on_loop is None:
            return self.platform.invoke(payload, limit_s)
        return await self._on_loop.invoke_async(payload, limit_s)

    async def _run(self, call: Call) -> tuple[bytes, FunctionError | None]:
        """All attempts at a call: the answer of the one that succeeded, or the last one's error."""

        async def attempt(number: int, queued: float, limit_s: float) -> tuple[bytes, FunctionError | None, float]:
            return await self._attempt(call, number, queued, self._invoke(call.payload, limit_s))

        return await answer_of_attempts(call, attempt, self._rest, self._closed.is_set)

    async def _attempt(
        self, call: Call, attempt: int, queued: float, invoked: Awaitable[bytes]
    ) -> tuple[bytes, FunctionError | None, float]:
        """One invocation, recorded: its answer or its error, and when it ended."""
        began = time.perf_counter()
        started = time.time()
        call.unfinished = replace(call.unfinished, attempt=attempt, queued=queued, started=started)
        answer, response, error = b"", None, None
        try:
            answer = await invoked
            response = self._checked(call, answer)
        except FunctionError as wrong:
            error = wrong
        except Exception as wrong:
            error = FunctionLost(f"{call.request.request} on {self.platform.name}: {type(wrong).__name__}: {wrong}")
            error.__cause__ = wrong
        ended = started + time.perf_counter() - began
        if response is not None and (failure := response.failure) is not None:
            error = FunctionFailed(f"{call.request.request}: {failure.type}: {failure.message}", failure)
        measured = response.measured if response is not None else None
        invocation = Invocation(
            request=call.request.request,
            kind=call.request.kind,
            round=call.request.round,
            attempt=attempt,
            platform=self.platform.name,
            queued=queued,
            started=started,
            ended=ended,
            outcome=_outcome(error),
            cold=measured.cold if measured else error is not None and error.cold,
            instance=measured.instance if measured else error.instance if error else "",
            memory_mb=self._memory_mb(call.request.kind),
            bytes_in=measured.bytes_in if measured else len(call.payload),
            bytes_out=len(answer) + (measured.bytes_out if measured else 0),
            measured=measured,
            error=str(error) if error else "",
        )
        with self._telling:
            try:
                self._on_invocation(invocation)
            except Exception:
                _log.exception("what is told of invocations failed on %s; its result stays", call.request.request)
        return answer, error, ended

    def _memory_mb(self, kind: str) -> int:
        """Of an instance for a kind of request: a platform may have `memory_mb_of` where that differs."""
        memory_mb_of = getattr(self.platform, "memory_mb_of", None)
        return self.platform.memory_mb if memory_mb_of is None else memory_mb_of(kind)

    def _checked(self, call: Call, answer: bytes) -> Response:
        """The response in an answer. FunctionLost where there is none, or another request's."""
        try:
            response = decode_response(answer)
        except ContractError as wrong:
            raise FunctionLost(f"{call.request.request} on {self.platform.name}: {wrong}") from None
        # A function that could not read its request does not know what it is called.
        if response.request != call.request.request and not (response.failure and not response.request):
            raise FunctionLost(
                f"expected an answer to {call.request.request} from {self.platform.name}, got one to "
                f"{response.request!r}"
            )
        return response


def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that nothing suspends, since all that it awaits blocks this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("expected a coroutine that blocks, got one that waits for an event loop")


def checked_warm(answer: bytes) -> Response:
    """The response of an instance that was made warm. FunctionFailed where it could not be; ContractError."""
    response = decode_response(answer)
    if (failure := response.failure) is not None:
        raise FunctionFailed(f"an instance cannot be made warm: {failure.type}: {failure.message}", failure)
    return response


def work_of(payload: bytes) -> str:
    """What kind of work a request in a payload is, or makes warm for; "" where it is no request."""
    try:
        request = decode_request(payload)
    except ContractError:
        return ""
    return request.work[0] if isinstance(request, WarmRequest) and request.work else request.kind


def _outcome(error: FunctionError | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, FunctionFailed):
        return "failed"
    return "timeout" if isinstance(error, FunctionTimeout) else "lost"


def _checked_timeout(timeout_s: float) -> float:
    if not timeout_s > 0:
        raise ValueError(f"timeout_s: expected seconds above 0, got {timeout_s}")
    return timeout_s


def _checked_retries(retries: int) -> int:
    if retries < 0:
        raise ValueError(f"retries: expected 0 or more, got {retries}")
    return retries


PLATFORMS = ("process", "ray", "lambda", "http")


_WHERE = {
    "process": ("process", "ProcessPlatform"),
    "ray": ("ray", "RayPlatform"),
    "lambda": ("aws_lambda", "LambdaPlatform"),
    "http": ("http", "HttpPlatform"),
}


def check_platform(name: str, options: Mapping[str, Any]) -> type[Any]:
    """The class of a platform by its name, if it has those options. Its libraries are imported here.

    ModuleNotFoundError names the missing one; ValueError for an unknown name or option.
    """
    if name not in _WHERE:
        raise ValueError(f"unknown backend {name!r}: expected one of {', '.join(PLATFORMS)}")
    module, kind = _WHERE[name]
    platform = getattr(importlib.import_module(f"replay_server.serverless.backends.{module}"), kind)
    known = inspect.signature(platform).parameters
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"backend {name} has no option {unknown[0]!r}: expected some of {', '.join(known)}")
    starts_services = name == "http" and options.get("url") is None
    if starts_services and importlib.util.find_spec("functions_framework") is None:
        raise ModuleNotFoundError("services of this host need functions_framework", name="functions_framework")
    return platform


def make_platform(name: str, **options: Any) -> Platform:
    """A platform by its name; options are its class's, checked as by `check_platform`."""
    return check_platform(name, options)(**options)
