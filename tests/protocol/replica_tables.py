"""Servers with tables that follow each other, for test files to import."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from links import Link, eventually
from test_table_log import COLUMNS, live_items, told

import replay_server as rs

TABLE = rs.Table("t", 64, COLUMNS, seed=7)


class Member:
    """A server that takes part, and a client of it."""

    def __init__(self, server: rs.Server) -> None:
        self.server = server
        self.client = rs.Client(server.url)
        self.redis: Any = self.client.redis
        self.port = int(server.url.rpartition(":")[2])

    def follow(self, port: int) -> None:
        self.redis.execute_command("REPLICAOF", "127.0.0.1", port)
        eventually(lambda: self.redis.info("replication").get("master_link_status") == "up", "the first copy")

    def promote(self) -> None:
        self.redis.execute_command("REPLICAOF", "NO", "ONE")

    def stats(self) -> tuple[int, int]:
        stats = self.redis.info("stats")
        return stats["sync_full"], stats["sync_partial_ok"]

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()


@contextlib.contextmanager
def serve(folder: Path, *tables: rs.Table, **config: str) -> Iterator[Member]:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"enable-debug-command": "yes"} | {name.replace("_", "-"): value for name, value in config.items()}
    with rs.Server(list(tables), directory=str(folder), config=settings) as server:
        member = Member(server)
        with member.client:
            yield member


@contextlib.contextmanager
def pair(folder: Path, *tables: rs.Table, **config: str) -> Iterator[tuple[Member, Member, Link]]:
    """A primary, a server that does not follow it yet, and a link to the primary that can be cut."""
    with (
        serve(folder / "primary", *tables, **config) as primary,
        contextlib.closing(Link(primary.port)) as link,
        serve(folder / "replica") as replica,
    ):
        yield primary, replica, link


def settle(primary: Member, replica: Member) -> None:
    offset = primary.redis.info("replication")["master_repl_offset"]

    def has_come() -> bool:
        there = replica.redis.info("replication")
        return there.get("master_link_status") == "up" and there["slave_repl_offset"] >= offset

    eventually(has_come, "the last change")


def assert_same(one: Member, other: Member, ids: Any, name: str = "t") -> None:
    assert told(other.client, name) == told(one.client, name)
    assert live_items(other.client, ids, name) == live_items(one.client, ids, name)
