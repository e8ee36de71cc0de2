"""Which item goes to which new shard: groups, orders and limits."""

from __future__ import annotations

import numpy as np
import pytest

from replay_server.cluster_deal import STEPS_MOST, in_turn, merged_order, sharing, whole_groups

NONE = 0xFFFFFFFF


def grouped(lists: np.ndarray) -> np.ndarray:
    is_step = lists < STEPS_MOST
    return sharing(is_step.sum(1), lists[is_step])


def test_items_that_share_steps_through_others_are_one_group() -> None:
    lists = np.array([[7, 8], [1, 1], [8, 9], [2, NONE], [9, 3], [NONE, STEPS_MOST + 0], [2, 2]], np.uint32)
    groups = grouped(lists)
    assert len({groups[0], groups[2], groups[4]}) == 1
    assert groups[3] == groups[6]
    assert len(set(groups.tolist())) == 4


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_that_a_search_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    lists = random.integers(0, 60, (40, 2)).astype(np.uint32)
    found = np.arange(40)
    for _ in range(40):  # as far as it can be through 40 items
        for one in range(40):
            for other in range(one):
                if set(lists[one]) & set(lists[other]):
                    found[[one, other]] = min(found[one], found[other])
    groups = grouped(lists)
    same = groups[:, None] == groups[None]
    assert (same == (found[:, None] == found[None])).all()


def test_a_long_chain_is_one_group() -> None:
    steps = np.arange(50_000, dtype=np.uint32)
    order = np.random.default_rng(3).permutation(50_000)
    assert not grouped(np.stack([steps, steps + 1], 1)[order]).any()


def test_each_shards_order_is_kept_and_spread_over_the_whole() -> None:
    shards, ranks = merged_order([2, 0, 6])
    assert ranks[shards == 2].tolist() == list(range(6))
    assert ranks[shards == 0].tolist() == [0, 1]
    assert np.flatnonzero(shards == 0).tolist() == [1, 5]
    assert merged_order([])[0].tolist() == []


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_items_in_turn_are_as_many_everywhere(shards: int) -> None:
    counts = np.bincount(in_turn(np.ones(100), shards), minlength=shards)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("seed", range(20))
def test_groups_stay_together_and_limits_are_kept(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, shards = int(random.integers(1, 300)), int(random.integers(1, 6))
    most = -(-count // shards)
    groups = random.integers(0, 30, count)
    targets = whole_groups(groups, shards, most, np.ones(count), np.inf)
    assert np.bincount(targets, minlength=shards).max() <= most
    cuts = sum(len(set(targets[groups == group].tolist())) - 1 for group in set(groups.tolist()))
    assert cuts <= shards - 1
    for group in set(groups.tolist()):  # what is cut off is the newest
        own = targets[groups == group]
        assert (own != np.roll(own, 1))[1:].sum() == len(set(own.tolist())) - 1


def test_with_room_groups_are_not_cut() -> None:
    groups = np.repeat([0, 1, 2], [50, 30, 20])
    assert whole_groups(groups, 2, 100, np.ones(100), np.inf).tolist() == [0] * 50 + [1] * 50


@pytest.mark.parametrize("seed", range(20))
def test_items_in_turn_weigh_the_same_everywhere(seed: int) -> None:
    random = np.random.default_rng(seed)
    shards = int(random.integers(1, 6))
    weights = random.choice([1.0, 1.0, 1000.0], int(random.integers(1, 300)))
    weights[::shards] = 1000.0  # by count alone, the first shard would get all of these
    targets = in_turn(weights, shards)
    counts = np.bincount(targets, minlength=shards)
    assert counts.max() - counts.min() <= 1
    held = np.bincount(targets, weights, shards)
    assert held.max() - held.min() <= weights.max()


@pytest.mark.parametrize("seed", range(20))
def test_no_shard_gets_more_weight_than_it_takes(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, shards = int(random.integers(1, 300)), int(random.integers(1, 6))
    groups, weights = random.integers(0, 4, count), random.integers(1, 50, count).astype(float)
    heaviest = weights.sum() / shards + 49
    targets = whole_groups(groups, shards, count, weights, heaviest)
    assert np.bincount(targets, weights, shards).max() <= heaviest
    for group in range(4):  # what is cut off is the newest
        own = targets[groups == group]
        assert (own[1:] != own[:-1]).sum() <= shards - 1


def test_what_fits_nowhere_goes_to_the_lightest() -> None:
    targets = whole_groups(np.zeros(4, int), 2, 3, np.array([3.0, 2, 9, 1]), 4.0)
    assert targets.tolist() == [0, 1, 1, 0]
