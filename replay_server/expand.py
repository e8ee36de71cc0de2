"""Windows out of coded replies: each distinct step of a batch came once, and here it is put where it is shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import ServerError

MOST_PLACES = 1 << 18
"""Steps that the windows over one column may show in a coded reply, all items together (docs/protocol.md)."""


def expand_windows(coded: np.ndarray, windows: Sequence[np.ndarray], steps: Sequence[int], step_bytes: int) -> None:
    """Fills the windows over one column.

    Args:
        coded: uint8, as REPLAY.SAMPLE … CODED answers the column.
        windows: C-contiguous arrays of n items each.
        steps: of each window.
        step_bytes: of one step of the column.

    Raises:
        ServerError: the bytes are not what these windows need.
    """
    from ._native import ffi, lib  # a client that never needs it works without the native core

    error = ffi.new("struct error *")
    out = [ffi.from_buffer("uint8_t[]", window.reshape(-1).view(np.uint8)) for window in windows]
    pointers = ffi.new("uint8_t *[]", out)
    lengths = ffi.new("uint32_t[]", list(steps))
    count = len(windows[0])
    bytes_in = ffi.from_buffer("uint8_t[]", coded)
    if lib.expand_windows(bytes_in, len(coded), count, len(windows), lengths, pointers, step_bytes, error) != 0:
        raise ServerError(ffi.string(error.message).decode("utf-8", "replace"))
