"""A buffer's table in a file: saved while other threads go on with it, and read back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ._native import ffi, lib
from .errors import ReplayError, error_from_core

if TYPE_CHECKING:
    from .buffer import Buffer

_SLICE_US = 1000
"""Of saving, for which others wait."""
_SUFFIX = ".snapshot"


def snapshot_path(name: str | os.PathLike[str] | None) -> str:
    """The path of a snapshot; None: of a new one, named by the time."""
    if name is None:
        now = datetime.now(timezone.utc)
        return f"replay-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}{_SUFFIX}"
    path = os.fspath(name)
    return path if path.endswith(_SUFFIX) else path + _SUFFIX


def save_table(buffer: Buffer, folder: str, file: str) -> None:
    """Writes a buffer's table to a file of a folder."""
    snapshot = ffi.NULL
    try:
        with buffer._lock:
            snapshot = lib.table_file_save(buffer._core, os.fsencode(folder), os.fsencode(file), buffer._error)
            if snapshot == ffi.NULL:
                raise buffer._refusal()
        while state := _step(buffer, snapshot):
            time.sleep(0.001 if state == 2 else 0)  # the disk has to take something, or others the lock
    finally:
        if snapshot != ffi.NULL:
            with buffer._lock:
                lib.snapshot_free(snapshot)


def _step(buffer: Buffer, snapshot: Any) -> int:
    with buffer._lock:
        state = lib.table_file_step(snapshot, _SLICE_US, buffer._error)
        if state < 0:
            raise buffer._refusal()
    return state


def load_table(buffer: Buffer, path: str, free: Callable[[Any], None]) -> Any:
    """The table of a buffer's name in a file, as the core has it, to be freed by `free`. Nobody waits for it."""
    error = ffi.new("struct error *")
    core = lib.table_file_load(os.fsencode(path), buffer.table.name.encode(), error)
    if core == ffi.NULL:
        raise _refusal(error)
    return ffi.gc(core, free)


def take_settings(buffer: Buffer, core: Any) -> list[str]:
    """Puts a buffer's settings over those of a table that was read; a line where that changed any. The lock is held."""
    changed = ffi.new("bool *")
    buffer._check(lib.table_adopt(core, lib.table_config(buffer._core), changed, buffer._error))
    lib.table_step(core, 2**64 - 1)
    return [f"table '{buffer.table.name}': its settings are those of the buffer, not those saved"] if changed[0] else []


def _refusal(error: Any) -> ReplayError:
    code = ffi.string(lib.error_code_name(error.code)).decode()
    return error_from_core(code, ffi.string(error.message).decode("utf-8", "replace"))
