"""Commands on many members, which are worked on in slices, answer as Redis does and let nothing come in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from against_redis import Pair
from durable import assert_same, contents, kill, serve

MEMBERS = 20_000
LONG_COMMANDS = [
    "ZRANGE a 0 -1",
    "ZRANGE a 100 -100 REV WITHSCORES",
    "ZRANGEBYSCORE a 10 (900 WITHSCORES LIMIT 5 9000",
    "ZRANGESTORE to a 0 -1",
    "ZRANGESTORE to a 5 9000 REV",
    "ZUNION 3 a b set WITHSCORES",
    "ZINTER 2 a b WEIGHTS 2 0.5 WITHSCORES",
    "ZDIFF 2 a b",
    "ZINTERCARD 2 a b",
    "ZINTERCARD 2 a b LIMIT 4000",
    "ZUNIONSTORE to 2 a b AGGREGATE MAX",
    "ZINTERSTORE a 2 a b",
    "ZDIFFSTORE a 2 b b",
]


def fill(connection: Any) -> None:
    connection.run(b"FLUSHALL")
    for key, shift in ((b"a", 0), (b"b", MEMBERS // 2)):
        for at in range(0, MEMBERS, 1000):
            words = [part for n in range(at, at + 1000) for part in (b"%d" % (n * 7919 % 1009), b"m:%d" % (n + shift))]
            connection.run(b"ZADD", key, *words)
    connection.run(b"SADD", b"set", *[b"m:%d" % n for n in range(0, MEMBERS, 5)])


@pytest.fixture
def filled(pair: Pair) -> Pair:
    for connection in (pair.redis, pair.ours):
        fill(connection)
    return pair


def after(pair: Pair) -> None:
    for key in "a", "b", "to":
        pair.words(f"ZCARD {key}")
    pair.words("ZRANGE to 0 -1 WITHSCORES")
    pair.words("DBSIZE")


def test_replies_are_those_of_redis(filled: Pair) -> None:
    for line in LONG_COMMANDS:
        filled.words(line)
        filled.words("ZRANGE to -50 -1 WITHSCORES")
    after(filled)


def test_what_is_sent_behind_is_answered_behind(filled: Pair) -> None:
    commands = [tuple(line.encode().split()) for line in LONG_COMMANDS]
    filled.run(*[part for command in commands for part in ((b"ECHO", b"between"), command, (b"ZCARD", b"to"))])


def test_transactions_and_scripts_run_them_too(filled: Pair) -> None:
    filled.run((b"MULTI",), *[tuple(line.encode().split()) for line in LONG_COMMANDS[:-2]], (b"EXEC",))
    after(filled)
    if filled.ours.run(b"EVAL", b"return 1", b"0") != (":", 1):
        pytest.skip("needs Lua: see EVAL's reply")
    for line in ["zunionstore to 2 a b weights 1 3", "zrange a 0 -1", "zrangestore to b 10 -10", "zintercard 2 a b"]:
        words = ", ".join(f"'{word}'" for word in line.split())
        filled.run((b"EVAL", f"return redis.call({words})".encode(), b"0"))
        after(filled)


@pytest.mark.parametrize("with_scores", [False, True])
def test_many_members_by_chance(filled: Pair, with_scores: bool) -> None:
    option = (b"WITHSCORES",) if with_scores else ()
    for count in (3000, 6000, MEMBERS - 1, MEMBERS, MEMBERS + 1, -30_000):
        kind, found = filled.ours.run(b"ZRANDMEMBER", b"a", b"%d" % count, *option)
        assert kind == "*"
        if with_scores and found[0][0] == "*":
            found = [part for item in found for part in item[1]]
        members = [value for _, value in (found[::2] if with_scores else found)]
        if count < 0:
            assert len(members) == -count
        else:
            assert len(set(members)) == len(members) == min(count, MEMBERS)
        assert {int(member[2:]) for member in members} <= set(range(MEMBERS))


@pytest.fixture
def ours(our_peer: Any) -> Iterator[Any]:
    connection = our_peer.connect()
    yield connection
    connection.close()


def test_others_see_all_of_it_or_nothing(our_peer: Any, ours: Any) -> None:
    fill(ours)
    watcher = our_peer.connect()
    for _ in range(20):
        ours.send((b"DEL", b"to"), (b"ZUNIONSTORE", b"to", b"2", b"a", b"b"))
        assert {watcher.run(b"ZCARD", b"to")[1] for _ in range(5)} <= {0, MEMBERS * 3 // 2}
        assert [ours.read()[1] for _ in range(2)][1] == MEMBERS * 3 // 2
    watcher.close()


@pytest.mark.parametrize("line", [*LONG_COMMANDS, "ZRANDMEMBER a -1000000000"])
def test_a_client_that_goes_in_the_midst_does_no_harm(our_peer: Any, ours: Any, line: str) -> None:
    line = line.replace("STORE a", "STORE to")
    fill(ours)
    for times in range(10):
        leaving = our_peer.connect()
        leaving.send((b"DEL", b"to"), tuple(line.encode().split()), (b"ECHO", b"never read"))
        if times % 2:
            leaving.read()
        leaving.close()
    assert ours.run(b"ZCARD", b"a") == ours.run(b"ZCARD", b"b") == (":", MEMBERS)
    kind, found = ours.run(b"ZRANGE", b"to", b"0", b"-1", b"WITHSCORES")
    scores = [float(score) for _, score in found[1::2]]
    assert kind == "*"
    assert scores == sorted(scores)


def test_a_kill_leaves_what_was_stored_in_slices(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        for key, shift in (("a", 0), ("b", 3000)):
            client.zadd(key, {f"m:{n + shift}": n % 100 for n in range(6000)})
        assert client.zunionstore("union", ["a", "b"]) == 9000
        assert client.zrangestore("range", "a", 0, 4999) == 5000
        client.execute_command("ZINTERSTORE", "a", 2, "a", "b")
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert_same(contents(client), before)
