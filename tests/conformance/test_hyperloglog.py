"""HyperLogLog against the real Redis: replies, and the sketches themselves byte for byte."""

from __future__ import annotations

import random

from against_redis import (
    KEYS,
    LENGTHS,
    Pair,
    command,
    run_random_sequences,
    some,
    words,
)
from hypothesis import strategies as st

ELEMENTS = st.one_of(
    st.integers(0, 3000).map(lambda n: b"%d" % n),
    st.binary(max_size=24),
    st.sampled_from([b"", b"a", b"x" * 100, b"y" * 20_000]),
)
MANY = st.tuples(st.integers(0, 10**6), st.sampled_from([200, 600, 1500])).map(
    lambda span: tuple(b"%d" % n for n in range(span[0], span[0] + span[1]))
)
DENSE_BYTES = 16 + 12288
# Sketches that are none, or that are damaged: a wrong form, a short dense one, runs that do not add up.
DAMAGED = [
    b"HYLL",
    b"HYLL\x01" + b"\0" * 11,
    b"HYLL\x01" + b"\0" * 11 + b"\x7f\xff",
    b"HYLL\x01" + b"\0" * 10 + b"\x80\x7f\xff",
    b"HYLL\x01" + b"\0" * 10 + b"\x80\x7f",
    b"HYLL\x01" + b"\0" * 10 + b"\x80\x7f\xff\x80",
    b"HYLL\x01" + b"\0" * 10 + b"\x80" + b"\x80" * 5000,
    b"HYLL\x01" + b"\0" * 10 + b"\x80" + b"\x40\x00" * 16384,
    b"HYLL\x01" + b"\0" * 10 + b"\x80" + b"\x40\x00" * 20000,
    b"HYLL\x02" + b"\0" * 11,
    b"HYLL\x00" + b"\0" * 11,
    b"HYLL\x00" + b"\0" * (DENSE_BYTES - 5),
    b"HYLL\x00" + b"\0" * 10 + b"\x80" + b"\xff" * (DENSE_BYTES - 16),
    b"hyll\x00" + b"\0" * (DENSE_BYTES - 5),
    b"17",
]

COMMANDS = [
    command("pfadd", KEYS, some(ELEMENTS, 0, 12)),
    command("pfadd", KEYS, some(ELEMENTS, 0, 12)),
    command("pfadd", KEYS, MANY),
    command("pfcount", some(KEYS, 1, 3)),
    command("pfcount", KEYS),
    command("pfmerge", KEYS, some(KEYS, 0, 3)),
    command("pfdebug", words("DECODE", "encoding", "TODENSE", "nope", "GETREG"), KEYS),
    command("get", KEYS),
    command("strlen", KEYS),
    command("lpush", KEYS, st.just(b"x")),
    command("del", KEYS),
]


@LENGTHS
def test_random_sketches_agree(pair: Pair, long: bool) -> None:
    run_random_sequences(pair, COMMANDS, long=long, examples=120, longest=40)


def test_sketches_are_the_same_bytes_while_they_grow(pair: Pair) -> None:
    """One element at a time, until the sketch has long become dense."""
    for seed in range(3):
        pair.words("FLUSHALL")
        chance = random.Random(seed)
        for at in range(4000):
            pair.run((b"PFADD", b"k", b"%d" % chance.getrandbits(40)))
            if at % 7 == 0:
                pair.words("GET k")
            if at % 100 == 0:
                pair.words("PFCOUNT k")
        assert pair.words("PFDEBUG ENCODING k") == ("+", b"dense")


def test_limits_of_sparse_sketches_agree(pair: Pair) -> None:
    for limit in (b"0", b"18", b"19", b"22", b"100", b"1000", b"16000", b"100000"):
        pair.words("FLUSHALL")
        pair.run((b"CONFIG", b"SET", b"hll-sparse-max-bytes", limit))
        for at in range(0, 24_000, 300):
            pair.run((b"PFADD", b"k", *(b"%d" % n for n in range(at, at + 300))))
            pair.words("GET k")
        pair.words("PFMERGE merged k")
        pair.words("GET merged")
    pair.words("CONFIG SET hll-sparse-max-bytes 3000")


def test_merged_sketches_are_the_same_bytes(pair: Pair) -> None:
    chance = random.Random(5)
    for sizes in ((10, 20), (300, 400, 500), (0, 900), (900, 900, 5000)):
        pair.words("FLUSHALL")
        for key, size in enumerate(sizes):
            pair.run((b"PFADD", b"%d" % key, *(chance.randbytes(8) for _ in range(size))))
        keys = [b"%d" % key for key in range(len(sizes))]
        pair.run((b"PFMERGE", b"all", *keys), (b"GET", b"all"), (b"PFCOUNT", b"all"), (b"PFCOUNT", *keys))
        pair.run((b"PFMERGE", b"0", *keys), (b"GET", b"0"), (b"PFMERGE", b"all"), (b"GET", b"all"))


def test_a_sketch_made_by_one_server_goes_on_at_the_other(pair: Pair) -> None:
    pair.words("FLUSHALL")
    for size in (5, 700, 9000):
        key = b"k%d" % size
        pair.redis.run(b"PFADD", key, *(b"r%d" % n for n in range(size)))
        pair.ours.run(b"PFADD", key, *(b"o%d" % n for n in range(size)))
        theirs, ours = pair.redis.run(b"GET", key)[1], pair.ours.run(b"GET", key)[1]
        pair.run((b"SET", b"theirs", theirs), (b"SET", b"ours", ours))
        pair.run((b"PFCOUNT", b"theirs"), (b"PFCOUNT", b"ours"), (b"PFCOUNT", b"theirs", b"ours"))
        pair.run((b"PFMERGE", b"both", b"ours", b"theirs"), (b"GET", b"both"), (b"PFADD", b"both", b"more"))


def test_damaged_sketches_are_refused_alike(pair: Pair) -> None:
    for sketch in DAMAGED:
        pair.words("FLUSHALL")
        pair.run((b"SET", b"k", sketch), (b"PFCOUNT", b"k"), (b"PFCOUNT", b"k", b"nothing"), (b"PFMERGE", b"d", b"k"))


def test_errors_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("LPUSH list x")
    pair.words("SET text x")
    for line in (
        "PFADD", "PFADD list a", "PFADD text a", "PFCOUNT", "PFCOUNT list", "PFCOUNT text list", "PFMERGE",
        "PFMERGE list", "PFMERGE d list", "PFMERGE d text", "PFDEBUG DECODE", "PFDEBUG DECODE nothing",
        "PFDEBUG DECODE text", "PFDEBUG NOPE list", "PFADD new", "PFADD new", "GET new", "PFCOUNT new", "GET new",
        "PFMERGE empty", "GET empty", "PFSELFTEST", "PFSELFTEST x",
    ):  # fmt: skip
        pair.words(line)
