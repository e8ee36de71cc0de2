"""Functions as processes of this host: the platform that is always there."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from replay_server.rl.function_contract import (
    ActorRequest,
    ContractError,
    WarmRequest,
    encode_request,
)
from replay_server.serverless.backends.backend import (
    WARM_S,
    Attempt,
    FunctionLost,
    FunctionTimeout,
    checked_warm,
    unrecorded,
    work_of,
)
from replay_server.serverless.backends.worker import HANDLER
from replay_server.serverless.backends.worker_process import WorkerDied, WorkerProcess, WorkerTimeout


class ProcessPlatform:
    """A pool of worker processes, each a fresh interpreter that runs one invocation at a time.

    A worker is started when an invocation finds none idle (a cold start), and is used again: first one that has done
    this kind of request before, and few other kinds, since the first of a kind imports what that needs (seconds, for a
    learner); among equal ones the last used. It has a session, a directory and an environment of its own and no open
    file but its pipe and where it prints; of what it prints the end is kept for the error that tells of its death. One
    that died, took too long, or wrote anything but its answer into the pipe is ended with all its children that stayed
    in its session; the next invocation gets another one. All end with this process, however that ends.

    Args:
        memory_mb: what an instance is reckoned to have, for its price; not enforced.
        command: put before the worker's own, e.g. ["unshare", "--net", …] or ["nice"]: whatever runs the rest of its
            arguments as a program and leaves it standard input.
        environment: variables for the worker, on top of PATH and a few more (`worker_process.INHERITED`).
        idle_s: a worker unused for so long is ended; None = it is kept.
        invocations: a worker is ended after so many; None = it is kept.
        memory_limit_mb: writable private memory of one worker (RLIMIT_DATA: the address space is no measure of what
            is used, since torch maps far more), beyond which its allocations fail; None = no limit.
        answer_bytes: the longest answer that is taken.
        handler: module:function that answers (bytes → bytes).
    """

    name = "process"

    def __init__(
        self,
        memory_mb: int = 1024,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        idle_s: float | None = None,
        invocations: int | None = None,
        memory_limit_mb: int | None = None,
        answer_bytes: int = 64 * 2**20,
        handler: str = HANDLER,
    ) -> None:
        if isinstance(command, str):
            raise ValueError(f"command: expected a list of arguments, got the string {command!r}")
        for what, value in (
            ("memory_mb", memory_mb),
            ("idle_s", idle_s),
            ("invocations", invocations),
            ("memory_limit_mb", memory_limit_mb),
            ("answer_bytes", answer_bytes),
        ):
            if value is not None and not value > 0:
                raise ValueError(f"{what}: expected more than 0, got {value}")
        self.memory_mb = memory_mb
        self._environment = dict(environment or {})
        self._idle_s = idle_s
        self._invocations = invocations
        self._answer_bytes = answer_bytes
        self._command = [*(command or ()), sys.executable, "-m", "replay_server.serverless.backends.worker"]
        self._command += ["--handler", handler]
        if memory_limit_mb is not None:
            self._command += ["--memory-limit-mb", str(memory_limit_mb)]
        self._change = threading.Condition()
        self._idle: list[WorkerProcess] = []
        """The longest idle first."""
        self._busy: set[WorkerProcess] = set()
        self._closed = False
        self._keeper: threading.Thread | None = None

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the handler once in a worker and returns its answer. FunctionTimeout, FunctionLost."""
        ends = time.monotonic() + timeout_s
        kind = work_of(payload)
        worker = self._take(kind) or self._start()
        worker.kinds.add(kind)
        return self._call(worker, payload, max(0.0, ends - time.monotonic()), timeout_s)

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """Starts workers until `count` are there, busy ones included; waits until they have imported an actor's work.

        Raises FunctionError where one cannot.
        """
        with self._change:
            missing = count - len(self._idle) - len(self._busy)
        if missing <= 0:
            return
        payload = encode_request(WarmRequest(work=(ActorRequest.kind,)))
        with ThreadPoolExecutor(missing) as threads:
            list(threads.map(self._warm, [payload] * missing, [attempt] * missing))

    def close(self) -> None:
        """Ends every worker; invocations that run raise FunctionLost."""
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._busy:
                worker.kill()
            self._change.notify_all()
        for worker in idle:
            worker.end()
        with self._change:
            self._change.wait_for(lambda: not self._busy, timeout=10)
            keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join(10)

    def workers(self) -> list[int]:
        """Process ids of the workers that there are, idle ones first."""
        with self._change:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    def __enter__(self) -> ProcessPlatform:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _warm(self, payload: bytes, attempt: Attempt) -> None:
        def call() -> bytes:
            worker = self._start()
            worker.kinds.add(ActorRequest.kind)
            return self._call(worker, payload, WARM_S, WARM_S)

        answer = attempt(payload, call)
        with contextlib.suppress(ContractError):  # another handler has another contract
            checked_warm(answer)

    def _call(self, worker: WorkerProcess, payload: bytes, left_s: float, timeout_s: float) -> bytes:
        known = {"instance": worker.instance, "cold": worker.calls == 0}
        keep = False
        try:
            answer = worker.call(payload, left_s)
            keep = True
            return answer
        except WorkerTimeout:
            message = f"worker {worker.pid} was ended: no answer within {timeout_s:.3g} s"
            raise FunctionTimeout(message, **known) from None
        except WorkerDied as error:
            if self._closed:
                raise FunctionLost(f"worker {worker.pid} was ended: its platform was closed", **known) from None
            raise FunctionLost(f"worker {worker.pid} was lost: {error}", **known) from None
        finally:
            self._give_back(worker, keep)

    def _take(self, kind: str) -> WorkerProcess | None:
        """An idle worker that is fit for a call, the best for this kind of request; None = there is none."""
        while True:
            with self._change:
                self._check_open()
                if not self._idle:
                    return None
                idle = self._idle
                best = max(range(len(idle)), key=lambda at: (kind in idle[at].kinds, -len(idle[at].kinds), at))
                worker = idle.pop(best)
                self._busy.add(worker)
            if worker.fit():
                return worker
            self._give_back(worker, keep=False)

    def _start(self) -> WorkerProcess:
        with self._change:
            self._check_open()
        try:
            worker = WorkerProcess(self._command, self._environment, self._answer_bytes)
        except OSError as error:
            raise FunctionLost(f"cannot start a worker by {' '.join(self._command)}: {error}", cold=True) from error
        with self._change:
            self._busy.add(worker)
            closed = self._closed
        if closed:
            self._give_back(worker, keep=False)
            raise FunctionLost("the platform was closed", cold=True)
        return worker

    def _give_back(self, worker: WorkerProcess, keep: bool) -> None:
        if keep and self._invocations is not None and worker.calls >= self._invocations:
            keep = False
        with self._change:
            keep = keep and not self._closed
            if keep:
                self._busy.discard(worker)
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                if self._idle_s is not None and self._keeper is None:
                    self._keeper = threading.Thread(target=self._end_idle, name="process-idle", daemon=True)
                    self._keeper.start()
        if not keep:
            worker.end()
            with self._change:
                self._busy.discard(worker)
                self._change.notify_all()

    def _end_idle(self) -> None:
        """A thread: ends workers that were idle for too long, until the platform closes."""
        assert self._idle_s is not None
        while True:
            with self._change:
                if self._closed:
                    return
                now = time.monotonic()
                over = [worker for worker in self._idle if worker.idle_since + self._idle_s <= now]
                self._idle = [worker for worker in self._idle if worker not in over]
                self._busy.update(over)
                if not over:
                    due = min((worker.idle_since for worker in self._idle), default=now) + self._idle_s
                    self._change.wait(max(0.01, due - now))
            for worker in over:
                self._give_back(worker, keep=False)

    def _check_open(self) -> None:
        if self._closed:
            raise FunctionLost("the platform is closed: make another one")
