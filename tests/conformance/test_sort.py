"""SORT and SORT_RO answer as Redis 7.0 does."""

from __future__ import annotations

import itertools

import pytest
from against_redis import LENGTHS, Commands, Pair, cased, command, run_random_sequences, some, words
from hypothesis import strategies as st

KEYS = st.sampled_from([b"list", b"set", b"zset", b"list", b"set", b"zset", b"string", b"out", b"missing"])
NUMBERS = st.one_of(
    st.integers(-20, 40).map(lambda number: str(number).encode()),
    st.sampled_from([b"1.5", b"-0.25", b"1e3", b"inf", b"-inf", b"0x10", b" 7", b"9007199254740993", b"00", b"-0"]),
)
TEXTS = st.sampled_from([b"a", b"b", b"ab", b"B", b"", b"x" * 300, b"nan", b"1x", b"1 ", b"\xff", b"key:1"])
# Each weight and each text belongs to one element, so that no order is left open but that of equal elements.
WEIGHTS = [(b"MSET", *(part for i in range(-20, 41) for part in (b"w_%d" % i, b"%d" % (i * 37 % 61))))]
WEIGHTS += [(b"MSET", *(part for i in range(-20, 41) for part in (b"t_%d" % i, b"t%d" % (i * 37 % 61))))]
WEIGHTS += [(b"HSET", b"h_%d" % i, b"f", b"%d.5" % (i * 11 % 61), b"g", b"some text") for i in range(-20, 41)]
WEIGHTS += [(b"RPUSH", b"l_1", b"x"), (b"SET", b"e_1", b""), (b"SET", b"w_bad", b"no number")]

PATTERNS = [
    b"w_*",
    b"h_*->f",
    b"h_*->g",
    b"h_*->nope",
    b"h_*->",
    b"e_*",
    b"l_*",
    b"*",
    b"#",
    b"nosort",
    b"",
    b"h_*->f*",
]
PATTERNS += [b"*_1", b"w_*x", b"w_->f*", b"->*", b"#*", b"**", b"t_*"]
GETS = st.tuples(cased("get"), st.sampled_from(PATTERNS))
LIMITS = st.tuples(
    cased("limit"),
    st.sampled_from([b"0", b"1", b"3", b"-1", b"100", b"x", b"9223372036854775807"]),
    st.sampled_from([b"0", b"2", b"5", b"-1", b"-7", b"100", b"", b"9223372036854775807"]),
)
DIRECTIONS = words("ASC", "desc", "DESC", "ALPHA", "alpha", "ALPHA DESC", "nope", "BY", "GET", "STORE", "LIMIT 1")
# Equal weights would leave the order open: these patterns give every number its own.
BYS = st.tuples(cased("by"), st.sampled_from([b"w_*", b"h_*->f", b"nosort", b"missing_*", b"*", b"e_*", b"l_*"]))
OPTIONS = st.one_of(GETS, GETS, LIMITS, DIRECTIONS, DIRECTIONS, st.tuples(cased("store"), st.just(b"out")))
NUMERIC = some(st.one_of(OPTIONS, BYS), 0, 4)
TEXTUAL = some(OPTIONS, 0, 4).map(lambda options: (b"ALPHA", *options))

FILLING: list[Commands] = [
    command("rpush", st.just(b"list"), some(NUMBERS, 1, 12)),
    command("sadd", st.just(b"set"), some(NUMBERS, 1, 12)),
    command("zadd", st.just(b"zset"), some(st.tuples(st.integers(-3, 3).map(b"%d".__mod__), NUMBERS), 1, 12)),
    command("del", st.sampled_from([b"list", b"set", b"zset"])),
    command("lrange", st.just(b"out"), st.just(b"0"), st.just(b"-1")),
    command("expire", st.just(b"out"), st.just(b"1000")),
    command("ttl", st.just(b"out")),
    command("set", st.sampled_from([b"string", b"out"]), st.just(b"1")),
]


