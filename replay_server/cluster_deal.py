"""Which item of the old shards goes to which of the new ones, where a checkpoint is restored onto another number."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

STEPS_MOST = 0xFFFF0000
"""Numbers in an item's list from here on are no steps (native/replay/slot_store.h)."""


def merged_order(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """All items, oldest first: the shard of each, and its rank among that shard's items by age, int64 (n,).

    Ages of different shards cannot be compared. Each shard's own order is kept, and its items are spread evenly over
    the whole.
    """
    shards = np.repeat(np.arange(len(sizes)), sizes)
    ranks = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.empty(0, np.int64)
    places = (ranks + 0.5) / np.repeat(np.maximum(sizes, 1), sizes)
    order = np.argsort(places, kind="stable")
    return shards[order], ranks[order]


def in_turn(count: int, shards: int) -> np.ndarray:
    """The new shard of each of `count` items, int64 (n,): one after the other."""
    return np.arange(count) % shards


def whole_groups(groups: np.ndarray, shards: int, most: int) -> np.ndarray:
    """The new shard of each item, int64 (n,), where items of a group stay together: a group goes to the shard with the
    fewest items.

    Args:
        groups: of each item, by age, int64 (n,).
        shards: new ones.
        most: items that a shard takes; `shards * most` are at least n. What does not fit of a group, its newest items,
            goes to the next shard.
    """
    targets = np.empty(len(groups), np.int64)
    _, first, inverse, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    items = np.argsort(inverse, kind="stable")
    begins = np.concatenate([[0], np.cumsum(counts)])
    held = [(0, shard) for shard in range(shards)]
    for group in np.argsort(first, kind="stable").tolist():
        begin, end = int(begins[group]), int(begins[group + 1])
        while begin < end:
            size, shard = held[0]
            taken = min(end - begin, most - size)
            targets[items[begin : begin + taken]] = shard
            heapq.heapreplace(held, (size + taken, shard))
            begin += taken
    return targets


def sharing(lists: np.ndarray) -> np.ndarray:
    """A group for each item, int64 (n,): items that see a step in common, directly or through others, have the same.

    Args:
        lists: steps that each item sees, uint32 (n, steps); numbers from `STEPS_MOST` on are none.
    """
    count = len(lists)
    is_step = lists < STEPS_MOST
    steps, numbers = np.unique(lists[is_step], return_inverse=True)
    items = np.nonzero(is_step)[0]
    # A forest over items and steps: each points at one of a lower number, or at itself.
    parent = np.arange(count + len(steps))
    left, right = items, count + numbers
    while len(left):
        low = np.minimum(parent[left], parent[right])
        high = np.maximum(parent[left], parent[right])
        apart = low != high
        left, right = left[apart], right[apart]
        np.minimum.at(parent, high[apart], low[apart])
        while not np.array_equal(further := parent[parent], parent):
            parent = further
    return parent[:count]
