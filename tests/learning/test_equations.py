"""The learners' equations against float64 loops over the same arrays, to 1e-5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import reference_equations

torch = pytest.importorskip("torch")

from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.learner import impact, impala, ppo  # noqa: E402
from replay_server.rl.distributions import Categorical, DiagonalGaussian  # noqa: E402
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_settings import PolicySettings  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.returns import gae, next_values, v_trace  # noqa: E402


def from_reference(name: str, *arguments: Any, **settings: Any) -> Any:
    """What the reference makes of float64 copies of the same arrays."""
    return getattr(reference_equations, name)(*[_plain(argument) for argument in arguments], **settings)


def _plain(argument: Any) -> Any:
    array = argument.numpy() if isinstance(argument, torch.Tensor) else argument
    return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype == np.float32 else array


def assert_equal(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5)


# ---- recorded batches ------------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """Fragments (N, T) with two further policies' distributions for the same observations, and flattened samples."""

    rewards: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    actions: torch.Tensor
    """(B,) or (B, A); those below (B, P)."""
    behaviour: torch.Tensor
    target: torch.Tensor
    current: torch.Tensor
    distribution: Any


def played(env: str) -> Recorded:
    settings = PolicySettings(env=env, steps=96, hidden=32, seed=3)
    spec = policy_spec(settings)
    network = make_policy_network(settings, spec)
    collector = FragmentCollector(settings, spec, 4, [3, 1])
    columns = {name: torch.from_numpy(column) for name, column in collector.collect(network, 0).fragments.items()}
    collector.close()
    behaviour = columns["behaviour_parameters"].flatten(0, 1)
    generator = torch.Generator().manual_seed(5)
    return Recorded(
        columns["reward"],
        columns["value"],
        next_values(columns["value"], columns["final_value"], columns["final_step"]),
        columns["terminated"],
        columns["truncated"],
        columns["action"].flatten(0, 1),
        behaviour,
        behaviour + 0.3 * torch.randn(behaviour.shape, generator=generator),
        behaviour + 0.3 * torch.randn(behaviour.shape, generator=generator),
        network.distribution,
    )


def random_batch(discrete: bool) -> Recorded:
    """Episodes that end after a few steps, either way; ratios far from 1."""
    generator = torch.Generator().manual_seed(11)
    shape, samples = (5, 40), 200
    distribution = Categorical(4) if discrete else DiagonalGaussian(3)
    ends = torch.rand(shape, generator=generator)
    parameters = [0.4 * torch.randn(samples, distribution.parameters_size, generator=generator) for _ in range(3)]
    values, truncated = 5.0 * torch.randn(shape, generator=generator), ends > 0.85
    # The value of the next row, but for a final observation's where an episode was truncated, and at the end.
    successors = 5.0 * torch.randn(shape, generator=generator)
    successors[:, :-1] = torch.where(truncated[:, :-1], successors[:, :-1], values[:, 1:])
    return Recorded(
        torch.randn(shape, generator=generator),
        values,
        successors,
        ends < 0.1,
        truncated,
        distribution.sample(parameters[0], generator),
        *parameters,
        distribution,
    )


@pytest.fixture(scope="module", params=["CartPole-v1", "Hopper-v5", "random discrete", "random continuous"])
def batch(request) -> Recorded:
    if request.param == "Hopper-v5":
        pytest.importorskip("mujoco")
    if request.param.startswith("random"):
        return random_batch(discrete=request.param == "random discrete")
    return played(request.param)


def log_probability(batch: Recorded, parameters: torch.Tensor) -> torch.Tensor:
    return batch.distribution.log_probability(parameters, batch.actions)


