"""The shards of a job whose replay is on several servers of this host (`replay_server.Cluster`).

The run directory keeps the newest snapshot of each shard in `replay/shards/shard-N`, with the topology. A shard that
died comes back with its own, on the same port, and so do all shards of a job that is resumed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import replay_server as rs
from replay_server.cluster import ShardNotStarted
from replay_server.jobs.job_server import REFUSED, SHARDS, SNAPSHOT, START_WITHIN_S, JobReplay, Say
from replay_server.jobs.supervisor import Deaths

ANSWER_WITHIN_S = 5.0
"""A shard that takes longer to answer PING is one that does not answer."""


_T = TypeVar("_T")


class JobShards(JobReplay):
    """What shards of a job have in common, wherever they run: the folder of their snapshots.

    Args:
        folder: of the run's replay.
        restore: whether to save snapshots there, and to begin with those that are there.
        resumed: whether what is there now is of this run; else it is moved aside.
        say: told what people should know.
    """

    def __init__(self, folder: Path, restore: bool, resumed: bool, say: Say) -> None:
        super().__init__(say)
        self.snapshot_name = None
        self._deaths, self._restarts = Deaths(), 0
        self._away_since: float | None = None
        self._folder, self._aside = folder / SHARDS, folder / f"refused-{SHARDS}"
        folder.mkdir(parents=True, exist_ok=True)
        if self._folder.exists() and not resumed:
            shutil.rmtree(self._aside, ignore_errors=True)
            self._folder.replace(self._aside)
        if resumed and restore and (folder / SNAPSHOT).exists() and not self._folder.exists():
            say(f"the replay that was saved is of one server, and stays in {folder / SNAPSHOT}: shards begin empty")

    @property
    def address_elsewhere(self) -> str:
        return self.address

    def _files(self, number: int) -> list[Path]:
        return list((self._folder / f"shard-{number}").glob("*.snapshot"))

    def _newest(self, numbers: Iterable[int]) -> list[Path]:
        """The newest snapshot of each shard, as this host sees them; none where a shard has none."""
        found = [self._files(number) for number in numbers]
        return [max(files, key=lambda file: file.stat().st_mtime) for files in found] if all(found) else []

    def _start(self, start: Callable[[], _T]) -> _T:
        """Starts the shards: one whose snapshot is refused begins empty, and the others with theirs."""
        while True:
            try:
                return start()
            except ShardNotStarted as error:
                if not self._set_aside(error.number, str(error)):
                    raise

    def _set_aside(self, number: int, why: str) -> bool:
        """Moves a shard's snapshots aside, if that is why it does not start."""
        files = self._files(number)
        if REFUSED not in why or not files:
            return False
        aside = self._aside / f"shard-{number}"
        aside.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.replace(aside / file.name)
        self._say(f"a part of the replay that was saved does not come back: {why}; it is in {aside} now")
        return True

    def _note_restarts(self, restarts: int, logs: str) -> bool:
        """Whether there were more by now; fewer are those of a supervisor that was started again, which counts anew.
        Raises ConnectionLost where shards end too often."""
        again, self._restarts = restarts - self._restarts, restarts
        for _ in range(again):
            if (deaths := self._deaths.count()) is not None:
                raise rs.ConnectionLost(f"shards ended {deaths} times within a minute: {logs} say why")
        if again > 0:
            self._silent_since = None
            self._say("a shard has ended, and was started again")
        return again > 0


class JobCluster(JobShards):
    """Starts the shards. The cluster starts those again that die; `watch` says so, and ends what cannot go on.

    Args:
        table: the job's; each shard has an equal share of it.
        shards: how many, at least 2.
        folder: of the run's replay; made.
        port: of the first shard, the others have those that follow; 0 = any free ones.
        restore: whether to save snapshots there, and to begin with those that are there.
        resumed: whether what is there now is of this run; else it is moved aside.
        options: of `rs.Cluster`: host, password.
        say: told what people should know.

    Raises:
        ServerError: a shard does not start, or the folder is that of another number of shards.
    """

    def __init__(
        self,
        table: rs.Table,
        shards: int,
        folder: Path,
        port: int,
        restore: bool,
        resumed: bool,
        options: Mapping[str, Any],
        say: Say,
    ) -> None:
        super().__init__(folder, restore, resumed, say)
        options = {**options, "shards": shards, "port": port, "start_timeout": START_WITHIN_S, "pin": False}
        if options["host"] in ("0.0.0.0", "::"):
            options["announce"] = socket.gethostname()
        if restore:
            options |= {"directory": self._folder, "config": {"snapshot-keep": 1}, "restore": "latest"}
        self._cluster = self._start(lambda: rs.Cluster([table], **options))
        self.url = self.local_url = self._cluster.url

    @property
    def processes(self) -> str:
        pids = self._cluster.pids
        return f"{len(pids)} shards, processes {', '.join(map(str, pids))}"

    @property
    def running(self) -> bool:
        return self._cluster.running

    def snapshots(self) -> list[Path]:
        return self._newest(self._cluster.numbers)

    def stop(self, timeout_s: float) -> None:
        with contextlib.suppress(rs.ReplayError):
            self._cluster.stop(timeout=timeout_s)

    def watch(self) -> bool:
        """Whether shards were started again since the last call. Raises ConnectionLost where they end too often, where
        one was stopped in order, or where one does not come back."""
        self._check_away()
        return self._note_restarts(self._cluster.restarts, "their logs")

    def _check_away(self) -> None:
        servers = zip(self._cluster.numbers, self._cluster.servers, strict=False)
        away = {number: server for number, server in servers if not server.running}
        now = time.monotonic()
        self._away_since = (self._away_since or now) if away else None
        for number, server in away.items():
            if server.returncode == 0:
                raise rs.ConnectionLost(f"shard {number} was stopped")
            why = self._cluster.failing.get(number, "")
            self._set_aside(number, why)
            if self._away_since is not None and now - self._away_since > START_WITHIN_S:
                raise rs.ConnectionLost(f"shard {number} does not start again: {why or 'it is not heard of'}")

    def _kill_silent(self) -> None:
        for server in list(self._cluster.servers):
            try:
                with rs.Client(server.url, socket_timeout=ANSWER_WITHIN_S, reconnect_timeout=0.0) as client:
                    client.command("PING")
            except rs.ReplayError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGKILL)  # the cluster starts it again
