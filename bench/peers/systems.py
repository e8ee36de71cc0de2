"""Servers that are compared across processes: how each is started, filled, and by which programs it is loaded."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import redis

import replay_server as rs
from replay_server.bench.items import ItemKind
from replay_server.bench.load import Target
from replay_server.bench.process import Program

Start = Callable[[ItemKind, int, str], AbstractContextManager[Target]]
"""Kind of item, capacity, a folder → the running server."""


@dataclass(frozen=True)
class System:
    """One side of the comparison across processes."""

    name: str
    environment: str | None
    start: Start
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its programs."""


@contextmanager
def _replay(kind: ItemKind, capacity: int, folder: str) -> Iterator[Target]:
    with rs.Server([kind.table(capacity)], host="127.0.0.1", port=0) as server:
        yield Target("replay", server.url, server.pid)


def _redis(name: str) -> Start:
    @contextmanager
    def start(kind: ItemKind, capacity: int, folder: str) -> Iterator[Target]:
        with redis_server(folder) as (url, pid):
            yield Target(name, url, pid)

    return start


@contextmanager
def redis_server(folder: str) -> Iterator[tuple[str, int]]:
    """A redis-server without persistence: its URL and process.

    Raises FileNotFoundError, saying what to install, where there is none.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed: apt-get install redis-server")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        else:
            raise RuntimeError("redis-server did not start within 5 s")
        client.close()
        yield f"redis://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(timeout=10)


# Ray's own cluster for this run, which nobody else can join.
RAY_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _hosted(name: str, variables: Mapping[str, str] | None = None) -> Start:
    """A server that its peer's program runs."""

    @contextmanager
    def start(kind: ItemKind, capacity: int, folder: str) -> Iterator[Target]:
        with Program(name, name, variables) as program:
            found = program.ask("server", columns=kind.columns, capacity=capacity)
            yield Target(name, found["url"], found["pid"])

    return start


SYSTEMS = (
    System("replay", None, _replay),
    System("reverb", "reverb", _hosted("reverb")),
    System("redis", "redis", _redis("redis")),
    System("redis_list", "redis", _redis("redis_list")),
    System("ray", "ray", _hosted("ray", RAY_VARIABLES), RAY_VARIABLES),
)
