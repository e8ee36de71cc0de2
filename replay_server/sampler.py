"""Batches sampled ahead by a background thread, into arrays that are used again when the caller has dropped them.

The thread refers to a `_ThreadFeed`, never to the `Sampler`: one that was dropped without `close` is noticed by its
finalizer, which ends the thread and its connection. What the caller does within `next` are single operations of C, in
an order in which an interrupt between any two costs a batch at most: the thread looks at the queue, and needs no word.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .batch import Batch, BatchPool, read_only
from .errors import ReplayError, SchemaError, TableClosed
from .options import SampleOptions, SamplerOptions
from .table import Table

Draw = Callable[[SampleOptions, Batch], Batch]
"""Samples into a batch, or into shared memory."""


class Feed:
    """What a sampler and what fills it share: a thread, or a task."""

    def __init__(self, options: SamplerOptions) -> None:
        self.options = options
        self.importance_sampling_exponent = options.sample.importance_sampling_exponent
        self.policy_version: int | None = None
        self.table_closed: TableClosed | None = None
        self.process = os.getpid()

    def next_options(self) -> SampleOptions:
        """Those of the next batch."""
        beta, version = self.importance_sampling_exponent, self.policy_version
        return replace(self.options.sample, importance_sampling_exponent=beta, policy_version=version)

    def check_process(self) -> None:
        """Raises ReplayError in a forked child, which has neither the thread nor the task."""
        if self.process != os.getpid():
            raise ReplayError(
                f"expected this sampler to be used by process {self.process}, which fills it, got process "
                f"{os.getpid()}, forked from it: make another sampler here"
            )


class Annealed:
    """What may be changed of a sampler while it samples, and why it ended."""

    _feed: Any

    @property
    def importance_sampling_exponent(self) -> float:
        """β of batches drawn from now on; assign to anneal it."""
        return self._feed.importance_sampling_exponent

    @importance_sampling_exponent.setter
    def importance_sampling_exponent(self, value: float) -> None:
        self._feed.importance_sampling_exponent = value

    @property
    def policy_version(self) -> int | None:
        """Of the caller, for batches drawn from now on; see `Client.sample`."""
        return self._feed.policy_version

    @policy_version.setter
    def policy_version(self, value: int | None) -> None:
        self._feed.policy_version = value

    @property
    def table_closed(self) -> TableClosed | None:
        """Why the iteration ended, where a closed table ended it; None else."""
        return self._feed.table_closed


class _ThreadFeed(Feed):
    """A feed that a thread fills."""

    def __init__(
        self, draw: Draw, table: Callable[[], Table], cancel: Callable[[], None], options: SamplerOptions
    ) -> None:
        super().__init__(options)
        self.error: BaseException | None = None
        """What ended the thread, until it was raised."""
        self.ready: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """Batches; None wakes whoever waits for one that will not come."""
        self.closed = self.ended = False
        self._draw, self._table, self._cancel = draw, table, cancel
        # Those in the queue, one being filled, one or two in the caller's hands.
        self._pool = BatchPool(options.prefetch + 3, options.allocate)
        self._room = threading.Lock()  # free: look again whether there is room
        self._room.acquire()

    def fill(self) -> None:
        """Samples until it is closed, or cannot."""
        try:
            while self._await_room():
                batch = self._sampled()
                self.ready.put(batch if self.options.writable else read_only(batch))
        except TableClosed as error:
            self.table_closed = error
        except BaseException as error:
            self.error = error
        self.ended = True
        self.ready.put(None)

    def _await_room(self) -> bool:
        while not self.closed and self.ready.qsize() >= self.options.prefetch:
            self._room.acquire()
        return not self.closed

    def _sampled(self) -> Batch:
        try:
            return self._next()
        except SchemaError:
            return self._next()  # the table was made anew with other columns; a second refusal is the caller's mistake

    def _next(self) -> Batch:
        out = self._pool.take(self._table(), self.options.batch_size, self.options.sample.columns)
        return self._draw(self.next_options(), out)

    def look(self) -> None:
        """Has the thread look whether there is room, or all is over. From any thread, and without need."""
        with contextlib.suppress(RuntimeError):  # free already
            self._room.release()

    def close(self) -> None:
        """Ends the thread, and a sample that waits. From any thread, also from a finalizer; repeatable."""
        self.closed = True
        self.look()
        self._cancel()


class Sampler(Annealed):
    """An iterator over batches; a context manager. Made by `Client.sampler` and `Buffer.sampler`.

    It is endless unless the table is closed (`Client.close_table`): then it ends after the last batch that the table
    can give; items too few for one more stay in the table.

    A failure of the source, such as `Timeout` or `ConnectionLost`, is raised by the next `next()` after the batches
    that were sampled before it, and ends the iteration. A batch belongs to the caller for as long as anything refers
    to it.

    One that is dropped without `close` ends its thread and its connection. An interrupt, such as Ctrl-C, within
    `next()` may cost the batch that it was about to return. A forked child cannot use its parent's: `next()` raises
    `ReplayError`.
    """

    def __init__(
        self, draw: Draw, table: Callable[[], Table], cancel: Callable[[], None], options: SamplerOptions
    ) -> None:
        self._feed: _ThreadFeed = _ThreadFeed(draw, table, cancel, options)
        self._dropped = weakref.finalize(self, self._feed.close)
        self._dropped.atexit = False
        self._thread = threading.Thread(target=self._feed.fill, name="replay-sampler", daemon=True)
        self._thread.start()

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> Batch:
        feed = self._feed
        feed.check_process()
        while not feed.closed and not (feed.ended and feed.ready.empty()):
            feed.look()  # an interrupted call may have taken a batch without a word
            batch = feed.ready.get()
            feed.look()
            if batch is not None:
                return batch
        feed.ready.put(None)  # for others who wait
        if feed.error is not None and not feed.closed:
            error, feed.error = feed.error, None  # an ended iterator stays ended
            raise error
        raise StopIteration

    def close(self) -> None:
        """Ends the background thread, cancelling a sample that waits; a `next()` that waits stops."""
        self._feed.close()
        if self._feed.process == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
