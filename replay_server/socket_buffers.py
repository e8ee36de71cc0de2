"""Bytes on their way through a socket: requests out of many buffers, and replies into lines and into arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .codec import MAX_LINE_BYTES, Buffer, not_resp

_BUFFER_BYTES = 64 * 1024
_VECTORS = 256  # well under IOV_MAX
_RECORD_BYTES = 16 * 1024  # the most that a record of TLS holds


def in_records(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes with small pieces joined, since each write is a record of TLS by itself."""
    joined = bytearray()
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if len(view) < _RECORD_BYTES:
            joined += view
        if joined and (len(view) >= _RECORD_BYTES or len(joined) >= _RECORD_BYTES):
            yield joined
            joined = bytearray()
        if len(view) >= _RECORD_BYTES:
            yield view
    if joined:
        yield joined


class Pending:
    """Buffers that are being sent together, without being joined."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = [memoryview(buffer).cast("B") for buffer in buffers]
        self._first = 0

    def next(self) -> list[memoryview]:
        """What one call may be given; empty: all is sent."""
        return self._buffers[self._first : self._first + _VECTORS]

    def advance(self, sent: int) -> None:
        """So many bytes have gone."""
        while self._first < len(self._buffers) and sent >= len(self._buffers[self._first]):
            sent -= len(self._buffers[self._first])
            self._first += 1
        if sent:
            self._buffers[self._first] = self._buffers[self._first][sent:]


class ReadBuffer:
    """Bytes that came and were not asked for yet: lines are cut from it, and large values take from it first."""

    __slots__ = ("data", "end", "start", "view")

    def __init__(self) -> None:
        self.data = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.data)
        self.start = self.end = 0

    def line(self) -> bytes | None:
        """The next line without its CRLF, or None when more bytes must come.

        Raises:
            ServerError: no line is that long.
        """
        at = self.data.find(b"\r\n", self.start, self.end)
        if at >= 0:
            line = bytes(self.view[self.start : at])
            self.start = at + 2
            return line
        if self.end - self.start >= MAX_LINE_BYTES:
            raise not_resp(bytes(self.view[self.start : self.end]))
        return None

    def space(self) -> memoryview:
        """Where the next bytes go; never empty after `line` returned None or `skip_line_end` False."""
        if self.start == self.end:
            self.start = self.end = 0
        elif self.end == len(self.data):
            rest = bytes(self.view[self.start : self.end])
            self.view[: len(rest)] = rest
            self.start, self.end = 0, len(rest)
        return self.view[self.end :]

    def take(self, target: memoryview) -> int:
        """Moves bytes to the front of `target`; how many."""
        count = min(len(target), self.end - self.start)
        target[:count] = self.view[self.start : self.start + count]
        self.start += count
        return count

    def skip_line_end(self) -> bool:
        """Drops the CRLF after a bulk string; False when it has not come yet."""
        if self.end - self.start < 2:
            return False
        mark = bytes(self.view[self.start : self.start + 2])
        if mark != b"\r\n":
            raise not_resp(mark)
        self.start += 2
        return True
