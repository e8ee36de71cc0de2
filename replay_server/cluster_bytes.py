"""What items and steps of a snapshot take of a table's `max_bytes`: as the server counts them.

The server counts memory that is taken. Rows of ragged columns lie in units, what does not fill one in a block of a
pool, and so does each compressed step; a pool has blocks of some sizes only. The numbers below are those of
native/replay: ragged_store, coded_columns, block_pool.
"""

from __future__ import annotations

import numpy as np

RAGGED_VALUE_BYTES = 16
"""Of a ragged column, in each item's slot."""
_UNIT_BYTES, _LINK_BYTES = 2048, 4
_ALIGNMENT = 16
_MOST_CLASSES = 256


def _classes(least: int, largest: int, in_doubling: int) -> np.ndarray:
    """The sizes of a pool's blocks, int64 (n,), from small to large."""
    sizes, size, largest = [], least, max(least, largest)
    while len(sizes) < _MOST_CLASSES - 1 and size < largest:
        sizes.append(size)
        doubling = least << (size // least).bit_length() - 1
        size += max(_ALIGNMENT, doubling // in_doubling)
    return np.array([*sizes, -(-largest // _ALIGNMENT) * _ALIGNMENT])


_RESTS = _classes(16, _UNIT_BYTES, 16)


def rows_take(sizes: np.ndarray) -> np.ndarray:
    """Bytes that values of a ragged column take besides their slots, int64 (n,), of so many bytes of rows each."""
    units, rests = np.divmod(sizes.astype(np.int64), _UNIT_BYTES)
    return units * (_UNIT_BYTES + _LINK_BYTES) + np.where(rests, _RESTS[np.searchsorted(_RESTS, rests)], 0)


def blocks_take(sizes: np.ndarray, largest: int) -> np.ndarray:
    """Bytes that compressed steps take, int64 (n,), of so many bytes each; the largest column's has `largest`."""
    classes = _classes(64, largest + 4, 8)
    return classes[np.searchsorted(classes, sizes.astype(np.int64) + 4)]
