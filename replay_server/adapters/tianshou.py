"""Tianshou's prioritized replay buffer over a sum tree of this project.

Tianshou's algorithms go through their buffer by position (the next step, n-step returns, the ends of episodes), so what
is replaced is what draws the positions: the sum tree. Observations, also dicts, are stored by Tianshou, which saves
(`save_hdf5`) and loads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_server import SumTree
from replay_server.extras import needed_by

with needed_by(__name__):
    from tianshou.data import PrioritizedVectorReplayBuffer


class TreeWeights:
    """A `replay_server.SumTree` with as much of Tianshou's `SegmentTree` as its buffers use."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.tree = SumTree(size, seed)

    def __len__(self) -> int:
        return len(self.tree)

    def __getitem__(self, index: Any) -> Any:
        values = self.tree.get(np.atleast_1d(index))
        return values if np.ndim(index) else values[0]

    def __setitem__(self, index: Any, value: Any) -> None:
        indices = np.atleast_1d(index)
        self.tree.update(indices, np.broadcast_to(np.asarray(value, np.float64), indices.shape))

    def reduce(self) -> float:
        """The sum of all."""
        return self.tree.total


class SumTreeReplayBuffer(PrioritizedVectorReplayBuffer):
    """A `tianshou.data.PrioritizedVectorReplayBuffer` that draws from a `replay_server.SumTree`.

    Arguments as there, and:

    Args:
        seed: of the draws; 0: from the operating system.
    """

    def __init__(self, total_size: int, buffer_num: int, seed: int = 0, **options: Any) -> None:
        super().__init__(total_size, buffer_num, **options)
        self.weight = TreeWeights(self.maxsize, seed)

    def sample_indices(self, batch_size: int | None) -> np.ndarray:
        """Positions, drawn in proportion to their weights; as in Tianshou, 0 or None asks for all."""
        if batch_size is not None and batch_size > 0 and len(self) > 0:
            return self.weight.tree.sample(batch_size, stratified=False)[0]
        return super().sample_indices(batch_size)
