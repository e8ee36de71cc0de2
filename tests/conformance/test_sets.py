"""The commands on sets answer as Redis 7.0 does."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from against_redis import (
    LENGTHS,
    PATTERNS,
    Commands,
    Keys,
    Pair,
    cased,
    command,
    run_random_sequences,
    some,
    words,
)
from durable import assert_same, contents, kill, serve
from hypothesis import strategies as st

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
# Few members, so that sets have some in common; integers of every width; some that are too long to be packed.
SMALL = st.integers(-6, 12).map(lambda number: str(number).encode())
MEMBERS = st.one_of(
    SMALL,
    SMALL,
    st.sampled_from([b"x", b"y", b"key:1", b"", b"\r\n", b"x" * 64, b"x" * 65, b"01", b"-0", b"1.5", b"\x00\xff"]),
    st.sampled_from([b"40000", b"-40000", b"3000000000", b"9223372036854775807", b"-9223372036854775808"]),
    st.integers(0, 2000).map(lambda number: str(number).encode()),
)
# Enough to leave the small forms, in one command.
MANY = st.sampled_from(
    [
        tuple(b"%d" % i for i in range(600)),
        tuple(b"m%d" % i for i in range(100)),
        tuple(b"%d" % (i * 7) for i in range(-150, 150)),
    ]
)


def sets(keys: Keys) -> list[Commands]:
    return [
        command("sadd", keys, some(MEMBERS, 1, 8)),
        command("sadd", keys, some(SMALL, 1, 8)),
        command("sadd", keys, MANY),
        command("srem", keys, some(MEMBERS, 1, 8)),
        command("srem", keys, some(SMALL, 1, 8)),
        command("srem", keys, MANY),
        command("smembers", keys),
        command("scard", keys),
        command("sismember", keys, MEMBERS),
        command("smismember", keys, some(MEMBERS)),
        command("smove", keys, keys, MEMBERS),
        command("sinter", some(keys)),
        command("sunion", some(keys)),
        command("sunion", some(keys, 4, 7)),
        command("sdiff", some(keys)),
        command("sinterstore", keys, some(keys)),
        command("sunionstore", keys, some(keys)),
        command("sdiffstore", keys, some(keys)),
        command("sintercard", words("1", "2", "3", "0", "-1", "x", ""), some(keys), words("", "LIMIT 2", "limit 0")),
        command("sintercard", words("1"), keys, words("LIMIT -1", "LIMIT x", "LIMIT", "NOPE 1", "LIMIT 1 LIMIT 2")),
        command("sscan", keys, st.just(b"0"), some(st.tuples(cased("match"), PATTERNS), 0, 1), words("COUNT 10000")),
        command("spop", keys, words("0", "99999", "-1", "x", "1 2")),
        command("srandmember", keys, words("0", "99999", "x", "-9223372036854775808", "1 2")),
        command("object", st.just(b"encoding"), keys),
    ]


OTHERS = [
    command("set", KEYS, MEMBERS),
    command("del", KEYS),
    command("rename", KEYS, KEYS),
    command("type", KEYS),
    command("expire", KEYS, st.just(b"1000")),
    command("ttl", KEYS),
    command("rpush", KEYS, MEMBERS),
]
ONE_KEY = st.just(b"a")
FAMILIES = {"one set": sets(ONE_KEY), "sets": sets(KEYS), "all": [*sets(KEYS), *sets(KEYS), *OTHERS]}


@LENGTHS
@pytest.mark.parametrize("family", FAMILIES)
def test_random_sequences_get_the_same_replies(pair: Pair, family: str, long: bool) -> None:
    run_random_sequences(pair, FAMILIES[family], long=long)


NAMES = """
    sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove srem sscan sunion
    sunionstore
