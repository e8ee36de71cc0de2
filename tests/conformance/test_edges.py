"""Every command, with the edges of numbers and lengths in the place of every argument, is answered as by Redis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import redis
from against_redis import Command, Pair
from compatibility import documented

EDGES = [
    b"",
    b"0",
    b"-1",
    b"1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551615",
    b"18446744073709551616",
    b"4294967295",
    b"4294967296",
    b"2147483648",
    b"536870912",
    b"1e400",
    b"-inf",
    b"nan",
    b"0x10",
    b" 1",
    b"1 ",
    b"+1",
    b"00",
    b"1.0",
    b"\x00",
    b"x" * 300,
]
# They end or change a connection or a server, wait, tell of times or of the process, or differ by intent.
APART = frozenset(
    (
        "shutdown",
        "debug",
        "monitor",
        "sync",
        "psync",
        "replicaof",
        "slaveof",
        "failover",
        "quit",
        "reset",
        "client",
        "select",
        "swapdb",
        "config",
        "acl",
        "auth",
        "hello",
        "command",
        "info",
        "time",
        "lastsave",
        "latency",
        "slowlog",
        "memory",
        "object",
        "save",
        "bgsave",
        "bgrewriteaof",
        "subscribe",
        "psubscribe",
        "ssubscribe",
        "unsubscribe",
        "punsubscribe",
        "sunsubscribe",
        "pubsub",
        "multi",
        "exec",
        "discard",
        "watch",
        "unwatch",
        "script",
        "eval",
        "evalsha",
        "eval_ro",
        "evalsha_ro",
        "module",
        "role",
        "lolwut",
        "wait",
        "randomkey",
        "keys",
        "scan",
        "dump",
        "sscan",
        "hscan",
        "zscan",
        "restore",
        "migrate",
        "flushall",
        "flushdb",
        "function",
        "fcall",
        "fcall_ro",
        "srandmember",
        "spop",
        "hrandfield",
        "zrandmember",
        "dbsize",
        "expiretime",
        "pexpiretime",
        "ttl",
        "pttl",
        "blpop",
        "brpop",
        "brpoplpush",
        "blmove",
        "blmpop",
        "bzpopmin",
        "bzpopmax",
        "bzmpop",
    )
)


# With these, large offsets make strings of hundreds of megabytes.
BY_BITS = ("setbit", "bitfield", "bitfield_ro")
OFFSETS = {b"4294967295", b"4294967296", b"2147483648", b"536870912"}
# They take the further argument of Redis 7.2, WITHSCORE: with one more than Redis 7.0 takes, replies differ.
LONGER = ("zrank", "zrevrank")
KEYS = (b"string", b"list", b"hash", b"set", b"zset", b"missing")


def fill(pair: Pair) -> None:
    """A key of each type, and nothing else."""
    pair.run(
        (b"FLUSHALL",),
        (b"SET", b"string", b"12"),
        (b"RPUSH", b"list", b"a", b"b", b"1"),
        (b"HSET", b"hash", b"f", b"v", b"n", b"1"),
        (b"SADD", b"set", b"a", b"b", b"1"),
        (b"ZADD", b"zset", b"1", b"a", b"2", b"b"),
    )


def names(peers: Any) -> list[str]:
    """Commands that both servers have, without subcommands."""
    found: list[set[str]] = []
    for peer in peers:
        with redis.Redis(unix_socket_path=str(peer.unix_path)) as client:
            found.append(set(documented(client)))
    return sorted(name for name in found[0] & found[1] if "|" not in name and name not in APART)


def requests(name: str) -> Iterator[Command]:
    """All arguments the same edge; then a key in the first place and an edge in one of the others."""
    most = 1 if name in LONGER else 4
    edges = [edge for edge in EDGES if name not in BY_BITS or edge not in OFFSETS]
    for edge in edges:
        for count in range(most + 1):  # of arguments behind the key, or from it on
            yield (name.encode(), *[edge] * count)
    for key in KEYS:
        for count in range(1, most + 1):
            for at in range(count):
                for edge in edges:
                    others = [b"1"] * count
                    others[at] = edge
                    yield (name.encode(), key, *others)


def test_edges_of_arguments_get_the_same_replies(pair: Pair, peers: Any) -> None:
    different: list[str] = []
    total = 0
    for name in names(peers):
        fill(pair)
        rest = iter(requests(name))
        while chunk := list(itertools.islice(rest, 100)):
            try:
                pair.run(*chunk)
                total += len(chunk)
            except AssertionError as error:
                different.append(str(error).replace("x" * 300, "x…")[:400])
                break
    assert total > 100_000
    assert not different, "\n".join(different)
