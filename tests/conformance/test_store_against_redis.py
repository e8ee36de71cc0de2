"""The store's commands answer as Redis 7.0 does: random sequences of them, and every option and error by name."""

from __future__ import annotations

import time

import pytest
from against_redis import (
    ABSOLUTE,
    ABSOLUTE_MS,
    EXPIRE_OPTIONS,
    FAR,
    FARTHER,
    FIELDS,
    FLOATS,
    GETEX_OPTIONS,
    INTEGERS,
    KEYS,
    LENGTHS,
    NEARER,
    OFFSETS,
    PATTERNS,
    RELATIVE,
    RELATIVE_MS,
    RELATIVE_OPTIONS,
    SCAN_OPTIONS,
    SET_OPTIONS,
    VALUES,
    Command,
    Commands,
    Keys,
    Pair,
    cased,
    command,
    run_random_sequences,
    some,
    words,
)
from hypothesis import strategies as st


def strings(keys: Keys) -> list[Commands]:
    return [
        command("set", keys, VALUES),
        command("set", keys, VALUES, SET_OPTIONS),
        command("get", keys),
        command("getset", keys, VALUES),
        command("getdel", keys),
        command("getex", keys, GETEX_OPTIONS),
        command("setnx", keys, VALUES),
        command("setex", keys, RELATIVE, VALUES),
        command("psetex", keys, RELATIVE_MS, VALUES),
        command("mget", some(keys)),
        command("mset", some(st.tuples(keys, VALUES))),
        command("mset", some(keys, 2)),
        command("msetnx", some(st.tuples(keys, VALUES))),
        command("incr", keys),
        command("decr", keys),
        command("incrby", keys, INTEGERS),
        command("decrby", keys, INTEGERS),
        command("incrbyfloat", keys, FLOATS),
        command("append", keys, VALUES),
        command("strlen", keys),
        command("getrange", keys, INTEGERS, INTEGERS),
        command("substr", keys, INTEGERS, INTEGERS),
        command("setrange", keys, OFFSETS, VALUES),
    ]


def lists(keys: Keys) -> list[Commands]:
    return [
        command("lpush", keys, some(VALUES)),
        command("rpush", keys, some(VALUES, 1, 12)),
        command("lpushx", keys, some(VALUES)),
        command("rpushx", keys, some(VALUES)),
        command("lpop", keys),
        command("rpop", keys),
        command("lpop", keys, INTEGERS),
        command("rpop", keys, INTEGERS),
        command("llen", keys),
        command("lrange", keys, INTEGERS, INTEGERS),
        command("lindex", keys, INTEGERS),
        command("lset", keys, INTEGERS, VALUES),
        command("ltrim", keys, INTEGERS, INTEGERS),
        command("lrem", keys, INTEGERS, VALUES),
        command("linsert", keys, words("BEFORE", "after", "nope"), VALUES, VALUES),
    ]


def hashes(keys: Keys) -> list[Commands]:
    return [
        command("hset", keys, some(st.tuples(FIELDS, VALUES))),
        command("hset", keys, some(FIELDS, 2)),
        command("hmset", keys, some(st.tuples(FIELDS, VALUES))),
        command("hget", keys, FIELDS),
        command("hmget", keys, some(FIELDS)),
        command("hgetall", keys),
        command("hdel", keys, some(FIELDS)),
        command("hlen", keys),
        command("hexists", keys, FIELDS),
        command("hkeys", keys),
        command("hvals", keys),
        command("hincrby", keys, FIELDS, INTEGERS),
        command("hincrbyfloat", keys, FIELDS, FLOATS),
        command("hsetnx", keys, FIELDS, VALUES),
        command("hstrlen", keys, FIELDS),
        command(
            "hscan",
            keys,
            st.just(b"0"),
            some(st.tuples(cased("match"), PATTERNS), 0, 1),
            words("COUNT 1000", "COUNT 0"),
        ),
    ]


