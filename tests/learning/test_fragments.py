"""Fragments: what actors put into them, that seeds fix every bit, and that they pass through a table unchanged."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.actors.fragments import FragmentCollector, evaluate_policy  # noqa: E402
from replay_server.rl.fragments import (  # noqa: E402
    concatenated,
    final_slots,
    first_seen,
    fragment_signature,
    fragment_table,
    in_order,
    learning_rewards,
    merged_moments,
)
from replay_server.rl.moments import Moments  # noqa: E402
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_settings import PolicySettings  # noqa: E402
from replay_server.rl.policy_spec import PolicySpec, policy_spec  # noqa: E402


class Counting(gymnasium.Env):
    """Observes how many steps the episode has lasted; ends after `length` of them, by `ends`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (2,), np.float32)

    def __init__(self, length: int = 3, ends: str = "truncated") -> None:
        self.length, self.ends = length, ends
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.episode = 0, self.episode + 1
        return np.array([0.0, self.episode]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        done = self.count == self.length
        observation = np.array([float(self.count), self.episode])
        return observation, float(self.count), done and self.ends == "terminated", done and self.ends == "truncated", {}


gymnasium.register("Truncating-v0", Counting, max_episode_steps=3)
gymnasium.register("Terminating-v0", lambda: Counting(ends="terminated"))
gymnasium.register("EveryStep-v0", lambda: Counting(length=1))
gymnasium.register("Liar-v0", lambda: Counting(length=2), max_episode_steps=100)


def collected(env: str, calls: int = 1, environments: int = 2, **changes):
    settings = PolicySettings(**{"env": env, "steps": 8, "hidden": 8, "normalize_observations": False, **changes})
    spec = policy_spec(settings)
    network = make_policy_network(settings, spec)
    collector = FragmentCollector(settings, spec, environments, [settings.seed, 4], first_environment=10)
    try:
        return settings, spec, network, [collector.collect(network, version) for version in range(calls)]
    finally:
        collector.close()


def test_truncated_episodes_keep_their_true_final_observation():
    _, _, network, (rollout,) = collected("Truncating-v0")
    fragments = rollout.fragments
    assert fragments["observation"][0, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert fragments["observation"][0, :, 1].tolist() == [1, 1, 1, 2, 2, 2, 3, 3]
    assert fragments["truncated"][0].tolist() == [False, False, True, False, False, True, False, False]
    assert not fragments["terminated"].any()
    assert fragments["reward"][0].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert fragments["final_step"][0].tolist() == [2, 5, 7, -1]
    assert fragments["final_observation"][0, :3].tolist() == [[3, 1], [3, 2], [2, 3]]
    with torch.no_grad():
        _, values = network(torch.from_numpy(fragments["final_observation"][0, :3]))
    np.testing.assert_allclose(fragments["final_value"][0, :3], values.numpy(), rtol=1e-6, atol=1e-7)
    assert (rollout.scores, rollout.steps) == ([6.0] * 4, 16)


def test_no_step_is_lost_to_resets_and_episodes_go_on_from_one_fragment_to_the_next():
    _, _, _, rollouts = collected("Terminating-v0", calls=2)
    counts = np.concatenate([rollout.fragments["observation"][1, :, 0] for rollout in rollouts])
    assert counts.tolist() == [0, 1, 2] * 5 + [0]
    assert [rollout.fragments["sequence"].tolist() for rollout in rollouts] == [[0, 0], [1, 1]]
    assert [rollout.fragments["policy_version"].tolist() for rollout in rollouts] == [[0, 0], [1, 1]]
    assert rollouts[0].fragments["environment"].tolist() == [10, 11]


def test_an_environment_may_truncate_every_step():
    settings, spec, _, (rollout,) = collected("EveryStep-v0")
    assert final_slots(settings, spec) == 8
    assert rollout.fragments["truncated"].all()
    assert rollout.fragments["final_step"].tolist() == [list(range(8))] * 2
    assert (rollout.fragments["final_observation"][..., 0] == 1).all()


def test_an_environment_that_truncates_before_its_time_limit_is_refused():
    with pytest.raises(RuntimeError, match=r"expected at most 1 truncations .* register the environment"):
        collected("Liar-v0")


@pytest.mark.parametrize(
    ("limit", "steps", "slots"), [(1000, 256, 2), (1000, 2048, 4), (3, 8, 4), (1, 8, 8), (None, 8, 8), (256, 256, 2)]
)
def test_slots_for_final_observations_follow_from_the_time_limit(limit, steps, slots):
    spec = PolicySpec((2,), "float32", 2, max_episode_steps=limit)
    assert final_slots(PolicySettings(steps=steps), spec) == slots


def test_what_is_recorded_of_an_action_is_what_was_drawn_and_its_probability():
    _, _, network, (rollout,) = collected("Truncating-v0", initial_log_std=1.0)
    fragments = rollout.fragments
    assert np.abs(fragments["action"]).max() > 0.5, "the environment's bounds must not be in the record"
    actions = torch.from_numpy(fragments["action"])
    with torch.no_grad():
        parameters, values = network(torch.from_numpy(fragments["observation"]).flatten(0, 1))
    again = network.distribution.log_probability(parameters.reshape(2, 8, -1), actions)
    np.testing.assert_allclose(fragments["behaviour_log_probability"], again.numpy(), rtol=1e-5)
    np.testing.assert_allclose(fragments["behaviour_parameters"].reshape(16, -1), parameters.numpy(), rtol=1e-5)
    np.testing.assert_allclose(fragments["value"].ravel(), values.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5", "ALE/Qbert-v5"])
def test_the_same_seeds_and_weights_give_the_same_fragments_bit_by_bit(env):
    if env.startswith("Hopper"):
        pytest.importorskip("mujoco")
    runs = [collected(env, calls=2, steps=40, normalize_observations=True)[3] for _ in range(2)]
    for one, other in zip(*runs):
        assert one.scores == other.scores
        for name, column in one.fragments.items():
            np.testing.assert_array_equal(column, other.fragments[name], err_msg=name)
    reseeded = collected(env, steps=40, seed=9)[3][0]
    assert not np.array_equal(reseeded.fragments["action"], runs[0][0].fragments["action"])


def test_observations_are_recorded_as_the_network_saw_them():
    settings = PolicySettings(env="Truncating-v0", steps=6, hidden=8)
    spec = policy_spec(settings)
    network = make_policy_network(settings, spec)
    network.set_moments(Moments(100.0, np.array([1.0, 2.0]), np.array([400.0, 25.0])))
    collector = FragmentCollector(settings, spec, 2, [1])
    fragments = collector.collect(network, 7).fragments
    collector.close()
    # Standard deviations are 2 and ½.
    assert fragments["observation"][0, :3].tolist() == pytest.approx(np.array([[-0.5, -2], [0, -2], [0.5, -2]]))
    assert fragments["final_observation"][0, 0].tolist() == pytest.approx([1.0, -2.0])
    raw = np.array([[0, 1], [1, 1], [2, 1], [0, 2], [1, 2], [2, 2]] * 2)
    merged, whole = merged_moments(fragments), Moments.of(raw)
    assert merged.count == 12
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.squared_deviations, whole.squared_deviations, rtol=1e-12)
    assert network.moments.count == 100, "an actor does not change what it acts with"


def test_atari_fragments_hold_bytes_and_no_moments():
    _, _, _, (rollout,) = collected("ALE/Qbert-v5", steps=10, frame_stack=3)
    fragments = rollout.fragments
    assert fragments["observation"].shape == (2, 10, 3, 84, 84)
    assert fragments["observation"].dtype == np.uint8
    assert "observation_mean" not in fragments


def test_rewards_are_clipped_for_the_learner_alone_and_only_on_atari():
    settings = PolicySettings(env="ALE/Qbert-v5")
    fragments = {"reward": np.array([[25.0, -3.0, 0.5]], np.float32)}
    assert learning_rewards(fragments, settings).tolist() == [[1.0, -1.0, 0.5]]
    assert learning_rewards(fragments, dataclasses.replace(settings, reward_clip=None)).max() == 25.0
    assert learning_rewards(fragments, dataclasses.replace(settings, env="Hopper-v5")).max() == 25.0


def test_a_game_that_ends_is_restarted_and_the_others_go_on():
    _, _, _, rollouts = collected("ALE/Qbert-v5", steps=150, calls=3, environments=2, episodic_life=False)
    ends = np.concatenate([r.fragments["terminated"] | r.fragments["truncated"] for r in rollouts], axis=1)
    observations = np.concatenate([r.fragments["observation"] for r in rollouts], axis=1)
    assert ends.any(axis=1).all()
    assert (ends.any(axis=0) & ~ends.all(axis=0)).any(), "the games of this seed end together: nothing was shown"
    # The three newest frames of a stack are the three oldest of the next one, unless a game began.
    goes_on = (observations[:, 1:, :-1] == observations[:, :-1, 1:]).all(axis=(2, 3, 4))
    np.testing.assert_array_equal(goes_on, ~ends[:, :-1])


@pytest.mark.parametrize("env", ["CartPole-v1", "Truncating-v0"])
def test_fragments_pass_through_a_table_unchanged(env):
    settings, spec, _, (rollout,) = collected(env, environments=3, normalize_observations=True)
    assert list(rollout.fragments) == list(fragment_signature(settings, spec))
    buffer = rs.Buffer(fragment_table("ppo", settings, spec, 3))
    buffer.add(rollout.fragments, timeout=0)
    with pytest.raises(rs.Timeout):
        buffer.add(rollout.fragments, timeout=0)
    batch = buffer.sample(3, timeout=0)
    for name, column in rollout.fragments.items():
        np.testing.assert_array_equal(batch.data[name], column, err_msg=name)
        assert batch.data[name].dtype == column.dtype
    assert len(buffer) == 0


def test_fragments_of_several_actors_come_in_one_order():
    _, _, _, rollouts = collected("CartPole-v1", calls=2)
    both = concatenated([rollouts[1].fragments, rollouts[0].fragments])
    ordered = in_order({name: column[[1, 3, 0, 2]] for name, column in both.items()})
    assert ordered["sequence"].tolist() == [0, 0, 1, 1]
    assert ordered["environment"].tolist() == [10, 11, 10, 11]
    np.testing.assert_array_equal(ordered["observation"][0], rollouts[0].fragments["observation"][0])


def test_a_fragment_that_comes_twice_is_seen_once():
    _, _, _, rollouts = collected("CartPole-v1", calls=2)
    newest: dict[int, int] = {}
    first, second = (rollout.fragments for rollout in rollouts)
    assert len(first_seen(first, newest)["reward"]) == 2
    assert len(first_seen(first, newest)["reward"]) == 0
    assert len(first_seen(concatenated([second, second]), newest)["reward"]) == 2


def test_an_evaluation_plays_fresh_whole_games_and_repeats_by_its_seed():
    settings, spec, network, _ = collected("CartPole-v1")
    scores = evaluate_policy(network, settings, spec, 13, seed=1)
    assert len(scores) == 13
    assert scores == evaluate_policy(network, settings, spec, 13, seed=1)
    assert scores != evaluate_policy(network, settings, spec, 13, seed=2)
    settings, spec, network, _ = collected("Truncating-v0")
    assert evaluate_policy(network, settings, spec, 3, seed=1, greedy=True) == [6.0] * 3
