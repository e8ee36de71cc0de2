"""SLOWLOG, LATENCY and MONITOR: what they show, beside Redis 7.0."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from against_redis import Pair


@pytest.fixture(autouse=True)
def as_it_was(pair: Pair) -> Iterator[None]:
    yield
    for setting in ("slowlog-log-slower-than 10000", "slowlog-max-len 128", "latency-monitor-threshold 0"):
        pair.words(f"CONFIG SET {setting}")
    pair.words("SLOWLOG RESET")
    for server in (pair.redis, pair.ours):
        server.run(b"LATENCY", b"RESET")


def entries(pair: Pair) -> list[list[Any]]:
    """Of both servers: words and client of each entry, without number, time and duration."""
    kept = []
    for server in (pair.redis, pair.ours):
        replies = server.run(b"SLOWLOG", b"GET", b"-1")[1]
        assert [entry[1][0][1] for entry in replies] == sorted((entry[1][0][1] for entry in replies), reverse=True)
        assert all(abs(entry[1][1][1] - time.time()) < 60 and entry[1][2][1] >= 0 for entry in replies)
        kept.append([(entry[1][3], entry[1][5]) for entry in replies])
    return kept


def test_slow_commands_are_kept_as_redis_keeps_them(pair: Pair) -> None:
    pair.words("SLOWLOG RESET")
    pair.words("CLIENT SETNAME slow-client")
    pair.words("CONFIG SET slowlog-log-slower-than 0")
    pair.words("SET k v")
    pair.run((b"SET", b"k", b"x" * 129), (b"RPUSH", b"slow:l", *(b"%d" % i for i in range(40))), (b"NOSUCH", b"a"))
    pair.words("AUTH default secret")
    pair.words("GET k v w")
    pair.words("DEL k slow:l")
    pair.words("CONFIG SET slowlog-log-slower-than -1")
    pair.words("GET k")
    redis, ours = entries(pair)
    assert ours == redis
    pair.words("SLOWLOG LEN")
    pair.words("CONFIG SET slowlog-max-len 2")
    pair.words("CONFIG SET slowlog-log-slower-than 0")
    pair.words("SET k v")
    pair.words("CONFIG SET slowlog-log-slower-than -1")
    pair.words("SLOWLOG LEN")
    redis, ours = entries(pair)
    assert ours == redis
    assert [len(server.run(b"SLOWLOG", b"GET", b"1")[1]) for server in (pair.redis, pair.ours)] == [1, 1]
    pair.words("SLOWLOG RESET")
    pair.words("SLOWLOG LEN")
    pair.words("SLOWLOG GET")


def test_the_value_of_a_secret_setting_is_not_kept(pair: Pair) -> None:
    pair.words("SLOWLOG RESET")
    pair.words("CONFIG SET slowlog-log-slower-than 0")
    pair.words("CONFIG SET requirepass hunter2 slowlog-max-len 100")
    pair.words("AUTH hunter2")
    pair.words('CONFIG SET requirepass ""')
    pair.words("CONFIG SET slowlog-log-slower-than -1")
    for server in (pair.redis, pair.ours):
        assert "hunter2" not in str(server.run(b"SLOWLOG", b"GET", b"-1"))
    pair.words("SLOWLOG RESET")


@pytest.mark.parametrize(
    "line",
    [
        "SLOWLOG",
        "SLOWLOG NOSUCH",
        "SLOWLOG GET x",
        "SLOWLOG GET -2",
        "SLOWLOG GET 1 2",
        "SLOWLOG GET 0",
        "SLOWLOG LEN x",
        "SLOWLOG RESET x",
        "LATENCY",
        "LATENCY NOSUCH",
        "LATENCY HISTORY",
        "LATENCY HISTORY nosuch",
        "LATENCY GRAPH nosuch",
        "LATENCY RESET nosuch other",
        "LATENCY LATEST",
        "LATENCY LATEST x",
        "LATENCY HISTOGRAM nosuch",
        "MONITOR x",
        "CONFIG SET slowlog-max-len x",
        "CONFIG SET latency-monitor-threshold -1",
        "CONFIG GET slowlog-max-len",
        "CONFIG GET latency-monitor-threshold",
    ],
)
def test_wrong_words_are_refused_alike(pair: Pair, line: str) -> None:
    pair.words(line)


def test_delays_are_kept_by_the_second(our_peer: Any) -> None:
    ours = our_peer.connect()
    ours.run(b"LATENCY", b"RESET")
    ours.run(b"CONFIG", b"SET", b"latency-monitor-threshold", b"1")
    ours.run(b"DEL", b"slow:l")
    for _ in range(20):
        ours.run(b"RPUSH", b"slow:l", *[b"x" * 50] * 50_000)
        if ours.run(b"LATENCY", b"LATEST")[1]:
            break
    latest = {event[1][0][1]: event[1] for event in ours.run(b"LATENCY", b"LATEST")[1]}
    assert set(latest) <= {b"command", b"fast-command", b"loop-turn"}
    name, (_, (_, when), (_, last), (_, most)) = next(iter(latest.items()))
    assert abs(when - time.time()) < 60
    assert 1 <= last <= most
    history = ours.run(b"LATENCY", b"HISTORY", name)[1]
    assert 1 <= len(history) <= 160
    assert history[-1][1] == [(":", when), (":", last)]
    assert b"ms" in ours.run(b"LATENCY", b"GRAPH", name)[1]
    assert name in ours.run(b"LATENCY", b"DOCTOR")[1]
    assert ours.run(b"LATENCY", b"RESET", name) == (":", 1)
    assert ours.run(b"LATENCY", b"HISTORY", name) == ("*", [])
    ours.run(b"CONFIG", b"SET", b"latency-monitor-threshold", b"0")
    ours.run(b"DEL", b"slow:l")
    ours.close()


ROWS = {((1024 << row) + (8 << row) - 1) // 1000 for row in range(32)}
"""Where rows of LATENCY HISTOGRAM end, microseconds: 1, 2, 4, 8, 16, 33, 66, 132, …"""


def test_histograms_count_every_call_up_to_their_last_row(pair: Pair) -> None:
    for server in (pair.redis, pair.ours):
        server.run(b"CONFIG", b"RESETSTAT")
        for number in range(100):
            server.run(b"GET", b"k")
            server.run(b"EVAL", b"for i = 1, ARGV[1] do end", b"0", b"%d" % (20_000 if number % 10 == 0 else 1))
        server.run(b"CONFIG", b"GET", b"port")
        kind, rows = server.run(b"LATENCY", b"HISTOGRAM", b"get", b"set", b"nosuch")
        assert (rows[0], len(rows)) == (("$", b"get"), 2)
        _, (_, calls, _, (inner_kind, buckets)) = rows[1]
        assert calls == (":", 100)
        assert kind == inner_kind
        bounds, counts = [bound for _, bound in buckets[::2]], [count for _, count in buckets[1::2]]
        assert set(bounds) <= ROWS
        assert bounds == sorted(bounds)
        assert counts == sorted(set(counts))
        assert counts[-1] == 100
        names = {name for _, name in server.run(b"LATENCY", b"HISTOGRAM")[1][::2]}
        assert {b"get", b"config|get"} <= names
        _, rows = server.run(b"LATENCY", b"HISTOGRAM", b"eval")
        _, (_, calls, _, (_, buckets)) = rows[1]
        assert calls == (":", 100)
        assert {bound for _, bound in buckets[::2]} <= ROWS
        assert buckets[-2][1] > 16  # above which rows are no powers of two any more


def heard(connection: Any, count: int) -> list[bytes]:
    """Lines of MONITOR without what differs: time, database and address."""
    lines = [connection.read() for _ in range(count)]
    for kind, line in lines:
        assert kind == "+"
        assert re.match(rb"\d+\.\d{6} \[\d+ (unix:[^]]+\.sock|lua)\] ", line), line
    return [line.partition(b"] ")[2] for _, line in lines]


def test_monitors_are_told_of_every_command_as_redis_tells_them(pair: Pair, peers: Any) -> None:
    monitors = [peer.connect() for peer in peers]
    assert [monitor.run(b"MONITOR") for monitor in monitors] == [("+", b"OK")] * 2
    pair.run(
        (b"SET", b"m\x00\r\n\t\a\b\\\"'", b"\xff\x7f ~"),
        (b"GET", b""),
        (b"NOSUCH", b"a"),
        (b"GET",),
        (b"MULTI",),
        (b"INCR", b"monitored"),
        (b"EXEC",),
        (b"CONFIG", b"GET", b"timeout"),
        (b"DEL", b"monitored"),
        (b"EVAL", b"return redis.call('GET', KEYS[1])", b"1", b"monitored"),
        (b"EVALSHA", b"x", b"0"),
        (b"EVAL", b"return 1", b"x"),
    )
    for server in (pair.redis, pair.ours):
        server.run(b"AUTH", b"default", b"secret")
        server.run(b"HELLO", b"3" if server.run(b"HELLO")[0] == "%" else b"2", b"AUTH", b"default", b"secret")
    lines = [heard(monitor, 13) for monitor in monitors]
    assert lines[1] == lines[0]
    for monitor in monitors:
        assert monitor.run(b"RESET") == ("+", b"RESET")
    pair.words("PING")
    for monitor in monitors:
        assert monitor.run(b"PING") == ("+", b"PONG")
        monitor.close()


def test_a_monitor_that_goes_is_told_no_more(our_peer: Any) -> None:
    first, second = our_peer.connect(), our_peer.connect()
    first.run(b"MONITOR")
    number = b"%d" % second.run(b"CLIENT", b"ID")[1]
    assert b"flags=O" in second.run(b"CLIENT", b"LIST")[1]
    first.close()
    deadline = time.monotonic() + 60
    while second.run(b"CLIENT", b"LIST")[1].count(b"flags=O") > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert b"flags=O" not in second.run(b"CLIENT", b"LIST", b"ID", number)[1]
    assert second.run(b"PING") == ("+", b"PONG")
    second.close()


def test_passwords_are_kept_from_the_log_wherever_they_stand(peers: Any) -> None:
    visitor = Pair(peers, 2)
    for server in (visitor.redis, visitor.ours):
        server.run(b"SLOWLOG", b"RESET")
        server.run(b"CONFIG", b"SET", b"slowlog-log-slower-than", b"0")
        server.run(*b"HELLO 2 SETNAME auth AUTH default secret".split())
        server.run(*b"HELLO 2 AUTH default other AUTH default secret".split())
        server.run(b"CONFIG", b"SET", b"slowlog-log-slower-than", b"-1")
        entries = server.run(b"SLOWLOG", b"GET", b"-1")[1]
        words = [word for entry in entries for _, word in entry[1][3][1]]
        assert {b"HELLO", b"(redacted)"} <= set(words)
        assert not {b"secret", b"other"} & set(words)
    visitor.close()
