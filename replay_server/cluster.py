"""A replay server of many shards on this host: a child process each, watched, and told who has what."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from .cluster_address import ClusterAddress
from .cluster_arguments import check_arguments
from .cluster_begin import Membership
from .cluster_checkpoint import CHECKPOINT_FILE, read_checkpoint, write_checkpoint
from .cluster_device import FIRST_PORT, SharedDevice
from .cluster_leave import Forgotten, forget, number_of
from .cluster_members import FILE, LOOK_S, Members, way_to
from .cluster_moves import move
from .cluster_replicas import ShardFolders, ShardReplicas, Snapshot
from .cluster_restore import bring_here
from .cluster_shards import SCHEME, place_of
from .cluster_tables import share_of
from .errors import ReplayError, ServerError
from .replica_group import STARTS_WITHIN_S, replica_settings
from .server import Server, port_of, tls_port_of
from .table import Table
from .topology import ReplicaPlace, ShardPlace, Topology, parse_slots

_ADOPT_S = 1.0
_LONGEST_PAUSE_S = 5.0
_STOPS_WITHIN_S = 10.0
"""In which what starts servers ends what it has begun."""
_log = logging.getLogger("replay_server.cluster")


class ShardNotStarted(ServerError):
    """A shard did not start: its `number`, and `why`."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"shard {number}: {why}")
        self.number, self.why = number, why


