"""The server of a job and its replicas: a thread watches them, and promotes a replica when the primary dies.

Why there are never two primaries: one that is to be replaced is killed first, hung or not, so it answers nobody. What
cannot be killed at once is fenced: the promotion raises the epoch, clients of all hosts tell of it, and a primary that
hears of a newer epoch refuses writes. What has died comes back with nothing but the primary's data.

What is lost: what had not reached the replica. It first takes what the dead primary had sent it. Of several, the one
that is furthest ahead is promoted, so what `WAIT 1` has acknowledged is lost only where the replica that has it died
with the primary, or is silent for too long then.

Each server has a folder of its own beside the run's snapshot. The primary saves there, and the file is then moved to
where `--resume` looks for it. That is also what the primary begins with again where no replica has the job's data. What
still runs is killed before, since a server with data of another origin would never follow it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import replay_server as rs
from replay_server.commands import Command, Standing, any_command, fence
from replay_server.connection import Address, Connection
from replay_server.jobs.job_server import JobServer, Say
from replay_server.jobs.supervisor import RESTART_DELAY_S, Deaths

LOOK_EVERY_S = 0.1
"""Between two looks whether all processes are alive."""
ASK_EVERY_S = 1.0
"""Between two questions to each server; an answer may take as long."""
REPLACE_AFTER_S = 5.0
"""A primary that has not answered for so long is replaced, where a replica answers."""
KILL_AFTER_S = 60.0
"""A replica that has not answered for so long is killed, and started again. So long is waited for one that may have the
only copy of the data of a primary that is gone."""
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
LATER_S = 60.0
"""A replica that dies too often is started again after so long."""
BACKLOG = "64mb"
"""Of changes that are kept for replicas whose link was cut: a transition may have some kilobytes."""

_T = TypeVar("_T")


class JobReplicas(JobServer):
    """Starts a server and its replicas, on ports that stay theirs. `watch` tells of another primary.

    Args:
        table: the job's.
        replicas: how many, at least 1.
        folder: of the run's snapshot, and of a folder for each server; made.
        port: of the first primary, the replicas have those that follow; 0 = any free ones.
        restore: whether to begin with a snapshot, where there is one.
        resumed: whether one that is there now is of this run; else it is moved aside.
        options: of `rs.Server`: host, password.
        say: told what people should know, also from a thread.

    Raises:
        ServerError: one does not start.
    """

    def __init__(
        self,
        table: rs.Table,
        replicas: int,
        folder: Path,
        port: int,
        restore: bool,
        resumed: bool,
        options: dict[str, Any],
        say: Say,
    ) -> None:
        self._folder, self._primary = folder.resolve(), 0  # servers look for files from their own folders
        self._epoch, self._origin = 0, ""  # of the primary's data
        self._saved_epoch = 0  # of the snapshot that was kept last
        self._ending = threading.Event()
        self._replaced, self._replaced_at, self._ask_at = False, float("-inf"), 0.0
        self._failure = ""
        self._config = {"repl-backlog-size": BACKLOG}
        if options.get("password"):
            self._config["masterauth"] = options["password"]
        super().__init__(table, self._folder, port, restore, resumed, options, say)
        self._servers = [self._server]
        try:
            self._lead(0)
            for number in range(1, replicas + 1):
                self._servers.append(self._start_replica(number, port + number if port else 0))
        except BaseException:
            self.stop(0.0)
            raise
        now = time.monotonic()
        self._heard = [now] * len(self._servers)
        self._start_at: list[float | None] = [None] * len(self._servers)
        self._replica_deaths = [Deaths() for _ in self._servers]
        before, at, _ = self.url.rpartition("@") if "@" in self.url else self.url.partition("://")
        places = [urlsplit(server.url).netloc.rpartition("@")[2] for server in self._servers]
        self.url = self.local_url = f"{before}{at}{','.join(places)}"
        self._thread = threading.Thread(target=self._run, name="job-replicas", daemon=True)
        self._thread.start()

    # ---- for the job -------------------------------------------------------------------------------------------------

    @property
    def primary_url(self) -> str:
        return self._server.url

    @property
    def address_elsewhere(self) -> str:
        if self._options.get("host") not in ("0.0.0.0", "::"):
            return self.address
        ports = [urlsplit(server.url).port for server in self._servers]
        return f"redis://{','.join(f'{socket.gethostname()}:{port}' for port in ports)}"

    @property
    def processes(self) -> str:
        others = [str(server.pid) for server in self._servers if server is not self._server and server.running]
        primary = f"primary {self._place(self._primary)}, process {self._server.pid}"
        return f"{primary}; replicas {', '.join(others) or 'none'}"

    def keep_snapshot(self, saved: Path) -> None:
        epoch = self._epoch if saved.parent == self._folder_of(self._primary) else 0
        with contextlib.suppress(OSError):  # its server has died, and its folder was made anew
            saved.replace(self.snapshot)
            self._saved_epoch = epoch
        with contextlib.suppress(OSError):
            for unasked in self._folder.glob("server-*/replay-*.snapshot"):  # begun when a server's epoch changed
                unasked.unlink()

    def stop(self, timeout_s: float) -> None:
        self._ending.set()
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.join(1.0)
        replicas_first = sorted(self._servers, key=lambda server: server is self._server)
        for server in replicas_first:
            with contextlib.suppress(ProcessLookupError):
                if server.running:
                    os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for server in replicas_first:
            with contextlib.suppress(rs.ReplayError):
                server.stop(timeout=max(0.0, deadline - time.monotonic()))
        for number in range(len(self._servers)):
            shutil.rmtree(self._folder_of(number), ignore_errors=True)

    def watch(self) -> bool:
        """Whether there is another primary since the last call, or the same begun again. Raises ConnectionLost where
        primaries end too often."""
        if self._failure:
            raise rs.ConnectionLost(self._failure)
        if not self._replaced:
            return False
        self._replaced, self._silent_since = False, None
        return True

    def _not_heard(self, error: Exception) -> None:
        if time.monotonic() - self._replaced_at > REPLACE_AFTER_S:
            super()._not_heard(error)

    def _kill_silent(self) -> None:
        self._kill(self._primary)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ending.wait(LOOK_EVERY_S):
                if not self._server.running:
                    self._replace(f"ended ({self._server.returncode}: {self._last_words()})")
                elif time.monotonic() >= self._ask_at:
                    self._ask_at = time.monotonic() + ASK_EVERY_S
                    self._ask_all()
                self._restart_replicas()
        except Exception as error:
            self._failure = str(error) or repr(error)

    def _ask_all(self) -> None:
        """Notices who is silent, follows what people did (FAILOVER, REPLICAOF NO ONE), and has the others follow."""
        told = {number: self._standing(number) for number, server in enumerate(self._servers) if server.running}
        standings = {number: standing for number, standing in told.items() if standing is not None}
        leading = {
            number: standing.epoch or 0
            for number, standing in standings.items()
            if standing.takes_writes and standing.origin == self._origin
        }
        newest = max(leading, key=lambda number: leading[number], default=self._primary)
        if newest != self._primary and leading[newest] > self._epoch:
            self._epoch = leading[newest]
            self._say(f"{self._place(newest)} was made the primary")
            self._put_first(newest)
        if self._silent_s(self._primary) > REPLACE_AFTER_S and self._furthest_ahead():
            self._standing(self._primary)  # the whole machine may have slept
            if (silent_s := self._silent_s(self._primary)) > REPLACE_AFTER_S:
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

    def _replace(self, why: str) -> None:
        """Kills the primary and promotes the replica that is furthest ahead; else begins again with the snapshot.

        A replica that does not become the primary is killed before the next one is asked, since it may have become one
        without saying so. The last one may have the only copy: the next look tries it again.
        """
        former = self._primary
        self._kill(former)
        candidates = self._furthest_ahead(drained=True)
        for number in candidates:
            try:
                self._lead(number)
            except rs.ReplayError as error:
                if self._ending.is_set():
                    return
                self._say(f"replica {self._place(number)} does not become the primary: {error}")
                if number != candidates[-1]:
                    self._kill(number)
                continue
            self._say(f"server {why}: {self._place(number)} is the primary now")
            self._put_first(number)
            if (deaths := self._deaths.count()) is not None:
                raise rs.ConnectionLost(f"primaries ended {deaths} times within a minute; the last one {why}")
            return
        if candidates or self._ending.is_set():
            return
        for number in range(len(self._servers)):
            self._kill(number)
        self._servers[former] = self._server = self._start_again()
        self._saved_epoch = 0  # it may have begun with other data, whose epochs are small
        if self._ending.is_set():
            self._kill(former)  # `stop` may not have seen it
            return
        try:
            self._lead(former)
        except rs.ReplayError:
            self._kill(former)  # the next look begins again
        else:
            self._put_first(former)

    def _put_first(self, number: int) -> None:
        """It is the primary by now: the next look, which is at once, has the others follow it."""
        self._primary, self._server = number, self._servers[number]
        self._heard[number] = self._replaced_at = time.monotonic()
        self._ask_at, self._replaced = 0.0, True

    def _furthest_ahead(self, drained: bool = False) -> list[int]:
        """The replicas that answer and have the job's data, the one that is furthest ahead first.

        `drained`: after they have noticed that the primary is gone, and so have read what it had sent. One that is
        silent is waited for, and longer where no other one has the data: with the snapshot more would be lost. One of
        an older epoch than the snapshot has less than that.
        """
        began = time.monotonic()
        while True:
            found, is_linked, is_silent = [], False, False
            for number, server in enumerate(self._servers):
                if number == self._primary or not server.running:
                    continue
                try:
                    about = self._info(number)
                except rs.ReplayError:
                    is_silent = True
                    continue
                if about["master_origin"] == self._origin and int(about["master_epoch"]) >= self._saved_epoch:
                    found.append((int(about["master_epoch"]), int(about["master_repl_offset"]), number))
                    is_linked |= about.get("master_link_status") == "up"
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
            with contextlib.suppress(rs.ConnectionLost):  # it may have become one, and is asked
                self._ask(number, any_command("REPLICAOF", "NO", "ONE"), PROMOTED_WITHIN_S)
            standing = self._standing_soon(number)
            if not standing.takes_writes:
                raise rs.ConnectionLost("it does not answer REPLICAOF NO ONE")
        self._epoch, self._origin = standing.epoch or 0, standing.origin

    def _standing_soon(self, number: int) -> Standing:
        """What it says it is, as soon as it answers. Raises ReplayError where it does not."""
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            try:
                return self._ask(number, fence(self._epoch, self._origin))
            except rs.ReplayError:
                if time.monotonic() > deadline or self._ending.wait(LOOK_EVERY_S) or not self._servers[number].running:
                    raise

    def _have_follow(self, number: int, standing: Standing) -> None:
        """Names the primary to a server, if it follows another one or none. The next look does it where this fails."""
        host, port = self._host_and_port(self._primary)
        with contextlib.suppress(rs.ReplayError):
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
                often = self._replica_deaths[number].count() is not None
                self._start_at[number] = now + (LATER_S if often else RESTART_DELAY_S)
                continue
            if now < start_at:
                continue
            self._start_at[number] = None
            server.stop(timeout=0)
            try:
                started = self._start_replica(number, urlsplit(server.url).port or 0)
            except (rs.ServerError, OSError) as error:
                self._say(f"replica {self._place(number)} does not start: {error}")
                continue
            if self._ending.is_set():
                started.stop(timeout=0)
                return
            self._servers[number] = started
            self._heard[number] = time.monotonic()
            self._say(f"replica {self._place(number)} (process {started.pid}) starts, and is sent everything")

    # ---- one server --------------------------------------------------------------------------------------------------

    def _start(self, port: int) -> rs.Server:
        self._options = {**self._options, "directory": self._empty_folder(self._primary), "config": self._config}
        return super()._start(port)

    def _start_replica(self, number: int, port: int) -> rs.Server:
        host, primary_port = self._host_and_port(self._primary)
        config = {**self._config, "replicaof": f"{host} {primary_port}"}
        changes = {"directory": self._empty_folder(number), "config": config, "start_timeout": STARTS_WITHIN_S}
        return rs.Server(port=port, **{**self._options, **changes})

    def _folder_of(self, number: int) -> Path:
        return self._folder / f"server-{number}"

    def _empty_folder(self, number: int) -> Path:
        folder = self._folder_of(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _standing(self, number: int) -> Standing | None:
        """What it says it is; None where it does not answer, or refuses to."""
        standing = None
        try:
            standing = self._ask(number, fence(self._epoch, self._origin))
        except rs.ConnectionLost:
            return None
        except rs.ReplayError:
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

    def _info(self, number: int) -> dict[str, str]:
        """What INFO says of its part in replication."""
        text: Any = self._ask(number, any_command("INFO", "replication"))
        lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _place(self, number: int) -> str:
        """Host and port, as in the URL."""
        return urlsplit(self._servers[number].url).netloc.rpartition("@")[2]

    def _host_and_port(self, number: int) -> tuple[str, int]:
        parts = urlsplit(self._servers[number].url)
        return parts.hostname or "", parts.port or 0
