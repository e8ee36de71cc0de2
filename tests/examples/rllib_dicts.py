"""Dict and tuple observations in RLlib, for test_replaced_buffers.py to run:

python tests/examples/rllib_dicts.py [URL]
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.tune.registry import register_env
from rllib_n_steps import CAPACITY, URL, compare, parts_of_episodes

from replay_server import SchemaError
from replay_server.adapters.rllib import ReplayServerEpisodeReplayBuffer


class Parts(gym.ObservationWrapper):
    """CartPole's observation in parts: a dict with a tuple, a count of bytes, and a number without a dimension."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        count, angle = gym.spaces.Box(0, 255, (1,), np.uint8), gym.spaces.Box(-np.inf, np.inf, (), np.float32)
        self.observation_space = gym.spaces.Dict({"both": gym.spaces.Tuple((box, box)), "count": count, "angle": angle})
        self._count = 0

    def observation(self, observation: np.ndarray) -> dict[str, Any]:
        self._count = (self._count + 1) % 256
        both = observation[:2], observation[2:]
        return {"both": both, "count": np.array([self._count], np.uint8), "angle": np.array(observation[2])}


class Pair(gym.ObservationWrapper):
    """CartPole's observation as a tuple of two."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = gym.spaces.Tuple((box, box))

    def observation(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return observation[:2], observation[2:]


class FlatCatalog(DQNCatalog):
    """Makes networks for all parts of an observation as one vector."""

    def __init__(self, observation_space: gym.Space, *arguments: Any, **options: Any) -> None:
        super().__init__(gym.spaces.flatten_space(observation_space), *arguments, **options)


class FlatModule(DefaultDQNTorchRLModule):
    """RLlib's module for DQN, whose networks see all parts of an observation as one vector."""

    def _qf_forward_helper(self, batch: dict[str, Any], encoder: Any, head: Any) -> dict[str, Any]:
        parts = [part.float().reshape(len(part), -1) for part in tree.flatten(batch[Columns.OBS])]
        return super()._qf_forward_helper({**batch, Columns.OBS: torch.cat(parts, 1)}, encoder, head)


def train() -> None:
    """DQN on observations of parts; a second algorithm goes on with the first one's buffer."""
    register_env("parts", lambda _: Parts(gym.make("CartPole-v1")))

    def algorithm() -> Any:
        kind = "replay_server.adapters.rllib.ReplayServerEpisodeReplayBuffer"
        return (
            DQNConfig()
            .environment("parts")
            .env_runners(num_env_runners=0)
            .rl_module(rl_module_spec=RLModuleSpec(module_class=FlatModule, catalog_class=FlatCatalog))
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
    for episode in buffer.sample(50, n_step=3):
        assert episode.observation_space == first.env_runner.env.unwrapped.single_observation_space
        for at in (0, 1):
            seen = episode.get_observations(at)
            assert episode.observation_space.contains(seen), seen
            assert seen["angle"] == seen["both"][1][0], "parts of one observation stay together"
        assert episode.get_observations(1)["count"] == episode.get_observations(0)["count"] + np.uint8(3)
    second.local_replay_buffer.set_state(buffer.get_state())
    size = len(second.local_replay_buffer)
    assert size == len(buffer) > 50
    second.train()
    assert len(second.local_replay_buffer) > size
    first.stop()
    second.stop()


def refuse() -> None:
    """Observations that are no columns, and those of another form than the first, are errors that add nothing."""

    def episode(observation: Any) -> SingleAgentEpisode:
        return SingleAgentEpisode(observations=[observation] * 2, actions=[0], rewards=[1.0], len_lookback_buffer=0)

    buffer = ReplayServerEpisodeReplayBuffer(CAPACITY, table="refused", **URL)
    number = np.zeros(1, np.float32)
    for observation, told in [({"a/b": number}, "slash"), ({"0": number}, "places of a tuple"), ({}, "empty")]:
        assert told in refusal(buffer, episode(observation)), observation
    assert len(buffer) == 0
    buffer.add(parts_of_episodes(20, True, Parts)[0])
    size, added = len(buffer), buffer.get_added_timesteps()
    for observation, told in [({"count": number}, "obs/both/0"), (number, "obs")]:
        assert told in refusal(buffer, episode(observation)), observation
    assert (len(buffer), buffer.get_added_timesteps()) == (size, added)
    assert size > 0


def refusal(buffer: ReplayServerEpisodeReplayBuffer, episode: SingleAgentEpisode) -> str:
    try:
        buffer.add(episode)
    except SchemaError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    counts = [compare(n_step, True, kind) for n_step, kind in [(1, Parts), (3, Parts), ((2, 5), Parts), (3, Pair)]]
    refuse()
    train()
    print(f"the same {min(counts)} transitions")
