"""Values exactly at a limit are taken, one more is refused, and nothing has changed then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

import replay_server as rs

LEAST = 1 << 20  # that proto-max-bulk-len and max-request-bytes may be
MOST = 1 << 30  # that proto-max-bulk-len may be


@pytest.fixture(scope="module")
def small() -> Iterator[rs.Server]:
    settings = {"proto-max-bulk-len": LEAST, "max-request-bytes": 2 * LEAST, "max-arguments": 16}
    with rs.Server(config=settings) as server:
        yield server
        assert server.running, server.log()


@pytest.fixture
def connect(small: rs.Server, open_raw: Callable[[str], Any]) -> Callable[[], Any]:
    return lambda: open_raw(small.url)


def refused(connect: Callable[[], Any], *arguments: Any) -> str:
    """The error; the connection may be closed behind it."""
    reply = connect().command(*arguments)
    assert isinstance(reply, Exception), reply
    return str(reply)


def test_an_argument_is_as_long_as_it_may_be(connect):
    assert connect().command("SET", "k", b"x" * LEAST) == "OK"
    longer = connect()
    longer.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (LEAST + 1))  # and none of it, since the server hangs up
    assert "invalid bulk length" in str(longer.reply())
    assert connect().command("GET", "k") == b"x" * LEAST


def test_a_value_grows_to_what_an_argument_may_be(connect):
    raw = connect()
    for grow in (("APPEND", "grown", "!"), ("SETRANGE", "grown", LEAST, "!")):
        assert raw.command("SET", "grown", b"x" * (LEAST - 1)) == "OK"
        assert raw.command("APPEND", "grown", "y") == LEAST
        assert "exceeds maximum allowed size" in str(raw.command(*grow))
        assert raw.command("STRLEN", "grown") == LEAST
    assert raw.command("DEL", "bits") in (0, 1)
    assert raw.command("SETBIT", "bits", 8 * LEAST - 1, 1) == 0
    assert "out of range" in str(raw.command("SETBIT", "bits", 8 * LEAST, 1))
    assert raw.command("STRLEN", "bits") == LEAST


def test_a_request_has_as_many_bytes_and_arguments_as_it_may(connect):
    room = 2 * LEAST - len("MSET") - len("ab")
    first, second = b"x" * LEAST, b"y" * (room - LEAST)
    assert connect().command("MSET", "a", first, "b", second) == "OK"
    assert "max-request-bytes" in refused(connect, "MSET", "a", b"z", "b", b"z" * LEAST, "c", b"z" * (room - LEAST - 1))
    assert connect().command("MGET", "a", "b") == [first, second]
    assert connect().command("RPUSH", "list", *range(14)) == 14
    assert "invalid multibulk length" in refused(connect, "RPUSH", "list", *range(15))
    assert connect().command("LLEN", "list") == 14


def test_a_script_passes_no_longer_argument_than_a_client_could(connect):
    raw = connect()
    script = "return redis.call('SET', KEYS[1], string.rep('x', ARGV[1]))"
    assert raw.command("EVAL", script, 1, "scripted", LEAST) == "OK"
    assert "longer than proto-max-bulk-len" in str(raw.command("EVAL", script, 1, "scripted", LEAST + 1))
    assert raw.command("STRLEN", "scripted") == LEAST


def test_names_are_as_long_as_they_may_be(connect):
    raw = connect()
    body = msgpack.packb({"capacity": 5, "sampler": "uniform", "signature": {"x": ["int8", []]}})
    assert raw.command("REPLAY.CREATE", "n" * 255, body) == "OK"
    assert "expected 1 to 255 bytes" in str(raw.command("REPLAY.CREATE", "n" * 256, body))
    assert raw.command("REPLAY.LIST") == [b"n" * 255]


def test_a_length_that_is_kept_in_32_bits_is_not_let_grow_beyond(connect):
    raw, setting = connect(), "proto-max-bulk-len"
    before = raw.command("CONFIG", "GET", setting)
    for value in (MOST + 1, 4 << 30, 1 << 62):
        assert "CONFIG SET failed" in str(raw.command("CONFIG", "SET", setting, value)), value
        assert raw.command("CONFIG", "GET", setting) == before
    assert raw.command("CONFIG", "SET", setting, MOST) == "OK"
    assert raw.command("CONFIG", "SET", setting, before[1]) == "OK"
    with pytest.raises(rs.ServerError, match=setting):
        rs.Server(config={setting: MOST + 1})
