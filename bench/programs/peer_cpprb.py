"""cpprb: prioritized replay in one process, in C++ behind Cython. Its tree has no call of its own from Python."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import cpprb
import numpy as np

PACKAGES = ("cpprb", "numpy")


class Tree:
    """A prioritized buffer of one-byte items: the nearest there is to the tree alone. A sample computes weights too."""

    dtype = np.float64

    def __init__(self, leaves: int) -> None:
        self._buffer = cpprb.PrioritizedReplayBuffer(leaves, {"a": {"dtype": np.uint8}}, alpha=1.0)
        for begin in range(0, leaves, 100_000):
            count = min(100_000, leaves - begin)
            self._buffer.add(a=np.zeros(count, np.uint8), priorities=np.ones(count))

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(indices, priorities)

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = self._buffer.sample(count, beta=0.4)
        return drawn["indexes"], drawn["weights"]


class Buffer:
    """A prioritized buffer."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        environment = {
            name: {"dtype": np.dtype(dtype), "shape": shape or 1} for name, (dtype, shape) in columns.items()
        }
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, environment, alpha=0.6)
        self._batch_size = batch_size
        self.last: Any = None

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._buffer.add(**items, priorities=priorities)

    def sample(self) -> dict[str, np.ndarray]:
        drawn = self._buffer.sample(self._batch_size, beta=0.4)
        self.last = drawn["indexes"]
        return drawn

    def update(self, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(self.last, priorities)
