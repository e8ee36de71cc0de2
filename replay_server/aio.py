"""The asyncio twin of the client: the same methods, to be awaited; runs on uvloop as on asyncio's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from . import commands
from .aio_gradients import AsyncGradientMethods
from .aio_writer import AsyncNStepWriter, AsyncVectorNStepWriter, AsyncVectorWriter, AsyncWriter
from .batch import Batch, check_out, new_batch
from .checks import check_columns, check_ids, check_priorities
from .client import Client as BlockingClient
from .codec import Buffer, Reading, encode_command
from .commands import Command, ServedTable, SharedBatch, greet
from .connection import Address, Exchanges, ReadBuffer, on_same_host, set_options
from .connection import Connection as BlockingConnection
from .errors import ConnectionLost, ReplayError, SchemaError, TableClosed, error_of_own_request
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


async def _open_socket(address: Address, timeout_s: float) -> socket.socket:
    """A connected socket that does not block.

    Raises:
        ConnectionLost: nothing listens there, or it does not answer in time.
    """
    try:
        if address.path is not None:
            return await _connected(socket.AF_UNIX, address.path, timeout_s)
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for number, (family, _, _, _, target) in enumerate(found, 1):
            try:
                opened = await _connected(family, target, timeout_s)
                set_options(opened)
                return opened
            except (OSError, asyncio.TimeoutError):
                if number == len(found):  # a name may stand for several addresses, such as ::1 and 127.0.0.1
                    raise
        raise OSError("the name has no address")
    except (OSError, asyncio.TimeoutError) as error:
        sentence = getattr(error, "strerror", None) or str(error) or "no answer in time"
        raise ConnectionLost(f"cannot connect to {address}: {sentence}. Is the server running?") from error


async def _connected(family: int, target: Any, timeout_s: float) -> socket.socket:
    """A socket connected to one address, which does not block."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(opened, target), timeout_s)
    except BaseException:
        opened.close()
        raise
    return opened


