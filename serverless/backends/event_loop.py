"""An event loop in a thread of its own, on which a thousand functions are waited for without a thread for each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import replay_server as rs

T = TypeVar("T")

CLOSE_S = 5.0
"""How long tasks may take to end when the loop is closed, before they are cancelled."""


class EventLoop:
    """Runs coroutines for other threads: on uvloop where it is installed (`replay_server.aio.run`)."""

    def __init__(self, name: str) -> None:
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._loop = self._begun.result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins to run it. Cancelling the future cancels it. RuntimeError where the loop is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it to its end, as seen from a thread that is not the loop's own."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()  # where an interrupt ended the wait

    def close(self) -> None:
        """Ends the loop when its tasks have ended, and what has not ended then; safe to call twice."""
        with contextlib.suppress(RuntimeError):  # It has ended.
            self._loop.call_soon_threadsafe(self._ending.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * CLOSE_S)

    def _run(self) -> None:
        try:
            rs.aio.run(self._main())
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)

    async def _main(self) -> None:
        self._begun.set_result(asyncio.get_running_loop())
        await self._ending.wait()
        ends = time.monotonic() + CLOSE_S
        while running := asyncio.all_tasks() - {asyncio.current_task()}:
            if (left_s := ends - time.monotonic()) > 0:
                await asyncio.wait(running, timeout=left_s)
                continue
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CLOSE_S)
            return