"""
ARGUMENTS = st.one_of(KEYS, MEMBERS, PATTERNS, st.sampled_from([b"LIMIT", b"COUNT", b"MATCH", b"1", b"2"]))
ANYTHING = st.tuples(st.sampled_from([name.encode() for name in NAMES.split()]), st.lists(ARGUMENTS, max_size=5)).map(
    lambda parts: (parts[0], *parts[1])
)


def test_arbitrary_arguments_get_the_same_errors(pair: Pair) -> None:
    # A step of a scan that does not see everything gives any part of it: here the sets are small.
    run_random_sequences(pair, [ANYTHING, command("set", KEYS, MEMBERS)], examples=200, longest=20)


@pytest.fixture(autouse=True)
def empty(pair: Pair) -> None:
    pair.run((b"SELECT", b"0"), (b"FLUSHALL",))


# ---- by name ----------------------------------------------------------------------------------------------------


def numbers(count: int, prefix: bytes = b"") -> tuple[bytes, ...]:
    return tuple(prefix + b"%d" % i for i in range(count))


def members(reply: tuple[str, Any]) -> list[bytes]:
    kind, items = reply
    assert kind in "*~"
    return [item for _, item in items]


def test_encodings_change_where_redis_changes_them(pair: Pair) -> None:
    encoding = (b"OBJECT", b"ENCODING", b"s")
    pair.run(
        (b"SADD", b"s", *numbers(512)), encoding, (b"SADD", b"s", b"5"), encoding, (b"SADD", b"s", b"512"), encoding
    )
    pair.run((b"SREM", b"s", *numbers(400)), encoding, (b"SCARD", b"s"), (b"DEL", b"s"))
    pair.run((b"SADD", b"s", b"1", b"2"), encoding, (b"SADD", b"s", b"x"), encoding, (b"SREM", b"s", b"x"), encoding)
    pair.run(
        (b"SUNIONSTORE", b"s", b"s"), encoding, (b"SADD", b"t", b"y", b"1"), (b"SMOVE", b"t", b"s", b"y"), encoding
    )
    for size in (63, 64, 65, 130):
        pair.run((b"DEL", b"s"), (b"SADD", b"s", *numbers(size, b"m")), encoding, (b"SMEMBERS", b"s"), (b"SCARD", b"s"))
        pair.run((b"SISMEMBER", b"s", b"m62"), (b"SISMEMBER", b"s", b"m%d" % size))


def test_integers_come_in_ascending_order(pair: Pair) -> None:
    pair.run((b"SADD", b"s", b"300", b"-5", b"70000", b"0", b"-9223372036854775808", b"5000000000"))
    expected = [b"-9223372036854775808", b"-5", b"0", b"300", b"70000", b"5000000000"]
    for connection in (pair.redis, pair.ours):
        assert members(connection.run(b"SMEMBERS", b"s")) == expected


def test_every_member_is_popped_once(pair: Pair) -> None:
    for given in (numbers(300), numbers(40, b"m"), numbers(3000, b"m")):
        pair.run((b"SADD", b"s", *given))
        popped: list[bytes] = []
        for step in range(len(given)):
            if step % 3 == 0:
                popped.append(pair.ours.run(b"SPOP", b"s")[1])
            else:
                count = (len(given) // 50, len(given) // 7)[step % 2]
                popped += members(pair.ours.run(b"SPOP", b"s", b"%d" % count))
            left = len(given) - len(popped)
            assert pair.ours.run(b"SCARD", b"s") == (":", left)
            if left == 0:
                break
        assert sorted(popped) == sorted(given)
        assert pair.ours.run(b"EXISTS", b"s") == (":", 0)
        pair.redis.run(b"DEL", b"s")


def test_popping_replies_as_redis_does(pair: Pair) -> None:
    pair.words("SPOP s")
    pair.words("SPOP s 3")
    pair.words("SADD s 1")
    pair.words("SPOP s 0")
    pair.words("SPOP s")
    pair.words("EXISTS s")
    for setup in ("SADD s 1 2 3", "SADD s x y z"):
        pair.words(setup)
        for line in ("SPOP s 2", "SRANDMEMBER s 2", "SRANDMEMBER s -7", "SRANDMEMBER s"):
            redis, ours = (connection.run(*line.encode().split()) for connection in (pair.redis, pair.ours))
            assert (redis[0], len(redis[1])) == (ours[0], len(ours[1]))
        pair.words("DEL s")
    for line in ("SRANDMEMBER s", "SRANDMEMBER s 1", "SRANDMEMBER s -1", "SET k 1", "SRANDMEMBER k 1", "SPOP k"):
        pair.words(line)


@pytest.mark.parametrize(
    "given", [numbers(30), numbers(30, b"m"), numbers(400, b"m")], ids=["integers", "packed", "dict"]
)
def test_random_members_are_distinct_and_each_has_its_chance(pair: Pair, given: tuple[bytes, ...]) -> None:
    pair.ours.run(b"SADD", b"s", *given)
    seen: Counter[bytes] = Counter()
    for count in (1, 2, len(given) // 5, len(given) // 2, len(given) - 1):
        for _ in range(40):
            found = members(pair.ours.run(b"SRANDMEMBER", b"s", b"%d" % count))
            assert len(found) == count == len(set(found) & set(given))
            seen.update(found)
    assert set(seen) == set(given)
    # With repetitions: far from the mean by chance once in 10^9 runs.
    tosses = members(pair.ours.run(b"SRANDMEMBER", b"s", b"-%d" % (200 * len(given))))
    counts = Counter(tosses)
    assert len(tosses) == 200 * len(given)
    assert set(counts) == set(given)
    if len(given) == 30:
        assert all(100 < count < 320 for count in counts.values())
    pair.ours.run(b"DEL", b"s")


def test_a_large_set_is_scanned_whole_while_it_grows_and_shrinks(pair: Pair) -> None:
    pair.run((b"SADD", b"s", *numbers(1000, b"stays:")))
    for connection in (pair.redis, pair.ours):
        seen: set[bytes] = set()
        cursor, step = b"0", 0
        while step == 0 or cursor != b"0":
            (_, [(_, cursor), (_, found)]) = connection.run(b"SSCAN", b"s", cursor, b"MATCH", b"stays:*")
            seen |= {name for _, name in found}
            others = [b"other:%d" % ((step * 50 + i) % 4000) for i in range(50)]
            connection.run(b"SADD" if step < 60 else b"SREM", b"s", *others)
            step += 1
        assert seen == set(numbers(1000, b"stays:"))
        connection.run(b"DEL", b"s")


def test_large_sets_are_combined_as_in_redis(pair: Pair) -> None:
    pair.run(
        (b"SADD", b"a", *numbers(5000, b"m")), (b"SADD", b"b", *numbers(3000, b"m")), (b"SADD", b"c", *numbers(700))
    )
    pair.run((b"SADD", b"d", *numbers(200)), (b"SADD", b"d", *numbers(50, b"m")), (b"SADD", b"e", b"m4999", b"3"))
    for line in [
        "SINTER a b",
        "SINTER a b d",
        "SINTER c d",
        "SUNION a b c d",
        "SDIFF a b",
        "SDIFF e a b c",
        "SDIFF a b c d e",
        "SDIFF d c",
        "SDIFF a a",
        "SDIFF a missing",
        "SDIFF missing a",
        "SINTERCARD 2 a b",
        "SINTERCARD 2 a b LIMIT 100",
        "SUNIONSTORE a a c",
        "SCARD a",
        "SDIFFSTORE a a c b",
        "SMEMBERS a",
        "SINTERSTORE a c d",
        "OBJECT ENCODING a",
        "SMEMBERS a",
        "SINTERSTORE a c missing",
        "EXISTS a",
    ]:
        pair.words(line)


def test_a_destination_loses_its_type_and_its_expiry(pair: Pair) -> None:
    pair.words("SADD s 1 2")
    for line in ["SUNIONSTORE t s", "SINTERSTORE t s", "SDIFFSTORE t s missing"]:
        for before in ["SET t 1 EX 1000", "RPUSH t 1", "SADD t x"]:
            for step in ["DEL t", before, line, "TTL t", "SMEMBERS t"]:
                pair.words(step)
    for line in ["SUNIONSTORE t missing", "SINTERSTORE t s missing", "SDIFFSTORE t s s"]:
        for step in ["SET t 1", line, "EXISTS t"]:
            pair.words(step)
    for step in ["EXPIRE s 1000", "SADD s 3", "TTL s", "SMOVE s u 1", "TTL u", "SREM s 2 3", "TTL s"]:
        pair.words(step)


def test_every_key_must_be_a_set(pair: Pair) -> None:
    pair.words("SADD s 1")
    pair.words("SET k 1")
    for line in ["SINTER", "SUNION", "SDIFF", "SINTERCARD 3"]:
        for keys in ["s k missing", "missing k s", "missing s k", "k s s"]:
            pair.words(f"{line} {keys}")
    for line in ["SMOVE k s 1", "SMOVE s k 1", "SMOVE s k 2", "SMOVE missing k 1", "SMOVE s s 1", "SMOVE s s 2"]:
        pair.words(line)
    for line in ["SADD k 1", "SREM k 1", "SCARD k", "SMEMBERS k", "SISMEMBER k 1", "SSCAN k 0", "SPOP k 1"]:
        pair.words(line)


def test_sets_take_no_more_memory_than_in_redis(pair: Pair) -> None:
    for given in (numbers(3), numbers(100), numbers(3, b"m"), numbers(60, b"member:"), numbers(1000, b"member:")):
        pair.run((b"SADD", b"s", *given))
        (_, redis), (_, ours) = (connection.run(b"MEMORY", b"USAGE", b"s") for connection in (pair.redis, pair.ours))
        assert 0 < ours <= redis
        pair.words("DEL s")


def test_a_restart_leaves_what_chance_took_and_what_was_sorted(tmp_path: Path) -> None:
    chance = random.Random(5)
    keys = ["ints", "few", "many"]
    with serve(tmp_path) as (server, client):
        client.mset({f"w_{i}": chance.randrange(50) for i in range(0, 1000, 2)})
        client.sadd("ints", *range(500))
        client.sadd("few", *(f"m{i}" for i in range(60)))
        client.sadd("many", *(f"m{i}" for i in range(900)))
        for _ in range(60):
            key = chance.choice(keys)
            client.spop(key)
            client.spop(key, chance.randrange(5))
            client.smove(key, chance.choice(keys), client.srandmember(key) or b"none")
            client.execute_command("SUNIONSTORE", f"union:{key}", *chance.sample(keys, 2))
        client.spop("few", 10_000)
        client.execute_command("SORT", "ints", "BY", "w_*", "GET", "#", "GET", "w_*", "STORE", "sorted")
        client.execute_command("SORT", "many", "BY", "nosort", "STORE", "unsorted")
        client.execute_command("SORT", "few", "BY", "w_*", "STORE", "w_0")
        client.mset({f"w_{i}": -i for i in range(1000)})
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert_same(contents(client), before)


def test_a_long_reply_of_random_members_lets_others_in(pair: Pair, peers: Any) -> None:
    asking, other = (peers[1].connect() for _ in range(2))
    other.run(b"SADD", b"s", *numbers(100, b"m"))
    asking.send((b"SRANDMEMBER", b"s", b"-500000"), (b"PING",))
    assert other.run(b"PING") == ("+", b"PONG")
    # The set goes while it is asked: what it held is repeated to the end.
    assert other.run(b"DEL", b"s") == (":", 1)
    found = members(asking.read())
    assert len(found) == 500_000
    assert set(found) <= set(numbers(100, b"m"))
    assert asking.read() == ("+", b"PONG")
    other.run(b"SADD", b"s", *numbers(100, b"m"))
    asking.send((b"SRANDMEMBER", b"s", b"-9223372036854775807"))
    assert other.run(b"PING") == ("+", b"PONG")
    asking.close()
    assert other.run(b"MULTI") == ("+", b"OK")
    other.run(b"SRANDMEMBER", b"s", b"-5000")
    other.run(b"SRANDMEMBER", b"s", b"-9223372036854775807")
    (_, (few, (kind, refusal))) = other.run(b"EXEC")
    assert len(members(few)) == 5000
    assert (kind, refusal[:6]) == ("-", b"LIMIT ")
    other.close()
