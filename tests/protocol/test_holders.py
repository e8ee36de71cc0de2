"""Everything that holds a connection, under every driver (holders.py): calls that are given up, threads and tasks that
share one. Holders that are dropped or inherited: test_holders_left.py.

Holders: a handle of a table (and the client behind it), writers, samplers. A call is given up by a signal whose handler
raises, as Ctrl-C does, or, with asyncio, by the cancellation of its task: hundreds of times, after delays that are
drawn with a fixed seed, log-uniformly, so that some come between two steps of a call and some while it waits. Every
check holds wherever they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from holders import N_STEPS, ROUNDS, STEPS, Driver, GivenUp, fill

import replay_server as rs
from replay_server import aio
from replay_server.client import TableHandle

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


ONE_OR_SEVERAL = [{}, {"workers": 2, "in_flight": 5}]
"""How a sampler asks for its batches."""


# ---- calls that are given up -----------------------------------------------------------------------------------------

GIVEN_UP = 20
"""Calls that a test gives up at least: with fewer it says little."""


def rounds(driver: Driver, count: int) -> Iterator[int]:
    """So many, and more where a fast machine answers most calls before they are given up."""
    for number in itertools.count():
        if number >= count and driver.given_up >= GIVEN_UP:
            return
        assert number < 100 * count, f"only {driver.given_up} of {number} calls were given up"
        yield number


def test_a_call_after_one_that_was_given_up_has_its_own_reply(driver, client, items, counted, eventually):
    holder = driver.table(1000, sampler=rs.Uniform())
    ids = fill(driver, holder, items, 200)
    before = counted()

    def check_sample(batch: rs.Batch, n: int) -> None:
        assert len(batch) == n
        np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])

    calls: list[tuple[Callable[[int], Any], Callable[[Any, int], Any]]] = [
        (lambda n: holder.sample(n), check_sample),
        (lambda n: holder.get(ids[:n]), lambda got, n: np.testing.assert_array_equal(got.data["k"], np.arange(n))),
        (
            lambda n: holder.update_priorities(ids[:n], np.ones(n)),
            lambda got, n: np.testing.assert_array_equal(got, (n, 0)),
        ),
        (lambda n: holder.info(), lambda got, n: np.testing.assert_array_equal(got["size"], 200)),
        (lambda n: holder.sample(2 * n), lambda got, n: check_sample(got, 2 * n)),
    ]
    for _ in rounds(driver, ROUNDS):
        (call, check), n = driver.random.choice(calls), driver.random.randint(1, 100)
        result = driver.give_up(lambda call=call, n=n: call(n))
        if not isinstance(result, GivenUp):
            check(result, n)
        if driver.random.random() < 0.3:
            check(driver.get(lambda call=call, n=n: call(n)), n)
    info = driver.get(holder.info)
    assert (info["pinned_slots"], info["reserved_slots"], info["waiting"]) == (0, 0, 0)
    del result
    gc.collect()
    eventually(lambda: counted()[1] <= before[1], "no connection is left of those that were given up")


def test_a_wait_that_was_given_up_is_forgotten(driver, items, eventually):
    holder = driver.table(64, rate_limiter=rs.MinSize(1))
    for _ in rounds(driver, ROUNDS // 4):
        with contextlib.suppress(rs.Timeout):  # where a destructor swallowed the interrupt
            driver.give_up(lambda: holder.sample(8, timeout=0.2))
    eventually(lambda: driver.get(holder.info)["waiting"] == 0, "nobody waits")
    fill(driver, holder, items, 8)
    assert len(driver.get(lambda: holder.sample(8))) == 8


def test_an_add_that_was_given_up_stores_its_items_once_or_not_at_all(driver, items):
    holder = driver.table(100_000, sampler=rs.Fifo())
    stored: dict[int, int] = {}
    for round in range(ROUNDS):
        keys = range(4 * round, 4 * round + 4)
        ids = driver.give_up(lambda keys=keys: holder.add(items(*keys)), 1e-6)
        if isinstance(ids, np.ndarray):
            stored |= dict(zip(ids.tolist(), keys, strict=True))
    keys = range(4 * ROUNDS, 4 * ROUNDS + 4)
    stored |= dict(zip(driver.get(lambda: holder.add(items(*keys))).tolist(), keys, strict=True))
    batch = driver.get(lambda: holder.get(list(stored)))
    assert batch.data["k"].tolist() == list(stored.values())
    size = driver.get(holder.info)["size"]
    everything = driver.get(lambda: holder.sample(size)).data["k"]
    assert len(np.unique(everything)) == len(everything)
    assert set(stored.values()) <= set(everything.tolist())
    assert (everything.reshape(-1, 4) == everything[::4, None] + np.arange(4)).all(), "all four of an add, or none"


class Writing:
    """A writer whose calls are given up again and again, and what its items must show."""

    def __init__(self, driver: Driver, writer: Any) -> None:
        self.driver, self.writer = driver, writer
        self.step = 0
        self.doubtful: set[int] = set()
        """Steps whose append was given up: taken whole, or not at all."""
        self.made: set[int] = set()
        self.pending: set[int] = set()
        """Items that no undisturbed flush has sent yet."""
        self.at_risk: set[int] = set()
        """Items that a call which was given up may have lost."""
        self.ids: list[int] = []

    def _may_send(self, call: Callable[[], Any]) -> Any:
        result = self.driver.give_up(call)
        if isinstance(result, GivenUp):
            self.at_risk |= self.pending
        return result

    def append(self) -> None:
        step = self.step
        self.step += 1
        row = {"number": step, "reward": 0.0, "discount": 1.0}
        if isinstance(self._may_send(lambda: self.writer.append(row)), GivenUp):
            self.doubtful.add(step)
            return
        self.pending.add(step)
        if isinstance(self.driver.give_up(self.writer.create_item), GivenUp):
            self.at_risk.add(step)
        self.made.add(step)

    def finish(self) -> None:
        """One more item, and a flush, both undisturbed: under load all that was sent before may have been given up."""
        row = {"number": self.step, "reward": 0.0, "discount": 1.0}
        self.driver.get(lambda: self.writer.append(row))
        self.writer.create_item()
        self.made.add(self.step)
        self.ids += self.driver.get(self.writer.flush).tolist()

    def flush(self, wait: bool) -> None:
        ids = self._may_send(lambda: self.writer.flush(wait=wait))
        if isinstance(ids, np.ndarray):
            self.ids += ids.tolist()
            if wait:
                self.pending.clear()

    def check(self, stored: rs.Batch, numbered: rs.Batch) -> None:
        """`stored`: all items in the order in which they were stored; `numbered`: those of the ids that were told."""
        numbers = stored.data["number"].tolist()
        assert len(set(numbers)) == len(numbers), "an item was stored twice"
        assert set(numbers) <= self.made
        assert self.made - set(numbers) <= self.at_risk, "an item was lost that no call had which was given up"
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


class FirstOfThree:
    """The first environment of a vector writer as a writer, whose others append now and then."""

    def __init__(self, vector: Any) -> None:
        self._vector, self._calls = vector, 0
        self._first = np.arange(3) == 0
        self.flush = vector.flush

    def append(self, row: dict[str, Any]) -> Any:
        self._calls += 1
        rows = {"number": np.full(3, row["number"], np.int64)}
        rows |= {name: np.full(3, row[name], np.float32) for name in ("reward", "discount")}
        return self._vector.append(rows, mask=None if self._calls % 3 else self._first)

    def create_item(self) -> None:
        self._vector.create_items(mask=self._first)


def sending(driver: Driver, in_flight: int) -> dict[str, int]:
    if in_flight and driver.kind != "blocking":
        pytest.skip("only the blocking client sends in the background")
    return {"flush_steps": 5, "in_flight": in_flight}


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("environments", [1, 3])
def test_a_writer_whose_calls_are_given_up_stores_no_item_twice_and_shows_every_step(driver, environments, in_flight):
    options = sending(driver, in_flight)
    holder = driver.table(100_000, STEPS, sampler=rs.Fifo())
    if environments == 1:
        writer = driver.get(lambda: holder.writer(**options))
        writing = Writing(driver, writer)
    else:
        writer = driver.get(lambda: holder.vector_writer(environments, **options))
        writing = Writing(driver, FirstOfThree(writer))
    for _ in rounds(driver, 2 * ROUNDS):
        writing.append()
        if driver.random.random() < 0.2:
            writing.flush(wait=driver.random.random() < 0.5)
    writing.finish()
    size = driver.get(holder.info)["size"]
    writing.check(driver.get(lambda: holder.sample(size)), driver.get(lambda: holder.get(writing.ids)))
    driver.get(writer.close)


@pytest.mark.parametrize("options", [{}, {"n_step": 1, "discount": 0.5}], ids=["items", "n_steps"])
def test_a_writer_without_a_thread_has_sent_all_when_a_flush_returns_that_does_not_wait(driver, options):
    holder = driver.table(100, N_STEPS)
    writer = driver.get(lambda: holder.writer(**options))
    step = {"reward": 0.0} if options else {"reward": 0.0, "discount": 0.5}
    for number in range(5):
        driver.get(lambda number=number: writer.append({"number": number, **step}))
        if not options:
            writer.create_item()
    ids = driver.get(lambda: writer.flush(wait=False))
    assert driver.get(lambda: holder.get(ids)).data["number"].tolist() == list(range(4))
    driver.get(writer.close)


@pytest.mark.parametrize("in_flight", [0, 2])
def test_an_n_step_writer_whose_appends_are_given_up_makes_each_item_once(driver, in_flight):
    options = sending(driver, in_flight)
    holder = driver.table(100_000, N_STEPS, sampler=rs.Fifo())
    writer = driver.get(lambda: holder.writer(n_step=1, discount=0.5, **options))
    doubtful: set[int] = set()
    steps = 2 * ROUNDS
    for step in range(steps):
        row = {"number": step, "reward": float(step)}
        if isinstance(driver.give_up(lambda row=row: writer.append(row), 1e-6), GivenUp):
            doubtful.add(step)
    driver.get(writer.close)
    size = driver.get(holder.info)["size"]
    stored = driver.get(lambda: holder.sample(size)).data
    numbers = stored["number"].tolist()
    assert len(set(numbers)) == len(numbers), "an item was made twice"
    np.testing.assert_array_equal(stored["reward"], stored["number"])
    assert (stored["discount"] == 0.5).all()
    for number, successor in zip(numbers, stored["next"].tolist(), strict=True):
        assert successor > number
        assert set(range(number + 1, successor)) <= doubtful, "a step that was taken is missing"


@pytest.mark.parametrize("several", ONE_OR_SEVERAL)
def test_a_sampler_whose_next_was_given_up_goes_on(driver, items, several):
    holder = driver.table()
    fill(driver, holder, items, 50)
    with driver.sampling(holder.sampler(16, **several)) as following:
        for _ in range(2 * ROUNDS):
            batch = driver.give_up(following, 1e-6, 1e-3)
            if isinstance(batch, rs.Batch):
                np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
        for _ in range(10):
            assert len(driver.get(following)) == 16


def test_ctrl_c_in_a_flush_that_waits_sends_nothing_twice_and_the_next_flush_tells_its_own_ids(client, make_table):
    steps = {"number": STEPS["number"], "seen": STEPS["seen"]}
    name = make_table(100, steps, rate_limiter=rs.Queue(4), sampler=rs.Fifo(), max_times_sampled=1)
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


# ---- threads and tasks -----------------------------------------------------------------------------------------------


def test_threads_and_tasks_that_share_a_handle_have_each_its_own_reply(driver, items):
    holder = driver.table(1000, sampler=rs.Uniform())
    ids = fill(driver, holder, items, 200)
    for _ in range(20):
        sizes = [driver.random.randint(1, 100) for _ in range(8)]
        got = driver.beside_each_other([lambda n=n: holder.get(ids[:n]) for n in sizes])
        assert [batch.data["k"].tolist() for batch in got] == [list(range(n)) for n in sizes]


@pytest.mark.parametrize("several", ONE_OR_SEVERAL)
def test_threads_and_tasks_that_share_a_sampler_have_each_batch_once(driver, items, several):
    holder = driver.table(1000, sampler=rs.Fifo(), max_times_sampled=1)
    fill(driver, holder, items, 240)
    with driver.sampling(holder.sampler(10, **several)) as following:
        got = [batch for _ in range(4) for batch in driver.beside_each_other([following] * 6)]
        keys = np.concatenate([batch.data["k"] for batch in got])
    assert sorted(keys.tolist()) == list(range(240))


def test_a_sampler_keeps_no_batch_back_while_it_waits_for_the_next(driver, items):
    """With several requests in flight a buffer's sampler held three batches until a fifth came, which never did."""
    holder = driver.table(1000, sampler=rs.Fifo(), max_times_sampled=1)
    fill(driver, holder, items, 40)
    with driver.sampling(holder.sampler(10, prefetch=8, in_flight=4, timeout=60.0)) as following:
        keys = np.concatenate([driver.get(following).data["k"] for _ in range(4)])
    assert sorted(keys.tolist()) == list(range(40))  # which connection answers first is free


