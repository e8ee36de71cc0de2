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
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from .commands import Standing, fence, is_a_primary
from .connection import Address, Connection, on_same_host
from .driver import Operation
from .errors import ConnectionLost, ReplayError, ServerError
from .exchanges import Exchanges
from .options import ClientOptions

C = TypeVar("C", bound=Exchanges)
_FIRST_DELAY_S = 0.02
_LONGEST_DELAY_S = 0.5
_LOOK_S = 1.0
"""How long a host may take to answer when all hosts are looked at, and how long what was seen is relied on."""
_SILENT_S = 5.0
"""How long one that does not answer is passed over then."""


def _undecided(hosts: Iterable[Address]) -> ConnectionLost:
    rule = "let the others follow one of them (REPLICAOF host port), or list only one primary and its replicas"
    return ConnectionLost(
        f"several hosts are primaries, and none of them is the newest: {', '.join(map(str, hosts))}: {rule}"
    )


class ConnectionPool(Generic[C]):
    """Any number of connections to one server, each for one command at a time.

    Args:
        address: where to.
        options: how to connect.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self._timeouts = (options.connect_timeout, options.socket_timeout)
        self._look_timeout = min(_LOOK_S, *self._timeouts)
        self.primary = address.hosts[0]
        """The host that was last found to be the primary; of one host alone nothing is asked."""
        self._origin = ""  # of the data that this client uses; empty: no primary has told yet
        self._epoch = 0  # the newest of these data that any host has told
        self._look_at = 0.0  # when all hosts are to be looked at again
        self._silent_until: dict[Address, float] = {}  # hosts that did not answer, which are not looked at until then
        self.closed = False
        self.still_expected: Callable[[], Operation[bool]] | None = None
        """Asked when a connection was refused and there is time to try again: whether to."""
        self.lost = 0
        """Connections that broke, as far as was seen: under a call, or when an idle one was to be used."""
        self._begin()

    def _begin(self) -> None:
        self._plain: list[C] = []
        self._sharing: list[C] = []
        self._opened: weakref.WeakValueDictionary[int, C] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._until_closed = threading.Lock()
        self._until_closed.acquire()
        self._process = os.getpid()

    def open(self, host: Address, shared: bool) -> Any:
        """A new connection, or what awaits it; `shared`: for a command whose reply may come through shared memory.

        Raises:
            ConnectionLost: nothing answers.
        """
        raise NotImplementedError

    def glance(self, host: Address) -> Any:
        """A connection to ask what the host is, or what awaits it; soon given up.

        Raises:
            ConnectionLost: nothing answers.
        """
        raise NotImplementedError

    def pause(self, seconds: float) -> Any:
        """Lets time go by, as a call or as what is to be awaited."""
        raise NotImplementedError

    def connected(self, deadline: float, shared: bool = False) -> Operation[C]:
        """An idle connection that still stands, or a new one; connecting is tried until the deadline.

        `shared`: one with shared memory before others; else the other way around.

        Raises:
            ConnectionLost: nothing answers, or the pool is closed.
        """
        if (idle := self.idle(shared)) is not None:
            return idle
        delay = _FIRST_DELAY_S
        while not self.closed:
            try:
                connection: C = yield from self._to_primary(shared)
            except ConnectionLost:
                left = deadline - time.monotonic()
                if left <= 0 or (self.still_expected is not None and not (yield from self.still_expected())):
                    raise
                yield self.pause, min(delay, left)
                delay = min(2 * delay, _LONGEST_DELAY_S)
                continue
            self._opened[next(self._numbers)] = connection
            if not self.closed:
                return connection
            connection.close()  # `close` may have looked before the connection was among those opened
        raise ConnectionLost(f"the client of {self.address} is closed")

    def found_primary(self, deadline: float) -> Operation[Address]:
        """The host that says now that it is the primary; of one host alone nothing is asked.

        Raises:
            ConnectionLost: none does until the deadline, or the pool is closed.
        """
        while self.address.several:
            connection = yield from self.connected(deadline)
            try:
                standing = yield from self._ask(connection)
            except BaseException as error:
                connection.close()
                if not isinstance(error, ConnectionLost) or time.monotonic() > deadline:
                    raise
                self.lost += 1
                continue
            if standing.takes_writes:
                self.release(connection)
                break
            self.leave_replica(connection)
            if time.monotonic() > deadline:
                raise ConnectionLost(f"no primary answers: all of {self.address} are replicas, or older primaries")
            yield self.pause, _FIRST_DELAY_S
        return self.primary

    def idle(self, shared: bool = False) -> C | None:
        """A connection that is not used and still stands; None where that takes connecting."""
        self._leave_parent()
        while (idle := self._idle_one(shared)) is not None:
            if self._stands(idle):
                return idle
        return None

    def _to_primary(self, shared: bool) -> Operation[C]:
        """A new connection to the host that is the primary."""
        if not self.address.several:
            return (yield from self._open(self.address, shared))
        if time.monotonic() >= self._look_at:
            yield from self._look_around()
        others = [host for host in self.address.several if host != self.primary]
        refusals = []
        for host in [self.primary, *others]:
            try:
                connection = yield from self._open(host, shared)
            except ConnectionLost as error:
                refusals.append(str(error))
                continue
            try:
                standing = yield from self._ask(connection)
            except BaseException:
                connection.close()
                raise
            related = standing.origin in ("", self._origin) or not self._origin
            if standing.takes_writes and related:
                self._origin = self._origin or standing.origin
                self.primary = host
                return connection
            connection.close()
            older = f"is a primary of epoch {standing.epoch}, and one of epoch {standing.newest} has taken its place"
            what = older if related else "is a primary of other data than this client has used so far"
            refusals.append(f"{host} {what if standing.is_primary else 'is a replica'}")
        raise ConnectionLost(f"no primary answers: {'; '.join(refusals)}")

    def _open(self, host: Address, shared: bool) -> Operation[C]:
        connection: C = yield self.open, host, shared
        connection.host = host
        return connection

    def _ask(self, connection: C) -> Operation[Standing]:
        """What the connection's host is, which is told of the newest epoch that any host of these data has told."""
        try:
            standing = yield from connection.exchange(fence(self._epoch, self._origin))
        except ServerError as error:
            if error.code not in ("ERR", "NOPERM"):  # it does not know the command, or this user may not send it
                raise
            return Standing((yield from connection.exchange(is_a_primary())))
        if self._origin and standing.origin == self._origin:
            self._epoch = max(self._epoch, standing.newest)
        return standing

    def _look_around(self) -> Operation[None]:
        """Asks all hosts what they are. A primary whose place another one has taken is told so, and the newest one is
        the first to be connected to. Hosts that do not answer soon are passed over, for a while.

        Raises:
            ConnectionLost: there are several primaries, and this client cannot tell which of them to write to.
        """
        answers: list[tuple[Address, C, Standing]] = []
        try:
            for host in self.address.several:
                if time.monotonic() < self._silent_until.get(host, 0.0):
                    continue
                self._silent_until[host] = time.monotonic() + _SILENT_S
                with contextlib.suppress(ReplayError):  # why one does not answer is said when it is connected to
                    connection: C = yield self.glance, host
                    standing = yield from self._ask(connection)
                    del self._silent_until[host]
                    answers.append((host, connection, standing))
            self._choose_origin({host: standing for host, _, standing in answers})
            primaries = [
                answer for answer in answers if answer[2].is_primary and answer[2].origin in ("", self._origin)
            ]
            for _, connection, standing in primaries:
                if standing.epoch is not None and standing.epoch < self._epoch:
                    with contextlib.suppress(ReplayError):
                        yield from self._ask(connection)
        finally:
            for _, connection, _ in answers:
                connection.close()
        newest = max((standing.epoch or 0 for _, _, standing in primaries), default=0)
        hosts = [host for host, _, standing in primaries if standing.epoch in (None, newest)]
        if sum(standing.epoch == newest for _, _, standing in primaries) > 1:
            raise _undecided(hosts)
        if hosts and self.primary not in hosts:
            self.primary = hosts[0]
        self._look_at = time.monotonic() + _LOOK_S

    def _choose_origin(self, told: dict[Address, Standing]) -> None:
        """Which data this client uses: those of the first primary that it found, unless all hosts tell of others.

        Raises:
            ConnectionLost: the primaries have different ones.
        """
        every_host = len(told) == len(self.address.several)
        if self._origin and (not every_host or self._origin in [standing.origin for standing in told.values()]):
            return
        leading = {host: standing for host, standing in told.items() if standing.is_primary and standing.origin}
        writable = {host: standing for host, standing in leading.items() if standing.takes_writes}
        primaries = {host: standing.origin for host, standing in (writable or leading).items()}
        if len(set(primaries.values())) > 1:
            raise _undecided(primaries)
        self._origin = next(iter(primaries.values()), "")
        known = [standing.newest for standing in told.values() if standing.origin == self._origin]
        self._epoch = max(known) if self._origin else 0

    def leave_replica(self, connection: C) -> None:
        """The connection's host takes no writes, as a replica or an older primary: closes it, and the idle ones where
        they are to the same. Others are tried first, since not every host tells what it is."""
        connection.close()
        if connection.host is not self.primary:
            return  # another host has been found since
        self.close_idle()
        if hosts := self.address.several:
            self.primary = hosts[(hosts.index(self.primary) + 1) % len(hosts)]
            self._look_at = 0.0

    def release(self, connection: C) -> None:
        """Takes a connection back, to be used again where its last reply was read whole and its host is the primary."""
        if not self._leads_on(connection):
            connection.close()
            return
        (self._plain if connection.arena is None else self._sharing).append(connection)
        if self.closed:
            self.close_idle()

    def close(self) -> None:
        """Ends every connection, and waits on them at once. From any thread, also from a finalizer; repeatable."""
        self._leave_parent()
        self.closed = True
        with contextlib.suppress(RuntimeError):  # released already
            self._until_closed.release()
        for reference in self._opened.valuerefs():
            if (connection := reference()) is not None:
                connection.abort()
        self.close_idle()

    def _leave_parent(self) -> None:
        """In a forked child: its parent's connections are not its own (`Exchanges.usable`), nor is a lock that a
        thread held which is not here."""
        if self._process != os.getpid():
            self._begin()

    def count_lost(self) -> int:
        """How many connections broke so far. The idle ones are looked at first, and closed where the server did so."""
        self._leave_parent()
        for idle in (self._plain, self._sharing):
            for _ in range(len(idle)):
                with contextlib.suppress(IndexError):  # another thread was faster
                    if self._stands(connection := idle.pop(0)):
                        self.release(connection)
        return self.lost

    def _stands(self, idle: C) -> bool:
        """Whether an idle connection can be used again; one that cannot is closed."""
        if self._leads_on(idle):
            if not idle.gone():
                return True
            self.lost += 1
        idle.close()
        return False

    def _leads_on(self, connection: C) -> bool:
        """Whether it can carry another request, to the host that is the primary as far as is known. Of a former one the
        tables are others, though they have the same names."""
        return connection.usable and connection.host is self.primary

    def _idle_lists(self, shared: bool) -> tuple[list[C], ...]:
        """Where to look for an idle connection, in this order."""
        return (self._sharing, self._plain) if shared else (self._plain, self._sharing)

    def _idle_one(self, shared: bool) -> C | None:
        for idle in self._idle_lists(shared):
            try:
                return idle.pop()
            except IndexError:
                continue
        return None

    @property
    def has_idle(self) -> bool:
        """Whether there is a connection that is not used; it may have broken."""
        return bool(self._plain or self._sharing)

    def close_idle(self) -> None:
        """Closes the connections that are not used."""
        while (connection := self._idle_one(False)) is not None:
            connection.close()


class BlockingPool(ConnectionPool[Connection]):
    """Connections whose calls block. A client that shares memory is on the unix socket of a server of its own host."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._near = bool(options.shared_memory) and address.path is None

    def open(self, host: Address, shared: bool) -> Connection:
        """See `ConnectionPool`: every connection may have memory shared with it later."""
        connection = Connection(host, *self._timeouts)
        if self._near:
            connection = on_same_host(connection, host, *self._timeouts)
        if shared:
            connection.share()  # now: between a request and its reply (`pending_call`) there is no other one
        return connection

    def glance(self, host: Address) -> Connection:
        """See `ConnectionPool`."""
        return Connection(host, self._look_timeout, self._look_timeout)

    def pause(self, seconds: float) -> None:
        """See `ConnectionPool`; `close` ends it."""
        if self._until_closed.acquire(timeout=seconds):
            self._until_closed.release()  # for others who wait
