"""The shards of a job whose replay is on servers that Ray has placed (`replay_server.jobs.placed_cluster`).

Their supervisor, in Ray, starts those again that are lost. It ends all of them when the job does, and when nothing has
been heard of the job for `LEASE_S`: a job that was killed leaves none behind for longer.

The snapshots are in the run directory's `replay/shards`, at the same path on every node. What was saved comes back on
another node, or in a job that is resumed, where the nodes share that folder.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.jobs.job_cluster import JobShards
from replay_server.jobs.job_server import START_WITHIN_S, Say
from replay_server.jobs.placed_cluster import PlacedCluster, connected

LEASE_S = 300.0
SHARD_START_S = 60.0
"""In which a shard must be ready at first."""


class JobPlaced(JobShards):
    """Has the shards started, and looks whether they run.

    Args:
        on: ray, or ray:HOST:PORT.
        table: the job's; each shard has an equal share of it.
        shards: how many.
        folder: of the run's replay.
        port: of the first shard, the others have those that follow; 0 = any free ones.
        restore: whether to save snapshots there, and to begin with those that are there.
        resumed: whether what is there now is of this run; else it is moved aside.
        options: `password`; where it is None, and others can reach the nodes, one is made.
        say: told what people should know.

    Raises:
        ServerError: there is no such Ray cluster, it has no room, or a shard does not start.
    """

    def __init__(
        self,
        on: str,
        table: rs.Table,
        shards: int,
        folder: Path,
        port: int,
        restore: bool,
        resumed: bool,
        options: Mapping[str, Any],
        say: Say,
    ) -> None:
        super().__init__(folder.absolute(), restore, resumed, say)
        self._engine = connected(on)
        try:
            reached = self._engine.host != "127.0.0.1"
            given = {
                "port": port,
                "password": options["password"] or (secrets.token_hex(16) if reached else None),
                "directory": str(self._folder) if restore else None,
                "maxmemory": 0,
                "config": {"snapshot-keep": 1} if restore else {},
                "restore": "latest" if restore else None,
                "start_timeout": SHARD_START_S,
            }
            name = f"job-{secrets.token_hex(8)}"
            self._cluster = self._start(
                lambda: PlacedCluster.start(self._engine, name, [table], shards, None, given, LEASE_S)
            )
            self._told = self._cluster.told() or {}
        except BaseException:
            self._engine.close()
            raise
        self.url = self.local_url = self._told["url"]

    @property
    def processes(self) -> str:
        pids = self._told["pids"]
        return f"{len(pids)} shards on Ray, processes {', '.join(map(str, pids))}"

    @property
    def running(self) -> bool:
        return bool(self._told["running"])

    def snapshots(self) -> list[Path]:
        return self._newest(self._told["numbers"])

    def stop(self, timeout_s: float) -> None:
        with contextlib.suppress(rs.ReplayError):
            self._cluster.stop(timeout_s)
        self._engine.close()

    def watch(self) -> bool:
        """Whether shards were started again since the last call. Raises ConnectionLost where they end too often, were
        stopped in order, or do not come back."""
        why = ""
        try:
            told = self._cluster.told()
        except rs.ServerError as error:
            why = str(error)
        else:
            if told is None:
                raise rs.ConnectionLost("the shards were stopped")
            self._told, why = told, "; ".join(told["failing"].values())
            for number, each in told["failing"].items():
                self._set_aside(int(number), each)
        if why or not self.running:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > START_WITHIN_S:
                raise rs.ConnectionLost(f"a shard does not start again: {why or 'it is not heard of'}")
        else:
            self._away_since = None
        return self._note_restarts(self._told["restarts"], "Ray's logs")

    def _kill_silent(self) -> None:
        raise rs.ConnectionLost("the shards do not answer, and they are not processes of this host: see `ray status`")
