"""Batches sampled ahead by background threads, into arrays that are used again when the caller has dropped them.

The threads refer to a `_ThreadFeed`, never to the `Sampler`: one that was dropped without `close` is noticed by its
finalizer, which ends the threads and their connections. What the caller does within `next` are single operations of C,
in an order in which an interrupt between any two costs a batch at most: the threads look at the queue, and need no
word.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .batch import Batch, BatchPool, read_only
from .checks import check_exponent, check_version
from .driver import Operation
from .errors import ReplayError, SchemaError, TableClosed
from .options import SampleOptions, SamplerOptions
from .pending_call import Begun, first_answered
from .process_bound import Staying, check_process
from .table import Table

Draw = Callable[[SampleOptions, Batch], Operation[Batch]]
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
        check_process(self.process, "this sampler", "sampler", "fills")


class Annealed(Staying):
    """What may be changed of a sampler while it samples, and why it ended."""

    _send_instead = "send the client or its handle, and make a sampler there"
    _feed: Any

    @property
    def importance_sampling_exponent(self) -> float:
        """β of batches drawn from now on; assign to anneal it. Anything but a number from 0 to 100 raises ValueError
        and changes nothing."""
        return self._feed.importance_sampling_exponent

    @importance_sampling_exponent.setter
    def importance_sampling_exponent(self, value: float) -> None:
        self._feed.importance_sampling_exponent = check_exponent(value)

    beta = importance_sampling_exponent

    @property
    def policy_version(self) -> int | None:
        """The caller's policy version, for batches drawn from now on; see `Client.sample`. Anything but None or a whole
        number of 64 bits raises ValueError and changes nothing."""
        return self._feed.policy_version

    @policy_version.setter
    def policy_version(self, value: int | None) -> None:
        self._feed.policy_version = None if value is None else check_version(value)

    @property
    def table_closed(self) -> TableClosed | None:
        """The reason, if a closed table ended the iteration; else None."""
        return self._feed.table_closed


class _ThreadFeed(Feed):
    """A feed that threads fill, the workers.

    Each has its requests under way, and reads whichever reply comes first: the server may have begun to serve them in
    another order, and an earlier one may wait for items that never come. What is asked
    for and what waits for the caller is bounded together: `_asked` and the length of `ready` change under one lock,
    which workers alone take (but for the caller, who takes from `ready` without it, and makes room only).
    """

    def __init__(
        self, draw: Draw, table: Callable[[], Table], cancel: Callable[[], None], options: SamplerOptions
    ) -> None:
        super().__init__(options)
        self.error: BaseException | None = None
        """What ended the threads, until it was raised."""
        self.ready: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """Batches; None wakes whoever waits for one that will not come."""
        self.closed = self.ended = False
        self._draw, self._table, self._cancel = draw, table, cancel
        # Those that wait or are being filled, one or two in the caller's hands, one that is about to be.
        self._pool = BatchPool(options.ahead + 3, options.allocate)
        self._turn = threading.Lock()
        self._asked = 0
        self._working = options.workers
        self._failed = False
        self._rooms = [threading.Lock() for _ in range(options.workers)]  # free: look again whether there is room
        for room in self._rooms:
            room.acquire()

    def fill(self, worker: int) -> None:
        """Samples until it is closed, or cannot."""
        under_way: deque[Begun[Batch]] = deque()
        try:
            while not self.closed and not self._failed:
                while len(under_way) < self.options.of_worker(worker) and self._has_room():
                    under_way.append(self._ask())
                    if under_way[0].is_done:  # the next one might wait, for items that never come
                        break
                if under_way:
                    which = first_answered(under_way) if len(under_way) > 1 else 0
                    asked = under_way[which]
                    del under_way[which]
                    self._give(asked)
                else:
                    self._rooms[worker].acquire()
        except TableClosed as error:
            self.table_closed = error
            for each in under_way:  # the server may have drawn the last items for a later request
                with contextlib.suppress(ReplayError):
                    self._give(each)
        except BaseException as error:
            if not self._failed:
                self.error, self._failed = error, True
            self._stop()
        for each in under_way:
            each.close()
        with self._turn:
            self._working -= 1
            self.ended = self._working == 0
        if self.ended:
            self.ready.put(None)
        else:
            self.look()  # what this one had asked for has left room

    def _has_room(self) -> bool:
        """Whether there is room for another batch, which must be asked for then."""
        with self._turn:
            if self.ready.qsize() + self._asked >= self.options.ahead:
                return False
            self._asked += 1
            return True

    def _ask(self) -> Begun[Batch]:
        try:
            return Begun(self._sampled())
        except BaseException:
            with self._turn:
                self._asked -= 1
            raise

    def _give(self, asked: Begun[Batch]) -> None:
        batch: Batch | None = None
        try:
            batch = asked.finish()
        finally:
            with self._turn:
                self._asked -= 1
                if batch is not None:
                    self.ready.put(batch if self.options.writable else read_only(batch))

    def _sampled(self) -> Operation[Batch]:
        try:
            return (yield from self._next())
        except SchemaError:  # the table was made anew with other columns; a second refusal is the caller's mistake
            return (yield from self._next())

    def _next(self) -> Operation[Batch]:
        table = self._table()
        with self._turn:
            sample = self.options.sample
            out = self._pool.take(table, self.options.batch_size, sample.columns, sample.details)
        return (yield from self._draw(self.next_options(), out))

    def look(self) -> None:
        """Has the threads look whether there is room, or all is over. From any thread, and without need."""
        for room in self._rooms:
            with contextlib.suppress(RuntimeError):  # free already
                room.release()

    def _stop(self) -> None:
        self.look()
        self._cancel()

    def close(self) -> None:
        """Ends the threads, and samples that wait. From any thread, also from a finalizer; repeatable."""
        self.closed = True
        self._stop()


class Sampler(Annealed):
    """An iterator over batches; a context manager. Made by `Client.sampler` and `Buffer.sampler`.

    It is endless unless the table is closed (`Client.close_table`): then it ends after the last batch that the table
    can give; items too few for one more stay in the table.

    A failure of the source, such as `Timeout` or `ConnectionLost`, is raised by the next `next()` after the batches
    that were sampled before it, and ends the iteration. A batch belongs to the caller for as long as anything refers
    to it.

    A sampler that is dropped without `close` ends its threads and their connections. An interrupt, such as Ctrl-C,
    within `next()` may cost the batch that it was about to return. A forked child cannot use its parent's: `next()`
    raises `ReplayError`.
    """

    def __init__(
        self, draw: Draw, table: Callable[[], Table], cancel: Callable[[], None], options: SamplerOptions
    ) -> None:
        self._feed: _ThreadFeed = _ThreadFeed(draw, table, cancel, options)
        self._dropped = weakref.finalize(self, self._feed.close)
        self._dropped.atexit = False
        self._threads = [
            threading.Thread(target=self._feed.fill, args=(worker,), name="replay-sampler", daemon=True)
            for worker in range(options.workers)
        ]
        for thread in self._threads:
            thread.start()

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
        """Ends the background threads, cancelling samples that wait; a `next()` that waits stops."""
        self._feed.close()
        if self._feed.process == os.getpid():
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(timeout=5)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
