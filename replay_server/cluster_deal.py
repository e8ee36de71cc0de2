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


def in_turn(weights: np.ndarray, shards: int) -> np.ndarray:
    """The new shard of each item, int64 (n,): one after the other, so all get as many. Where items differ in weight,
    float64 (n,), the heaviest of those that are dealt together goes to the shard with the least weight."""
    targets = np.arange(len(weights)) % shards
    if len(weights) and (weights != weights[0]).any():
        held = np.zeros(shards)
        for first in range(0, len(weights), shards):
            here = first + np.argsort(-weights[first : first + shards], kind="stable")
            targets[here] = np.argsort(held, kind="stable")[: len(here)]
            held[targets[here]] += weights[here]
    return targets


def whole_groups(groups: np.ndarray, shards: int, most: int, weights: np.ndarray, heaviest: float) -> np.ndarray:
    """The new shard of each item, int64 (n,), where items of a group stay together: a group goes to the shard with the
    least weight.

    Args:
        groups: of each item, by age, int64 (n,).
        shards: new ones.
        most: items that a shard takes; `shards * most` are at least n. What does not fit of a group, its newest items,
            goes to the next shard.
        weights: of each item, float64 (n,).
        heaviest: weight that a shard takes. An item that fits nowhere goes to the shard with the least weight.
    """
    targets = np.empty(len(groups), np.int64)
    _, first, inverse, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    items = np.argsort(inverse, kind="stable")
    begins = np.concatenate([[0], np.cumsum(counts)])
    sums = np.concatenate([[0.0], np.cumsum(weights[items])])
    sizes, held = [0] * shards, [(0.0, shard) for shard in range(shards)]
    for group in np.argsort(first, kind="stable").tolist():
        begin, end = int(begins[group]), int(begins[group + 1])
        full: list[tuple[float, int]] = []  # by weight, for this item
        while begin < end:
            weight, shard = heapq.heappop(held)
            fit = end
            if heaviest < np.inf:
                fit = min(end, int(np.searchsorted(sums, sums[begin] + heaviest - weight, "right")) - 1)
            if fit <= begin and held:
                full.append((weight, shard))
                continue
            if fit <= begin:  # it fits nowhere
                heapq.heappush(held, (weight, shard))
                held, full = sorted([*held, *full]), []
                weight, shard = heapq.heappop(held)
                fit = begin + 1
            taken = min(fit - begin, most - sizes[shard])
            targets[items[begin : begin + taken]] = shard
            sizes[shard] += taken
            if sizes[shard] < most:
                heapq.heappush(held, (weight + sums[begin + taken] - sums[begin], shard))
            begin += taken
            for each in full:
                heapq.heappush(held, each)
            full = []
    return targets


def sharing(counts: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """A group for each item, int64 (n,): items that see a step in common, directly or through others, have the same.

    Args:
        counts: how many steps each item sees, int64 (n,).
        steps: those, one item's after another's.
    """
    count = len(counts)
    steps, numbers = np.unique(steps, return_inverse=True)
    items = np.repeat(np.arange(count), counts)
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
