"""Servers as the shards of a cluster."""

from __future__ import annotations

import contextlib
from typing import Any

import replay_server as rs


def url_of(*servers: rs.Server) -> str:
    """The URL of the cluster that they are."""
    return "redis+cluster://" + ",".join(server.url.removeprefix("redis://") for server in servers)


def start(stack: contextlib.ExitStack, count: int, **options: Any) -> list[rs.Server]:
    """Servers of the numbers 0 to count - 1."""
    return [stack.enter_context(rs.Server(config={"shard": number}, **options)) for number in range(count)]
