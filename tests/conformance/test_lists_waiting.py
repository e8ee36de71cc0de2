"""Commands that move elements between lists, and wait for them, against the real Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from against_redis import (
    INTEGERS,
    KEYS,
    LENGTHS,
    NUMBERS,
    VALUES,
    Pair,
    command,
    run_random_sequences,
    some,
    words,
)
from hypothesis import strategies as st

SIDES = words("LEFT", "RIGHT", "left", "right", "up")
FEW = st.sampled_from([b"1", b"2", b"3", b"0", b"-1", b"x", b"9223372036854775808"])
COUNTED_KEYS = st.one_of(
    KEYS.map(lambda key: (b"1", key)),
    st.tuples(KEYS, KEYS).map(lambda keys: (b"2", *keys)),
    st.tuples(FEW, KEYS),
)
COUNT = some(st.one_of(st.tuples(words("COUNT").map(lambda w: w[0]), INTEGERS), words("COUNT", "NOPE")), 0, 2)
# Nothing here waits for long: what is not there is waited for for a millisecond.
TIMEOUTS = st.sampled_from([b"0.001", b"0.001", b"0.0005", b"x", b"-1", b"nan", b"inf", b"1e5000", b""])

SHORT = st.one_of(NUMBERS, st.binary(max_size=4), st.just(b"x" * 70))
POSITION_OPTIONS = some(
    st.one_of(
        st.tuples(st.just(b"RANK"), INTEGERS),
        st.tuples(st.just(b"COUNT"), INTEGERS),
        st.tuples(st.just(b"MAXLEN"), INTEGERS),
        words("RANK", "NOPE"),
    ),
    0,
    3,
)
ONE_OF_FEW = st.sampled_from([b"p", b"q", b"r"])

COMMANDS = [
    command("rpush", KEYS, some(SHORT)),
    command("lpush", KEYS, some(SHORT)),
    command("rpush", KEYS, some(ONE_OF_FEW, 1, 8)),
    command("lmove", KEYS, KEYS, SIDES, SIDES),
    command("rpoplpush", KEYS, KEYS),
    command("lmpop", COUNTED_KEYS, SIDES, COUNT),
    command("lpos", KEYS, ONE_OF_FEW, POSITION_OPTIONS),
    command("blpop", some(KEYS), TIMEOUTS),
    command("brpop", some(KEYS), TIMEOUTS),
    command("blmove", KEYS, KEYS, SIDES, SIDES, TIMEOUTS),
    command("brpoplpush", KEYS, KEYS, TIMEOUTS),
    command("blmpop", TIMEOUTS, COUNTED_KEYS, SIDES, COUNT),
    command("lrange", KEYS, st.just(b"0"), st.just(b"-1")),
    command("set", KEYS, VALUES),
    command("del", KEYS),
    command("exists", some(KEYS)),
]


@pytest.fixture(autouse=True, scope="module")
def prompt_timeouts(redis_peer: Any) -> None:
    """Redis looks for waits that are over so many times a second, ten by default."""
    connection = redis_peer.connect()
    assert connection.run(b"CONFIG", b"SET", b"hz", b"500") == ("+", b"OK")
    connection.close()


@LENGTHS
def test_random_moves_and_pops_agree(pair: Pair, long: bool) -> None:
    run_random_sequences(pair, COMMANDS, long=long, examples=40, longest=40)


def test_options_and_errors_agree(pair: Pair) -> None:
    pair.words("FLUSHALL")
    for line in [
        "RPUSH l a b c a b c a",
        "LPOS l a",
        "LPOS l a RANK -1",
        "LPOS l a RANK -2 COUNT 0",
        "LPOS l a RANK 2 COUNT 1 MAXLEN 3",
        "LPOS l a RANK 0",
        "LPOS l a RANK -9223372036854775808 COUNT 0",
        "LPOS l a RANK 9223372036854775807",
        "LPOS l z COUNT 0",
        "LPOS none a",
        "LPOS none a COUNT 0",
        "LPOS none a COUNT -1",
        "LPOS l a MAXLEN -1",
        "LMOVE l l LEFT RIGHT",
        "LMOVE l l LEFT LEFT",
        "LRANGE l 0 -1",
        "LMOVE l m RIGHT LEFT",
        "LMOVE none m RIGHT LEFT",
        "SET s 1",
        "LMOVE s m LEFT LEFT",
        "LMOVE l s LEFT LEFT",
        "LMOVE none s LEFT LEFT",
        "BLMOVE l s LEFT LEFT 0",
        "BLMOVE s l LEFT LEFT 0",
        "RPOPLPUSH l s",
        "RPOPLPUSH none s",
        "LMPOP 2 none l LEFT COUNT 3",
        "LMPOP 2 none s LEFT",
        "LMPOP 3 none l LEFT",
        "LMPOP 1 l LEFT COUNT 9223372036854775807",
        "EXISTS l",
        "BLPOP s 0",
        "BLPOP none s l 0",
        "BLMPOP x 1 l UP",
        "BLMPOP x 1 l LEFT COUNT",
        "BLMPOP x 1 l LEFT",
        "BLMPOP 0 1 m RIGHT COUNT 2",
        "BLPOP none -1",
        "BLPOP none 1e400",
        "BLPOP none 1e5000",
        "BLMOVE none m up left x",
        "BLMOVE none m left left x",
        "BRPOPLPUSH none m x",
        "BLPOP none 0.01",
        "BLMOVE none m LEFT LEFT 0.01",
        "BRPOPLPUSH none m 0.01",
        "BLMPOP 0.01 1 none LEFT",
        "RPUSH one x",
        "BRPOP none one 0",
        "EXISTS one",
    ]:
        pair.words(line)


Connect = Callable[[], Pair]


@pytest.fixture
def connect(peers: Any, request: pytest.FixtureRequest) -> Connect:
    """More connections to both servers, each side's first ones blocked before the next command is sent."""

    def connect(protocol: int = 2) -> Pair:
        pair = Pair(peers, protocol)
        request.addfinalizer(pair.close)
        return pair

    return connect


