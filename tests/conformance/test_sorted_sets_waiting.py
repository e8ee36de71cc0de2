"""Clients that wait for members of sorted sets are served as by Redis 7.0."""

from __future__ import annotations

from typing import Any

import pytest
from against_redis import Pair
from test_lists_waiting import Connect, connect, main, prompt_timeouts, replies, until_blocked, wait

__all__ = ["connect", "main", "prompt_timeouts"]  # fixtures


@pytest.mark.parametrize("protocol", [2, 3])
def test_who_came_first_is_served_first(main: Pair, connect: Connect, protocol: int) -> None:
    first, second, third = connect(protocol), connect(protocol), connect(protocol)
    wait(first, "BZPOPMIN a b 0", 1)
    wait(second, "BZPOPMAX b a 0", 2)
    wait(third, "BZMPOP 0 2 b a MIN COUNT 2", 3)
    main.words("ZADD a 1 one 2 two 3 three 4 four 5 five")
    assert [value for _, value in replies(first)[1]] == [b"a", b"one", b"1"]
    assert [value for _, value in replies(second)[1]] == [b"a", b"five", b"5"]
    assert replies(third)[1][0] == ("$", b"a")
    main.words("ZRANGE a 0 -1 WITHSCORES")
    until_blocked(main.ours, 0)


@pytest.mark.parametrize("bring", ["ZINCRBY a 5 m", "RENAME src a", "ZUNIONSTORE a 1 src", "ZRANGESTORE a src 0 -1"])
def test_a_set_that_comes_another_way_is_noticed(main: Pair, connect: Connect, bring: str) -> None:
    waiting = connect()
    main.words("ZADD src 5 m")
    wait(waiting, "BZPOPMAX a 0", 1)
    main.words(bring)
    assert replies(waiting) == ("*", [("$", b"a"), ("$", b"m"), ("$", b"5")])
    main.words("EXISTS a")


def test_a_value_of_another_type_leaves_the_client_waiting(main: Pair, connect: Connect) -> None:
    of_sets, of_lists = connect(), connect()
    wait(of_sets, "BZPOPMIN a 0", 1)
    wait(of_lists, "BLPOP a 0", 2)
    main.words("RPUSH a element")
    assert replies(of_lists) == ("*", [("$", b"a"), ("$", b"element")])
    until_blocked(main.ours, 1)
    main.words("ZADD a 1 m")
    replies(of_sets)
    main.words("EXISTS a")


@pytest.mark.parametrize("line", ["BZPOPMIN a b 0.01", "BZPOPMAX a 0.01", "BZMPOP 0.01 2 a b MAX COUNT 3"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_wait_that_is_over_is_answered_by_null(main: Pair, connect: Connect, line: str, protocol: int) -> None:
    waiting = connect(protocol)
    assert waiting.words(line)[1] in {None, b""}
    main.words("ZADD a 1 m")
    main.words("ZCARD a")


def test_redis_py_waits_and_pops(our_peer: Any) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        assert client.bzpopmin(["none"], timeout=0.02) is None
        client.zadd("z", {"a": 1, "b": 2.5, "c": 3})
        assert client.bzpopmax(["none", "z"], timeout=1) == (b"z", b"c", 3.0)
        assert client.zpopmin("z") == [(b"a", 1.0)]
        assert client.bzmpop(0.02, 1, "z", min=True, count=5) == [b"z", [[b"b", b"2.5"]]]
        assert client.bzmpop(0.02, 1, "z", max=True) is None
