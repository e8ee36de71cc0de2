"""A server with an append-only file, and what tests of durability do with it: fill, kill, compare what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

import replay_server as rs

INCREMENT = "appendonlydir/appendonly.aof.1.incr.aof"


@contextlib.contextmanager
def serve(folder: Path, policy: str = "always", **config: str) -> Iterator[tuple[rs.Server, redis.Redis[bytes]]]:
    """A server with an append-only file in the folder, and a client of it."""
    settings_ = {
        "appendonly": "yes",
        "appendfsync": policy,
        **{name.replace("_", "-"): v for name, v in config.items()},
    }
    with rs.Server([], directory=str(folder), config=settings_) as server:
        client = redis.Redis.from_url(server.url, socket_timeout=30)
        yield server, client
        client.close()


def kill(server: rs.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def lasting(info: Any) -> Any:
    """What XINFO STREAM FULL tells, without when consumers were seen and how blocks are laid out."""
    if isinstance(info, dict):
        left_out = {"seen-time", b"seen-time", "radix-tree-keys", "radix-tree-nodes"}
        return {name: lasting(part) for name, part in info.items() if name not in left_out}
    return [lasting(part) for part in info] if isinstance(info, list) else info


def contents(client: redis.Redis[bytes]) -> dict[Any, Any]:
    """Every key of every database: its type, value and whether it ends."""
    found: dict[Any, Any] = {}
    for database in range(16):
        client.execute_command("SELECT", database)
        for key in client.execute_command("KEYS", "*"):
            kind = client.type(key)
            readers: dict[bytes, Callable[[], Any]] = {
                b"string": lambda key=key: client.get(key),
                b"list": lambda key=key: client.lrange(key, 0, -1),
                b"hash": lambda key=key: client.hgetall(key),
                b"set": lambda key=key: client.smembers(key),
                b"zset": lambda key=key: client.zrange(key, 0, -1, withscores=True),
                b"stream": lambda key=key: lasting(client.xinfo_stream(key, full=True)),
            }
            found[database, key] = (kind, readers[kind](), client.execute_command("PEXPIRETIME", key))
    client.execute_command("SELECT", 0)
    return found


def assert_same(after: dict[Any, Any], before: dict[Any, Any]) -> None:
    assert after.keys() == before.keys()
    for key, (kind, value, ends) in before.items():
        assert after[key][:2] == (kind, value), key
        assert after[key][2] == ends, key


def send(url: str, *words: str) -> redis.Connection:
    connection = redis.Redis.from_url(url).connection_pool.get_connection()
    connection.send_command(*words)
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def fill(client: redis.Redis[bytes], large: int = 3000) -> None:
    """Values of every type, small and large, some that end."""
    numbers = [str(n) for n in range(large)]
    for prefix, some_ in (("small", numbers[:5]), ("large", numbers)):
        client.rpush(f"{prefix}:list", *some_)
        client.hset(f"{prefix}:hash", mapping={n: f"value {n}" for n in some_})
        client.sadd(f"{prefix}:integers", *some_)
        client.sadd(f"{prefix}:set", *(f"member {n}" for n in some_))
        client.zadd(f"{prefix}:zset", {f"member {n}": int(n) / 3 for n in some_})
        client.set(f"{prefix}:string", "x" * len(some_) * 500)
    client.set("ends", 1, ex=10_000)
    client.execute_command("SELECT", 7)
    client.set("elsewhere", b"\x00\xff\r\n")
    client.execute_command("SELECT", 0)
    client.execute_command("WEIGHTS.PUBLISH", "policy", 7, b"w" * 700_000)