class FixedNetwork(torch.nn.Module):
    """Answers every observation with given parameters and values."""

    def __init__(self, batch: Recorded, parameters: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.distribution = batch.distribution
        self.parameters_, self.values = parameters, values

    def forward(self, observations):
        return self.parameters_[observations], self.values[observations]


# ---- returns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("discount", "gae_lambda"), [(0.99, 0.95), (0.99, 1.0), (0.9, 0.0), (1.0, 0.5)])
def test_gae(batch, discount, gae_lambda):
    arguments = (batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated)
    ours = gae(*arguments, discount, gae_lambda)
    theirs = from_reference("gae", *arguments, discount, gae_lambda)
    assert_equal(ours[0], theirs[0])
    assert_equal(ours[1], theirs[1])


@pytest.mark.parametrize("discount", [0.99, 1.0])
def test_value_targets_without_lambda_are_discounted_returns(batch, discount):
    arguments = (batch.rewards, batch.next_values, batch.terminated, batch.truncated, discount)
    returns = from_reference("discounted_returns", *arguments)
    targets = gae(batch.rewards, batch.values, *arguments[1:4], discount, 1.0)[1]
    assert_equal(targets, returns)


@pytest.mark.parametrize(("ratio_clip", "trace_clip"), [(1.0, 1.0), (2.0, 1.0), (1.5, 0.5)])
def test_v_trace(batch, ratio_clip, trace_clip):
    behaviour, target = log_probability(batch, batch.behaviour), log_probability(batch, batch.target)
    arguments = (batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated)
    target, behaviour = target.reshape(batch.rewards.shape), behaviour.reshape(batch.rewards.shape)
    ours = v_trace(*arguments, target - behaviour, 0.99, ratio_clip, trace_clip)
    theirs = from_reference("v_trace", *arguments, target, behaviour, 0.99, ratio_clip, trace_clip)
    assert_equal(ours.targets, theirs[0])
    assert_equal(ours.advantages, theirs[1])


def test_standardized_advantages(batch):
    advantages = gae(batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated, 0.99, 0.95)[
        0
    ].flatten()
    assert_equal(ppo.standardized(advantages), from_reference("standardized", advantages))


# ---- distributions ---------------------------------------------------------------------------------------------------


def test_distributions(batch):
    distribution, p, q = batch.distribution, batch.current, batch.target
    if isinstance(distribution, DiagonalGaussian):
        size = distribution.size
        kind, p_parts, q_parts = "gaussian", (p[:, :size], p[:, size:]), (q[:, :size], q[:, size:])
        of_entropy = p_parts[1:]
    else:
        kind, p_parts, q_parts = "categorical", (p,), (q,)
        of_entropy = p_parts
    assert_equal(
        distribution.log_probability(p, batch.actions),
        from_reference(f"{kind}_log_probability", *p_parts, batch.actions),
    )
    assert_equal(distribution.entropy(p), from_reference(f"{kind}_entropy", *of_entropy))
    assert_equal(distribution.kl(p, q), from_reference(f"{kind}_kl", *p_parts, *q_parts))


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_clip", [None, 10.0, 0.5])
def test_ppo_loss(batch, value_clip):
    settings = ppo.PpoSettings(
        clip=0.2, value_coefficient=0.7, value_clip=value_clip, entropy_coefficient=0.01, kl_coefficient=0.4
    )
    distribution = batch.distribution
    returned = gae(batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated, 0.99, 0.95)
    advantages, targets = (part.flatten() for part in returned)
    values = batch.values.flatten() + 0.5
    behaviour = log_probability(batch, batch.behaviour)
    minibatch = {
        "observation": torch.arange(len(values)),
        "action": batch.actions,
        "advantage": advantages,
        "value_target": targets,
        "behaviour_log_probability": behaviour,
        "behaviour_parameters": batch.behaviour,
    }
    ours = ppo.loss(FixedNetwork(batch, batch.current, values), minibatch, settings)  # pyright: ignore[reportArgumentType]
    theirs = from_reference(
        "ppo_loss",
        log_probability(batch, batch.current),
        behaviour,
        advantages,
        values,
        targets,
        distribution.entropy(batch.current),
        distribution.kl(batch.behaviour, batch.current),
        clip=0.2,
        value_coefficient=0.7,
        value_clip=value_clip,
        entropy_coefficient=0.01,
        kl_coefficient=0.4,
    )
    assert_equal(ours.total, theirs)


@pytest.mark.parametrize("behaviour_clip", [2.0, 0.8, 1e6])
def test_impact_ratio_and_loss(batch, behaviour_clip):
    settings = impact.ImpactSettings(behaviour_clip=behaviour_clip)
    distribution = batch.distribution
    current, behaviour, target = (
        log_probability(batch, parameters) for parameters in (batch.current, batch.behaviour, batch.target)
    )
    ratios = impact.truncated_ratio(current, behaviour, target, behaviour_clip)
    assert_equal(ratios, from_reference("impact_ratio", current, behaviour, target, behaviour_clip))

    values, targets = batch.values.flatten(), batch.next_values.flatten()
    advantages = batch.rewards.flatten()
    minibatch = {
        "observation": torch.arange(len(values)),
        "action": batch.actions,
        "advantage": advantages,
        "value_target": targets,
        "behaviour_log_probability": behaviour,
        "target_log_probability": target,
        "target_parameters": batch.target,
    }
    ours = impact.loss(FixedNetwork(batch, batch.current, values), minibatch, settings)  # pyright: ignore[reportArgumentType]
    theirs = from_reference(
        "impact_loss",
        ratios,
        advantages,
        values,
        targets,
        distribution.entropy(batch.current),
        distribution.kl(batch.target, batch.current),
        clip=settings.clip,
        value_coefficient=settings.value_coefficient,
        entropy_coefficient=settings.entropy_coefficient,
        kl_coefficient=settings.kl_coefficient,
    )
    assert_equal(ours.total, theirs)


def test_impala_loss(batch):
    settings = impala.ImpalaSettings(value_coefficient=0.7, entropy_coefficient=0.03)
    values, targets, advantages = (column.flatten() for column in (batch.values, batch.next_values, batch.rewards))
    current, behaviour = (log_probability(batch, parameters) for parameters in (batch.current, batch.behaviour))
    minibatch = {
        "observation": torch.arange(len(values)),
        "action": batch.actions,
        "advantage": advantages,
        "value_target": targets,
        "behaviour_log_probability": behaviour,
        "behaviour_parameters": batch.behaviour,
        "ratio": (current - behaviour).exp(),
    }
    ours = impala.loss(FixedNetwork(batch, batch.current, values), minibatch, settings)  # pyright: ignore[reportArgumentType]
    entropies = batch.distribution.entropy(batch.current)
    theirs = from_reference(
        "impala_loss", current, advantages, values, targets, entropies,
        value_coefficient=0.7, entropy_coefficient=0.03,
    )  # fmt: skip
    assert_equal(ours.total, theirs)


@pytest.mark.parametrize("kl", [0.0, 0.0049, 0.0051, 0.01, 0.0199, 0.0201, 1.0])
def test_kl_coefficient_moves_both_ways(kl):
    ours = ppo.adapted_kl_coefficient(0.2, kl, 0.01)
    assert ours == pytest.approx(from_reference("adapted_kl_coefficient", 0.2, kl, 0.01))
