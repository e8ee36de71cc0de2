"""Where a writer's steps and items go when the table is a `Buffer` in this process."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ._native import ffi, lib
from .buffer_arrays import new_ids
from .codec import bytes_of
from .driver import at_once
from .errors import ConnectionLost
from .table import MAX_HISTORY

if TYPE_CHECKING:
    from .buffer import Buffer


class BufferStreams:
    """A `replay_server.step_sink.StepSink` over a buffer's native table. Everything runs under the buffer's lock.

    Streams of a writer that was dropped without `close` are given back when another writer of the buffer sends.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._places = {name: place for place, name in enumerate(buffer.table.leaves)}
        # The core writes the streams' addresses there, and makes them 0 when it frees them: nothing is lost in between.
        self._opened: list[np.ndarray] = []
        self._core: Any = None
        """The table that they are streams of."""
        self._dropped: Any = None

    @at_once
    def open(self, streams: int, history: int) -> None:
        """See `StepSink`."""
        buffer = self._buffer
        self.close()
        addresses = np.zeros(streams, np.uint64)
        with buffer._lock:
            self._free(buffer._abandoned)
            if self._core is not buffer._core:
                self._begin_anew()
            self._opened.append(addresses)
            made = lib.table_streams_new(
                buffer._core, streams, min(history, MAX_HISTORY), _streams(addresses), buffer._error
            )
            buffer._check(made)

    def close(self) -> None:
        """See `StepSink`."""
        with self._buffer._lock:
            if self._core is self._buffer._core:
                self._free(self._opened)
            else:
                self._opened.clear()  # they went with their table

    def _begin_anew(self) -> None:
        """From now on for the table that the buffer has."""
        if self._dropped is not None:
            self._dropped.detach()
        self._core, self._opened = self._buffer._core, []
        self._dropped = weakref.finalize(self, self._buffer._abandoned.extend, self._opened)
        self._dropped.atexit = False

    def _check(self) -> None:
        """To be called before a stream is used, with the lock held."""
        if self._core is not self._buffer._core:
            name = self._buffer.table.name
            raise ConnectionLost(
                f"table {name!r} was restored from a snapshot, and the streams of this writer are gone"
            )

    @at_once
    def leaves(self, refused: bool = False) -> bool:
        """See `StepSink`."""
        return False

    def abort(self) -> None:
        """See `StepSink`. A call that waits here cannot be ended."""

    @at_once
    def end_episodes(self, streams: np.ndarray) -> None:
        """See `StepSink`."""
        with self._buffer._lock:
            self._check()
            for address in self._opened[0][streams]:
                lib.stream_end_episode(ffi.cast("struct stream *", int(address)))

    @at_once
    def send_steps(self, streams: np.ndarray, flags: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """See `StepSink`."""
        buffer = self._buffer
        own, count, indices, arrays = _streams(self._opened[0][streams]), *self._columns(columns)
        pointers = ffi.new("void *[]", arrays)
        with buffer._lock:
            self._check()
            self._free(buffer._abandoned)
            appended = lib.table_append_batch(
                buffer._core, len(streams), own, _bytes(flags), count, indices, pointers, buffer._error
            )
            buffer._check(appended)

    @at_once
    def send_items(
        self,
        streams: np.ndarray,
        steps: np.ndarray,
        priorities: np.ndarray | None,
        columns: dict[str, np.ndarray],
        timeout: float | None,
        table: str | None = None,
    ) -> np.ndarray:
        """See `StepSink`; a buffer is one table."""
        assert table is None
        buffer = self._buffer
        ids, memory = new_ids(len(streams))
        raw = ffi.NULL if priorities is None else ffi.from_buffer("double[]", np.ascontiguousarray(priorities))
        own, numbers = _streams(self._opened[0][streams]), ffi.from_buffer("uint64_t[]", np.ascontiguousarray(steps))
        count, indices, arrays = self._columns(columns)
        pointers = ffi.new("void *[]", arrays or 1)
        made = ffi.new("uint32_t *")

        def enter() -> int:
            self._check()
            return lib.table_items_batch(
                buffer._core, len(streams), own, numbers, count, indices, pointers, raw, memory, made, buffer._error
            )

        with buffer._lock:
            what = f"{len(streams)} items of {buffer.table.name!r}"
            buffer._waited(buffer._waiting_add, what, timeout, enter)
            buffer._notify()
        return ids[: made[0]]

    def _columns(self, columns: dict[str, np.ndarray]) -> tuple[int, Any, list[Any]]:
        """How many columns, their places in the signature, and their memory, which must be kept."""
        places = [self._places[name] for name in columns]
        return len(places), ffi.new("uint32_t[]", places or 1), [_bytes(values) for values in columns.values()]

    def _free(self, opened: list[np.ndarray]) -> None:
        while opened:
            lib.table_streams_free(self._buffer._core, len(opened[-1]), _streams(opened[-1]))
            opened.pop()


def _streams(addresses: np.ndarray) -> Any:
    """Addresses of streams as the core has them; the pointer keeps the array alive."""
    return ffi.from_buffer("struct stream *[]", addresses)


def _bytes(values: np.ndarray) -> Any:
    """An array's bytes as a C pointer, which keeps it alive."""
    return ffi.from_buffer(bytes_of(np.ascontiguousarray(values)))
