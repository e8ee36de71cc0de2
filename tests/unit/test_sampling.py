"""Sampling is right: frequencies against p^α / Σ p^α, zero priorities, and importance weights.

Draws are stratified (Schaul et al. 2016), which only lowers the variance of counts against independent draws, so a
chi-square test of counts is conservative. Each test has a false-alarm rate of at most 10⁻⁶ for independent draws;
seeds are fixed, so a test that passes once passes always.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import replay_server as rs

Z_ONE_IN_A_MILLION = 4.753


def chi_square_limit(degrees: int) -> float:
    """Value that chi-square exceeds with probability 10⁻⁶ (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + Z_ONE_IN_A_MILLION * math.sqrt(spread)) ** 3


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def filled(priorities: np.ndarray, exponent: float, seed: int) -> tuple[rs.Buffer, np.ndarray]:
    buffer = rs.Buffer(
        rs.Table("t", len(priorities), {"i": rs.Column("int64")}, sampler=rs.Prioritized(exponent), seed=seed)
    )
    ids = buffer.add({"i": np.arange(len(priorities))}, np.ones(len(priorities)))
    buffer.update_priorities(ids, priorities)
    return buffer, ids


def drawn(buffer: rs.Buffer, batch_size: int, batches: int, size: int) -> np.ndarray:
    counts = np.zeros(size, np.int64)
    out = None
    for _ in range(batches):
        out = buffer.sample(batch_size, out=out)
        counts += np.bincount(out.data["i"], minlength=size)
    return counts


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_frequencies_of_a_thousand_items(exponent, batch_size):
    priorities = np.random.default_rng(1).gamma(0.5, 2.0, 1000) + 1e-3
    buffer, _ = filled(priorities, exponent, seed=11)
    draws = 400_000 if batch_size > 1 else 40_000
    counts = drawn(buffer, batch_size, draws // batch_size, 1000)
    expected = priorities**exponent / (priorities**exponent).sum() * counts.sum()
    # Cells of fewer than five expected draws are put together, as the approximation asks.
    order = np.argsort(expected)
    groups = np.floor(np.cumsum(expected[order]) / 20).astype(int)
    observed = np.bincount(groups, counts[order])
    wanted = np.bincount(groups, expected[order])
    keep = wanted > 5
    assert chi_square(observed[keep], wanted[keep]) < chi_square_limit(keep.sum() - 1)


def test_frequencies_of_a_million_items():
    size = 1_000_000
    priorities = np.random.default_rng(2).pareto(1.5, size) + 1e-3
    buffer, _ = filled(priorities, 0.6, seed=12)
    counts = drawn(buffer, 4096, 1000, size)
    weights = priorities**0.6
    expected = weights / weights.sum() * counts.sum()
    # A thousand groups of consecutive items, and a thousand of items of similar priority.
    for order in (np.arange(size), np.argsort(priorities)):
        observed = counts[order].reshape(1000, 1000).sum(axis=1)
        wanted = expected[order].reshape(1000, 1000).sum(axis=1)
        assert chi_square(observed, wanted) < chi_square_limit(999)


def test_a_batch_is_stratified():
    buffer, _ = filled(np.ones(1000), 1.0, seed=13)
    batch = buffer.sample(1000)
    # One draw from each thousandth of the total: with equal priorities, each item once but for shuffling of order.
    assert np.bincount(batch.data["i"], minlength=1000).max() <= 2


def test_independent_draws_are_spread_as_independent_draws_are():
    table = rs.Table("t", 1000, {"i": rs.Column("int64")}, sampler=rs.Prioritized(1.0, stratified=False), seed=19)
    buffer = rs.Buffer(table)
    buffer.add({"i": np.arange(1000)}, np.ones(1000))
    counts = drawn(buffer, 1000, 400, 1000)
    statistic = chi_square(counts, np.full(1000, 400.0))
    # Stratified draws of equal items would give a small fraction of the degrees of freedom.
    assert 800 < statistic < chi_square_limit(999)


@pytest.mark.parametrize(
    "sampler", [rs.Prioritized(0.6), rs.Prioritized(0.6, stratified=False), rs.Uniform(), rs.Fifo()], ids=repr
)
def test_a_batch_without_replacement_repeats_nothing(sampler):
    buffer = rs.Buffer(rs.Table("t", 1000, {"i": rs.Column("int64")}, sampler=sampler, seed=18))
    priorities = np.random.default_rng(5).pareto(0.3, 1000) + 1e-3
    buffer.add({"i": np.arange(1000)}, priorities)
    for batch_size in (1, 2, 500, 999, 1000):
        batch = buffer.sample(batch_size, replace=False)
        assert len(np.unique(batch.data["i"])) == batch_size
        if isinstance(sampler, rs.Prioritized):
            expected = (priorities**0.6 / (priorities**0.6).sum())[batch.data["i"]]
            np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
            weights = (1000 * expected) ** -0.4
            np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)
    assert buffer.info()["size"] == 1000
    assert buffer.info()["pinned_slots"] == 0