GENERIC = [
    command("del", some(KEYS)),
    command("unlink", some(KEYS)),
    command("exists", some(KEYS)),
    command("touch", some(KEYS)),
    command("type", KEYS),
    command("expire", KEYS, RELATIVE, RELATIVE_OPTIONS),
    command("pexpire", KEYS, RELATIVE_MS, RELATIVE_OPTIONS),
    command("expireat", KEYS, ABSOLUTE, EXPIRE_OPTIONS),
    command("pexpireat", KEYS, ABSOLUTE_MS, EXPIRE_OPTIONS),
    command("ttl", KEYS),
    command("pttl", KEYS),
    command("expiretime", KEYS),
    command("pexpiretime", KEYS),
    command("persist", KEYS),
    command("keys", PATTERNS),
    command("scan", st.just(b"0"), SCAN_OPTIONS),
    command("rename", KEYS, KEYS),
    command("renamenx", KEYS, KEYS),
    command("dbsize"),
    command("select", words("0", "1", "15", "16", "-1", "x")),
    command("flushdb", words("", "async", "SYNC", "now", "async async")),
    command("flushall", words("", "ASYNC", "nope")),
]
# Any arguments at all: arity, syntax and type errors.
NAMES = """
    set get getset getdel getex setnx setex mget mset incr incrby append strlen getrange setrange
    lpush lpop llen lrange lindex lset ltrim lrem linsert
    hset hget hmget hgetall hdel hlen hincrby hsetnx hscan
    del exists type expire ttl persist keys scan rename dbsize object memory touch echo
"""
ANYTHING = st.tuples(
    st.sampled_from([name.encode() for name in NAMES.split()]), st.lists(st.one_of(KEYS, VALUES, PATTERNS), max_size=5)
).map(lambda parts: (parts[0], *parts[1]))

# One key that mostly stays, so that its expiry is set again and again.
ONE_KEY = st.just(b"a")
MOMENTS = st.sampled_from([NEARER, FAR, FARTHER])
EXPIRY = [
    command("set", ONE_KEY, VALUES, words("", "KEEPTTL", "XX KEEPTTL GET")),
    command("set", ONE_KEY, VALUES, words("EX", "EXAT"), MOMENTS),
    command("getex", ONE_KEY, words("EXAT", "EX"), MOMENTS),
    command("getex", ONE_KEY, GETEX_OPTIONS),
    command("expireat", ONE_KEY, MOMENTS, EXPIRE_OPTIONS),
    command("expireat", ONE_KEY, MOMENTS, words("NX", "XX", "GT", "LT")),
    command("pexpireat", ONE_KEY, MOMENTS.map(lambda moment: moment + b"000"), words("NX", "XX", "GT", "LT")),
    command("expire", ONE_KEY, RELATIVE, RELATIVE_OPTIONS),
    command("persist", ONE_KEY),
    command("ttl", ONE_KEY),
    command("pexpiretime", ONE_KEY),
]

FAMILIES = {
    "expiry": EXPIRY,
    # With one key a value lives long enough to be changed in many ways, with many its type changes often.
    "one string": strings(ONE_KEY),
    "one list": lists(ONE_KEY),
    "one hash": hashes(ONE_KEY),
    "all": [*strings(KEYS), *lists(KEYS), *hashes(KEYS), *GENERIC],
}


def is_open_in_redis(command: Command) -> bool:
    """Replies that Redis does not promise, or that are known to differ (encodings, sizes, help texts)."""
    name = command[0].lower()
    if name in {b"object", b"memory"}:
        return True
    # A step of a scan that does not see everything gives any part of it.
    return name in {b"scan", b"hscan"} and b"1000" not in command and len(command) > 1


@LENGTHS
@pytest.mark.parametrize("family", FAMILIES)
def test_random_sequences_get_the_same_replies(pair: Pair, family: str, long: bool) -> None:
    run_random_sequences(pair, FAMILIES[family], long=long)