def test_a_call_that_was_given_up_leaves_those_beside_it_alone(driver, items):
    holder = driver.table(1000, sampler=rs.Uniform())
    fill(driver, holder, items, 200)
    stop = threading.Event()
    failures: list[Any] = []

    def sample() -> None:
        while not stop.is_set():
            batch = holder.sample(16)
            if not (batch.data["x"][:, 0] == batch.data["k"]).all():
                failures.append(batch)

    async def sample_too() -> bool:
        batch = await holder.sample(16)
        return bool((batch.data["x"][:, 0] == batch.data["k"]).all())

    if driver.kind == "asyncio":
        for _ in range(ROUNDS):

            async def both() -> bool:
                other = asyncio.ensure_future(sample_too())
                victim = asyncio.ensure_future(holder.sample(50))
                for _ in range(driver.random.randint(0, 20)):
                    await asyncio.sleep(0)
                victim.cancel()
                await asyncio.wait([victim])
                return await other

            assert driver.get(both)
        return
    threads = [threading.Thread(target=sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            driver.give_up(lambda: holder.sample(50))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_close_ends_a_wait_and_says_so(driver, client):
    holder = driver.table()
    if driver.kind == "in process":
        batches = holder.sampler(1)
        batches.close()
        assert list(batches) == []
        return
    owner = holder._client

    async def close_later() -> Any:
        waiter = asyncio.ensure_future(holder.sample(1))
        while (await holder.info())["waiting"] == 0:
            await asyncio.sleep(0.001)
        await owner.close()
        return (await asyncio.gather(waiter, return_exceptions=True))[0]

    def close_beside() -> Any:
        def close() -> None:
            while client.info(holder.name)["waiting"] == 0:
                time.sleep(0.001)
            owner.close()

        closer = threading.Thread(target=close)
        closer.start()
        try:
            return holder.sample(1)
        except rs.ReplayError as error:
            return error
        finally:
            closer.join()

    ended = driver.get(close_later if driver.kind == "asyncio" else close_beside)
    assert isinstance(ended, rs.ConnectionLost)
    assert "was closed" in str(ended)
    with pytest.raises(rs.ConnectionLost, match="is closed"):
        driver.get(holder.info)


def test_an_asyncio_client_goes_on_in_another_event_loop(server, table):
    client = aio.Client(server.url)
    for _ in range(3):
        assert asyncio.run(client.info(table))["size"] == 0
    asyncio.run(client.close())


# ---- one set of methods ----------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_a_handle_has_every_method_of_a_buffer_with_the_same_arguments():
    handle = public(TableHandle)
    for name, method in public(rs.Buffer).items():
        assert name in handle, f"a handle lacks {name}"
        if inspect.isfunction(method):
            assert list(inspect.signature(method).parameters) == list(inspect.signature(handle[name]).parameters), name


def test_the_asyncio_client_has_every_method_of_the_client_with_the_same_arguments():
    missing = {"allocate"}  # of the sampler: tasks receive into arrays of their own
    twins = public(aio.Client)
    assert "updater" not in twins  # a task of `update_priorities` is what waits for no reply
    for name, method in public(rs.Client).items():
        if name == "updater":
            continue
        assert name in twins, f"the asyncio client lacks {name}"
        if inspect.isfunction(method):
            expected = [each for each in inspect.signature(method).parameters if each not in missing]
            assert list(inspect.signature(twins[name]).parameters) == expected, name