def test_a_batch_without_replacement_waits_for_enough_items():
    buffer = rs.Buffer(rs.Table("t", 8, {"i": rs.Column("int64")}))
    buffer.add({"i": np.arange(4)}, np.array([1.0, 0.0, 1.0, 1.0]))
    with pytest.raises(rs.Timeout, match="3 may be drawn, a sample of 4 without replacement waits"):
        buffer.sample(4, timeout=0, replace=False)
    with pytest.raises(rs.LimitExceeded, match="without replacement is more than a table of 8"):
        buffer.sample(9, timeout=0, replace=False)
    assert len(buffer.sample(9, timeout=0)) == 9
    assert sorted(buffer.sample(3, timeout=0, replace=False).data["i"]) == [0, 2, 3]


def test_uniform_draws_without_replacement_are_even():
    buffer = rs.Buffer(rs.Table("t", 100, {"i": rs.Column("int64")}, sampler=rs.Uniform(), seed=20))
    ids = buffer.add({"i": np.arange(100)})
    counts = np.zeros(100)
    for _ in range(2000):
        counts += np.bincount(buffer.sample(10, replace=False).data["i"], minlength=100)
    # Without replacement the counts vary a tenth less than a multinomial's: the bound is conservative.
    assert chi_square(counts, np.full(100, 200.0)) < chi_square_limit(99)
    assert buffer.delete(ids[::2]) == 50
    assert set(buffer.sample(50, replace=False).data["i"]) == set(range(1, 100, 2))


def test_items_of_zero_priority_are_never_drawn():
    generator = np.random.default_rng(3)
    priorities = np.where(generator.random(10_000) < 0.5, 0.0, generator.random(10_000) * 1e-3)
    buffer, ids = filled(priorities, 0.6, seed=14)
    for _ in range(200):
        assert (priorities[buffer.sample(1000).data["i"]] > 0).all()
        # Priorities that come and go leave nothing behind in the sums.
        chosen = generator.choice(10_000, 500, replace=False)
        priorities[chosen] = np.where(generator.random(500) < 0.5, 0.0, 10.0 ** generator.integers(-6, 6, 500))
        buffer.update_priorities(ids[chosen], priorities[chosen])


@pytest.mark.parametrize("exponent", [0.4, 0.6, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_normalised_inverse_probabilities(exponent, beta):
    priorities = np.random.default_rng(4).gamma(0.5, 2.0, 1000) + 1e-3
    buffer, _ = filled(priorities, exponent, seed=15)
    batch = buffer.sample(256, importance_sampling_exponent=beta)
    probabilities = priorities**exponent / (priorities**exponent).sum()
    np.testing.assert_allclose(batch.probabilities, probabilities[batch.data["i"]], rtol=1e-9)
    weights = (1000 * probabilities[batch.data["i"]]) ** -beta
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)
    assert batch.weights.max() == 1.0


def test_uniform_frequencies_are_even_after_removals():
    buffer = rs.Buffer(rs.Table("t", 1000, {"i": rs.Column("int64")}, sampler=rs.Uniform(), seed=16))
    ids = buffer.add({"i": np.arange(1000)})
    buffer.delete(ids[::3])
    counts = drawn(buffer, 500, 400, 1000)
    left = np.setdiff1d(np.arange(1000), np.arange(0, 1000, 3))
    assert counts.sum() == counts[left].sum() == 200_000
    assert chi_square(counts[left], np.full(len(left), 200_000 / len(left))) < chi_square_limit(len(left) - 1)


def test_the_same_seed_draws_the_same():
    one, other = (filled(np.arange(1, 101.0), 0.6, seed=17)[0] for _ in range(2))
    np.testing.assert_array_equal(one.sample(50).data["i"], other.sample(50).data["i"])