def is_settled(request: tuple[bytes, ...]) -> bool:
    """Whether Redis promises an order: not for a set that is not to be sorted, nor among elements of equal weight."""
    lower = [argument.lower() for argument in request]
    if b"alpha" in lower and b"by" in lower:
        return False
    if lower[0] not in {b"sort", b"sort_ro"} or lower[1] in {b"list", b"zset"}:
        return True
    # A pattern without a star is the same for every element: nothing is sorted then.
    return all(b"*" in pattern for word, pattern in itertools.pairwise(lower) if word == b"by")


def filtered(commands: list[Commands]) -> list[Commands]:
    return [strategy.filter(is_settled) for strategy in commands]


MIXED = filtered(
    [
        *FILLING,
        command("sort", KEYS, NUMERIC),
        command("sort", KEYS, NUMERIC),
        command("sort", KEYS, TEXTUAL),
        command("sort_ro", KEYS, NUMERIC),
    ]
)
TEXTS_TOO = filtered(
    [
        *FILLING,
        command("rpush", st.just(b"list"), some(TEXTS, 1, 5)),
        command("sadd", st.just(b"set"), some(TEXTS, 1, 5)),
        command("sort", KEYS, TEXTUAL),
        command("sort", KEYS, NUMERIC),
    ]
)


@pytest.fixture(autouse=True)
def empty(pair: Pair) -> None:
    # Redis's SORT takes an overflow in an earlier command for one of its own; reading a cursor makes it forget that.
    pair.run((b"SELECT", b"0"), (b"FLUSHALL",), (b"SCAN", b"0"))


def with_weights(commands: list[Commands]) -> list[Commands]:
    return [*commands, *(st.just(weights) for weights in WEIGHTS[:3])]


@LENGTHS
@pytest.mark.parametrize("commands", [with_weights(MIXED), TEXTS_TOO], ids=["numbers", "texts"])
def test_random_sequences_get_the_same_replies(pair: Pair, commands: list[Commands], long: bool) -> None:
    run_random_sequences(pair, commands, long=long)


def test_every_pattern_leads_where_it_does_in_redis(pair: Pair) -> None:
    pair.run(*WEIGHTS)
    pair.run(
        (b"RPUSH", b"list", *(b"%d" % (i * 7 % 31) for i in range(31))), (b"SADD", b"set", b"3", b"1", b"2", b"-4")
    )
    for key in (b"list", b"set"):
        for pattern in PATTERNS:
            pair.run((b"SORT", key, b"GET", pattern, b"GET", b"#", b"LIMIT", b"0", b"6"))
            pair.run((b"SORT", key, b"GET", pattern, b"STORE", b"out"), (b"LRANGE", b"out", b"0", b"-1"))
            if key == b"list" or b"*" in pattern:
                pair.run(
                    (b"SORT", key, b"BY", pattern), (b"SORT_RO", key, b"BY", pattern, b"DESC", b"LIMIT", b"1", b"2")
                )
    for line in ["BY t_* ALPHA", "BY t_* ALPHA DESC GET # GET t_*", "BY t_*", "BY t_* ALPHA LIMIT 3 5 GET w_*"]:
        pair.words(f"SORT list {line}")
        pair.words(f"SORT set {line} STORE out")


def test_sets_stored_unsorted_are_sorted_by_their_text(pair: Pair) -> None:
    pair.run((b"SADD", b"set", *(b"%d" % i for i in range(40)), b"x", b"y"))
    for line in [
        "SORT set BY nosort STORE out",
        "SORT set BY nosort DESC STORE out",
        "SORT set BY nosort LIMIT 3 4 STORE out",
    ]:
        pair.words(line)
        pair.words("LRANGE out 0 -1")


