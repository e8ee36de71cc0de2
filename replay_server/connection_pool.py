"""The connections of one client: idle ones are used again, lost ones replaced, and none outlives its last holder.

There is no lock here. An interrupt (a signal handler that raises) may come between any two steps, a fork may happen
while other threads are at work, and a finalizer may call `close` in the middle of anything. So each step is one
operation of a list or a dict that happens whole or not at all, and a connection that fell out of all hands, in whatever
way, is closed by its own destructor: the pool refers weakly to those that are in use.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref

from .connection import Address, Connection, on_same_host
from .errors import ConnectionLost

_FIRST_DELAY_S = 0.02
_LONGEST_DELAY_S = 0.5


class ConnectionPool:
    """Any number of connections to one server, each for one command at a time.

    Args:
        address: where to.
        connect_timeout: seconds for one attempt to connect.
        socket_timeout: see `Connection`.
        shared_memory: whether connections to this host go over the unix socket that can share memory.
    """

    def __init__(self, address: Address, connect_timeout: float, socket_timeout: float, shared_memory: bool) -> None:
        self._address = address
        self._timeouts = (connect_timeout, socket_timeout)
        self._near = shared_memory and address.path is None
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self._plain: list[Connection] = []
        self._sharing: list[Connection] = []
        self._opened: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._until_closed = threading.Lock()
        self._until_closed.acquire()
        self._process = os.getpid()

    def acquire(self, deadline: float, shared: bool = False) -> Connection:
        """An idle connection that still stands, or a new one; connecting is tried until the deadline.

        `shared`: one with shared memory before others; else the other way around.

        Raises:
            ConnectionLost: nothing answers, or the pool is closed.
        """
        self._leave_parent()
        while (idle := self._idle_one(shared)) is not None:
            if idle.usable and not idle.gone():
                return idle
            idle.close()
        connection = self._connected_by(deadline)
        self._opened[next(self._numbers)] = connection
        if self.closed:  # `close` may have looked before the connection was among those opened
            connection.close()
            raise self._closed_error()
        return connection

    def release(self, connection: Connection) -> None:
        """Takes a connection back: to be used again, where its last reply was read whole."""
        if not connection.usable:
            connection.close()
            return
        (self._plain if connection.arena is None else self._sharing).append(connection)
        if self.closed:
            self._close_idle()

    def close(self) -> None:
        """Ends every connection, and waits on them at once. From any thread, also from a finalizer; repeatable."""
        self._leave_parent()
        self.closed = True
        with contextlib.suppress(RuntimeError):  # released already
            self._until_closed.release()
        for reference in self._opened.valuerefs():
            if (connection := reference()) is not None:
                connection.abort()
        self._close_idle()

    def _leave_parent(self) -> None:
        """In a forked child: its parent's connections are not its own (`Connection.usable`), nor is a lock that a
        thread held which is not here."""
        if self._process != os.getpid():
            self._begin()

    def _idle_one(self, shared: bool) -> Connection | None:
        for idle in (self._sharing, self._plain) if shared else (self._plain, self._sharing):
            with contextlib.suppress(IndexError):
                return idle.pop()
        return None

    def _close_idle(self) -> None:
        while (connection := self._idle_one(False)) is not None:
            connection.close()

    def _connected_by(self, deadline: float) -> Connection:
        delay = _FIRST_DELAY_S
        while not self.closed:
            try:
                return self._connected()
            except ConnectionLost:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                if self._until_closed.acquire(timeout=min(delay, left)):
                    self._until_closed.release()  # for others who wait
                delay = min(2 * delay, _LONGEST_DELAY_S)
        raise self._closed_error()

    def _connected(self) -> Connection:
        connection = Connection(self._address, *self._timeouts)
        return on_same_host(connection, self._address, *self._timeouts) if self._near else connection

    def _closed_error(self) -> ConnectionLost:
        return ConnectionLost(f"the client of {self._address} is closed")
