"""What is dropped without `close` ends by itself: threads, connections, streams."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import replay_server as rs
from replay_server import aio

STEPS = {"number": rs.Column("int64"), "seen": rs.Window("number", length=2)}


@pytest.fixture
def counted(client: rs.Client) -> Callable[[], tuple[int, int]]:
    """How many threads there are, and how many connections the server has."""
    client.redis.ping()
    return lambda: (threading.active_count(), len(client.redis.client_list()))


def sampler(server: rs.Server, names: tuple[str, str]) -> Any:
    batches = rs.Client(server.url).sampler(names[0], 4)
    next(batches)
    return batches


def waiting_sampler(server: rs.Server, names: tuple[str, str]) -> Any:
    return rs.Client(server.url).sampler(names[0], 50, replace=False)


def sampler_in_a_cycle(server: rs.Server, names: tuple[str, str]) -> Any:
    cycle = [sampler(server, names)]
    cycle.append(cycle)
    return cycle


def used_client(server: rs.Server, names: tuple[str, str]) -> Any:
    made = rs.Client(server.url)
    made.info(names[0])
    return made


def writer(server: rs.Server, names: tuple[str, str]) -> Any:
    made = rs.Client(server.url).writer(names[1])
    made.append({"number": 1})
    made.create_item()
    made.flush()
    return made


def aio_client(server: rs.Server, names: tuple[str, str]) -> Any:
    async def use() -> aio.Client:
        made = aio.Client(server.url)
        await made.info(names[0])
        writer = await made.writer(names[1])
        await writer.append({"number": 1})
        await writer.flush()
        return made

    return aio.run(use())


@pytest.mark.parametrize("make", [sampler, waiting_sampler, sampler_in_a_cycle, used_client, writer, aio_client])
def test_what_is_dropped_ends_its_threads_and_connections(server, client, make_table, items, counted, eventually, make):
    names = make_table(), make_table(100, STEPS)
    client.add(names[0], items(1, 2, 3))
    before = counted()
    dropped = [make(server, names) for _ in range(5)]
    assert counted()[1] > before[1]
    del dropped

    def ended() -> bool:
        gc.collect()
        return counted() <= before

    eventually(ended, "as many threads and connections as before")
    assert client.info(names[1])["streams"] == 0


def test_a_buffer_s_samplers_that_are_dropped_end_their_threads(items, eventually):
    buffer = rs.Buffer(rs.Table("t", 100, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}))
    buffer.add(items(1, 2))
    before = threading.active_count()
    dropped = [buffer.sampler(4, prefetch=1) for _ in range(5)]
    dropped += [buffer.sampler(50, replace=False) for _ in range(5)]
    assert threading.active_count() == before + 10
    del dropped
    gc.collect()
    eventually(lambda: threading.active_count() == before, "their threads have ended")
    assert buffer.info()["waiting"] == 0


def test_a_writer_that_is_dropped_ends_though_its_client_goes_on(client, make_table, eventually):
    name = make_table(100, STEPS)
    writer = client.writer(name)
    writer.append({"number": 1})
    writer.flush()
    assert client.info(name)["streams"] == 1
    del writer
    gc.collect()
    eventually(lambda: client.info(name)["streams"] == 0, "its stream is closed")
