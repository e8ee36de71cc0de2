"""Shards as servers of one DPDK device: who has which queue, and how they begin again when one of them has died.

The server on queue 0 owns the device, and the others end soon after it, however it ends. A server that was killed has
left its queue in a state that nobody knows, so DPDK gives the queue to nobody until all servers have ended. Then all of
them have to end and begin anew: those that run save a snapshot and end, the owner last, and each begins with what it
saved. A server that ended by itself has given its queue back, and is started alone.

Nothing on this host reaches the device's address, so that the shards are asked through their admin ports.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from .at_once import at_once
from .cluster_members import way_to
from .cluster_shards import PATIENCE_S, impatient
from .errors import ServerError
from .server import Server
from .table import Table

if TYPE_CHECKING:
    from .cluster import Cluster

FIRST_PORT = 7000
"""Of the first shard, where none was asked for."""
_LEFT_BEHIND = "died without giving it back"
"""What a server says that is refused the queue of one that was killed (native/net/dpdk/queues.c)."""
_LOOK_S = 0.05
_log = logging.getLogger("replay_server.cluster")


class SharedDevice:
    """The device of a cluster's shards.

    Args:
        cluster: it has its settings, and no server yet.
        shards: how many. Each has a queue and a processor.

    Raises:
        ServerError: the settings do not fit shards of one device, or there are too few processors.
    """

    def __init__(self, cluster: Cluster, shards: int) -> None:
        self._cluster, self._queues, config = cluster, shards, cluster._config
        self.address = str(config.get("dpdk-address", "")).partition("/")[0]
        if not self.address:
            raise ServerError(
                'expected the setting "dpdk-address" with transport "dpdk": the device\'s address and mask, such as '
                "10.0.0.2/24"
            )
        if given := [name for name in ("dpdk-queues", "dpdk-queue") if name in config]:
            raise ServerError(f'expected settings without "{given[0]}": each shard gets a queue of the device')
        if int(config.get("tls-port", -1)) >= 0:
            raise ServerError('expected no "tls-port" with transport "dpdk": TLS is served over the kernel\'s sockets')
        self._lcores = self._chosen_lcores(int(config.get("dpdk-lcore", -1)))
        self._on: dict[int, Server] = {}
        """By queue: the last server there since the device began."""
        self._queue_of: dict[int, int] = {}
        """By number of the shard: where its server is, or was."""
        self._begins_anew = False
        """Whether all servers have to end before one is started."""
        self._absent = set[int]()
        """Numbers of shards that are to be started again."""

    def _chosen_lcores(self, first: int) -> list[int]:
        """A processor for each queue, since a server polls on it: those from `first` on, or the last ones."""
        if first >= 0:
            return list(range(first, first + self._queues))
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < self._queues:
            raise ServerError(
                f"expected a processor for each of {self._queues} shards, since a server over DPDK polls, and this "
                f"process may use {len(processors)}: ask for fewer shards"
            )
        return processors[-self._queues :]

    def serve(self, number: int, tables: list[Table], folder: Path, options: dict[str, Any]) -> Server:
        """Starts the server of a shard: on the queue that it had, or else on the lowest one that none of them has."""
        free = [queue for queue in range(self._queues) if queue not in self._on or not self._on[queue].running]
        queue = self._queue_of[number] if self._queue_of.get(number) in free else free[0]
        own = {"dpdk-queues": self._queues, "dpdk-queue": queue, "dpdk-lcore": self._lcores[queue]}
        admin_port = int(options["config"].get("admin-port", 0))
        own["admin-port"] = admin_port + number if admin_port > 0 else 0
        options = {**options, "transport": "dpdk", "config": {**options["config"], **own}}
        server = Server(tables, directory=folder, given_up=self._cluster._stopping, **options)
        self._on[queue], self._queue_of[number] = server, queue
        return server

    @property
    def owner(self) -> Server | None:
        """The server on queue 0."""
        return self._on.get(0)

    def _was_shut_down(self) -> bool:
        """Whether the owner was ended in order, by somebody else: the others end then as well, and none is started."""
        return not self._begins_anew and self.owner is not None and self.owner.returncode == 0

    @property
    def was_stopped(self) -> bool:
        """Whether somebody ended the owner in order, or all of them, and none runs any more."""
        if any(server.running for server in [*self._on.values()]):
            return False
        if self._was_shut_down():
            return True
        is_whole = not self._begins_anew and not self._absent
        return is_whole and all(server.returncode == 0 for server in self._cluster.servers)

    def has_lost(self) -> bool:
        """Whether there are shards to start again."""
        if self._was_shut_down():
            return False
        with self._cluster._lock:
            died = any(server.returncode not in (None, 0) for server in self._cluster.servers)
        return died or self._begins_anew or bool(self._absent)

    def holds(self, server: Server) -> bool:
        """Whether a server that is to be stopped owns the device while others run on it. Then all of them begin anew,
        and it is ended with them."""
        if server is not self.owner or not any(each.running for each in [*self._on.values()] if each is not server):
            return False
        self._begins_anew = True
        return True

    def restart(self) -> bool:
        """Starts the shards that have died, after having ended all, where that is needed; whether all of them run."""
        with self._cluster._lock:
            servers = dict(zip(self._cluster.numbers, self._cluster.servers, strict=True))
        owner = self.owner
        status = -1 if owner is None else owner.returncode
        if status == 0 and not self._begins_anew:
            self._absent.clear()
            return True
        self._begins_anew |= status is not None
        self._absent |= {number for number, server in servers.items() if server.returncode not in (None, 0)}
        if self._begins_anew:
            self._absent |= {number for number, server in servers.items() if server.running}
        self._absent.intersection_update(servers)  # others were taken out
        if self._begins_anew:
            if why := self._not_ended():
                for number in [number for number in self._absent if not servers[number].running]:
                    self._cluster._note_failing(number, f"the servers on the device have to end before, and {why}")
                return False
            self._on.clear()
            self._queue_of.clear()
            self._begins_anew = False
        elif owner is not None and not _answers(owner):  # it may be about to end, and the others have ended for that
            return False
        for number in sorted(self._absent):
            if self._cluster._restart(number):
                self._absent.discard(number)
            else:
                self._begins_anew |= _LEFT_BEHIND in self._cluster.failing.get(number, "")
        return not self._absent

    def _not_ended(self) -> str:
        """Has all servers save a snapshot and end, the owner last; why one still runs, "" = none does. One that cannot
        save goes on as if it had not been asked."""
        for servers in ([each for queue, each in self._on.items() if queue], [self._on[0]] if 0 in self._on else []):
            said = at_once(_save_and_end, [each for each in servers if each.running])
            if any(each.running for each in servers):
                pids = ", ".join(str(each.pid) for each in servers if each.running)
                return next(filter(None, said), f"processes {pids} have not ended so far")
        return ""


def _answers(server: Server) -> bool:
    try:
        with impatient(way_to(server)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _save_and_end(server: Server) -> str:
    """Asks for it, and waits for a while; why it is refused, "" = it is not. While it saves, clients' writes wait."""
    try:
        with impatient(way_to(server)) as client:
            client.execute_command("SHUTDOWN", "SAVE")
    except redis.ResponseError as error:
        _log.error("process %d does not save and end: %s", server.pid, error)
        return f"process {server.pid} does not: {error}"
    except redis.RedisError:  # the connection ends with it; or it saves for longer
        until = time.monotonic() + PATIENCE_S
        while server.running and time.monotonic() < until:
            time.sleep(_LOOK_S)
    return ""
