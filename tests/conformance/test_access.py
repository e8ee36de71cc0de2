"""What counts as a use of a key: with counters that grow by one, both servers must count the same uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from against_redis import Pair

USES = """
SET s 100000|GET s|GETSET s 100001|SET s 100002 KEEPTTL|SET s 100003 XX|SET s 100004 NX|SET s 100005 GET
STRLEN s|GETRANGE s 0 1|MGET s s|MSET s 100006|INCR s|INCRBY s 4|INCRBYFLOAT s 1.5|APPEND s 0|SETRANGE s 0 7
SUBSTR s 0 1|GETEX s|GETEX s EX 1000|GETEX s PERSIST|EXISTS s|TYPE s|TTL s|PTTL s|EXPIRETIME s
OBJECT ENCODING s|OBJECT REFCOUNT s|TOUCH s|EXPIRE s 1000|PERSIST s|SETNX s 1|RENAME s t|RENAME t s
RENAMENX s t|RENAMENX t s|COPY s t|GETDEL t|SCAN 0|KEYS *|DBSIZE|MSETNX u 1 s 2|MEMORY USAGE s|LRANGE s 0 -1
HGET s f|RPUSH l a b c d e f g h|LPUSH l z|LRANGE l 0 -1|LLEN l|LINDEX l 0|LSET l 0 y|LPOP l|RPOP l 2
LREM l 0 a|LTRIM l 0 3|LINSERT l BEFORE b x|LPUSHX l q|HSET h f 1 g 2|HGET h f|HGETALL h|HINCRBY h f 1
HINCRBYFLOAT h f 1.5|HDEL h g|HEXISTS h f|HKEYS h|HLEN h|HMGET h f|HSETNX h f 2|HSTRLEN h f|HVALS h|HSCAN h 0
HRANDFIELD h|SADD c a b c|SISMEMBER c a|SMEMBERS c|SCARD c|SREM c a|SRANDMEMBER c 1|SMISMEMBER c a b
SUNION c c|SINTER c c|SDIFF c d|SSCAN c 0|ZADD z 1 a 2 b|ZSCORE z a|ZRANGE z 0 -1|ZCARD z|ZRANK z b
ZINCRBY z 1 a|ZCOUNT z 0 9|ZREM z a|ZSCAN z 0|GETBIT s 1|SETBIT s 1 1|BITCOUNT s|BITPOS s 1|SORT l ALPHA
"""
KEYS = ("s", "t", "l", "h", "c", "z")


@pytest.fixture
def by_frequency(pair: Pair) -> Iterator[Pair]:
    settings = {
        "maxmemory-policy": ("allkeys-lfu", "noeviction"),
        "lfu-log-factor": ("0", "10"),
        "lfu-decay-time": ("0", "1"),
    }
    pair.words("FLUSHALL")
    for name, (wanted, _) in settings.items():
        pair.words(f"CONFIG SET {name} {wanted}")
    yield pair
    for name, (_, usual) in settings.items():
        pair.words(f"CONFIG SET {name} {usual}")


def test_the_same_commands_count_as_uses(by_frequency: Pair) -> None:
    before = dict.fromkeys(KEYS, (0, 0))
    unlike = []
    for line in USES.replace("\n", "|").strip("|").split("|"):
        words = tuple(word.encode() for word in line.split())
        for connection in (by_frequency.redis, by_frequency.ours):
            connection.run(*words)
        for key in KEYS:
            asked = (b"OBJECT", b"FREQ", key.encode())
            redis, ours = (side.run(*asked)[1] or 0 for side in (by_frequency.redis, by_frequency.ours))
            grown = (redis - before[key][0], ours - before[key][1])
            if grown[0] != grown[1]:
                unlike.append(f"{line}: {key} grows by {grown[0]} in Redis, {grown[1]} here")
            before[key] = (redis, ours)
    assert not unlike, "\n".join(unlike)