def wait(pair: Pair, line: str, blocked: int) -> None:
    """Sends a command that nothing answers yet, until `blocked` clients wait on either server."""
    words = tuple(word.encode() for word in line.split())
    for connection, watch in ((pair.redis, watchers[0]), (pair.ours, watchers[1])):
        connection.send(words)
        until_blocked(watch, blocked)


watchers: list[Any] = []


def until_blocked(connection: Any, blocked: int) -> None:
    for _ in range(5000):
        _, text = connection.run(b"INFO", b"clients")
        if b"blocked_clients:%d\r\n" % blocked in text:
            return
    raise AssertionError(f"{blocked} clients should wait: {text!r}")


def replies(pair: Pair) -> Any:
    """What both say at last; it must be the same."""
    redis, ours = pair.redis.read(), pair.ours.read()
    assert ours == redis
    return redis


@pytest.fixture
def main(peers: Any, connect: Connect) -> Pair:
    pair = connect()
    watchers[:] = [pair.redis, pair.ours]
    pair.words("FLUSHALL")
    return pair


def test_who_came_first_is_served_first(main: Pair, connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    wait(first, "BLPOP a b 0", 1)
    wait(second, "BRPOP b a 0", 2)
    wait(third, "BLMPOP 0 2 b a LEFT COUNT 2", 3)
    main.words("RPUSH a 1 2 3 4 5")
    assert replies(first) == ("*", [("$", b"a"), ("$", b"1")])
    assert replies(second) == ("*", [("$", b"a"), ("$", b"5")])
    assert replies(third)[1][1] == ("*", [("$", b"2"), ("$", b"3")])
    main.words("LRANGE a 0 -1")
    until_blocked(main.ours, 0)


def test_a_client_that_waits_for_another_type_lets_others_pass(main: Pair, connect: Connect) -> None:
    first, second = connect(), connect()
    wait(first, "BLPOP a 0", 1)
    main.words("SET a 1")
    until_blocked(main.ours, 1)
    main.words("DEL a")
    wait(second, "BLMOVE a a LEFT RIGHT 0", 2)
    main.words("RPUSH a 1")
    assert replies(first) == ("*", [("$", b"a"), ("$", b"1")])
    until_blocked(main.ours, 1)
    main.words("RPUSH a 2 3")
    assert replies(second) == ("$", b"2")
    main.words("LRANGE a 0 -1")


def test_waiters_feed_waiters(main: Pair, connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    wait(first, "BLMOVE a b LEFT LEFT 0", 1)
    wait(second, "BRPOPLPUSH b c 0", 2)
    wait(third, "BLPOP c 0", 3)
    main.words("RPUSH a 1")
    assert replies(first) == ("$", b"1")
    assert replies(second) == ("$", b"1")
    assert replies(third) == ("*", [("$", b"c"), ("$", b"1")])
    main.words("EXISTS a b c")


def test_a_rotation_of_one_key_serves_all_who_wait(main: Pair, connect: Connect) -> None:
    waiting = [connect() for _ in range(4)]
    for count, pair in enumerate(waiting, 1):
        wait(pair, "BLMOVE a a LEFT RIGHT 0", count)
    main.words("RPUSH a 1 2")
    for pair in waiting:
        replies(pair)
    main.words("LRANGE a 0 -1")


def test_a_target_of_another_type_ends_the_wait_with_an_error(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "BLMOVE a s LEFT LEFT 0", 1)
    main.words("SET s 1")
    main.words("RPUSH a 1")
    assert replies(waiting)[0] == "-"
    main.words("LRANGE a 0 -1")


def test_what_is_sent_behind_a_wait_is_answered_after_it(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "BLPOP a a a 0", 1)
    for connection in (waiting.redis, waiting.ours):
        connection.send((b"RPUSH", b"a", b"9"), (b"BLPOP", b"a", b"0"))
    main.words("RPUSH a 1")
    assert [replies(waiting)[0] for _ in range(3)] == ["*", ":", "*"]
    main.words("EXISTS a")


@pytest.mark.parametrize("bring", ["RENAME src a", "COPY src a", "MOVE", "LMOVE src a LEFT LEFT", "RPOPLPUSH src a"])
def test_a_key_that_comes_another_way_is_noticed(main: Pair, connect: Connect, bring: str) -> None:
    waiting = connect()
    wait(waiting, "BLPOP a 0", 1)
    if bring == "MOVE":
        for line in ["SELECT 1", "RPUSH a 5", "MOVE a 0", "SELECT 0"]:
            main.words(line)
    else:
        main.words("RPUSH src 5")
        main.words(bring)
    assert replies(waiting) == ("*", [("$", b"a"), ("$", b"5")])
    main.words("EXISTS a")


def test_exchanged_databases_serve_who_waits(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "BLPOP a b 0", 1)
    for line in ["SELECT 1", "RPUSH b 5", "SWAPDB 0 1", "SELECT 0"]:
        main.words(line)
    assert replies(waiting) == ("*", [("$", b"b"), ("$", b"5")])
    main.words("DBSIZE")


@pytest.mark.parametrize("way", ["", "TIMEOUT", "ERROR"])
def test_a_wait_can_be_ended_by_others(main: Pair, connect: Connect, way: str) -> None:
    waiting = connect()
    ids = [connection.run(b"CLIENT", b"ID")[1] for connection in (waiting.redis, waiting.ours)]
    wait(waiting, "BLMOVE a b LEFT LEFT 0", 1)
    for connection, number in zip((main.redis, main.ours), ids, strict=True):
        assert connection.run(b"CLIENT", b"UNBLOCK", b"%d" % number, *([way.encode()] if way else [])) == (":", 1)
    replies(waiting)
    main.words("RPUSH a 1")
    main.words("LRANGE a 0 -1")


def test_a_client_that_goes_takes_nothing_with_it(main: Pair, connect: Connect) -> None:
    first, second = connect(), connect()
    wait(first, "BLPOP a b 0", 1)
    wait(second, "BLPOP b a 0", 2)
    first.close()
    until_blocked(main.redis, 1)
    until_blocked(main.ours, 1)
    main.words("RPUSH a 1 2")
    replies(second)
    main.words("LRANGE a 0 -1")


def test_redis_py_waits_through_timeouts_and_pushes(our_peer: Any) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        assert client.blpop(["none"], timeout=0.02) is None
        assert client.blmove("none", "b", timeout=0.02) is None
        client.rpush("a", 1, 2, 3)
        assert client.brpop(["none", "a"], timeout=1) == (b"a", b"3")
        assert client.blmpop(0.02, 1, "a", direction="LEFT", count=5) == [b"a", [b"1", b"2"]]
        assert client.blmpop(0.02, 1, "a", direction="LEFT") is None


def test_a_transaction_serves_who_waits_when_it_is_over(main: Pair, connect: Connect) -> None:
    """From the key that came first, although the other one stands first in the request."""
    first, second = connect(), connect()
    wait(first, "BLPOP a b 0", 1)
    wait(second, "BLMPOP 0 2 a b RIGHT COUNT 9", 2)
    for line in ["MULTI", "RPUSH b 1 2", "LPOP b", "RPUSH a 3", "EXEC"]:
        main.words(line)
    assert replies(first) == ("*", [("$", b"b"), ("$", b"2")])
    replies(second)
    main.words("EXISTS a b")


def test_what_a_transaction_takes_back_serves_nobody(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "BLPOP a 0", 1)
    for line in ["MULTI", "RPUSH a 1", "DEL a", "EXEC", "MULTI", "RPUSH a 1", "RENAME a c", "SET a 1", "EXEC", "DEL a"]:
        main.words(line)
    until_blocked(main.redis, 1)
    until_blocked(main.ours, 1)
    main.words("RPUSH a 7")
    assert replies(waiting) == ("*", [("$", b"a"), ("$", b"7")])


def test_nothing_waits_inside_a_transaction(main: Pair) -> None:
    for line in [
        "BLPOP a 0",
        "BLMOVE a b LEFT LEFT 0",
        "BRPOPLPUSH a b 0",
        "BLMPOP 0 1 a LEFT",
        "BLPOP l 0",
        "BRPOP l 0",
    ]:
        for part in ["RPUSH l 1 2 3", "MULTI", line, "EXEC"]:
            main.words(part)


def test_a_watched_key_that_a_waiting_client_empties_is_noticed(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "BLPOP a 0", 1)
    other = connect()
    other.words("WATCH a")
    main.words("RPUSH a 1")
    replies(waiting)
    for line in ["MULTI", "PING", "EXEC"]:
        other.words(line)


def test_a_watch_sees_a_key_come_from_another_database(main: Pair, connect: Connect) -> None:
    main.words("WATCH w")
    other = connect()
    for part in ["SELECT 1", "SET w 1", "SWAPDB 0 1"]:
        other.words(part)
    for part in ["MULTI", "PING", "EXEC", "FLUSHALL"]:
        main.words(part)


@pytest.mark.parametrize(
    "line", ["SWAPDB 0 1", "MOVE w 1", "COPY v w REPLACE", "SWAPDB 1 0", "SWAPDB 2 3", "SWAPDB 0 0", "TOUCH w"]
)
def test_watches_see_keys_go_between_databases(main: Pair, connect: Connect, line: str) -> None:
    for part in ["SET w 1", "SET v 2", "WATCH w"]:
        main.words(part)
    connect().words(line)
    for part in ["MULTI", "PING", "EXEC", "SELECT 0", "FLUSHALL"]:
        main.words(part)
