"""Shards of one replay as processes that Ray places, on many hosts, with a supervisor among them.

Three kinds of processes, all of them detached actors, which no program's end takes along:
- A `ShardHost` holds the server of one shard as its child. Where the host or its node dies, Ray starts another one, in
  the same bundle of the placement group: on the same node, or on another one that has room.
- The `Supervisor` is a `replay_server.Cluster` whose servers are children of these hosts. So all is as on one host: it
  starts a server that died again from the newest snapshot, pushes the topology, takes over the one that somebody else
  pushed, and lets shards go that were taken out. Only where a shard is may change.
- The server itself, which Ray does not know.

Where the supervisor dies, the shards serve on. Ray starts it again, and it finds the hosts by their names, the servers
as the hosts tell of them, and the topology on the shards.

What is sent is bytes, strings and numbers. The password is among them: who may use the Ray cluster can read it, and
could run any program there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgpack
import ray
import redis
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from replay_server.cluster import Cluster, ShardNotStarted
from replay_server.cluster_replicas import snapshots_in
from replay_server.cluster_shards import PATIENCE_S, impatient, newest, place_of, topology_of
from replay_server.codec import pack
from replay_server.connection import url_with_password
from replay_server.errors import ReplayError, ServerError
from replay_server.jobs.job_server import ADDRESS_IN_USE
from replay_server.rl.ray_cluster import RayCluster
from replay_server.server import Server
from replay_server.table import Table
from replay_server.topology import Topology
from replay_server.whole_file import write_whole

NAMESPACE = "replay-server"
"""Of the actors' names in Ray."""
LOST = -9
"""What stands for the exit status of a server whose host Ray lost."""
PLACED_S = 60.0
"""In which Ray must have started the processes of hosts, where the placement group is there."""
_LOOK_S, _AGAIN_S = 0.1, 2.0
_ANSWER_S = 10.0
_WAIT_S = 10.0
"""Of one question after a server's end. A supervisor that died leaves none behind for longer."""
_SOON_S = 0.5
"""For a host's answer, while other shards are waiting to be looked after."""

RUN_FILE = "run.json"
"""In a shard's folder: which run it is of, what the shard began with, and which snapshots were there before."""

DETACHED: Mapping[str, Any] = {"max_restarts": -1, "lifetime": "detached", "namespace": NAMESPACE}
"""Ray's options of what lives until it is killed."""


def host_name(name: str, number: int) -> str:
    """The name in Ray of a shard's host."""
    return f"{name}/shard-{number}"


def _names() -> list[str]:
    named: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["namespace"] == NAMESPACE]


def end_hosts(name: str) -> None:
    """Kills the hosts of a cluster's shards, with their servers, and waits until their names are free.

    Raises:
        ServerError: Ray has not ended them in time.
    """
    until = time.monotonic() + _ANSWER_S
    while found := [each for each in _names() if each.startswith(host_name(name, 0)[:-1])]:
        if time.monotonic() > until:
            raise ServerError(f"Ray has not ended {', '.join(found)} within {_ANSWER_S:g} s")
        for host in found:
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                ray.kill(ray.get_actor(host, NAMESPACE))
        time.sleep(_LOOK_S)


def restored_in(folder: Path, run: str, first: bool, restore: str | None, log: str | None) -> str | None:
    """What a shard restores that starts in a folder, as on one host (`Cluster._own_snapshot`). It is decided here: the
    supervisor may be on another node, and may itself have been started again since.

    Args:
        folder: the shard's, which is there.
        run: the cluster's, from its start to its end.
        first: the shard starts for the first time in this run.
        restore: with what it begins then.
        log: the folder in it where its append-only file is; None = it has none.

    Raises:
        ServerError: `run.json` cannot be read, or an append-only file of another run is there, which the server would
            read.
    """
    file, there = folder / RUN_FILE, snapshots_in(folder)
    try:
        told = {} if first else json.loads(file.read_text())
        if told.get("run") == run:
            before = {(name, time_ns) for name, time_ns in told["before"]}
            return "latest" if there - before else told["restore"]
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError) as error:  # a shard that began empty now would lose those of this run
        raise ServerError(f"{file} cannot be read ({error!r}): remove it to have the shard begin empty") from error
    if not first:  # this node's disk, and another one's had the shard's files
        restore = None
        if log is not None and (folder / log).exists():
            raise ServerError(
                f"{folder / log} is of another run of a cluster: move it away, and the shard begins empty here"
            )
    write_whole(file, json.dumps({"run": run, "restore": restore, "before": sorted(there)}))
    return restore