class _TlsStream:
    """TLS over a socket that does not block: event loops read and write plain sockets alone."""

    def __init__(self, connected: socket.socket, address: Address) -> None:
        self._socket, self._loop = connected, asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = address.tls_context().wrap_bio(self._incoming, self._outgoing, server_hostname=address.host)

    async def _exchange(self) -> None:
        """Sends what TLS has to say, and takes in what the server has sent."""
        await self._flush()
        if data := await self._loop.sock_recv(self._socket, 64 * 1024):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._loop.sock_sendall(self._socket, data)

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._exchange()
        await self._flush()

    async def send(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        while view:
            view = view[self._tls.write(view[: 64 * 1024]) :]
            await self._flush()

    async def receive_into(self, target: memoryview) -> int:
        while True:
            try:
                count: Any = self._tls.read(len(target), target)  # with a target, a number
                return count
            except ssl.SSLWantReadError:
                await self._exchange()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0


class _Connection(Exchanges):
    """One connection, one request at a time. Any failure but an error reply closes it, cancellation too."""

    def __init__(self, address: Address, connected: socket.socket, socket_timeout: float) -> None:
        super().__init__(address)
        self._socket, self._timeout = connected, socket_timeout
        self._loop = asyncio.get_running_loop()
        self._buffer = ReadBuffer()
        self._tls: _TlsStream | None = None

    @classmethod
    async def open(cls, address: Address, connect_timeout: float, socket_timeout: float) -> _Connection:
        """Connects and greets; errors as for `connection.Connection`."""
        connection = cls(address, await _open_socket(address, connect_timeout), socket_timeout)
        try:
            if address.is_encrypted:
                await connection.encrypt(connect_timeout)
            await connection.execute(greet(address.username, address.password))
        except BaseException:
            connection.close()
            raise
        return connection

    async def encrypt(self, connect_timeout: float) -> None:
        """Begins TLS. Raises ConnectionLost where the two do not come to terms."""
        try:
            self._tls = _TlsStream(self._socket, self._address)
            await asyncio.wait_for(self._tls.handshake(), connect_timeout)
        except (OSError, asyncio.TimeoutError) as error:
            sentence = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise ConnectionLost(f"cannot connect to {self._address}: {sentence}") from error

    @classmethod
    async def open_shared(cls, address: Address, connect_timeout: float, socket_timeout: float) -> _Connection:
        """As `open`, with shared memory where the server is on this host and has some to share.

        asyncio has no way to receive a descriptor: connecting and greeting are left to a thread.
        """

        def connected() -> BlockingConnection:
            opened = BlockingConnection(address, connect_timeout, socket_timeout)
            if address.path is None:
                opened = on_same_host(opened, address, connect_timeout, socket_timeout)
            opened.share()
            return opened

        opened = await asyncio.get_running_loop().run_in_executor(None, connected)
        if address.is_encrypted and opened.arena is None:
            opened.close()  # on another host: TLS made by a thread does not go on here
            return await cls.open(address, connect_timeout, socket_timeout)
        detached = opened.detach()
        detached.setblocking(False)
        taken = cls(address, detached, socket_timeout)
        taken.arena = opened.arena
        return taken

    async def execute(self, command: Command[T]) -> T:
        buffers = encode_command(command.sent(self.arena))
        self.begin(command.what)
        try:
            result: Any = await self._exchange(command, buffers)
            if isinstance(result, SharedBatch):
                result = commands.over_shared_memory(result, self.arena)
            self.completed()
        except BaseException as error:
            self.close()
            if isinstance(error, ReplayError) or not isinstance(error, OSError | asyncio.TimeoutError):
                raise
            sentence = getattr(error, "strerror", None) or str(error) or "no progress in time"
            raise ConnectionLost(f"{command.what}: lost {self._address}: {sentence}") from error
        if isinstance(result, ReplayError):
            raise error_of_own_request(result)
        return result

    async def _exchange(self, command: Command[T], buffers: list[Buffer]) -> T | ReplayError:
        before = commands.release_returned(self.arena)
        if before is not None:
            buffers = encode_command(before.arguments) + buffers
        try:
            for buffer in buffers:
                await self._within(self._send(buffer), self._timeout)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await self._parting_words(command) or error from None
        if before is not None:
            await self._receive(before.read(), self._timeout)
        return await self._receive(command.read(), None if command.wait_s is None else command.wait_s + self._timeout)

    def _send(self, buffer: Buffer) -> Coroutine[Any, Any, None]:
        return self._loop.sock_sendall(self._socket, buffer) if self._tls is None else self._tls.send(buffer)

    async def _parting_words(self, command: Command[T]) -> ReplayError | None:
        """The error reply that the server sent before it closed on a request that it would not read to the end."""
        with contextlib.suppress(OSError, asyncio.TimeoutError, ReplayError):
            result = await self._within(self._receive(command.read(), None), 1.0)
            if isinstance(result, ReplayError):
                return error_of_own_request(result)
        return None

    async def _receive(self, reading: Reading[T], wait: float | None) -> T:
        wanted = next(reading)
        try:
            while True:
                if wanted is None:
                    while (line := self._buffer.line()) is None:
                        await self._more(wait)
                        wait = self._timeout  # the command's own wait is over once bytes come
                    wanted = reading.send(line)
                else:
                    filled = self._buffer.take(wanted)
                    while filled < len(wanted):
                        filled += await self._some(wanted[filled:], self._timeout)
                    while not self._buffer.skip_line_end():
                        await self._more(self._timeout)
                    wanted = reading.send(b"")
        except StopIteration as stop:
            return stop.value

    async def _more(self, wait: float | None) -> None:
        count = await self._some(self._buffer.space(), wait)
        self._buffer.end += count

    async def _some(self, target: memoryview, wait: float | None) -> int:
        if self._tls is None:
            count = await self._within(self._loop.sock_recv_into(self._socket, target), wait)
        else:
            count = await self._within(self._tls.receive_into(target), wait)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    @staticmethod
    async def _within(work: Any, seconds: float | None) -> Any:
        return await work if seconds is None else await asyncio.wait_for(work, seconds)

    def gone(self) -> bool:
        """Whether the server has closed an idle connection, as far as can be seen without sending."""
        try:
            seen = self._socket.recv(1, socket.MSG_PEEK)
            return seen == b"" or self._tls is not None  # of TLS, a good-bye is bytes too
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._complete = False
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


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
        self._address = Address.parse(url)
        self._timeouts = (connect_timeout, socket_timeout, reconnect_timeout)
        self._idle: list[_Connection] = []
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

    def _idle_one(self, shared: bool) -> _Connection | None:
        """An idle connection; those with shared memory are for commands that can use it."""
        for index in range(len(self._idle) - 1, -1, -1):
            if (self._idle[index].arena is not None) == shared:
                return self._idle.pop(index)
        return self._idle.pop() if self._idle and not shared else None

    async def _acquire(self, deadline: float, shared: bool = False) -> _Connection:
        while (connection := self._idle_one(shared and self._shares)) is not None:
            if connection.usable and not connection.gone():
                return connection
            connection.close()
        delay = 0.02
        while True:
            try:
                connect, sock, _ = self._timeouts
                if not (shared and self._shares):
                    return await _Connection.open(self._address, connect, sock)
                connection = await _Connection.open_shared(self._address, connect, sock)
                self._shares = connection.arena is not None  # else the server is elsewhere, or has no more to share
                return connection
            except ConnectionLost:
                if time.monotonic() + delay > deadline:
                    raise
                await asyncio.sleep(delay)
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
    ) -> Batch:
        """See `replay_server.Client.sample`."""
        shared = self._shared_memory and out is None
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
                return await self._run(commands.sample(served, batch_size, beta, timeout, batch, **options))
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
        connect, sock, reconnect = self._timeouts
        client = BlockingClient(self.url, connect_timeout=connect, socket_timeout=sock, reconnect_timeout=reconnect)
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
                    ready.put_nowait(await self.sample(name, batch_size, beta, timeout, None, columns, replace))
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
