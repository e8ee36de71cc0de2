"""Ctrl-C at any moment: a real signal raises in the middle of calls, hundreds of times, and what follows holds true.

Delays are drawn with a fixed seed, log-uniformly, so that a signal comes between two steps of a call as well as while
it waits for the server. Nothing here depends on where one comes: every check holds for each place.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
]
ROUNDS = 400
STEPS = {"number": rs.Column("int64"), "seen": rs.Window("number", length=4)}


class Interrupted(BaseException):
    """What the signal's handler raises, as Python's own raises KeyboardInterrupt."""


class Interrupter:
    """Runs calls under a timer whose signal raises `Interrupted`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def __call__(self, call: Callable[[], Any], shortest_s: float = 1e-5, longest_s: float = 3e-3) -> Any:
        """The result of `call`, or the `Interrupted` that ended it."""
        delay = shortest_s * (longest_s / shortest_s) ** self.random.random()
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                return call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted as interrupt:
            self.count += 1
            return interrupt.with_traceback(None)


@pytest.fixture
def interrupt() -> Iterator[Interrupter]:
    def strike(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    interrupter = Interrupter(seed=7)
    yield interrupter
    signal.signal(signal.SIGALRM, before)
    assert interrupter.count >= 20, "too few calls were interrupted for the test to say anything"


def connections(client: rs.Client) -> int:
    return len(client.redis.client_list())


# ---- the client ------------------------------------------------------------------------------------------------------


def test_no_command_is_answered_with_another_s_reply_and_no_connection_is_left_behind(
    server, client, make_table, items, interrupt, eventually
):
    name = make_table(capacity=1000, sampler=rs.Uniform())
    client.redis.ping()
    idle = connections(client)
    with rs.Client(server.url) as mine:
        ids = mine.add(name, items(*range(200)))
        mine.publish_weights("interrupted", {"w": np.arange(5000)}, version=3)

        def sample(n: int) -> None:
            batch = mine.sample(name, n)
            assert len(batch) == n
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])

        def get(n: int) -> None:
            assert mine.get(name, ids[:n]).data["k"].tolist() == list(range(n))

        def weights(n: int) -> None:
            version, arrays = mine.fetch_weights("interrupted") or (0, {})
            assert version == 3
            np.testing.assert_array_equal(arrays["w"], np.arange(5000))

        def update(n: int) -> None:
            assert mine.update_priorities(name, ids[:n], np.ones(n)) == (n, 0)

        def states(n: int) -> None:
            names = [f"g{i}" for i in range(n)]
            assert mine.gradient_states("interrupted", names) == [None] * n

        def any_command(n: int) -> None:
            assert mine.command("ECHO", str(n)) == str(n).encode()

        calls = [sample, get, weights, update, states, any_command]
        for _ in range(ROUNDS):
            call, n = interrupt.random.choice(calls), interrupt.random.randint(1, 100)
            interrupt(lambda call=call, n=n: call(n))
            if interrupt.random.random() < 0.3:
                call(n)
        gc.collect()
        mine.command("PING")
        eventually(lambda: connections(client) <= idle + 1, "one connection is left of all that were interrupted")


def test_an_interrupted_add_stores_its_items_once_or_not_at_all(client, make_table, items, interrupt):
    name = make_table(capacity=100_000, sampler=rs.Fifo())
    stored: dict[int, int] = {}
    for round in range(ROUNDS):
        keys = range(4 * round, 4 * round + 4)
        ids = interrupt(lambda keys=keys: client.add(name, items(*keys)))
        if isinstance(ids, np.ndarray):
            stored |= dict(zip(ids.tolist(), keys, strict=True))
    batch = client.get(name, list(stored))
    assert batch.data["k"].tolist() == list(stored.values())
    everything = client.sample(name, client.info(name)["size"]).data["k"]
    assert len(np.unique(everything)) == len(everything)
    assert set(stored.values()) <= set(everything.tolist())
    assert (everything.reshape(-1, 4) == everything[::4, None] + np.arange(4)).all(), "all four of an add, or none"


# ---- writers ---------------------------------------------------------------------------------------------------------


