"""A cluster's address, from its URL, and which shard is home to a key."""

from __future__ import annotations

import binascii
import os
from dataclasses import dataclass, field
from typing import Any

from .connection import Address

_SCHEMES = {"redis+cluster://": "redis://", "rediss+cluster://": "rediss://"}
SLOTS = 16384
"""Of keys, as in Redis Cluster."""


def is_cluster_url(url: object) -> bool:
    """Whether it is the URL of a cluster, and not of one server."""
    return isinstance(url, str) and url.startswith(tuple(_SCHEMES))


@dataclass(frozen=True)
class ClusterAddress:
    """Some of a cluster's servers: `redis+cluster://[[user]:password@]host:port[,host:port…]`, with TLS
    `rediss+cluster://…`, whose options are those of `rediss://`.

    Raises:
        ValueError: the URL is none.
    """

    url: str = field(repr=False)
    servers: tuple[Address, ...]
    """In the order of the URL."""
    _before: str = field(repr=False)
    _after: str = field(repr=False)

    @classmethod
    def of_client(cls, url: str, password_file: str | None = None) -> ClusterAddress:
        """The servers' passwords are as of `Address.of_client`."""
        scheme = next(scheme for scheme in _SCHEMES if url.startswith(scheme))
        rest = url[len(scheme) :]
        hosts, mark, query = rest.partition("?")
        login, at, hosts = hosts.rpartition("@")
        before, after = f"{_SCHEMES[scheme]}{login}{at}", f"{mark}{query}"
        given = [host for host in hosts.rstrip("/").split(",") if host]
        if not given:
            raise ValueError(f"expected {scheme}[:password@]host:port[,host:port…], got a URL without a host")
        servers = tuple(Address.of_client(f"{before}{host}{after}", password_file) for host in given)
        return cls(url, servers, before, after)

    def url_of(self, host: str, port: int) -> str:
        """The URL of one server, with what else this URL says."""
        return f"{self._before}{f'[{host}]' if ':' in host else host}:{port}{self._after}"

    @property
    def has_password_in_url(self) -> bool:
        """Whether somebody who reads the URL reads a password."""
        return self.servers[0].has_password_in_url

    @property
    def is_local(self) -> bool:
        """Whether all of the servers are plainly on this host."""
        return all(server.is_local for server in self.servers)

    def redis_options(self) -> dict[str, Any]:
        """What redis-py needs beside the URL."""
        return self.servers[0].redis_options()

    def __str__(self) -> str:
        """The address without its password."""
        names = ",".join(str(server).partition("://")[2] for server in self.servers)
        return f"{'redis' if self.servers[0].tls is None else 'rediss'}+cluster://{names}"


def slot_of(key: str | bytes) -> int:
    """A key's slot: CRC16 of what stands between the first `{` and the next `}`, or, where that is nothing, of all."""
    whole = key.encode() if isinstance(key, str) else key
    _, _, behind = whole.partition(b"{")
    tag, closed, _ = behind.partition(b"}")
    return binascii.crc_hqx(tag if closed and tag else whole, 0) % SLOTS


def even_slots(place: int, shards: int) -> range:
    """The slots of the shard at that place, where all have as many."""
    return range(place * SLOTS // shards, (place + 1) * SLOTS // shards)


def process_offset(shards: int) -> int:
    """Where a process begins when it takes shards in turn: others begin elsewhere."""
    return int.from_bytes(os.urandom(4), "little") % shards
