"""CleanRL's replay buffer over a table of this project."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from replay_server import Column, Uniform

from .tables import made_table

AT_ONCE = 64
"""Steps that wait for a sample, at most."""


class Samples(NamedTuple):
    """What CleanRL's scripts expect of `sample`: tensors (batch, …)."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayServerBuffer:
    """A `cleanrl_utils.buffers.ReplayBuffer` over a `replay_server.Buffer`, or over a table of a server.

    Args:
        url: of a server; None: in this process.
        table: its table, created where it is not there.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        url: str | None = None,
        table: str = "cleanrl",
    ) -> None:
        self._device = device
        self._waiting: list[tuple] = []
        self._timeouts = handle_timeout_termination
        self._dtypes = {"observations": observation_space.dtype, "actions": action_space.dtype}
        self._dtypes |= {"next_observations": observation_space.dtype, "dones": "float32", "rewards": "float32"}
        self._shapes = {"observations": observation_space.shape, "actions": action_space.shape or (1,)}
        self._shapes |= {"next_observations": observation_space.shape, "dones": (1,), "rewards": (1,)}
        signature = {name: Column(dtype, self._shapes[name]) for name, dtype in self._dtypes.items()}
        self._table = made_table(url, table, buffer_size, signature, Uniform())

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Any,
    ) -> None:
        """Adds one transition of each of the environments: they wait here for the next sample, and go to it at once."""
        if self._timeouts and isinstance(infos, list):
            done = done * np.array([not info.get("TimeLimit.truncated", False) for info in infos])
        self._waiting.append((np.array(obs), action, np.array(next_obs), done, reward))
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Adds what waits."""
        if self._waiting:
            columns = zip(self._shapes, zip(*self._waiting, strict=True), strict=True)
            self._table.add(
                {
                    name: np.array(values, self._dtypes[name]).reshape(-1, *self._shapes[name])
                    for name, values in columns
                }
            )
            self._waiting.clear()

    def sample(self, batch_size: int) -> Samples:
        """Draws a batch, as tensors on the buffer's device."""
        self.flush()
        data = self._table.sample(batch_size).data
        return Samples(**{name: torch.as_tensor(array, device=self._device) for name, array in data.items()})
