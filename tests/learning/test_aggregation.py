"""Weighted aggregation of gradients against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.learner.aggregation import gradient_vector, set_gradients, step, weighted_sum, weights  # noqa: E402
from replay_server.learner.staleness import factor  # noqa: E402


def parameters(*values: float) -> list:
    return [torch.nn.Parameter(torch.tensor([value])) for value in values]


def test_weights_are_the_factors_shares():
    np.testing.assert_allclose(weights([1.0, 0.5, 0.5]), [0.5, 0.25, 0.25])
    for wrong in ([], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="expected factors above 0"):
            weights(wrong)


def test_the_sum_of_fresh_and_stale_gradients():
    # Stalenesses 0 and 8: factors 1 and 1/2, weights 2/3 and 1/3.
    of = weights([factor(0), factor(8)])
    found = weighted_sum([np.array([3.0, 0.0], np.float32), np.array([0.0, 6.0], np.float32)], of)
    np.testing.assert_allclose(found, [2.0, 2.0], rtol=1e-7)
    assert found.dtype == np.float32


def test_one_gradient_is_itself_bit_for_bit():
    vector = np.random.default_rng(0).normal(size=100).astype(np.float32)
    np.testing.assert_array_equal(weighted_sum([vector], weights([factor(5)])), vector)


def test_a_step_of_plain_descent_is_the_mean_of_the_modulated_steps():
    # lr 0.1: gradients 4 (s = 0) and 8 (s = 8, half the rate): the mean of 0.4 and 0.4.
    (weight,) = parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    factors = [factor(0), factor(8)]
    vector = weighted_sum([np.array([4.0], np.float32), np.array([8.0], np.float32)], weights(factors))
    step(optimizer, [weight], vector, sum(factors) / 2)
    assert weight.item() == pytest.approx(1.0 - 0.4)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert weight.grad is None


def test_modulation_reaches_adam_which_divides_the_length_of_gradients_out():
    moved = []
    for rate in (1.0, 0.5):
        (weight,) = parameters(0.0)
        step(torch.optim.Adam([weight], lr=0.01), [weight], np.array([7.0], np.float32), rate)
        moved.append(weight.item())
    assert moved == pytest.approx([-0.01, -0.005], rel=1e-5)


def test_vectors_go_through_parameters_and_back():
    several = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4))]
    vector = np.arange(10, dtype=np.float32)
    set_gradients(several, vector)
    assert several[0].grad is not None
    assert several[0].grad.tolist() == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(gradient_vector(several), vector)
    several[1].grad = None
    np.testing.assert_array_equal(gradient_vector(several), [0, 1, 2, 3, 4, 5, 0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"expected a gradient of shape \(10,\), got \(9,\)"):
        set_gradients(several, vector[:9])
