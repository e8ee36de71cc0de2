"""A job whose functions are killed, answer too late and are asked twice: it ends, and everything counts once."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from faulty_platform import AskingTwice, FaultyPlatform

import replay_server as rs
from replay_server.rl.function_contract import WarmRequest, decode_response, encode_request
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless import synchronous
from replay_server.serverless.backends.process import ProcessPlatform
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.prices import load_prices
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

ACTORS, STEPS = 8, 4
INSTANCES = 3


def beginnings_s(number: int) -> float:
    """Seconds in which a function begins so many times, however busy the machine is."""
    platform = ProcessPlatform()
    began = time.monotonic()
    try:
        platform.invoke(encode_request(WarmRequest(work=["actor"])), 600.0)
    finally:
        platform.close()
    return number * (time.monotonic() - began)


def play(path: Path, rounds: int) -> None:
    """Plays a job of so many rounds with all these faults, and holds what it wrote against what happened."""
    deadline_s = max(3.0, beginnings_s(2))  # of one that was killed, and some more
    settings = TrainSettings(
        env="CartPole-v1", steps=STEPS, actors=ACTORS, rounds=rounds, setting={"hidden": 8, "iterations": 1},
        concurrency=INSTANCES, deadline_s=deadline_s, timeout_s=deadline_s, learner_timeout_s=60.0, final_episodes=0,
        job="faults", keep=True, prewarm=INSTANCES, checkpoint_every=rounds, logdir=str(path),
    )  # fmt: skip
    backends: list[AskingTwice] = []

    def make_backend(*arguments: Any, **options: Any) -> AskingTwice:
        backends.append(AskingTwice(*arguments, **options))
        return backends[-1]

    with rs.Server() as server, rs.Client(server.url) as client:
        settings.server = server.url
        platform = FaultyPlatform(1, server.url, INSTANCES)
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


@pytest.fixture
def patience(monkeypatch):
    """Actors are asked as often as it takes: on a busy machine few of them answer before a deadline."""
    monkeypatch.setattr(synchronous, "TRIES", 100)


@pytest.mark.usefixtures("patience")
def test_killed_late_and_duplicated_functions_count_once_and_are_billed(tmp_path):
    play(tmp_path, rounds=12)


def play_asynchronously(path: Path, rounds: int, learners: int = 2, passes: int = 3) -> None:
    """A job with asynchronous learners whose gradient and parameter functions are killed once gradients have come."""
    instances = learners + 3
    settings = TrainSettings(
        env="CartPole-v1", steps=16, actors=2, environments=2, rounds=rounds, learners="async",
        learner_option={"learners": learners}, setting={"hidden": 8, "iterations": passes, "minibatch_size": 16},
        concurrency=instances, timeout_s=120.0, learner_timeout_s=120.0, final_episodes=0, job="asynchronous-faults",
        keep=True, checkpoint_every=rounds, logdir=str(path),
    )  # fmt: skip
    backends: list[AskingTwice] = []

    def make_backend(*arguments: Any, **options: Any) -> AskingTwice:
        backends.append(AskingTwice(*arguments, **options))
        return backends[-1]

    with rs.Server() as server, rs.Client(server.url) as client:
        settings.server = server.url
        platform = FaultyPlatform(13, server.url, instances)
        directory = RunDirectory(path)
        directory.create(settings)
        assert Orchestrator(settings, directory, platform=platform, make_backend=make_backend).run() == "rounds"
        (key,) = platform.queues
        queue = client.gradient_info(key)

    # Every gradient of every learner was applied, once; none waits, and none was lost with whoever was killed.
    records, invocations = read_rounds(path), read_invocations(path)
    each_round = passes * 4  # four fragments of 16 steps, a minibatch each, however many learners share them
    assert [record.statistics["gradients"] for record in records] == rounds * [each_round]
    assert [record.statistics["learners_lost"] for record in records] == rounds * [0]
    assert [record.steps for record in records] == rounds * [4 * 16]
    assert (queue["applied"], queue["waiting"]) == (rounds * each_round, 0)
    versions = [record.version for record in records]
    flushes = [int(record.statistics["flushes"]) for record in records]
    assert versions == [sum(flushes[: number + 1]) + number + 1 for number in range(rounds)]

    # The faults were there, of both kinds, and they are on the bill.
    lost = Counter(each.kind for each in invocations if each.outcome == "lost")
    assert lost["gradient"] > 0
    assert lost["parameter"] > 0
    assert sum(lost.values()) <= platform.killed
    assert backends[0].twice
    summary = json.loads(directory.summary.read_text())
    assert abs(summary["cost"] - float(sum(map(price, invocations)))) < 1e-9
    assert summary["bill"]["outcomes"]["lost"] == sum(lost.values())


def test_gradients_of_killed_and_duplicated_functions_count_once(tmp_path):
    play_asynchronously(tmp_path, rounds=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_gradients_count_once_in_a_long_job_with_faults(tmp_path):
    play_asynchronously(tmp_path, rounds=40, learners=3)


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
def test_a_thousand_invocations_with_faults_count_once_and_are_billed(tmp_path):
    play(tmp_path, rounds=112)
    assert len(read_invocations(tmp_path)) >= 1000
