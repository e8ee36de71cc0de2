"""Commands on keys of any type, within a database and between databases, against the real Redis."""

from __future__ import annotations

from typing import Any

import pytest
from against_redis import KEYS, LENGTHS, Pair, command, run_random_sequences, some, words
from hypothesis import strategies as st

DATABASES = st.sampled_from([b"0", b"1", b"2", b"2"])
ODD_DATABASES = st.one_of(DATABASES, DATABASES, st.sampled_from([b"16", b"-1", b"x", b"99999999999", b""]))
MEMBERS = st.sampled_from([b"m", b"n", b"17", b"-3", b"x" * 70])
LONG = st.sampled_from([b"v", b"12", b"z" * 20_000])

COPY_OPTIONS = some(st.one_of(st.tuples(st.just(b"DB"), ODD_DATABASES), words("REPLACE", "replace", "DB", "NO")), 0, 2)

COMMANDS = [
    command("set", KEYS, LONG),
    command("append", KEYS, LONG),
    command("rpush", KEYS, some(LONG)),
    command("hset", KEYS, MEMBERS, LONG),
    command("sadd", KEYS, some(MEMBERS)),
    command("zadd", KEYS, st.just(b"1"), MEMBERS),
    command("pexpire", KEYS, st.sampled_from([b"10000000", b"20000000"])),
    command("select", DATABASES),
    command("select", DATABASES),
    command("copy", KEYS, KEYS, COPY_OPTIONS),
    command("copy", KEYS, KEYS, COPY_OPTIONS),
    command("move", KEYS, ODD_DATABASES),
    command("move", KEYS, DATABASES),
    command("swapdb", DATABASES, ODD_DATABASES),
    command("rename", KEYS, KEYS),
    command("touch", some(KEYS)),
    command("unlink", some(KEYS)),
    command("get", KEYS),
    command("lrange", KEYS, st.just(b"0"), st.just(b"-1")),
    command("hgetall", KEYS),
    command("scard", KEYS),
    command("sismember", KEYS, MEMBERS),
    command("zscore", KEYS, MEMBERS),
    command("type", KEYS),
    command("pttl", KEYS),
    command("pexpiretime", KEYS),
    command("dbsize"),
    command("scan", st.just(b"0"), words("COUNT 1000 TYPE set", "COUNT 1000 TYPE zset", "COUNT 1000 TYPE none")),
]


@LENGTHS
def test_random_moves_between_databases_agree(pair: Pair, long: bool) -> None:
    run_random_sequences(pair, COMMANDS, long=long)


def test_options_and_errors_agree(pair: Pair) -> None:
    pair.words("SELECT 0")
    pair.words("FLUSHALL")
    pair.words("SET a one")
    for line in [
        "COPY a a",
        "COPY a a DB 0",
        "COPY a b DB x",
        "COPY a b DB 16",
        "COPY a b DB",
        "COPY a b NO",
        "COPY none b DB 99999999999",
        "COPY none b",
        "COPY a b",
        "COPY a b",
        "COPY a b REPLACE",
        "COPY a a DB 1",
        "MOVE a 0",
        "MOVE none 0",
        "MOVE none 1",
        "MOVE a x",
        "MOVE a 16",
        "MOVE a 99999999999",
        "MOVE a 1",
        "MOVE b 1",
        "SWAPDB a b",
        "SWAPDB 0 b",
        "SWAPDB 0 16",
        "SWAPDB -1 0",
        "SWAPDB 0 99999999999",
        "SWAPDB 0 0",
        "SWAPDB 0 1",
        "MGET a b",
        "TOUCH a a b none",
        "OBJECT ENCODING",
        "OBJECT ENCODING none",
        "OBJECT FREQ none",
        "OBJECT FREQ a",
        "OBJECT IDLETIME none",
        "OBJECT IDLETIME a",
        "OBJECT REFCOUNT a",
        "OBJECT NOPE a",
        "OBJECT HELP a",
        "OBJECT",
    ]:
        pair.words(line)
    for setting in ["allkeys-lfu", "noeviction"]:
        pair.words(f"CONFIG SET maxmemory-policy {setting}")
        pair.words("OBJECT IDLETIME a")
        pair.words("OBJECT FREQ none")


def test_frequency_grows_with_use_unless_the_key_is_only_looked_at(pair: Pair) -> None:
    pair.words("CONFIG SET maxmemory-policy allkeys-lfu")
    try:
        pair.words("FLUSHALL")
        pair.words("SET a value")  # Redis shares small integers, whose uses then say nothing of the key
        pair.words("OBJECT FREQ a")
        for line in ["EXISTS a", "TYPE a", "TTL a", "OBJECT ENCODING a"]:
            for _ in range(20):
                pair.words(line)
        pair.words("OBJECT FREQ a")
        for connection in (pair.redis, pair.ours):
            before = connection.run(b"OBJECT", b"FREQ", b"a")[1]
            for _ in range(200):
                connection.run(b"TOUCH", b"a")
            assert connection.run(b"OBJECT", b"FREQ", b"a")[1] > before
    finally:
        pair.words("CONFIG SET maxmemory-policy noeviction")


