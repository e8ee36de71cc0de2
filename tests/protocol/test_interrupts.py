"""Ctrl-C at any moment: while a server starts, and in a program that adds, samples and makes rollouts. Each holder of a
connection by itself: test_holders.py. Workers of a DataLoader, tasks of Ray, and samplers of tensors: test_torch.py."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from holders import Driver, GivenUp

import replay_server as rs

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
]


class Interrupted(BaseException):
    """What the signal's handler raises, as Python's own raises KeyboardInterrupt."""


@pytest.fixture
def striking() -> Iterator[None]:
    def strike(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


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
def test_no_server_is_left_behind_where_its_start_was_interrupted(striking, eventually):
    before = children()

    def start_and_stop() -> None:
        with rs.Server() as server:
            assert server.running

    moments, count = random.Random(7), 0
    for _ in range(60):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * 300 ** moments.random())
                start_and_stop()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            count += 1
    assert count >= 20, "too few starts were interrupted for the test to say anything"
    gc.collect()
    eventually(lambda: children() <= before, "every server has ended")


_names = itertools.count()
BATCH = 4
"""Samples of a batch of rollouts."""


class Program:
    """An actor, a worker and a learner whose calls are given up again and again, and what must hold of them."""

    def __init__(self, driver: Driver, items: Any) -> None:
        self.driver, self.items = driver, items
        self.table = driver.table(100_000, sampler=rs.Fifo())
        self.keys = 0
        self.stored: dict[int, int] = {}
        """Id → key, of the items whose ids were told."""
        # A lease whose reply was given up is lost with it, and another worker gets it when it has expired.
        sizes = {"group_size": 2, "groups_per_batch": BATCH // 2, "max_staleness": 1, "lease_s": 0.05}
        signature = {"place": rs.Column("int64"), "by": rs.Column("int64")}
        self.rollouts = driver.rollouts(f"interrupted-{next(_names)}", signature=signature, **sizes)
        self.version, self.submissions = 0, 0
        self.held: dict[int, rs.Lease] = {}

    def one(self, call: Any) -> Any:
        """What a call returns; half of them are given up if they take longer than a moment."""
        return self.driver.get(call) if self.driver.random.random() < 0.5 else self.driver.give_up(call, 1e-5, 1e-2)

    def add(self) -> None:
        keys = range(self.keys, self.keys + 4)
        self.keys += 4
        ids = self.one(lambda: self.table.add(self.items(*keys)))
        if isinstance(ids, np.ndarray):
            self.stored |= dict(zip(ids.tolist(), keys, strict=True))

    def sample(self) -> None:
        batch = self.one(lambda: self.table.sample(4, timeout=0))
        if isinstance(batch, rs.Batch):
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])

    def draw_ahead(self) -> None:
        if self.stored:  # at least four: a Fifo waits for as many items as are asked for
            with self.driver.sampling(self.table.sampler(4)) as following:
                self.one(following)

    def lease(self) -> None:
        leases = self.one(lambda: self.rollouts.lease(2, self.version, timeout=0))
        if isinstance(leases, list):
            self.held |= {lease.place: lease for lease in leases}

    def submit(self) -> None:
        if self.held:
            place = self.driver.random.choice(list(self.held))
            self.submissions += 1
            sample = {"place": place, "by": self.submissions}
            try:
                result = self.one(lambda: self.rollouts.submit(self.held[place], sample))
            except rs.LeaseExpired:
                del self.held[place]
            else:
                if not isinstance(result, GivenUp):  # else it may be there, and is submitted again
                    del self.held[place]

    def give_back(self) -> None:
        if self.held:
            lease = self.held.pop(self.driver.random.choice(list(self.held)))
            self.one(lambda: self.rollouts.give_back([lease]))

    def take(self) -> None:
        self.trained_on(self.one(lambda: self.rollouts.take(self.version, timeout=0)))

    def trained_on(self, batch: Any) -> None:
        if not isinstance(batch, GivenUp):
            assert batch.data["place"].tolist() == list(range(BATCH * self.version, BATCH * (self.version + 1)))
            assert len(set(batch.data["by"].tolist())) == BATCH, "one submission counts for one sample"
            assert batch.staleness <= 1
            self.version += 1

    def step(self) -> None:
        calls = [self.add, self.sample, self.draw_ahead, self.give_back]
        calls += 2 * [self.lease, self.take] + 4 * [self.submit]
        with contextlib.suppress(rs.Timeout):  # nothing is free, or there, or stored yet
            self.driver.random.choice(calls)()

    def finish(self) -> None:
        """All that can be made is made, undisturbed: nothing that was given up stands in the way."""
        get, rollouts = self.driver.get, self.rollouts
        with contextlib.suppress(rs.Timeout):
            while True:
                self.trained_on(get(lambda: rollouts.take(self.version, timeout=0)))
        while get(rollouts.info)["samples"] != [BATCH, BATCH]:
            for lease in get(lambda: rollouts.lease(1, self.version, timeout=100)):
                self.submissions += 1
                sample = {"place": lease.place, "by": self.submissions}
                get(lambda lease=lease, sample=sample: rollouts.submit(lease, sample))
        info = get(rollouts.info)
        assert (info["leased"], info["expired"]) == (0, 0), "a lease is left over"
        for _ in range(2):
            self.trained_on(get(lambda: rollouts.take(self.version, timeout=0)))

        keys = range(self.keys, self.keys + 4)
        self.keys += 4
        self.stored |= dict(zip(get(lambda: self.table.add(self.items(*keys))).tolist(), keys, strict=True))
        size = get(self.table.info)["size"]
        found = get(lambda: self.table.sample(size)).data["k"]
        assert len(np.unique(found)) == len(found), "an item was stored twice"
        assert (found.reshape(-1, 4) == found[::4, None] + np.arange(4)).all(), "all four of an add, or none"
        assert set(self.stored.values()) <= set(found.tolist()) <= set(range(self.keys))
        assert get(lambda: self.table.get(list(self.stored))).data["k"].tolist() == list(self.stored.values())
        get(rollouts.drop)


def living_threads() -> int:
    """Without those of asyncio's executor, which stay, and those that were interrupted while they were started."""
    return sum(each.is_alive() and not each.name.startswith("asyncio") for each in threading.enumerate())


@pytest.mark.parametrize("operations", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_calls_that_are_interrupted_leave_nothing_over_and_do_nothing_twice(
    driver, client, items, counted, eventually, operations
):
    if driver.kind == "in process":
        pytest.skip("rollouts lie on a server")
    program = Program(driver, items)
    driver.get(program.table.info)
    driver.get(program.rollouts.info)
    gc.collect()
    threads, (_, connections) = living_threads(), counted()
    done = 0
    while done < operations or driver.given_up < operations // 10:
        done += 1
        assert done < 100 * operations, f"only {driver.given_up} of {done} calls were given up"
        program.step()
    program.finish()

    def nothing_left() -> bool:
        gc.collect()
        info = driver.get(program.table.info)
        counts = [info[name] for name in ("pinned_slots", "reserved_slots", "waiting")]
        return living_threads() <= threads and counted()[1] <= connections and counts == [0, 0, 0]

    eventually(nothing_left, "as many threads and connections as before, and no slot pinned or reserved")
