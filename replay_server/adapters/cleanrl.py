"""CleanRL's replay buffer over a table of this project.

It can be pickled, as CleanRL's own can. Of a buffer in this process the pickle holds its settings and the bytes of a
snapshot (docs/snapshot.md): no transition is pickled. Of a buffer on a server it holds the URL and the table's name:
the transitions stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from replay_server import Column, Uniform
from replay_server.extras import needed_by
from replay_server.tree import Leaves, leaves_of, mapped

from .tables import made_table, refuse_password, restore, snapshot_of

with needed_by(__name__):
    import gymnasium as gym
    import torch

AT_ONCE = 64
"""Steps that wait for a sample, at most."""


class Samples(NamedTuple):
    """What CleanRL's scripts expect of `sample`: tensors (batch, …). Observations that are dicts or tuples have tensors
    in them."""

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayServerBuffer:
    """A `cleanrl_utils.buffers.ReplayBuffer` over a `replay_server.Buffer`, or over a table of a server.

    Observations may also be dicts and tuples, nested to any depth.

    Args:
        device: of the tensors; "auto": CUDA where there is one. A buffer that was loaded has "auto".
        handle_timeout_termination: an episode that was cut off by a time limit bootstraps from its last observation.
        url: of a server; None: in this process.
        table: its table, created where it is not there.

    Raises:
        ValueError: there are no columns for the observation space, such as of text, or for the action space, such as a
            dict or a tuple.
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
        self._waiting: list[dict[str, Any]] = []
        if action_space.shape is None or action_space.dtype is None:
            raise ValueError(
                f"expected actions of one array, got {action_space}; flatten them in a gymnasium.ActionWrapper"
            )
        dtype = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        self._columns = {
            "observations": _columns(observation_space),
            "actions": Column(dtype, (int(np.prod(action_space.shape)),)),
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
        """Adds one transition of each of the environments: they wait here for the next sample, and go to it at once.

        Dimensions of size 1 may be missing.

        Args:
            obs, next_obs: (n_envs, *shape of the observation space), or a dict or tuple of such arrays.
            action: (n_envs, *shape of the action space), or flattened to (n_envs, numbers of an action).
            reward, done: (n_envs,).
            infos: a list of n_envs dicts. A dict, as Gymnasium's vector environments give, is not looked at.

        Raises:
            ValueError: an argument has another shape, or has values that its column cannot hold. Nothing is added.
        """
        n_envs, columns = self._settings["n_envs"], self._columns
        step = {
            "observations": _rows("obs", obs, columns["observations"], n_envs),
            "actions": _rows("action", action, columns["actions"], n_envs, self._settings["action_space"].shape),
            "next_observations": _rows("next_obs", next_obs, columns["next_observations"], n_envs),
            "dones": _rows("done", done, columns["dones"], n_envs),
            "rewards": _rows("reward", reward, columns["rewards"], n_envs),
        }
        if self._settings["handle_timeout_termination"] and isinstance(infos, list):
            if len(infos) != n_envs:
                raise ValueError(f"infos: expected {n_envs}, one of each environment, got {len(infos)}")
            step["dones"][:, 0] *= [not info.get("TimeLimit.truncated", False) for info in infos]
        self._waiting.append(leaves_of(step))
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Adds what waits."""
        if self._waiting:
            paths = self._waiting[0]
            self._table.add(Leaves({path: np.concatenate([step[path] for step in self._waiting]) for path in paths}))
            self._waiting.clear()

    def sample(self, batch_size: int) -> Samples:
        """Draws a batch, as tensors on the buffer's device.

        Raises:
            Timeout: the buffer is empty. On a server it waits instead until somebody adds.
        """
        self.flush()
        timeout = 0 if self._settings["url"] is None else None  # in this process nobody else will add what is missing
        data = self._table.sample(batch_size, timeout=timeout).data
        return Samples(**mapped(data, lambda array: torch.as_tensor(array, device=self._device)))

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
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_columns(part) for part in space.spaces)
    if space.shape is None or space.dtype is None:
        raise ValueError(f"expected a space of arrays, or a dict or tuple of such spaces, got {space}")
    # CleanRL has a discrete observation as an array of one number.
    return Column(space.dtype, (1,) if isinstance(space, gym.spaces.Discrete) else space.shape)


def _rows(name: str, value: Any, column: Any, n_envs: int, *other_shapes: tuple[int, ...]) -> Any:
    """An argument of `add` as rows of a column, copied, or of each column of a dict or tuple. ValueError: it is not
    of the column's shape, nor of one of the others, or the column would change its values."""
    if isinstance(column, dict):
        missing = [key for key in column if key not in value] if isinstance(value, Mapping) else [*column]
        if missing:
            raise ValueError(
                f"{name}: expected a dict with the keys {[*column]}, got a {type(value).__name__} without {missing}"
            )
        return {key: _rows(f"{name}[{key!r}]", value[key], part, n_envs) for key, part in column.items()}
    if isinstance(column, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(column):
            got = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            raise ValueError(f"{name}: expected a tuple of {len(column)}, got a {type(value).__name__}{got}")
        return tuple(_rows(f"{name}[{at}]", value[at], part, n_envs) for at, part in enumerate(column))
    shape = (n_envs, *column.shape)
    try:
        given = np.array(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array of shape {shape}, got what cannot become one: {error}") from error
    shapes = [shape, *((n_envs, *other) for other in other_shapes)]
    if _long_sides(given.shape) not in map(_long_sides, shapes):
        raise ValueError(f"{name}: expected shape {shape}, got {given.shape}")
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected numbers that {column.dtype} holds, got {given.dtype}")
    given = given.reshape(shape)
    with np.errstate(invalid="ignore"):
        rows = given.astype(column.numpy_dtype, copy=False)
    if rows.dtype.kind in "biu" and not np.array_equal(rows, given):
        raise ValueError(f"{name}: expected numbers that {column.dtype} holds, got others, of {given.dtype}")
    return rows


def _long_sides(shape: tuple[int, ...]) -> list[int]:
    return [side for side in shape if side != 1]
