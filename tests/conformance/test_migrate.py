"""MIGRATE between this server and Redis 7.0, either way; and what becomes of keys where the other server fails."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from durable import contents
from links import Link, Member, eventually, free_port, start
from test_replicas import fill

import replay_server

WAYS = [("ours", "redis"), ("redis", "ours"), ("ours", "ours")]


@contextlib.contextmanager
def two(way: tuple[str, str], folder: Path, *options: str) -> Iterator[tuple[Member, Member]]:
    """A source with these settings, and a target."""
    with start(way[0], folder / "source", *options) as source, start(way[1], folder / "target") as target:
        yield source, target


def migrate(source: Member, port: int, key: str, *words: Any, timeout_ms: int = 60_000) -> Any:
    """The reply, or the error's words."""
    try:
        return source.client.execute_command("MIGRATE", "127.0.0.1", port, key, 0, timeout_ms, *words)
    except redis.ResponseError as error:
        return str(error)


def everything(client: redis.Redis[bytes]) -> dict[Any, Any]:
    return {key: value[:2] for key, value in contents(client).items()}


@pytest.mark.parametrize("way", WAYS, ids="-to-".join)
def test_keys_of_every_type_move(way: tuple[str, str], tmp_path: Path) -> None:
    with two(way, tmp_path) as (source, target):
        fill(source.client)
        keys = source.client.keys()
        before = {at: value for at, value in everything(source.client).items() if at[0] == 0}
        assert len(before) == len(keys) > 5
        assert migrate(source, target.port, "", "COPY", "KEYS", *keys) == b"OK"
        assert everything(target.client) == before
        assert source.client.dbsize() == len(keys)
        assert migrate(source, target.port, "", "REPLACE", "KEYS", "absent", *keys) == b"OK"
        assert everything(target.client) == before
        assert source.client.dbsize() == 0


@pytest.mark.parametrize("way", WAYS, ids="-to-".join)
def test_a_key_whose_time_is_over_stays_behind(way: tuple[str, str], tmp_path: Path) -> None:
    with two(way, tmp_path) as (source, target):
        source.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        source.client.set("over", 1, px=1)
        source.client.set("moves", 1)
        time.sleep(0.02)
        assert migrate(source, target.port, "", "KEYS", "over", "moves") == b"OK"
        assert target.client.keys() == [b"moves"]
        assert source.client.exists("over", "moves") == 0
        assert migrate(source, target.port, "over") == b"NOKEY"


def test_a_key_keeps_its_time(tmp_path: Path) -> None:
    with two(("ours", "redis"), tmp_path) as (source, target):
        source.client.set("key", 1, px=500_000)
        source.client.set("other", 1)
        assert migrate(source, target.port, "", "KEYS", "key", "other") == b"OK"
        assert 400_000 < target.client.pttl("key") <= 500_000
        assert target.client.pttl("other") == -1


def attempts(port: int) -> list[tuple[Any, ...]]:
    """Commands that a source answers in one way only, its keys a, b, c being there, and b at the target."""
    at = ("MIGRATE", "127.0.0.1", port)
    return [
        (*at, "a", 0),
        (*at, "absent", 0, 5000),
        (*at, "", 0, 5000, "KEYS"),
        (*at, "", 0, 5000, "KEYS", "absent", "absent"),
        (*at, "a", 0, 5000, "KEYS", "a"),
        (*at, "a", 0, 5000, "NONSENSE"),
        (*at, "a", 0, 5000, "AUTH"),
        (*at, "a", 0, 5000, "AUTH2", "user"),
        (*at, "a", "x", 5000),
        (*at, "a", 0, "x"),
        (*at, "a", "x", "y"),
        (*at, "a", 99, 5000),
        (*at, "a", 0, 5000, "AUTH", "wrong"),
        (*at, "a", 0, 5000, "AUTH", "keys"),
        (*at, "a", 0, 5000, "AUTH2", "nobody", "wrong"),
        (*at, "b", 0, 5000),
        (*at, "", 0, 5000, "KEYS", "a", "b", "c"),
        (*at, "b", 0, 5000, "replace", "copy"),
        (*at, "b", 0, -3, "REPLACE"),
        (*at, "b", 0, 5000, "REPLACE"),
        ("MIGRATE", "127.0.0.1", free_port(), "d", 0, 500),
        ("MIGRATE", "127.0.0.1", "none", "d", 0, 500),
        ("MIGRATE", "no.such.host.invalid", port, "d", 0, 500),
        (*at, "d", 7, 5000),
    ]


