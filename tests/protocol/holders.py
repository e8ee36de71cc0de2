"""The drivers under which holders of a connection are tested: calls that block, asyncio's, a buffer in this process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import replay_server as rs
from replay_server import aio

ROUNDS = 400


ITEMS = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}


STEPS = {
    "number": rs.Column("int64"),
    "reward": rs.Column("float32"),
    "discount": rs.Column("float32"),
    "seen": rs.Window("number", length=4),
}


N_STEPS = {**STEPS, "next": rs.Window("number", offset=1)}


class GivenUp(BaseException):
    """What the signal's handler raises, as Python's own raises KeyboardInterrupt."""


class Driver:
    """Calls that block."""

    kind = "blocking"

    def __init__(self, url: str, make_table: Callable[..., str]) -> None:
        self.url, self._make_table = url, make_table
        self.random = random.Random(7)
        self.given_up = 0
        self._clients: list[Any] = []

    def table(self, capacity: int = 100, signature: Any = ITEMS, **parts: Any) -> Any:
        """A holder of a new table."""
        return self.again(self._make_table(capacity, signature, **parts))

    def again(self, name: str) -> Any:
        """Another holder of a table, over a client of its own."""
        return self.client()[name]

    def client(self) -> Any:
        """A client of its own."""
        return self._keep(rs.Client(self.url))

    def rollouts(self, name: str, **settings: Any) -> Any:
        """Rollouts over a client of their own."""
        return rs.Rollouts(self.client(), name, **settings)

    def lone(self, name: str) -> Any:
        """A holder that nobody else refers to."""
        return rs.Client(self.url)[name]

    def _keep(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def get(self, call: Callable[[], Any]) -> Any:
        """What a call returns."""
        return call()

    def give_up(self, call: Callable[[], Any], shortest_s: float = 1e-5, longest_s: float = 3e-3) -> Any:
        """The result of a call, or the `GivenUp` that ended it."""
        delay = shortest_s * (longest_s / shortest_s) ** self.random.random()
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                return call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except GivenUp as interrupt:
            self.given_up += 1
            return interrupt.with_traceback(None)

    def beside_each_other(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """What calls return that run in threads of their own."""
        results: list[Any] = [None] * len(calls)

        def one(index: int) -> None:
            results[index] = calls[index]()

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    @contextlib.contextmanager
    def sampling(self, sampler: Any) -> Iterator[Callable[[], Any]]:
        """What gives the next batch."""
        with sampler as batches:
            yield lambda: next(batches)

    def begun(self, sampler: Any) -> Any:
        """A sampler that is at work."""
        return sampler

    def close(self) -> None:
        for client in self._clients:
            client.close()


class InProcess(Driver):
    """A buffer."""

    kind = "in process"

    def table(self, capacity: int = 100, signature: Any = ITEMS, **parts: Any) -> Any:
        return rs.Buffer(rs.Table("t", capacity, signature, **parts))


class Asyncio(Driver):
    """Calls that are awaited."""

    kind = "asyncio"

    def __init__(self, url: str, make_table: Callable[..., str]) -> None:
        super().__init__(url, make_table)
        self._loop = asyncio.new_event_loop()

    def client(self) -> Any:
        return self._keep(aio.Client(self.url))

    def rollouts(self, name: str, **settings: Any) -> Any:
        return aio.AsyncRollouts(self.client(), name, **settings)

    def lone(self, name: str) -> Any:
        return aio.Client(self.url)[name]

    def get(self, call: Callable[[], Any]) -> Any:
        return self._loop.run_until_complete(self._awaited(call))

    @staticmethod
    async def _awaited(call: Callable[[], Any]) -> Any:
        value = call()
        return await value if inspect.isawaitable(value) else value

    def give_up(self, call: Callable[[], Any], shortest_s: float = 1e-5, longest_s: float = 3e-3) -> Any:
        delay = shortest_s * (longest_s / shortest_s) ** self.random.random()

        async def cancelled() -> Any:
            task = asyncio.ensure_future(self._awaited(call))
            until = time.monotonic() + delay
            while time.monotonic() < until and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                return task.result()
            self.given_up += 1
            return GivenUp()

        return self._loop.run_until_complete(cancelled())

    def beside_each_other(self, calls: list[Callable[[], Any]]) -> list[Any]:
        async def together() -> list[Any]:
            return await asyncio.gather(*(self._awaited(call) for call in calls))

        return self._loop.run_until_complete(together())

    @contextlib.contextmanager
    def sampling(self, sampler: Any) -> Iterator[Callable[[], Any]]:
        batches = self.get(sampler.__aenter__)
        try:
            yield batches.__anext__
        finally:
            self.get(batches.close)

    def begun(self, sampler: Any) -> Any:
        return self.get(sampler.__aenter__)

    def close(self) -> None:
        for client in self._clients:
            self.get(client.close)
        self.get(self._loop.shutdown_default_executor)
        self._loop.close()


def fill(driver: Driver, holder: Any, items: Callable[..., Any], count: int) -> np.ndarray:
    return driver.get(lambda: holder.add(items(*range(count))))
