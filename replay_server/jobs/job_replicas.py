"""The server of a job and its replicas (`replay_server.replica_group`): their folders, and the job's snapshot.

Each server has a folder of its own beside the run's snapshot. The primary saves there, and the file is then moved to
where `--resume` looks for it. That is also what the primary begins with again where no replica has the job's data. What
still runs is killed before, since a server with data of another origin would never follow it. What has died comes back
with nothing but the primary's data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.jobs.job_server import JobServer, Say
from replay_server.jobs.supervisor import RESTART_DELAY_S, Deaths
from replay_server.replica_group import (
    LOOK_EVERY_S,
    REPLACE_AFTER_S,
    STARTS_WITHIN_S,
    ReplicaGroup,
    replica_settings,
)
from replay_server.server import port_of

LATER_S = 60.0
"""A replica that dies too often is started again after so long."""


class JobReplicas(ReplicaGroup, JobServer):
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
        self._saved_epoch = 0  # of the snapshot that was kept last
        self._ending = threading.Event()
        self._replaced, self._failure = False, ""
        self._config = replica_settings({}, options.get("password"))
        super().__init__(table, self._folder, port, restore, resumed, options, say)
        try:
            self._begin_group([self._server], self._ending)
            self._add_replicas(replicas, port + 1 if port else 0)
        except BaseException:
            self.stop(0.0)
            raise
        self._replica_deaths = [Deaths() for _ in self._servers]
        before, at, _ = self.url.rpartition("@") if "@" in self.url else self.url.partition("://")
        self.url = self.local_url = f"{before}{at}{','.join(map(self._place, range(len(self._servers))))}"
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
        return f"redis://{','.join(f'{socket.gethostname()}:{port_of(server)}' for server in self._servers)}"

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

    # ---- what the group asks -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ending.wait(LOOK_EVERY_S):
                self._look()
        except Exception as error:
            self._failure = str(error) or repr(error)

    def _count_death(self, why: str) -> None:
        if (deaths := self._deaths.count()) is not None:
            raise rs.ConnectionLost(f"primaries ended {deaths} times within a minute; the last one {why}")

    def _begin_again(self, former: int) -> None:
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
        self._server = self._servers[number]
        super()._put_first(number)
        self._replaced = True

    def _may_lead(self, number: int, about: Mapping[str, str]) -> bool:
        """One of an older epoch than the snapshot has less than that."""
        return int(about["master_epoch"]) >= self._saved_epoch

    def _pause_s(self, number: int) -> float:
        return LATER_S if self._replica_deaths[number].count() is not None else RESTART_DELAY_S

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