class Writing:
    """A writer that is interrupted again and again, and what its items must show."""

    def __init__(self, writer: Any, interrupt: Interrupter) -> None:
        self.writer, self.interrupt = writer, interrupt
        self.step = 0
        self.doubtful: set[int] = set()
        """Steps whose append was interrupted: taken whole, or not at all."""
        self.made: set[int] = set()
        self.pending: set[int] = set()
        """Items that no undisturbed flush has sent yet."""
        self.at_risk: set[int] = set()
        """Items that an interrupted call may have lost."""
        self.ids: list[int] = []

    def _may_send(self, call: Callable[[], Any]) -> Any:
        result = self.interrupt(call)
        if isinstance(result, Interrupted):
            self.at_risk |= self.pending
        return result

    def append(self) -> None:
        step = self.step
        self.step += 1
        if isinstance(self._may_send(lambda: self.writer.append({"number": step})), Interrupted):
            self.doubtful.add(step)
            return
        self.pending.add(step)
        if isinstance(self.interrupt(self.writer.create_item), Interrupted):
            self.at_risk.add(step)
        self.made.add(step)

    def flush(self) -> None:
        ids = self._may_send(self.writer.flush)
        if isinstance(ids, np.ndarray):
            self.ids += ids.tolist()
            self.pending.clear()

    def check(self, stored: rs.Batch, numbered: rs.Batch) -> None:
        """`stored`: all items in the order in which they were stored; `numbered`: those of the ids that were told."""
        numbers = stored.data["number"].tolist()
        assert len(set(numbers)) == len(numbers), "an item was stored twice"
        assert set(numbers) <= self.made
        assert self.made - set(numbers) <= self.at_risk, "an item was lost that no interrupted call had"
        assert len(set(self.ids)) == len(self.ids), "an id was told twice"
        assert set(numbered.data["number"].tolist()) <= self.made
        before: dict[int, int] = {}
        for number, window in zip(numbers, stored.data["seen"].tolist(), strict=True):
            assert window[-1] == number
            for earlier, later in itertools.pairwise(window):
                assert before.setdefault(later, earlier) == earlier, "two items disagree about a step"
        for later, earlier in before.items():
            if earlier == later:
                assert set(range(later)) <= self.doubtful, "only the first step is repeated"
            else:
                assert set(range(earlier + 1, later)) <= self.doubtful, "a step is missing in a window"


@pytest.mark.parametrize("environments", [1, 3])
def test_an_interrupted_writer_stores_no_item_twice_and_every_window_shows_its_steps(
    client, make_table, interrupt, environments
):
    name = make_table(100_000, STEPS, sampler=rs.Fifo())
    writer = client.writer(name, flush_steps=5) if environments == 1 else Lone(client, name, environments)
    writing = Writing(writer, interrupt)
    for _ in range(2 * ROUNDS):
        writing.append()
        if interrupt.random.random() < 0.2:
            writing.flush()
    writing.ids += writer.flush().tolist()
    writing.check(client.sample(name, client.info(name)["size"]), client.get(name, writing.ids))
    writer.close()


class Lone:
    """The first environment of a vector writer as a writer, whose others append now and then."""

    def __init__(self, client: rs.Client, name: str, environments: int) -> None:
        self._writer = client.vector_writer(name, environments, flush_steps=5)
        self._count, self._calls = environments, 0
        self._first = np.arange(environments) == 0

    def append(self, step: dict[str, int]) -> None:
        self._calls += 1
        rows = np.full(self._count, step["number"], np.int64)
        self._writer.append({"number": rows}, mask=None if self._calls % 3 else self._first)

    def create_item(self) -> None:
        self._writer.create_items(mask=self._first)

    def flush(self) -> np.ndarray:
        return self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def test_a_buffer_s_writer_holds_to_the_same(interrupt):
    buffer = rs.Buffer(rs.Table("t", 100_000, STEPS, sampler=rs.Fifo()))
    writing = Writing(buffer.writer(flush_steps=5), interrupt)
    for _ in range(3 * ROUNDS):
        writing.append()
        if interrupt.random.random() < 0.2:
            writing.flush()
    writing.ids += writing.writer.flush().tolist()
    writing.check(buffer.sample(len(buffer)), buffer.get(writing.ids))


