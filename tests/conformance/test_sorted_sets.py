"""Sorted sets answer as Redis 7.0's do: random sequences of their commands, and every option and error by name."""

from __future__ import annotations

import collections
from typing import Any

import pytest
from against_redis import (
    INTEGERS,
    KEYS,
    ODD_NUMBERS,
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
from hypothesis import strategies as st

MEMBERS = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b"aa", b"ab", b"", b"\x00", b"\xff", b"A", b"10", b"9", b"m" * 64]),
    st.integers(0, 20).map(lambda number: b"member:%d" % number),
    st.just(b"long" * 20),
)
SCORES = st.one_of(
    st.integers(-3, 3).map(lambda number: b"%d" % number),
    st.integers(-300, 300).map(lambda number: b"%d" % number),
    st.sampled_from([b"1.5", b"-0.1", b"0.1", b"inf", b"-inf", b"+inf", b"1e300", b"-1e-300", b"3.0", b"-0", b"0x1F"]),
    st.sampled_from([b"2147483648", b"-2147483649", b"9007199254740993", b"123456789012345678", b"1e17", b"1e15"]),
    st.floats(-1e9, 1e9).map(lambda number: repr(number).encode()),
)
ANY_SCORES = st.one_of(SCORES, SCORES, SCORES, SCORES, SCORES, SCORES, ODD_NUMBERS, st.just(b"1e400"))
SCORE_BOUNDS = st.one_of(
    SCORES, SCORES.map(lambda score: b"(" + score), st.sampled_from([b"-inf", b"+inf", b"(", b"", b"x", b"(x", b"nan"])
)
MEMBER_BOUNDS = st.one_of(
    MEMBERS.map(lambda member: b"[" + member),
    MEMBERS.map(lambda member: b"(" + member),
    st.sampled_from([b"-", b"+", b"-", b"+", b"", b"a", b"++", b"-x"]),
)
ADD_OPTIONS = some(words("NX", "xx", "GT", "lt", "CH", "ch", "INCR"), 0, 2)
LIMIT = st.tuples(cased("limit"), INTEGERS, INTEGERS)
SMALL_LIMIT = st.tuples(
    cased("limit"), st.sampled_from([b"0", b"1", b"2", b"-1"]), words("0", "1", "3", "-1").map(lambda parts: parts[0])
)
RANGE_OPTIONS = some(st.one_of(SMALL_LIMIT, SMALL_LIMIT, LIMIT, words("WITHSCORES", "withscores", "nope")), 0, 2)


def adding(keys: Keys) -> list[Commands]:
    return [
        command("zadd", keys, some(st.tuples(SCORES, MEMBERS), 1, 6)),
        command("zadd", keys, some(st.tuples(SCORES, MEMBERS), 8, 40)),
        command("zadd", keys, ADD_OPTIONS, some(st.tuples(ANY_SCORES, MEMBERS), 1, 3)),
        command("zadd", keys, some(SCORES, 1, 3)),
        command("zincrby", keys, ANY_SCORES, MEMBERS),
    ]


def reading(keys: Keys) -> list[Commands]:
    return [
        command("zcard", keys),
        command("zscore", keys, MEMBERS),
        command("zmscore", keys, some(MEMBERS)),
        command("zrank", keys, MEMBERS),
        command("zrevrank", keys, MEMBERS),
        command("zcount", keys, SCORE_BOUNDS, SCORE_BOUNDS),
        command("zrange", keys, words("0 -1", "0 -1 WITHSCORES", "0 -1 REV withscores")),
        command(
            "zrange", keys, INTEGERS, INTEGERS, some(words("WITHSCORES", "REV", "rev", "BYLEX", "LIMIT 0 1"), 0, 2)
        ),
        command("zrange", keys, SCORE_BOUNDS, SCORE_BOUNDS, words("BYSCORE", "BYSCORE REV", "rev"), RANGE_OPTIONS),
        command("zrevrange", keys, INTEGERS, INTEGERS, RANGE_OPTIONS),
        command("zrangebyscore", keys, SCORE_BOUNDS, SCORE_BOUNDS, RANGE_OPTIONS),
        command("zrevrangebyscore", keys, SCORE_BOUNDS, SCORE_BOUNDS, RANGE_OPTIONS),
        command("zscan", keys, st.just(b"0"), some(st.tuples(cased("match"), PATTERNS), 0, 1), words("COUNT 1000")),
    ]


