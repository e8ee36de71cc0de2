"""Bits and fields of strings, and what strings have in common, against the real Redis."""

from __future__ import annotations

import random
from typing import Any

import pytest
from against_redis import (
    INTEGERS,
    KEYS,
    LENGTHS,
    ODD_NUMBERS,
    Pair,
    cased,
    command,
    run_random_sequences,
    some,
    words,
)
from hypothesis import strategies as st

STRINGS = st.one_of(
    st.binary(max_size=40),
    st.integers(-1000, 10**12).map(lambda n: b"%d" % n),
    st.sampled_from([b"", b"\x00" * 33, b"\xff" * 33, b"\xff" * 50 + b"\x7f", b"\x00" * 70 + b"\x01", b"x" * 20_000]),
)
BITS = st.one_of(st.integers(0, 400).map(lambda n: b"%d" % n), st.integers(0, 40).map(lambda n: b"%d" % n))
OFFSETS = st.one_of(BITS, BITS, ODD_NUMBERS, st.sampled_from([b"-1", b"4294967296", b"9223372036854775808"]))
BIT = st.sampled_from([b"0", b"1", b"0", b"1", b"2", b"-1", b"x"])
BOUNDS = st.one_of(
    st.integers(-60, 60).map(lambda n: b"%d" % n),
    st.integers(-400, 400).map(lambda n: b"%d" % n),
    INTEGERS,
)
UNIT = words("BIT", "BYTE", "bit", "byte", "nope")
RANGE = st.one_of(
    st.just(()),
    BOUNDS.map(lambda n: (n,)),
    st.tuples(BOUNDS, BOUNDS),
    st.tuples(BOUNDS, BOUNDS, UNIT.map(lambda u: u[0])),
)

WIDTHS = st.one_of(
    st.tuples(st.sampled_from("iu"), st.integers(1, 64)).map(lambda pair: f"{pair[0]}{pair[1]}".encode()),
    st.sampled_from([b"i8", b"u8", b"i64", b"u63", b"i1", b"u1", b"u64", b"i65", b"i0", b"x8", b"i", b"", b"u08"]),
)
PLACES = st.one_of(BITS, BITS, OFFSETS, st.integers(-1, 30).map(lambda n: b"#%d" % n), st.just(b"#x"))
OPERANDS = st.one_of(INTEGERS, st.integers(-300, 300).map(lambda n: b"%d" % n))
FIELDS = some(
    st.one_of(
        st.tuples(cased("get"), WIDTHS, PLACES),
        st.tuples(cased("set"), WIDTHS, PLACES, OPERANDS),
        st.tuples(cased("incrby"), WIDTHS, PLACES, OPERANDS),
        st.tuples(cased("incrby"), WIDTHS, PLACES, OPERANDS),
        words("OVERFLOW WRAP", "OVERFLOW SAT", "overflow fail", "OVERFLOW SAT", "OVERFLOW NOPE", "GET i8", "NOPE"),
    ),
    0,
    5,
)
GETS = some(st.one_of(st.tuples(cased("get"), WIDTHS, PLACES), words("OVERFLOW WRAP", "SET u8 0 1")), 0, 3)

TEXTS = st.text(alphabet="abc", max_size=12).map(str.encode)
LCS_OPTIONS = some(
    st.one_of(
        words("LEN", "IDX", "IDX", "idx WITHMATCHLEN", "WITHMATCHLEN", "MINMATCHLEN", "NOPE"),
        st.tuples(cased("minmatchlen"), INTEGERS),
        st.sampled_from([(b"MINMATCHLEN", b"1"), (b"MINMATCHLEN", b"2"), (b"MINMATCHLEN", b"3")]),
    ),
    0,
    3,
)

COMMANDS = [
    command("set", KEYS, STRINGS),
    command("set", KEYS, TEXTS),
    command("append", KEYS, TEXTS),
    command("setbit", KEYS, OFFSETS, BIT),
    command("setbit", KEYS, BITS, BIT),
    command("getbit", KEYS, OFFSETS),
    command("bitcount", KEYS, RANGE),
    command("bitcount", KEYS, RANGE),
    command("bitpos", KEYS, BIT, RANGE),
    command("bitpos", KEYS, BIT, RANGE),
    command("bitop", st.sampled_from([b"AND", b"or", b"XOR"]), KEYS, some(KEYS)),
    command("bitop", st.sampled_from([b"NOT", b"not", b"nor"]), KEYS, some(KEYS, 1, 2)),
    command("bitfield", KEYS, FIELDS),
    command("bitfield", KEYS, FIELDS),
    command("bitfield_ro", KEYS, GETS),
    command("lcs", KEYS, KEYS, LCS_OPTIONS),
    command("get", KEYS),
    command("strlen", KEYS),
    command("rpush", KEYS, STRINGS),
    command("del", KEYS),
    command("incr", KEYS),
    command("pexpire", KEYS, st.just(b"10000000")),
    command("pttl", KEYS),
]


@LENGTHS
def test_random_bits_agree(pair: Pair, long: bool) -> None:
    run_random_sequences(pair, COMMANDS, long=long, examples=150)