class Cluster(Members):
    """Shards of one replay, each a server in a child process; a context manager, used as `Server` is.

    It watches the shards. One that dies is started again, on the same port and with the same number: with its newest
    snapshot since this object began, or else with what it began with. One that was stopped in order (SHUTDOWN) is not
    started again. It tells every shard the topology. Shards stop when this process ends, in whatever way it ends.

    Args:
        tables: created on every shard, which holds an equal share: of the capacity, `max_bytes` and the rate limiter.
        shards: how many, 1 to 256.
        host: address to listen on; addresses other than loopback need a password.
        port: of the first shard, the others have those that follow; 0 = any free ports.
        password: clients must send it; `url` contains it.
        directory: the shards' files are in folders of it (`shard-0`, …), with the topology (`cluster.json`): a cluster
            that is started there again has the same slots. It is made if it is missing. None = a temporary
            one.
        maxmemory: bytes of the key-value store of each shard, 0 = no limit.
        config: further settings of each shard, as for CONFIG SET. With "tls-port" (0 = any) clients that use TLS are
            told the TLS ports, of which the first shard has this one and the others those that follow.
        announce: the address that clients are told; None = `host`.
        restore: "latest": every shard begins with the newest snapshot of its folder; "checkpoint": with that of the
            last `checkpoint`, and with the slots that it had then. Or the file that a `checkpoint` of another folder
            returned, perhaps of another number of shards: see `docs/cluster.md`. Then nothing of a cluster may be in
            `directory` yet; the folder of the checkpoint stays as it is.
        pin: each shard has a core to itself; None = if this process may use more cores than there are shards.
        start_timeout: seconds in which each shard must be ready, or have read or written more of its files: one that
            loads is waited for.
        shard_of: URL of a cluster that runs, `redis+cluster://[:password@]host:port…`, perhaps on other hosts. The
            shards join it: they have its tables, each part as large as on its other shards, its password, and no slots
            of keys until some are moved there. Its clients use them within about a second.
        replicas: of each shard, 0 to 4: processes of this host with a copy of the whole shard in memory. If the shard
            dies, or does not answer for 5 s, one takes its place with what it has, and another process becomes a
            replica; see `docs/cluster.md`. Clients may read from replicas (READONLY). Not with `shard_of`, nor with
            tables that are not durable.
        take_over: the number of a shard of `shard_of` whose place a server here takes while clients go on, with all its
            items and their ids, its keys, weights and gradients. They are copied first; only then does this return. The
            former server's supervisor stops it a few seconds later. `shards` must be 1.
        transport: "kernel"; or "dpdk" if the package was built with it: the shards share a device, with a queue and a
            processor for each. `config` has its settings ("dpdk-device", "dpdk-address"; docs/nic-host.md). All shards
            have its address, and `port` 0 is 7000. This process asks them through their admin ports, on loopback. When
            a shard has died, the others may have to begin again with it; see `docs/cluster.md`. Not with `host`, `pin`,
            `replicas`, `shard_of` and `members`.
        members: addresses, host:port, of the first shard of each host, where all hosts are started alike: the same list
            in the same order, and these shards at `announce` and `port`. They join the cluster of the others. If none
            has one, the first member begins it, with its `tables`, as soon as every other one has said that it has no
            cluster either. A member that has lost its folder joins with another number: the lost shard is taken out.
            Not with `shard_of`, `replicas` or a checkpoint.
        begin: with `members`: the first one begins a cluster although others have not answered for `start_timeout`.
            They must have none.
        given_up: ends the start with a ServerError once it is set, and later the watch, as `stop` does, which sets it.

    Attributes:
        url: for `Client`: `redis+cluster://[:password@]host:port,host:port…`, of all shards.
        tls_url: the same over TLS, `rediss+cluster://…`; None = the shards of this object have no TLS port.
        numbers: of the shards that this object runs. One that is taken out of the cluster (`forget`) is among them no
            more, and is stopped a moment later.
        servers: these shards, in the same order. One that is started again is another `Server`.
        replicas: the replicas of each shard, by its number. One that takes its shard's place is among `servers` then.
        failovers: how often a replica took its shard's place.
        restarts: how many shards were started again from files, or empty.
        failing: why a shard that died has not started again so far, by number; it is tried again within 5 s. Or why one
            that does not answer has not been replaced.

    Raises:
        TakeOverRefused: the shard that was to be taken over stays where it is; the message says why.
        ServerError: a shard did not start; the folder is that of another number of shards, or of shards whose numbers
            others have by now; no shard of `shard_of` answers, or one of `members` that may have a cluster
            does not; a checkpoint is not whole or does not fit `tables`; or there are append-only files of after
            "checkpoint".
    """

    def __init__(
        self,
        tables: Iterable[Table] = (),
        shards: int = 2,
        host: str = "127.0.0.1",
        port: int = 0,
        password: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        maxmemory: int = 0,
        config: Mapping[str, Any] | None = None,
        *,
        announce: str | None = None,
        restore: str | os.PathLike[str] | None = None,
        pin: bool | None = None,
        start_timeout: float = 30.0,
        shard_of: str | None = None,
        take_over: int | None = None,
        replicas: int = 0,
        transport: str = "kernel",
        members: Iterable[str] | None = None,
        begin: bool = False,
        given_up: threading.Event | None = None,
    ) -> None:
        self._tables, self._announced = list(tables), announce or host
        check_arguments(
            self._tables, shards, host, port, self._announced, restore, pin, shard_of, take_over, replicas, transport,
            members is not None, begin,
        )  # fmt: skip
        self._owner = os.getpid()
        self._host, self._password, self._shard_of = host, password, shard_of
        self._takes_over = take_over
        if shard_of is not None:
            try:
                self._password = password or ClusterAddress.of_client(shard_of).password
            except ValueError as error:
                raise ServerError(f"shard_of: {error}") from error
        self._membership: Membership | None = None
        if members is not None:
            own = tuple(place_of(ReplicaPlace("", self._announced, port + place)) for place in range(shards))
            self._membership = Membership(tuple(members), own, (host, port), password, begin)
        self.numbers, self._turns = list(range(shards)), itertools.count()
        self._shares = shards
        """Over how many shards tables were shared out; some may have been taken out since."""
        self._parts: list[tuple[Table, int, str | None]] = []
        """Of a cluster that was joined: each table as a shard has it, that shard's number, and why it is closed."""
        self._config, self._maxmemory, self._start_timeout = dict(config or {}), maxmemory, start_timeout
        if replicas:
            self._config = replica_settings(self._config, self._password)
        self._stopping, self._lock = given_up or threading.Event(), threading.RLock()
        self._device = SharedDevice(self, shards) if transport == "dpdk" else None
        if self._device is not None:
            self._announced, port = announce or self._device.address, port or FIRST_PORT
        self._temporary = None if directory is not None else tempfile.TemporaryDirectory(prefix="replay-cluster-")
        self._directory = Path(self._temporary.name if self._temporary else directory or ".")
        self._cores = sorted(os.sched_getaffinity(0))
        self._pin = len(self._cores) > shards if pin is None else pin and len(self._cores) >= shards
        self._pin = self._pin and self._device is None  # which has a processor for each
        self.servers: list[Server] = []
        self._gone: list[tuple[float, Server]] = []
        """Shards that were taken out, and when they are stopped."""
        self._folders: dict[int, ShardFolders] = {}
        self._own_ids = {}
        self._groups: dict[int, ShardReplicas] = {}
        """Of shards that have replicas."""
        self._began: dict[int, tuple[str | None, set[Snapshot]]] = {}
        """By number: what a shard was to restore, and which snapshots were in its folder then."""
        self._incomplete = set[int]()
        """Shards that began again, or whose replica leads now, and that may lack tables or settings."""
        self._completing = threading.Lock()
        """Held while they get them."""
        self._starts = dict[int, threading.Thread]()
        """What starts a shard again, by number."""
        self._watcher: threading.Thread | None = None
        self.restarts = self.failovers = 0
        self.failing: dict[int, str] = {}
        made: list[Path] = []
        try:
            self._begin(port, restore, made)
            for place, number in enumerate(self.numbers if replicas else ()):
                ports = self._ports(port, shards + place * replicas)
                self._groups[number] = ShardReplicas(self, number, replicas, ports)
        except BaseException:
            self.stop(timeout=0)
            self._leave_nothing(made)
            raise
        self._watcher = threading.Thread(target=self._watch, name="replay-cluster", daemon=True)
        self._watcher.start()
        for group in self._groups.values():
            group.start()

    def _leave_nothing(self, made: list[Path]) -> None:
        """After a start that failed: removes the folders that are new, and with them all of the cluster that a
        checkpoint was to begin."""
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            if made:
                (self._directory / FILE).unlink()
        for folder in [each for number in self.numbers for each in self._directory.glob(f"shard-{number}-*")]:
            with contextlib.suppress(OSError):  # a replica writes no files
                folder.rmdir()

    # ---- where it is -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{SCHEME}{self._login}{','.join(map(place_of, self._places()))}"

    @property
    def tls_url(self) -> str | None:
        urls = [server.tls_url for server in self.servers]
        if not urls or urls[0] is None:
            return None
        places = [replace(each, port=each.tls_port) for each in self._places() if each.tls_port]
        trust = urlsplit(urls[0])._replace(scheme="", netloc="", path="").geturl()
        return f"rediss+cluster://{self._login}{','.join(map(place_of, places))}{trust}"

    def _places(self) -> list[ShardPlace | ReplicaPlace]:
        shards = self._topology.shards
        return [*shards, *(replica for shard in shards for replica in shard.replicas)]

    @property
    def replicas(self) -> dict[int, list[Server]]:
        return {number: group.replicas for number, group in self._groups.items() if number in self.numbers}

    @property
    def pids(self) -> list[int]:
        """Process ids of `servers`."""
        return [server.pid for server in self.servers]

    @property
    def topology(self) -> Topology:
        """As the shards have it now."""
        return self._refresh()

    @property
    def running(self) -> bool:
        """Whether every one of `servers` is alive."""
        return all(server.running for server in self.servers)

    # ---- shards ------------------------------------------------------------------------------------------------------

    def _begin(self, port: int, restore: str | os.PathLike[str] | None, made: list[Path]) -> None:
        """Starts the shards, again where others have taken their numbers. `made` gets the folders that are new."""
        before, files = self._beginning(restore, made)
        if self._membership is not None:
            self._find_members(self._membership, is_new=before is None)
        entered = False
        while not entered:
            if self._shard_of is not None:
                self._topology = self._joined(self._shard_of, before)
            else:
                self._topology = self._newest(before) if before else Topology(0, ())
            self._leave_out_gone(before)
            for place, number in enumerate(self.numbers):
                folders = self._files(number)
                self._began[number] = files[place], folders.snapshots()
                first = folders.first_whole(self._began[number][1] if files[place] == "latest" else ())
                folders.chain = [folders.chain[0] if first is None else first]
                self.servers.append(self._start(number, *self._ports(port, place), files[place]))
            entered = self._entered()

    def _find_members(self, membership: Membership, is_new: bool) -> None:
        """Has these shards join the cluster of the other members, if they have one."""
        self._shard_of = membership.cluster_to_join(not is_new, self._start_timeout, self._stopping)
        if self._shard_of is not None:
            self._tables = []  # those of the cluster
            if is_new:
                membership.forget_lost(self._shard_of)
        elif not is_new and 0 not in self.numbers:  # they had joined
            self._tables = []
            self._incomplete.update(self.numbers)

    @property
    def _tls_port(self) -> int:
        """Of the first shard; 0 = any, -1 = none."""
        return int(self._config.get("tls-port", -1))

    def _ports(self, port: int, behind: int) -> tuple[int, int]:
        """So many behind that of the first shard, and behind its TLS port."""
        tls_port = self._tls_port
        return port + behind if port else 0, tls_port + behind if tls_port > 0 else tls_port

    def _config_of(self, number: int, tls_port: int) -> dict[str, Any]:
        """The settings of a shard's server; a port below 0 = no TLS."""
        own_port = {"tls-port": tls_port} if tls_port >= 0 else {}
        return {**self._config, "cluster-enabled": True, "shard": number, **own_port}

    def _start(self, number: int, port: int, tls_port: int, restore: str | None) -> Server:
        tables = [] if self._shard_of else [share_of(table, number, self._shares) for table in self._tables]
        options = {
            "host": self._host,
            "port": port,
            "password": self._password,
            "maxmemory": self._maxmemory,
            "config": self._config_of(number, tls_port),
            "restore": restore,
            "start_timeout": self._start_timeout,
        }
        try:
            server = self._serve(number, tables, options)
        except ServerError as error:
            raise ShardNotStarted(number, str(error)) from error
        self._give_core(number, server)
        return server

    def _give_core(self, number: int, server: Server) -> None:
        """Pins what leads a shard to the shard's core, if shards have one each."""
        if self._pin:
            with contextlib.suppress(OSError, ValueError):  # it was taken out meanwhile
                os.sched_setaffinity(server.pid, {self._cores[self.numbers.index(number)]})

    def _serve(self, number: int, tables: list[Table], options: dict[str, Any]) -> Server:
        """Starts the server of a shard in the shard's folder; `options` are those of `Server`."""
        folder = self._files(number).leading
        folder.mkdir(parents=True, exist_ok=True)
        if self._device is not None:
            return self._device.serve(number, tables, folder, options)
        return Server(tables, directory=folder, given_up=self._stopping, **options)

    def _start_replica(self, number: int, port: int, tls_port: int, folder: Path, follows: str) -> Server:
        """Starts a server that follows a shard, at this host and port, and writes no files."""
        config = self._config_of(number, tls_port) | {"save": "", "appendonly": False, "replicaof": follows}
        config |= {"replica-serve-stale-data": False, "replica-announce-ip": self._announced}
        return Server(
            (), self._host, port, None, self._password, folder, self._maxmemory, config=config,
            start_timeout=min(self._start_timeout, STARTS_WITHIN_S), given_up=self._stopping,
        )  # fmt: skip

    def _file_settings(self) -> dict[str, str]:
        """The settings by which a replica that leads now begins to write files, as its shard did."""
        given = {name: self._config[name] for name in ("save", "appendonly") if name in self._config}
        return {name: ("no", "yes")[value] if isinstance(value, bool) else str(value) for name, value in given.items()}

    def _own_snapshots(self, number: int) -> set[Snapshot]:
        """A shard's since this object began."""
        return self._files(number).snapshots() - self._began[number][1]

    def _promoted(self, number: int, server: Server) -> None:
        """A replica leads a shard."""
        with self._lock:
            if number not in self.numbers:
                return
            self.servers[self.numbers.index(number)] = server
            self.failovers += 1
            self._note_failing(number, None)
            self._give_core(number, server)

    def _replicas(self) -> list[tuple[int, Server]]:
        return [(number, server) for number, servers in self.replicas.items() for server in servers if server.running]

    def _own_snapshot(self, number: int) -> str | None:
        """What a shard that died restores: its newest snapshot since this object began or, where there is none, what it
        began with. A snapshot of before may be newer than that, and of data that were given up."""
        return "latest" if self._own_snapshots(number) else self._began[number][0]

    def _watch(self) -> None:
        adopt_at = 0.0
        while not self._stopping.wait(LOOK_S):
            try:
                self._start_dead()
                self._stop_gone(time.monotonic())
                if time.monotonic() >= adopt_at:
                    adopt_at = time.monotonic() + _ADOPT_S
                    self._complete_begun()
                    self._refresh()
            except Exception as error:  # such as a full disk: whatever it is, the shards are watched on
                _log.warning("the shards' watch: %s; it is tried again", error or repr(error))

    def _start_dead(self) -> None:
        """Begins to start the shards again that have died."""
        with self._lock:
            pairs = [pair for pair in zip(self.numbers, self.servers, strict=True) if pair[0] not in self._groups]
        dead = [number for number, server in pairs if not server.running and server.returncode != 0]
        restarts: dict[int, Callable[[], bool]] = {number: partial(self._restart, number) for number in dead}
        if self._device is not None:
            restarts = {0: self._device.restart} if self._device.has_lost() else {}
        for number, restart in restarts.items():
            if number not in self._starts or not self._starts[number].is_alive():
                starts = threading.Thread(target=self._bring_back, args=(restart,), daemon=True)
                starts.start()
                self._starts[number] = starts

    def _bring_back(self, restart: Callable[[], bool]) -> None:
        """Starts a shard again, or those of a device, as often as it takes."""
        pause_s = 0.0
        while not self._stopping.wait(pause_s) and not restart():
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s or LOOK_S)

    def _restart(self, number: int) -> bool:
        """Starts a shard again; whether it runs. Without the lock, since it may have large files to read."""
        with contextlib.suppress(redis.RedisError, OSError):
            self._refresh()
        with self._lock:
            if number not in self.numbers:  # another server has taken it over
                return True
            died = self._server_of(number)
        if number not in self._groups and died.running:  # an earlier start has just brought it back
            return True
        _log.warning("shard %d ended with status %s: starting it again", number, died.returncode)
        try:
            died.stop(timeout=0)
            port = port_of(died)  # in the topology it may be that of an earlier one
            tls_port = tls_port_of(died) if died.tls_url else self._tls_port
            with self._lock:
                folders = self._files(number)
                first = folders.first_whole(self._own_snapshots(number))
                folders.chain, self._unwritten = [folders.chain[-1] if first is None else first], True
            started = self._start(number, port, tls_port, self._own_snapshot(number))
        except (ReplayError, redis.RedisError, OSError) as error:
            if not self._stopping.is_set():
                _log.error("shard %d did not start again: %s", number, error)
                self._note_failing(number, str(error))
            return False
        with self._lock:
            is_entered = number in self.numbers and not self._stopping.is_set()
            if is_entered:
                self.servers[self.numbers.index(number)] = started
                self._incomplete.add(number)
                self._unwritten = True  # its admin port is another one
        if not is_entered:
            started.stop(timeout=0)
            return True
        self._complete_begun()
        with contextlib.suppress(redis.RedisError, OSError):  # the watch does it, too
            self._refresh()
        self._note_failing(number, None)
        with self._lock:
            self.restarts += 1
        return True

    def _complete_begun(self) -> None:
        """Gives shards that began again the tables and settings that they lack. What fails is tried again."""
        with self._completing:
            for number in self._incomplete.intersection(self.numbers):
                try:
                    if self._server_of(number).running:
                        self._complete(number, patient=False)
                        self._incomplete.discard(number)
                except Exception as error:  # whatever it is, the shards are watched on
                    _log.warning(
                        "shard %d is not told its tables and settings, which is tried again: %s", number, error
                    )

    # ---- the topology ------------------------------------------------------------------------------------------------

    def move(self, slots: str | Iterable[int], target: int) -> Topology:
        """Moves slots of keys to a shard, with what is in them, while clients go on.

        Args:
            slots: such as "0-99,200", or numbers.
            target: the shard's number.

        Returns:
            The topology in which they are there.

        Raises:
            MoveRefused: gradients wait in one of the slots, or the target does not take a key.
            ValueError: there are no such slots, or no such shard.
        """
        topology = self.topology
        with self._clients() as clients:
            return move(clients, topology, parse_slots(slots) if isinstance(slots, str) else slots, target)

    def forget(
        self, shard: int | str, *, timeout: float = 60.0, lose_items: bool = False, dead: bool = False
    ) -> Forgotten:
        """Takes a shard out of the cluster for good, while clients go on; who runs it stops it a moment later.

        Its slots of keys move to the others. Clients add to the others within about a second. Its items stay with it:
        it goes when they have been sampled away or deleted, or given up. Its number is not given again.

        Args:
            shard: its number, or its address, host:port.
            timeout: seconds in which its items must have left.
            lose_items: items that are still there are lost, and not waited for.
            dead: it does not answer, and all that it holds is lost: items, keys, weights, gradients.

        Returns:
            The topology without it, and `items`: how many were lost, by table; None for a dead one.

        Raises:
            LeaveRefused: it is the last one, still holds items, or `dead` is not true of it. It stays in the cluster.
            MoveRefused: gradients wait in one of its slots, or a key does not move. It stays as well.
            ValueError: there is no such shard.
        """
        topology = self.topology
        number = number_of(topology, shard)
        with self._clients() as clients:
            forgotten = forget(clients, topology, number, timeout=timeout, lose_items=lose_items, dead=dead)
        with contextlib.suppress(OSError):  # what cannot be written now is written later
            self._refresh()
        return forgotten

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Path:
        """Writes a snapshot of every shard, and then the manifest that names them, which `restore="checkpoint"` reads.

        The shards are cut at about the same time, each by itself. Without all of the snapshots there is no new
        manifest, and the one before stays.

        Returns:
            The manifest, `checkpoint.json` in the folder.

        Raises:
            ServerError: slots move, so that a key might be in no snapshot; a shard's folder is not on this host; or the
                manifest cannot be written.
            ReplayError: a shard could not write its snapshot.
        """
        topology = self.topology
        if others := self._others(topology):
            numbers = ", ".join(str(shard.number) for shard in others)
            raise ServerError(f"expected all shards to be run by this process, and {numbers} are run by another one")
        with self._lock:
            urls = {number: way_to(server) for number, server in zip(self.numbers, self.servers, strict=True)}
            folders = {number: self._files(number).leading for number in urls}
        return write_checkpoint(self._directory, urls, folders, topology, lambda: self.topology)

    def _beginning(
        self, restore: str | os.PathLike[str] | None, made: list[Path]
    ) -> tuple[Topology | None, list[str | None]]:
        """The topology that the shards had, and what each is to restore. `made` gets the folders that are new."""
        if restore is None or restore == "latest":
            return self._read_topology(), [None if restore is None else "latest"] * len(self.numbers)
        if restore != "checkpoint":
            shards = len(self.numbers)
            before, self.numbers, files = bring_here(Path(restore), self._directory, shards, self._tables, made)
            return before, [*files]
        own = self._directory / CHECKPOINT_FILE
        before, files = read_checkpoint(own, self._read_topology())
        if len(files) != len(self.numbers):
            raise ServerError(
                f"{own} is of {len(files)} shards, and {len(self.numbers)} were asked for: start as many, or give this "
                "file as restore, and another directory"
            )
        if there := [log for number in self.numbers for log in self._files(number).logs()]:
            raise ServerError(
                f"{there[0]} has what came after the checkpoint, and the shard would begin with that: move it away and "
                f"those of the other shards, or give {own} as restore, and another directory"
            )
        return before, [*files]

    # ---- its end -----------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = 10.0) -> None:
        """Stops every shard, as `Server.stop` does."""
        if self._owner != os.getpid():
            return
        if self._temporary is None and self._watcher is not None:  # what others have told since the last look
            with contextlib.suppress(Exception):  # whatever it is, the shards are stopped
                self._refresh()
        self._stopping.set()
        deadline = time.monotonic() + _STOPS_WITHIN_S
        for thread in [*self._starts.values(), *(group.thread for group in self._groups.values())]:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            servers = [*self.servers, *(server for _, server in self._gone)]
            servers += [server for group in self._groups.values() for server in group.servers]
            owner = self._device.owner if self._device is not None else None
            last = [server for server in servers if server is owner]  # the others on its device end in order before
            for stopped in ([server for server in servers if server is not owner], last):
                stops = [threading.Thread(target=server.stop, args=(timeout,)) for server in dict.fromkeys(stopped)]
                for each in stops:
                    each.start()
                for each in stops:
                    each.join()
        if self._temporary is not None:
            if self._watcher is not None:  # it may be writing there
                self._watcher.join(_STOPS_WITHIN_S)
            self._temporary.cleanup()

    @property
    def was_stopped(self) -> bool:
        """Whether every shard was stopped in order, by SHUTDOWN, or because it was taken out. One of which a replica
        still runs may go on with that. On a shared device, the first shard's end ends the others."""
        if self._device is not None:
            return self._device.was_stopped
        return not self._gone and all(server.returncode == 0 for server in self.servers) and not self._replicas()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Cluster(numbers={self.numbers}, pids={self.pids}, running={self.running})"