class ShardHost:
    """What runs in a process that Ray placed for one shard: its server, as a child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._temporary: str | None = None

    def address(self) -> str:
        """Of this node."""
        return ray.util.get_node_ip_address()

    def serving(self) -> tuple[str, int]:
        """host:port of the server and its process id; "" and 0 where none runs."""
        with self._lock:
            return self._serving()

    def _serving(self) -> tuple[str, int]:
        if self._server is None or not self._server.running:
            return "", 0
        return urlsplit(self._server.url).netloc.rpartition("@")[2], self._server.pid

    def start(self, setup: bytes) -> tuple[str, int, str]:
        """Starts the server, unless it runs; what `serving` tells then, and why it did not start.

        Args:
            setup: msgpack of `folder`, `temporary` (whether the folder goes with the server), `tables` (as `Table.pack`
                has them), `options` (of `Server`), `was_on`, the address of the node that the shard was on before, or
                "", and `run`, `first` and `log` (as of `restored_in`).
        """
        told = msgpack.unpackb(setup)
        node, options = self.address(), told["options"]
        tables = [Table.unpack(each) for each in told["tables"]]
        # On the same node who has the port may be the server before, which is about to end. So that is tried again.
        ports = [options["port"]] if told["was_on"] in ("", node) else [options["port"], 0]
        why = ""
        with self._lock:
            if self._serving()[1]:
                return *self._serving(), ""
            for port in ports:
                try:
                    os.makedirs(told["folder"], exist_ok=True)
                    self._temporary = told["folder"] if told["temporary"] else None
                    options["restore"] = restored_in(
                        Path(told["folder"]), told["run"], told["first"], options["restore"], told["log"]
                    )
                    self._server = Server(
                        tables, **{**options, "host": node, "port": port, "directory": told["folder"]}
                    )
                    return *self._serving(), ""
                except (ReplayError, OSError, ValueError) as error:
                    why = str(error)
                    if ADDRESS_IN_USE not in why:
                        break
        return "", 0, why

    def wait(self, pid: int, seconds: float) -> int | None:
        """Waits for the end of a server for a while; its exit status."""
        until = time.monotonic() + seconds
        while True:
            with self._lock:
                if self._server is None or self._server.pid != pid:
                    return LOST
                status = self._server.returncode
            if status is not None or time.monotonic() > until:
                return status
            time.sleep(_LOOK_S)

    def stop(self, timeout: float) -> None:
        """See `Server.stop`."""
        with self._lock:
            if self._server is not None:
                self._server.stop(timeout)
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                with contextlib.suppress(OSError):  # another shard's is there, too
                    os.rmdir(os.path.dirname(self._temporary))


class _Placed(Server):
    """The server of a shard as its supervisor sees it: a child of another process, perhaps on another host.

    Args:
        host: Ray's handle of the `ShardHost`.
        url: of the server, or where it was.
        pid: 0 = it does not run.
    """

    def __init__(self, host: Any, url: str, pid: int) -> None:
        self.url, self.pid, self.host, self.tls_url, self.admin_url = url, pid, host, None, None
        self._asking = threading.Lock()
        self._status: int | None = None if pid else LOST
        self._end = self._wait()

    def _wait(self) -> Any:
        return self.host.wait.remote(self.pid, _WAIT_S) if self._status is None else None

    @property
    def returncode(self) -> int | None:
        with self._asking:
            if self._end is not None and ray.wait([self._end], timeout=0)[0]:
                try:
                    self._status = ray.get(self._end)
                except RayError:
                    self._status = LOST
                self._end = self._wait()
            return self._status

    @property
    def running(self) -> bool:
        return self.returncode is None

    def log(self) -> str:
        """It stays where the server is."""
        return ""

    def stop(self, timeout: float = 10.0) -> int | None:
        if self._status is None:
            with contextlib.suppress(RayError, GetTimeoutError):
                ray.get(self.host.stop.remote(timeout), timeout=timeout + _ANSWER_S)
        return self.returncode


class ShardsOnRay(Cluster):
    """A `Cluster` whose servers are children of `ShardHost`s.

    Args:
        name: of the cluster in Ray.
        shards: how many.
        group: the placement group, of bundles of `per_node` processors; None = shards are wherever there is room.
        per_node: shards in a bundle.
        run: what tells this run from others, which another object of this class may go on with (`again`).
        again: begins with the shards that run, which another object of this class started.
        temporary: whether the shards' folders go with them.
        options: of `Cluster`.

    Raises:
        ServerError: as of `Cluster`, or Ray did not start the processes in time.
    """

    def __init__(
        self,
        name: str,
        shards: int,
        group: PlacementGroup | None,
        per_node: int,
        run: str,
        again: bool,
        temporary: bool,
        options: Mapping[str, Any],
    ) -> None:
        self._again, self._asked, self._goes = again, dict[int, Any](), temporary
        self._run, self._begun = run, set(range(shards) if again else ())
        os.makedirs(options["directory"], 0o700 if temporary else 0o777, exist_ok=True)
        engine = RayCluster()
        if not again:
            end_hosts(name)  # of a cluster whose supervisor could not end them: with other settings
        self.hosts = []
        for number in range(shards):
            further = {**DETACHED, "name": host_name(name, number), "get_if_exists": True}
            if group is not None:
                further["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, number // per_node)
            cpus = 0.0 if group is None else 1.0
            self.hosts.append(engine.place(ShardHost, num_cpus=cpus, threads=8, further=further))
        if not again:
            until = time.monotonic() + PLACED_S
            for number in range(shards):
                self._node_of(number, until - time.monotonic())
        super().__init__(shards=shards, pin=False, **options)
        self._again = False
        for number in set(range(shards)).difference(self.numbers):
            ray.kill(self.hosts[number])  # taken out before

    def _node_of(self, number: int, patience_s: float) -> str:
        """The address of the node where a shard's host is."""
        asked = self._asked.pop(number, None) or self.hosts[number].address.remote()
        try:
            return ray.get(asked, timeout=max(0.0, patience_s))
        except (GetTimeoutError, ActorUnavailableError) as error:
            if isinstance(error, GetTimeoutError):
                self._asked[number] = asked
            raise ServerError(f"Ray has not started a process for shard {number} so far: see `ray status`") from None
        except RayError as error:
            raise ServerError(f"Ray lost the process of shard {number}: {error}") from error

    def _serve(self, number: int, tables: list[Table], options: dict[str, Any]) -> Server:
        before = {shard.number: shard for shard in self._topology.shards}.get(number)
        setup = {
            "tables": [table.pack() for table in tables],
            "options": options,
            "folder": str(self._directory / f"shard-{number}"),
            "temporary": self._goes,
            "was_on": before.host if before else "",
            "run": self._run,
            "first": number not in self._begun,
            "log": self._files(number).log_folder,
        }
        host, place, pid = self.hosts[number], "", 0
        try:
            self._node_of(number, _SOON_S)
            started, until = host.start.remote(pack(setup)), time.monotonic() + options["start_timeout"] + _ANSWER_S
            # One that loads is waited for: its host gives up one that reads nothing. A supervisor that begins again
            # goes on after a while, since it has to find the others.
            while not (ray.wait([started], timeout=_LOOK_S)[0] or self._stopping.is_set()):
                if self._again and time.monotonic() > until:
                    break
            place, pid, why = ray.get(started, timeout=0)
        except (ServerError, RayError) as error:
            why = str(error) or repr(error)
        if why and not (self._again and before):
            raise ServerError(why)
        self._begun.add(number)
        if before and not place:  # it is looked after when all others have been found
            place = place_of(before)
        return _Placed(host, url_with_password(f"redis://{place}", options["password"]), pid)

    def _host_of(self, server: Server) -> str:
        return urlsplit(server.url).hostname or ""

    def _read_topology(self) -> Topology | None:
        if not self._again:
            return super()._read_topology()
        told, asked = list[Topology](), [host.serving.remote() for host in self.hosts]
        for answer in ray.wait(asked, num_returns=len(asked), timeout=PATIENCE_S)[0]:
            with contextlib.suppress(RayError, redis.RedisError, ValueError):
                place, _ = ray.get(answer)
                with impatient(url_with_password(f"redis://{place}", self._password)) as client:
                    told += [topology_of(client)] if place else []
        if not told or not newest(told).version:
            return super()._read_topology()
        self._shares, found = len(self.hosts), newest(told)
        self.numbers = [shard.number for shard in found.shards if shard.number < len(self.hosts)]
        return found

    def _beginning(
        self, restore: str | os.PathLike[str] | None, made: list[Path]
    ) -> tuple[Topology | None, list[str | None]]:
        beginning = super()._beginning(restore, made)
        if self.numbers and max(self.numbers) >= len(self.hosts):
            raise ServerError(
                f"expected shards of the numbers 0 to {len(self.hosts) - 1}, and what begins has shard "
                f"{max(self.numbers)}, since others were taken out: begin without it, in another folder"
            )
        return beginning

    def _adopt(self) -> None:
        super()._adopt()
        made = self._made({shard.number: shard.id for shard in self._topology.shards})
        if made.shards == self._topology.shards:
            return
        # A shard was started again elsewhere: clients hear of it from any other one.
        before, self._topology, self._unwritten = self._topology, made, True
        try:
            self._push(self.numbers, patient=False)
        except redis.ResponseError:  # somebody else made another one at the same time: the next look finds it
            self._topology = before

    def stop(self, timeout: float = 10.0) -> None:
        if self._again:
            self.servers.clear()  # those that run go on when they were not all found: that is tried again
        super().stop(timeout)

    def _stop_gone(self, now: float) -> None:
        before = list(self._gone)
        super()._stop_gone(now)
        for _, server in before:
            if isinstance(server, _Placed) and all(server is not other for _, other in self._gone):
                ray.kill(server.host)  # its processor is free for others


