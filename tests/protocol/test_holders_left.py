"""Holders of a connection that are dropped, and those of a parent in a forked child, under every driver."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import Child
from holders import ITEMS, N_STEPS, STEPS, Asyncio, Driver, fill

import replay_server as rs

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


# ---- holders that are dropped ----------------------------------------------------------------------------------------


def used_handle(driver: Driver, holder: Any, stepped: Any) -> Any:
    driver.get(holder.info)
    return holder


def used_writer(driver: Driver, holder: Any, stepped: Any) -> Any:
    writer = driver.get(stepped.writer)
    driver.get(lambda: writer.append({"number": 1, "reward": 0.0, "discount": 0.0}))
    writer.create_item()
    driver.get(writer.flush)
    return writer


def used_n_step_writer(driver: Driver, holder: Any, stepped: Any) -> Any:
    writer = driver.get(lambda: stepped.vector_writer(2, n_step=1, discount=0.9))
    driver.get(lambda: writer.append({"number": np.arange(2), "reward": np.zeros(2)}))
    driver.get(writer.flush)
    return writer


def used_sampler(driver: Driver, holder: Any, stepped: Any) -> Any:
    batches = driver.begun(holder.sampler(4))
    driver.get(lambda: batches.__anext__() if hasattr(batches, "__anext__") else next(batches))
    return batches


def used_sampler_of_several(driver: Driver, holder: Any, stepped: Any) -> Any:
    batches = driver.begun(holder.sampler(4, workers=3, in_flight=6))
    driver.get(lambda: batches.__anext__() if hasattr(batches, "__anext__") else next(batches))
    return batches


def sampler_in_a_cycle(driver: Driver, holder: Any, stepped: Any) -> Any:
    cycle = [used_sampler(driver, holder, stepped)]
    cycle.append(cycle)
    return cycle


def waiting_sampler(driver: Driver, holder: Any, stepped: Any) -> Any:
    return driver.begun(holder.sampler(50, replace=False))


@pytest.mark.parametrize(
    "make",
    [
        used_handle,
        used_writer,
        used_n_step_writer,
        used_sampler,
        used_sampler_of_several,
        sampler_in_a_cycle,
        waiting_sampler,
    ],
)
def test_what_is_dropped_ends_its_threads_its_tasks_and_its_connections(driver, items, counted, eventually, make):
    holder, stepped = driver.table(), driver.table(100, N_STEPS)
    fill(driver, holder, items, 3)
    driver.get(stepped.info)
    before = counted()
    if driver.kind == "in process":
        dropped = [make(driver, holder, stepped) for _ in range(5)]
    else:
        dropped = [make(driver, driver.lone(holder.name), driver.lone(stepped.name)) for _ in range(5)]
        driver.get(lambda: asyncio.sleep(0.05) if driver.kind == "asyncio" else time.sleep(0.05))
        assert counted()[1] > before[1]
    del dropped

    def ended() -> bool:
        gc.collect()
        driver.get(lambda: asyncio.sleep(0) if driver.kind == "asyncio" else None)
        now = counted()
        return now[0] <= before[0] and now[1] <= before[1] and driver.get(holder.info)["waiting"] == 0

    eventually(ended, "as many threads and connections as before")
    if driver.kind != "in process":  # where the streams of a dropped writer go with the next one
        eventually(lambda: driver.get(stepped.info)["streams"] == 0, "the streams are closed")


def test_a_writer_that_is_dropped_ends_though_its_client_goes_on(client, make_table, eventually):
    name = make_table(100, STEPS)
    writer = client.writer(name)
    writer.append({"number": 1, "reward": 0.0, "discount": 0.0})
    writer.flush()
    assert client.info(name)["streams"] == 1
    del writer
    gc.collect()
    eventually(lambda: client.info(name)["streams"] == 0, "its stream is closed")


# ---- forks -----------------------------------------------------------------------------------------------------------


def in_child(driver: Driver, call: Callable[[], Any]) -> Any:
    """What a call returns in a forked child: with asyncio on a loop of the child's own."""

    def made() -> Any:
        return asyncio.run(Asyncio._awaited(call)) if driver.kind == "asyncio" else call()

    return Child(made).result()


