"""Policy networks: shapes, sizes, sampling, and a normalisation that is the same wherever the weights are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.rl.distributions import Categorical, DiagonalGaussian  # noqa: E402
from replay_server.rl.moments import Moments  # noqa: E402
from replay_server.rl.policy_networks import ActorCritic, make_policy_network  # noqa: E402
from replay_server.rl.policy_settings import PolicySettings  # noqa: E402
from replay_server.rl.policy_spec import PolicySpec, policy_spec  # noqa: E402
from replay_server.rl.weights import load_arrays, module_arrays  # noqa: E402

HOPPER = PolicySpec((11,), "float32", 0, (-1.0,) * 3, (1.0,) * 3, max_episode_steps=1000)
QBERT = PolicySpec((4, 84, 84), "uint8", 6, frames_per_step=4)


def count(parameters) -> int:
    return sum(parameter.numel() for parameter in parameters)


def test_vectors_pass_two_layers_of_256_and_the_critic_is_another_network():
    network = make_policy_network(PolicySettings(), HOPPER)
    trunk = (11 * 256 + 256) + (256 * 256 + 256)
    assert count(network.policy_parameters()) == trunk + 256 * 3 + 3 + 3
    assert count(network.parameters()) == 2 * trunk + 256 * 3 + 3 + 3 + 256 + 1
    parameters, values = network(torch.zeros(5, 11))
    assert (parameters.shape, values.shape) == ((5, 6), (5,))


@pytest.mark.parametrize("share", [True, False])
def test_images_pass_the_three_convolutions(share):
    network = make_policy_network(PolicySettings(share_convolutions=share), QBERT)
    convolutions = (4 * 8 * 8 * 16 + 16) + (16 * 4 * 4 * 32 + 32) + (32 * 11 * 11 * 256 + 256)
    assert count(network.policy_parameters()) == convolutions + 256 * 6 + 6
    assert count(network.parameters()) == convolutions * (1 if share else 2) + 256 * 6 + 6 + 256 + 1
    images = torch.randint(0, 255, (2, 4, 84, 84), dtype=torch.uint8)
    parameters, values = network(images)
    assert (parameters.shape, values.shape) == ((2, 6), (2,))
    assert torch.equal(parameters, network(images)[0]), "the input must stay as it was"


def test_the_first_policy_is_nearly_the_same_in_every_state():
    parameters, _ = make_policy_network(PolicySettings(), HOPPER)(10 * torch.randn(100, 11))
    assert parameters[:, :3].abs().max() < 0.2
    assert parameters[:, 3:].abs().max() == 0.0


def test_the_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one, other = (make_policy_network(PolicySettings(seed=4), HOPPER) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.policy_head.weight, other.policy_head.weight)
    assert not torch.equal(one.policy_head.weight, make_policy_network(PolicySettings(), HOPPER).policy_head.weight)


def test_observations_are_normalised_and_clipped_and_pass_as_they_are_while_there_are_no_moments():
    network = make_policy_network(PolicySettings(), dataclasses.replace(HOPPER, observation_shape=(2,)))
    observations = np.array([[1.0, -5.0], [1e6, 0.0]], np.float32)
    assert network.normalize(observations).tolist() == [[1.0, -5.0], [10.0, 0.0]]
    network.set_moments(Moments(4.0, np.array([3.0, -5.0]), np.array([16.0, 0.0])))
    assert network.normalize(observations)[0].tolist() == pytest.approx([-1.0, 0.0])
    assert np.isfinite(network.normalize(observations)).all()


def test_moments_travel_with_the_weights_bit_by_bit():
    settings = PolicySettings(hidden=8)
    learner, actor = (make_policy_network(dataclasses.replace(settings, seed=seed), HOPPER) for seed in (1, 2))
    observations = np.random.default_rng(3).normal(5.0, 3.0, (500, 11)).astype(np.float32)
    learner.set_moments(Moments.of(observations))
    with rs.Server([]) as server, rs.Client(server.url) as client:
        client.publish_weights("policy", module_arrays(learner))
        fetched = client.fetch_weights("policy")
    assert fetched is not None
    load_arrays(actor, fetched[1])
    np.testing.assert_array_equal(actor.normalize(observations), learner.normalize(observations))
    for one, other in zip(actor(torch.from_numpy(observations)), learner(torch.from_numpy(observations))):
        assert torch.equal(one, other)


@pytest.mark.parametrize("normalize", [True, False])
def test_only_normalised_vectors_have_moments(normalize):
    vectors = ActorCritic(PolicySettings(hidden=8, normalize_observations=normalize), HOPPER)
    images = ActorCritic(PolicySettings(normalize_observations=normalize), QBERT)
    assert (vectors.normalizes, images.normalizes) == (normalize, False)
    with pytest.raises(ValueError, match="it has no moments"):
        _ = images.moments


def test_samples_follow_the_distribution_and_the_generator():
    gaussian, categorical = DiagonalGaussian(2), Categorical(3)
    parameters = torch.tensor([[1.0, -2.0, 0.0, -1.0]]).expand(40_000, 4)
    drawn = gaussian.sample(parameters, torch.Generator().manual_seed(1))
    assert drawn.mean(dim=0).tolist() == pytest.approx([1.0, -2.0], abs=0.02)
    assert drawn.std(dim=0).tolist() == pytest.approx([1.0, 0.3679], abs=0.02)
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(40_000, 3)
    chosen = categorical.sample(logits, torch.Generator().manual_seed(1))
    assert (torch.bincount(chosen) / 40_000).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.02)
    assert torch.equal(chosen, categorical.sample(logits, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_mujoco_environments_are_continuous_and_bounded(version):
    pytest.importorskip("mujoco")
    humanoid = policy_spec(PolicySettings(env=f"Humanoid-{version}"))
    assert humanoid.observation_shape == ({"v4": 376, "v5": 348}[version],)
    assert (humanoid.action_size, humanoid.max_episode_steps, humanoid.is_discrete) == (17, 1000, False)
    bounded = humanoid.bounded(np.array([[9.0, -9.0] + [0.1] * 15], np.float32))
    assert bounded[0, :3].tolist() == pytest.approx([0.4, -0.4, 0.1])


def test_an_environment_that_no_policy_here_can_play_is_refused():
    with pytest.raises(ValueError, match=r"Blackjack-v1: expected ALE/\* or an environment with vector observations"):
        policy_spec(PolicySettings(env="Blackjack-v1"))
