"""Moments that merge in any order, and a normalisation that actors and learner share."""

from __future__ import annotations

import numpy as np
import pytest

from replay_server.rl.moments import Moments


def assert_same(one: Moments, other: Moments) -> None:
    assert one.count == other.count
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-9, atol=1e-9)


@pytest.fixture
def observations() -> np.ndarray:
    generator = np.random.default_rng(7)
    # Features of different sizes, one far from zero: where the textbook formula loses its digits.
    return (generator.normal(size=(5_000, 4)) * [1.0, 1e-3, 100.0, 1.0] + [0.0, 0.0, 5.0, 1e4]).astype(np.float32)


@pytest.mark.parametrize("shards", [1, 2, 7, 64, 5_000])
def test_sharded_moments_are_those_of_the_whole(observations, shards):
    parts = [Moments.of(part) for part in np.array_split(observations, shards)]
    assert_same(Moments.merge(parts, 4), Moments.of(observations))


def test_neither_order_nor_grouping_of_merges_matters(observations):
    generator = np.random.default_rng(1)
    parts = [Moments.of(part) for part in np.split(observations, np.sort(generator.integers(0, 5_000, 40)))]
    whole = Moments.of(observations)
    for _ in range(5):
        order = generator.permutation(len(parts))
        assert_same(Moments.merge((parts[i] for i in order), 4), whole)
        left, right = order[:13], order[13:]
        halves = [Moments.merge((parts[i] for i in half), 4) for half in (left, right)]
        assert_same(halves[1].merged(halves[0]), whole)


def test_moments_of_nothing_change_nothing(observations):
    whole, none = Moments.of(observations), Moments.none(4)
    assert_same(whole.merged(none), whole)
    assert_same(none.merged(whole), whole)
    assert_same(Moments.of(observations[:0]), none)
    assert_same(none.merged(none), none)
    np.testing.assert_array_equal(none.variance, np.ones(4))
