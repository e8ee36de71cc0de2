"""A backend on any platform: order, bounds, retries, records, cancelling, closing.

The platform here is a double that runs a Python function in the calling thread: what is tested is the backend, which
meets every platform through the same three methods, and one with an event loop through a fourth. Real platforms have
tests of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, as_completed, wait
from contextlib import AbstractContextManager, contextmanager

import pytest

from replay_server.rl.function_contract import (
    ActorRequest,
    ContractError,
    Failure,
    Measured,
    Request,
    Response,
    WarmRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from replay_server.serverless.backends.backend import (
    Attempt,
    Backend,
    FunctionFailed,
    FunctionLost,
    FunctionTimeout,
    Invocation,
    unrecorded,
)
from replay_server.serverless.backends.event_loop import EventLoop

Function = Callable[[Request, float], bytes]


class FunctionDouble:
    """A platform of a Python function (request, timeout_s) → answer."""

    name = "double"
    memory_mb = 512

    def __init__(self, function: Function) -> None:
        self.function = function
        self.closed = threading.Event()
        self.warmed: list[int] = []

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        return self.function(decode_request(payload), timeout_s)

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        self.warmed.append(count)
        payload = encode_request(WarmRequest())
        for _ in range(count):
            attempt(payload, lambda: self.invoke(payload, 10.0))

    def close(self) -> None:
        self.closed.set()


def request(name: str, deadline: float = 0.0) -> bytes:
    return encode_request(
        ActorRequest(name, "redis://127.0.0.1:1", "job", {}, "ppo", round=3, version=1, deadline=deadline)
    )


def answer(to: Request, failure: Failure | None = None) -> bytes:
    measured = Measured(instance="i", invocation=2, bytes_in=100, bytes_out=20)
    return encode_response(
        Response(to.request, measured, result=None if failure else {"of": to.request}, failure=failure)
    )


class LoopDouble(FunctionDouble):
    """One whose invocations are awaited on an event loop, where the function runs in another thread."""

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self.loop = EventLoop("double")

    async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
        return await asyncio.to_thread(self.invoke, payload, timeout_s)

    def close(self) -> None:
        super().close()
        self.loop.close()


Backends = Callable[..., AbstractContextManager[tuple[Backend, list[Invocation]]]]


def backends(double: Callable[[Function], FunctionDouble]) -> Backends:
    @contextmanager
    def backend(
        function: Function, concurrency: int = 2, **options: float
    ) -> Iterator[tuple[Backend, list[Invocation]]]:
        records: list[Invocation] = []
        made = Backend(double(function), concurrency=concurrency, on_invocation=records.append, **options)
        try:
            yield made, records
        finally:
            made.close()

    return backend


@pytest.fixture(params=[FunctionDouble, LoopDouble], ids=["threads", "loop"])
def backend(request: pytest.FixtureRequest) -> Backends:
    """Makes a backend on a function, and the list of its records: with a thread for each invocation, or on a loop."""
    return backends(request.param)


def test_answers_come_as_futures_that_can_be_waited_for_together(backend: Backends) -> None:
    with backend(lambda to, timeout_s: answer(to), concurrency=4) as (functions, records):
        futures = {functions.submit(request(str(number))): str(number) for number in range(20)}
        for future in as_completed(futures, timeout=60):
            assert decode_response(future.result()).result == {"of": futures[future]}
        assert len(wait(futures, timeout=60).done) == 20
    assert sorted(record.request for record in records) == sorted(futures.values())


def test_no_more_than_the_cap_run_at_once_and_they_start_in_order(backend: Backends) -> None:
    lock, running, most, order = threading.Lock(), 0, 0, []

    def function(to: Request, timeout_s: float) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            order.append(int(to.request))
        time.sleep(0.01)
        with lock:
            running -= 1
        return answer(to)

    with backend(function, concurrency=3) as (functions, _):
        wait([functions.submit(request(str(number))) for number in range(30)], timeout=60)
    assert most == 3
    # Three threads take them in order, and may get to note it in another.
    assert all(abs(number - place) <= 2 for place, number in enumerate(order))


def test_thousands_wait_and_hold_no_more_threads_than_the_cap() -> None:
    before = threading.active_count()
    with backends(FunctionDouble)(lambda to, timeout_s: answer(to), concurrency=4) as (functions, records):
        futures = [functions.submit(request(str(number))) for number in range(3000)]
        assert threading.active_count() <= before + 4
        wait(futures, timeout=60)
        assert len(records) == 3000
    assert threading.active_count() == before


def test_on_a_loop_any_number_runs_at_once_in_one_thread() -> None:
    """500 answer only when all of them run."""
    running = 0

    class Meeting(LoopDouble):
        async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
            nonlocal running
            running += 1
            while running < 500:
                await asyncio.sleep(0.01)
            return answer(decode_request(payload))

    platform = Meeting(lambda to, timeout_s: answer(to))
    before = threading.active_count()
    with Backend(platform, concurrency=500) as functions:
        futures = [functions.submit(request(str(number))) for number in range(500)]
        assert len(wait(futures, timeout=60).done) == 500
        assert threading.active_count() == before
    assert all(decode_response(future.result()).failure is None for future in futures)


def test_closing_ends_what_runs_on_a_loop_and_what_rests_before_another_attempt() -> None:
    begun = threading.Event()

    class Endless(LoopDouble):
        async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
            if decode_request(payload).request == "lost":
                begun.set()
                raise FunctionLost("gone")
            self.running = asyncio.current_task()
            await asyncio.Event().wait()
            raise AssertionError

        def close(self) -> None:
            self.loop.run(self.give_up())
            super().close()

        async def give_up(self) -> None:
            assert self.running is not None
            self.running.cancel()

    functions = Backend(Endless(lambda to, timeout_s: b""), concurrency=2, retries=50)
    running, lost, waiting = (functions.submit(request(name)) for name in ("running", "lost", "waiting"))
    assert begun.wait(60)
    functions.close()
    assert isinstance(running.exception(0), FunctionLost)
    assert isinstance(lost.exception(0), FunctionLost)
    assert waiting.cancelled()


@pytest.mark.parametrize("error", [FunctionLost("gone"), FunctionTimeout("late"), OSError("broken")])
def test_what_is_lost_or_late_is_tried_again_and_each_attempt_is_recorded(backend: Backends, error: Exception) -> None:
    attempts = iter([error, None])

    def function(to: Request, timeout_s: float) -> bytes:
        if (wrong := next(attempts)) is not None:
            raise wrong
        return answer(to)

    with backend(function, concurrency=1) as (functions, records):
        assert decode_response(functions.submit(request("a")).result(60)).result == {"of": "a"}
    first, second = records
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.outcome == ("timeout" if isinstance(error, FunctionTimeout) else "lost")
    assert first.measured is None
    assert str(error) in first.error
    assert second.outcome == "ok"
    assert first.queued <= first.started <= first.ended == second.queued <= second.started <= second.ended
    assert (second.kind, second.round, second.platform, second.memory_mb) == ("actor", 3, "double", 512)
    assert (second.instance, second.cold, second.bytes_in) == ("i", False, 100)
    assert second.bytes_out > 20


def test_attempts_end_with_the_retries_and_the_last_error_is_the_futures(backend: Backends) -> None:
    def function(to: Request, timeout_s: float) -> bytes:
        raise FunctionLost("gone", instance="w1", cold=True)

    with backend(function, concurrency=1, retries=2) as (functions, records):
        assert isinstance(functions.submit(request("a")).exception(60), FunctionLost)
        assert isinstance(functions.submit(request("b"), retries=0).exception(60), FunctionLost)
    assert [(record.request, record.attempt) for record in records] == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert all(record.cold and record.instance == "w1" for record in records)


@pytest.mark.parametrize(("retry", "attempts"), [(False, 1), (True, 3)])
def test_a_failure_is_tried_again_only_where_it_says_that_this_may_help(
    backend: Backends, retry: bool, attempts: int
) -> None:
    failure = Failure("ValueError", "what came", "traceback", retry=retry)
    with backend(lambda to, timeout_s: answer(to, failure), concurrency=1) as (functions, records):
        error = functions.submit(request("a")).exception(60)
    assert isinstance(error, FunctionFailed)
    assert error.failure == failure
    assert "what came" in str(error)
    assert [record.outcome for record in records] == ["failed"] * attempts
    assert all(record.measured is not None for record in records)


def test_a_deadline_bounds_all_attempts_together(backend: Backends) -> None:
    limits: list[float] = []

    def function(to: Request, timeout_s: float) -> bytes:
        limits.append(timeout_s)
        time.sleep(min(timeout_s, 0.3))
        raise FunctionTimeout("late")

    with backend(function, concurrency=1, timeout_s=20, retries=50) as (functions, _):
        error = functions.submit(request("a", deadline=time.time() + 0.8)).exception(60)
    assert isinstance(error, FunctionTimeout)
    assert len(limits) <= 3 + 1, "of 0.3 s each, and one of what is left"
    assert all(0 < limit <= 0.8 for limit in limits)
    assert limits == sorted(limits, reverse=True)


def test_what_is_over_before_its_turn_is_not_invoked(backend: Backends) -> None:
    with backend(lambda to, timeout_s: answer(to)) as (functions, records):
        error = functions.submit(request("a", deadline=time.time() - 1)).exception(60)
    assert isinstance(error, FunctionTimeout)
    assert "deadline" in str(error)
    assert records == []


def test_an_answer_that_is_none_or_anothers_is_a_loss(backend: Backends) -> None:
    other = encode_response(Response("b", Measured(), result={}))
    for wrong in (b"no msgpack", other):
        with backend(lambda to, timeout_s, wrong=wrong: wrong, retries=0) as (functions, records):
            assert isinstance(functions.submit(request("a")).exception(60), FunctionLost)
        assert records[0].outcome == "lost"


def test_what_waits_can_be_cancelled_and_is_done_at_once(backend: Backends) -> None:
    go, begun = threading.Event(), threading.Event()

    def function(to: Request, timeout_s: float) -> bytes:
        begun.set()
        go.wait(60)
        return answer(to)

    with backend(function, concurrency=1) as (functions, records):
        running, waiting, last = (functions.submit(request(name)) for name in "abc")
        assert begun.wait(60)
        assert waiting.cancel()
        assert waiting.cancel()
        assert not running.cancel()
        assert wait([waiting], timeout=60).done == {waiting}
        go.set()
        assert decode_response(last.result(60)).result == {"of": "c"}
    assert [record.request for record in records] == ["a", "c"]


def test_closing_cancels_what_waits_and_fails_what_runs() -> None:
    begun = threading.Event()

    def function(to: Request, timeout_s: float) -> bytes:
        begun.set()
        assert platform.closed.wait(60)
        raise FunctionLost("ended")

    before = threading.active_count()
    platform = FunctionDouble(function)
    functions = Backend(platform, concurrency=1, retries=5)
    running, waiting = functions.submit(request("a")), functions.submit(request("b"))
    assert begun.wait(60)
    functions.close()
    functions.close()
    assert isinstance(running.exception(0), FunctionLost)
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert len(wait([running, waiting], timeout=60).done) == 2
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        functions.submit(request("c"))
    with pytest.raises(RuntimeError, match="closed"):
        functions.prewarm(1)


def test_an_error_of_who_keeps_the_records_loses_no_result(caplog: pytest.LogCaptureFixture) -> None:
    def fail(invocation: Invocation) -> None:
        raise OSError("disk full")

    with Backend(FunctionDouble(lambda to, timeout_s: answer(to)), concurrency=1, on_invocation=fail) as functions:
        assert decode_response(functions.submit(request("a")).result(60)).result == {"of": "a"}
        assert decode_response(functions.submit(request("b")).result(60)).result == {"of": "b"}
    assert "disk full" in caplog.text


def test_a_record_is_there_before_the_result(backend: Backends) -> None:
    with backend(lambda to, timeout_s: answer(to)) as (functions, records):
        for number in range(50):
            functions.submit(request(str(number))).result(60)
            assert len(records) == number + 1


def test_warm_instances_are_at_most_as_many_as_can_run() -> None:
    platform = FunctionDouble(lambda to, timeout_s: answer(to))
    with Backend(platform, concurrency=3) as functions:
        functions.prewarm(2)
        functions.prewarm(0)
        functions.prewarm(10)
    assert platform.warmed == [2, 3]


def test_calls_that_make_warm_are_recorded_and_in_no_round(backend: Backends) -> None:
    with backend(lambda to, timeout_s: answer(to)) as (functions, records):
        functions.prewarm(1)
        functions.submit(request("a")).result(60)
    assert [(each.kind, each.round, each.outcome) for each in records][:1] == [("warm", 0, "ok")]
    assert [each.kind for each in records] == ["warm", "actor"]

    def die(to: Request, timeout_s: float) -> bytes:
        raise FunctionLost("it died", instance="one", cold=True)

    with backend(die) as (functions, records), pytest.raises(FunctionLost, match="it died"):
        functions.prewarm(1)
    assert [(each.outcome, each.instance, each.cold, each.error) for each in records] == [
        ("lost", "one", True, "it died")
    ]


def test_arguments_are_checked() -> None:
    platform = FunctionDouble(lambda to, timeout_s: answer(to))
    for wrong in ({"concurrency": 0}, {"concurrency": 1, "timeout_s": 0}, {"concurrency": 1, "retries": -1}):
        with pytest.raises(ValueError):
            Backend(platform, **wrong)  # type: ignore[arg-type]
    with Backend(platform, concurrency=1) as functions:
        with pytest.raises(ContractError):
            functions.submit(b"no request")
        with pytest.raises(ValueError):
            functions.submit(request("a"), timeout_s=0)
        with pytest.raises(ValueError):
            functions.submit(request("a"), retries=-1)
        with pytest.raises(ValueError):
            functions.prewarm(-1)
