"""All of a large hash, set or list is replied in slices, as one: as Redis replies it, with nothing in between."""

from __future__ import annotations

from typing import Any

import pytest
from against_redis import Pair

PARTS = 20_000
LINES = ["HGETALL h", "HKEYS h", "HVALS h", "SMEMBERS s", "SMEMBERS i", "LRANGE l 0 -1", "LRANGE l 7 -9000"]


def fill(connection: Any) -> None:
    connection.run(b"FLUSHALL")
    for at in range(0, PARTS, 1000):
        numbers = [b"%d" % n for n in range(at, at + 1000)]
        connection.run(b"HSET", b"h", *[part for n in numbers for part in (b"f" + n, b"v" + n)])
        connection.run(b"SADD", b"s", *[b"m" + n for n in numbers])
        connection.run(b"RPUSH", b"l", *numbers)
    connection.run(b"SADD", b"i", *[b"%d" % n for n in range(PARTS)])


def test_replies_are_those_of_redis(pair: Pair) -> None:
    for connection in (pair.redis, pair.ours):
        fill(connection)
    pair.run(*[part for line in LINES for part in (tuple(line.encode().split()), (b"ECHO", b"behind"))])
    for line in LINES:
        pair.words(line)
    # In a transaction the order of what has none is not compared: what else it holds is.
    pair.run((b"MULTI",), *[tuple(line.encode().split()) for line in LINES[-2:]], (b"DBSIZE",), (b"EXEC",))
    pair.words("EVAL return(redis.call('lrange','l',0,-1)) 0")


@pytest.mark.parametrize("line", LINES)
def test_who_changes_it_meanwhile_waits_and_who_leaves_does_no_harm(our_peer: Any, line: str) -> None:
    asking, other = (our_peer.connect() for _ in range(2))
    fill(asking)
    words = tuple(line.encode().split())
    whole = len(asking.run(*words)[1])
    asking.send(words, (b"DBSIZE",))
    other.send((b"DEL", words[1]))
    assert len(asking.read()[1]) == whole
    assert asking.read()[1] in (3, 4)
    assert other.read() == (":", 1)
    fill(asking)
    for times in range(6):
        leaving = our_peer.connect()
        leaving.send(words, (b"ECHO", b"never read"))
        if times % 2:
            leaving.read()
        leaving.close()
    assert len(asking.run(*words)[1]) == whole
    asking.close()
    other.close()
