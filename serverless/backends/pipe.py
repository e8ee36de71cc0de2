"""What goes over the pipe between a process platform and a worker: frames of bytes, each behind a header.

A header is a mark, a number and a length, little-endian. The number is that of the call that the frame belongs to, from
1 on; 0 is the worker's first word, sent when it is ready. Bytes that something else wrote into the pipe do not begin
with the mark, and the answer to one call is never taken for another's.
"""

from __future__ import annotations

import struct

MARK = b"\xf7rfn"
HEADER = struct.Struct("<4sIQ")
READY = 0


class PipeError(Exception):
    """Bytes in the pipe that are no frame, or none that was expected."""


def header(number: int, size_bytes: int) -> bytes:
    """What goes before a frame's `size_bytes` bytes."""
    return HEADER.pack(MARK, number, size_bytes)


class FrameReader:
    """Takes frames out of bytes as they come.

    Args:
        limit_bytes: of one frame; a longer one is refused before it is read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Adds bytes that came."""
        self._bytes += data

    def take(self) -> tuple[int, bytes] | None:
        """The number and content of the next frame, None while it is not all there. PipeError for what is none."""
        if len(self._bytes) < HEADER.size:
            if self._bytes and not MARK.startswith(self._bytes[: len(MARK)]) and not self._bytes.startswith(MARK):
                raise PipeError(f"expected a frame, got {bytes(self._bytes)!r}")
            return None
        mark, number, size_bytes = HEADER.unpack_from(self._bytes)
        if mark != MARK:
            raise PipeError(f"expected a frame, got {bytes(self._bytes[:40])!r}")
        if size_bytes > self._limit_bytes:
            raise PipeError(f"an answer of {size_bytes} bytes: more than the {self._limit_bytes} that are allowed")
        end = HEADER.size + size_bytes
        if len(self._bytes) < end:
            return None
        content = bytes(memoryview(self._bytes)[HEADER.size : end])
        del self._bytes[:end]
        return number, content
