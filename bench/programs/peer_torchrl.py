"""TorchRL: prioritized replay in one process, trees in C++, batches as TensorDicts. Trees of 64-bit floats."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl._torchrl import SumSegmentTreeFp64
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

PACKAGES = ("torchrl", "tensordict", "torch", "numpy")


class Tree:
    """The tree, used as its prioritized sampler uses it, with NumPy arrays in and out."""

    dtype: Any = np.float64
    tree: Any = SumSegmentTreeFp64

    def __init__(self, leaves: int) -> None:
        self._tree, self._leaves = self.tree(leaves), leaves

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        self._tree[indices] = priorities

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        mass = np.random.uniform(0.0, self._tree.query(0, self._leaves), size=count).astype(self.dtype, copy=False)
        indices = self._tree.scan_lower_bound(mass)
        # Rounding may lead past the end: the sampler clips, too.
        indices = np.minimum(indices, self._leaves - 1)
        return indices, self._tree[indices]


class Buffer:
    """A prioritized buffer over tensors in memory."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6,
            beta=0.4,
            storage=LazyTensorStorage(capacity),
            batch_size=batch_size,
            priority_key="priority",
        )
        self._last: Any = None

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        columns: dict[str, Any] = {name: torch.from_numpy(array) for name, array in items.items()}
        columns["priority"] = torch.from_numpy(priorities.astype(np.float32))
        self._buffer.extend(TensorDict(columns, [len(priorities)]))

    def sample(self) -> Any:
        drawn = self._buffer.sample()
        self._last = drawn["index"]
        return drawn

    def update(self, priorities: np.ndarray) -> None:
        self._buffer.update_priority(self._last, torch.from_numpy(priorities.astype(np.float32)))
