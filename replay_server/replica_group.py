"""Servers with the same data, of which one leads: a thread watches them, and promotes a replica when the primary dies.

Why there are never two primaries: one that is to be replaced is killed first, hung or not, so it answers nobody. What
cannot be killed at once is fenced: the promotion raises the epoch, the group tells all its servers of it each second,
and a primary that hears of a newer epoch refuses writes.

What is lost: what had not reached the replica. It first takes what the dead primary had sent it. Of several, the one
that is furthest ahead is promoted, so what `WAIT 1` has acknowledged is lost only where the replica that has it died
with the primary, or is silent for too long then.

A subclass says where the files are, which replica may be promoted, and what is begun where none may.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .commands import Command, Standing, any_command, fence
from .connection import Address, Connection
from .errors import ConnectionLost, ReplayError, ServerError
from .server import Server, port_of

LOOK_EVERY_S = 0.1
"""Between two looks whether all processes are alive."""
ASK_EVERY_S = 1.0
"""Between two questions to each server; an answer may take as long."""
REPLACE_AFTER_S = 5.0
"""A primary that has not answered for so long is replaced, where a replica answers."""
KILL_AFTER_S = 60.0
"""A replica that has not answered for so long is killed, and started again. So is a primary that no replica may
replace, where its files have all that it had. So long is waited for a replica that may have the only copy of the data
of a primary that is gone."""
DIES_WITHIN_S = 2.0
"""A process that was killed and is still there is waited for no longer."""
DRAINS_WITHIN_S = 1.0
"""What a replica may take to read what the dead primary had sent it."""
ANSWERS_WITHIN_S = 10.0
"""How long a silent replica is waited for, where another one could take the place of a primary that is gone."""
PROMOTED_WITHIN_S = 30.0
"""What a replica may take to become a primary: it looks for the free slots of its tables."""
STARTS_WITHIN_S = 10.0
"""What a replica, which is empty then, may take to start."""
BACKLOG = "64mb"
"""Of changes that are kept for replicas whose link was cut: a transition may have some kilobytes."""

_T = TypeVar("_T")


def replica_settings(config: Mapping[str, Any], password: str | None) -> dict[str, Any]:
    """The settings of all servers of a group: those that it needs, and these, which win."""
    login = {"masterauth": password} if password else {}
    return {"repl-backlog-size": BACKLOG, **login, **config}


class ReplicaGroup(ABC):
    """A primary and its replicas, by number, on ports that stay theirs."""

    _say: Callable[[str], None]
    """Told what people should know, from the thread."""

    def _begin_group(self, servers: list[Server], ending: threading.Event) -> None:
        """The first of these servers leads; more are added by `_add_replicas`."""
        self._servers, self._primary, self._ending = servers, 0, ending
        self._epoch, self._origin = 0, ""  # of the primary's data
        self._replaced_at, self._ask_at = float("-inf"), 0.0
        self._lead(0)

    def _add_replicas(self, replicas: int, port: int) -> None:
        """Starts the first replicas: on the ports from this one on, or on any with 0. Raises ServerError."""
        for number in range(1, replicas + 1):
            self._servers.append(self._start_replica(number, port + number - 1 if port else 0))
        self._heard = [time.monotonic()] * len(self._servers)
        self._start_at: list[float | None] = [None] * len(self._servers)

    # ---- what a subclass says ----------------------------------------------------------------------------------------

    @abstractmethod
    def _start_replica(self, number: int, port: int) -> Server:
        """An empty server that follows the primary. Raises ServerError or OSError where it does not start."""

    @abstractmethod
    def _begin_again(self, former: int) -> None:
        """There is no replica to promote: starts the primary with what files have, and kills the replicas, which may
        have data of another origin. The next look tries it again where this fails."""

    @abstractmethod
    def _may_lead(self, number: int, about: Mapping[str, str]) -> bool:
        """Whether a replica, of which INFO replication says this, has the data that are to go on."""

    @abstractmethod
    def _pause_s(self, number: int) -> float:
        """How long to wait before a replica that has died is started again."""

    def _cannot_be_replaced(self, silent_s: float) -> bool:
        """The primary does not answer, and no replica that answers may lead. Whether to kill it after `KILL_AFTER_S`,
        since it would begin again with all that it had."""
        return False

    def _count_death(self, why: str) -> None:  # noqa: B027 - not everybody counts
        """A primary was replaced."""

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What the thread does every `LOOK_EVERY_S`."""
        leader = self._servers[self._primary]
        if not leader.running:
            lines = leader.log().strip().splitlines()
            self._replace(f"ended ({leader.returncode}: {lines[-1] if lines else 'it said nothing'})")
        elif time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            self._ask_all()
        self._restart_replicas()

    def _ask_all(self) -> None:
        """Notices who is silent, follows what people did (FAILOVER, REPLICAOF NO ONE), and has the others follow."""
        standings = self._standings()
        self._go_with_chosen(standings)
        if self._silent_s(self._primary) > REPLACE_AFTER_S:
            can_be_replaced = bool(self._furthest_ahead())
            self._standing(self._primary)  # the whole machine may have slept
            silent_s = self._silent_s(self._primary)
            if silent_s > REPLACE_AFTER_S and (
                can_be_replaced or (self._cannot_be_replaced(silent_s) and silent_s > KILL_AFTER_S)
            ):
                self._replace(f"has not answered for {silent_s:.0f} s")
        for number, standing in standings.items():
            if number != self._primary:
                self._have_follow(number, standing)
        if self._silent_s(self._primary) > REPLACE_AFTER_S:
            return  # a replica that is silent as well may have the only copy
        for number, server in enumerate(self._servers):
            if number != self._primary and server.running and (silent_s := self._silent_s(number)) > KILL_AFTER_S:
                self._say(f"replica {self._place(number)} has not answered for {silent_s:.0f} s: killing it")
                self._kill(number)

    def _standings(self) -> dict[int, Standing]:
        """What the servers that answer say they are."""
        told = {number: self._standing(number) for number, server in enumerate(self._servers) if server.running}
        return {number: standing for number, standing in told.items() if standing is not None}

    def _go_with_chosen(self, standings: Mapping[int, Standing]) -> bool:
        """Has the server lead that somebody made the primary (FAILOVER, REPLICAOF NO ONE); whether there is one."""
        leading = {
            number: standing.epoch or 0
            for number, standing in standings.items()
            if standing.takes_writes and standing.origin == self._origin
        }
        newest = max(leading, key=lambda number: leading[number], default=self._primary)
        if newest == self._primary or leading[newest] <= self._epoch:
            return False
        self._epoch = leading[newest]
        self._say(f"{self._place(newest)} was made the primary")
        self._put_first(newest)
        return True

    def _replace(self, why: str) -> None:
        """Kills the primary and promotes the replica that is furthest ahead; else begins again with files.

        A replica that does not become the primary is killed before the next one is asked, since it may have become one
        without saying so. The last one may have the only copy: the next look tries it again.
        """
        former = self._primary
        self._kill(former)
        candidates = self._furthest_ahead(drained=True)
        for number in candidates:
            try:
                self._lead(number)
            except ReplayError as error:
                if self._ending.is_set():
                    return
                self._say(f"replica {self._place(number)} does not become the primary: {error}")
                if number != candidates[-1]:
                    self._kill(number)
                continue
            self._say(f"server {why}: {self._place(number)} is the primary now")
            self._put_first(number)
            self._count_death(why)
            return
        if not candidates and not self._ending.is_set():
            self._begin_again(former)

    def _put_first(self, number: int) -> None:
        """It is the primary by now: the next look, which is at once, has the others follow it."""
        self._primary = number
        self._heard[number] = self._replaced_at = time.monotonic()
        self._ask_at = 0.0

    def _furthest_ahead(self, drained: bool = False) -> list[int]:
        """The replicas that answer and may lead, the one that is furthest ahead first.

        `drained`: after they have noticed that the primary is gone, and so have read what it had sent. One that is
        silent is waited for, and longer where no other one has the data: with files more would be lost.
        """
        began = time.monotonic()
        while True:
            found, is_linked, is_silent = [], False, False
            for number, server in enumerate(self._servers):
                if number == self._primary or not server.running:
                    continue
                try:
                    about = self._info(number)
                except ReplayError:
                    is_silent = True
                    continue
                if about["master_origin"] == self._origin:
                    is_linked |= about.get("master_link_status") == "up"
                    if self._may_lead(number, about):
                        found.append((int(about["master_epoch"]), int(about["master_repl_offset"]), number))
            within_s = DRAINS_WITHIN_S if is_linked else 0.0
            if is_silent:
                within_s = ANSWERS_WITHIN_S if found else KILL_AFTER_S
            if not drained or time.monotonic() - began >= within_s or self._ending.is_set():
                return [number for *_, number in sorted(found, reverse=True)]
            time.sleep(0.01)

    def _lead(self, number: int) -> None:
        """Makes the server a primary, and the newest of its data. Raises ReplayError where it does not become one."""
        standing = self._standing_soon(number)
        if not standing.takes_writes:
            with contextlib.suppress(ConnectionLost):  # it may have become one, and is asked
                self._ask(number, any_command("REPLICAOF", "NO", "ONE"), PROMOTED_WITHIN_S)
            standing = self._standing_soon(number)
            if not standing.takes_writes:
                raise ConnectionLost("it does not answer REPLICAOF NO ONE")
        self._epoch, self._origin = standing.epoch or 0, standing.origin

    def _standing_soon(self, number: int) -> Standing:
        """What it says it is, as soon as it answers. Raises ReplayError where it does not."""
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            try:
                return self._ask(number, fence(self._epoch, self._origin))
            except ReplayError:
                if time.monotonic() > deadline or self._ending.wait(LOOK_EVERY_S) or not self._servers[number].running:
                    raise

    def _have_follow(self, number: int, standing: Standing) -> None:
        """Names the primary to a server, if it follows another one or none. The next look does it where this fails."""
        host, port = self._host_and_port(self._primary)
        with contextlib.suppress(ReplayError):
            about = self._info(number)
            if about["role"] == "master" and not standing.is_primary:
                return  # somebody has just promoted it
            if (about["role"], about.get("master_host"), about.get("master_port")) != ("slave", host, str(port)):
                self._ask(number, any_command("REPLICAOF", host, port))

    def _restart_replicas(self) -> None:
        """Starts again what has died, as a replica that is sent everything."""
        for number, server in enumerate(self._servers):
            if number == self._primary or server.running:
                continue
            now, start_at = time.monotonic(), self._start_at[number]
            if start_at is None:
                self._start_at[number] = now + self._pause_s(number)
                continue
            if now < start_at:
                continue
            self._start_at[number] = None
            server.stop(timeout=0)
            try:
                started = self._start_replica(number, port_of(server))
            except (ServerError, OSError) as error:
                self._say(f"replica {self._place(number)} does not start: {error}")
                continue
            if self._ending.is_set():
                started.stop(timeout=0)
                return
            self._servers[number] = started
            self._heard[number] = time.monotonic()
            self._say(f"replica {self._place(number)} (process {started.pid}) starts, and is sent everything")

    # ---- one server --------------------------------------------------------------------------------------------------

    def _standing(self, number: int) -> Standing | None:
        """What it says it is; None where it does not answer, or refuses to."""
        standing = None
        try:
            standing = self._ask(number, fence(self._epoch, self._origin))
        except ConnectionLost:
            return None
        except ReplayError:
            pass  # it has too many clients, or runs a script that takes long: that is an answer
        self._heard[number] = time.monotonic()
        return standing

    def _silent_s(self, number: int) -> float:
        return time.monotonic() - self._heard[number]

    def _kill(self, number: int) -> None:
        server = self._servers[number]
        with contextlib.suppress(ProcessLookupError):
            if server.running:
                os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + DIES_WITHIN_S
        while server.running and time.monotonic() < deadline:
            time.sleep(0.01)

    def _ask(self, number: int, command: Command[_T], timeout_s: float = ASK_EVERY_S) -> _T:
        connection = Connection(Address.parse(self._servers[number].url), ASK_EVERY_S, timeout_s)
        try:
            return connection.execute(command)
        finally:
            connection.close()

    def _info(self, number: int, section: str = "replication") -> dict[str, str]:
        """What a section of INFO says, by default of its part in replication."""
        text: Any = self._ask(number, any_command("INFO", section))
        lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _place(self, number: int) -> str:
        """Host and port, as in the URL."""
        return urlsplit(self._servers[number].url).netloc.rpartition("@")[2]

    def _host_and_port(self, number: int) -> tuple[str, int]:
        """By which replicas reach it."""
        server = self._servers[number]
        return urlsplit(server.url).hostname or "", port_of(server)
