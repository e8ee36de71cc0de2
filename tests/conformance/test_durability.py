"""What a server's end leaves: the append-only file and what is read back from it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import KEYS, SLOW_IS_FINE, Command
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_store_against_redis import EXPIRY, GENERIC, hashes, lists, strings

import replay_server as rs

Connect = Callable[[], "redis.Redis[bytes]"]
EXPIRY_TOLERANCE_MS = 3000
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
            }
            found[database, key] = (kind, readers[kind](), client.execute_command("PEXPIRETIME", key))
    client.execute_command("SELECT", 0)
    return found


def assert_same(after: dict[Any, Any], before: dict[Any, Any]) -> None:
    assert after.keys() == before.keys()
    for key, (kind, value, ends) in before.items():
        assert after[key][:2] == (kind, value), key
        assert abs(after[key][2] - ends) <= EXPIRY_TOLERANCE_MS, key


# ---- kill -9 ----------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Counts up in a key of its own; `acknowledged` are the writes that were replied to, and when."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(url)
        self.key = name
        self.acknowledged = 0
        self.acknowledged_in_time = 0  # more than a second before now, as of the last reply
        self.times: list[float] = []

    def run(self) -> None:
        with contextlib.suppress(redis.RedisError):
            while True:
                self.client.rpush(self.key, self.acknowledged)
                self.acknowledged += 1
                self.times.append(time.monotonic())


def kill_under_load(folder: Path, policy: str, seconds: float, lost_s: float) -> None:
    """Every write that was acknowledged earlier than `lost_s` before the kill is there afterwards."""
    with serve(folder, policy) as (server, client):
        before = {key: client.llen(key) for key in client.scan_iter()}
        writers = [Writer(server.url, f"writer:{n}:{time.monotonic_ns()}") for n in range(6)]
        for writer in writers:
            writer.start()
        time.sleep(seconds)
        killed_at = time.monotonic()
        kill(server)
        for writer in writers:
            writer.join()
    with serve(folder, policy) as (_, client):
        for writer in writers:
            there = client.lrange(writer.key, 0, -1)
            safe = sum(at < killed_at - lost_s for at in writer.times) if lost_s else writer.acknowledged
            assert len(there) >= safe, f"{writer.key}: {safe} writes were safe, {len(there)} are there"
            assert len(there) <= writer.acknowledged + 1
            assert there == [str(n).encode() for n in range(len(there))]
        assert sum(writer.acknowledged for writer in writers) > 0
        assert {key: client.llen(key) for key in before} == before


def test_a_kill_under_load_loses_no_acknowledged_write_with_always(tmp_path: Path) -> None:
    for _ in range(3):
        kill_under_load(tmp_path, "always", 0.2, 0)


@pytest.mark.slow
def test_a_kill_under_load_loses_no_acknowledged_write_with_always_in_50_tries(tmp_path: Path) -> None:
    for _ in range(50):
        kill_under_load(tmp_path, "always", 0.3, 0)


def test_a_kill_under_load_loses_at_most_a_second_with_everysec(tmp_path: Path) -> None:
    kill_under_load(tmp_path, "everysec", 1.4, 1.0)


def test_many_writes_share_one_fsync_with_always(tmp_path: Path) -> None:
    with serve(tmp_path) as (_, client):
        pipeline = client.pipeline(transaction=False)
        for n in range(1000):
            pipeline.set(f"key:{n}", n)
        assert len(pipeline.execute()) == 1000
        assert client.info("persistence")["aof_fsyncs"] < 200


# ---- the same as before -----------------------------------------------------------------------------------------


COMMANDS = [*strings(KEYS), *lists(KEYS), *hashes(KEYS), *GENERIC, *EXPIRY]


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=SLOW_IS_FINE,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)
@given(st.lists(st.one_of(*COMMANDS), min_size=100, max_size=200))
def check_sequence(folder: Path, sequence: list[Command]) -> None:
    with serve(folder, "everysec") as (server, client):
        client.flushall()
        for words in sequence:
            with contextlib.suppress(redis.ResponseError):
                client.execute_command(*words)
        before = contents(client)
        server.stop()
    with serve(folder, "everysec") as (server, client):
        assert_same(contents(client), before)
        assert "failed" not in server.log()


def test_after_a_restart_all_is_as_random_commands_left_it(tmp_path: Path) -> None:
    check_sequence(tmp_path)


def test_weights_are_there_after_a_kill(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.execute_command("WEIGHTS.PUBLISH", "policy", "*", b"w" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "policy", 41, b"v" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "policy", "*", b"u" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "other", "*", b"")
        client.execute_command("WEIGHTS.DEL", "other")
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.execute_command("WEIGHTS.GET", "policy") == [42, b"u" * 300_000]
        assert client.execute_command("WEIGHTS.LIST") == [b"policy"]


def test_keys_whose_time_is_over_meanwhile_are_gone_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.set("soon", 1, px=300)
        client.execute_command("PEXPIREAT", "soon", int(time.time() * 1000) + 200)
        client.set("later", 1, ex=1000)
        client.set("kept", 1, px=200)
        client.persist("kept")
        kill(server)
    time.sleep(0.4)
    with serve(tmp_path) as (_, client):
        assert client.mget("soon", "kept") == [None, b"1"]
        assert 900 < client.ttl("later") <= 1000


# ---- files that are not as they were ------------------------------------------------------------------------------


def write_some(folder: Path) -> None:
    with serve(folder) as (server, client):
        for n in range(20):
            client.set(f"key:{n}", n)
        server.stop()


def refusal(folder: Path, **config: str) -> str:
    with pytest.raises(rs.ServerError) as caught, serve(folder, **config):
        pass
    return str(caught.value)


def test_a_tail_that_was_cut_off_is_repaired_and_said(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    whole = path.read_bytes()
    for cut in (1, 14, 16, 40):
        path.write_bytes(whole[:-cut])
        with serve(tmp_path) as (server, client):
            assert client.dbsize() in (19, 20)
            assert "were cut off" in server.log()
            client.set("key:19", "again")
            kill(server)
        with serve(tmp_path) as (server, client):
            assert client.get("key:19") == b"again"
            assert "were cut off" not in server.log()


def test_a_tail_that_was_cut_off_is_refused_where_it_is_not_to_be_repaired(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    path.write_bytes(path.read_bytes()[:-16])
    assert "aof-load-truncated yes" in refusal(tmp_path, aof_load_truncated="no")


def test_a_byte_in_the_middle_that_is_not_what_it_was_is_refused_with_its_place(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"key:7") + 4] ^= 1
    path.write_bytes(whole)
    said = refusal(tmp_path)
    assert INCREMENT.rpartition("/")[2] in said
    assert "checksum does not agree" in said
    whole[whole.index(b"key:6") - 3] ^= 1
    path.write_bytes(whole)
    assert "byte" in refusal(tmp_path)


def test_a_manifest_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    write_some(tmp_path)
    (tmp_path / INCREMENT).unlink()
    assert "cannot open appendonly.aof.1.incr.aof" in refusal(tmp_path)
