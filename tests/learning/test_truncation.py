"""Global importance-sampling truncation against numbers worked out by hand, alone and in the losses."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.learner import impact, ppo  # noqa: E402
from replay_server.learner.impact import ImpactSettings  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.learner.truncation import LIMIT, log_ratio_limit, truncated_log_probability  # noqa: E402
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_spec import PolicySpec  # noqa: E402

DISCRETE = PolicySpec(observation_shape=(3,), observation_dtype="float32", num_actions=2)


def log(*values: float):
    return torch.tensor(values).log()


def truncated(own, others, limit=1.0):
    """r′ by the code, from the ratios of this learner and of the others."""
    behaviour = log(*[0.5] * len(own))
    policy = log(*own) + behaviour
    found = log_ratio_limit([log(*own), *(log(*each) for each in others)], limit)
    return (truncated_log_probability(policy, behaviour, found) - behaviour).exp()


def test_ratios_are_cut_at_the_groups_minimum_and_never_below_rho():
    # min_j: 1.5, 0.8, 0.9, 3 → max(1, ·): 1.5, 1, 1, 3
    found = truncated([2.0, 2.0, 0.9, 3.0], [[1.5, 0.8, 1.7, 4.0], [1.8, 5.0, 2.0, 3.5]])
    np.testing.assert_allclose(found, [1.5, 1.0, 0.9, 3.0], rtol=1e-6)
    np.testing.assert_allclose(truncated([2.0, 3.0], [[0.5, 2.8]], limit=1.2), [1.2, 2.8], rtol=1e-6)


def test_one_learner_alone_keeps_its_ratio_and_all_of_its_gradient():
    own = torch.tensor([0.7, 0.0, -0.2], requires_grad=True)
    behaviour = torch.zeros(3)
    found = truncated_log_probability(own, behaviour, log_ratio_limit([own - behaviour]))
    assert torch.equal(found, own)
    found.sum().backward()
    assert own.grad is not None
    assert own.grad.tolist() == [1.0, 1.0, 1.0]


def test_where_it_cuts_there_is_no_gradient():
    own = torch.tensor([math.log(2.0), math.log(0.5)], requires_grad=True)
    limit = log_ratio_limit([own, log(1.5, 9.0)])
    assert not limit.requires_grad
    truncated_log_probability(own, torch.zeros(2), limit).sum().backward()
    assert own.grad is not None
    assert own.grad.tolist() == [0.0, 1.0]


def test_the_learners_own_ratio_in_the_group_changes_nothing():
    generator = torch.Generator().manual_seed(3)
    own, other, third = (torch.randn(200, generator=generator) for _ in range(3))
    zeros = torch.zeros(200)
    with_own = truncated_log_probability(own, zeros, log_ratio_limit([own, other, third]))
    without = truncated_log_probability(own, zeros, log_ratio_limit([other, third]))
    assert torch.equal(with_own, without)


def minibatch(network, ratio: float, advantage: float) -> dict:
    observation = torch.ones(1, 3)
    with torch.no_grad():
        parameters, _ = network(observation)
        own = network.distribution.log_probability(parameters, torch.tensor([1]))
    return {
        "observation": observation,
        "action": torch.tensor([1]),
        "advantage": torch.tensor([advantage]),
        "value_target": torch.zeros(1),
        "behaviour_log_probability": own - math.log(ratio),
        "behaviour_parameters": parameters,
        "target_log_probability": own - math.log(ratio),
        "target_parameters": parameters,
    }


@pytest.mark.parametrize(
    ("ratio", "limit", "advantage", "expected"),
    [
        (1.2, None, 2.0, 2.4),  # within 1 ± 0.3
        (1.2, 1.1, 2.0, 2.2),
        (2.0, 1.5, 1.0, 1.3),  # what is cut is clipped still
        (2.0, 1.5, -1.0, -1.5),  # min(−1.5, −1.3)
        (0.9, 1.0, 1.0, 0.9),
    ],
)
def test_ppos_surrogate_is_of_the_truncated_ratio(ratio, limit, advantage, expected):
    settings = PpoSettings(clip=0.3, hidden=4, normalize_observations=False)
    network = make_policy_network(settings, DISCRETE)
    batch = minibatch(network, ratio, advantage)
    if limit is not None:
        batch[LIMIT] = log(limit)
    assert ppo.loss(network, batch, settings).surrogate.item() == pytest.approx(expected, rel=1e-5)


def test_impacts_surrogate_is_of_the_truncated_ratio():
    settings = ImpactSettings(clip=0.4, hidden=4, normalize_observations=False)
    network = make_policy_network(settings, DISCRETE)
    # μ = π_tgt: clamp(1, 0, 2) · r′ = 1.1 in place of 1.3.
    batch = minibatch(network, 1.3, 1.0)
    assert impact.loss(network, batch, settings).surrogate.item() == pytest.approx(1.3, rel=1e-5)
    assert impact.loss(network, batch | {LIMIT: log(1.1)}, settings).surrogate.item() == pytest.approx(1.1, rel=1e-5)
    # π_tgt = μ / 4: the clamp gives 2, so 2 · 1.1 where 4 · 1.3 would be without both; clipped at 1.4.
    far = batch | {"target_log_probability": batch["behaviour_log_probability"] - math.log(4.0), LIMIT: log(1.1)}
    assert impact.loss(network, far | {"advantage": torch.tensor([-1.0])}, settings).surrogate.item() == pytest.approx(
        -2.2, rel=1e-5
    )
