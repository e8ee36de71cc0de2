"""Batches sampled ahead by a background thread, into arrays that are used again when the caller has dropped them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .batch import Batch, BatchPool
from .errors import SchemaError, TableClosed
from .table import Table


class Sampler:
    """An iterator over batches; a context manager. Made by `Client.sampler` and `Buffer.sampler`.

    It is endless unless the table is closed (`Client.close_table`): then it ends after the last batch that the table
    can give; items too few for one more stay in the table.

    A failure of the source, such as `Timeout` or `ConnectionLost`, is raised by the next `next()` after the batches
    that were sampled before it, and ends the iteration. Batches belong to the caller for as long as he refers to them.

    Attributes:
        importance_sampling_exponent: β of batches drawn from now on; assign to anneal it.
        policy_version: of the caller, for batches drawn from now on; see `Client.sample`.
        table_closed: why the iteration ended, where a closed table ended it; None else.
    """

    def __init__(
        self,
        draw: Callable[[float, int | None, Batch], Batch],
        table: Callable[[], Table],
        cancel: Callable[[], None],
        batch_size: int,
        importance_sampling_exponent: float,
        prefetch: int,
        columns: Sequence[str] | None,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1 batch, got {prefetch}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.importance_sampling_exponent = importance_sampling_exponent
        self.policy_version: int | None = None
        self.table_closed: TableClosed | None = None
        self._draw, self._table, self._cancel = draw, table, cancel
        self._batch_size, self._columns = batch_size, columns
        # Those in the queue, one being filled, one or two in the caller's hands.
        self._pool = BatchPool(prefetch + 3)
        self._ready: queue.Queue[Any] = queue.Queue()
        self._room = threading.Semaphore(prefetch)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="replay-sampler", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed.is_set():
                    break
                self._ready.put(self._sampled())
        except TableClosed as error:
            self.table_closed = error
        except BaseException as error:
            self._ready.put(error)
        self._ready.put(StopIteration())

    def _sampled(self) -> Batch:
        beta, version = self.importance_sampling_exponent, self.policy_version
        try:
            return self._draw(beta, version, self._pool.take(self._table(), self._batch_size, self._columns))
        except SchemaError:
            # The table was made anew with other columns; a second refusal is the caller's own mistake.
            return self._draw(beta, version, self._pool.take(self._table(), self._batch_size, self._columns))

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise StopIteration
        item = self._ready.get()
        self._room.release()
        if isinstance(item, BaseException):
            self._ready.put(StopIteration())  # an ended iterator stays ended
            if self._closed.is_set():
                raise StopIteration
            raise item
        return item

    def close(self) -> None:
        """Ends the background thread, cancelling a sample that waits; a `next()` that waits stops."""
        if not self._closed.is_set():
            self._closed.set()
            self._room.release()
            self._cancel()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=5)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
