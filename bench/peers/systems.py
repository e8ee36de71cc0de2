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
from typing import Any

import redis

from replay_server.bench.items import ItemKind
from replay_server.bench.load import KEEP_MEMORY, Target
from replay_server.bench.process import Program

Start = Callable[["System", ItemKind, int, str], AbstractContextManager[Target]]
"""System, kind of item, capacity, a folder → the running server."""


@dataclass(frozen=True)
class System:
    """One side of the comparison across processes."""

    name: str
    environment: str | None
    program: str
    """Of `programs/`: pushes, samples, and runs the server where that is not Redis."""
    start: Start
    options: Mapping[str, Any] = field(default_factory=dict)
    """What its program is told further."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its program."""
    stacks: bool = False
    """Whether it needs observations that are stacks of frames."""
    recorded_only: bool = False
    """Whether it differs from another only in how recorded frames are kept."""
    learner_asks: bool = True
    """Whether a batch comes from the server: a learner alone that has a buffer of its own says nothing of it."""


@contextmanager
def _redis(system: System, kind: ItemKind, capacity: int, folder: str) -> Iterator[Target]:
    with redis_server(folder) as (url, pid):
        yield Target(system.name, url, (pid,))


@contextmanager
def _hosted(system: System, kind: ItemKind, capacity: int, folder: str) -> Iterator[Target]:
    with Program(system.program, system.environment, system.variables) as program:
        found = program.ask("server", columns=kind.columns, capacity=capacity, **system.options)
        yield Target(system.name, found["url"], (found["pid"],))


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
_RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), **KEEP_MEMORY}

SYSTEMS = (
    System("replay", None, "replay", _hosted),
    System("replay_whole_shared", None, "replay", _hosted, {"shared_memory": True}),
    System("replay_windows", None, "replay_windows", _hosted, stacks=True),
    System("replay_shared", None, "replay_windows", _hosted, {"shared_memory": True}, stacks=True),
    System("replay_lz4", None, "replay_windows", _hosted, {"compression": "lz4"}, stacks=True, recorded_only=True),
    System("replay_zstd", None, "replay_windows", _hosted, {"compression": "zstd"}, stacks=True, recorded_only=True),
    System("reverb", "reverb", "reverb", _hosted),
    System("reverb_frames", "reverb", "reverb_frames", _hosted, stacks=True),
    System("redis", "redis", "redis", _redis),
    System("redis_list", "redis", "redis_list", _redis, learner_asks=False),
    System("ray", "ray", "ray", _hosted, variables=_RAY),
)
