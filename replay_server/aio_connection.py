"""One asyncio connection to a server: the same requests and replies as a blocking one, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from . import commands
from .codec import Buffer, Reading, encode_command
from .commands import Command, SharedBatch
from .connection import Address, Connection, Exchanges, Pending, ReadBuffer, in_records, on_same_host, set_options
from .errors import ConnectionLost, ReplayError, error_of_own_request

T = TypeVar("T")


async def _within(work: Awaitable[T], seconds: float | None) -> T:
    """As `asyncio.wait_for`, which up to Python 3.11 loses a cancellation that arrives together with the result: the
    command would go on, and wait for items that its caller no longer wants."""
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
        raise asyncio.TimeoutError
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
    """One connection, one request at a time. Any failure but an error reply closes it, cancellation too."""

    def __init__(self, address: Address, connected: socket.socket, socket_timeout: float) -> None:
        super().__init__(address)
        self._socket, self._timeout = connected, socket_timeout
        self._loop = asyncio.get_running_loop()
        self._buffer = ReadBuffer()
        self._tls: _TlsStream | None = None

    @classmethod
    async def open(cls, address: Address, connect_timeout: float, socket_timeout: float) -> AsyncConnection:
        """Connects and greets; errors as for `connection.Connection`."""
        connection = cls(address, await _open_socket(address, connect_timeout), socket_timeout)
        try:
            if address.is_encrypted:
                await connection.encrypt(connect_timeout)
            await connection.execute(address.greeting())
        except BaseException:
            connection.close()
            raise
        return connection

    async def encrypt(self, connect_timeout: float) -> None:
        """Begins TLS. Raises ConnectionLost where the two do not come to terms."""
        try:
            self._tls = _TlsStream(self._socket, self._address)
            await _within(self._tls.handshake(), connect_timeout)
        except (OSError, asyncio.TimeoutError) as error:
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
            await self._send(buffers)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await self._parting_words(command) or error from None
        if before is not None:
            await self._receive(before.read(), self._timeout)
        return await self._receive(command.read(), None if command.wait_s is None else command.wait_s + self._timeout)

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        if self._tls is not None:
            for piece in in_records(buffers):
                await _within(self._tls.send(piece), self._timeout)
            return
        pending = Pending(buffers)
        while vectors := pending.next():
            try:
                pending.advance(self._socket.sendmsg(vectors))
            except BlockingIOError:
                await _within(self._loop.sock_sendall(self._socket, vectors[0]), self._timeout)
                pending.advance(len(vectors[0]))

    async def _parting_words(self, command: Command[T]) -> ReplayError | None:
        """The error reply that the server sent before it closed on a request that it would not read to the end."""
        with contextlib.suppress(OSError, asyncio.TimeoutError, ReplayError):
            result = await _within(self._receive(command.read(), None), 1.0)
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
            count = await _within(self._loop.sock_recv_into(self._socket, target), wait)
        else:
            count = await _within(self._tls.receive_into(target), wait)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        return count

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
