"""RLlib's prioritized replay buffer over a table of this project (the new API stack)."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

from replay_server import Column, Prioritized

from .tables import made_table


class ReplayServerEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer):
    """RLlib's `PrioritizedEpisodeReplayBuffer` over a `replay_server.Buffer`, or over a table of a server.

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
        self._url, self._name = url, table
        self._spaces: tuple[Any, Any] | None = None
        self._sampled = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return self.get_num_timesteps()

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Transitions in the buffer."""
        return self._table.info()["size"] if self._spaces else 0

    def _begin(self, episode: SingleAgentEpisode) -> None:
        """Makes the table for episodes like this one."""
        observation, action = episode.get_observations(0), episode.get_actions(0)
        signature = {
            "obs": Column(np.asarray(observation).dtype, np.shape(observation)),
            "action": Column(np.asarray(action).dtype, np.shape(action)),
            "reward": Column("float32"),
            "next_obs": Column(np.asarray(observation).dtype, np.shape(observation)),
            "terminated": Column("bool"),
            "truncated": Column("bool"),
        }
        sampler = Prioritized(self._exponents[0], stratified=False)
        self._table = made_table(self._url, self._name, self.capacity, signature, sampler)
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
            self._table.add(data, None if weight is None else np.full(steps, weight, np.float64))

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
        batch = self._table.sample(num_items or batch_size_B or 1, self._exponents[1] if beta is None else beta)
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
        self._table.update_priorities(self._sampled, np.abs(np.asarray(priorities, np.float64)) + 1e-6)

    def get_state(self) -> dict[str, Any]:
        """Nothing: a server's tables are saved there."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing, as `get_state`."""