def test_arbitrary_arguments_get_the_same_errors(pair: Pair) -> None:
    commands = ANYTHING.filter(lambda command: not is_open_in_redis(command))
    run_random_sequences(pair, [commands], examples=200, longest=20)


@pytest.fixture(autouse=True)
def empty(pair: Pair) -> None:
    pair.run((b"SELECT", b"0"), (b"FLUSHALL",))


# ---- by name ----------------------------------------------------------------------------------------------------


def test_a_key_whose_time_is_past_is_gone(pair: Pair) -> None:
    for line in ["SET a 1", "EXPIREAT a 1", "EXISTS a", "SET a 1", "PEXPIRE a -1", "GET a", "SET a 1 EXAT 1", "GET a"]:
        pair.words(line)
    for line in ["SET a 1", "GETEX a PXAT 1", "EXISTS a", "SET b 1 PX 20"]:
        pair.words(line)
    time.sleep(0.05)
    for line in ["GET b", "TTL b", "TYPE b", "KEYS *", "RENAME b c", "PERSIST b", "SET b 1 XX", "DBSIZE"]:
        pair.words(line)


def test_writing_keeps_or_clears_the_expiry_as_in_redis(pair: Pair) -> None:
    writes = ["APPEND k 1", "INCR k", "INCRBYFLOAT k 1.5", "SETRANGE k 0 9", "GETSET k 1", "SET k 1 KEEPTTL", "SET k 1"]
    writes += ["SETNX k 1", "MSET k 1", "GETEX k", "GETEX k PERSIST", "RENAME k k", "SET k 2 XX GET"]
    for write in writes:
        for line in ["SET k 5 EX 10000", write, "TTL k"]:
            pair.words(line)


def test_relative_expiry_is_compared_with_the_present_one(pair: Pair) -> None:
    for option in ["NX", "XX", "GT", "LT", "XX GT", "XX LT"]:
        for present in ["PERSIST k", "EXPIRE k 5000"]:
            for seconds in ["1000", "9000"]:
                for line in ["SET k v", present, f"EXPIRE k {seconds} {option}", "TTL k"]:
                    pair.words(line)
                for line in ["SET k v", present, f"PEXPIRE k {seconds}000 {option}", "PTTL k"]:
                    pair.words(line)


def test_a_scan_sees_every_key_that_stays_while_the_table_grows_and_shrinks(pair: Pair) -> None:
    pair.run(*[(b"SET", b"stays:%d" % i, b"v") for i in range(500)])
    for connection in (pair.redis, pair.ours):
        seen: set[bytes] = set()
        cursor, step = b"0", 0
        while step == 0 or cursor != b"0":
            (_, [(_, cursor), (_, found)]) = connection.run(b"SCAN", cursor, b"MATCH", b"stays:*", b"COUNT", b"7")
            seen |= {name for _, name in found}
            for i in range(50):
                name = b"other:%d" % ((step * 50 + i) % 4000)
                connection.run(b"SET", name, b"v") if step < 60 else connection.run(b"DEL", name)
            step += 1
        assert seen == {b"stays:%d" % i for i in range(500)}


def test_a_large_hash_is_scanned_whole(pair: Pair) -> None:
    fields = [part for i in range(1000) for part in (b"f%d" % i, b"v%d" % i)]
    pair.run((b"HSET", b"h", *fields), (b"HLEN", b"h"), (b"HGETALL", b"h"), (b"OBJECT", b"ENCODING", b"h"))
    for connection in (pair.redis, pair.ours):
        seen: dict[bytes, bytes] = {}
        cursor = b""
        while cursor != b"0":
            (_, [(_, cursor), (_, found)]) = connection.run(b"HSCAN", b"h", cursor or b"0")
            values = [value for _, value in found]
            seen |= dict(zip(values[::2], values[1::2], strict=True))
        assert seen == {b"f%d" % i: b"v%d" % i for i in range(1000)}