def test_ctrl_c_in_a_flush_that_waits_sends_nothing_twice_and_the_next_flush_tells_its_own_ids(client, make_table):
    name = make_table(100, STEPS, rate_limiter=rs.Queue(4), sampler=rs.Fifo(), max_times_sampled=1)
    writer = client.writer(name, flush_steps=4)
    for number in range(4):
        writer.append({"number": number})
        writer.create_item()
    assert len(writer.flush(timeout=1)) == 4
    for number in (4, 5):
        writer.append({"number": number})
        writer.create_item()
    script = f"import os, signal, time; time.sleep(0.5); os.kill({os.getpid()}, signal.SIGINT)"
    with subprocess.Popen([sys.executable, "-c", script]), pytest.raises(KeyboardInterrupt):
        writer.flush()
    taken = client.sample(name, 4).data["number"].tolist()
    assert writer.flush(timeout=60).tolist() == [], "nobody knows whether 4 and 5 were stored: they are not sent again"
    for number in (6, 7):
        writer.append({"number": number})
        writer.create_item()
    ids = writer.flush(timeout=60)
    assert client.get(name, ids).data["number"].tolist() == [6, 7]
    while client.info(name)["size"]:
        batch = client.sample(name, 1)
        taken += batch.data["number"].tolist()
        assert batch.data["seen"][0].tolist() == [max(0, taken[-1] - back) for back in (3, 2, 1, 0)]
    assert taken in ([0, 1, 2, 3, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])
    writer.close()


# ---- in process ------------------------------------------------------------------------------------------------------


def test_an_interrupted_buffer_pins_nothing_and_counts_nobody_as_waiting(items, interrupt):
    table = rs.Table("t", 64, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}, rate_limiter=rs.MinSize(1))
    buffer = rs.Buffer(table)
    ids = buffer.add(items(*range(32)))
    calls: list[Callable[[], Any]] = [
        lambda: buffer.add(items(1, 2)),
        lambda: buffer.sample(8),
        lambda: buffer.get(ids[:8]),
        lambda: buffer.get(buffer.sample(8).ids),
        lambda: buffer.sample(65, timeout=0.001, replace=False),
    ]
    for _ in range(5 * ROUNDS):
        call = interrupt.random.choice(calls)

        def attempt(call: Callable[[], Any] = call) -> None:
            with contextlib.suppress(rs.ReplayError):
                call()

        interrupt(attempt, 1e-6, 1e-3)
    info = buffer.info()
    assert (info["pinned_slots"], info["reserved_slots"], info["waiting"]) == (0, 0, 0)
    buffer.add(items(*range(64)))
    np.testing.assert_array_equal(buffer.sample(256).data["k"] < 64, True)


# ---- servers ---------------------------------------------------------------------------------------------------------


def children() -> set[int]:
    """Processes whose parent is this one, but those that have ended."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()) and fields[0] != "Z":
            found.add(int(status.parent.name))
    return found


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_no_server_is_left_behind_where_its_start_was_interrupted(interrupt, eventually):
    before = children()

    def start_and_stop() -> None:
        with rs.Server() as server:
            assert server.running

    for _ in range(60):
        interrupt(start_and_stop, 1e-4, 3e-2)
    gc.collect()
    eventually(lambda: children() <= before, "every server has ended")


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def test_a_cancelled_task_leaves_the_next_ones_their_own_replies(server, client, make_table, items, eventually):
    name = make_table(capacity=1000, sampler=rs.Uniform())
    client.add(name, items(*range(200)))
    client.redis.ping()
    idle = connections(client)
    moments = random.Random(11)

    async def sample(mine: aio.Client, n: int) -> None:
        batch = await mine.sample(name, n)
        assert len(batch) == n
        np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
        assert await mine.command("ECHO", str(n)) == str(n).encode()

    async def main() -> int:
        cancelled = 0
        async with aio.Client(server.url) as mine:
            for _ in range(ROUNDS):
                tasks = [asyncio.ensure_future(sample(mine, moments.randint(1, 100))) for _ in range(2)]
                until = time.monotonic() + moments.random() * 2e-3
                while time.monotonic() < until:
                    await asyncio.sleep(0)
                tasks[0].cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                cancelled += isinstance(outcomes[0], asyncio.CancelledError)
                assert outcomes[1] is None
                assert outcomes[0] is None or isinstance(outcomes[0], asyncio.CancelledError)
        return cancelled

    assert aio.run(main()) >= 20
    eventually(lambda: connections(client) <= idle, "no connection is left")


# ---- samplers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["server", "process"])
def test_a_sampler_whose_next_was_interrupted_goes_on(client, make_table, items, interrupt, place):
    buffer = rs.Buffer(rs.Table("t", 100, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}))
    name = make_table()
    client.add(name, items(*range(50)))
    buffer.add(items(*range(50)))
    with client.sampler(name, 16) if place == "server" else buffer.sampler(16) as batches:
        for _ in range(5 * ROUNDS):
            batch = interrupt(lambda: next(batches), 1e-6, 1e-3)
            if isinstance(batch, rs.Batch):
                np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
        for _ in range(10):
            assert len(next(batches)) == 16
