"""Stable-Baselines3: replay in one process, drawn uniformly, with no priorities."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

PACKAGES = ("stable-baselines3", "numpy", "torch")


class Buffer:
    """The plain buffer, with as many environments as items are added at once; its batches are torch tensors."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        dtype, shape = columns["obs"]
        low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        action_dtype, action_shape = columns["action"]
        action = spaces.Discrete(18) if action_dtype == "int64" else spaces.Box(-1, 1, action_shape, np.float32)
        self._buffer = ReplayBuffer(
            capacity,
            spaces.Box(low, high, shape, np.dtype(dtype).type),
            action,
            device="cpu",
            n_envs=push_size,
            handle_timeout_termination=False,
        )
        self._batch_size = batch_size
        self._done = np.zeros(push_size, bool)
        self._infos: list[dict[str, Any]] = [{} for _ in range(push_size)]

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._buffer.add(items["obs"], items["next_obs"], items["action"], items["reward"], self._done, self._infos)

    def sample(self) -> Any:
        return self._buffer.sample(self._batch_size)
