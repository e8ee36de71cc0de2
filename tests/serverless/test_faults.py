"""A job whose functions are killed, answer too late and are asked twice: it ends, and everything counts once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.rl.function_contract import ActorRequest, LearnerRequest, Request, decode_request, decode_response
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import Attempt, Backend, unrecorded
from replay_server.serverless.backends.process import ProcessPlatform
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.prices import load_prices
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

ACTORS, STEPS, DEADLINE_S = 8, 4, 3.0
FRACTION = 0.05
"""Of invocations that are killed, and of actors' that are late."""
LATE_S = 0.3
"""After its deadline an answer that is late comes."""
INSTANCES = 3


class FaultyPlatform:
    """Worker processes of this host, of which some are killed and some come too late, as a seed says.

    Each worker is a platform of its own, so that exactly the one that runs an invocation can be killed. Of the late
    ones half are handed over when their deadline is past, half are done and their answer is late. Only actors are late:
    a learner has no deadline. Those killed are killed at any moment up to their usual end.
    """

    def __init__(self, seed: int, url: str) -> None:
        self.name, self.memory_mb = "process", 1024
        self.killed = self.late = 0
        self.learned: dict[str, list[tuple[int, int]]] = {}
        """Learner request → (environment, sequence) of the fragments that it learned from."""
        self._seed = seed
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._client = rs.Client(url)
        self._platforms = [ProcessPlatform() for _ in range(INSTANCES)]
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
            with self._killing(platform, chance) if drawn < FRACTION else contextlib.nullcontext():
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
    def _killing(self, platform: ProcessPlatform, chance: random.Random) -> Iterator[None]:
        """Kills the platform's only worker while what is inside goes on."""
        ended = threading.Event()

        def kill() -> None:
            if ended.wait(chance.uniform(0.0, 0.02)):
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


def play(path: Path, rounds: int) -> None:
    """Plays a job of so many rounds with all these faults, and holds what it wrote against what happened."""
    settings = TrainSettings(
        env="CartPole-v1", steps=STEPS, actors=ACTORS, rounds=rounds, setting={"hidden": 8, "iterations": 1},
        concurrency=INSTANCES, deadline_s=DEADLINE_S, timeout_s=DEADLINE_S, learner_timeout_s=60.0, final_episodes=0,
        job="faults", keep=True, prewarm=INSTANCES, checkpoint_every=rounds, logdir=str(path),
    )  # fmt: skip
    backends: list[AskingTwice] = []

    def make_backend(*arguments: Any, **options: Any) -> AskingTwice:
        backends.append(AskingTwice(*arguments, **options))
        return backends[-1]

    with rs.Server() as server, rs.Client(server.url) as client:
        settings.server = server.url
        platform = FaultyPlatform(1, server.url)
        directory = RunDirectory(path)
        directory.create(settings)
        job = Orchestrator(settings, directory, platform=platform, make_backend=make_backend)
        assert job.run() == "rounds"
        assert client.info("faults:fragments")["size"] == 0
        size = client.info("faults:fragments")["capacity"]
        assert size >= ACTORS

    records, invocations = read_rounds(path), read_invocations(path)
    assert [record.round for record in records] == list(range(1, rounds + 1))
    assert [record.version for record in records] == list(range(1, rounds + 1))

    # Nothing counts twice, and each environment's fragments are learned from in order, without a gap.
    learned = [pair for number in range(1, rounds + 1) for pair in platform.learned[f"r{number}-learner"]]
    assert len(learned) == len(set(learned)) == sum(record.arrived for record in records)
    assert sum(record.steps for record in records) == records[-1].total_steps == len(learned) * STEPS
    for environment in range(ACTORS):
        sequences = [sequence for each, sequence in learned if each == environment]
        assert sequences == list(range(len(sequences)))

    # The faults were there.
    outcomes = Counter(each.outcome for each in invocations)
    assert platform.killed > 0
    assert outcomes["lost"] > 0
    assert platform.late > 0
    assert any(record.arrived < record.actors for record in records)
    (backend,) = backends
    assert backend.twice
    for future, again in backend.twice:
        if future.cancelled() or again.cancelled() or future.exception() or again.exception():
            continue
        one, other = decode_response(future.result()), decode_response(again.result())
        assert one.result == other.result
        assert one.replayed or other.replayed

    # Killed and duplicated calls are on the bill, and the log adds up to it.
    bill = Bill(load_prices(), settings.price_profile, settings.price_column)
    bill.add(*invocations)
    summary = json.loads(directory.summary.read_text())
    assert abs(summary["cost"] - bill.dollars) < 1e-9
    assert abs(summary["cost"] - float(sum(map(price, invocations)))) < 1e-9
    assert summary["bill"]["outcomes"]["lost"] == outcomes["lost"]
    times_asked = Counter(each.request for each in invocations if each.attempt == 1 and each.kind != "warm")
    assert any(count == 2 for count in times_asked.values())
    assert summary["bill"]["invocations"] == len(invocations)
    assert len(invocations) >= rounds * (ACTORS + 1) + INSTANCES
    assert [each.round for each in invocations if each.kind == "warm"] == INSTANCES * [0]


def price(invocation: Any) -> Fraction:
    """By AWS' own rule: milliseconds rounded up, times gigabytes; and the request."""
    us = round(invocation.ended * 1e6) - round(invocation.started * 1e6)
    ms = max(1, math.ceil(us / 1000))
    return Fraction(ms, 1000) * Fraction(invocation.memory_mb, 1024) * Fraction("0.0000166667") + Fraction("0.0000002")


def test_killed_late_and_duplicated_functions_count_once_and_are_billed(tmp_path):
    play(tmp_path, rounds=12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_invocations_with_faults_count_once_and_are_billed(tmp_path):
    play(tmp_path, rounds=112)
    assert len(read_invocations(tmp_path)) >= 1000