def refusal(driver: Driver, call: Callable[[], Any]) -> str:
    """What a forked child is told, that must not try again."""

    async def awaited() -> str:
        return told(await asyncio.gather(Asyncio._awaited(call), return_exceptions=True))

    def told(outcome: list[Any]) -> str:
        assert isinstance(outcome[0], rs.ReplayError)
        assert not isinstance(outcome[0], rs.ConnectionLost), "who tries again after a loss would do so for ever"
        return str(outcome[0])

    def made() -> str:
        if driver.kind == "asyncio":
            return asyncio.run(awaited())
        try:
            return told([call()])
        except rs.ReplayError as error:
            return told([error])

    return Child(made).result()


def test_a_child_goes_on_with_its_parent_s_handle_over_a_connection_of_its_own(driver, items):
    holder = driver.table()
    ids = fill(driver, holder, items, 5)
    for _ in range(5):
        seen = in_child(driver, lambda: holder.update_priorities(ids, np.ones(5)))
        assert seen == [5, 0]
        batch = driver.get(lambda: holder.get(ids))
        assert batch.data["k"].tolist() == [0, 1, 2, 3, 4]


def test_a_writer_is_refused_to_a_child_and_shows_its_own_steps_to_the_parent(driver):
    holder = driver.table(100, STEPS, sampler=rs.Fifo())
    writer = driver.get(holder.writer)

    def append(number: int) -> Any:
        return writer.append({"number": number, "reward": 0.0, "discount": 0.0})

    driver.get(lambda: append(100))
    writer.create_item()
    driver.get(writer.flush)
    if driver.kind == "in process":  # a child has a copy of the buffer and of its writers
        assert in_child(driver, lambda: len(writer.flush())) == 0
    else:

        def written() -> Any:
            writer.create_item(at=-1)  # of the step before the fork: nothing of it may reach the parent's stream
            return writer.flush()

        message = refusal(driver, written)
        assert f"process {os.getpid()}" in message
        assert "make another writer here" in message
    driver.get(lambda: append(101))
    writer.create_item()
    ids = driver.get(writer.flush)
    assert driver.get(lambda: holder.get(ids)).data["seen"].tolist() == [[100, 100, 100, 101]]
    assert driver.get(holder.info)["size"] == 2
    driver.get(writer.close)


def test_a_sampler_is_refused_to_a_child_and_goes_on_in_the_parent(driver, items):
    holder = driver.table()
    fill(driver, holder, items, 2)
    with driver.sampling(holder.sampler(4)) as following:
        driver.get(following)
        message = refusal(driver, following)
        assert f"process {os.getpid()}" in message
        assert "make another sampler here" in message
        for _ in range(10):
            assert len(driver.get(following)) == 4


def test_a_child_makes_writers_of_its_own(driver):
    stepped = driver.table(100, STEPS, sampler=rs.Fifo())
    driver.get(stepped.info)

    def write() -> Any:
        writer = stepped.writer()
        if driver.kind != "asyncio":
            return _written(writer)
        return _written_later(writer)

    ids = in_child(driver, write)
    assert len(ids) == 1
    if driver.kind != "in process":
        assert driver.get(lambda: stepped.get(ids)).data["number"].tolist() == [5]


def _written(writer: Any) -> list[int]:
    with writer:
        writer.append({"number": 5, "reward": 0.0, "discount": 0.0})
        writer.create_item()
        return writer.flush().tolist()


async def _written_later(making: Any) -> list[int]:
    async with await making as writer:
        await writer.append({"number": 5, "reward": 0.0, "discount": 0.0})
        writer.create_item()
        return (await writer.flush()).tolist()


def test_a_child_has_a_whole_copy_of_a_buffer_that_threads_use(items):
    buffer = rs.Buffer(rs.Table("t", 1000, ITEMS, sampler=rs.Uniform()))
    buffer.add(items(*range(500)))

    def add_and_sample() -> int:
        buffer.add(items(*range(100)))
        batch = buffer.sample(64)
        assert (batch.data["x"][:, 0] == batch.data["k"]).all()
        return buffer.info()["added"]

    with buffer.sampler(512) as batches:
        for _ in range(20):
            next(batches)
            assert Child(add_and_sample).result() == 600
    assert buffer.info()["added"] == 500