def test_long_lists_agree_at_both_ends_and_in_the_middle(pair: Pair) -> None:
    pair.run((b"RPUSH", b"l", *[b"%d" % i for i in range(2000)]), (b"LPUSH", b"l", *[b"%d" % -i for i in range(500)]))
    for line in ["LRANGE l 0 -1", "LINDEX l 1234", "LINSERT l BEFORE 700 x", "LINSERT l AFTER 701 y", "LREM l -3 5"]:
        pair.words(line)
    for line in ["LTRIM l 300 -301", "LRANGE l 0 -1", "LPOP l 400", "RPOP l 400", "LLEN l", "LTRIM l 1 0", "EXISTS l"]:
        pair.words(line)


def test_large_values_come_back_whole(pair: Pair) -> None:
    large = bytes(range(256)) * 20_000
    commands: list[Command] = [
        (b"SET", b"k", large),
        (b"GET", b"k"),
        (b"APPEND", b"k", large),
        (b"STRLEN", b"k"),
        (b"GET", b"k"),
        (b"SETRANGE", b"k", b"70000", b"changed"),
        (b"GETRANGE", b"k", b"69990", b"70020"),
        (b"GETSET", b"k", b"x"),
        (b"RPUSH", b"l", large, large[1:]),
        (b"LRANGE", b"l", b"0", b"-1"),
        (b"LPOP", b"l"),
        (b"LPOP", b"l"),
        (b"HSET", b"h", b"f", large),
        (b"HGETALL", b"h"),
        (b"HSET", b"h", b"f", b"small"),
        (b"HGET", b"h", b"f"),
    ]
    # One by one: with large replies unread our server stops reading requests, where Redis buffers without bound.
    for large_command in commands:
        pair.run(large_command)


def test_introspection_of_values_agrees(pair: Pair) -> None:
    setup = ["SET int 12", "SET large 123456", "SET short hello", "RPUSH list a b", "HSET hash f v", "SET grown a"]
    for line in [*setup, "APPEND grown b"]:
        pair.words(line)
    pair.run((b"SET", b"raw", b"x" * 45), (b"SET", b"embedded", b"x" * 44), (b"HSET", b"wide", b"f", b"x" * 65))
    for key in ["int", "large", "short", "list", "hash", "grown", "raw", "embedded", "wide", "missing"]:
        for line in [f"OBJECT ENCODING {key}", f"TYPE {key}"]:
            pair.words(line)
    for line in ["OBJECT REFCOUNT int", "OBJECT REFCOUNT large", "OBJECT REFCOUNT list", "OBJECT REFCOUNT missing"]:
        pair.words(line)
    errors = [
        "OBJECT",
        "OBJECT ENCODING",
        "OBJECT ENCODING a b",
        "OBJECT nope",
        "OBJECT HELP x",
        "MEMORY USAGE missing",
    ]
    for line in [
        *errors,
        "MEMORY",
        "MEMORY USAGE",
        "MEMORY USAGE int SAMPLES",
        "MEMORY USAGE int SAMPLES -1",
        "MEMORY nope",
    ]:
        pair.words(line)
    assert pair.ours.run(b"MEMORY", b"USAGE", b"list")[1] > 0


def test_a_random_key_is_one_of_those_there(pair: Pair) -> None:
    pair.words("RANDOMKEY")
    pair.words("SET only 1")
    pair.words("RANDOMKEY")
    pair.words("SET other 1")
    assert pair.ours.run(b"RANDOMKEY")[1] in {b"only", b"other"}


def test_cursors_are_read_as_in_redis(pair: Pair) -> None:
    for cursor in ["x", "-1", "+0", "18446744073709551615", "18446744073709551616", "1.5", "0x"]:
        pair.words(f"HSCAN missing {cursor}")
        pair.words(f"SCAN {cursor} COUNT 1000")
    pair.words("SCAN 0 COUNT")
    pair.words("SCAN 0 NOPE 1")
    pair.words("HSCAN missing 0 NOPE 1")