def run_attempts(source: Member, target: Member) -> list[Any]:
    for client in (source.client, target.client):
        client.flushall()
    source.client.mset(dict.fromkeys("abcd", 1))
    target.client.set("b", 2)
    told = []
    for words in attempts(target.port):
        try:
            reply = source.client.execute_command(*words)
        except redis.ResponseError as error:
            # What a target was found not to take: Redis says "writing" where it could not even connect.
            reply = str(error).partition(" error or timeout ")[0]
        left = [sorted(member.client.keys()) for member in (source, target)]
        told.append((words[3:], reply, left))
    return [*told, everything(source.client), everything(target.client)]


def test_replies_and_what_is_left_are_as_in_redis(tmp_path: Path) -> None:
    with (
        start("redis", tmp_path / "target") as target,
        start("redis", tmp_path / "redis") as theirs,
        start("ours", tmp_path / "ours") as ours,
    ):
        expected, found = run_attempts(theirs, target), run_attempts(ours, target)
        for one, other in zip(expected, found, strict=True):
            assert other == one
        assert b"OK" in [each[1] for each in expected[:-2]]


def test_passwords_open_the_target_and_are_shown_to_nobody(tmp_path: Path) -> None:
    with start("ours", tmp_path / "source") as source, start("ours", tmp_path / "target") as target:
        target.client.execute_command("ACL", "SETUSER", "mover", "on", ">password", "~*", "+select", "+restore")
        target.client.config_set("requirepass", "secret")
        source.client.config_set("slowlog-log-slower-than", 0)
        with source.client.monitor() as monitor:
            for key, *words in (("a", "AUTH", "secret"), ("b", "AUTH2", "mover", "password")):
                source.client.set(key, 1)
                assert "NOAUTH" in migrate(source, target.port, key)
                assert migrate(source, target.port, key, *words) == b"OK"
            source.client.echo("end")
            seen = []
            while "ECHO" not in (line := monitor.next_command()["command"]):
                seen.append(line)
        shown = " ".join(seen) + repr(source.client.slowlog_get(128))
        assert "MIGRATE" in shown
        for secret in ("secret", "mover", "password"):
            assert secret not in shown, secret
        target.client.auth("secret")
        assert sorted(target.client.keys()) == [b"a", b"b"]


