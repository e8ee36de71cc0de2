"""The replicas of a shard, which take its place when its process dies or hangs, and the folders of their files.

A shard's servers are a `ReplicaGroup`: one leads, and has the shard's place in the topology. What is added here:

**Which replica may lead.** One of the group's origin and epoch. One of an older epoch was left behind by an earlier
promotion. One of a newer epoch that is no primary follows a server that is not of this group. Of those the one that is
furthest ahead, once they have read what the dead primary sent them: so it has all that `WAIT 1` acknowledged. A replica
may be behind all the same, since its link was cut, or it was silent. Then files may have more than it, and the shard
begins with these. Each second the primary tells how far it is. From the first time on that it was further than the
replica is in the end, it had all that the replica has, and more. A snapshot that was cut after that holds all of it,
what `WAIT` acknowledged included; so does an append-only file, which is late by about a second at most.

**Which files are the newest.** A replica writes no files: it runs without append-only file and rules of `save`, in a
folder that was empty. A folder joins the shard's `chain` when its server leads, and the chain is on the disk before
that server is told to write files. So all files of a folder were written while its server led, and of two folders the
one that comes first in the chain has the newer files, whatever their names and times say. A server that has led and
leads no more is ended; a fresh process in a fresh folder becomes the replica. Where all servers are gone, or the
cluster is started again, it begins with the first folder of the chain that has whole files: an append-only file counts
from its first manifest on, which names a whole base. The former primary's folder therefore stays in the chain, behind
the new one, until that has whole files of its own. Then it leaves the chain, and its append-only file is removed, with
the snapshots that it was to have by its rules of `save`. Those that have a name stay, since somebody, or the manifest
of a checkpoint, may name them. A snapshot that somebody had a replica write is renamed before its folder joins the
chain.

**Nobody is promoted by an end in order.** A primary that was stopped (SHUTDOWN, SIGTERM) ends with status 0, and its
replicas are then stopped, too, unless one was made the primary before (FAILOVER). `Cluster.stop` ends the watch before
it stops anything.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from .cluster_checkpoint import folder_of
from .cluster_shards import impatient, topology_of
from .commands import Standing, any_command
from .errors import ReplayError, ServerError
from .replica_group import (
    KILL_AFTER_S,
    LOOK_EVERY_S,
    PROMOTED_WITHIN_S,
    REPLACE_AFTER_S,
    ReplicaGroup,
)
from .server import Server, port_of, tls_port_of
from .snapshot_file import SnapshotFile
from .topology import ReplicaPlace, ShardPlace

if TYPE_CHECKING:
    from .cluster import Cluster

MOST_REPLICAS = 4
"""Of a shard."""
_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_RESTART_S = 0.2, 5.0, 60.0
_LOG_LATE_S = 3.0
"""By which an append-only file is surely less late."""
_MOST_NOTED = 1000
_OF_TIME = re.compile(r"replay-\d{8}-\d{6}-\d{3}\.snapshot")
"""Of snapshots that nobody gave a name; `snapshot-keep` removes them, too."""
_log = logging.getLogger("replay_server.cluster")

Snapshot = tuple[int, str, int]
"""Generation of the folder, name, and time: one that has a name may be written again."""


def snapshots_in(folder: Path) -> set[tuple[str, int]]:
    """Names and times."""
    found = set[tuple[str, int]]()
    for file in folder.glob("*.snapshot"):
        with contextlib.suppress(FileNotFoundError):  # a newer one has just replaced it (snapshot-keep)
            found.add((file.name, file.stat().st_mtime_ns))
    return found


class ShardFolders:
    """The folders of one shard's files, by generation: `shard-N` is of 0, `shard-N-1` of 1.

    Args:
        directory: of the cluster.
        number: the shard's.
        log_folder: where in a folder its append-only file is; None: there is none to be read.
        log_name: of that file.
        chain: generations of the folders of servers that have led, the newest first.
    """

    def __init__(
        self, directory: Path, number: int, log_folder: str | None, log_name: str, chain: Iterable[int] = (0,)
    ) -> None:
        self._directory, self._number, self.chain = directory, number, list(chain)
        self.log_folder, self._log_name = log_folder, log_name

    @property
    def leading(self) -> Path:
        """Of the server that leads."""
        return self.folder(self.chain[0])

    def folder(self, generation: int) -> Path:
        return folder_of(self._directory, self._number, generation)

    def fresh(self, taken: Iterable[int]) -> int:
        """The generation of an empty folder, which is made; none of `taken`."""
        generation = 1
        while True:
            folder = self.folder(generation)
            if generation not in (*self.chain, *taken):
                folder.mkdir(parents=True, exist_ok=True)
                if not any(folder.iterdir()):
                    return generation
            generation += 1

    def log(self, generation: int) -> Path | None:
        """The folder of a whole append-only file that a server would begin with."""
        if self.log_folder is None:
            return None
        folder = self.folder(generation) / self.log_folder
        return folder if (folder / f"{self._log_name}.manifest").exists() else None

    def logs(self) -> list[Path]:
        """The folders of append-only files, whole or not, of all the chain."""
        if self.log_folder is None:
            return []
        folders = [self.folder(generation) / self.log_folder for generation in self.chain]
        return [folder for folder in folders if folder.exists()]

    def snapshots(self) -> set[Snapshot]:
        """Those in the chain's folders."""
        return {(generation, *each) for generation in self.chain for each in snapshots_in(self.folder(generation))}

    def first_whole(self, snapshots: Iterable[Snapshot]) -> int | None:
        """The first of the chain that has an append-only file, or one of these snapshots."""
        of = {generation for generation, *_ in snapshots}
        return next((each for each in self.chain if each in of or self.log(each)), None)

    def was_cut_since(self, snapshots: Iterable[Snapshot], since_s: float) -> bool:
        """Whether one of these snapshots was cut at this time (Unix, seconds) or later."""
        for generation, name, _ in snapshots:
            with contextlib.suppress(ServerError):
                if SnapshotFile(self.folder(generation) / name).cut_ms >= 1000 * since_s:
                    return True
        return False

    def put_first(self, generation: int) -> None:
        self.chain = [generation, *(each for each in self.chain if each != generation)]

    def rename_snapshots(self, generation: int) -> None:
        """So that what a replica wrote is not taken for what a primary did."""
        for file in self.folder(generation).glob("*.snapshot"):
            file.rename(file.with_name(f"{file.name}.of-replica"))

    def remove_files(self, generation: int, snapshots: Iterable[Snapshot]) -> None:
        """Of a folder that is in the chain no more: its append-only file, and those of these snapshots that have names
        of their time. The others are somebody's. The folder goes where it is empty then."""
        folder = self.folder(generation)
        if self.log_folder is not None:
            shutil.rmtree(folder / self.log_folder, ignore_errors=True)
        of_time = [folder / name for each, name, _ in snapshots if each == generation and _OF_TIME.fullmatch(name)]
        with contextlib.suppress(OSError):
            for file in [*of_time, *folder.glob("*.snapshot.partial")]:
                file.unlink(missing_ok=True)
            folder.rmdir()