def removing(keys: Keys) -> list[Commands]:
    return [
        command("zrem", keys, some(MEMBERS)),
        command("zremrangebyscore", keys, SCORE_BOUNDS, SCORE_BOUNDS),
        command("zremrangebyrank", keys, INTEGERS, INTEGERS),
        command("zrangestore", keys, keys, INTEGERS, INTEGERS, some(words("REV", "BYSCORE", "WITHSCORES"), 0, 1)),
        command("zrangestore", keys, keys, SCORE_BOUNDS, SCORE_BOUNDS, words("BYSCORE", "BYSCORE REV"), RANGE_OPTIONS),
        command("del", keys),
    ]


def popping(keys: Keys) -> list[Commands]:
    return [
        command("zpopmin", keys),
        command("zpopmax", keys),
        command("zpopmin", keys, INTEGERS),
        command("zpopmax", keys, words("0", "1", "2", "5", "-1", "x", "1 1")),
        command("zmpop", words("1"), keys, words("MIN", "max", "min COUNT 2", "MAX count 3", "MIN COUNT 0", "nope")),
        command("zmpop", words("2"), keys, keys, words("MIN", "max COUNT 2", "MIN COUNT 1 COUNT 1", "")),
    ]


def popping_or_waiting(keys: Keys) -> list[Commands]:
    """Not for long, but Redis looks only ten times a second whether a wait is over: not for long sequences."""
    return [
        command("bzpopmin", keys, keys, words("0.001", "x", "-1")),
        command("bzpopmax", keys, words("0.001")),
        command("bzmpop", words("0.001 1", "x 1", "0.001 0"), keys, words("MIN", "max COUNT 2", "nope")),
    ]


def algebra(keys: Keys) -> list[Commands]:
    """Of sorted sets, and of sets, which are sorted sets whose scores are all 1."""
    counted = st.lists(keys, min_size=1, max_size=3).map(lambda names: (b"%d" % len(names), *names))
    weights = some(SCORES, 1, 3).map(lambda scores: (b"WEIGHTS", *scores))
    right_weights = st.tuples(keys, keys, SCORES, SCORES).map(lambda p: (b"2", p[0], p[1], b"weights", p[2], p[3]))
    aggregate = words("AGGREGATE SUM", "aggregate min", "AGGREGATE MAX", "AGGREGATE nope", "AGGREGATE", "")
    with_scores = words("WITHSCORES", "withscores", "", "WITHSCORES WITHSCORES", "nope")
    operations: list[Commands] = []
    for name in ["zunion", "zinter"]:
        operations += [
            command(name, counted, aggregate, with_scores),
            command(name, right_weights, aggregate, with_scores),
            command(name, counted, weights),
            command(name + "store", keys, counted, aggregate),
            command(name + "store", keys, right_weights, aggregate),
            command(name + "store", keys, counted, weights, with_scores),
        ]
    return [
        *operations,
        command("zdiff", counted, with_scores),
        command("zdiffstore", keys, counted),
        command("zintercard", counted, words("", "LIMIT 1", "limit 2", "LIMIT 0", "LIMIT -1", "LIMIT x", "WITHSCORES")),
        command("zunion", words("0", "-1", "x", "3", "1"), some(keys, 1, 2)),
        command("sadd", keys, some(MEMBERS, 1, 12)),
        command("sadd", keys, some(st.integers(0, 20).map(lambda n: b"%d" % n), 1, 12)),
        command("srem", keys, some(MEMBERS)),
        command("zadd", keys, some(st.tuples(SCORES, st.integers(0, 20).map(lambda n: b"%d" % n)), 1, 12)),
        command("zrange", keys, words("0 -1 WITHSCORES")),
    ]


def by_member(keys: Keys) -> list[Commands]:
    """All members have one score: of others Redis leaves open what a range by member is."""
    member_options = some(st.one_of(SMALL_LIMIT, LIMIT, words("WITHSCORES", "nope")), 0, 1)
    return [
        command("zadd", keys, some(st.tuples(st.just(b"7"), MEMBERS), 1, 20)),
        command("zrangebylex", keys, MEMBER_BOUNDS, MEMBER_BOUNDS, member_options),
        command("zrevrangebylex", keys, MEMBER_BOUNDS, MEMBER_BOUNDS, member_options),
        command("zrange", keys, MEMBER_BOUNDS, MEMBER_BOUNDS, words("BYLEX", "BYLEX REV", "REV bylex"), member_options),
        command("zrangestore", keys, keys, MEMBER_BOUNDS, MEMBER_BOUNDS, words("BYLEX", "BYLEX REV"), member_options),
        command("zlexcount", keys, MEMBER_BOUNDS, MEMBER_BOUNDS),
        command("zremrangebylex", keys, MEMBER_BOUNDS, MEMBER_BOUNDS),
        command("zrem", keys, some(MEMBERS)),
    ]


