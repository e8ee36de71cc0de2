"""What a batch tells of its items: raw priority, times sampled, age and the table's size, wherever the table is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

COLUMNS = {"k": rs.Column("int64"), "wide": rs.Column("uint8", (512,)), "words": rs.Column("int32", (None,))}
NAMES = ("priorities", "times_sampled", "ages", "table_sizes")


def items(keys: np.ndarray) -> dict[str, Any]:
    wide = np.repeat(keys.astype(np.uint8)[:, None], 512, 1)
    return {"k": keys, "wide": wide, "words": [np.full(key % 3, key, np.int32) for key in keys]}


def awaited(url: str, name: str) -> Any:
    """A holder whose calls each run in an event loop of their own."""

    def call(method: str) -> Callable[..., Any]:
        async def in_loop(*arguments: Any, **options: Any) -> Any:
            async with aio.Client(url) as client:
                return await getattr(client[name], method)(*arguments, **options)

        return lambda *arguments, **options: asyncio.run(in_loop(*arguments, **options))

    holder = type("Awaited", (), {})()
    holder.add, holder.sample, holder.update_priorities = call("add"), call("sample"), call("update_priorities")
    return holder


@pytest.fixture(scope="module")
def shards() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(rs.Server(config={"shard": number})) for number in range(3)]
        yield "redis+cluster://" + ",".join(server.url.removeprefix("redis://") for server in servers)


@pytest.fixture(params=["in process", "tcp", "shared memory", "asyncio", "shards"])
def make(request: Any, server: rs.Server, shards: str) -> Iterator[Callable[..., Any]]:
    """Makes a table; a holder of it."""
    with contextlib.ExitStack() as stack:
        made: list[str] = []
        url = shards if request.param == "shards" else server.url
        client = stack.enter_context(rs.Client(url, shared_memory=request.param == "shared memory"))

        def table(capacity: int = 300, **parts: Any) -> Any:
            described = rs.Table(f"details-{len(made)}", capacity, COLUMNS, **parts)
            if request.param == "in process":
                return rs.Buffer(described)
            client.create_table(described)
            made.append(described.name)
            return awaited(url, described.name) if request.param == "asyncio" else client[described.name]

        yield table
        for name in made:
            client.drop_table(name)


def shard_of(ids: np.ndarray) -> np.ndarray:
    return ids >> np.uint64(56)


def ages_of(ids: np.ndarray) -> np.ndarray:
    """How many of the ids, in order of entry, came to each one's server after it."""
    return np.array([(shard_of(ids[at + 1 :]) == shard_of(ids[at])).sum() for at in range(len(ids))], np.uint64)


@pytest.mark.parametrize(
    "sampler", [rs.Prioritized(priority_exponent=0.6), rs.Uniform()], ids=["prioritized", "uniform"]
)
@pytest.mark.parametrize("replace", [True, False])
def test_a_batch_tells_what_the_table_knows_of_its_items(make, sampler, replace):
    holder = make(sampler=sampler)
    keys = np.arange(240)
    ids = holder.add(items(keys), 1.0 + keys % 7)
    priorities = 1.0 + keys % 7
    changed = np.arange(0, 240, 5)
    holder.update_priorities(ids[changed], np.full(len(changed), 9.5))
    priorities[changed] = 9.5
    counts = np.zeros(240, np.uint64)
    for columns in (None, ("k",), ("k",)):
        batch = holder.sample(64, replace=replace, columns=columns, details=True)
        at = batch.data["k"]
        np.testing.assert_array_equal(batch.ids, ids[at])
        np.testing.assert_array_equal(batch.priorities, priorities[at])
        np.testing.assert_array_equal(batch.ages, ages_of(ids)[at])
        np.testing.assert_array_equal(batch.table_sizes, np.full(64, 240))
        expected = []
        for key in at:
            counts[key] += 1
            expected.append(counts[key])
        if len(set(shard_of(ids).tolist())) == 1:  # of shards, arrivals that were not used count too
            np.testing.assert_array_equal(batch.times_sampled, np.array(expected))
        else:
            assert (batch.times_sampled >= 1).all()
        weights = (240 * batch.probabilities) ** -0.4
        np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)


