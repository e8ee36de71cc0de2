"""Keyspace notifications: a subscriber hears the same events as from Redis 7.0, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from against_redis import Pair


@pytest.fixture
def listeners(pair: Pair, peers: Any) -> Iterator[list[Any]]:
    pair.run((b"SELECT", b"0"), (b"FLUSHALL",), (b"CONFIG", b"SET", b"notify-keyspace-events", b"KEAn"))
    connected = [peer.connect() for peer in peers]
    for listener in connected:
        listener.run(b"PSUBSCRIBE", b"__key*__:*")
    yield connected
    for listener in connected:
        listener.close()
    pair.run((b"CONFIG", b"SET", b"notify-keyspace-events", b""))


def heard(pair: Pair, listeners: list[Any]) -> list[tuple[bytes, bytes]]:
    """What was said since the last time, up to a message that says that this is all. Both servers must agree."""
    pair.run((b"PUBLISH", b"__key__:end", b""))
    logs = []
    for listener in listeners:
        log = []
        while True:
            _, (_, _, (_, channel), (_, message)) = listener.read()
            if channel == b"__key__:end":
                break
            log.append((channel, message))
        logs.append(log)
    assert logs[1] == logs[0]
    return logs[0]


@pytest.mark.parametrize(
    "lines",
    [
        "SET a 1;SET a 2 EX 100;SETEX a 100 v;PSETEX a 100000 v;"
        "SETNX a x;SETNX b x;GETSET a y;MSET a 1 b 2;MSETNX c 1 d 2",
        "SET a 1;INCR a;DECR a;INCRBY a 5;DECRBY a 5;INCRBYFLOAT a 1.5;APPEND a x;SETRANGE a 3 zz;SET a 1 XX GET",
        "SET a 1;GETEX a EX 100;GETEX a PERSIST;GETEX a;GETDEL a;GETDEL a;SETBIT b 7 1;BITFIELD b SET u8 0 255",
        "SET a 1;EXPIRE a 100;PEXPIRE a 100000;PERSIST a;PERSIST a;EXPIRE a -1;EXPIREAT nosuch 1",
        "SET a 1;SET b 2;RENAME a c;RENAMENX b c;RENAMENX b d;"
        "COPY c e;COPY c e;COPY c e REPLACE;MOVE e 5;DEL c d;UNLINK x",
        "SET a 1;BITOP AND b a a;BITOP AND b x x",
        "RPUSH l a b c;LPUSH l x;RPUSHX l y;LPUSHX nosuch y;LSET l 0 q;LINSERT l BEFORE a i;LREM l 0 i;LREM l 0 nosuch",
        "RPUSH l a b c d;LPOP l;RPOP l;LTRIM l 0 0;LPOP l 5;LPOP l",
        "RPUSH l a b c;LMOVE l m LEFT RIGHT;LMOVE l m RIGHT LEFT;RPOPLPUSH l m;RPOPLPUSH m m;LMPOP 2 x m RIGHT COUNT 9",
        "RPUSH l a b c;BLPOP l 0;BRPOP l 0;BLMOVE l m LEFT LEFT 0;BRPOPLPUSH m n 0;BLMPOP 0 1 n LEFT",
        "HSET h f 1 g 2;HSETNX h f x;HSETNX h i x;HINCRBY h f 1;"
        "HINCRBYFLOAT h f 1.5;HMSET h a b;HDEL h f g nosuch;HDEL h i a",
        "SADD s a b c;SADD s a;SREM s a nosuch;SMOVE s t b;SMOVE s t c;SPOP t;SPOP t 9;SADD u x;SPOP u",
        "SADD s a b c;SADD t b;SINTERSTORE d s t;"
        "SUNIONSTORE d s t;SDIFFSTORE d s t;SINTERSTORE d s nosuch;SINTERSTORE d s nosuch",
        "ZADD z 1 a 2 b 3 c;ZADD z INCR 5 a;ZINCRBY z 1 b;ZREM z a nosuch;ZPOPMIN z;ZPOPMAX z;ZADD z 1 a;ZREM z a",
        "ZADD z 1 a 2 b 3 c;ZREMRANGEBYRANK z 0 0;ZREMRANGEBYSCORE z 2 2;"
        "ZREMRANGEBYLEX z - +;ZADD z 1 a 2 b;ZMPOP 1 z MAX COUNT 5",
        "ZADD z 1 a 2 b;ZADD y 1 a;ZUNIONSTORE d 2 z y;ZINTERSTORE d 2 z y;ZDIFFSTORE d 2 z y;ZINTERSTORE d 2 z nosuch",
        "ZADD z 1 a 2 b;ZRANGESTORE d z 0 -1;ZRANGESTORE d z 5 6;BZPOPMIN z 0;BZPOPMAX z 0;ZADD z 1 a;BZMPOP 0 1 z MIN",
        "RPUSH l 3 1 2;SORT l STORE d;SORT nosuch STORE d;SORT l",
        "GEOADD k 1 1 a 2 2 b;GEOADD k 1 1 a;GEOSEARCHSTORE d k FROMLONLAT 1 1 BYRADIUS 500 km;"
        "GEORADIUS k 1 1 500 km STORE e;GEORADIUSBYMEMBER k a 500 km STOREDIST e;"
        "GEOSEARCHSTORE d k FROMLONLAT 50 1 BYRADIUS 5 km;GEORADIUS nothing 1 1 500 km STORE e;DEL k",
        "PFADD k a;PFADD k a;PFCOUNT k;PFCOUNT k;PFADD k b;PFMERGE d k;DEL k;DEL d",
        "MULTI;SET a 1;INCR a;EXEC",
        "GET a;LRANGE a 0 -1;STRLEN a;FLUSHDB;SET a 1;FLUSHALL",
    ],
)
def test_events_are_those_of_redis(pair: Pair, listeners: list[Any], lines: str) -> None:
    in_transaction = False
    for line in lines.split(";"):
        # What differs by chance is left out of the comparison of replies, not of events.
        command = tuple(word.encode() for word in line.split())
        for server in (pair.redis, pair.ours):
            server.run(*command)
        in_transaction = command != (b"EXEC",) and (in_transaction or command == (b"MULTI",))
        if not in_transaction:
            heard(pair, listeners)


def test_keys_that_run_out_are_told_of(pair: Pair, listeners: list[Any]) -> None:
    pair.words("SET a 1 PX 1")
    for listener in listeners:
        said = [listener.read()[1][2:] for _ in range(8)]
        assert said[-2:] == [
            [("$", b"__keyspace@0__:a"), ("$", b"expired")],
            [("$", b"__keyevent@0__:expired"), ("$", b"a")],
        ]


def test_who_waits_for_an_element_is_served_with_an_event(pair: Pair, listeners: list[Any], peers: Any) -> None:
    waiting = [peer.connect() for peer in peers]
    for client in waiting:
        client.send((b"BLPOP", b"l", b"0"))
    for server in (pair.redis, pair.ours):
        while b"blocked_clients:1" not in server.run(b"INFO", b"clients")[1]:
            pass
    pair.words("RPUSH l x")
    assert [client.read() for client in waiting] == [("*", [("$", b"l"), ("$", b"x")])] * 2
    heard(pair, listeners)
    for client in waiting:
        client.close()


def test_only_the_classes_wanted_are_sent(pair: Pair, listeners: list[Any]) -> None:
    for classes, count in (("K$", 1), ("Elg", 2), ("", 0), ("Km", 1)):
        pair.run((b"CONFIG", b"SET", b"notify-keyspace-events", classes.encode()))
        pair.words("SET a 1")
        pair.words("RPUSH l x")
        pair.words("DEL a l nosuch")
        pair.words("GET nosuch")
        assert len(heard(pair, listeners)) == (3 if classes == "Elg" else count)


@pytest.mark.parametrize("classes", ["KEA", "", "g$lshzxe", "AKEmn", "Ktd", "xyz", "K", "KE$", "g$lshzxetdK"])
def test_the_setting_is_shown_as_redis_shows_it(pair: Pair, classes: str) -> None:
    pair.run((b"CONFIG", b"SET", b"notify-keyspace-events", classes.encode()))
    pair.words("CONFIG GET notify-keyspace-events")
    pair.run((b"CONFIG", b"SET", b"notify-keyspace-events", b""))
