"""The asyncio twin of the client: the same methods, to be awaited; runs on uvloop as on asyncio's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from . import commands
from .aio_connection import AsyncConnection
from .aio_gradients import AsyncGradientMethods
from .aio_writer import AsyncNStepWriter, AsyncVectorNStepWriter, AsyncVectorWriter, AsyncWriter
from .batch import Batch, check_out, is_writable, new_batch, read_only
from .checks import check_columns, check_ids, check_priorities
from .client import Client as BlockingClient
from .commands import Command, ServedTable
from .connection import Address
from .errors import ConnectionLost, ReplayError, SchemaError, TableClosed, TableNotFound
from .table import RateLimiter, Selector, Table

if TYPE_CHECKING:
    import redis.asyncio

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop where it is installed, on asyncio's own loop where not."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


class Client(AsyncGradientMethods):
    """`replay_server.Client` for asyncio, an asynchronous context manager: arguments, results and errors are the same.

    Each running command has a connection of its own, so any number of tasks may share a client. A cancelled command
    closes its connection: whether a cancelled `add` was stored is not known.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = 5.0,
        socket_timeout: float = 60.0,
        reconnect_timeout: float = 5.0,
        shared_memory: bool = False,
    ) -> None:
        self._shared_memory = self._shares = shared_memory
        self._address = Address.of_client(url)
        self._timeouts = (connect_timeout, socket_timeout, reconnect_timeout)
        self._idle: list[AsyncConnection] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._writers: weakref.WeakSet[BlockingClient] = weakref.WeakSet()
        self._tables: dict[str, ServedTable] = {}
        self._redis: redis.asyncio.Redis | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Client({str(self._address)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (type(self), self.url, self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """What makes a client like this one, beside the URL."""
        connect, sock, reconnect = self._timeouts
        timeouts = {"connect_timeout": connect, "socket_timeout": sock, "reconnect_timeout": reconnect}
        return {**timeouts, "shared_memory": self._shared_memory}

    @property
    def url(self) -> str:
        """The URL that the client was made with."""
        return self._address.url

    @property
    def redis(self) -> redis.asyncio.Redis:
        """A redis-py asyncio client of the same server."""
        if self._redis is None:
            import redis.asyncio

            connect, sock, _ = self._timeouts
            self._redis = redis.asyncio.Redis.from_url(
                self._address.url,
                socket_connect_timeout=connect,
                socket_timeout=sock,
                **self._address.redis_options(),
            )
        return self._redis

    async def close(self) -> None:
        """Closes every connection; commands that wait raise `ConnectionLost`."""
        self._closed = True
        current = asyncio.current_task()
        waiting = [task for task in self._running if task is not current]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for client in list(self._writers):
            client.close()
        if self._redis is not None:
            await self._redis.aclose()

    def _idle_one(self, shared: bool) -> AsyncConnection | None:
        """An idle connection; those with shared memory are for commands that can use it."""
        for index in range(len(self._idle) - 1, -1, -1):
            if (self._idle[index].arena is not None) == shared:
                return self._idle.pop(index)
        return self._idle.pop() if self._idle and not shared else None

    async def _acquire(self, deadline: float, shared: bool = False) -> AsyncConnection:
        while (connection := self._idle_one(shared and self._shares)) is not None:
            if connection.usable and not connection.gone():
                return connection
            connection.close()
        delay = 0.02
        while True:
            try:
                connect, sock, _ = self._timeouts
                if not (shared and self._shares):
                    return await AsyncConnection.open(self._address, connect, sock)
                connection = await AsyncConnection.open_shared(self._address, connect, sock)
                self._shares = connection.arena is not None  # else the server is elsewhere, or has no more to share
                return connection
            except ConnectionLost:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                await asyncio.sleep(min(delay, left))
                delay = min(2 * delay, 0.5)

    async def _attempts(self, command: Command[T]) -> T:
        deadline = time.monotonic() + self._timeouts[2]
        while True:
            connection = await self._acquire(deadline, command.shared)
            try:
                return await connection.execute(command)
            except ConnectionLost:
                if not command.repeatable:
                    raise
                if command.wait_s is None or command.wait_s > 0:
                    deadline = max(deadline, time.monotonic() + self._timeouts[2])
                if time.monotonic() > deadline:
                    raise
            finally:
                if connection.usable and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _run(self, command: Command[T]) -> T:
        """Runs a command in a task of its own, so that `close` can end it without cancelling the caller's task."""
        try:
            return await self._cancellable(command)
        except TableNotFound as error:
            known: list[str] = []
            with contextlib.suppress(ReplayError):
                known = await self._cancellable(commands.tables())
            raise commands.with_known_tables(error, str(command.arguments[1]), known) from None

    async def _cancellable(self, command: Command[T]) -> T:
        if self._closed:
            raise ConnectionLost(f"{command.what}: the client of {self._address} is closed")
        task = asyncio.ensure_future(self._attempts(command))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise ConnectionLost(f"{command.what}: the client of {self._address} was closed") from None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ReplayError):
                await task
            raise
        finally:
            self._running.discard(task)

    async def _look_up(self, name: str) -> ServedTable:
        """The table of that name as the server has it now."""
        self._tables.pop(name, None)
        served = await self._run(commands.spec(name))
        self._tables[name] = served
        return served

    async def _known(self, name: str) -> ServedTable:
        """The table as it was when last looked up; what follows from it is sent with its incarnation."""
        served = self._tables.get(name)
        return await self._look_up(name) if served is None else served

    # ---- tables ------------------------------------------------------------------------------------------------------

    async def create_table(self, table: Table) -> None:
        """See `replay_server.Client.create_table`."""
        await self._run(commands.create(table))
        self._tables.pop(table.name, None)

    async def tables(self) -> list[str]:
        """See `replay_server.Client.tables`."""
        return await self._run(commands.tables())

    async def table(self, name: str) -> Table:
        """See `replay_server.Client.table`."""
        return (await self._look_up(name)).table

    async def drop_table(self, name: str) -> None:
        """See `replay_server.Client.drop_table`."""
        await self._run(commands.drop(name))
        self._tables.pop(name, None)

    async def close_table(self, name: str, reason: str | None = None) -> None:
        """See `replay_server.Client.close_table`."""
        await self._run(commands.close_table(name, reason))

    async def open_table(self, name: str) -> None:
        """See `replay_server.Client.open_table`."""
        await self._run(commands.open_table(name))

    async def configure(
        self,
        name: str,
        *,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        max_bytes: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        """See `replay_server.Client.configure`."""
        changes = {
            "sampler": sampler,
            "remover": remover,
            "rate_limiter": rate_limiter,
            "max_times_sampled": max_times_sampled,
            "max_bytes": max_bytes,
            "max_staleness": max_staleness,
        }
        await self._run(commands.configure(name, changes))
        self._tables.pop(name, None)

    async def info(self, name: str) -> dict[str, Any]:
        """See `replay_server.Client.info`."""
        return await self._run(commands.info(name))

    async def command(self, *arguments: str | bytes | int, repeatable: bool = False) -> Any:
        """See `replay_server.Client.command`."""
        return await self._run(commands.any_command(arguments, repeatable))

    async def await_items(
        self, name: str, *, since: int | None = None, size: int | None = None, timeout: float | None = None
    ) -> tuple[int, int]:
        """See `replay_server.Client.await_items`."""
        return await self._run(commands.await_items(name, since, size, timeout))

    async def reset(self, name: str) -> None:
        """See `replay_server.Client.reset`."""
        await self._run(commands.reset(name))

    async def checkpoint(self, name: str | None = None) -> str:
        """See `replay_server.Client.checkpoint`."""
        return await self._run(commands.checkpoint(name))

    async def restore(self, name: str) -> list[str]:
        """See `replay_server.Client.restore`."""
        return await self._run(commands.restore(name))

    # ---- items -------------------------------------------------------------------------------------------------------

    async def add(
        self, name: str, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None
    ) -> np.ndarray:
        """See `replay_server.Client.add`."""
        served = await self._known(name)
        try:
            return await self._add(served, data, priorities, timeout)
        except SchemaError:
            if (current := await self._look_up(name)).incarnation == served.incarnation:
                raise
        return await self._add(current, data, priorities, timeout)

    async def _add(
        self, served: ServedTable, data: Mapping[str, Any], priorities: Any, timeout: float | None
    ) -> np.ndarray:
        count, columns = check_columns(served.table, data)
        checked = None if priorities is None else check_priorities(priorities, count)
        if count == 0:
            return np.empty(0, np.uint64)
        return await self._run(commands.add(served, count, columns, checked, timeout))

    async def sample(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float = 0.4,
        timeout: float | None = None,
        out: Batch | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        policy_version: int | None = None,
        coded: bool | None = None,
        writable: bool | None = None,
    ) -> Batch:
        """See `replay_server.Client.sample`."""
        keeps = is_writable(writable, out, self._shared_memory)
        shared = bool(self._shared_memory) and not keeps
        for attempt in (0, 1):
            served = await self._known(name)
            try:
                if out is not None:
                    check_out(out, served.table, batch_size, columns)
                batch = new_batch(served.table, batch_size, columns) if out is None else out
                beta = importance_sampling_exponent
                wanted = False if shared and coded is None and self._address.is_local else coded
                codes = commands.codes(served.table, batch_size, columns, wanted, local=self._address.is_local)
                options = {"columns": columns, "replace": replace, "policy_version": policy_version}
                options |= {"shared": shared and not codes, "coded": codes}
                sampled = await self._run(commands.sample(served, batch_size, beta, timeout, batch, **options))
                return sampled if keeps else read_only(sampled)
            except SchemaError:
                if attempt or (await self._look_up(name)).incarnation == served.incarnation:
                    raise
        raise AssertionError("unreachable")

    async def get(self, name: str, ids: Any) -> Batch:
        """See `replay_server.Client.get`."""
        checked = check_ids(ids)
        for attempt in (0, 1):
            served = await self._known(name)
            try:
                batch = new_batch(served.table, len(checked))
                return await self._run(commands.get(served, checked, batch))
            except SchemaError:
                if attempt or (await self._look_up(name)).incarnation == served.incarnation:
                    raise
        raise AssertionError("unreachable")

    async def update_priorities(self, name: str, ids: Any, priorities: Any) -> tuple[int, int]:
        """See `replay_server.Client.update_priorities`."""
        checked = check_ids(ids)
        return await self._run(commands.update(name, checked, check_priorities(priorities, len(checked))))

    async def delete(self, name: str, ids: Any) -> int:
        """See `replay_server.Client.delete`."""
        return await self._run(commands.delete(name, check_ids(ids)))

    @overload
    async def writer(self, name: str, *, n_step: None = None, discount: None = None, **options: Any) -> AsyncWriter: ...

    @overload
    async def writer(self, name: str, *, n_step: int, discount: float, **options: Any) -> AsyncNStepWriter: ...

    async def writer(
        self, name: str, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> AsyncWriter | AsyncNStepWriter:
        """See `replay_server.Client.writer`; `async with await client.writer("t") as writer: …`."""
        client, kind = self._blocking(), AsyncWriter if n_step is None else AsyncNStepWriter
        made = functools.partial(client.writer, name, n_step=n_step, discount=discount, **options)  # type: ignore
        return kind(client, await asyncio.to_thread(made))

    @overload
    async def vector_writer(
        self, name: str, environments: int, *, n_step: None = None, discount: None = None, **options: Any
    ) -> AsyncVectorWriter: ...

    @overload
    async def vector_writer(
        self, name: str, environments: int, *, n_step: int, discount: float, **options: Any
    ) -> AsyncVectorNStepWriter: ...

    async def vector_writer(
        self, name: str, environments: int, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> AsyncVectorWriter | AsyncVectorNStepWriter:
        """See `replay_server.Client.vector_writer`; `async with await client.vector_writer("t", 8) as writer: …`."""
        client, kind = self._blocking(), AsyncVectorWriter if n_step is None else AsyncVectorNStepWriter
        made = functools.partial(client.vector_writer, name, environments, n_step=n_step, discount=discount, **options)  # type: ignore
        return kind(client, await asyncio.to_thread(made))

    def _blocking(self) -> BlockingClient:
        """A blocking client for one writer, which owns its connection."""
        if self._closed:
            raise ConnectionLost(f"the client of {self._address} is closed")
        client = BlockingClient(self.url, **{**self._options, "shared_memory": None})
        self._writers.add(client)
        return client

    @contextlib.asynccontextmanager
    async def sampler(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float = 0.4,
        prefetch: int = 2,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        writable: bool = False,
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        """`async with client.sampler("t", 512) as batches: async for batch in batches: …`, sampled ahead by a task."""
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1 batch, got {prefetch}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        ready: asyncio.Queue[Batch | BaseException] = asyncio.Queue()
        room = asyncio.Semaphore(prefetch)
        ended = StopAsyncIteration()

        async def fill() -> None:
            try:
                while True:
                    await room.acquire()
                    beta = importance_sampling_exponent
                    options = {"columns": columns, "replace": replace, "writable": writable}
                    ready.put_nowait(await self.sample(name, batch_size, beta, timeout, **options))
            except TableClosed:
                ready.put_nowait(ended)
            except Exception as error:
                ready.put_nowait(error)

        async def batches() -> AsyncIterator[Batch]:
            while not isinstance(item := await ready.get(), BaseException):
                room.release()
                yield item
            if item is not ended:
                raise item

        task = asyncio.ensure_future(fill())
        try:
            yield batches()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            while not ready.empty():
                ready.get_nowait()
            ready.put_nowait(ended)  # for whoever still waits for a batch

    # ---- weights -----------------------------------------------------------------------------------------------------

    async def publish_weights(self, key: str, arrays: Mapping[str, Any], version: int | None = None) -> int:
        """See `replay_server.Client.publish_weights`."""
        return await self._run(commands.publish_weights(key, arrays, version))

    async def fetch_weights(self, key: str, newer_than: int | None = None) -> tuple[int, dict[str, np.ndarray]] | None:
        """See `replay_server.Client.fetch_weights`."""
        return await self._run(commands.fetch_weights(key, newer_than))


def _client(kind: type[Client], url: str, options: dict[str, Any]) -> Client:
    """What a pickled client becomes."""
    return kind(url, **options)