class Supervisor:
    """What runs in the process of Ray that starts, watches and ends the shards of one cluster.

    Args:
        name: of the cluster in Ray.
        group: the placement group; removed at the end. None = there is none.
        setup: msgpack of `shards`, `per_node`, `run` (of `ShardsOnRay`), `tables`, `options` (of `Cluster`; `directory`
            None = a temporary one on every node), and `lease_s`: everything is ended when nobody has asked for so long
            (`told`); 0 = never.
    """

    def __init__(self, name: str, group: PlacementGroup | None, setup: bytes) -> None:
        self._name, self._group, self._setup = name, group, msgpack.unpackb(setup)
        options = self._setup["options"]
        self._temporary = options["directory"] is None
        if self._temporary:  # the same one for a supervisor that is started again
            options["directory"] = os.path.join(tempfile.gettempdir(), f"replay-server-{name.replace('/', '-')}")
        self._beginning = threading.Lock()
        """Held while shards begin."""
        self._shards: ShardsOnRay | None = None
        self._ended, self._asked_at = False, time.monotonic()
        if ray.get_runtime_context().was_current_actor_reconstructed:
            threading.Thread(target=self._begin_again, name="begin-again", daemon=True).start()

    def begin(self) -> tuple[int | None, str]:
        """Starts the shards; why it failed, or "", and before it the number of the shard that did not start, if any."""
        return self._begin(again=False)

    def _begin(self, again: bool) -> tuple[int | None, str]:
        setup = self._setup
        options = {**setup["options"], "tables": [Table.unpack(each) for each in setup["tables"]]}
        if again:
            options["restore"] = "latest"
        with self._beginning:
            if self._ended:
                return None, "the cluster was stopped"
            try:
                shards = ShardsOnRay(
                    self._name, setup["shards"], self._group, setup["per_node"], setup["run"], again, self._temporary,
                    options,
                )  # fmt: skip
            except ShardNotStarted as error:
                return error.number, error.why
            except (ReplayError, redis.RedisError, RayError, OSError, ValueError) as error:
                return None, str(error)
            self._shards = shards
        threading.Thread(target=self._look_after, args=(shards,), name="look-after", daemon=True).start()
        return None, ""

    def _begin_again(self) -> None:
        while not self._ended:
            try:
                _, why = self._begin(again=True)
            except Exception as error:  # nobody else would hear of it, or look after the shards
                why = repr(error)
            if not why:
                break
            logging.getLogger("replay_server.cluster").error("the shards are not watched so far: %s", why)
            time.sleep(_AGAIN_S)

    def _look_after(self, shards: ShardsOnRay) -> None:
        """Ends everything when every shard was stopped in order, or nobody asks any more."""
        self._asked_at, lease_s = time.monotonic(), self._setup["lease_s"] or math.inf
        while not shards.was_stopped and time.monotonic() - self._asked_at < lease_s:
            time.sleep(_LOOK_S)
        try:
            self.stop(_ANSWER_S)
        finally:
            ray.kill(ray.get_actor(self._name, NAMESPACE))

    def told(self) -> str:
        """JSON of `url`, with the password, `numbers`, `pids`, `running`, `restarts`, `failing`, and `supervisor`, this
        process's id; "" before the shards began, "null" at the end."""
        self._asked_at = time.monotonic()
        shards = self._shards
        if shards is None:
            return "null" if self._ended else ""
        told = {name: getattr(shards, name) for name in ("url", "numbers", "pids", "running", "restarts", "failing")}
        return json.dumps({**told, "supervisor": os.getpid()})

    def checkpoint(self) -> tuple[str, str]:
        """The manifest, as `Cluster.checkpoint` writes it; "" and why there is none."""
        shards = self._shards
        if shards is None:
            return "", "the shards have not begun, or have ended"
        try:
            return str(shards.checkpoint()), ""
        except (ReplayError, redis.RedisError, OSError) as error:
            return "", str(error)

    def stop(self, timeout: float) -> None:
        """Ends the shards and their hosts, and removes the placement group."""
        self._ended = True
        try:
            if self._beginning.locked():
                end_hosts(self._name)  # so that what begins fails at once
            with self._beginning:
                shards, self._shards = self._shards, None
            if shards is not None:
                shards.stop(timeout)
            end_hosts(self._name)
        finally:
            if self._group is not None:
                remove_placement_group(self._group)
            if self._temporary:
                shutil.rmtree(self._setup["options"]["directory"], ignore_errors=True)
