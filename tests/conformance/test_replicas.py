"""Replicas: of this server, and this server as one. Redis 7.0 at the other end, or another of ours."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import SLOW_IS_FINE
from durable import assert_same, contents
from hypothesis import given, settings
from hypothesis import strategies as st
from links import Link, Member, eventually, settled, start
from test_taken_down import FAMILIES, ask, run_alone, run_in_script, run_in_transaction, send, writes
from test_tls import certificates as certificates
from test_tls import settings as tls_settings

FOLLOWED = [("ours", "redis"), ("redis", "ours"), ("ours", "ours")]


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


def counts_no_reading(value: Any) -> Any:
    """Without what a Redis tells no replica of: how many entries a group has read."""
    if isinstance(value, dict):
        left_out = {"entries-read", "lag"}
        return {name: counts_no_reading(part) for name, part in value.items() if name not in left_out}
    return [counts_no_reading(part) for part in value] if isinstance(value, list) else value


def assert_follows(primary: Member, replica: Member) -> None:
    settled(primary, replica)
    has, should_have = contents(replica.client), contents(primary.client)
    if primary.name == "redis":
        has, should_have = (
            {key: (kind, counts_no_reading(value), ends) for key, (kind, value, ends) in all_of.items()}
            for all_of in (has, should_have)
        )
    assert_same(has, should_have)
    if primary.name == replica.name:
        both = (primary.client, replica.client)  # a key whose time is over counts until the primary has deleted it
        eventually(lambda: len({client.execute_command("DEBUG DIGEST") for client in both}) == 1, "the same digest")


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
        settled(primary, replica)
        eventually(lambda: all(each.client.exists("short") == 0 for each in (primary, replica)), "the end of a key")
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
            reads_again = words[0] == "xreadgroup" and words[-1] == "0"
            if words[0] not in may or (reads_again and primary.name == "redis"):
                continue  # a Redis tells no replica how often an entry was delivered again
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
def test_a_time_that_is_over_when_it_comes_removes_nothing_before_the_primary_does(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    with linked(pair, tmp_path) as (primary, replica, link):
        link.cut(mend=False)
        client = primary.client
        client.rpush("kept", 1)
        client.pexpire("kept", 200)
        client.rpush("kept", 2)
        client.persist("kept")
        client.set("over", 1)
        client.pexpire("over", 200)
        time.sleep(0.3)
        link.mend()
        assert client.exists("over") == 0
        assert_follows(primary, replica)
        assert replica.client.lrange("kept", 0, -1) == [b"1", b"2"]


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


# ---- this server as a replica ----------------------------------------------------------------------------------------


def test_a_replica_refuses_writes_and_a_primary_again_takes_them(tmp_path: Path) -> None:
    with linked(("ours", "ours"), tmp_path) as (primary, replica, _):
        primary.client.set("k", 1)
        settled(primary, replica)
        for command in ("SET k 2", "REPLAY.RESET t", "WEIGHTS.PUBLISH w * x"):
            with pytest.raises(redis.ResponseError, match="You can't write against a read only replica"):
                replica.client.execute_command(*command.split())
        with pytest.raises(redis.ResponseError, match="read only replica"):
            replica.client.eval("return redis.call('set', 'k', 3)", 0)
        with pytest.raises(redis.ResponseError, match="WAIT cannot be used with replica instances"):
            replica.client.wait(0, 1)
        assert replica.client.get("k") == b"1"
        role = replica.client.role()
        assert (role[0], role[3]) == (b"slave", b"connected")
        replica.client.execute_command("REPLICAOF", "NO", "ONE")
        assert replica.client.set("k", 4)
        assert replica.client.role()[0] == b"master"
        assert primary.client.get("k") == b"1"


def test_a_replica_shows_no_key_whose_time_is_over_and_leaves_its_removal_to_the_primary(tmp_path: Path) -> None:
    with linked(("ours", "ours"), tmp_path) as (primary, replica, link):
        primary.client.set("k", 1, px=2000)  # the link is cut before
        primary.client.set("stays", 1)
        settled(primary, replica)
        link.cut(mend=False)
        eventually(lambda: replica.client.get("k") is None, "its end")
        assert replica.client.exists("k") == 0
        assert replica.client.dbsize() == 2
        link.mend()
        settled(primary, replica)
        eventually(lambda: replica.client.dbsize() == 1, "its removal")


def test_a_replica_without_its_primary_may_refuse_to_answer(tmp_path: Path) -> None:
    with linked(("ours", "ours"), tmp_path) as (primary, replica, link):
        primary.client.set("k", 1)
        settled(primary, replica)
        link.cut(mend=False)
        eventually(lambda: not replica.is_up(), "the loss of the link")
        assert replica.client.get("k") == b"1"
        replica.client.config_set("replica-serve-stale-data", "no")
        with pytest.raises(redis.ResponseError, match="Link with MASTER is down"):
            replica.client.get("k")
        link.mend()
        assert eventually(lambda: replica.client.get("k"), "the link") == b"1"


@pytest.mark.parametrize("name", ["ours", "redis"])
def test_a_transaction_that_was_queued_before_is_refused_as_a_whole(name: str, tmp_path: Path) -> None:
    with linked(("ours", name), tmp_path) as (_, replica, link), replica.client.client() as one:
        for words in ("MULTI", "PING", "GET k"):
            one.execute_command(*words.split())
        link.cut(mend=False)
        eventually(lambda: not replica.is_up(), "the loss of the link")
        replica.client.config_set("replica-serve-stale-data", "no")
        with pytest.raises(redis.ResponseError, match=r"^Transaction discarded because of: MASTERDOWN Link"):
            one.execute_command("EXEC")
        link.mend()


@pytest.mark.parametrize("primary_name", ["ours", "redis"])
def test_a_replica_logs_in(primary_name: str, tmp_path: Path) -> None:
    with start(primary_name, tmp_path / "primary") as primary, start("ours", tmp_path / "replica") as replica:
        primary.client.set("k", 1)
        primary.client.execute_command("ACL SETUSER follower on >secret +psync +replconf +ping")
        primary.client.config_set("requirepass", "other")
        primary.client.execute_command("AUTH", "other")
        replica.follow(primary.port)
        time.sleep(0.2)
        assert not replica.is_up()
        replica.client.config_set("masteruser", "follower")
        replica.client.config_set("masterauth", "secret")
        assert eventually(lambda: replica.client.get("k"), "a login") == b"1"


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_clients_of_replication_are_told_from_others_and_can_be_closed(pair: tuple[str, str], tmp_path: Path) -> None:
    def described(member: Member, kind: str) -> list[tuple[str, str]]:
        return [(each["flags"], each["user"]) for each in member.client.client_list(_type=kind)]

    with linked(pair, tmp_path) as (primary, replica, _):
        settled(primary, replica)
        assert described(primary, "replica") == [("S", "default")]
        assert described(replica, "master") == [("M", "(superuser)")]
        assert described(primary, "master") == described(replica, "replica") == []
        for member in (primary, replica):
            assert described(member, "normal") == [("N", "default")]
            assert member.client.execute_command("CLIENT", "KILL", "TYPE", "normal") == 0  # as Sentinel does
        for member, kind in ((primary, "replica"), (primary, "slave"), (replica, "master")):
            before = primary.client.info("stats")["sync_partial_ok"]
            assert member.client.execute_command("CLIENT", "KILL", "TYPE", kind) == 1
            eventually(lambda: primary.client.info("stats")["sync_partial_ok"] > before, "the link again")  # noqa: B023
            settled(primary, replica)


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_a_function_may_have_a_name_of_any_length(pair: tuple[str, str], tmp_path: Path) -> None:
    library, name = "L" * 70_000, "F" * 70_000
    function = f"{{function_name='{name}', callback=function() return 7 end, flags={{'no-writes'}}}}"
    code = f"#!lua name={library}\nredis.register_function{function}"
    with linked(pair, tmp_path, before=lambda client: client.function_load(code)) as (_, replica, _):
        assert replica.client.fcall(name.lower(), 0) == 7
        assert library.encode() in replica.client.function_list()[0]


CHAINS = [("redis", "ours", "ours"), ("redis", "ours", "redis"), ("ours", "redis", "ours")]


@pytest.mark.parametrize("names", CHAINS, ids="-".join)
def test_the_last_of_a_chain_knows_in_which_database_the_first_writes(
    names: tuple[str, str, str], tmp_path: Path
) -> None:
    with linked(names[:2], tmp_path) as (primary, middle, _), start(names[2], tmp_path / "last") as last:
        with contextlib.closing(redis.Redis(port=primary.port, db=5)) as client:
            client.set("before", 1)
            settled(primary, middle)
            last.follow(middle.port)
            eventually(last.is_up, "the second link")
            client.set("after", 1)
        settled(primary, last)
        assert last.client.info("keyspace") == primary.client.info("keyspace")
        assert list(last.client.info("keyspace")) == ["db5"]


def test_a_chain_of_replicas_has_the_offsets_of_the_first(tmp_path: Path) -> None:
    with (
        linked(("redis", "ours"), tmp_path, before=fill) as (primary, middle, _),
        start("redis", tmp_path / "last") as last,
    ):
        last.follow(middle.port)
        eventually(last.is_up, "the second link")
        primary.client.incr("counter")
        with primary.client.pipeline(transaction=True) as pipe:
            pipe.incr("counter").rpush("list", "x").execute()
        settled(primary, middle)
        settled(primary, last)
        assert last.replication()["master_replid"] == primary.replication()["master_replid"]
        assert last.client.get("counter") == b"2"
        assert last.client.dbsize() == primary.client.dbsize()


@pytest.mark.parametrize("others", ["ours", "redis"])
def test_replicas_go_on_with_the_one_that_is_promoted(others: str, tmp_path: Path) -> None:
    """The former primary and another replica follow the new one, and neither is sent all keys again."""
    with (
        start("ours", tmp_path / "a") as first,
        start("ours", tmp_path / "b") as second,
        start(others, tmp_path / "c") as third,
    ):
        fill(first.client)
        for member in (second, third):
            member.follow(first.port)
            eventually(member.is_up, "a link")
        first.client.incr("counter")
        settled(first, second)
        settled(first, third)
        second.client.execute_command("REPLICAOF", "NO", "ONE")
        told, before = second.replication(), first.replication()
        assert told["role"] == "master"
        assert told["master_replid2"] == before["master_replid"]
        assert told["second_repl_offset"] == before["master_repl_offset"] + 1
        third.follow(second.port)
        first.follow(second.port)
        for member in (first, third):
            eventually(member.is_up, "a link to the new primary")
        second.client.incr("counter")
        for member in (first, third):
            settled(second, member)
            assert member.client.get("counter") == b"2"
        stats = second.client.info("stats")
        assert (stats["sync_full"], stats["sync_partial_ok"]) == (0, 2)


def test_what_a_former_primary_wrote_alone_is_given_up(tmp_path: Path) -> None:
    with linked(("ours", "ours"), tmp_path) as (first, second, link):
        first.client.set("k", "both")
        settled(first, second)
        link.cut(mend=False)
        first.client.set("k", "alone")
        second.client.execute_command("REPLICAOF", "NO", "ONE")
        second.client.set("k", "after")
        first.follow(second.port)
        eventually(first.is_up, "a link")
        settled(second, first)
        assert first.client.get("k") == b"after"
        assert second.client.info("stats")["sync_full"] == 1


def test_a_replica_writes_its_append_only_file_anew_from_what_it_is_sent(tmp_path: Path) -> None:
    with start("ours", tmp_path / "primary") as primary:
        fill(primary.client)
        with start("ours", tmp_path / "replica", "appendonly", "yes") as replica:
            replica.client.set("mine", 1)
            replica.follow(primary.port)
            eventually(replica.is_up, "a link")
            primary.client.set("later", 1)
            settled(primary, replica)
            eventually(lambda: replica.client.info("persistence")["aof_pending_rewrite"] == 0, "its base")
            primary.client.set("latest", 1)
            settled(primary, replica)
        with start("ours", tmp_path / "replica", "appendonly", "yes") as again:
            assert_same(contents(again.client), contents(primary.client))


def test_blocked_clients_are_told_that_the_server_follows_another(tmp_path: Path) -> None:
    with start("ours", tmp_path / "primary") as primary, start("ours", tmp_path / "replica") as replica:
        connection = send(f"redis://127.0.0.1:{replica.port}", "BLPOP", "k", "0")
        eventually(lambda: replica.client.info("clients")["blocked_clients"] == 1, "a client that waits")
        replica.follow(primary.port)
        with pytest.raises(redis.ResponseError, match="UNBLOCKED"):
            raise connection.read_response()
        connection.disconnect()


def test_a_link_may_be_encrypted(certificates: Path, tmp_path: Path) -> None:
    encrypted = [str(word) for pair in tls_settings(certificates, tls_auth_clients="yes").items() for word in pair]
    with start("ours", tmp_path / "primary", *encrypted) as primary:
        fill(primary.client)
        port = int(primary.client.config_get("tls-port")["tls-port"])
        with start("ours", tmp_path / "replica", *encrypted, "tls-replication", "yes") as replica:
            replica.follow(port)
            eventually(replica.is_up, "a link")
            primary.client.set("later", b"x" * 3_000_000)
            assert_follows(primary, replica)
            told = primary.replication()["slave0"]
            assert told["port"] == int(replica.client.config_get("tls-port")["tls-port"])


@pytest.mark.parametrize("pair", FOLLOWED, ids=ids)
def test_random_writes_and_cuts_leave_both_with_the_same_keys(pair: tuple[str, str], tmp_path: Path) -> None:
    """The link is cut in the midst of whatever it carries; small backlogs make the replica begin anew now and then."""
    steps = st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.lists(st.one_of(*FAMILIES), min_size=5, max_size=40), st.booleans()),
            st.tuples(st.just("cut"), st.booleans()),
            st.tuples(st.just("flood"), st.integers(1, 60)),
        ),
        min_size=3,
        max_size=12,
    )
    with linked(pair, tmp_path, "repl-backlog-size", "16384") as (primary, replica, link):

        @settings(max_examples=8, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
        @given(steps)
        def run(sequence: list[Any]) -> None:
            for kind, *rest in sequence:
                if kind == "write":
                    pipeline = primary.client.pipeline(transaction=rest[1])
                    for words in rest[0]:
                        pipeline.execute_command(*words)
                    pipeline.execute(raise_on_error=False)
                elif kind == "cut":
                    link.cut(mend=rest[0])
                else:
                    primary.client.mset({f"flood:{n}": b"x" * 1000 for n in range(rest[0])})
            link.mend()
            assert_follows(primary, replica)

        run()
