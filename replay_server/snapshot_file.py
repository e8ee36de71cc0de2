"""Snapshot files, record by record: what docs/snapshot.md writes down of header, blocks and records, read and written.

The server reads and writes these files by itself. This is for what makes new files of old ones.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ServerError
from .whole_file import sync_folder

TABLE, SLOTS, ITEMS, STEPS, END, KEYS, WEIGHTS, GRADIENTS, LIBRARIES = 1, 2, 3, 4, 9, 16, 17, 18, 19
"""Kinds of records."""
_FILE = struct.Struct("<8sIIq24sQI")
_BLOCK = struct.Struct("<4sIQIII")
_RECORD = struct.Struct("<IIQ")
_CHECKSUM = struct.Struct("<I")
_MAGIC, _BLOCK_MAGIC, _VERSION = b"RPLYSNAP", b"BLCK", 3
_BLOCK_BYTES = 1 << 20


def _checksum(data: Any) -> int:
    from ._native import ffi, lib  # the base install without the native core has all else

    return int(lib.crc32c(0, ffi.from_buffer(data), len(data)))


class SnapshotFile:
    """A snapshot that is read. Its bytes are mapped, so memory holds what is being looked at.

    Attributes:
        tables: how many.
        has_store: whether keys are in it, though perhaps none.
        cut_ms: time of the cut, Unix milliseconds.

    Raises:
        ServerError: it is no such file, or of another version; the message names it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            empty = os.path.getsize(self.path) == 0
            self._bytes = np.empty(0, np.uint8) if empty else np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except OSError as error:
            raise ServerError(f"cannot open the snapshot {self.path}: {error.strerror}") from error
        head = self._bytes[: _FILE.size + _CHECKSUM.size].tobytes()
        if head[:8] != _MAGIC or len(head) < _FILE.size + _CHECKSUM.size:
            raise self._damaged(0, "this is no snapshot")
        _, version, self.tables, self.cut_ms, _, _, contents = _FILE.unpack_from(head)
        if not 1 <= version <= _VERSION:
            raise self._damaged(8, f"a snapshot of version {version}, this one reads versions 1 to {_VERSION}")
        if _CHECKSUM.unpack_from(head, _FILE.size) != (_checksum(head[: _FILE.size]),):
            raise self._damaged(0, "the header is damaged")
        self.has_store = bool(contents & 1)

    def _damaged(self, at: int, what: str) -> ServerError:
        return ServerError(f"{self.path}, byte {at}: {what}; nothing was restored")

    def records(self, check: bool = False) -> Iterator[tuple[int, int, np.ndarray]]:
        """Kind, table and body of each record, uint8 (n,), up to the end. `check` looks at all checksums, too.

        Raises:
            ServerError: the file is damaged or cut short; the message names the byte.
        """
        at, count = _FILE.size + _CHECKSUM.size, 0
        while True:
            head = self._bytes[at : at + _BLOCK.size + _CHECKSUM.size].tobytes()
            begin = at + _BLOCK.size + _CHECKSUM.size
            if len(head) < begin - at:
                raise self._damaged(at, "the file ends within the header of a block: it is cut short")
            magic, records, index, length, checksum, _ = _BLOCK.unpack_from(head)
            whole = _CHECKSUM.unpack_from(head, _BLOCK.size) == (_checksum(head[: _BLOCK.size]),)
            if magic != _BLOCK_MAGIC or index != count or not whole:
                raise self._damaged(at, f"the header of block {count} is damaged")
            if begin + length > len(self._bytes):
                raise self._damaged(at, "the file ends within a block: it is cut short")
            block = self._bytes[begin : begin + length]
            if check and _checksum(block) != checksum:
                raise self._damaged(at, f"block {count} is damaged")
            place = 0
            for _ in range(records):
                head = block[place : place + _RECORD.size].tobytes()
                kind, table, length = _RECORD.unpack(head)
                place += _RECORD.size
                if kind == END:
                    return
                yield kind, table, block[place : place + length]
                place += _padded(length)
            at, count = begin + len(block), count + 1


class SnapshotWriter:
    """A snapshot that is written: as NAME.partial until `finish`, so that a file called NAME is whole.

    Args:
        path: of the file.
        tables: how many; each is described before anything else of it.
        has_store: whether keys are in it.
    """

    def __init__(self, path: str | os.PathLike[str], tables: int, has_store: bool) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(self._path.name + ".partial")
        self._file = open(self._partial, "xb")  # noqa: SIM115 - closed by finish or abandon
        head = _FILE.pack(_MAGIC, _VERSION, tables, time.time_ns() // 1_000_000, b"", 1, has_store)
        self._file.write(head + _CHECKSUM.pack(_checksum(head)))
        self._block, self._in_block, self._blocks, self._records = bytearray(), 0, 0, 0

    def add(self, kind: int, table: int, *parts: bytes | np.ndarray) -> None:
        """Adds a record, whose body are these parts one after the other."""
        body = b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts)
        if self._block and len(self._block) + _RECORD.size + _padded(len(body)) > _BLOCK_BYTES:
            self._close_block()
        self._block += _RECORD.pack(kind, table, len(body)) + body + bytes(_padded(len(body)) - len(body))
        self._in_block += 1
        self._records += 1

    def _close_block(self) -> None:
        head = _BLOCK.pack(
            _BLOCK_MAGIC, self._in_block, self._blocks, len(self._block), _checksum(bytes(self._block)), 0
        )
        self._file.write(head + _CHECKSUM.pack(_checksum(head)))
        self._file.write(self._block)
        self._block, self._in_block, self._blocks = bytearray(), 0, self._blocks + 1

    def finish(self) -> None:
        """Makes it a file of its own name, whole and on the disk."""
        if self._block:
            self._close_block()
        self.add(END, 0, struct.pack("<QQ", self._blocks, self._records))
        self._close_block()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)
        sync_folder(self._path.parent)

    def abandon(self) -> None:
        """Removes what was written, unless it is finished."""
        with contextlib.suppress(OSError):  # what waits still, for a disk that is full
            self._file.close()
        self._partial.unlink(missing_ok=True)


def new_name() -> str:
    """A name as the server gives it, of a snapshot that is written now."""
    now_ms = time.time_ns() // 1_000_000
    return f"replay-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now_ms / 1000))}-{now_ms % 1000:03}.snapshot"


def _padded(length: int) -> int:
    return -(-length // 8) * 8
