"""Steps as compressed blocks, made by the writer, so that neither the line nor the server has to bear them whole."""

from __future__ import annotations

import numpy as np

from .codec import Blob, bytes_of
from .table import Table

LEAST_STEP_BYTES = 128
"""Columns of smaller steps are never compressed."""
_KINDS = {"lz4": 1, "zstd": 2}


class StepEncoder:
    """Makes blocks of a compressed table's steps. For one thread."""

    def __init__(self, table: Table) -> None:
        from ._native import ffi, lib

        self._ffi, self._lib = ffi, lib
        codec = lib.codec_new(_KINDS[table.compression])
        if codec == ffi.NULL:
            raise ImportError(f"this build has no {table.compression}")
        self._codec = ffi.gc(codec, lib.codec_free)

    def encode(self, values: np.ndarray) -> Blob:
        """n steps of one column as REPLAY.APPEND … CODED takes them: uint32 sizes (n,), then the blocks."""
        steps = np.ascontiguousarray(values)
        count, step_bytes = len(steps), steps[0].nbytes
        sizes, blocks = np.empty(count, np.uint32), np.empty(steps.nbytes, np.uint8)
        pointer = self._ffi.from_buffer
        used = self._lib.codec_encode_steps(
            self._codec, pointer("uint8_t[]", bytes_of(steps)), count, step_bytes, pointer("uint32_t[]", sizes),
            pointer("uint8_t[]", blocks),
        )  # fmt: skip
        return Blob((bytes_of(sizes), bytes_of(blocks[:used])))


def encoder_for(table: Table) -> StepEncoder | None:
    """An encoder, where the table compresses any column and this installation can: the native core with the library."""
    if table.compression == "none" or all(c.item_bytes < LEAST_STEP_BYTES for c in table.step_columns.values()):
        return None
    try:
        return StepEncoder(table)
    except ImportError:
        return None
