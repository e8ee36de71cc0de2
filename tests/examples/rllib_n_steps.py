"""Returns over several steps and saved buffers in RLlib, for test_replaced_buffers.py to run:

python tests/examples/rllib_n_steps.py [URL]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import msgpack
import numpy as np
import tree
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

from replay_server import SchemaError
from replay_server.adapters.rllib import MOST_RUNNING, ReplayServerEpisodeReplayBuffer

CAPACITY, STEPS, GAMMA = 1_000, 120, 0.5  # with rewards of eighths, returns are exact
URL: dict[str, Any] = {"url": sys.argv[1]} if sys.argv[1:] else {}


def unchanged(env: gym.Env) -> gym.Env:
    """CartPole as it is."""
    return env


def parts_of_episodes(
    steps: int, ends: bool, changed: Callable[[gym.Env], gym.Env] = unchanged
) -> list[list[SingleAgentEpisode]]:
    """Two environments' episodes as RLlib's runners cut them: parts of up to 4 steps, some of them as arrays.

    Args:
        ends: whether the last ones end, by a time limit.
        changed: what they play, given CartPole.
    """
    parts: list[list[SingleAgentEpisode]] = [[] for _ in range(0, steps, 4)]
    for e, limit in enumerate((9, 30)):
        env, episode = changed(gym.make("CartPole-v1", max_episode_steps=limit)), None
        for t in range(steps):
            if episode is None:
                episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
                episode.add_env_reset(*env.reset(seed=1000 * e + t))
            action = (t // 2 + e) % 2
            obs, reward, terminated, truncated, info = env.step(action)
            truncated |= ends and t == steps - 1
            episode.add_env_step(obs, action, reward + t / 8, info, terminated=terminated, truncated=truncated)
            if episode.is_done or t % 4 == 3 or t == steps - 1:
                following = None if episode.is_done else episode.cut(len_lookback_buffer=e)
                parts[t // 4].append(episode.to_numpy() if e else episode)
                episode = following
    return parts


def numbers(*observations: Any) -> tuple[float, ...]:
    """Those of observations, in any form; rounded to what float32 tells apart."""
    return tuple(np.concatenate([np.ravel(part) for part in tree.flatten(observations)]).round(5).tolist())


def rows(episodes: list[SingleAgentEpisode]) -> set[tuple]:
    """The transitions of a batch."""
    return {
        (
            *numbers(episode.get_observations(0), episode.get_observations(1)),
            int(episode.get_actions(0)),
            float(episode.get_rewards(0)),
            bool(episode.is_terminated),
            bool(episode.is_truncated),
            int(episode.get_extra_model_outputs("n_step", 0)),
        )
        for episode in episodes
    }


def compare(n_step: int | tuple[int, int], ends: bool, changed: Callable[[gym.Env], gym.Env] = unchanged) -> int:
    """Fills the original and a replaced buffer, and saves and loads that one; how many transitions there were."""
    kinds = 2 * STEPS * (n_step[1] - n_step[0] if isinstance(n_step, tuple) else 1)
    draws = 25 * kinds  # one is missed with a chance of kinds · e^−25
    options = {**URL, "n_step": n_step, "table": f"{changed.__name__}-{n_step}-{ends}".replace(" ", "")}
    buffer, original = ReplayServerEpisodeReplayBuffer(CAPACITY, **options), PrioritizedEpisodeReplayBuffer(CAPACITY)
    parts = parts_of_episodes(STEPS, ends, changed)
    for part in parts:
        buffer.add(part)
        original.add(part)
    how = {"num_items": draws, "n_step": n_step, "gamma": GAMMA}
    expected, sampled = rows(original.sample(beta=0.4, **how)), rows(buffer.sample(**how))
    assert sampled == expected, (n_step, ends, len(sampled), len(expected), len(sampled & expected))
    assert buffer.get_added_timesteps() == original.get_added_timesteps() == 2 * STEPS
    assert buffer.get_sampled_timesteps() == draws

    # One transition with nearly all the priority is still that after loading.
    [favourite] = buffer.sample(1, n_step=n_step)
    buffer.update_priorities(np.array([1e9]))
    state = msgpack.unpackb(msgpack.packb(buffer.get_state()))
    again = ReplayServerEpisodeReplayBuffer(CAPACITY, **options)
    again.set_state(state)
    assert len(again) == len(buffer) > 0
    assert again.get_sampled_timesteps() == draws + 1
    drawn = again.sample(100, n_step=n_step)
    assert {numbers(episode.get_observations(0)) for episode in drawn} == {numbers(favourite.get_observations(0))}
    assert drawn[0].observation_space == favourite.observation_space
    assert drawn[0].observation_space.contains(drawn[0].get_observations(1))
    before = len(again)
    for part in parts_of_episodes(STEPS, ends, changed):
        again.add(part)
    assert len(again) == (2 * before)
    return len(expected)


def refuse() -> None:
    """States of other buffers, and another n_step, are errors that change nothing."""
    part = parts_of_episodes(20, True)[0]
    original = PrioritizedEpisodeReplayBuffer(CAPACITY)
    original.add(part)
    other = ReplayServerEpisodeReplayBuffer(CAPACITY, n_step=2, table="other")
    other.add(part)
    buffer = ReplayServerEpisodeReplayBuffer(CAPACITY, n_step=3, table="mine", **URL)
    buffer.add(part)
    size = len(buffer)
    single = ReplayServerEpisodeReplayBuffer(CAPACITY // 2, n_step=3, table="mine")
    single.add(part)
    calls = [
        (buffer.set_state, original.get_state(), "get_state"),
        (buffer.set_state, other.get_state(), "n_step=3"),
        (buffer.set_state, single.get_state(), "in a process" if URL else "capacity"),
        (lambda n: buffer.sample(2, n_step=n), 2, "n_step=3"),
        (lambda n: ReplayServerEpisodeReplayBuffer(n_step=n), (2, 2), "n_step"),
        (lambda n: ReplayServerEpisodeReplayBuffer(n_step=n), 0, "n_step"),
        (lambda yes: buffer.sample(2, n_step=3, include_infos=yes), True, "include_infos"),
    ]
    for call, argument, told in calls:
        said = "nothing"
        try:
            call(argument)
        except (ValueError, SchemaError) as error:
            said = str(error)
        assert told in said, (told, said)
    assert len(buffer) == size > 0


def unfinished(name: str, first: int, count: int) -> SingleAgentEpisode:
    """A part of an episode that goes on."""
    return SingleAgentEpisode(
        id_=name,
        observations=[np.full(4, first + t, np.float32) for t in range(count + 1)],
        actions=[0] * count,
        rewards=[1.0] * count,
        t_started=first,
        len_lookback_buffer=0,
    )


def lose_parts() -> None:
    """An episode goes on over its parts, unless one was lost or too many others began in between."""
    for others, first, expected in [(MOST_RUNNING - 1, 2, 4), (MOST_RUNNING, 2, 2), (0, 3, 2)]:
        buffer = ReplayServerEpisodeReplayBuffer(CAPACITY, n_step=3, table=f"parts-{others}-{first}", **URL)
        buffer.add(unfinished("watched", 0, 2))
        buffer.add([unfinished(str(number), 0, 2) for number in range(others)])
        assert len(buffer) == 0
        buffer.add(unfinished("watched", first, 4))
        assert len(buffer) == expected, (others, first, len(buffer))


def train() -> None:
    """DQN over 3 steps; a second algorithm goes on with the first one's buffer."""

    def algorithm() -> Any:
        kind = "replay_server.adapters.rllib.ReplayServerEpisodeReplayBuffer"
        return (
            DQNConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=0)
            .training(
                n_step=3,
                num_steps_sampled_before_learning_starts=50,
                replay_buffer_config={"type": kind, "capacity": CAPACITY, "table": "trained", **URL},
            )
            .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=100)
            .build_algo()
        )

    first, second = algorithm(), algorithm()
    first.train()
    buffer = first.local_replay_buffer
    assert {episode.get_extra_model_outputs("n_step", 0) for episode in buffer.sample(10, n_step=3)} == {3}
    second.local_replay_buffer.set_state(buffer.get_state())
    size = len(second.local_replay_buffer)
    assert size == len(buffer) > 50
    second.train()
    assert len(second.local_replay_buffer) > size
    first.stop()
    second.stop()


if __name__ == "__main__":
    counts = [compare(n_step, ends) for n_step, ends in [(1, False), (3, False), (3, True), ((2, 5), True)]]
    refuse()
    lose_parts()
    train()
    print(f"the same {min(counts)} transitions")
