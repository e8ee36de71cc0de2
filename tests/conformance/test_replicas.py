"""Replicas: of this server, and this server as one. Redis 7.0 at the other end, or another of ours."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from links import Link, Member, eventually, settled, start
from test_durability import assert_same, contents
from test_taken_down import ask, run_alone, run_in_script, run_in_transaction, send, writes

FOLLOWED = [("ours", "redis")]


def ids(pair: tuple[str, str]) -> str:
    return f"{pair[1]} follows {pair[0]}"


@contextlib.contextmanager
def linked(
    pair: tuple[str, str], folder: Path, *options: str, before: Any = None
) -> Iterator[tuple[Member, Member, Link]]:
    """A primary with these settings, a replica that follows it, and the link between them."""
    with (
        start(pair[0], folder / "primary", *options) as primary,
        contextlib.closing(Link(primary.port)) as link,
        start(pair[1], folder / "replica") as replica,
    ):
        if before is not None:
            before(primary.client)
        replica.follow(link.port)
        eventually(replica.is_up, "the first synchronisation")
        yield primary, replica, link


def fill(client: redis.Redis[bytes]) -> None:
    client.set("text", b"some \0 bytes", ex=100_000)
    client.set("number", -17)
    client.set("large", b"0123456789" * 300_000)
    client.rpush("list", *range(3000))
    client.hset("hash", mapping={f"f{n}": n for n in range(700)})
    client.sadd("integers", *range(100))
    client.sadd("words", *(f"w{n}" for n in range(500)))
    client.zadd("scores", {f"m{n}": n / 3 for n in range(500)})
    client.xadd("stream", {"a": 1, "b": 2}, id="5-1")
    client.xgroup_create("stream", "group", id="0")
    client.xreadgroup("group", "me", {"stream": ">"})
    client.execute_command("SELECT", 7)
    client.set("elsewhere", 7, px=90_000_000)
    client.execute_command("SELECT", 0)


def assert_follows(primary: Member, replica: Member) -> None:
    settled(primary, replica)
    assert_same(contents(replica.client), contents(primary.client))
    if primary.name == replica.name:
        assert primary.client.execute_command("DEBUG DIGEST") == replica.client.execute_command("DEBUG DIGEST")


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_a_replica_is_sent_all_keys_and_then_every_change(pair: tuple[str, str], tmp_path: Path) -> None:
    with linked(pair, tmp_path, before=fill) as (primary, replica, _):
        assert_follows(primary, replica)
        client = primary.client
        with client.pipeline(transaction=True) as pipe:
            pipe.lpush("list", "first").spop("words", 3).incrbyfloat("float", 0.1).execute()
        client.set("large", b"9876543210" * 400_000)
        client.set("short", 1, px=300)
        client.eval("redis.call('set', 'by script', redis.call('time')[1]) redis.call('incr', 'number')", 0)
        client.execute_command("SELECT", 3)
        client.set("third", 3)
        client.execute_command("SELECT", 0)
        eventually(lambda: replica.client.exists("short") == 0, "the end of a key")
        assert_follows(primary, replica)


@pytest.mark.parametrize("run", [run_alone, run_in_transaction, run_in_script])
@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_every_command_that_writes_does_the_same_to_a_replica(pair: tuple[str, str], run: Any, tmp_path: Path) -> None:
    with linked(pair, tmp_path) as (primary, replica, _):
        table = {row["name"]: row for row in primary.client.command().values()}
        may = {name for name, row in table.items() if "write" in row["flags"]}
        may -= {name for name in may if name.startswith(("replay.", "weights.", "grad."))}
        if run is run_in_script:
            may -= {name for name in may if "noscript" in table[name]["flags"]}
        connection = send(f"redis://127.0.0.1:{primary.port}", "PING")
        connection.read_response()
        for before, words in writes():
            if words[0] not in may:
                continue
            ask(connection, "SELECT", 0)
            for request in before:
                ask(connection, *request)
            run(connection, words)
        connection.disconnect()
        assert_follows(primary, replica)


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_a_replica_whose_link_was_cut_is_sent_what_it_missed(pair: tuple[str, str], tmp_path: Path) -> None:
    with linked(pair, tmp_path, before=fill) as (primary, replica, link):
        for round_ in range(3):
            link.cut(mend=False)
            for number in range(200):
                primary.client.incr("counter")
                primary.client.rpush("list", f"{round_}:{number}")
            link.mend()
            assert_follows(primary, replica)
        stats = primary.client.info("stats")
        assert (stats["sync_full"], stats["sync_partial_ok"]) == (1, 3)


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_a_replica_that_missed_more_than_the_backlog_begins_anew(pair: tuple[str, str], tmp_path: Path) -> None:
    with linked(pair, tmp_path, "repl-backlog-size", "16384") as (primary, replica, link):
        refused = primary.client.info("stats")["sync_partial_err"]
        link.cut(mend=False)
        for number in range(20):
            primary.client.set(f"k{number}", b"x" * 10_000)
        link.mend()
        assert_follows(primary, replica)
        stats = primary.client.info("stats")
        assert (stats["sync_full"], stats["sync_partial_err"]) == (2, refused + 1)
        kept = primary.replication()["repl_backlog_histlen"]
        assert kept < 16384 + 2 * 16384, "blocks beyond repl-backlog-size are given up"


def test_what_is_published_reaches_a_replica(tmp_path: Path) -> None:
    with linked(("ours", "redis"), tmp_path) as (primary, replica, _):
        heard = replica.client.pubsub()
        heard.subscribe("news")
        assert heard.get_message(timeout=60) is not None
        primary.client.publish("news", "here")
        message = heard.get_message(timeout=60)
        assert message is not None
        assert message["data"] == b"here"
        heard.close()


def test_wait_tells_how_many_have_what_was_written(tmp_path: Path) -> None:
    with linked(("ours", "redis"), tmp_path) as (primary, replica, link):
        primary.client.set("k", 1)
        assert primary.client.wait(1, 60_000) == 1
        assert replica.client.get("k") == b"1"
        assert primary.client.wait(2, 10) == 1
        link.cut(mend=False)
        primary.client.set("k", 2)
        assert primary.client.wait(1, 10) == 0
        link.mend()
        assert primary.client.wait(1, 60_000) == 1
        assert replica.client.get("k") == b"2"


def test_role_and_info_name_the_replicas(tmp_path: Path) -> None:
    with linked(("ours", "redis"), tmp_path) as (primary, replica, _):
        primary.client.set("k", 1)
        assert primary.client.wait(1, 60_000) == 1
        eventually(
            lambda: primary.replication()["slave0"]["offset"] == primary.replication()["master_repl_offset"], "it"
        )
        told = primary.replication()
        offset = told["master_repl_offset"]
        assert told["slave0"] == {
            "ip": "127.0.0.1", "port": replica.port, "state": "online", "offset": offset, "lag": told["slave0"]["lag"],
        }  # fmt: skip
        assert primary.client.role() == [b"master", offset, [[b"127.0.0.1", b"%d" % replica.port, b"%d" % offset]]]
        assert replica.replication()["master_replid"] == told["master_replid"]


def test_writes_wait_for_enough_replicas(tmp_path: Path) -> None:
    with linked(("ours", "redis"), tmp_path, "min-replicas-to-write", "1") as (primary, _, link):
        eventually(lambda: primary.client.set("k", 1), "a good replica")
        link.cut(mend=False)
        eventually(lambda: primary.replication()["min_slaves_good_slaves"] == 0, "its absence")
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            primary.client.set("k", 2)


def test_a_replica_that_does_not_take_what_it_is_sent_is_closed(tmp_path: Path) -> None:
    limits = "replica 4mb 0 0"
    with start("ours", tmp_path, "client-output-buffer-limit", limits) as primary:
        idle = socket.create_connection(("127.0.0.1", primary.port))
        idle.sendall(b"PSYNC ? -1\r\n")
        assert idle.recv(12).startswith(b"+FULLRESYNC ")
        eventually(lambda: primary.replication().get("slave0", {}).get("state") == "online", "a replica")
        for number in range(60):
            primary.client.set(f"k{number}", b"x" * 500_000)
        eventually(lambda: primary.replication()["connected_slaves"] == 0, "its end")
        assert primary.client.info("stats")["client_output_limit_closes"] == 1
        idle.close()


def test_sync_sends_a_file_and_then_every_change(tmp_path: Path) -> None:
    with start("ours", tmp_path) as primary:
        client = primary.client
        client.set("k", "v")
        connection = socket.create_connection(("127.0.0.1", primary.port))
        stream = connection.makefile("rb")
        connection.sendall(b"REPLCONF capa eof\r\nSYNC\r\n")
        assert stream.readline() == b"+OK\r\n"
        line = stream.readline()
        while line == b"\n":
            line = stream.readline()
        assert stream.read(int(line[1:])).startswith(b"REDIS0010")
        client.set("k", "w")
        expected = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nw\r\n"
        got = b""
        while len(got) < len(expected):
            got += stream.read(1)
        assert got == expected
        stream.close()
        connection.close()
        with pytest.raises(redis.ResponseError, match="Unrecognized REPLCONF option"):
            client.execute_command("REPLCONF", "nonsense", "x")


def test_a_file_alone_ends_the_connection(tmp_path: Path) -> None:
    with start("ours", tmp_path) as primary:
        primary.client.set("k", "v")
        with socket.create_connection(("127.0.0.1", primary.port)) as connection, connection.makefile("rb") as stream:
            connection.sendall(b"REPLCONF rdb-only 1\r\nSYNC\r\n")
            assert stream.readline() == b"+OK\r\n"
            line = stream.readline()
            while line == b"\n":
                line = stream.readline()
            assert stream.read()[:9] == b"REDIS0010"
        assert primary.client.get("k") == b"v"
