"""HRANDFIELD against the real Redis: what does not depend on chance is the same, and chance is fair."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from against_redis import Pair

SIZES = [1, 5, 100, 1000]  # packed and not


def fill(pair: Pair, size: int) -> None:
    pair.run((b"DEL", b"h"))
    pair.run((b"HSET", b"h", *(part for n in range(size) for part in (b"f%d" % n, b"v%d" % n))))


def shape(reply: Any) -> Any:
    """The types and lengths of a reply without its strings."""
    kind, value = reply
    return (kind, [shape(item) for item in value]) if isinstance(value, list) else (kind, value is None)


def flat(reply: Any) -> list[bytes]:
    kind, value = reply
    return [text for item in value for text in flat(item)] if kind == "*" else [value]


def test_errors_and_what_chance_cannot_change_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    fill(pair, 3)
    pair.words("SET s 1")
    for line in [
        "HRANDFIELD h 0",
        "HRANDFIELD h 0 WITHVALUES",
        "HRANDFIELD h x",
        "HRANDFIELD h 2 foo",
        "HRANDFIELD h 2 withvalues x",
        "HRANDFIELD none",
        "HRANDFIELD none 1",
        "HRANDFIELD none -1 WITHVALUES",
        "HRANDFIELD none x",
        "HRANDFIELD s",
        "HRANDFIELD s 1",
        "HRANDFIELD s 0 foo",
        "HRANDFIELD h -9223372036854775808",
        "HRANDFIELD h -9223372036854775807 WITHVALUES",
        "HRANDFIELD h -4611686018427387904 WITHVALUES",
        "HRANDFIELD h 4611686018427387904 WITHVALUES",
        "HRANDFIELD",
    ]:
        pair.words(line)


@pytest.mark.parametrize("size", SIZES)
def test_replies_have_the_same_shape(pair: Pair, size: int) -> None:
    fill(pair, size)
    for count in ["", "1", "3", "70", "999", "100000", "-1", "-3", "-2500"]:
        for options in ["", " WITHVALUES"] if count else [""]:
            words = tuple(f"HRANDFIELD h {count}{options}".encode().split())
            assert shape(pair.ours.run(*words)) == shape(pair.redis.run(*words)), words


@pytest.mark.parametrize("size", SIZES)
def test_fields_come_once_with_their_values(pair: Pair, size: int) -> None:
    fill(pair, size)
    for count in [1, 2, size // 5 + 1, size // 2 + 1, size, size + 7]:
        found = flat(pair.ours.run(b"HRANDFIELD", b"h", b"%d" % count, b"WITHVALUES"))
        fields, values = found[::2], found[1::2]
        assert len(set(fields)) == len(fields) == min(count, size)
        assert [b"v" + field[1:] for field in fields] == values


@pytest.mark.parametrize(("size", "count"), [(20, 1), (20, 7), (20, -7), (300, 20), (300, 200), (300, -50)])
def test_every_field_has_about_the_same_chance(pair: Pair, size: int, count: int) -> None:
    fill(pair, size)
    draws = 200 * size // abs(count) + 1
    pair.ours.send(*[(b"HRANDFIELD", b"h", b"%d" % count)] * draws)
    seen = Counter(field for _ in range(draws) for field in flat(pair.ours.read()))
    assert len(seen) == size
    # A chain of a dict is picked before its entry, so that those of long chains come less often: nearly uniform.
    expected = draws * abs(count) / size
    assert min(seen.values()) > expected / 8
    assert max(seen.values()) < expected * 4


@pytest.mark.parametrize(
    ("filling", "asking"), [("HSET k {0} v{0}", "HRANDFIELD k {} WITHVALUES"), ("ZADD k {0} {0}", "ZRANDMEMBER k {}")]
)
def test_a_long_reply_lets_others_in(pair: Pair, peers: Any, filling: str, asking: str) -> None:
    names = [b"%d" % n for n in range(300)]
    other, waiting = (peers[1].connect() for _ in range(2))
    other.run(b"DEL", b"k")
    for name in names:
        other.run(*filling.format(name.decode()).encode().split())
    waiting.send(tuple(asking.format(-200_000).encode().split()), (b"PING",))
    assert other.run(b"PING") == ("+", b"PONG")
    # What is asked for goes meanwhile: what it held is repeated to the end.
    assert other.run(b"SET", b"k", b"text") == ("+", b"OK")
    found = flat(waiting.read())
    assert len(found) == (400_000 if "WITHVALUES" in asking else 200_000)
    assert {text for text in found if not text.startswith(b"v")} <= set(names)
    assert waiting.read() == ("+", b"PONG")
    # One without an end is ended by the client, and refused where it would let nobody in.
    other.run(b"DEL", b"k")
    other.run(*filling.format("x" if "HSET" in filling else "1").encode().split())
    waiting.send(tuple(asking.format(-(2**62) + 1).encode().split()))
    assert other.run(b"PING") == ("+", b"PONG")
    waiting.close()
    other.run(b"MULTI")
    other.run(*asking.format(-5000).encode().split())
    other.run(*asking.format(-(2**62) + 1).encode().split())
    (_, ((kind, few), (refused, why))) = other.run(b"EXEC")
    assert (kind, len(few) % 5000) == ("*", 0)
    assert (refused, why[:6]) == ("-", b"LIMIT ")
    other.close()


def test_a_large_value_of_a_field_that_has_gone_is_repeated(peers: Any) -> None:
    large = b"z" * 30_000
    other, waiting = (peers[1].connect() for _ in range(2))
    other.run(b"DEL", b"k")
    other.run(b"HSET", b"k", b"f", large)
    waiting.send((b"HRANDFIELD", b"k", b"-3000", b"WITHVALUES"))
    assert other.run(b"DEL", b"k") == (":", 1)
    assert flat(waiting.read()) == [b"f", large] * 3000
    other.close()
    waiting.close()
