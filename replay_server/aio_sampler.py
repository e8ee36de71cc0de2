"""The sampler of the asyncio client: batches that a task samples ahead.

The task refers to a `_TaskFeed`, never to the `AsyncSampler`: one that was dropped without `close` cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from .batch import Batch, read_only
from .errors import TableClosed
from .options import SampleOptions, SamplerOptions
from .sampler import Annealed, Feed

Draw = Callable[[SampleOptions], Coroutine[Any, Any, Batch]]


class _TaskFeed(Feed):
    """A feed that a task fills."""

    def __init__(self, draw: Draw, options: SamplerOptions) -> None:
        super().__init__(options)
        self._draw = draw
        self.ready: asyncio.Queue[Batch | BaseException] = asyncio.Queue()
        self.room = asyncio.Semaphore(options.ahead)

    async def fill(self) -> None:
        """Samples until it is cancelled, or cannot."""
        tasks = [asyncio.ensure_future(self._fill()) for _ in range(self.options.requests)]
        try:
            await asyncio.gather(*tasks)
            self.ready.put_nowait(StopAsyncIteration())
        except Exception as error:
            self.ready.put_nowait(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self) -> None:
        """One request after another, until the table is closed."""
        try:
            while True:
                await self.room.acquire()
                batch = await self._draw(self.next_options())
                self.ready.put_nowait(batch if self.options.writable else read_only(batch))
        except TableClosed as error:
            self.table_closed = error


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """From any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(task.cancel)


class AsyncSampler(Annealed):
    """`replay_server.Sampler` for asyncio: an asynchronous iterator over batches. A task samples them ahead, from the
    first one on, or from `async with` on. An iterator that is dropped ends its task."""

    def __init__(self, draw: Draw, options: SamplerOptions) -> None:
        self._feed: _TaskFeed = _TaskFeed(draw, options)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.ensure_future(self._feed.fill())
            weakref.finalize(self, _cancel, asyncio.get_running_loop(), self._task).atexit = False

    async def __aenter__(self) -> AsyncSampler:
        self._start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncSampler:
        return self

    async def __anext__(self) -> Batch:
        feed = self._feed
        feed.check_process()
        self._start()
        item = await feed.ready.get()
        if isinstance(item, BaseException):
            feed.ready.put_nowait(StopAsyncIteration())  # an ended iterator stays ended, for others who wait too
            raise item
        feed.room.release()
        return item

    async def close(self) -> None:
        """Ends the task, cancelling a sample that waits; a task that waits for a batch gets the end of the
        iteration."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while not self._feed.ready.empty():
            self._feed.ready.get_nowait()
        self._feed.ready.put_nowait(StopAsyncIteration())