def test_many_elements_are_sorted_alike(pair: Pair) -> None:
    pair.run((b"RPUSH", b"list", *(b"%d" % (i * 7919 % 10007) for i in range(10007))))
    for line in [
        "",
        "DESC",
        "ALPHA",
        "ALPHA DESC LIMIT 50 100",
        "LIMIT 5000 10",
        "BY nosort DESC LIMIT 10 10",
        "STORE out",
    ]:
        pair.words(f"SORT list {line}")
    pair.run((b"LRANGE", b"out", b"0", b"-1"))
    pair.run((b"ZADD", b"zset", *(part for i in range(3000) for part in (b"%d" % (i * 7919 % 3001), b"%d" % i))))
    for line in [
        "BY nosort",
        "BY nosort DESC",
        "BY nosort DESC LIMIT 10 10",
        "BY nosort LIMIT 2990 100",
        "DESC LIMIT 7 7",
    ]:
        pair.words(f"SORT zset {line}")
    pair.run((b"SADD", b"set", *(b"m%d" % i for i in range(3000))))
    pair.words("SORT set ALPHA")
    pair.words("SORT set")


def test_a_list_may_be_stored_in_its_own_place(pair: Pair) -> None:
    pair.run(
        (b"RPUSH", b"list", b"3", b"1", b"2"), (b"SORT", b"list", b"STORE", b"list"), (b"LRANGE", b"list", b"0", b"-1")
    )
    pair.words("SORT list LIMIT 5 5 STORE list")
    pair.words("EXISTS list")


def test_keys_that_have_run_out_are_not_found_by_patterns(pair: Pair) -> None:
    pair.run((b"RPUSH", b"list", b"1", b"2"), (b"MSET", b"w_1", b"9", b"w_2", b"8"), (b"PEXPIREAT", b"w_2", b"1"))
    pair.words("SORT list BY w_* GET w_* GET #")


def test_numbers_must_be_within_a_double(pair: Pair) -> None:
    for text in (b"1e999", b"1e-999", b"0" * 400 + b"1", b"1" + b"0" * 400, b"1.5\x00x"):
        pair.run(
            (b"DEL", b"list"), (b"RPUSH", b"list", b"1", text), (b"SCAN", b"0"), (b"SORT", b"list"), (b"SCAN", b"0")
        )


def test_patterns_lead_nobody_to_keys_that_are_not_theirs(pair: Pair) -> None:
    pair.run((b"RPUSH", b"app:list", b"1"), (b"SET", b"secret_1", b"7"))
    users = {
        "limited": "on nopass +@all ~app:*",
        "writer": "on nopass +@all ~app:* %W~*",
        "reader": "on nopass +@all ~app:* %R~*",
        "either": "on nopass +@all ~app:* (+sort %R~*)",
        "other": "on nopass +@all ~app:* (+sort_ro %R~*)",
    }
    lines = ["BY secret_*", "BY nosort", "GET secret_*", "GET #", "BY secret_* GET nope", "GET secret_* STORE app:out"]
    try:
        for user, rules in users.items():
            pair.words(f"ACL SETUSER {user} {rules}")
            pair.words(f"AUTH {user} x")
            for line in lines:
                pair.words(f"SORT app:list {line}")
                pair.words(f"SORT_RO app:list {line}")
            pair.words("AUTH default x")
    finally:
        pair.words("AUTH default x")
        pair.words(f"ACL DELUSER {' '.join(users)}")


def test_wrong_types_and_errors_agree(pair: Pair) -> None:
    pair.run((b"SET", b"s", b"1"), (b"HSET", b"h", b"f", b"v"), (b"RPUSH", b"l", b"1", b"x"))
    for line in [
        "s",
        "h",
        "l",
        "l STORE s",
        "s nope",
        "missing",
        "missing STORE s",
        "missing LIMIT x 1",
        "l LIMIT 1 x",
    ]:
        pair.words(f"SORT {line}")
        pair.words(f"SORT_RO {line}")
    pair.words("EXISTS s")
    pair.words("SORT")
