"""One request and its reply over one connection, whatever its kind: what may be sent, and what an interrupt leaves."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import commands
from .batch_replies import SharedBatch, over_shared_memory
from .codec import Buffer, Reading, encode_command
from .commands import Command
from .driver import Operation
from .errors import ConnectionLost, ReplayError, error_of_own_request
from .shared_memory import Arena
from .socket_buffers import ReadBuffer

if TYPE_CHECKING:
    from .connection import Address

T = TypeVar("T")
_process = os.getpid()


def _look_up_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_look_up_process)  # to ask the kernel three times for each command would take longer


def how_lost(error: OSError) -> str:
    """Why a connection counts as lost, in words."""
    late = isinstance(error, TimeoutError | BlockingIOError)
    return "no progress in time" if late else error.strerror or str(error)


class Exchanges:
    """What both kinds of connection do: one request at a time, each sent after the reply before it was read whole, by
    the process that opened the connection.

    After an interrupt in mid-exchange the next reply would be taken for another request's, and a forked child would
    read its parent's. So a request goes out by `begin` alone, and only `completed` makes the next one possible. One
    that nobody refers to closes itself.
    """

    def __init__(self, address: Address, connected: socket.socket, socket_timeout: float) -> None:
        self._address, self._socket, self._socket_timeout = address, connected, socket_timeout
        self.host = address
        """Which host of the client's URL it leads to: `ConnectionPool` says so, which may be connected otherwise."""
        self._process = _process
        self._complete = True
        self._may_share = False
        self._buffer = ReadBuffer()
        self.arena: Arena | None = None

    @property
    def usable(self) -> bool:
        """Whether the connection can carry another request."""
        return self._complete and self.is_own and (self.arena is None or not self.arena.retired)

    @property
    def is_own(self) -> bool:
        """Whether this process opened the connection."""
        return self._process == _process

    def begin(self, what: str) -> None:
        """Before anything of a request is sent; `what` is for the error.

        Raises:
            ConnectionLost: the connection is not usable; nothing was sent.
        """
        if not self._complete:
            raise ConnectionLost(
                f"{what}: expected a connection whose last reply was read, got one of {self._address} that was closed "
                "or interrupted; connect again"
            )
        if not self.is_own:
            raise ConnectionLost(
                f"{what}: expected a connection of this process, {os.getpid()}, got one that process {self._process} "
                "opened before it forked; connect again"
            )
        self._complete = False

    def completed(self) -> None:
        """The reply was read whole, and all that came with it has an owner."""
        self._complete = True

    def exchange(self, command: Command[T]) -> Operation[T]:
        """Sends a command and returns its result. Any failure but an error reply closes the connection.

        A command whose reply may come through shared memory first gets some, if the server has any to share; leases
        that were given back are told to the server before the command.

        Raises:
            ReplayError: the error reply.
            ConnectionLost: the connection broke.
        """
        buffers = encode_command(command.sent((yield from self.shared(command.shared))))
        self.begin(command.what)
        try:
            result: Any = yield from self._answer(command, buffers)
            if isinstance(result, SharedBatch):
                result = over_shared_memory(result, self.arena)
            self.completed()
        except BaseException as error:
            self.close()
            if isinstance(error, ReplayError) or not isinstance(error, OSError):
                raise
            raise ConnectionLost(f"{command.what}: lost {self._address}: {how_lost(error)}") from error
        if isinstance(result, ReplayError):
            raise error_of_own_request(result)
        return result

    def _answer(self, command: Command[T], buffers: list[Buffer]) -> Operation[T | ReplayError]:
        before = commands.release_returned(self.arena)
        if before is not None:
            buffers = encode_command(before.arguments) + buffers
        try:
            yield self.send, buffers
        except (BrokenPipeError, ConnectionResetError) as error:
            raise (yield from self._parting_words(command)) or error from None
        if before is not None:
            yield self.receive, before.read(), self._socket_timeout
        wait_s = None if command.wait_s is None else command.wait_s + self._socket_timeout
        return (yield self.receive, command.read(), wait_s)

    def _parting_words(self, command: Command[Any]) -> Operation[ReplayError | None]:
        """The error reply that the server sent before it closed on a request that it would not read to the end."""
        with contextlib.suppress(OSError, ReplayError):
            result = yield self.receive, command.read(), 1.0
            if isinstance(result, ReplayError):
                return error_of_own_request(result)
        return None

    def shared(self, usable: bool) -> Operation[Arena | None]:
        """The connection's shared memory, which is asked for before the first command that can use it."""
        if usable and self._may_share and self.arena is None:
            yield from self._share()
        return self.arena

    def _share(self) -> Operation[None]:
        """Asks for shared memory, once."""
        raise NotImplementedError

    def send(self, buffers: Sequence[Buffer]) -> Any:
        """Sends them one after another, as a call or as what is to be awaited."""
        raise NotImplementedError

    def receive(self, reading: Reading[Any], wait_s: float | None) -> Any:
        """What a reply is read as, whose first bytes may take `wait_s` seconds to come (None = for ever), as a call or
        as what is to be awaited."""
        raise NotImplementedError

    def gone(self) -> bool:
        """Whether the server has closed an idle connection, as far as can be seen without sending."""
        raise NotImplementedError

    def abort(self) -> None:
        """From any thread: ends the connection, and a wait on it at once. A forked child leaves its parent's alone."""
        if not self.is_own:
            return
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would wait for its lock

    def close(self) -> None:
        """Closes this process's end."""
        self._complete = False
        self._socket.close()

    def __del__(self) -> None:
        if (left := getattr(self, "_socket", None)) is not None:
            left.close()
