"""Connections to a server whose sending and receiving is awaited, and the pool of an asyncio client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from .codec import Buffer, Reading
from .connection import Address, Connection, on_same_host, set_options
from .connection_pool import ConnectionPool
from .driver import wait
from .errors import ConnectionLost
from .exchanges import Exchanges
from .options import ClientOptions
from .socket_buffers import Pending, in_records

T = TypeVar("T")


async def _within(work: Awaitable[T], seconds: float | None) -> T:
    """As `asyncio.wait_for`, which up to Python 3.11 loses a cancellation that arrives together with the result: the
    command would go on, and wait for items that its caller no longer wants.

    Raises:
        TimeoutError: it took longer.
    """
    if sys.version_info >= (3, 11):
        async with asyncio.timeout(seconds):
            return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise TimeoutError
    return task.result()


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
            except OSError:
                if number == len(found):  # a name may stand for several addresses, such as ::1 and 127.0.0.1
                    raise
        raise OSError("the name has no address")
    except OSError as error:
        sentence = getattr(error, "strerror", None) or str(error) or "no answer in time"
        raise ConnectionLost(f"cannot connect to {address}: {sentence}. Is the server running?") from error


async def _connected(family: int, target: Any, timeout_s: float) -> socket.socket:
    """A socket connected to one address, which does not block."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await _within(asyncio.get_running_loop().sock_connect(opened, target), timeout_s)
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


class AsyncConnection(Exchanges):
    """One connection whose calls are awaited. Any failure but an error reply closes it, cancellation too."""

    def __init__(self, address: Address, connected: socket.socket, socket_timeout: float) -> None:
        super().__init__(address, connected, socket_timeout)
        self._loop = asyncio.get_running_loop()
        self._tls: _TlsStream | None = None

    @classmethod
    async def open(cls, address: Address, connect_timeout: float, socket_timeout: float) -> AsyncConnection:
        """Connects and greets; errors as for `connection.Connection`."""
        connection = cls(address, await _open_socket(address, connect_timeout), socket_timeout)
        try:
            if address.is_encrypted:
                await connection.encrypt(connect_timeout)
            await wait(connection.exchange(address.greeting()))
        except BaseException:
            connection.close()
            raise
        return connection

    async def encrypt(self, connect_timeout: float) -> None:
        """Begins TLS. Raises ConnectionLost where the two do not come to terms."""
        try:
            self._tls = _TlsStream(self._socket, self._address)
            await _within(self._tls.handshake(), connect_timeout)
        except OSError as error:
            sentence = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise ConnectionLost(f"cannot connect to {self._address}: {sentence}") from error

    @classmethod
    async def open_shared(cls, address: Address, connect_timeout: float, socket_timeout: float) -> AsyncConnection:
        """As `open`, with shared memory where the server is on this host and has some to share.

        asyncio has no way to receive a descriptor: connecting and greeting are left to a thread.
        """

        def connected() -> Connection:
            opened = Connection(address, connect_timeout, socket_timeout)
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

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """See `Exchanges`."""
        if self._tls is not None:
            for piece in in_records(buffers):
                await _within(self._tls.send(piece), self._socket_timeout)
            return
        pending = Pending(buffers)
        while vectors := pending.next():
            try:
                pending.advance(self._socket.sendmsg(vectors))
            except BlockingIOError:
                await _within(self._loop.sock_sendall(self._socket, vectors[0]), self._socket_timeout)
                pending.advance(len(vectors[0]))

    async def receive(self, reading: Reading[T], wait_s: float | None) -> T:
        """See `Exchanges`."""
        wanted = next(reading)
        try:
            while True:
                if wanted is None:
                    while (line := self._buffer.line()) is None:
                        await self._more(wait_s)
                        wait_s = self._socket_timeout  # the command's own wait is over once bytes come
                    wanted = reading.send(line)
                else:
                    filled = self._buffer.take(wanted)
                    while filled < len(wanted):
                        filled += await self._some(wanted[filled:], self._socket_timeout)
                    while not self._buffer.skip_line_end():
                        await self._more(self._socket_timeout)
                    wanted = reading.send(b"")
        except StopIteration as stop:
            return stop.value

    async def _more(self, wait_s: float | None) -> None:
        count = await self._some(self._buffer.space(), wait_s)
        self._buffer.end += count

    async def _some(self, target: memoryview, wait_s: float | None) -> int:
        if self._tls is None:
            count = await _within(self._loop.sock_recv_into(self._socket, target), wait_s)
        else:
            count = await _within(self._tls.receive_into(target), wait_s)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

    def gone(self) -> bool:
        """See `Exchanges`; one of another event loop, such as that of an earlier `asyncio.run`, is of no use here."""
        if self._loop is not asyncio.get_running_loop():
            return True
        try:
            seen = self._socket.recv(1, socket.MSG_PEEK)
            return seen == b"" or self._tls is not None  # of TLS, a good-bye is bytes too
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True


class AsyncPool(ConnectionPool[AsyncConnection]):
    """Connections whose calls are awaited. Those with shared memory are for commands that can use it."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._shares = bool(options.shared_memory)

    async def open(self, host: Address, shared: bool) -> AsyncConnection:
        """See `ConnectionPool`."""
        if not (shared and self._shares):
            return await AsyncConnection.open(host, *self._timeouts)
        connection = await AsyncConnection.open_shared(host, *self._timeouts)
        self._shares = connection.arena is not None  # else the server is elsewhere, or has no more to share
        return connection

    async def glance(self, host: Address) -> AsyncConnection:
        """See `ConnectionPool`."""
        return await AsyncConnection.open(host, self._look_timeout, self._look_timeout)

    async def pause(self, seconds: float) -> None:
        """See `ConnectionPool`."""
        await asyncio.sleep(seconds)

    def _idle_lists(self, shared: bool) -> tuple[list[AsyncConnection], ...]:
        return (self._sharing,) if shared and self._shares else super()._idle_lists(shared)
