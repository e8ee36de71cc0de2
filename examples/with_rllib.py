# /// script
# requires-python = ">=3.10"
# dependencies = ["replay-server", "ray[rllib]==2.60.0", "torch", "gymnasium==1.2.2"]
# ///
"""RLlib's DQN with its prioritized replay buffer replaced: in this process, or on a server.

    python examples/with_rllib.py                                      # CartPole
    python examples/with_rllib.py --buffer original                    # RLlib's own PrioritizedEpisodeReplayBuffer
    python examples/with_rllib.py --buffer redis://127.0.0.1:6379      # a server's

What an own program takes over is `ReplayServerEpisodeReplayBuffer`, named by its module and class in RLlib's
`replay_buffer_config` (the new API stack; n_step = 1, one agent, no recurrent modules).
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from timing import Clock

import replay_server as rs

CLOCK = Clock()


class ReplayServerEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer):
    """RLlib's `PrioritizedEpisodeReplayBuffer` over an `rs.Buffer`, or over a table of a server.

    Episodes are taken apart into transitions when they come, and what is sampled is put into episodes of one step.

    Args:
        capacity: transitions.
        alpha, beta: the priority exponent, and the importance-sampling exponent where `sample` is given none.
        url: of a server; None: in this process.
        table: its table, made with the first episode, whose observations it has the shape of.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        alpha: float = 1.0,
        beta: float = 0.4,
        url: str | None = None,
        table: str = "rllib",
        **options: Any,
    ) -> None:
        super().__init__(1, alpha=alpha, **options)  # the original, which stays empty
        self.capacity = capacity
        self._exponents = alpha, beta
        self._url, self._table = url, table
        self._spaces: tuple[Any, Any] | None = None
        self._sampled = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return self.get_num_timesteps()

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Transitions in the buffer."""
        return self._info()["size"] if self._spaces else 0

    def _begin(self, episode: SingleAgentEpisode) -> None:
        """Makes the table for episodes like this one."""
        observation, action = episode.get_observations(0), episode.get_actions(0)
        signature = {
            "obs": rs.Column(np.asarray(observation).dtype, np.shape(observation)),
            "action": rs.Column(np.asarray(action).dtype, np.shape(action)),
            "reward": rs.Column("float32"),
            "next_obs": rs.Column(np.asarray(observation).dtype, np.shape(observation)),
            "terminated": rs.Column("bool"),
            "truncated": rs.Column("bool"),
        }
        # In this process the draws follow from NumPy's seed; a server's table has its own.
        seed = int(np.random.randint(1, 2**31)) if self._url is None else 0
        sampler = rs.Prioritized(self._exponents[0], stratified=False)
        made = rs.Table(self._table, self.capacity, signature, sampler=sampler, seed=seed)
        if self._url is None:
            buffer = rs.Buffer(made)
            self._add, self._sample = buffer.add, buffer.sample
            self._update, self._info = buffer.update_priorities, buffer.info
        else:
            client = rs.Client(self._url)
            client.create_table(made)
            self._add = functools.partial(client.add, self._table)
            self._sample = functools.partial(client.sample, self._table)
            self._update = functools.partial(client.update_priorities, self._table)
            self._info = functools.partial(client.info, self._table)
        self._spaces = episode.observation_space, episode.action_space

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Adds the transitions of episodes, or of parts of them; without a weight each gets the largest there is."""
        for episode in episodes if isinstance(episodes, list) else [episodes]:
            steps = len(episode)
            if steps == 0:
                continue
            if self._spaces is None:
                self._begin(episode)
            observations = np.asarray(episode.get_observations(slice(0, steps + 1)))
            ends = np.zeros((2, steps), bool)
            ends[:, -1] = episode.is_terminated, episode.is_truncated
            data = {
                "obs": observations[:-1],
                "action": np.asarray(episode.get_actions(slice(0, steps))),
                "reward": np.asarray(episode.get_rewards(slice(0, steps)), np.float32),
                "next_obs": observations[1:],
                "terminated": ends[0],
                "truncated": ends[1],
            }
            self._add(data, None if weight is None else np.full(steps, weight, np.float64))

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = None,
        **options: Any,
    ) -> list[SingleAgentEpisode]:
        """Draws transitions, each as an episode of one step with its importance-sampling weight."""
        if n_step not in (None, 1) or options.get("batch_length_T"):
            raise ValueError(f"expected single steps, got n_step={n_step} and batch_length_T={options}")
        if self._spaces is None:
            raise ValueError("nothing was added yet: there is nothing to sample")
        observation_space, action_space = self._spaces
        batch = self._sample(num_items or batch_size_B or 1, self._exponents[1] if beta is None else beta)
        self._sampled = batch.ids
        names = ("obs", "next_obs", "action", "reward", "terminated", "truncated")
        rows = zip(*(batch.data[name] for name in names), batch.weights, strict=True)
        return [
            SingleAgentEpisode(
                observations=[obs, next_obs],
                observation_space=observation_space,
                actions=[action],
                action_space=action_space,
                rewards=[reward],
                terminated=bool(terminated),
                truncated=bool(truncated),
                extra_model_outputs={"weights": [weight], "n_step": [1]},
                len_lookback_buffer=0,
            )
            for obs, next_obs, action, reward, terminated, truncated, weight in rows
        ]

    def update_priorities(self, priorities: np.ndarray, module_id: Any = None) -> None:
        """Takes the errors of what was sampled last."""
        self._update(self._sampled, np.abs(np.asarray(priorities, np.float64)) + 1e-6)

    def get_state(self) -> dict[str, Any]:
        """Nothing: a server's tables are saved there."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing, as `get_state`."""


TIMED = ("add", "sample", "update_priorities")
TimedReplayServerEpisodeReplayBuffer = CLOCK.timed(ReplayServerEpisodeReplayBuffer, *TIMED)
TimedOriginalEpisodeReplayBuffer = CLOCK.timed(PrioritizedEpisodeReplayBuffer, *TIMED)


def train(buffer: str, seed: int, steps: int) -> None:
    """Trains double DQN on CartPole; everything but the buffer is RLlib's."""
    import with_rllib  # RLlib imports the buffer by its name: not as __main__, whose clock is another

    np.random.seed(seed)
    kind = "TimedOriginalEpisodeReplayBuffer" if buffer == "original" else "TimedReplayServerEpisodeReplayBuffer"
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=8)
        .debugging(seed=seed)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[128, 128], fcnet_activation="relu"))
        .training(
            lr=1e-3,
            train_batch_size_per_learner=64,
            n_step=1,
            target_network_update_freq=400,
            num_steps_sampled_before_learning_starts=min(1_000, steps // 2),
            epsilon=[(0, 1.0), (8_000, 0.05)],
            replay_buffer_config={
                "type": f"with_rllib.{kind}",
                "capacity": 50_000,
                "alpha": 0.6,
                "beta": 0.4,
                **({"url": buffer} if "://" in buffer else {}),
            },
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=min(1_000, steps))
    )
    algorithm = config.build_algo()
    best, result = -np.inf, {}
    while result.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0) < steps:
        result = algorithm.train()[ENV_RUNNER_RESULTS]
        score = float(result.get(EPISODE_RETURN_MEAN, np.nan))
        print(f"step {result[NUM_ENV_STEPS_SAMPLED_LIFETIME]} score {score:.1f}", flush=True)
        best = max(best, score)
    print(f"{buffer}, seed {seed}, {steps} steps: {with_rllib.CLOCK}")
    print(f"reached {best:.1f} on CartPole-v1")
    algorithm.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