def test_an_item_that_leaves_with_its_last_draw_is_told_of_as_it_was(make):
    holder = make(sampler=rs.Fifo(), rate_limiter=rs.Queue(300), max_times_sampled=1)
    keys = np.arange(60)
    ids = holder.add(items(keys), 2.0 + keys)
    batch = holder.sample(60, details=True)
    at = batch.data["k"]
    assert sorted(at.tolist()) == keys.tolist()
    np.testing.assert_array_equal(batch.priorities, 2.0 + at)
    np.testing.assert_array_equal(batch.times_sampled, np.ones(60))
    np.testing.assert_array_equal(batch.ages, ages_of(ids)[at])
    held = {int(number): int((shard_of(ids) == number).sum()) for number in set(shard_of(ids).tolist())}
    for number, count in held.items():  # each draw has removed an item
        sizes = batch.table_sizes[shard_of(batch.ids) == number]
        np.testing.assert_array_equal(sizes, np.arange(count, 0, -1))


def test_a_batch_that_is_drawn_in_parts_tells_of_all_its_items(make):
    holder = make(capacity=30_000, sampler=rs.Prioritized(priority_exponent=1.0))
    keys = np.arange(9000)
    for part in np.split(keys, 9):
        holder.add(items(part), 1.0 + part)
    batch = holder.sample(8500, columns=["k"], details=True)
    np.testing.assert_array_equal(batch.priorities, 1.0 + batch.data["k"])
    np.testing.assert_array_equal(batch.table_sizes, np.full(8500, 9000))
    assert batch.times_sampled.min() >= 1


def test_a_batch_that_is_reused_tells_only_what_was_asked_for(make):
    holder = make()
    holder.add(items(np.arange(50)), 1.0 + np.arange(50))
    batch = holder.sample(10, writable=True)
    for name in NAMES:
        with pytest.raises(AttributeError, match=rf"no {name}: ask for them with sample\(…, details=True\)"):
            getattr(batch, name)
    again = holder.sample(10, out=batch, details=True)
    np.testing.assert_array_equal(again.priorities, 1.0 + again.data["k"])
    once_more = holder.sample(10, out=again, details=True)
    np.testing.assert_array_equal(once_more.priorities, 1.0 + once_more.data["k"])
    assert holder.sample(10, out=again).details is None


def test_a_sampler_tells_of_items_too(server, make_table_of):
    for holder in make_table_of(server):
        holder.add(items(np.arange(50)), 1.0 + np.arange(50))
        with holder.sampler(16, details=True) as batches:
            for _, batch in zip(range(12), batches, strict=False):
                np.testing.assert_array_equal(batch.priorities, 1.0 + batch.data["k"])
                assert batch.table_sizes.tolist() == [50] * 16


@pytest.fixture
def make_table_of() -> Callable[[rs.Server], Iterator[Any]]:
    def holders(server: rs.Server) -> Iterator[Any]:
        described = rs.Table("details-sampler", 100, COLUMNS)
        yield rs.Buffer(described)
        for shared in (None, False):
            with rs.Client(server.url, shared_memory=shared) as client:
                client.create_table(described)
                yield client[described.name]
                client.drop_table(described.name)

    return holders


def test_windows_that_come_as_steps_come_with_what_is_told_of_items(client):
    frame, seen = rs.Column("uint8", (64,), step_only=True), rs.Window("frame", length=4)
    client.create_table(rs.Table("details-w", 100, {"frame": frame, "k": rs.Column("int64"), "seen": seen}))
    with client.writer("details-w") as writer:
        for step in range(20):
            writer.append({"frame": np.full(64, step, np.uint8)})
            writer.create_item(1.0 + step, columns={"k": step})
    batch = client.sample("details-w", 32, coded=True, details=True)
    np.testing.assert_array_equal(batch.priorities, 1.0 + batch.data["k"])
    np.testing.assert_array_equal(batch.ages, 19 - batch.data["k"])
    np.testing.assert_array_equal(batch.data["seen"][:, -1, 0], batch.data["k"])
    client.drop_table("details-w")


def test_a_reply_is_no_larger_unless_it_is_asked_for(client):
    client.create_table(rs.Table("details-r", 10, {"k": rs.Column("int64")}, sampler=rs.Fifo()))
    client["details-r"].add({"k": np.arange(4)}, [1.0, 2, 3, 4])
    assert len(client.command("REPLAY.SAMPLE", "details-r", 2)) == 3 + 2
    reply = client.command("REPLAY.SAMPLE", "details-r", 2, "DETAILS")
    assert len(reply) == 4 + 2
    assert np.frombuffer(reply[3], "<u8").reshape(2, 4)[:, 1:].tolist() == [[2, 3, 4], [2, 2, 4]]
    assert np.frombuffer(reply[3], "<f8").reshape(2, 4)[:, 0].tolist() == [1.0, 2.0]
    client.drop_table("details-r")
