"""Values of items that have as many rows as they like: received into one piece of memory, padded where a network wants
that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .errors import SchemaError

_OFFSET_BYTES = 8
_GROWTH = 1.25
"""Of memory that is too small: batches differ by a little, and should not need new memory each time."""

_LONG_ROWS = 64
"""On average, from which on items are padded one by one; shorter ones all at once, by a mask."""


def check_fill(fill: Any, dtype: np.dtype[Any]) -> None:
    """Raises SchemaError where a column of integers or bools cannot hold `fill`."""
    if dtype.kind not in "iub":
        return
    with np.errstate(invalid="ignore"):
        held = np.asarray(fill).astype(dtype)
    if (held != fill).any():
        raise SchemaError(f"fill must be a value of {dtype}, got {fill!r}")


class Room:
    """Memory that a ragged column is received into: int64 offsets, then the rows. It grows, and is used again."""

    __slots__ = ("allocate", "dtype", "memory", "shape")

    def __init__(self, dtype: Any, shape: tuple[int, ...], allocate: Callable[[tuple[int, ...], Any], np.ndarray]):
        self.dtype, self.shape, self.allocate = np.dtype(dtype), shape, allocate
        self.memory = allocate((_OFFSET_BYTES,), np.uint8)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))

    def grow(self, size_bytes: int) -> None:
        """Makes room for so many bytes; what is in it stays."""
        if self.memory.nbytes < size_bytes:
            held = self.memory
            self.memory = self.allocate((max(size_bytes, int(_GROWTH * held.nbytes)),), np.uint8)
            self.memory[: held.nbytes] = held


class Ragged:
    """A ragged column of N items: the rows of all items one after another, and where each item's rows begin.

    `len` is N, `ragged[i]` the rows of item i, and iterating gives the rows of each item, as views.

    Attributes:
        values: (rows of all items, *column.shape[1:]), of the column's dtype.
        offsets: int64 (N + 1,): the rows of item i are `values[offsets[i]:offsets[i + 1]]`.
    """

    __slots__ = ("offsets", "room", "values")

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        self.values, self.offsets = values, offsets
        self.room: Room | None = None

    @classmethod
    def into(cls, room: Room, count: int) -> Ragged:
        """One that is still to be received into `room`."""
        ragged = cls(np.empty((0, *room.shape), room.dtype), np.zeros(1, np.int64))
        ragged.room = room
        room.grow((count + 1) * _OFFSET_BYTES)
        return ragged

    @classmethod
    def over(cls, memory: np.ndarray, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Ragged:
        """One over bytes as they travel.

        Raises:
            SchemaError: they are not `count` items.
        """
        head = (count + 1) * _OFFSET_BYTES
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        offsets = memory[:head].view(np.int64)
        if len(offsets) != count + 1 or head + int(offsets[-1]) * row_bytes != len(memory):
            raise SchemaError(
                f"expected offsets and rows of {count} items, got {len(memory)} bytes, which do not match"
            )
        return cls(memory[head:].view(dtype).reshape(-1, *shape), offsets)

    def settle(self, count: int, size_bytes: int) -> None:
        """So many bytes of its room have been received."""
        assert self.room is not None
        settled = Ragged.over(self.room.memory[:size_bytes], count, self.room.dtype, self.room.shape)
        self.values, self.offsets = settled.values, settled.offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        at = range(len(self))[index]  # IndexError beyond, and negative ones from the end
        return self.values[self.offsets[at] : self.offsets[at + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.values, self.offsets)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} items, {self.values.dtype} of {self.values.shape})"

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each item, int64 (N,)."""
        return np.diff(self.offsets)

    @property
    def mask(self) -> np.ndarray:
        """bool (N, longest): where `padded()` has rows of the items."""
        return self._mask(int(self.lengths.max(initial=0)))

    def _mask(self, length: int) -> np.ndarray:
        return np.arange(length) < self.lengths[:, None]

    def padded(self, fill: Any = 0, length: int | None = None) -> np.ndarray:
        """The items as one array (N, length, *column.shape[1:]), each from the first row on.

        Args:
            fill: what stands behind shorter items, a value of the column's dtype.
            length: rows; None: those of the longest item.

        Raises:
            SchemaError: an item is longer, or a column of integers or bools cannot hold `fill`.
        """
        check_fill(fill, self.values.dtype)
        longest = int(self.lengths.max(initial=0))
        if length is not None and length < longest:
            raise SchemaError(f"expected a length of at least {longest} rows, the longest item's, got {length}")
        rows = longest if length is None else length
        shape = (len(self), rows, *self.values.shape[1:])
        if len(self.values) < _LONG_ROWS * len(self):
            padded = np.full(shape, fill, self.values.dtype)
            padded[self._mask(rows)] = self.values
            return padded
        padded = np.empty(shape, self.values.dtype)
        for place, item in zip(padded, self, strict=True):
            place[: len(item)] = item
            place[len(item) :] = fill
        return padded

    def read_only(self) -> Ragged:
        """The same over the same memory, which cannot be written to through it."""
        views = self.values.view(), self.offsets.view()
        for view in views:
            view.flags.writeable = False
        ragged = Ragged(*views)
        ragged.room = self.room
        return ragged


def items_of(column: np.ndarray | Ragged, low: int, high: int) -> Any:
    """Items low to high - 1 of a column, over the same memory."""
    if not isinstance(column, Ragged):
        return column[low:high]
    offsets = column.offsets[low : high + 1]
    return Ragged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])
