"""A replay server of many shards on this host: a child process each, watched, and told who has what."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from .client import Client
from .cluster_address import even_slots
from .cluster_moves import move
from .cluster_tables import share_of
from .errors import ServerError
from .server import Server
from .table import Table
from .topology import MOST_SHARDS, ShardPlace, Topology, parse_slots, slot_ranges

FILE, CHECKPOINT_FILE = "cluster.json", "checkpoint.json"
"""In the cluster's folder: the topology, and the manifest of the last checkpoint of all shards."""
_LOOK_S = 0.1
_ADOPT_S = 1.0
_LONGEST_PAUSE_S = 5.0
_log = logging.getLogger("replay_server.cluster")


def _cut(url: str) -> str:
    with Client(url) as client:
        return client.checkpoint()


class ShardNotStarted(ServerError):
    """A shard did not start; `number` is its own."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"shard {number}: {why}")
        self.number = number


class Cluster:
    """Shards of one replay, each a server in a child process; a context manager, used as `Server` is.

    It watches the shards. One that dies is started again, with its newest snapshot, on the same port and with the same
    number; one that was stopped in order (SHUTDOWN) is not. It tells every shard the topology. Shards stop when this
    process ends, in whatever way it ends.

    Args:
        tables: created on every shard, which holds an equal share: of the capacity, `max_bytes` and the rate limiter.
        shards: how many, 1 to 256.
        host: address to listen on; addresses other than loopback need a password.
        port: of the first shard, the others have those that follow; 0 = any free ports.
        password: clients must send it; `url` contains it.
        directory: the shards' files are in folders of it (`shard-0`, …), with the topology (`cluster.json`): a cluster
            that is started there again has the same slots. None = a temporary one.
        maxmemory: bytes of the key-value store of each shard, 0 = no limit.
        config: further settings of each shard, as for CONFIG SET.
        announce: the address that clients are told; None = `host`.
        restore: "latest": every shard begins with the newest snapshot of its folder; "checkpoint": with that of the
            last `checkpoint`, and with the slots that it had then.
        pin: each shard has a core to itself; None = if this process may use more cores than there are shards.
        start_timeout: seconds in which each shard must be ready.

    Attributes:
        url: for `Client`: `redis+cluster://[:password@]host:port,host:port…`.
        servers: the shards, by number. One that is started again is another `Server`.
        restarts: how many shards were started again.
        failing: why a shard that died has not started again so far, by number; it is tried again within 5 s.

    Raises:
        ServerError: a shard did not start, or the folder is that of another number of shards.
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
        restore: str | None = None,
        pin: bool | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        if not 1 <= shards <= MOST_SHARDS:
            raise ServerError(f"expected 1 to {MOST_SHARDS} shards, got {shards}")
        if restore not in (None, "latest", "checkpoint"):
            raise ServerError(f'expected restore to be "latest", "checkpoint" or None, got {restore!r}')
        self._announced = announce or host
        if self._announced in ("0.0.0.0", "::"):
            raise ServerError(
                f"expected announce, since clients cannot connect to {self._announced}: a name of this host"
            )
        self._owner = os.getpid()
        self._tables, self._count, self._host, self._password = list(tables), shards, host, password
        self._config, self._maxmemory, self._start_timeout = dict(config or {}), maxmemory, start_timeout
        self._temporary = None if directory is not None else tempfile.TemporaryDirectory(prefix="replay-cluster-")
        self._directory = Path(self._temporary.name if self._temporary else directory or ".")
        self._cores = sorted(os.sched_getaffinity(0))
        self._pin = len(self._cores) > shards if pin is None else pin and len(self._cores) >= shards
        self._stopping, self._lock = threading.Event(), threading.RLock()
        self.servers: list[Server] = []
        self.restarts = 0
        self.failing: dict[int, str] = {}
        try:
            before, files = self._read_topology(), [restore] * shards
            if restore == "checkpoint":
                before, files = self._read_checkpoint(before)
            for number in range(shards):
                self.servers.append(self._start(number, port + number if port else 0, files[number]))
            self._topology = self._made(before)
            self._write_topology()
            self._push(range(shards))
        except BaseException:
            self.stop(timeout=0)
            raise
        self._watcher = threading.Thread(target=self._watch, name="replay-cluster", daemon=True)
        self._watcher.start()

    # ---- where it is -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        login = f":{quote(self._password, safe='')}@" if self._password else ""
        hosts = (f"[{each.host}]" if ":" in each.host else each.host for each in self._topology.shards)
        ports = (each.port for each in self._topology.shards)
        listed = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        return f"redis+cluster://{login}{listed}"

    @property
    def pids(self) -> list[int]:
        """Process ids, by the shards' numbers."""
        return [server.pid for server in self.servers]

    @property
    def topology(self) -> Topology:
        """As the shards have it now."""
        with self._lock:
            self._adopt()
            return self._topology

    @property
    def running(self) -> bool:
        """Whether every shard is alive."""
        return all(server.running for server in self.servers)

    # ---- shards ------------------------------------------------------------------------------------------------------

    def _start(self, number: int, port: int, restore: str | None) -> Server:
        folder = self._directory / f"shard-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            server = Server(
                [share_of(table, number, self._count) for table in self._tables],
                host=self._host,
                port=port,
                password=self._password,
                directory=folder,
                maxmemory=self._maxmemory,
                config={**self._config, "cluster-enabled": True, "shard": number},
                restore=restore,
                start_timeout=self._start_timeout,
            )
        except ServerError as error:
            raise ShardNotStarted(number, str(error)) from error
        if self._pin:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(server.pid, {self._cores[number]})
        return server

    def _watch(self) -> None:
        pauses, due, adopt_at = [0.0] * self._count, [0.0] * self._count, 0.0
        while not self._stopping.wait(_LOOK_S):
            with self._lock:
                if self._stopping.is_set():
                    return
                now = time.monotonic()
                if now >= adopt_at:
                    with contextlib.suppress(redis.RedisError):
                        self._adopt()
                    adopt_at = now + _ADOPT_S
                for number, server in enumerate(self.servers):
                    if server.running or server.returncode == 0 or now < due[number]:
                        continue
                    if self._restart(number):
                        pauses[number] = 0.0
                    else:
                        pauses[number] = min(_LONGEST_PAUSE_S, 2 * pauses[number] or _LOOK_S)
                    due[number] = now + pauses[number]

    def _restart(self, number: int) -> bool:
        died, place = self.servers[number], self._topology.shard(number)
        _log.warning("shard %d ended with status %s: starting it again", number, died.returncode)
        try:
            died.stop(timeout=0)
            self.servers[number] = self._start(number, place.port, "latest")
            self._adopt()
        except (ServerError, redis.RedisError) as error:
            _log.error("shard %d did not start again: %s", number, error)
            self.failing[number] = str(error)
            return False
        self.failing.pop(number, None)
        self.restarts += 1
        return True

    # ---- the topology ------------------------------------------------------------------------------------------------

    def _made(self, before: Topology | None) -> Topology:
        """That with which it begins: slots and ids are as they were, places as they are."""
        shards = []
        for number, server in enumerate(self.servers):
            port = int(server.url.rpartition(":")[2])
            known = before.shards[number] if before else None
            identity = known.id if known else secrets.token_hex(20)
            slots = known.slots if known else slot_ranges(even_slots(number, self._count))
            shards.append(ShardPlace(number, identity, self._announced, port, "", slots))
        return Topology(before.version + 1 if before else 1, tuple(shards), before.moves if before else ())

    def _read_topology(self) -> Topology | None:
        file = self._directory / FILE
        if not file.exists():
            return None
        try:
            before = Topology.from_json(file.read_text())
        except (OSError, ValueError) as error:
            raise ServerError(f"{file} cannot be read: {error}") from error
        if len(before.shards) != self._count:
            raise ServerError(
                f"{self._directory} holds the files of {len(before.shards)} shards, and {self._count} were asked for: "
                "start as many, or in another folder"
            )
        return before

    def _write_topology(self) -> None:
        self._write(FILE, self._topology.to_json())

    def _write(self, name: str, text: str) -> Path:
        """The file is the one before, or this one, whole."""
        file = self._directory / name
        unfinished = file.with_suffix(".partial")
        with open(unfinished, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)
        return file

    def _connection(self, number: int) -> redis.Redis:
        return redis.Redis.from_url(self.servers[number].url, socket_timeout=self._start_timeout)

    def _push(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            with self._connection(number) as client:
                client.execute_command(*self._topology.arguments(number))

    def _adopt(self) -> None:
        """Takes over the newest topology that somebody else has pushed, and tells it to shards that have none."""
        newest, untold = self._topology, []
        for number, server in enumerate(self.servers):
            if server.running:
                with contextlib.suppress(redis.RedisError, ValueError), self._connection(number) as client:
                    told = Topology.from_json(client.execute_command("CLUSTER", "TOPOLOGY"))
                    newest = max(newest, told, key=lambda each: each.version)
                    untold += [number] if told.version == 0 else []
        if newest is not self._topology:
            self._topology = newest
            self._write_topology()
        self._push(untold)

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
        clients = {number: self._connection(number) for number in range(self._count)}
        try:
            return move(clients, self.topology, parse_slots(slots) if isinstance(slots, str) else slots, target)
        finally:
            for client in clients.values():
                client.close()

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Path:
        """Writes a snapshot of every shard, and then the manifest that names them, which `restore="checkpoint"` reads.

        The shards are cut at about the same time, each by itself. Without all of the snapshots there is no new
        manifest, and the one before stays.

        Returns:
            The manifest, `checkpoint.json` in the folder.

        Raises:
            ServerError: slots move, so that a key might be in no snapshot.
            ReplayError: a shard could not write its snapshot.
        """
        topology = self.topology
        if topology.moves:
            raise ServerError("expected no slot to be moving while shards are cut: finish the move, then try again")
        with ThreadPoolExecutor(self._count) as pool:
            files = list(pool.map(_cut, [server.url for server in self.servers]))
        if self.topology.version != topology.version:
            raise ServerError("expected the topology to stay while the shards were cut, and it has changed: try again")
        names = [os.path.relpath(file, self._directory) for file in files]
        told = {"topology": json.loads(topology.to_json()), "snapshots": names}
        return self._write(CHECKPOINT_FILE, json.dumps(told))

    def _read_checkpoint(self, now: Topology | None) -> tuple[Topology, list[str | None]]:
        """The topology of the last checkpoint, in the version that follows, and the snapshots."""
        file = self._directory / CHECKPOINT_FILE
        try:
            told = json.loads(file.read_text())
            topology = Topology.from_json(json.dumps(told["topology"]))
            names = [str(self._directory / name) for name in told["snapshots"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{file} cannot be read: {error}") from error
        if len(names) != self._count:
            raise ServerError(f"{file} is of {len(names)} shards, and {self._count} were asked for: start as many")
        if missing := [name for name in names if not os.path.exists(name)]:
            raise ServerError(f"{file} names {missing[0]}, which is not there any more (setting snapshot-keep)")
        version = max(topology.version, now.version if now else 0)
        return replace(topology, version=version), [os.path.abspath(name) for name in names]

    # ---- its end -----------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = 10.0) -> None:
        """Stops every shard, as `Server.stop` does."""
        if self._owner != os.getpid():
            return
        self._stopping.set()
        with self._lock:
            stops = [threading.Thread(target=server.stop, args=(timeout,)) for server in self.servers]
            for each in stops:
                each.start()
            for each in stops:
                each.join()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def was_stopped(self) -> bool:
        """Whether every shard was stopped in order, by SHUTDOWN."""
        return all(server.returncode == 0 for server in self.servers)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Cluster(pids={self.pids}, running={self.running})"
