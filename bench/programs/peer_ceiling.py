"""What the memory allows: the blocks that a buffer must copy, by NumPy's row-wise copy, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

PACKAGES = ("numpy",)
INDEX_BLOCKS = 64


class Buffer:
    """Arrays of items: an add writes the next rows, a sample copies random rows into arrays that are used again."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        self._columns = {name: np.empty((capacity, *shape), dtype) for name, (dtype, shape) in columns.items()}
        self._out = {name: np.empty((batch_size, *shape), dtype) for name, (dtype, shape) in columns.items()}
        generator = np.random.default_rng(1)
        self._indices = [generator.integers(0, capacity, batch_size) for _ in range(INDEX_BLOCKS)]
        self._capacity, self._at, self._turn = capacity, 0, 0

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        count = len(priorities)
        if self._at + count > self._capacity:
            self._at = 0
        for name, array in items.items():
            self._columns[name][self._at : self._at + count] = array
        self._at += count

    def sample(self) -> dict[str, np.ndarray]:
        self._turn = (self._turn + 1) % INDEX_BLOCKS
        for name, out in self._out.items():
            # "raise", the default, would copy through a buffer of its own.
            np.take(self._columns[name], self._indices[self._turn], axis=0, out=out, mode="clip")
        return self._out
