"""Sorted sets through redis-py, and what is left of them after a kill."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from against_redis import Command
from durable import assert_same, contents, kill, serve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_sorted_sets import adding, algebra, by_member, popping, popping_or_waiting, removing

NAMES = st.integers(0, 19).map(lambda number: b"key:%d" % number)


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_has_its_commands_on_sorted_sets(our_peer: Any, redis_peer: Any, protocol: int) -> None:
    """The same calls give the same Python objects from both servers."""
    redis = pytest.importorskip("redis")
    results = []
    for peer in (redis_peer, our_peer):
        with redis.Redis(unix_socket_path=str(peer.unix_path), protocol=protocol, decode_responses=True) as client:
            client.flushall()
            results.append(
                [
                    client.zadd("z", {"a": 1, "b": 2.5, "c": float("inf"), "d": "-7"}),
                    client.zadd("z", {"a": 9, "e": 3}, nx=True, ch=True),
                    client.zadd("z", {"a": 9}, xx=True, gt=True, ch=True),
                    client.zadd("z", {"a": 2}, incr=True),
                    client.zincrby("z", -0.5, "b"),
                    client.zcard("z"),
                    client.zcount("z", "-inf", "(3"),
                    client.zscore("z", "c"),
                    client.zmscore("z", ["a", "none"]),
                    client.zrank("z", "c"),
                    client.zrevrank("z", "none"),
                    client.zrange("z", 0, -1, withscores=True),
                    client.zrange("z", 0, -1, desc=True, withscores=True),
                    client.zrange("z", "-inf", "+inf", byscore=True, offset=1, num=2),
                    client.zrangebyscore("z", 0, 100, withscores=True, start=0, num=1),
                    client.zrevrangebyscore("z", "+inf", "-inf", withscores=True),
                    client.zrangestore("copy", "z", 0, 2),
                    client.zunion(["z", "copy"], aggregate="MAX", withscores=True),
                    client.zunionstore("sum", {"z": 2, "copy": 0.5}),
                    client.zinter(["z", "copy"], withscores=True),
                    client.zinterstore("both", ["z", "copy"]),
                    client.zintercard(2, ["z", "copy"], limit=2),
                    client.zdiff(["z", "copy"], withscores=True),
                    client.zdiffstore("less", ["z", "copy"]),
                    sorted(client.zscan_iter("z")),
                    client.zadd("lex", dict.fromkeys("abcdef", 0)),
                    client.zlexcount("lex", "[b", "+"),
                    client.zrangebylex("lex", "[b", "(e"),
                    client.zrevrangebylex("lex", "+", "-", start=1, num=2),
                    client.zremrangebylex("lex", "-", "[b"),
                    client.zpopmin("lex"),
                    client.zpopmax("lex", 2),
                    client.zmpop(1, ["sum"], max=True, count=2),
                    client.zremrangebyrank("z", 0, 0),
                    client.zremrangebyscore("z", 100, "+inf"),
                    client.zrem("z", "a", "none"),
                    client.zrange("z", 0, -1, withscores=True),
                    len(client.zrandmember("z", 5)),
                ]
            )
    assert results[1] == results[0]


def test_a_kill_leaves_sorted_sets_as_they_were(tmp_path: Path) -> None:
    commands = (
        adding(NAMES) * 2
        + removing(NAMES)
        + popping(NAMES)
        + popping_or_waiting(NAMES)
        + algebra(NAMES)
        + by_member(NAMES)
    )
    with serve(tmp_path, "no") as (server, client):

        @settings(
            max_examples=80,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.one_of(*commands), min_size=1, max_size=30))
        def run(sequence: list[Command]) -> None:
            pipeline = client.pipeline(transaction=False)
            for words in sequence:
                pipeline.execute_command(*words)
            pipeline.execute(raise_on_error=False)

        run()
        waiting = threading.Thread(target=client.bzpopmin, args=("waited", 20))
        waiting.start()
        client.zadd("waited", {"first": 1, "second": 2, "third": 3})
        waiting.join()
        client.zadd("large", {f"member:{number}": number % 77 for number in range(1000)})
        client.zremrangebyrank("large", 100, 300)
        before = contents(client)
        assert before[0, b"waited"][1] == [(b"second", 2.0), (b"third", 3.0)]
        assert len(before) >= 3
        client.config_set("appendfsync", "always")
        client.set("last", "1")
        client.delete("last")
        kill(server)
    with serve(tmp_path) as (_, client):
        assert_same(contents(client), before)


@pytest.mark.parametrize(("keys", "members"), [(2000, 10), (500, 100), (10, 5000)])
def test_a_member_takes_no_more_memory_than_in_redis(our_peer: Any, redis_peer: Any, keys: int, members: int) -> None:
    redis = pytest.importorskip("redis")
    taken = []
    for peer in (redis_peer, our_peer):
        with redis.Redis(unix_socket_path=str(peer.unix_path)) as client:
            client.flushall()
            before = client.info("memory")["used_memory"]
            for key in range(keys):
                for at in range(0, members, 500):
                    scores = {f"member:{n}": n * 7919 % 1009 / 8 for n in range(at, min(at + 500, members))}
                    client.zadd(f"z:{key}", scores)
            taken.append((client.info("memory")["used_memory"] - before) / (keys * members))
            client.flushall()
    assert 0 < taken[1] <= taken[0]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_rank_comes_with_its_score_as_in_redis_7_2(our_peer: Any, protocol: int) -> None:
    connection = our_peer.connect(protocol)
    nothing = ("_", b"") if protocol == 3 else ("*", None)
    score = (",", b"2.5") if protocol == 3 else ("$", b"2.5")

    def reply(line: str) -> Any:
        return connection.run(*line.encode().split())

    reply("DEL z s")
    reply("ZADD z 1 a 2.5 b 3 c")
    reply("SET s x")
    assert reply("ZRANK z b WITHSCORE") == ("*", [(":", 1), score])
    assert reply("ZREVRANK z b withscore") == ("*", [(":", 1), score])
    assert reply("ZREVRANK z c WITHSCORE")[1][0] == (":", 0)
    assert reply("ZRANK z none WITHSCORE") == nothing
    assert reply("ZRANK none a WITHSCORE") == nothing
    assert reply("ZRANK z b SCORE") == ("-", b"ERR syntax error")
    assert reply("ZRANK z b WITHSCORE x")[1].startswith(b"ERR wrong number of arguments")
    assert reply("ZRANK s b WITHSCORE")[1].startswith(b"WRONGTYPE")
    connection.close()
