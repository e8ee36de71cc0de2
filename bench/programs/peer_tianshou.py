"""tianshou: prioritized replay in one process, a segment tree compiled by numba."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedVectorReplayBuffer
from tianshou.data.utils.segtree import SegmentTree

PACKAGES = ("tianshou", "numpy", "numba", "torch")


class Tree:
    """The segment tree, used as its prioritized buffer uses it."""

    dtype = np.float64

    def __init__(self, leaves: int) -> None:
        self._tree = SegmentTree(leaves)

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        self._tree[indices] = priorities

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        indices: Any = self._tree.get_prefix_sum_idx(np.random.rand(count) * self._tree.reduce())
        return indices, self._tree[indices]


class Buffer:
    """A prioritized buffer with as many parts as items are added at once: the way to add many in one call.

    New items get the largest priority: it cannot be given with them.
    """

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        self._buffer = PrioritizedVectorReplayBuffer(capacity, push_size, alpha=0.6, beta=0.4)
        self._batch_size = batch_size
        self._last: Any = None
        self._false = np.zeros(push_size, bool)

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._buffer.add(
            Batch(
                obs=items["obs"],
                act=items["action"],
                rew=items["reward"],
                terminated=self._false,
                truncated=self._false,
                obs_next=items["next_obs"],
                info={"discount": items["discount"]},
            )
        )

    def sample(self) -> Any:
        drawn, self._last = self._buffer.sample(self._batch_size)
        return drawn

    def update(self, priorities: np.ndarray) -> None:
        self._buffer.update_weight(self._last, priorities)