class SlowTarget:
    """Stands in for a server that answers when it is told to, which no real one does: it takes connections and whatever
    they bring."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._kept.append(self._listener.accept()[0])

    def is_asked(self) -> bool:
        return bool(self._kept) and bool(self._kept[-1].recv(1, socket.MSG_PEEK))

    def answer(self, replies: bytes) -> None:
        self._kept[-1].sendall(replies)

    def is_left(self) -> bool:
        """Whether the connection was ended at its other side."""
        self._kept[-1].settimeout(1)
        with contextlib.suppress(TimeoutError):
            while self._kept[-1].recv(65536):
                pass
            return True
        return False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._kept):
            each.close()


@pytest.fixture
def slow_target() -> Iterator[SlowTarget]:
    with contextlib.closing(SlowTarget()) as target:
        yield target


def begin_to_move(port: int, target: SlowTarget, timeout_ms: int = 3_600_000) -> redis.Connection:
    """A connection over which the key `key` is on its way to a target that has not answered yet."""
    moving = redis.Redis(port=port).connection_pool.get_connection()
    moving.send_command("MIGRATE", "127.0.0.1", target.port, "key", 0, timeout_ms)
    eventually(target.is_asked, "a request to the target")
    return moving


def test_a_target_that_says_nothing_is_given_up(tmp_path: Path, slow_target: SlowTarget) -> None:
    with start("ours", tmp_path) as source:
        source.client.set("small", 1)
        source.client.set("large", random.Random(1).randbytes(30_000_000))
        for key, doing in (("small", "reading"), ("large", "writing")):
            begin = time.monotonic()
            said = migrate(source, slow_target.port, key, timeout_ms=300)
            assert said == f"IOERR error or timeout {doing} to target instance"
            assert time.monotonic() - begin >= 0.3
        assert sorted(source.client.keys()) == [b"large", b"small"]


def test_a_target_that_talks_nonsense_is_given_up(tmp_path: Path, slow_target: SlowTarget) -> None:
    with start("ours", tmp_path) as source:
        source.client.set("key", 1)
        moving = begin_to_move(source.port, slow_target, timeout_ms=300)
        with contextlib.suppress(OSError):  # until the other side hangs up
            while not moving.can_read():
                slow_target.answer(b"no end of it ")
        with pytest.raises(redis.ResponseError, match="IOERR"):
            moving.read_response()
        assert source.client.get("key") == b"1"


def test_others_wait_and_find_the_key_gone(tmp_path: Path, slow_target: SlowTarget) -> None:
    with start("ours", tmp_path) as source:
        source.client.set("key", "1")
        other = redis.Redis(port=source.port).connection_pool.get_connection()
        moving = begin_to_move(source.port, slow_target)
        other.send_command("APPEND", "key", "2")
        assert not other.can_read(timeout=0.3)
        slow_target.answer(b"+OK\r\n+OK\r\n")
        assert moving.read_response() == b"OK"
        assert other.read_response() == 1
        for connection in (moving, other):
            connection.disconnect()


def test_a_client_that_leaves_takes_nothing_along(tmp_path: Path, slow_target: SlowTarget) -> None:
    with start("ours", tmp_path) as source:
        source.client.set("key", 1)
        begin_to_move(source.port, slow_target).disconnect()
        assert source.client.get("key") == b"1"  # answered: the command has ended
        eventually(slow_target.is_left, "the end of the connection to the target")


def cut_after(link: Link, target: Member, keys: int) -> None:
    """Cuts a line when more than so many keys have come through it."""
    while target.client.dbsize() <= keys:
        pass
    link.cut()


@pytest.mark.parametrize("name", ["redis", "ours"])
def test_a_line_that_is_cut_loses_no_key(name: str, tmp_path: Path) -> None:
    with (
        start("ours", tmp_path / "source") as source,
        start(name, tmp_path / "target") as target,
        contextlib.closing(Link(target.port)) as link,
    ):
        keys = [f"key:{n}" for n in range(200)]
        value = random.Random(1).randbytes(100_000)
        ends = set()
        for turn in range(12):
            for key in keys:
                source.client.set(key, value)
            target.client.flushall()
            cutter = threading.Thread(target=cut_after, args=(link, target, 16 * turn))
            cutter.start()
            ends.add(str(migrate(source, link.port, "", "KEYS", *keys))[:5])
            cutter.join()
            here, there = set(source.client.keys()), set(target.client.keys())
            assert len(here | there) == len(keys)
        assert "IOERR" in ends


def test_it_is_in_the_file_as_a_removal(tmp_path: Path) -> None:
    with two(("ours", "ours"), tmp_path, "appendonly", "yes", "appendfsync", "always") as (source, target):
        source.client.mset(dict.fromkeys("abcd", 1))
        assert migrate(source, target.port, "", "KEYS", "a", "b") == b"OK"
        assert migrate(source, target.port, "c", "COPY") == b"OK"
    with start("ours", tmp_path / "source", "appendonly", "yes") as source:
        assert sorted(source.client.keys()) == [b"c", b"d"]


def test_subscribers_are_told(tmp_path: Path) -> None:
    told = []
    for name in ("redis", "ours"):
        with two((name, "redis"), tmp_path / name, "notify-keyspace-events", "KEA") as (source, target):
            source.client.mset(dict.fromkeys("abc", 1))
            with source.client.pubsub() as heard:
                heard.psubscribe("__key*")
                heard.get_message(timeout=10)
                assert migrate(source, target.port, "", "KEYS", "a", "absent", "b") == b"OK"
                assert migrate(source, target.port, "c", "COPY") == b"OK"
                source.client.set("end", 1)
                messages = []
                while (message := heard.get_message(timeout=10)) is not None and message["data"] != b"end":
                    messages.append((message["channel"], message["data"]))
            told.append(messages)
    assert told[0] == told[1]
    assert (b"__keyevent@0__:del", b"b") in told[1]


def test_transactions_and_scripts_do_not_wait_for_another_server(tmp_path: Path) -> None:
    with start("ours", tmp_path) as source:
        source.client.set("key", 1)
        words = ("MIGRATE", "127.0.0.1", source.port, "key", 0, 100)
        with source.client.pipeline() as pipeline:
            pipeline.execute_command(*words)
            with pytest.raises(redis.ResponseError, match="waits for another server"):
                pipeline.execute()
        with pytest.raises(redis.ResponseError, match="waits for another server"):
            source.client.eval("return redis.call(unpack(ARGV))", 0, *words)
        assert source.client.get("key") == b"1"


def test_users_need_a_right_to_every_key(tmp_path: Path) -> None:
    with two(("ours", "ours"), tmp_path) as (source, target):
        source.client.mset({"own:a": 1, "own:b": 1, "other": 1})
        source.client.execute_command("ACL", "SETUSER", "mover", "on", ">password", "~own:*", "+migrate")
        with redis.Redis(port=source.port, username="mover", password="password") as mover:
            member = Member("ours", source.port)
            member.client = mover
            assert "no permissions" in migrate(member, target.port, "other").lower()
            assert "no permissions" in migrate(member, target.port, "", "KEYS", "own:a", "other").lower()
            assert migrate(member, target.port, "", "KEYS", "own:a", "own:b") == b"OK"
        assert source.client.keys() == [b"other"]


def test_the_server_stops_in_the_midst_of_it(tmp_path: Path, slow_target: SlowTarget) -> None:
    with replay_server.Server([], directory=tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        with redis.Redis(port=port) as client:
            client.set("key", 1)
        moving = begin_to_move(port, slow_target)
        server.stop()
        moving.disconnect()
    assert slow_target.is_left()
