"""DUMP and RESTORE against the real Redis: what one server dumps the other restores, whatever the value and its form;
what is damaged is refused, and the server lives on."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from against_redis import KEYS, SLOW_IS_FINE, Pair, command, run_random_sequences, some, words
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sets import sets
from test_sorted_sets import adding, algebra, popping, removing
from test_store_against_redis import hashes, lists, strings

POLYNOMIAL = 0x95AC9329AC4BC9B5


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = _table()


def with_footer(body: bytes, version: int = 10) -> bytes:
    """The payload of DUMP around type and value: a version and Jones' CRC-64."""
    body += struct.pack("<H", version)
    value = 0
    for byte in body:
        value = value >> 8 ^ CRC_TABLE[(value ^ byte) & 0xFF]
    return body + struct.pack("<Q", value)


def reader_of(kind: str) -> tuple[bytes, ...]:
    return {
        "string": (b"GET", b"k"),
        "list": (b"LRANGE", b"k", b"0", b"-1"),
        "set": (b"SMEMBERS", b"k"),
        "zset": (b"ZRANGE", b"k", b"0", b"-1", b"WITHSCORES"),
        "hash": (b"HGETALL", b"k"),
        "stream": (b"XRANGE", b"k", b"-", b"+"),
    }[kind]


def check_moved(pair: Pair) -> None:
    """Every key is dumped by each server, restored by the other beside what is there, and the same then."""
    for kind_key in sorted(pair.redis.run(b"KEYS", b"*")[1]):
        key = kind_key[1]
        theirs, ours = pair.redis.run(b"DUMP", key)[1], pair.ours.run(b"DUMP", key)[1]
        moved = b"moved:" + key
        assert pair.redis.run(b"RESTORE", moved, b"0", ours) == ("+", b"OK"), (key, ours)
        assert pair.ours.run(b"RESTORE", moved, b"0", theirs) == ("+", b"OK"), (key, theirs)
        for server in (pair.redis, pair.ours):
            digests = server.run(b"DEBUG", b"DIGEST-VALUE", key, moved)[1]
            assert digests[0] == digests[1], key
            server.run(b"DEL", moved)


STORED = [
    *(strings(KEYS) + lists(KEYS) + hashes(KEYS) + sets(KEYS)),
    *(adding(KEYS) + removing(KEYS) + popping(KEYS) + algebra(KEYS)),
]


