"""Where a writer's steps and items go when the table is a `Buffer` in this process."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ._native import ffi, lib
from .table import MAX_HISTORY

if TYPE_CHECKING:
    from .buffer import Buffer


class BufferStreams:
    """A `replay_server.writer.StepSink` over a buffer's native table. Everything runs under the buffer's lock.

    Streams of a writer that was dropped without `close` are given back when another writer of the buffer sends.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._handles: list[int] = []
        self._addresses = np.empty(0, np.uint64)
        self._dropped = weakref.finalize(self, buffer._abandoned.extend, self._handles)
        self._dropped.atexit = False

    def open(self, streams: int, history: int) -> None:
        """See `StepSink`."""
        buffer = self._buffer
        self.close()
        with buffer._lock:
            self._free_abandoned()
            for _ in range(streams):
                stream = lib.table_stream_new(buffer._core, min(history, MAX_HISTORY), buffer._error)
                if stream == ffi.NULL:
                    refusal = buffer._refusal()
                    self._free(self._handles)
                    raise refusal
                self._handles.append(int(ffi.cast("uintptr_t", stream)))
            self._addresses = np.array(self._handles, np.uint64)

    def close(self) -> None:
        """See `StepSink`."""
        with self._buffer._lock:
            self._free(self._handles)

    def end_episodes(self, streams: np.ndarray) -> None:
        """See `StepSink`."""
        with self._buffer._lock:
            for stream in streams:
                lib.stream_end_episode(ffi.cast("struct stream *", self._handles[stream]))

    def send_steps(self, streams: np.ndarray, flags: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """See `StepSink`."""
        buffer = self._buffer
        with buffer._lock:
            self._free_abandoned()
            reservation = lib.table_reserve_steps(buffer._core, len(streams), buffer._error)
            if reservation == ffi.NULL:
                raise buffer._refusal()
            for name, values in columns.items():
                lib.step_reservation_fill(reservation, buffer._columns[name], _bytes(values))
            handles = self._pointers(streams)
            if lib.table_append(buffer._core, reservation, handles, _bytes(flags), buffer._error) != 0:
                refusal = buffer._refusal()
                lib.step_reservation_release(reservation)
                raise refusal

    def send_items(
        self,
        streams: np.ndarray,
        steps: np.ndarray,
        priorities: np.ndarray | None,
        columns: dict[str, np.ndarray],
        timeout: float | None,
    ) -> np.ndarray:
        """See `StepSink`."""
        buffer = self._buffer
        ids = np.empty(len(streams), np.uint64)
        raw = ffi.NULL if priorities is None else ffi.from_buffer("double[]", np.ascontiguousarray(priorities))
        handles = self._pointers(streams)
        numbers = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(steps))

        def enter() -> int:
            # Asked first, so that a wait copies nothing.
            count = lib.table_admits(buffer._core, len(streams))
            if count == 0:
                buffer._check(lib.table_can_add(buffer._core, 1, buffer._error))
            reservation = lib.table_reserve(buffer._core, count, buffer._error)
            if reservation == ffi.NULL:
                raise buffer._refusal()
            for name, values in columns.items():
                lib.reservation_fill(reservation, buffer._columns[name], _bytes(values[:count]))
            resolved = lib.table_resolve(buffer._core, reservation, handles, numbers, buffer._error) == 0
            own = ffi.from_buffer("uint64_t[]", ids)
            if not resolved or lib.table_commit(buffer._core, reservation, raw, own, buffer._error) != 0:
                refusal = buffer._refusal()
                lib.reservation_release(reservation)
                raise refusal
            return count

        with buffer._lock:
            buffer._waiting_add += 1
            try:
                made = buffer._waited(f"{len(streams)} items of {buffer.table.name!r}", timeout, enter, None)
            finally:
                buffer._waiting_add -= 1
            buffer._notify()
        return ids[:made]

    def _pointers(self, streams: np.ndarray) -> Any:
        return ffi.from_buffer("struct stream *[]", self._addresses[streams])

    def _free(self, handles: list[int]) -> None:
        while handles:
            lib.table_stream_free(self._buffer._core, ffi.cast("struct stream *", handles.pop()))

    def _free_abandoned(self) -> None:
        self._free(self._buffer._abandoned)


def _bytes(values: np.ndarray) -> Any:
    """An array's bytes as a C pointer, which keeps it alive."""
    return ffi.from_buffer(np.ascontiguousarray(values))
