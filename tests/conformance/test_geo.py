"""Places in sorted sets against the real Redis, byte for byte."""

from __future__ import annotations

import random

from against_redis import (
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

MEMBERS = st.sampled_from([b"a", b"b", b"c", b"d", b"Palermo", b"", b"\xff\r\n", b"m" * 70])


def degrees(most: float, odd: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.floats(-most, most).map(lambda number: b"%.6f" % number),
        st.integers(-3, 3).map(lambda number: b"%d" % number),
        st.integers(-3, 3).map(lambda number: b"%d" % number),
        st.sampled_from(odd),
    )


LONGITUDE = degrees(180, [b"180", b"-180", b"179.999999", b"-179.99999", b"180.1", b"x", b"nan"])
LATITUDE = degrees(85.05, [b"85.05112878", b"-85.05112878", b"85.06", b"70", b"-81", b"", b"inf"])
POINT = st.tuples(LONGITUDE, LATITUDE)
UNIT = st.sampled_from([b"m", b"km", b"KM", b"ft", b"mi", b"nm"])
LENGTH = st.one_of(
    st.floats(0, 3000).map(lambda number: b"%.3f" % number),
    st.sampled_from([b"0", b"1", b"100", b"100000", b"20000000", b"500", b"-1", b"x", b"1e9"]),
)
COUNT = st.sampled_from([b"COUNT 1", b"count 2", b"COUNT 3 ANY", b"COUNT 0", b"COUNT 100", b"ANY", b"COUNT x"]).map(
    lambda line: tuple(line.split())
)
OPTIONS = some(st.one_of(words("ASC", "desc", "WITHDIST", "WITHHASH", "WITHCOORD", "withcoord", "NOPE"), COUNT), 0, 3)
STORED = some(
    st.one_of(words("ASC", "DESC"), COUNT, st.tuples(cased("store"), KEYS), st.tuples(cased("storedist"), KEYS)), 0, 3
)
CENTER = st.one_of(
    st.tuples(cased("frommember"), MEMBERS),
    st.tuples(cased("fromlonlat"), LONGITUDE, LATITUDE),
    st.tuples(cased("fromlonlat"), LONGITUDE, LATITUDE),
)
SHAPE = st.one_of(
    st.tuples(cased("byradius"), LENGTH, UNIT),
    st.tuples(cased("bybox"), LENGTH, LENGTH, UNIT),
)
SEARCH = st.one_of(st.tuples(CENTER, SHAPE), st.tuples(SHAPE, CENTER), some(st.one_of(CENTER, SHAPE), 1, 3)).map(
    lambda parts: tuple(word for part in parts for word in (part if isinstance(part, tuple) else (part,)))
)

COMMANDS = [
    command("geoadd", KEYS, some(words("NX", "XX", "CH", "ch", "INCR"), 0, 2), some(st.tuples(POINT, MEMBERS).map(
        lambda pair: (*pair[0], pair[1])), 1, 4)),
    command("geoadd", KEYS, some(st.tuples(POINT, MEMBERS).map(lambda pair: (*pair[0], pair[1])), 1, 8)),
    command("geoadd", KEYS, some(st.tuples(POINT, MEMBERS).map(lambda pair: (*pair[0], pair[1])), 1, 8)),
    command("geopos", KEYS, some(MEMBERS, 0, 3)),
    command("geohash", KEYS, some(MEMBERS, 0, 3)),
    command("geodist", KEYS, MEMBERS, MEMBERS, some(UNIT, 0, 1)),
    command("geosearch", KEYS, SEARCH, OPTIONS),
    command("geosearch", KEYS, SEARCH, OPTIONS),
    command("geosearchstore", KEYS, KEYS, SEARCH, some(st.one_of(words("ASC", "STOREDIST", "WITHDIST"), COUNT), 0, 2)),
    command("georadius", KEYS, POINT, LENGTH, UNIT, OPTIONS),
    command("georadius", KEYS, POINT, LENGTH, UNIT, STORED),
    command("georadius_ro", KEYS, POINT, LENGTH, UNIT, OPTIONS),
    command("georadiusbymember", KEYS, MEMBERS, LENGTH, UNIT, STORED),
    command("georadiusbymember_ro", KEYS, MEMBERS, LENGTH, UNIT, OPTIONS),
    command("zrange", KEYS, st.just(b"0"), st.just(b"-1"), words("", "WITHSCORES")),
    command("zadd", KEYS, st.one_of(st.sampled_from([b"-1", b"1.5", b"4503599627370496"]), ODD_NUMBERS), MEMBERS),
    command("set", KEYS, st.just(b"text")),
    command("del", KEYS),
]  # fmt: skip


@LENGTHS
def test_random_places_agree(pair: Pair, long: bool) -> None:
    run_random_sequences(pair, COMMANDS, long=long, examples=150, longest=50)


def fill(pair: Pair, key: bytes, places: list[tuple[float, float]]) -> None:
    for at in range(0, len(places), 500):
        triples = [(b"%.9f" % x, b"%.9f" % y, b"m%d" % (at + i)) for i, (x, y) in enumerate(places[at : at + 500])]
        pair.run((b"GEOADD", key, *(word for triple in triples for word in triple)))


def test_searches_of_all_sizes_find_the_same_in_the_same_order(pair: Pair) -> None:
    """Without sorting, the order is that in which Redis walks the cells around the centre."""
    chance = random.Random(11)
    pair.words("FLUSHALL")
    fill(pair, b"k", [(chance.uniform(-180, 180), chance.uniform(-85, 85)) for _ in range(1500)])
    commands: list[tuple[bytes, ...]] = []
    for _ in range(300):
        center = (b"%.6f" % chance.uniform(-180, 180), b"%.6f" % chance.uniform(-85, 85))
        radius = b"%.3f" % 10 ** chance.uniform(0, 4.6)
        width, height = b"%.3f" % 10 ** chance.uniform(0, 4.3), b"%.3f" % 10 ** chance.uniform(0, 4.3)
        sort = chance.choice([(), (b"ASC",), (b"DESC",), (b"COUNT", b"7"), (b"COUNT", b"5", b"ANY")])
        found = (b"WITHDIST", b"WITHCOORD", b"WITHHASH")
        commands.append((b"GEOSEARCH", b"k", b"FROMLONLAT", *center, b"BYRADIUS", radius, b"km", *sort, *found))
        commands.append((b"GEOSEARCH", b"k", b"FROMLONLAT", *center, b"BYBOX", width, height, b"km", *sort, *found))
        commands.append((b"GEORADIUS", b"k", *center, radius, b"mi", *sort, b"STORE", b"d"))
        commands.append((b"ZRANGE", b"d", b"0", b"-1", b"WITHSCORES"))
        commands.append(
            (b"GEOSEARCHSTORE", b"d", b"k", b"FROMLONLAT", *center, b"BYRADIUS", radius, b"km", b"STOREDIST")
        )
        commands.append((b"ZRANGE", b"d", b"0", b"-1", b"WITHSCORES"))
    pair.run(*commands)


def test_large_searches_agree(pair: Pair) -> None:
    """So many members are searched in slices."""
    chance = random.Random(12)
    pair.words("FLUSHALL")
    fill(pair, b"k", [(chance.gauss(8, 2), chance.gauss(47, 2)) for _ in range(20_000)])
    for line in (
        "GEOSEARCH k FROMLONLAT 8 47 BYRADIUS 300 km",
        "GEOSEARCH k FROMLONLAT 8 47 BYRADIUS 300 km DESC WITHDIST",
        "GEOSEARCH k FROMMEMBER m7 BYBOX 400 300 km ASC COUNT 5000 WITHCOORD",
        "GEOSEARCHSTORE d k FROMLONLAT 8 47 BYRADIUS 300 km",
        "ZRANGE d 0 -1 WITHSCORES",
        "GEORADIUS k 8 47 20000 km ASC STOREDIST d",
        "ZRANGE d 0 -1 WITHSCORES",
    ):
        pair.words(line)


def test_keys_of_requests_agree(pair: Pair) -> None:
    for line in (
        "GEORADIUS k 1 2 3 km", "GEORADIUS k 1 2 3 km STORE d", "GEORADIUS k 1 2 3 km STORE d STOREDIST e",
        "GEORADIUSBYMEMBER k m 3 km STORE d", "GEORADIUSBYMEMBER k m 3 km",
        "GEOSEARCHSTORE d k FROMMEMBER m BYRADIUS 1 m",
    ):  # fmt: skip
        pair.words(f"COMMAND GETKEYS {line}")
