"""What is kept over shards of the order of fifo, lifo, heaps and queues: each shard's order, and parts by size.

A batch has of each shard the items that a sample of that shard alone would give first, as many as its part of the items
comes to, rounded up or down; they come shard by shard. The order over all shards is not kept: an item that should be
first of all may be missing from a batch, if its shard's part is rounded to none.
"""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from shards import K, cluster, servers, shards  # noqa: F401

import replay_server as rs

SHARDS = 3
SAMPLERS = [rs.Fifo(), rs.Lifo(), rs.MaxHeap(), rs.MinHeap()]


def in_order(
    sampler: rs.Fifo | rs.Lifo | rs.MaxHeap | rs.MinHeap, keys: list[int], priorities: dict[int, float]
) -> list[int]:
    """Keys that came in this order, as one server's sampler takes them; of equal priorities the older first."""
    if isinstance(sampler, rs.Fifo):
        return keys
    if isinstance(sampler, rs.Lifo):
        return keys[::-1]
    sign = -1 if isinstance(sampler, rs.MaxHeap) else 1
    return sorted(keys, key=lambda key: sign * priorities[key])


def check_batch(batch: list[int], orders: list[list[int]]) -> list[list[int]]:
    """Checks a batch against each shard's order; what it has of each."""
    shard_of = {key: shard for shard, order in enumerate(orders) for key in order}
    of_shards = [[key for key in batch if shard_of[key] == shard] for shard in range(len(orders))]
    assert batch == list(itertools.chain.from_iterable(of_shards))
    size = sum(map(len, orders))
    for own, order in zip(of_shards, orders, strict=True):
        assert own == order[: len(own)]
        assert abs(len(own) - len(batch) * len(order) / size) < 1
    return of_shards


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_a_batch_has_the_first_items_of_each_shard_in_proportion(cluster, shards, sampler) -> None:  # noqa: F811
    cluster.create_table(rs.Table("o", 3000, K, sampler=sampler))
    random = np.random.default_rng(3)
    came: list[list[int]] = [[], [], []]
    priorities: dict[int, float] = {}
    keys = itertools.count()
    for _ in range(30):
        for shard, most in enumerate((2, 9, 5)):
            new = [next(keys) for _ in range(int(random.integers(0, most)))]
            if new:
                drawn = dict(zip(new, random.permutation(1000)[: len(new)] + 1000.0 * len(priorities), strict=True))
                priorities.update({key: value * (-1) ** key + 1e7 for key, value in drawn.items()})
                shards[shard].add("o", {"k": np.array(new)}, [priorities[key] for key in new])
                came[shard] += new
        size = sum(map(len, came))
        for count in {1, min(3, size), size // 2, size} - {0}:
            if size:
                batch = cluster.sample("o", count).data["k"].tolist()
                check_batch(batch, [in_order(sampler, own, priorities) for own in came])


def test_the_order_over_all_shards_is_not_kept(cluster, shards) -> None:  # noqa: F811
    """The oldest and best item of all is on a shard of one item: its part of a batch of 10 from 60 is none."""
    for name, sampler in (("f", rs.Fifo()), ("m", rs.MaxHeap())):
        cluster.create_table(rs.Table(name, 3000, K, sampler=sampler))
        shards[0].add(name, {"k": [0]}, [9.0])
        shards[1].add(name, {"k": np.arange(1, 60)}, np.ones(59))
        batch = cluster.sample(name, 10).data["k"].tolist()
        assert 0 not in batch
        assert cluster.sample(name, 60).data["k"][0] == 0


def test_batches_of_a_queue_follow_each_other_in_each_shards_order(cluster, shards) -> None:  # noqa: F811
    cluster.create_table(rs.Table.queue("q", K, 3000))
    random = np.random.default_rng(4)
    left: list[list[int]] = [[], [], []]
    keys = itertools.count()
    for _ in range(60):
        for shard, most in enumerate((2, 12, 6)):
            new = [next(keys) for _ in range(int(random.integers(0, most)))]
            if new:
                shards[shard].add("q", {"k": np.array(new)})
                left[shard] += new
        size = sum(map(len, left))
        with contextlib.suppress(rs.Timeout):
            batch = cluster.sample("q", int(random.integers(1, 12)), timeout=0).data["k"].tolist()
            assert len(batch) <= size
            for own, given in zip(left, check_batch(batch, left), strict=True):
                del own[: len(given)]
    assert cluster.info("q")["size"] == sum(map(len, left))
