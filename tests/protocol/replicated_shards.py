"""Clusters whose shards have replicas, for tests: how they are filled, killed and looked at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis
from links import eventually

import replay_server as rs

TABLE = rs.Table("atari", capacity=100_000, signature={"x": rs.Column("int64")})
LOGGED: dict[str, Any] = {"appendonly": True, "appendfsync": "always"}


def is_settled(cluster: rs.Cluster, replicas: int = 1) -> bool:
    """Whether every shard leads, and the topology lists all of its replicas, which follow it."""
    listed = all(len(shard.replicas) == replicas for shard in cluster.topology.shards)
    servers = [*cluster.servers, *(server for each in cluster.replicas.values() for server in each)]
    return listed and cluster.running and all(server.running for server in servers)


@contextlib.contextmanager
def replicated(shards: int = 2, replicas: int = 1, **options: Any) -> Iterator[rs.Cluster]:
    with rs.Cluster([TABLE], shards=shards, replicas=replicas, **options) as cluster:
        eventually(lambda: is_settled(cluster, replicas), "replicas that are listed")
        yield cluster


@contextlib.contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """They neither answer nor close their connections."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def about(server: rs.Server, section: str = "replication") -> dict[str, Any]:
    with redis.Redis.from_url(server.url, socket_timeout=30) as client:
        return client.info(section)


def add(client: rs.Client, begin: int, count: int = 10) -> list[int]:
    return client.add("atari", {"x": np.arange(begin, begin + count)}).tolist()


def add_to(server: rs.Server, begin: int, count: int = 10, replicas: int = 1) -> list[int]:
    """Items of one shard, of which its replicas say that they have them."""
    with rs.Client(server.url) as client:
        ids = add(client, begin, count)
        if replicas:
            assert client.redis.wait(0, 1) >= 0
            eventually(lambda: has_all(server, replicas), "the replicas")
        return ids


def has_all(server: rs.Server, replicas: int) -> bool:
    """Whether so many replicas acknowledge what the server has now."""
    told = about(server)
    offsets = [told[f"slave{number}"]["offset"] for number in range(told["connected_slaves"])]
    return sum(offset >= told["master_repl_offset"] for offset in offsets) >= replicas


def values(client: rs.Client, ids: list[int]) -> list[int]:
    return client.get("atari", np.array(ids, np.uint64)).data["x"].tolist()


def size(server: rs.Server) -> int:
    with rs.Client(server.url) as client:
        return client.info("atari")["size"]


def kill(server: rs.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)


def fail_over(cluster: rs.Cluster, number: int = 0) -> None:
    """Kills a shard's process; returns when its replica leads, and another one follows."""
    before = cluster.failovers
    kill(cluster.servers[number])
    eventually(lambda: cluster.failovers == before + 1 and is_settled(cluster), "the failover")


def kill_all(*servers: rs.Server) -> None:
    """None has a moment in which it could lead alone."""
    with stopped(*(server.pid for server in servers)):
        for server in reversed(servers):
            kill(server)


def chain_in(directory: Path, number: int = 0) -> list[int]:
    return json.loads((directory / "cluster.json").read_text())["chains"][str(number)]