def test_counts_and_positions_in_all_ranges_of_a_string_agree(pair: Pair) -> None:
    """Every start and end, in bytes and bits, over strings whose interesting bits lie at the borders of words."""
    pair.words("FLUSHALL")
    chance = random.Random(7)
    strings = [b"\x00" * 12 + b"\x10" + b"\x00" * 9, b"\xff" * 17 + b"\xfe" + b"\xff" * 3, chance.randbytes(19)]
    for string in strings:
        pair.run((b"SET", b"k", string))
        commands: list[tuple[bytes, ...]] = []
        bounds = [-161, -100, -64, -9, -8, -1, 0, 1, 7, 8, 15, 63, 64, 71, 96, 97, 100, 135, 143, 144, 160, 200]
        for start in bounds:
            for end in bounds:
                for unit in (b"BIT", b"BYTE"):
                    span = (b"%d" % start, b"%d" % end, unit)
                    commands.append((b"BITCOUNT", b"k", *span))
                    commands += [(b"BITPOS", b"k", bit, *span) for bit in (b"0", b"1")]
            commands += [(b"BITPOS", b"k", bit, b"%d" % start) for bit in (b"0", b"1")]
        pair.run(*commands)


def test_every_width_at_every_bit_of_a_byte_agrees(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.run((b"SET", b"k", random.Random(3).randbytes(40)))
    for overflow in (b"WRAP", b"SAT", b"FAIL"):
        commands: list[tuple[bytes, ...]] = []
        for width in range(1, 65):
            for kind in ("i", "u"):
                field = f"{kind}{width}".encode()
                for at in (b"0", b"3", b"7", b"#2", b"61"):
                    for number in (b"1", b"-1", b"9223372036854775807", b"-9223372036854775808", b"100"):
                        head = (b"BITFIELD", b"k", b"OVERFLOW", overflow)
                        commands.append((*head, b"INCRBY", field, at, number, b"GET", field, at))
                        commands.append((*head, b"SET", field, at, number, b"GET", b"i64", b"0"))
        pair.run(*commands)
        pair.words("GET k")


def test_large_operands_of_bitop_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    chance = random.Random(1)
    for key, size in (("a", 100_003), ("b", 50_000), ("c", 16_384), ("d", 16_383)):
        pair.run((b"SET", key.encode(), chance.randbytes(size)))
    for operation in ("AND", "OR", "XOR"):
        for sources in ("a b c", "c b", "d", "d d", "c none", "none d", "a a"):
            pair.words(f"BITOP {operation} out {sources}")
            pair.words("GET out")
    pair.words("BITOP NOT a a")
    pair.words("GET a")
    pair.words("PEXPIRE a 100000")
    pair.words("BITOP NOT a d")
    pair.words("PTTL a")
    pair.words("BITOP OR a none")
    pair.words("EXISTS a")
    pair.words("FLUSHALL")


def test_common_parts_of_longer_strings_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    chance = random.Random(5)
    for letters in (b"ab", b"abcdefgh", b"\x00\xff"):
        for _ in range(3):
            for key in (b"p", b"q"):
                pair.run((b"SET", key, bytes(chance.choice(letters) for _ in range(chance.randrange(300)))))
            for options in ("", "LEN", "IDX", "IDX WITHMATCHLEN", "IDX MINMATCHLEN 4 WITHMATCHLEN"):
                pair.words(f"LCS p q {options}")


def test_redis_py_reads_and_writes_bits(our_peer: Any) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        assert client.setbit("k", 7, 1) == 0
        assert client.getbit("k", 7) == 1
        assert client.bitcount("k") == 1
        assert client.bitpos("k", 1) == 7
        assert client.bitfield("f").incrby("u2", 100, 1).overflow("SAT").incrby("u2", 102, 9).execute() == [1, 3]
        client.mset({"a": "ohmytext", "b": "mynewtext"})
        assert client.lcs("a", "b") == b"mytext"
        client.flushall()


def test_a_range_that_ends_before_it_begins_is_empty_whatever_its_unit(pair: Pair) -> None:
    pair.words("SET k abc")
    for line in ["BITCOUNT k -1 -4 x", "BITCOUNT k -1 -4 x y", "BITCOUNT k 4 1 x", "BITCOUNT k -1 y x"]:
        pair.words(line)


def test_a_table_of_lcs_may_be_as_large_as_a_string(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("CONFIG SET proto-max-bulk-len 1048576")
    for length in [262_142, 262_143, 262_144, 1_000_000]:
        pair.run((b"DEL", b"long"), (b"SETRANGE", b"long", b"%d" % (length - 1), b"x"))
        for line in ["LCS long none LEN", "LCS none long", "LCS long long LEN", "LCS long none IDX", "LCS long none x"]:
            pair.words(line)
    pair.words("CONFIG SET proto-max-bulk-len 536870912")


def test_a_long_lcs_is_worked_out_in_slices(pair: Pair, peers: Any) -> None:
    chance = random.Random(3)
    for key, length in ((b"x", 2500), (b"y", 4000)):
        pair.run((b"SET", key, bytes(chance.choices(b"abc", k=length))))
    pair.run((b"LCS", b"x", b"y"), (b"LCS", b"y", b"x", b"LEN"), (b"LCS", b"x", b"y", b"IDX"), (b"ECHO", b"behind"))
    pair.run((b"MULTI",), (b"LCS", b"x", b"y", b"LEN"), (b"GET", b"x"), (b"EXEC",))
    for _ in range(5):
        leaving = peers[1].connect()
        leaving.send((b"LCS", b"x", b"y"))
        leaving.close()
    pair.words("STRLEN y")
