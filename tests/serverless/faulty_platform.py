"""A platform of worker processes of which some are killed and some come too late, and a backend that asks twice."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.rl.function_contract import (
    ActorRequest,
    GradientRequest,
    LearnerRequest,
    ParameterRequest,
    Request,
    decode_request,
    decode_response,
)
from replay_server.serverless.backends.backend import Attempt, Backend, unrecorded
from replay_server.serverless.backends.process import ProcessPlatform

FRACTION = 0.05
"""Of invocations that are killed, and of actors' that are late."""
KILLED_ASYNCHRONOUS = 0.4
"""Of invocations of asynchronous learners and parameter functions."""
LATE_S = 0.3
"""After its deadline an answer that is late comes."""
ASYNCHRONOUS = (GradientRequest, ParameterRequest)


class FaultyPlatform:
    """Worker processes of this host, of which some are killed and some come too late, as a seed says.

    Asynchronous learners and their parameter function are killed more often, as they are fewer, and when gradients have
    been pushed since they began: in the midst of their work.

    Each worker is a platform of its own, so that exactly the one that runs an invocation can be killed. Of the late
    ones half are handed over when their deadline is past, half are done and their answer is late. Only actors are late:
    a learner has no deadline. Those killed are killed at any moment up to their usual end.
    """

    def __init__(self, seed: int, url: str, instances: int) -> None:
        self.name, self.memory_mb = "process", 1024
        self.killed = self.late = 0
        self.learned: dict[str, list[tuple[int, int]]] = {}
        """Learner request → (environment, sequence) of the fragments that it learned from."""
        self.queues: set[str] = set()
        """Keys of the gradients of the asynchronous learners that were met."""
        self._seed = seed
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._client = rs.Client(url)
        self._platforms = [ProcessPlatform() for _ in range(instances)]
        self._free: queue.LifoQueue[ProcessPlatform] = queue.LifoQueue()
        for platform in self._platforms:
            self._free.put(platform)

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        request = decode_request(payload)
        with self._lock:
            self._tries[request.request] += 1
            chance = random.Random(f"{self._seed} {request.request} {self._tries[request.request]}")
        drawn, early = chance.random(), chance.random() < 0.5
        late = isinstance(request, ActorRequest) and FRACTION <= drawn < 2 * FRACTION
        if late:
            self.late += 1
        if late and early:
            time.sleep(max(0.0, request.deadline + LATE_S - time.time()))
        platform = self._free.get()
        try:
            doomed = drawn < (KILLED_ASYNCHRONOUS if isinstance(request, ASYNCHRONOUS) else FRACTION)
            with self._killing(platform, request, chance) if doomed else contextlib.nullcontext():
                answer = self._invoke(platform, request, payload, timeout_s)
        finally:
            self._free.put(platform)
        if late and not early:
            time.sleep(max(0.0, request.deadline + LATE_S - time.time()))
        return answer

    def _invoke(self, platform: ProcessPlatform, request: Request, payload: bytes, timeout_s: float) -> bytes:
        if not isinstance(request, LearnerRequest):
            return platform.invoke(payload, max(timeout_s, 10.0))
        batch = self._client.get(request.names.fragments, np.frombuffer(request.fragments, "<u8"))
        answer = platform.invoke(payload, timeout_s)
        if decode_response(answer).failure is None:
            pairs = zip(batch.data["environment"].tolist(), batch.data["sequence"].tolist(), strict=True)
            assert self.learned.setdefault(request.request, found := list(pairs)) == found
        return answer

    @contextlib.contextmanager
    def _killing(self, platform: ProcessPlatform, request: Request, chance: random.Random) -> Iterator[None]:
        """Kills the platform's only worker while what is inside goes on."""
        ended = threading.Event()

        def kill() -> None:
            if isinstance(request, ASYNCHRONOUS):
                wanted = self._pushed(request) + chance.randint(1, 3)
                while self._pushed(request) < wanted:
                    if ended.wait(0.001):
                        return
            elif ended.wait(chance.uniform(0.0, 0.02)):
                return
            for pid in platform.workers():
                self.killed += 1
                os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _pushed(self, request: Request) -> int:
        self.queues.add(request.names.gradients)
        return int(self._client.gradient_info(request.names.gradients)["pushed"])

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        for platform in self._platforms:
            platform.prewarm(1, attempt)

    def close(self) -> None:
        for platform in self._platforms:
            platform.close()
        self._client.close()


class AskingTwice(Backend):
    """Submits some requests twice at the same time, as a platform that delivers at least once does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._chance = random.Random(3)
        self.twice: list[tuple[Future[bytes], Future[bytes]]] = []

    def submit(self, payload: bytes, **options: Any) -> Future[bytes]:
        future = super().submit(payload, **options)
        if self._chance.random() < FRACTION:
            self.twice.append((future, super().submit(payload, **options)))
        return future