def test_a_copy_is_apart_from_its_source(pair: Pair) -> None:
    """Large strings and packed forms share nothing that a change of one would show in the other."""
    pair.words("FLUSHALL")
    for line in [f"SET s {'x' * 20_000}", "RPUSH l a b", "HSET h f 1", "SADD n 1 2", "SADD w a b", "ZADD z 1 a 2 b"]:
        pair.words(line)
    big = [b"HSET", b"H"]
    for number in range(300):
        big += [b"f%d" % number, b"v" * (number % 90)]
    pair.run(tuple(big), (b"SADD", b"N", *(b"%d" % n for n in range(700))), (b"ZADD", b"Z", *big[2:3], b"x"))
    pair.run((b"ZADD", b"Z", *(part for n in range(300) for part in (b"%d" % n, b"m%d" % n))))
    pair.run((b"RPUSH", b"L", *(b"%d" % n for n in range(1000))))
    for key in "slhnwzHNZL":
        pair.words(f"PEXPIREAT {key} 9999999999999")
        pair.words(f"COPY {key} {key}2 DB 3")
        pair.words(f"COPY {key} {key}2")
        pair.words(f"PEXPIRETIME {key}2")
    for line in ["SETRANGE s 3 abc", "LSET l 0 z", "HSET h f 2", "SREM n 1", "SADD w c", "ZADD z 9 a", "HDEL H f7"]:
        pair.words(line)
    for line in ["SREM N 5", "ZREM Z m5", "LTRIM L 5 10", "GET s2", "GET s", "LRANGE l2 0 -1", "HGET h2 f", "SCARD n2"]:
        pair.words(line)
    for line in ["SCARD w2", "ZSCORE z2 a", "HGETALL H2", "SISMEMBER N2 5", "ZRANGE Z2 0 -1", "LRANGE L2 0 -1"]:
        pair.words(line)
    pair.words("SELECT 3")
    for line in ["GET s2", "LRANGE l2 0 -1", "HLEN H2", "SCARD N2", "ZCARD Z2", "DBSIZE"]:
        pair.words(line)
    pair.words("SELECT 0")
    pair.words("FLUSHALL")


def test_a_moved_key_ends_where_it_is(pair: Pair) -> None:
    pair.words("FLUSHALL")
    for line in ["SET a 1 PX 1", "SET b 1 PX 60000", "MOVE b 4", "SELECT 4", "PERSIST b", "SELECT 0", "EXISTS b"]:
        if line != "EXISTS b":
            pair.words(line)
    for connection in (pair.redis, pair.ours):
        while connection.run(b"EXISTS", b"a")[1]:
            pass
        assert connection.run(b"DBSIZE") == (":", 0)
    pair.words("FLUSHALL")


def test_redis_py_copies_moves_and_exchanges(our_peer: Any) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        client.rpush("l", 1, 2)
        assert client.copy("l", "m")
        assert client.copy("l", "m") is False
        assert client.copy("l", "m", replace=True)
        assert client.move("m", 1)
        assert not client.exists("m")
        assert client.swapdb(0, 1)
        assert client.lrange("m", 0, -1) == [b"1", b"2"]
        assert client.touch("m", "l") == 1
        assert client.object("encoding", "m") == b"quicklist"
        assert client.object("idletime", "m") == 0
        client.flushall()


def test_keys_of_a_large_database_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.run((b"MSET", *(part for n in range(5000) for part in (b"key:%d" % n, b"1"))))
    for pattern in ["*", "key:*7", "key:1[0-4]?", "none*", "key:4321"]:
        pair.words(f"KEYS {pattern}")
        for line in ["MULTI", f"KEYS {pattern}", "EXEC"]:
            if line != "EXEC":
                pair.words(line)
        replies = [connection.run(b"EXEC") for connection in (pair.redis, pair.ours)]
        assert sorted(replies[0][1][0][1]) == sorted(replies[1][1][0][1])
    pair.words("FLUSHALL")


def test_a_key_named_twice_may_run_out_at_any_moment(our_peer: Any) -> None:
    """It is there for the whole of a command or not at all, also where the command looks it up twice."""
    connection = our_peer.connect()
    for n in range(600):
        lines = [
            b"SET s %s PX 1" % (b"x" * 100),
            b"RPUSH l a b",
            b"PEXPIRE l 1",
            *[b"LCS s s LEN", b"BITOP AND out s s s", b"LMOVE l l LEFT RIGHT", b"RENAME l l", b"COPY s t REPLACE"] * 40,
            b"DEL s l",
        ]
        connection.send(*(tuple(line.split()) for line in lines))
        replies = [connection.read() for _ in lines]
        for reply, line in zip(replies, lines, strict=True):
            if line.startswith(b"LCS"):
                assert reply in [(":", 100), (":", 0)], n
            if line.startswith(b"BITOP"):
                assert reply in [(":", 100), (":", 0)], n
    connection.close()


def test_stars_match_no_empty_name_as_in_redis(pair: Pair) -> None:
    pair.run((b"SELECT", b"0"), (b"FLUSHALL",), (b"SET", b"", b"1"), (b"HSET", b"h", b"", b"1"), (b"SADD", b"s", b""))
    for pattern in (b"*", b"**", b"", b"?", b"[^a]"):
        pair.run((b"KEYS", pattern), (b"SCAN", b"0", b"COUNT", b"1000", b"MATCH", pattern))
        pair.run((b"HSCAN", b"h", b"0", b"MATCH", pattern), (b"SSCAN", b"s", b"0", b"MATCH", pattern))
