"""Clients of all shards of a cluster, for what watches and changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .connection import PASSWORD_VARIABLE
from .topology import ReplicaPlace, ShardPlace, Topology

SCHEME = "redis+cluster://"
SILENT = (redis.ConnectionError, redis.TimeoutError)
"""Of a shard that does not answer. (A password that is refused is a ConnectionError, too.)"""
PATIENCE_S = 2.0
"""With a shard that may be dead, or stopped amid all, where others can answer in its place."""
_PATIENCE_S = 30.0
"""With shards that are needed."""


class Shards:
    """Clients of all shards of a cluster, as the newest topology that a shard of its URL tells has them.

    Args:
        url: shards of it, `redis+cluster://[:password@]host:port[,host:port…]`.
        password: where the URL has none; None = that of the environment.
        ways: by number of a shard: the host:port at which this process reaches it, if clients are told another.

    Raises:
        ValueError: the URL is none of a cluster.
        ConnectionError: no shard answers.
    """

    def __init__(self, url: str, password: str | None = None, ways: Mapping[int, str] | None = None) -> None:
        if not url.startswith(SCHEME):
            raise ValueError(f"expected {SCHEME}[:password@]host:port[,host:port…], got {url.rpartition('@')[2]!r}")
        login, at, hosts = url.removeprefix(SCHEME).rpartition("@")
        self._login = f"{login}{at}"
        self._password = None if at else password or os.environ.get(PASSWORD_VARIABLE) or None
        told, refused = self._told(hosts.split(","), PATIENCE_S)
        if not told and not refused:
            told, refused = self._told(hosts.split(","), _PATIENCE_S)
        if not told and refused:
            raise refused
        if not told:
            raise ConnectionError(f"no shard answers at {hosts}")
        self.topology, self._ways = newest(told), dict(ways or {})
        self.clients = {shard.number: self._client(self.place(shard)) for shard in self.topology.shards}

    def _told(
        self, places: Iterable[str], patience_s: float
    ) -> tuple[list[Topology], redis.AuthenticationError | None]:
        """The topologies of the shards that answer soon enough, and why one let nobody in."""
        told, refused = list[Topology](), None
        for place in places:
            with self.asking(place, patience_s) as client:
                try:
                    told.append(topology_of(client))
                except redis.AuthenticationError as error:
                    refused = error
                except SILENT:
                    continue
        return told, refused

    @property
    def _options(self) -> dict[str, Any]:
        return {"password": self._password} if self._password else {}

    def place(self, server: ShardPlace | ReplicaPlace) -> str:
        """The host:port at which this process reaches a shard or a replica."""
        own = self._ways.get(server.number) if isinstance(server, ShardPlace) else None
        return own or place_of(server)

    def url_of(self, place: str) -> str:
        """Of the shard at host:port; with a password only where the URL has one."""
        return f"redis://{self._login}{place}"

    def asking(self, place: str, patience_s: float) -> redis.Redis:
        """A client of the server at host:port that waits for an answer for no longer than that."""
        return impatient(self.url_of(place), patience_s, **self._options)

    def _client(self, place: str) -> redis.Redis:
        return redis.Redis.from_url(self.url_of(place), socket_timeout=_PATIENCE_S, **self._options)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def impatient(url: str, patience_s: float = PATIENCE_S, **options: Any) -> redis.Redis:
    """A client of one shard that asks once, and waits for an answer for no longer than `patience_s`."""
    once = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(
        url, socket_timeout=patience_s, socket_connect_timeout=patience_s, retry=once, **options
    )


def topology_of(client: redis.Redis) -> Topology:
    """As a shard has it."""
    return Topology.from_json(client.execute_command("CLUSTER", "TOPOLOGY"))


def newest(topologies: Iterable[Topology]) -> Topology:
    """The one of the highest version."""
    return max(topologies, key=lambda each: each.version)


def newest_of(clients: Iterable[redis.Redis], topology: Topology) -> Topology:
    """This one, or a newer one that shards have; those that do not answer are passed over."""
    for client in clients:
        with contextlib.suppress(redis.RedisError, ValueError):
            topology = newest([topology, topology_of(client)])
    return topology


def place_of(shard: ShardPlace | ReplicaPlace) -> str:
    """host:port, as a URL has it."""
    return f"[{shard.host}]:{shard.port}" if ":" in shard.host else f"{shard.host}:{shard.port}"


def tables_of(client: redis.Redis) -> dict[str, dict[bytes, Any]]:
    """What a shard tells of each of its tables."""
    tables: dict[str, dict[bytes, Any]] = {}
    names: Any = client.execute_command("REPLAY.LIST")
    for name in names or []:
        try:
            flat: Any = client.execute_command("REPLAY.INFO", name)
        except redis.ResponseError as error:
            if str(error).startswith("NOTABLE"):  # it was dropped meanwhile
                continue
            raise
        told = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        tables[name.decode()] = told
    return tables
