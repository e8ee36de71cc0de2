"""A sample over shards by way of the memory that those of this host share: the same items as over sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shards import cluster, servers, start, url_of

import replay_server as rs
import replay_server.aio

__all__ = ["cluster", "servers"]  # fixtures
SHARDS = 3
SIGNATURE = {
    "k": rs.Column("int64"),
    "obs": {"wide": rs.Column("uint8", (64, 64))},
    "words": rs.Column("int32", (None, 300)),
}
ITEMS, BATCH = 600, 384
"""About 128 items a shard: 512 KB of "wide" and some 300 KB of "words", which are shared, and 1 KB of "k"."""


def fill(client: rs.Client) -> None:
    client.create_table(rs.Table("t", 3 * ITEMS, SIGNATURE, sampler=rs.Uniform(), seed=5))
    keys = np.arange(ITEMS)
    wide = np.empty((ITEMS, 64, 64), np.uint8)
    wide[:] = (keys % 251).astype(np.uint8)[:, None, None]
    words = [np.full((key % 5, 300), key, np.int32) for key in keys]
    client.add("t", {"k": keys, "obs": {"wide": wide}, "words": words})


def check(batch: rs.Batch) -> None:
    keys = batch.data["k"]
    assert len(np.unique(keys)) > 100
    assert (batch.data["obs"]["wide"] == (keys % 251).astype(np.uint8)[:, None, None]).all()
    for key, words in zip(keys, batch.data["words"], strict=True):
        assert words.shape == (key % 5, 300)
        assert (words == key).all()
    np.testing.assert_allclose(batch.probabilities, 1 / ITEMS)


def shared(servers: list[rs.Server]) -> list[int]:
    """How many batches each shard has sent through shared memory."""
    counts = []
    for server in servers:
        with rs.Client(server.url) as client:
            told: Any = client.redis.info("all")
            assert told["shared_batches_without_room"] == 0
            counts.append(int(told["shared_batches"]))
    return counts


@pytest.fixture
def near(servers: list[rs.Server], cluster: rs.Client) -> Iterator[rs.Client]:
    fill(cluster)
    with rs.Client(cluster.url, shared_memory=True) as client:
        yield client


def test_every_shard_sends_its_part_through_shared_memory_and_gets_it_back(near, servers):
    before = shared(servers)
    for turn in range(100):  # more than a connection may hold
        batch = near.sample("t", BATCH, replace=turn % 2 == 0, details=turn % 3 == 0)
        check(batch)
        assert not batch.data["obs"]["wide"].flags.writeable
        assert near.update_priorities("t", batch.ids, np.ones(BATCH)) == (BATCH, 0)
    assert all(now >= then + 100 for now, then in zip(shared(servers), before, strict=True))


def test_a_sampler_and_the_asyncio_client_do_so_too(near, servers, cluster):
    before = shared(servers)
    with cluster.sampler("t", BATCH, prefetch=2) as batches:
        for _, batch in zip(range(10), batches, strict=False):
            check(batch)

    async def work() -> None:
        async with rs.aio.Client(cluster.url, shared_memory=True) as client:
            for _ in range(5):
                for batch in await asyncio.gather(*(client.sample("t", BATCH) for _ in range(2))):
                    check(batch)

    rs.aio.run(work())
    assert all(now >= then + 20 for now, then in zip(shared(servers), before, strict=True))


def test_what_is_to_be_written_to_comes_over_the_socket(near, servers):
    before = shared(servers)
    batch = near.sample("t", BATCH, writable=True)
    check(batch)
    check(near.sample("t", BATCH, out=batch))
    assert shared(servers) == before


def test_a_sample_that_asks_twice_has_what_both_answers_brought(near):
    near.sample("t", BATCH)
    for number in near._sums["t"]:
        near._sums["t"][number] *= 2.5
    check(near.sample("t", BATCH))


def test_a_shard_that_shares_nothing_sends_its_part_over_the_socket():
    with contextlib.ExitStack() as stack:
        both = start(stack, 2)
        both.append(stack.enter_context(rs.Server(config={"shard": 2, "shared-memory-limit": "0"})))
        client = stack.enter_context(rs.Client(url_of(*both), shared_memory=True))
        fill(client)
        for _ in range(5):
            check(client.sample("t", BATCH))
        counts = shared(both)
        assert min(counts[:2]) >= 5
        assert counts[2] == 0


def test_a_client_goes_on_with_the_shared_memory_of_a_shard_that_was_started_again():
    with contextlib.ExitStack() as stack:
        first, *_ = both = start(stack, 2)
        client = stack.enter_context(rs.Client(url_of(*both), shared_memory=True, reconnect_timeout=60))
        fill(client)
        check(client.sample("t", BATCH))
        port = int(first.url.rpartition(":")[2])
        first.stop()
        table = rs.Table("t", 900, SIGNATURE, sampler=rs.Uniform(), seed=5)
        again = stack.enter_context(rs.Server([table], port=port, config={"shard": 0}))
        batch = client.sample("t", 128)
        assert set(batch.ids >> np.uint64(56)) == {1}
        assert (batch.data["obs"]["wide"] == (batch.data["k"] % 251).astype(np.uint8)[:, None, None]).all()
        assert again.running