class ShardReplicas(ReplicaGroup):
    """Starts the replicas of a shard that runs, and watches all of them in a thread.

    Args:
        cluster: the shard's.
        number: the shard's.
        replicas: how many.
        ports: of the first replica, the others have those that follow: without TLS, and for it. 0 = any; -1 = none for
            TLS.

    Raises:
        ServerError: one does not start.
        ReplayError: the shard does not answer.
    """

    def __init__(self, cluster: Cluster, number: int, replicas: int, ports: tuple[int, int]) -> None:
        self._cluster, self._shard, self._ports, self._say = cluster, number, ports, self._warn
        self._folders = cluster._files(number)
        self._generations = {0: self._folders.chain[0]}
        """Of each server's folder."""
        self._told_at = 0.0
        """When the primary last told how far it was (Unix, seconds)."""
        self._ahead = dict[int, list[tuple[int, float]]]()
        """How far the primary was when it was further than a replica, and when that was."""
        self._is_logged = False
        """Whether the primary last told that it writes its append-only file: a setting may have ended that since."""
        self._unread = set[int]()
        """Generations whose files a server did not begin with: people may want to mend them."""
        self._deaths = dict[int, tuple[float, float]]()
        """How long a replica's start was put off last, and since when."""
        self._synced = dict[int, tuple[int, ReplicaPlace]]()
        """Replicas that have a copy and follow: the process, and how clients know it."""
        self._settled, self._again_at, self._again_pause_s, self._checked_at = True, 0.0, _PAUSE_S, 0.0
        self.thread = threading.Thread(target=self._run, name=f"replicas-of-shard-{number}", daemon=True)
        try:
            self._begin_group([cluster._server_of(number)], cluster._stopping)
            self._add_replicas(replicas, ports[0])
        except BaseException:
            for server in self.replicas:
                server.stop(timeout=0)
            raise

    def start(self) -> None:
        """Begins to watch."""
        self.thread.start()

    @property
    def servers(self) -> list[Server]:
        """All of the shard, the one that leads too."""
        return list(self._servers)

    @property
    def replicas(self) -> list[Server]:
        return [server for number, server in enumerate(self._servers) if number != self._primary]

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            try:
                if self._shard not in self._cluster.numbers:  # it was taken out
                    break
                if self._servers[self._primary].returncode == 0:
                    self._end_in_order()
                    continue
                self._look()
                self._tell_place()
                self._settle()
                self._tell_replicas()
            except Exception as error:  # such as a full disk: whatever it is, the shard is watched on
                self._say(f"{error or error!r}; it is tried again")
                self._ending.wait(1.0)
        if not self._ending.is_set():
            lingering = [server for _, server in self._cluster._gone]
            for server in self._servers:  # one may have been promoted meanwhile
                if server not in lingering:
                    server.stop()

    def _end_in_order(self) -> None:
        """Stops the replicas of a primary that was stopped, unless somebody made one of them the primary before. One
        that does not answer may be about to say so."""
        standings = self._standings()
        if self._go_with_chosen(standings):
            return
        all_answer = all(number in standings for number, server in enumerate(self._servers) if server.running)
        if all_answer or self._silent_s(self._primary) > PROMOTED_WITHIN_S:
            self._stop_replicas()

    def _stop_replicas(self) -> None:
        for server in self.replicas:
            server.stop()

    def _warn(self, text: str) -> None:
        _log.warning("shard %d: %s", self._shard, text)

    def _ask_all(self) -> None:
        super()._ask_all()
        if self._silent_s(self._primary) <= REPLACE_AFTER_S:
            self._cluster._note_failing(self._shard, None)
        with contextlib.suppress(ReplayError):
            about = self._info(self._primary)
            told, self._told_at = int(about["master_repl_offset"]), time.time()
            if (about["role"], about["master_origin"]) == ("master", self._origin):
                self._epoch = max(self._epoch, int(about["master_epoch"]))
            self._is_logged = self._info(self._primary, "persistence")["aof_enabled"] == "1"
            for number, server in enumerate(self._servers):
                if number != self._primary and server.running:
                    self._ahead.setdefault(number, []).append((told, self._told_at))
                    with contextlib.suppress(ReplayError):
                        self._note(number, server)

    def _note(self, number: int, server: Server) -> None:
        """How far a replica is, and whether clients may read from it."""
        about = self._info(number)
        if about["master_origin"] == self._origin:
            offset = int(about["master_repl_offset"])
            self._ahead[number] = [(told, at) for told, at in self._ahead[number] if told > offset]
        if len(self._ahead[number]) > _MOST_NOTED:
            del self._ahead[number][1::2]  # the first one matters
        if about.get("master_link_status") != "up":
            return  # one that had a copy goes on with it
        if number not in self._synced or self._synced[number][0] != server.pid:
            host, run_id = self._cluster._host_of(server), self._info(number, "server")["run_id"]
            place = ReplicaPlace(run_id, host, port_of(server), tls_port_of(server))
            self._synced[number] = server.pid, place
            with self._cluster._lock:  # it is written long before this replica leads
                self._cluster._own(self._shard, run_id)
        self._push_to(server)

    def _tell_place(self) -> None:
        """Has the topology say where the server is that leads now: after a promotion, and should somebody push an older
        one again."""
        server = self._servers[self._primary]
        address = {"host": self._cluster._host_of(server), "port": port_of(server), "tls_port": tls_port_of(server)}
        now = self._place_now()
        if now is None or not server.running or (now.host, now.port, now.tls_port) == tuple(address.values()):
            return
        run_id = self._info(self._primary, "server")["run_id"]
        with self._cluster._lock:
            self._cluster._own(self._shard, now.id, run_id)
            with contextlib.suppress(OSError):  # shards of other supervisors may be all that knows of it soon
                self._cluster._keep()
            self._cluster._tell(
                lambda topology: topology.with_shards(
                    [replace(topology.shard(self._shard), id=run_id, replicas=(), **address)]
                ),
                self._shard,
            )

    def _tell_replicas(self) -> None:
        """Has the topology list the replicas that can be read from. Not while slots move: the move would have to begin
        again, since the topology changed meanwhile."""
        places = tuple(
            place
            for number, (pid, place) in sorted(self._synced.items())
            if number != self._primary and self._servers[number].running and self._servers[number].pid == pid
        )
        now = self._place_now()
        if now is None or now.replicas == places or self._cluster._topology.moves:
            return
        with self._cluster._lock:
            self._cluster._tell(
                lambda topology: topology.with_shards([replace(topology.shard(self._shard), replicas=places)]),
                self._shard,
            )

    def _place_now(self) -> ShardPlace | None:
        """Where the shard is by the topology; None: it was taken out."""
        topology = self._cluster._topology
        return next((shard for shard in topology.shards if shard.number == self._shard), None)

    # ---- another primary ---------------------------------------------------------------------------------------------

    def _replace(self, why: str) -> None:
        if self._shard in self._cluster.numbers and self._servers[self._primary].returncode != 0:
            super()._replace(why)

    def _cannot_be_replaced(self, silent_s: float) -> bool:
        is_logged = self._has_log()
        what = "it is waited for, since it has no append-only file to begin with: end its process to give it up"
        if is_logged:
            what = f"its process is killed after {KILL_AFTER_S:g} s, and begins with its append-only file"
        why = f"it does not answer, and no replica that answers has all that it had: {what}"
        if self._cluster.failing.get(self._shard) != why:
            self._say(why)
            self._cluster._note_failing(self._shard, why)
        return is_logged

    def _has_log(self) -> bool:
        """Whether the primary has a whole append-only file with all that it was told."""
        return self._is_logged and self._folders.log(self._folders.chain[0]) is not None

    def _may_lead(self, number: int, about: Mapping[str, str]) -> bool:
        epoch, offset = int(about["master_epoch"]), int(about["master_repl_offset"])
        if about["role"] == "master":  # somebody has just promoted it
            return epoch > self._epoch
        if epoch != self._epoch:
            return False
        ahead = [at for told, at in self._ahead.get(number, ()) if told > offset]
        if not ahead:
            return True
        if self._has_log() and ahead[0] + _LOG_LATE_S <= self._told_at:
            return False
        return not self._folders.was_cut_since(self._cluster._own_snapshots(self._shard), ahead[0])

    def _lead(self, number: int) -> None:
        if number != self._primary:
            self._push_to(self._servers[number])
        super()._lead(number)

    def _put_first(self, number: int) -> None:
        is_another = number != self._primary
        super()._put_first(number)
        self._ahead.clear()
        self._is_logged = False
        if is_another:
            self._settled = False
            with contextlib.suppress(OSError):  # then it is done later
                self._enter_chain()
            self._cluster._promoted(self._shard, self._servers[number])

    def _enter_chain(self) -> None:
        """The folder of what leads now joins the chain: before anybody is told of it, and may ask for a checkpoint."""
        generation = self._generations[self._primary]
        with self._cluster._lock:
            if self._folders.chain[0] != generation:
                self._folders.rename_snapshots(generation)
                self._folders.put_first(generation)

    def _settle(self) -> None:
        """What follows when clients have been told of a promotion, and again until it is done: the chain is written,
        and then the server writes files."""
        if self._settled:
            self._shorten_chain()
            return
        self._enter_chain()
        with self._cluster._lock:
            self._cluster._unwritten = True
            self._cluster._keep()
        for name, value in self._cluster._file_settings().items():
            self._ask(self._primary, any_command("CONFIG", "SET", name, value))
        with self._cluster._lock:
            self._cluster._incomplete.add(self._shard)
        self._settled = True

    def _shorten_chain(self) -> None:
        """Lets go of folders whose files nobody needs any more, since the primary has whole ones."""
        if len(self._folders.chain) == 1 or time.monotonic() < self._checked_at:
            return
        self._checked_at = time.monotonic() + 1.0
        with self._cluster._lock:
            first, *others = self._folders.chain
            is_logged = self._folders.log(first) is not None
            own = self._cluster._own_snapshots(self._shard)
            if not is_logged and (
                all(generation != first for generation, *_ in own) or self._folders.log_folder is not None
            ):
                return
            self._folders.chain = [first]
            try:
                self._cluster._write_topology()
            except OSError:
                self._folders.chain = [first, *others]
                raise
        self._remove_files(others, own)

    def _remove_files(self, generations: Iterable[int], snapshots: Iterable[Snapshot]) -> None:
        """Of folders that have left the chain."""
        for generation in generations:
            if generation not in self._unread:
                self._folders.remove_files(generation, snapshots)

    def _begin_again(self, former: int) -> None:
        if time.monotonic() < self._again_at:
            return
        chain, own = self._folders.chain, self._cluster._own_snapshots(self._shard)
        is_begun = self._cluster._restart(self._shard)
        with self._cluster._lock:
            if self._shard not in self._cluster.numbers or self._ending.is_set():
                return
            self._servers[former] = self._cluster._server_of(self._shard)
            self._generations[former] = self._folders.chain[0]
            if not is_begun:
                self._unread.add(self._folders.chain[0])
        if is_begun:
            try:
                self._lead(former)
                self._put_first(former)
                for number in range(len(self._servers)):
                    if number != former:
                        self._kill(number)
                self._remove_files(set(chain).difference(self._folders.chain), own)
                self._settled, self._again_pause_s = True, _PAUSE_S
                return
            except ReplayError as error:
                self._say(f"what was begun again does not lead: {error}")
                self._kill(former)
        self._again_at = time.monotonic() + self._again_pause_s
        self._again_pause_s = min(_LONGEST_PAUSE_S, 2 * self._again_pause_s)

    # ---- replicas ----------------------------------------------------------------------------------------------------

    def _pause_s(self, number: int) -> float:
        """Longer where it dies again and again."""
        pause_s, at = self._deaths.get(number, (0.0, 0.0))
        pause_s = min(_LONGEST_RESTART_S, 2 * pause_s) if time.monotonic() < at + _LONGEST_RESTART_S else _PAUSE_S
        self._deaths[number] = pause_s, time.monotonic()
        return pause_s

    def _restart_replicas(self) -> None:
        if self._servers[self._primary].running:
            super()._restart_replicas()

    def _start_replica(self, number: int, port: int) -> Server:
        if number < len(self._servers):
            tls_port = tls_port_of(self._servers[number]) if self._servers[number].tls_url else self._ports[1]
        else:
            tls_port = self._ports[1] + number - 1 if self._ports[1] > 0 else self._ports[1]
        others = [generation for each, generation in self._generations.items() if each != number]
        self._generations[number] = self._folders.fresh(others)
        self._ahead.pop(number, None)
        host, primary_port = self._host_and_port(self._primary)
        folder = self._folders.folder(self._generations[number])
        started = self._cluster._start_replica(self._shard, port, tls_port, folder, f"{host} {primary_port}")
        self._push_to(started)
        return started

    def _push_to(self, server: Server) -> None:
        """Tells a replica the topology, if it answers. Then it knows where to send clients."""
        topology = self._cluster._topology
        with impatient(server.url) as client, contextlib.suppress(redis.RedisError, ValueError):
            if topology_of(client).version < topology.version:
                client.execute_command(*topology.arguments(self._shard))

    def _have_follow(self, number: int, standing: Standing) -> None:
        """One that has led is ended: its folder has files of then, and a fresh one begins without."""
        if self._generations[number] in self._folders.chain:
            self._kill(number)
        if self._servers[number].running:
            super()._have_follow(number, standing)

    def _host_and_port(self, number: int) -> tuple[str, int]:
        """As clients are told: a replica sends them there."""
        server = self._servers[number]
        return self._cluster._host_of(server), port_of(server)
