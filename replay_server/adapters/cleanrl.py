"""CleanRL's replay buffer over a table of this project.

It can be pickled, as CleanRL's own can. Of a buffer in this process the pickle holds its settings and the bytes of a
snapshot (docs/snapshot.md): no transition is pickled. Of a buffer on a server it holds the URL and the table's name:
the transitions stay where they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from replay_server import Column, Uniform

from .tables import made_table, refuse_password, restore, snapshot_of

AT_ONCE = 64
"""Steps that wait for a sample, at most."""


class Samples(NamedTuple):
    """What CleanRL's scripts expect of `sample`: tensors (batch, …), of dict observations a dict of them."""

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayServerBuffer:
    """A `cleanrl_utils.buffers.ReplayBuffer` over a `replay_server.Buffer`, or over a table of a server.

    Observations may also be dicts, nested to any depth.

    Args:
        device: of the tensors; "auto": CUDA where there is one. A buffer that was loaded has "auto".
        handle_timeout_termination: an episode that was cut off by a time limit bootstraps from its last observation.
        url: of a server; None: in this process.
        table: its table, created where it is not there.

    Raises:
        ValueError: there are no columns for the observation space, such as of text.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        url: str | None = None,
        table: str = "cleanrl",
    ) -> None:
        self._settings = {
            "buffer_size": buffer_size,
            "observation_space": observation_space,
            "action_space": action_space,
            "n_envs": n_envs,
            "handle_timeout_termination": handle_timeout_termination,
            "url": url,
            "table": table,
        }
        self._device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._waiting: list[tuple] = []
        dtype = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        self._columns = {
            "observations": _columns(observation_space),
            "actions": Column(dtype, (int(np.prod(action_space.shape or ())),)),
            "next_observations": _columns(observation_space),
            "dones": Column("float32", (1,)),
            "rewards": Column("float32", (1,)),
        }
        self._table = made_table(url, table, buffer_size, self._columns, Uniform())

    def __getstate__(self) -> dict[str, Any]:
        refuse_password(self._settings["url"])
        self.flush()
        state = {"settings": self._settings}
        return state if self._settings["url"] is not None else {**state, "snapshot": snapshot_of(self._table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["settings"])
        if "snapshot" in state:
            restore(self._table, state["snapshot"])

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Any,
    ) -> None:
        """Adds one transition of each of the environments: they wait here for the next sample, and go to it at once."""
        if self._settings["handle_timeout_termination"] and isinstance(infos, list):
            done = done * np.array([not info.get("TimeLimit.truncated", False) for info in infos])
        self._waiting.append(tuple(_copy(value) for value in (obs, action, next_obs, done, reward)))
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Adds what waits."""
        if self._waiting:
            values = zip(self._columns.items(), zip(*self._waiting, strict=True), strict=True)
            self._table.add({name: _rows(column, steps) for (name, column), steps in values})
            self._waiting.clear()

    def sample(self, batch_size: int) -> Samples:
        """Draws a batch, as tensors on the buffer's device.

        Raises:
            Timeout: the buffer is empty. On a server it waits instead until somebody adds.
        """
        self.flush()
        timeout = 0 if self._settings["url"] is None else None  # in this process nobody else will add what is missing
        data = self._table.sample(batch_size, timeout=timeout).data
        return Samples(**{name: self._tensors(data[name]) for name in self._columns})

    def _tensors(self, arrays: Any) -> Any:
        if isinstance(arrays, dict):
            return {key: self._tensors(array) for key, array in arrays.items()}
        return torch.as_tensor(arrays, device=self._device)

    def size(self) -> int:
        """Transitions in the buffer."""
        self.flush()
        return self._table.info()["size"]

    def reset(self) -> None:
        """Removes all transitions."""
        self._waiting.clear()
        self._table.reset()


def _columns(space: gym.Space) -> Any:
    """The column of an observation, or of each of its parts."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _columns(part) for key, part in space.spaces.items()}
    if space.shape is None or space.dtype is None:
        raise ValueError(f"expected a space of arrays, or a dict of such spaces, got {space}")
    # CleanRL has a discrete observation as an array of one number.
    return Column(space.dtype, (1,) if isinstance(space, gym.spaces.Discrete) else space.shape)


def _copy(value: Any) -> Any:
    return {key: _copy(part) for key, part in value.items()} if isinstance(value, dict) else np.array(value)


def _rows(column: Any, steps: Any) -> Any:
    """Steps of several environments as the rows of a column, or of each column of a dict."""
    if isinstance(column, dict):
        return {key: _rows(part, [step[key] for step in steps]) for key, part in column.items()}
    return np.array(steps, column.dtype).reshape(-1, *column.shape)