OTHERS = [command("set", KEYS, st.just(b"text")), command("type", KEYS), command("expire", KEYS, st.just(b"10000"))]


def test_random_sequences(pair: Pair) -> None:
    run_random_sequences(pair, adding(KEYS) * 2 + reading(KEYS) + removing(KEYS) + OTHERS, examples=300)


def test_random_sequences_by_member(pair: Pair) -> None:
    run_random_sequences(pair, by_member(KEYS), examples=300)


def test_random_sequences_of_pops(pair: Pair) -> None:
    run_random_sequences(pair, adding(KEYS) * 2 + popping(KEYS) + popping_or_waiting(KEYS) + OTHERS)


def test_random_sequences_of_algebra(pair: Pair) -> None:
    few = st.sampled_from([b"a", b"b", b"c"])
    run_random_sequences(pair, adding(few) + algebra(few) + OTHERS, examples=300)


FEW = st.sampled_from([b"a", b"b"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [
        adding(FEW) * 2 + reading(FEW) + removing(FEW) + OTHERS,
        by_member(FEW),
        adding(FEW) + algebra(FEW) + OTHERS,
        adding(FEW) * 3 + popping(FEW) + OTHERS,
    ],
    ids=["ranges", "by member", "algebra", "pops"],
)
def test_long_random_sequences(pair: Pair, commands: list[Commands]) -> None:
    run_random_sequences(pair, commands, long=True)


def lines(text: str) -> list[str]:
    """Commands, each on a line of its own or between bars."""
    return [line.strip() for line in text.replace("\n", "|").split("|") if line.strip()]


# ---- large sets ---------------------------------------------------------------------------------------------------


def fill(pair: Pair, key: bytes, count: int) -> None:
    """A set of `count` members whose scores repeat and do not come in order."""
    members = [(b"%d" % (number * 7919 % 1009), b"member:%d" % number) for number in range(count)]
    for at in range(0, count, 500):
        pair.run((b"ZADD", key, *[part for item in members[at : at + 500] for part in item]))


def test_a_large_set_keeps_its_order_through_changes(pair: Pair) -> None:
    pair.words("FLUSHALL")
    fill(pair, b"large", 5000)
    for number in range(0, 5000, 3):
        pair.run((b"ZADD", b"large", b"%d.5" % (number * 31 % 997), b"member:%d" % number))
    pair.words("ZRANGE large 0 -1 WITHSCORES")
    pair.words("ZRANGE large 0 -1 REV WITHSCORES")
    for member in range(0, 5000, 97):
        pair.words(f"ZRANK large member:{member}")
        pair.words(f"ZREVRANK large member:{member}")
        pair.words(f"ZCOUNT large ({member % 500} {member % 700}")
        pair.words(f"ZRANGEBYSCORE large {member % 500} +inf WITHSCORES LIMIT {member % 90} 5")
        pair.words(f"ZREVRANGEBYSCORE large {member % 700} ({member % 500} LIMIT {member % 90} 5")
        pair.words(f"ZREM large member:{member} member:{member + 1}")
    pair.words("ZREMRANGEBYRANK large 100 1500")
    pair.words("ZREMRANGEBYSCORE large (300 700.5")
    pair.words("ZRANGE large 0 -1 WITHSCORES")
    pair.words("ZREMRANGEBYRANK large 1 -1")
    pair.words("ZRANGE large 0 -1 WITHSCORES")
    pair.words("ZREMRANGEBYRANK large 0 -1")
    pair.words("EXISTS large")


def test_ranges_by_member_of_a_large_set(pair: Pair) -> None:
    pair.words("FLUSHALL")
    members = [b"%06d" % (number * 7919 % 100_003) for number in range(2000)]
    pair.run((b"ZADD", b"lex", *[part for member in members for part in (b"0", member)]))
    for low, high in [("[000500", "(050000"), ("-", "[020000"), ("(099000", "+"), ("+", "-"), ("[9", "[1")]:
        pair.words(f"ZRANGEBYLEX lex {low} {high}")
        pair.words(f"ZREVRANGEBYLEX lex {high} {low} LIMIT 3 7")
        pair.words(f"ZLEXCOUNT lex {low} {high}")
    pair.words("ZREMRANGEBYLEX lex [01 (08")
    pair.words("ZRANGE lex - + BYLEX")


def test_a_scan_of_a_large_set_finds_every_member_once_or_more(pair: Pair) -> None:
    pair.words("FLUSHALL")
    fill(pair, b"large", 3000)
    found: dict[bytes, bytes] = {}
    cursor = b"0"
    while True:
        kind, reply = pair.ours.run(b"ZSCAN", b"large", cursor, b"COUNT", b"50")
        assert kind == "*"
        cursor = reply[0][1]
        parts = [value for _, value in reply[1][1]]
        found.update(zip(parts[::2], parts[1::2], strict=True))
        if cursor == b"0":
            break
    assert found == {b"member:%d" % number: b"%d" % (number * 7919 % 1009) for number in range(3000)}


def test_a_sum_that_is_zero_has_the_sign_of_redis(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.run((b"ZADD", b"z", b"0", b"member", b"-0", b"other", b"5", b"long" * 20))
    for line in lines("""
        ZUNION 2 z z WEIGHTS -2 3 WITHSCORES|ZUNION 2 z z WEIGHTS -2 0 WITHSCORES|ZINTER 2 z z WEIGHTS -2 3 WITHSCORES
        ZUNION 2 z z WEIGHTS -2 3 AGGREGATE MIN WITHSCORES|ZUNIONSTORE y 2 z z WEIGHTS -2 3|ZRANGE y 0 -1 WITHSCORES
        ZUNIONSTORE y 1 z WEIGHTS -1|ZRANGE y 0 -1 WITHSCORES
    """):
        pair.words(line)


def test_algebra_of_large_sets(pair: Pair) -> None:
    pair.words("FLUSHALL")
    fill(pair, b"large", 3000)
    pair.run((b"ZADD", b"other", *[part for n in range(0, 6000, 7) for part in (b"%d.25" % n, b"member:%d" % n)]))
    pair.run((b"SADD", b"set", *[b"member:%d" % n for n in range(0, 4000, 2)]))
    for line in lines("""
        ZUNION 3 large other set WITHSCORES|ZINTER 3 large other set WITHSCORES|ZDIFF 3 large other set WITHSCORES
        ZUNION 2 large other WEIGHTS 0.1 -3 AGGREGATE MAX WITHSCORES|ZINTERCARD 2 large set
        ZINTERCARD 2 large set LIMIT 9
        ZUNIONSTORE sum 3 large other set WEIGHTS 0.1 0.2 0.3|ZRANGE sum 0 -1 WITHSCORES|OBJECT ENCODING sum
        ZINTERSTORE sum 2 large sum AGGREGATE MIN|ZRANGE sum 0 -1 WITHSCORES|ZDIFFSTORE sum 2 large set|ZCARD sum
        ZINTER 2 large large WITHSCORES|ZDIFF 2 large large|ZUNION 2 set set WITHSCORES|ZDIFFSTORE sum 2 set set
        EXISTS sum|ZINTERSTORE sum 3 large set other|OBJECT ENCODING sum|ZRANGESTORE few sum 0 100|OBJECT ENCODING few
        ZPOPMIN large 200|ZPOPMAX large 2000|ZCARD large
    """):
        pair.words(line)


# ---- by chance -----------------------------------------------------------------------------------------------------


def random_members(pair: Pair, *command: bytes) -> list[bytes]:
    """Ours, where both servers reply as many members; scores are checked and left out."""
    name, key, count, *with_scores = (b"ZRANDMEMBER", *command)
    redis, ours = (connection.run(name, key, count, *with_scores) for connection in (pair.redis, pair.ours))
    assert redis[0] == ours[0] == "*"
    assert len(redis[1]) == len(ours[1])
    replies = ours[1]
    if with_scores:
        replies = [part for item in replies for part in (item[1] if item[0] == "*" else [item])]
        scores = [float(value) for _, value in replies[1::2]]
        replies = replies[::2]
        assert scores == [float(int(value[7:]) * 7919 % 1009) for _, value in replies]
    return [value for _, value in replies]


@pytest.mark.parametrize("size", [100, 3000])
@pytest.mark.parametrize("with_scores", [False, True])
def test_random_members_are_members_and_differ(pair: Pair, size: int, with_scores: bool) -> None:
    pair.words("FLUSHALL")
    fill(pair, b"z", size)
    everyone = {b"member:%d" % number for number in range(size)}
    option = (b"WITHSCORES",) if with_scores else ()
    for count in [0, 1, 2, 10, size // 5, size // 3, size - 1, size, size + 1, 2**62 - 1]:
        members = random_members(pair, b"z", b"%d" % count, *option)
        assert len(set(members)) == len(members) == min(count, size)
        assert set(members) <= everyone
    repeated = random_members(pair, b"z", b"-%d" % (size * 2), *option)
    assert len(repeated) == size * 2
    assert set(repeated) <= everyone
    assert len(set(repeated)) > size // 2


@pytest.mark.parametrize("count", [b"5", b"40", b"-5"])
def test_every_member_comes_up_as_often_as_any_other(our_peer: Any, count: bytes) -> None:
    connection = our_peer.connect()
    connection.run(b"FLUSHALL")
    for size in [b"50", b"200"]:
        members = [part for n in range(int(size)) for part in (b"0", b"%d" % n)]
        connection.run(b"ZADD", b"z", *members)
        drawn: collections.Counter[bytes] = collections.Counter()
        for _ in range(2000):
            drawn.update(value for _, value in connection.run(b"ZRANDMEMBER", b"z", count)[1])
        expected = 2000 * abs(int(count)) / int(size)
        # Six standard deviations: by chance alone this fails once in millions of runs.
        assert max(abs(drawn[b"%d" % n] - expected) for n in range(int(size))) < 6 * expected**0.5
    connection.close()


def test_errors_of_random_members(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("SET text 1")
    pair.words("ZADD z 1 a")
    for line in lines("""
        ZRANDMEMBER z|ZRANDMEMBER none|ZRANDMEMBER text|ZRANDMEMBER z x|ZRANDMEMBER z 1|ZRANDMEMBER z -3|ZRANDMEMBER z 0
        ZRANDMEMBER z -2 WITHSCORES|ZRANDMEMBER z 9223372036854775807|ZRANDMEMBER z -9223372036854775808
        ZRANDMEMBER z 4611686018427387904 WITHSCORES|ZRANDMEMBER z -4611686018427387904 WITHSCORES|ZRANDMEMBER none 1
        ZRANDMEMBER z 1 nope|ZRANDMEMBER z 1 WITHSCORES x|ZRANDMEMBER none 2 nope|ZRANDMEMBER text 0|ZRANDMEMBER text x
        ZRANDMEMBER z 4611686018427387903 WITHSCORES
    """):
        pair.words(line)


# ---- by name -------------------------------------------------------------------------------------------------------


def test_scores_are_written_as_redis_writes_them(pair: Pair) -> None:
    pair.words("DEL z")
    scores = """0 -0 1 -1 0.1 -0.1 1.5 1e15 1e16 1e17 1e18 1e21 -1e17 123456789012345678 999999999999999
        1000000000000000 9007199254740992 9007199254740993 2147483647 2147483648 -2147483648 -2147483649 127 128 -128
        -129 32767 32768 3.0 3e0 5e-324 1.7976931348623157e308 inf -inf +inf infinity 0x10 1e-5 0.00001 .5 5. 00012
        """
    for score in scores.split():
        pair.words(f"ZADD z {score} member")
        pair.words("ZSCORE z member")
        pair.words("ZINCRBY z 0 member")
        pair.words("ZRANGE z 0 -1 WITHSCORES")
        pair.words("ZSCAN z 0")
        pair.words("DEL z")
    for score in ["nan", "x", '""', "1x", "1e400", "-1e400", "1e-400", "0x", "--1", "1,5", "1" * 400, "0." + "1" * 400]:
        pair.words(f"ZADD z {score} member")
        pair.words("ZSCORE z member")


def test_scores_in_a_scan_of_a_large_set_are_written_as_redis_writes_them(pair: Pair) -> None:
    pair.words("FLUSHALL")
    scores = "0 -0 1 0.1 -1.5 1e17 1e18 1e21 123456789.123 inf -inf 5e-324 3.3333333333333335 1e-7"
    for score in scores.split():
        pair.words("DEL z")
        pair.run((b"ZADD", b"z", score.encode(), b"m" * 100))
        pair.words("ZSCAN z 0")


def test_options_of_zadd(pair: Pair) -> None:
    pair.words("FLUSHALL")
    for line in lines(
        """ZADD z XX 1 a|ZADD z XX INCR 1 a|ZADD z NX 1 a|ZADD z NX 2 a|ZADD z CH 2 a 3 b|ZADD z GT CH 1 a 5 b|
        ZADD z LT CH 1 a 9 b|ZADD z NX XX 1 a|ZADD z NX GT 1 a|ZADD z GT LT 1 a|ZADD z NX LT 1 a|ZADD z INCR 1 a 2 b|
        ZADD z INCR 1 a|ZADD z NX INCR 1 a|ZADD z GT INCR -1 a|ZADD z LT INCR -1 a|ZADD z INCR inf a|ZADD z INCR -inf a|
        ZADD z|ZADD z 1|ZADD z 1 a 2|ZADD z NX|ZADD z CH CH 4 a|ZADD z 1 a x b|ZSCORE z a|ZADD z XX CH 8 a 8 new|
        ZADD z nope 1 a|ZADD z 1 a 2 a 3 a|ZADD z XX NX|ZADD text 1 a|ZINCRBY z x a|ZINCRBY z nan a|
        ZINCRBY new -inf a|ZINCRBY new inf a|ZINCRBY text 1 a|ZADD text XX 1 a|ZADD text x a|ZRANGE z 0 -1 WITHSCORES"""
    ):
        pair.words("SET text 1")
        pair.words(line)


def test_wrong_types_and_missing_keys(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("SET text 1")
    for key in ["text", "none"]:
        for line in lines(
            """ZCARD K|ZSCORE K a|ZMSCORE K a b|ZRANK K a|ZREVRANK K a|ZCOUNT K 0 1|ZCOUNT K x 1|ZREM K a|
            ZLEXCOUNT K - +|ZLEXCOUNT K x +|ZRANGE K 0 -1|ZRANGE K x y|ZRANGE K 0 -1 BYSCORE|ZRANGE K 0 -1 BYLEX|
            ZREVRANGE K 0 -1|ZPOPMIN K|ZPOPMAX K 2|ZPOPMIN K 0|ZPOPMIN K x|ZMPOP 1 K MIN|ZMPOP 2 other K MAX|
            BZPOPMIN K 0.001|BZMPOP 0.001 1 K MIN|ZUNION 1 K|ZINTER 2 K K|ZDIFF 1 K|ZINTERCARD 1 K|ZUNIONSTORE d 1 K
            ZUNION 1 K WEIGHTS x|ZRANGEBYSCORE K 0 1|ZRANGEBYLEX K - +|ZREVRANGEBYSCORE K 1 0|ZREVRANGEBYLEX K + -|
            ZREMRANGEBYRANK K 0 -1|ZREMRANGEBYRANK K x 1|ZREMRANGEBYSCORE K 0 1|ZREMRANGEBYLEX K - +|ZSCAN K 0|
            ZSCAN K 0 nope|ZSCAN K x|ZRANGESTORE other K 0 -1|ZRANGESTORE text none 0 -1|ZINCRBY K 1 a|DEL none"""
        ):
            pair.words(line.replace("K", key))
            pair.words("SET text 1")


def test_lengths_at_which_a_set_is_stored_otherwise(pair: Pair) -> None:
    """Also what OBJECT ENCODING says agrees: both borders are Redis's."""
    pair.words("FLUSHALL")
    for count in range(126, 131):
        pair.words("DEL z")
        for number in range(count):
            pair.words(f"ZADD z {number} m{number}")
        pair.words("OBJECT ENCODING z")
        pair.words("ZRANGE z 0 -1 WITHSCORES")
    for length in range(62, 67):
        pair.words("DEL z")
        pair.run((b"ZADD", b"z", b"1", b"x" * length))
        pair.words("OBJECT ENCODING z")


def test_a_set_is_renamed_expires_and_is_freed_like_other_values(pair: Pair) -> None:
    pair.words("FLUSHALL")
    fill(pair, b"large", 3000)
    for line in lines(
        """TYPE large|RENAME large other|ZCARD other|EXPIRE other 1000|TTL other|ZADD other 1 new|TTL other|
        ZRANGESTORE other other 0 -1|TTL other|UNLINK other|ZADD other 1 a|SET other 1|GET other|SCAN 0 TYPE zset"""
    ):
        pair.words(line)