@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_commands_have_made_moves_both_ways(pair: Pair, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(st.lists(st.one_of(*STORED), min_size=5, max_size=60))
    def run(sequence: list[tuple[bytes, ...]]) -> None:
        pair.run((b"SELECT", b"0"), (b"FLUSHALL",))
        for sent in sequence:
            for server in (pair.redis, pair.ours):
                server.run(*sent)
        keys = [key for _, key in pair.redis.run(b"KEYS", b"*")[1]]
        for key in keys:  # random pops may have left other members
            if pair.redis.run(b"DUMP", key)[1] is not None and pair.ours.run(b"EXISTS", key) == (":", 1):
                pair.ours.run(b"RESTORE", key, b"0", pair.redis.run(b"DUMP", key)[1], b"REPLACE")
            else:
                pair.redis.run(b"DEL", key)
            for server in (pair.redis, pair.ours):
                server.run(b"PERSIST", key)
        check_moved(pair)

    run()


def forms() -> Iterator[tuple[str, list[tuple[bytes, ...]]]]:
    """Commands that make the key k, for every form in which Redis keeps a type."""
    chance = random.Random(3)
    texts = [
        b"%d" % n
        for n in (0, 1, 12, 13, -1, 127, 128, -128, 32767, -32768, 8388607, 2**31 - 1, -(2**31), 2**40, -(2**63))
    ]
    texts += [b"", b"x", b"y" * 63, b"z" * 64, b"abc" * 50, b"w" * 5000, chance.randbytes(300), b"01", b"-0", b"2" * 25]
    for text in [*texts, b"v" * 100_000, chance.randbytes(100_000)]:
        yield "string", [(b"SET", b"k", text)]
    yield "string", [(b"SETRANGE", b"k", b"30", b"end")]
    yield "list", [(b"RPUSH", b"k", *texts)]
    yield "list", [(b"RPUSH", b"k", *(b"element:%d" % n for n in range(3000)))]
    yield "list", [(b"RPUSH", b"k", b"a", chance.randbytes(20_000), b"b" * 20_000, b"c")]
    for size in (1, 10, 600):
        for step in (1, 300, 10**8, 10**15):
            yield "set", [(b"SADD", b"k", *(b"%d" % (n * step - 5) for n in range(size)))]
        yield "set", [(b"SADD", b"k", *(b"member:%d" % n for n in range(size)))]
        yield "hash", [(b"HSET", b"k", *(part for n in range(size) for part in (b"field:%d" % n, b"%d" % (n * n))))]
        yield "zset", [(b"ZADD", b"k", *(part for n in range(size) for part in (b"%.17g" % (n / 3), b"m:%d" % n)))]
    yield "hash", [(b"HSET", b"k", *(part for n, text in enumerate(texts) for part in (b"%d" % n, text)))]
    yield "hash", [(b"HSET", b"k", b"small", b"z" * 70)]
    yield "zset", [(b"ZADD", b"k", b"inf", b"a", b"-inf", b"b", b"0", b"c", b"-1.5", b"", b"1e300", b"e", b"3", b"7")]
    yield "zset", [(b"ZADD", b"k", b"1", b"m" * 70)]
    for size in (1, 10, 600):
        yield "stream", list(stream(size))
    yield "stream", [*stream(3), *((b"XDEL", b"k", b"%d-1" % n) for n in (1, 2, 3))]
    yield "stream", [(b"XGROUP", b"CREATE", b"k", b"group", b"0", b"MKSTREAM")]


def stream(size: int) -> Iterator[tuple[bytes, ...]]:
    for n in range(1, size + 1):
        other = (b"other", b"w" * (n % 70)) if n % 3 == 0 else ()
        yield (b"XADD", b"k", b"%d-1" % n, b"number", b"%d" % (n * n - 5), *other)
    yield (b"XDEL", b"k", b"%d-1" % (size // 2))


def groups(size: int) -> Iterator[tuple[bytes, ...]]:
    """Two groups: one with pending entries of two consumers, of which one is deleted, and one without any."""
    yield (b"XGROUP", b"CREATE", b"k", b"busy", b"0")
    for name, count in ((b"bob", b"3"), (b"alice", b"%d" % size)):
        yield (b"XREADGROUP", b"GROUP", b"busy", name, b"COUNT", count, b"STREAMS", b"k", b">")
    yield (b"XACK", b"k", b"busy", b"1-1", b"5-1")
    yield (b"XDEL", b"k", b"2-1")
    yield (b"XGROUP", b"CREATE", b"k", b"idle", b"$", b"ENTRIESREAD", b"%d" % size)


@pytest.mark.parametrize("size", [1, 10, 600])
def test_what_groups_of_a_stream_know_moves_both_ways(pair: Pair, size: int) -> None:
    """All that XINFO tells but the trees inside, which each server builds in its own way."""
    for one, other in ((pair.redis, pair.ours), (pair.ours, pair.redis)):
        for server in (one, other):
            server.run(b"FLUSHALL")
        for sent in (*stream(size), *groups(size)):
            one.run(*sent)
        payload = one.run(b"DUMP", b"k")[1]
        assert other.run(b"RESTORE", b"k", b"0", payload) == ("+", b"OK")
        told = [server.run(b"XINFO", b"STREAM", b"k", b"FULL", b"COUNT", b"0") for server in (one, other)]
        assert without_trees(told[0]) == without_trees(told[1])
        for server in (one, other):  # and it goes on
            assert server.run(b"XADD", b"k", b"9999-*", b"f", b"v") == ("$", b"9999-0")


def without_trees(told: Any) -> list[Any]:
    kind, fields = told
    pairs = fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True)
    return [kind, *((name, value) for name, value in pairs if b"radix-tree" not in str(name).encode())]


@pytest.mark.parametrize(("limits", "compress"), [("512", "yes"), ("0", "no")])
def test_every_form_moves_both_ways(pair: Pair, limits: str, compress: str) -> None:
    names = ("hash-max-listpack-entries", "zset-max-listpack-entries", "set-max-intset-entries")
    before = [pair.redis.run(b"CONFIG", b"GET", name.encode())[1] for name in names]
    for name in names:
        pair.redis.run(b"CONFIG", b"SET", name.encode(), limits.encode())
    pair.words(f"CONFIG SET rdbcompression {compress}")
    try:
        for kind, commands in forms():
            pair.words("FLUSHALL")
            pair.run(*commands)
            check_moved(pair)
            theirs = pair.redis.run(b"DUMP", b"k")[1]
            pair.run((b"DEL", b"k"), (b"RESTORE", b"k", b"0", theirs), (b"TYPE", b"k"), reader_of(kind))
    finally:
        pair.words("CONFIG SET rdbcompression yes")
        for name, told in zip(names, before, strict=True):
            value = (
                dict(told)[("$", name.encode())]
                if isinstance(told[0], tuple) and isinstance(told[0][1], tuple)
                else told[1]
            )
            pair.redis.run(b"CONFIG", b"SET", name.encode(), value[1])


# Forms that Redis 7.0 reads and no longer writes, or that 7.2 writes, by hand from their published descriptions.
def ziplist(*entries: bytes) -> bytes:
    body, before, last = b"", 0, 10
    for entry in entries:
        last = 10 + len(body)
        packed = (bytes([before]) if before < 254 else b"\xfe" + struct.pack("<I", before)) + entry
        body, before = body + packed, len(packed)
    return struct.pack("<IIH", 11 + len(body), last, len(entries)) + body + b"\xff"


def string(data: bytes) -> bytes:
    assert len(data) < 1 << 14
    return struct.pack(">H", 0x4000 | len(data)) + data


A, B, ONE, BIG = b"\x01a", b"\x01b", b"\xf2", b"\xd0\x00\x00\x01\x00"
LONG = b"\x41\x2c" + b"l" * 300
OLDER = {
    "list of a ziplist": (10, string(ziplist(A, ONE, BIG, b"\xfe\x80", b"\xf0\x01\x02\x83", b"\xc0\x00\x80",
                                             LONG, b"\xe0" + b"\x01" * 8, b"\x80\x00\x00\x00\x02zz"))),
    "quicklist of ziplists": (14, b"\x02" + string(ziplist(A, B)) + string(ziplist(LONG, A))),
    "hash of a ziplist": (13, string(ziplist(A, ONE, B, BIG))),
    "zset of a ziplist": (12, string(ziplist(A, ONE, B, b"\x031.5"))),
    "zset with scores as text": (3, b"\x03\x01a\x011\x01b\xff\x01c\xfe"),
    "hash of a zipmap": (9, string(b"\x02\x01a\x01\x00v\x02bb\x03\x02www\x00\x00\xff")),
}  # fmt: skip


def test_forms_of_older_versions_are_read_alike(pair: Pair) -> None:
    for name, (kind, value) in OLDER.items():
        pair.words("FLUSHALL")
        for version in (1, 6, 9, 10):
            payload = with_footer(bytes([kind]) + value, version)
            assert pair.run((b"RESTORE", b"k", b"0", payload, b"REPLACE")) == [("+", b"OK")], name
        kind_name = pair.words("TYPE k")[1].decode()
        pair.run(reader_of(kind_name))
        check_moved(pair)


def test_a_set_of_a_later_version_is_read(our_peer: Any) -> None:
    listpack = b"\x0e\0\0\0\x02\0\x81a\x02\x81b\x02\xff"
    listpack = struct.pack("<I", len(listpack)) + listpack[4:]
    connection = our_peer.connect()
    connection.run(b"FLUSHALL")
    payload = with_footer(b"\x14" + string(listpack), 11)
    assert connection.run(b"RESTORE", b"k", b"0", payload) == ("+", b"OK")
    assert sorted(connection.run(b"SMEMBERS", b"k")[1]) == [("$", b"a"), ("$", b"b")]
    kind, text = connection.run(b"RESTORE", b"k2", b"0", with_footer(b"\x14" + string(listpack), 12))
    assert (kind, text) == ("-", b"ERR DUMP payload version or checksum are wrong")
    connection.close()


PAYLOADS = st.sampled_from([
    with_footer(b"\x00\x01v"), with_footer(b"\x00\xc1\x01\x02"), with_footer(b"\x02\x02\x01a\x01b"),
    with_footer(b"\x00\x01v")[:-1] + b"x", with_footer(b"\x00\x01v", 12), b"", b"short", with_footer(b"")[:9],
])  # fmt: skip
RESTORE_OPTIONS = some(
    words(
        "REPLACE",
        "replace",
        "ABSTTL",
        "IDLETIME 100",
        "IDLETIME -1",
        "IDLETIME x",
        "FREQ 10",
        "FREQ 256",
        "FREQ",
        "NOPE",
    ),
    0,
    3,
)
TIMES = st.sampled_from([b"0", b"100000", b"-1", b"x", b"1", b"4000000000000"])
COMMANDS = [
    command("restore", KEYS, TIMES, PAYLOADS, RESTORE_OPTIONS),
    command("restore", KEYS, st.just(b"0"), PAYLOADS),
    command("restore", KEYS, st.sampled_from([b"0", b"4000000000000"]), PAYLOADS, words("ABSTTL", "ABSTTL REPLACE")),
    command("set", KEYS, st.just(b"x"), words("", "EX 1000")),
    command("get", KEYS),
    command("ttl", KEYS),
    command("del", KEYS),
    command("type", KEYS),
]


def test_random_options_agree(pair: Pair) -> None:
    pair.words("DEBUG SET-ACTIVE-EXPIRE 0")
    try:
        run_random_sequences(pair, COMMANDS, examples=100, longest=30)
    finally:
        pair.words("DEBUG SET-ACTIVE-EXPIRE 1")


def test_what_keyspace_events_tell_agrees(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("CONFIG SET notify-keyspace-events KEA")
    payload = with_footer(b"\x00\x01v")
    listeners = [peer.connect() for peer in pair.peers]
    for listener in listeners:
        listener.run(b"PSUBSCRIBE", b"__key*__:*")
    pair.run((b"RESTORE", b"k", b"0", payload), (b"RESTORE", b"k", b"0", payload), (b"DUMP", b"k"))
    pair.run(
        (b"RESTORE", b"k", b"100000", payload, b"REPLACE"), (b"RESTORE", b"k", b"1", payload, b"REPLACE", b"ABSTTL")
    )
    pair.words("SET end 1")
    told = [[listener.read() for _ in range(8)] for listener in listeners]
    for listener in listeners:
        listener.close()
    pair.words('CONFIG SET notify-keyspace-events ""')
    assert told[0] == told[1]


def damaged(payload: bytes, chance: random.Random) -> bytes:
    """The payload with some bytes changed, cut out or put in, and a checksum that is right again."""
    body = bytearray(payload[:-10])
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(body))
        change = chance.randrange(4)
        if change == 0:
            body[at] = chance.randrange(256)
        elif change == 1:
            body[at] ^= 1 << chance.randrange(8)
        elif change == 2:
            del body[at : at + chance.choice([1, 2, 8])]
        else:
            body[at:at] = chance.randbytes(chance.choice([1, 2, 8]))
        if not body:
            break
    return with_footer(bytes(body))


@pytest.mark.parametrize("rounds", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_payloads_are_read_or_refused(pair: Pair, rounds: int) -> None:
    chance = random.Random(rounds)
    payloads = [with_footer(bytes([kind]) + value) for kind, value in OLDER.values()]
    for _, commands in forms():
        pair.redis.run(b"FLUSHALL")
        for sent in commands:
            pair.redis.run(*sent)
        payload = pair.redis.run(b"DUMP", b"k")[1]
        if len(payload) < 3000:
            payloads.append(payload)
    pair.ours.run(b"FLUSHALL")
    refused = 0
    for payload in payloads:
        for _ in range(rounds):
            kind, text = pair.ours.run(b"RESTORE", b"k", b"0", damaged(payload, chance), b"REPLACE")
            assert kind == "+" or text.startswith(b"ERR Bad data format: byte "), (kind, text)
            refused += kind == "-"
    assert refused > rounds
    assert pair.ours.run(b"PING") == ("+", b"PONG")


def test_a_payload_that_promises_more_than_it_holds_is_refused_at_once(our_peer: Any) -> None:
    connection = our_peer.connect()
    for body in (
        b"\x00\x81\x00\x00\x01\x00\x00\x00\x00\x00",  # a string of a terabyte
        b"\x00\xc3\x05\x81\x00\x00\x01\x00\x00\x00\x00\x00abcde",  # the same, compressed
        b"\x01\x81\x7f\xff\xff\xff\xff\xff\xff\xff",  # a list of as many elements
        b"\x04\x80\xff\xff\xff\xff\x01f\x01v",
        b"\x0e\x80\xff\xff\xff\xff",
    ):
        kind, text = connection.run(b"RESTORE", b"k", b"0", with_footer(body), b"REPLACE")
        assert kind == "-"
        assert b"byte" in text
    connection.close()


def test_a_large_value_moves_in_slices(pair: Pair) -> None:
    pair.words("FLUSHALL")
    for key, name in ((b"l", b"RPUSH"), (b"s", b"SADD")):
        for at in range(0, 60_000, 5000):
            pair.run((name, key, *(b"element:%d" % n for n in range(at, at + 5000))))
    for at in range(0, 60_000, 5000):
        pair.run((b"ZADD", b"z", *(part for n in range(at, at + 5000) for part in (b"%d" % (n % 777), b"m:%d" % n))))
        pair.run((b"HSET", b"h", *(part for n in range(at, at + 5000) for part in (b"f:%d" % n, b"%d" % n))))
    check_moved(pair)
    pair.run((b"MULTI",))
    for server in (pair.redis, pair.ours):
        server.run(b"DUMP", b"z")
        payload = server.run(b"EXEC")[1][0][1]
        assert server.run(b"RESTORE", b"again", b"0", payload) == ("+", b"OK")
    pair.words("ZRANGE again 0 -1 WITHSCORES")
