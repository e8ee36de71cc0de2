"""A cluster's address, from its URL, and which shard is home to a key."""

from __future__ import annotations

import binascii
import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .connection import Address

_SCHEMES = "redis+cluster://", "rediss+cluster://"
SLOTS = 16384
"""Of keys, as in Redis Cluster."""


def is_cluster_url(url: object) -> bool:
    """Whether it is the URL of a cluster, and not of one server."""
    return isinstance(url, str) and url.startswith(_SCHEMES)


@dataclass(frozen=True)
class ClusterAddress:
    """Some of a cluster's servers: `redis+cluster://[[user]:password@]host:port[,host:port…]`, with TLS
    `rediss+cluster://…`, whose options are those of `rediss://`.

    Raises:
        ValueError: the URL is none.
    """

    url: str = field(repr=False)
    _all: Address = field(repr=False)
    """The same servers without `+cluster`."""

    @classmethod
    def of_client(cls, url: str, password_file: str | None = None) -> ClusterAddress:
        """The servers and their passwords are as of `Address.of_client`."""
        return cls(url, Address.of_client(url.replace("+cluster://", "://", 1), password_file))

    @property
    def servers(self) -> tuple[Address, ...]:
        """In the order of the URL."""
        return self._all.hosts

    def url_of(self, host: str, port: int, tls_port: int = 0) -> str:
        """The URL of one server, with what else this URL says. `tls_port`: for clients with TLS; 0: it has only one."""
        parts = urlsplit(self.servers[0].url)
        login, at, _ = parts.netloc.rpartition("@")
        name = f"[{host}]" if ":" in host else host
        chosen = tls_port if tls_port and self.servers[0].tls is not None else port
        return parts._replace(netloc=f"{login}{at}{name}:{chosen}").geturl()

    @property
    def has_password_in_url(self) -> bool:
        """Whether somebody who reads the URL reads a password."""
        return self._all.has_password_in_url

    @property
    def password(self) -> str | None:
        """Of every server."""
        return self.servers[0].password

    @property
    def is_local(self) -> bool:
        """Whether all of the servers are plainly on this host."""
        return self._all.is_local

    def redis_options(self) -> dict[str, Any]:
        """What redis-py needs beside the URL."""
        return self.servers[0].redis_options()

    def __str__(self) -> str:
        """The address without its password."""
        return str(self._all).replace("://", "+cluster://", 1)


def parse_address(url: str) -> Address | ClusterAddress:
    """The address of a server, or of a cluster's. Raises ValueError where the URL is of neither."""
    return ClusterAddress.of_client(url) if is_cluster_url(url) else Address.parse(url)


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
