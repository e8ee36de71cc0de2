"""Streams answer as Redis 7.0's do: random sequences of their commands, and options and errors by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import (
    INTEGERS,
    KEYS,
    LENGTHS,
    ODD_NUMBERS,
    VALUES,
    Commands,
    Keys,
    Pair,
    cased,
    command,
    run_random_sequences,
    some,
    words,
)
from durable import contents, kill, serve, wait_until
from hypothesis import strategies as st
from test_lists_waiting import Connect, connect, main, prompt_timeouts, replies, until_blocked, wait

__all__ = ["connect", "main", "prompt_timeouts"]  # fixtures

SMALL = st.integers(0, 12).map(lambda number: b"%d" % number)
IDS = st.one_of(
    st.tuples(SMALL, SMALL).map(lambda parts: b"-".join(parts)),
    st.tuples(SMALL, SMALL).map(lambda parts: b"-".join(parts)),
    SMALL,
)
HUGE = [b"18446744073709551615-18446744073709551615", b"18446744073709551616", b"18446744073709551615"]
ODD = [b"", b"-", b"+", b"$", b">", b"x", b"1-", b"-1", b"1-1-1", b"1-x", b"01-1", b"+1-1", b" 1-1", b"1-1 ", b"1-*-*"]
BESIDE = [b"0-0", b"-*", b"(1-1", b"(0-0", b"(" + HUGE[0], b"(", b"(-", b"1" * 130]
ODD_IDS = st.sampled_from([*HUGE, *ODD, *BESIDE])
ANY_IDS = st.one_of(*[IDS] * 12, ODD_IDS)
# Only in order can most be added.
NEW_IDS = st.one_of(
    st.tuples(st.integers(0, 60).map(lambda number: b"%d" % number), SMALL).map(lambda parts: b"-".join(parts)),
    st.integers(0, 60).map(lambda number: b"%d-*" % number),
    st.integers(10, 200).map(lambda number: b"%d-*" % number),
    st.integers(10, 200).map(lambda number: b"%d-*" % number),
    ANY_IDS,
)
# Below the largest deleted ID only Redis 7.0 takes one.
SET_IDS = st.sampled_from([b"18446744073709551615-18446744073709551615", b"", b"x", b"1-x", b"18446744073709551616"])
BOUNDS = st.one_of(ANY_IDS, ANY_IDS.map(lambda id: b"(" + id), st.just(b"-"), st.just(b"+"))
STARTS = st.one_of(st.just(b"-"), st.just(b"-"), BOUNDS)
ENDS = st.one_of(st.just(b"+"), st.just(b"+"), BOUNDS)
FIELD = st.sampled_from([b"f", b"g", b"field:1", b"1", b"", b"temperature"])
SMALL_VALUES = st.one_of(VALUES, st.integers(-5000, 5000).map(lambda number: b"%d" % number))
PAIRS = some(st.tuples(FIELD, SMALL_VALUES), 1, 3)
SAME_FIELDS = st.tuples(st.just(b"f"), SMALL_VALUES, st.just(b"g"), SMALL_VALUES)
COUNT = st.one_of(st.just(()), st.tuples(cased("count"), st.one_of(SMALL, SMALL, SMALL, INTEGERS)))
# For larger ones Redis needs memory, and what it says depends on how much there is.
SMALL_COUNT = st.one_of(st.just(()), st.tuples(cased("count"), st.one_of(SMALL, SMALL, ODD_NUMBERS, st.just(b"-1"))))
THRESHOLD = st.one_of(SMALL, SMALL, st.integers(0, 40).map(lambda n: b"%d" % n), ANY_IDS, ODD_NUMBERS)
SIGN = words("", "", "=", "~", "~")
TRIM = st.one_of(
    st.tuples(cased("maxlen"), SIGN, THRESHOLD),
    st.tuples(cased("minid"), SIGN, st.one_of(IDS, THRESHOLD)),
    st.tuples(cased("maxlen"), st.just(b"~"), SMALL, cased("limit"), INTEGERS),
    st.tuples(cased("minid"), st.just(b"~"), IDS, cased("limit"), SMALL),
    words("LIMIT 5", "MAXLEN 3 MINID 1", "MAXLEN = 3 LIMIT 5", "MAXLEN", "NOMKSTREAM"),
).map(lambda parts: tuple(p for part in parts for p in (part if isinstance(part, tuple) else (part,))))
GROUPS = st.sampled_from([b"g", b"g", b"g", b"h", b"grp\xff"])
CONSUMERS = st.sampled_from([b"alice", b"bob", b"carol", b"a", b""])
# What is idle for how long differs by what passes between the two servers: only borders that nothing is near.
IDLE = st.sampled_from([b"0", b"0", b"0", b"10000000", b"-1", b"x"])


def entries(keys: Keys) -> list[Commands]:
    return [
        command("xadd", keys, NEW_IDS, PAIRS),
        command("xadd", keys, NEW_IDS, SAME_FIELDS),
        command("xadd", keys, NEW_IDS, SAME_FIELDS),
        command("xadd", keys, some(TRIM, 0, 1), some(words("NOMKSTREAM", "nomkstream"), 0, 1), NEW_IDS, SAME_FIELDS),
        command("xadd", keys, NEW_IDS, some(FIELD)),
        command("xlen", keys),
        command("xdel", keys, some(ANY_IDS)),
        command("xtrim", keys, TRIM),
        command("xsetid", keys, SET_IDS, some(words("ENTRIESADDED 5", "entriesadded 100", "ENTRIESADDED -1"), 0, 1)),
        command("xsetid", keys, SET_IDS, st.tuples(cased("maxdeletedid"), ANY_IDS)),
        command("del", keys),
        command("copy", keys, keys, words("", "REPLACE")),
        command("rename", keys, keys),
    ]


def ranges(keys: Keys) -> list[Commands]:
    return [
        command("xrange", keys, words("- +")),
        command("xrange", keys, STARTS, ENDS, COUNT),
        command("xrevrange", keys, words("+ -")),
        command("xrevrange", keys, ENDS, STARTS, COUNT),
        command("xread", COUNT, cased("streams"), keys, ANY_IDS),
        command("xread", COUNT, words("STREAMS", "streams", "block -1 streams"), keys, keys, ANY_IDS, ANY_IDS),
        command("xread", words("STREAMS", "NOACK STREAMS", "GROUP g a STREAMS", "COUNT STREAMS"), some(keys)),
        command("xinfo", cased("stream"), keys),
        command("xinfo", cased("stream"), keys, words("FULL", "full COUNT 2", "FULL COUNT 0", "FULL COUNT -1", "FUL")),
        command("type", keys),
        command("object", cased("encoding"), keys),
    ]


def groups(keys: Keys) -> list[Commands]:
    start = st.one_of(words("0", "$"), ANY_IDS)
    create_options = some(
        words("MKSTREAM", "mkstream", "ENTRIESREAD 2", "ENTRIESREAD -1", "ENTRIESREAD -2", "no"), 0, 1
    )
    set_options = some(words("ENTRIESREAD 2", "entriesread 0", "MKSTREAM", "ENTRIESREAD"), 0, 1)
    behind = st.one_of(words(">", ">", ">", "0"), ANY_IDS)
    claim_options = some(
        st.one_of(
            words("FORCE", "justid", "JUSTID", "IDLE 100", "TIME 5", "RETRYCOUNT 7", "retrycount x", "LASTID 5-5"),
            words("FORCE JUSTID", "IDLE -5", "nope"),
        ),
        0,
        2,
    )
    return [
        command("xgroup", cased("create"), keys, GROUPS, start, create_options),
        command("xgroup", cased("create"), keys, GROUPS, words("0 MKSTREAM", "0")),
        command("xgroup", cased("setid"), keys, GROUPS, start, set_options),
        command("xgroup", cased("destroy"), keys, GROUPS),
        command("xgroup", cased("createconsumer"), keys, GROUPS, CONSUMERS),
        command("xgroup", cased("delconsumer"), keys, GROUPS, CONSUMERS),
        command("xreadgroup", cased("group"), GROUPS, CONSUMERS, COUNT, cased("streams"), keys, behind),
        command("xreadgroup", cased("group"), GROUPS, CONSUMERS, COUNT, cased("streams"), keys, words(">")),
        command("xreadgroup", cased("group"), GROUPS, CONSUMERS, cased("noack"), cased("streams"), keys, behind),
        command("xreadgroup", cased("group"), GROUPS, CONSUMERS, cased("streams"), keys, keys, behind, behind),
        command("xack", keys, GROUPS, some(ANY_IDS)),
        command("xpending", keys, GROUPS),
        command("xpending", keys, GROUPS, STARTS, ENDS, INTEGERS, some(CONSUMERS, 0, 1)),
        command("xpending", keys, GROUPS, cased("idle"), IDLE, words("- +"), SMALL, some(CONSUMERS, 0, 1)),
        command("xclaim", keys, GROUPS, CONSUMERS, IDLE, some(ANY_IDS), claim_options),
        command("xautoclaim", keys, GROUPS, CONSUMERS, IDLE, STARTS, SMALL_COUNT, words("", "JUSTID", "justid")),
        command("xinfo", cased("groups"), keys),
        command("xinfo", cased("consumers"), keys, GROUPS),
    ]


# Few keys, so that most commands find a stream.
FEW = st.sampled_from([b"a", b"a", b"a", b"b"])
SETTINGS = command("config", cased("set"), words("stream-node-max-entries"), words("3", "10", "100", "0"))
ALL = [*entries(FEW), *entries(FEW), *ranges(FEW), *groups(FEW), SETTINGS]
MIXED = [
    *(entries(KEYS) + ranges(KEYS) + groups(KEYS)),
    command("set", KEYS, VALUES),
    command("rpush", KEYS, VALUES),
    command("sort", KEYS),
    command("get", KEYS),
]


KINDS = pytest.mark.parametrize("commands", [ALL, MIXED], ids=["few keys", "keys of other types"])


@pytest.fixture(autouse=True)
def usual_settings(pair: Pair) -> Iterator[None]:
    yield
    pair.words("CONFIG SET stream-node-max-entries 100")


@LENGTHS
@KINDS
def test_random_sequences(pair: Pair, commands: list[Commands], long: bool) -> None:
    run_random_sequences(pair, commands, long=long, examples=15, longest=40)


@pytest.mark.parametrize("line", ["XADD a {} f v", "XREAD STREAMS a {}", "XRANGE a {} +"])
def test_an_id_with_a_zero_byte_is_refused(pair: Pair, line: str) -> None:
    pair.words("DEL a")
    pair.ours.send(tuple(line.format("1-1\0").encode().split(b" ")))
    assert pair.ours.read() == ("-", b"ERR Invalid stream ID specified as stream command argument")


def test_what_is_new_is_given_once_where_a_stream_is_named_twice(pair: Pair) -> None:
    for line in ["DEL a b", "XADD a 1-1 f v", "XADD b 1-1 f v", "XGROUP CREATE a g 0", "XGROUP CREATE b g 0"]:
        pair.words(line)
    pair.words("XREADGROUP GROUP g alice STREAMS a b a > > >")
    pair.words("XREADGROUP GROUP g alice STREAMS a b a > > >")
    pair.words("XREADGROUP GROUP g alice STREAMS a b a 0 > >")


def test_the_last_id_is_set_as_in_redis_where_nothing_was_deleted(pair: Pair) -> None:
    for line in ["DEL a", "XSETID a 1-1", "XADD a 4-4 f v", "XADD a 5-5 f v", "XGROUP CREATE a g 0"]:
        pair.words(line)
    for last in ("0", "0-0", "3-1", "5-4", "5-5", "5-6", "7", "12-12", "01-1", "$", "(8-8"):
        for options in ("", "ENTRIESADDED 1", "entriesadded 2", "ENTRIESADDED 100", "ENTRIESADDED -1", "MAXDELETEDID"):
            pair.words(f"XSETID a {last} {options}")
            pair.words("XINFO STREAM a")
    for line in ["XSETID a 20 MAXDELETEDID 21", "XSETID a 20-1 ENTRIESADDED 30 maxdeletedid 20", "XINFO STREAM a"]:
        pair.words(line)


def test_the_last_id_stays_above_what_was_deleted(pair: Pair) -> None:
    for line in ["DEL a", "XADD a 4-4 f v", "XADD a 7-8 f v", "XDEL a 4-4 7-8", "XSETID a 9-0"]:
        pair.words(line)
    pair.ours.send((b"XSETID", b"a", b"7-7"))
    assert pair.ours.read()[1].startswith(b"ERR The ID specified in XSETID is smaller than current max_deleted")
    pair.words("XINFO STREAM a")
    pair.words("XSETID a 7-8")


# ---- waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_readers_are_given_what_comes_after_they_began(main: Pair, connect: Connect, protocol: int) -> None:
    main.words("XADD s 1-1 f old")
    behind_last, behind_first, of_two = connect(protocol), connect(protocol), connect(protocol)
    wait(behind_last, "XREAD BLOCK 0 STREAMS s $", 1)
    assert behind_first.words("XREAD BLOCK 0 STREAMS s 0-0")
    wait(of_two, "XREAD COUNT 1 BLOCK 0 STREAMS t s $ $", 2)
    main.words("XADD s 1-2 f new")
    replies(behind_last)
    replies(of_two)
    until_blocked(main.ours, 0)


def test_a_key_of_another_type_leaves_readers_waiting(main: Pair, connect: Connect) -> None:
    waiting = connect()
    wait(waiting, "XREAD BLOCK 0 STREAMS s $", 1)
    main.words("RPUSH s element")
    main.words("DEL s")
    main.words("XGROUP CREATE s g $ MKSTREAM")
    until_blocked(main.ours, 1)
    main.words("XADD s 5-1 f v")
    replies(waiting)


@pytest.mark.parametrize("protocol", [2, 3])
def test_consumers_are_given_what_no_other_was(main: Pair, connect: Connect, protocol: int) -> None:
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    first, second = connect(protocol), connect(protocol)
    wait(first, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >", 1)
    wait(second, "XREADGROUP GROUP g bob BLOCK 0 STREAMS s >", 2)
    main.words("XADD s 1-1 f v")
    replies(first)
    until_blocked(main.ours, 1)
    main.words("XADD s 1-2 f v")
    replies(second)
    main.words("XPENDING s g")
    main.words("XINFO GROUPS s")


COMES_AND_GOES = [
    ["MULTI", "XADD s 5-1 f v", "XDEL s 5-1", "EXEC"],
    ["MULTI", "XADD s 5-1 f v", "XTRIM s MAXLEN 0", "EXEC"],
    ["MULTI", "XADD s 4-1 f v", "XADD s 5-1 f v", "XDEL s 5-1", "EXEC"],
    ["MULTI", "XADD s 5-1 f v", "DEL s", "XGROUP CREATE s g 0 MKSTREAM", "XADD s 3-1 f v", "XDEL s 3-1", "EXEC"],
    ["XADD s MAXLEN 0 5-1 f v"],
    ["XSETID s 5-1"],
    ["MULTI", "XADD s 5-1 f v", "XGROUP SETID s g $", "XDEL s 5-1", "EXEC"],
]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("lines", COMES_AND_GOES, ids=["; ".join(lines) for lines in COMES_AND_GOES])
def test_what_comes_and_goes_at_once_ends_waits_as_in_redis(
    main: Pair, connect: Connect, lines: list[str], protocol: int
) -> None:
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    waits = ["XREAD BLOCK 0 STREAMS s $", "XREAD COUNT 1 BLOCK 0 STREAMS s t 4-0 $",
             "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >",
             "XREADGROUP GROUP g bob NOACK BLOCK 0 STREAMS s >"]  # fmt: skip
    waiting = [connect(protocol) for _ in waits]
    for number, (client, line) in enumerate(zip(waiting, waits, strict=True)):
        wait(client, line, number + 1)
    for line in lines:
        main.words(line)
    main.words("XINFO GROUPS s")
    main.words("XPENDING s g")
    main.words("XADD s 9-1 f v")
    main.words("XADD s 9-2 f v")
    for client in waiting:
        replies(client)
    until_blocked(main.ours, 0)


@pytest.mark.parametrize("waiting", ["XREAD BLOCK 0 STREAMS s 4-0", "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >"])
def test_what_leaves_an_older_stream_ends_no_wait(main: Pair, connect: Connect, waiting: str) -> None:
    """The stream's last id is behind what the client has read: its entry is gone."""
    for line in ["XADD s 1-1 f v", "XADD s 1-2 f v", "XGROUP CREATE s g 1-2", "XADD s 5-1 f v", "XDEL s 5-1"]:
        main.words(line)
    client = connect(2)
    wait(client, waiting, 1)
    for line in ["XDEL s 1-1", "XTRIM s MAXLEN 0", "XGROUP CREATE s another 0"]:
        main.words(line)
    until_blocked(main.ours, 1)
    main.words("XADD s 6-1 f v")
    replies(client)
    until_blocked(main.ours, 0)


ENDS_A_WAIT = [
    ["DEL s"],
    ["UNLINK s"],
    ["SET s v"],
    ["RENAME s t"],
    ["XGROUP DESTROY s g"],
    ["FLUSHALL"],
    ["FLUSHDB"],
    ["PEXPIRE s 1"],
    ["EXPIRE s -1"],
    ["MULTI", "DEL s", "SADD s e", "EXEC"],
    ["SWAPDB 0 9"],
    ["SET t v", "RENAME t s"],
    ["COPY s t", "DEL s", "RENAME t s"],
]


@pytest.mark.parametrize("lines", ENDS_A_WAIT, ids=["; ".join(lines) for lines in ENDS_A_WAIT])
def test_consumers_are_told_that_stream_or_group_has_gone(main: Pair, connect: Connect, lines: list[str]) -> None:
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    waiting = connect()
    wait(waiting, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >", 1)
    for line in lines:
        main.words(line)
    if lines[0].startswith("COPY"):  # the group is in the copy: the wait goes on
        main.words("XADD s 1-1 f v")
    replies(waiting)
    until_blocked(main.ours, 0)


def test_what_ends_one_wait_leaves_those_of_other_types(main: Pair, connect: Connect) -> None:
    of_lists, of_group = connect(), connect()
    wait(of_lists, "BLPOP s 0", 1)
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    wait(of_group, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >", 2)
    main.words("DEL s")
    replies(of_group)
    until_blocked(main.ours, 1)
    main.words("RPUSH s element")
    replies(of_lists)


@pytest.mark.parametrize("protocol", [2, 3])
def test_nobody_waits_in_a_transaction_or_a_script(main: Pair, connect: Connect, protocol: int) -> None:
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    asking = connect(protocol)
    for line in ["MULTI", "XREAD BLOCK 0 STREAMS s $", "XREADGROUP GROUP g a BLOCK 0 STREAMS s >", "EXEC"]:
        asking.words(line)
    for call in ["'xread','block','0','streams','s','0'", "'xread','streams','s','0'"]:
        asking.run((b"EVAL", f"return redis.call({call})".encode(), b"0"))
    for line in ["XREAD BLOCK x STREAMS s $", "XREAD BLOCK -1 STREAMS s $", "XREAD BLOCK 1.5 STREAMS s $"]:
        asking.words(line)
    assert asking.words("XREAD BLOCK 1 STREAMS s $")[1] in {None, b""}
    main.words("XINFO CONSUMERS s g")


def test_a_call_that_ended_with_an_error_after_a_wait_is_counted_as_failed(main: Pair, connect: Connect) -> None:
    waiting = connect()
    main.words("XGROUP CREATE s g 0 MKSTREAM")
    main.words("CONFIG RESETSTAT")
    wait(waiting, "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >", 1)
    main.words("XGROUP DESTROY s g")
    replies(waiting)
    with redis.Redis(unix_socket_path=str(main.peers[1].unix_path)) as client:
        stats = client.info("commandstats")["cmdstat_xreadgroup"]
    assert (stats["calls"], stats["failed_calls"]) == (1, 1)


# ---- by name ----------------------------------------------------------------------------------------------------


def test_changes_aside_break_no_watch(main: Pair, connect: Connect) -> None:
    """As in Redis, only entries that come and go count for WATCH."""
    main.words("XADD s 1-1 f v")
    main.words("XGROUP CREATE s g 0")
    for change in [
        "XREADGROUP GROUP g a STREAMS s >",
        "XACK s g 1-1",
        "XGROUP SETID s g 0",
        "XADD s 2-1 f v",
        "XDEL s 2-1",
    ]:
        main.words("WATCH s")
        connect().words(change)
        main.words("MULTI")
        main.words("XLEN s")
        main.words("EXEC")


def test_ids_follow_the_clock_and_never_go_back(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path), decode_responses=True) as client:
        client.flushall()
        before = int(client.time()[0]) * 1000
        ids = [client.xadd("s", {"f": "v"}) for _ in range(20)]
        parts = [tuple(int(part) for part in id.split("-")) for id in ids]
        assert parts == sorted(set(parts))
        assert before <= parts[0][0] < before + 100_000
        client.xadd("s", {"f": "v"}, id="99999999999999-5")
        assert client.xadd("s", {"f": "v"}) == "99999999999999-6"


def test_a_stream_of_many_entries_is_read_trimmed_and_freed(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        pipeline = client.pipeline(transaction=False)
        for number in range(30_000):
            pipeline.xadd("s", {"n": number, "text": b"x" * 20}, id=f"{number + 1}-0")
        pipeline.execute()
        assert [entry[b"n"] for _, entry in client.xrange("s")] == [b"%d" % number for number in range(30_000)]
        assert [id for id, _ in client.xrevrange("s", count=3)] == [b"30000-0", b"29999-0", b"29998-0"]
        assert len(client.xread({"s": 0})[0][1]) == 30_000
        client.xgroup_create("s", "g", 0)
        assert len(client.xreadgroup("g", "a", {"s": ">"})[0][1]) == 30_000
        assert client.xpending("s", "g")["pending"] == 30_000
        assert len(client.xpending_range("s", "g", "-", "+", 30_000)) == 30_000
        assert client.memory_usage("s") < 30_000 * 200
        assert client.xack("s", "g", *(f"{number + 1}-0" for number in range(0, 30_000, 2))) == 15_000
        assert client.xtrim("s", maxlen=1000, approximate=False) == 29_000
        assert client.xinfo_stream("s")["first-entry"][0] == b"29001-0"
        client.copy("s", "t")
        client.xgroup_destroy("s", "g")
        client.delete("s")
        assert client.xpending("t", "g")["pending"] == 15_000
        client.flushall()


def test_counts_at_their_end_outlive_everything(tmp_path: Path) -> None:
    """Redis lets them wrap around. Here they stay at the end, so that whatever is stored of them can be read."""
    most = 2**63 - 1
    with serve(tmp_path, enable_debug_command="yes") as (server, client):
        client.xadd("s", {"a": "b"}, id="1-1")
        client.xgroup_create("s", "g", id="0", entries_read=most)
        client.xreadgroup("g", "c", {"s": ">"})
        client.execute_command("XCLAIM", "s", "g", "c", 0, "1-1", "RETRYCOUNT", most)
        client.execute_command("XCLAIM", "s", "g", "c", 0, "1-1")
        client.execute_command("XSETID", "s", "1-1", "ENTRIESADDED", most)
        client.xadd("s", {"a": "b"}, id="1-2")
        client.xgroup_create("s", "all", id="$")
        client.xgroup_create("s", "later", id="0")
        client.xreadgroup("later", "c", {"s": ">"}, noack=True)
        before = contents(client)
        (pending,) = client.xpending_range("s", "g", "-", "+", 10)
        assert (client.xinfo_groups("s")[1]["entries-read"], pending["times_delivered"]) == (most, most)
        assert client.restore("copy", 0, client.dump("s")) == b"OK"
        digests = client.execute_command("DEBUG", "DIGEST-VALUE", "s", "copy")
        assert digests[0] == digests[1]
        client.delete("copy")
        kill(server)
    for save in (False, True):
        with serve(tmp_path, enable_debug_command="yes") as (server, client):
            assert contents(client) == before
            if save:
                client.bgrewriteaof()
                wait_until(lambda client=client: client.info("persistence")["aof_rewrite_in_progress"] == 0)
            kill(server)
    with serve(tmp_path, enable_debug_command="yes") as (server, client):
        assert contents(client) == before


def test_a_count_of_redis_that_wrapped_around_is_unknown_here(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("XADD s 1-1 a b")
    pair.words(f"XGROUP CREATE s g 0 ENTRIESREAD {2**63 - 1}")
    pair.redis.send((b"XREADGROUP", b"GROUP", b"g", b"c", b"NOACK", b"STREAMS", b"s", b">"), (b"DUMP", b"s"))
    pair.redis.read()
    _, payload = pair.redis.read()
    pair.ours.send((b"RESTORE", b"t", b"0", payload), (b"XINFO", b"GROUPS", b"t"))
    assert pair.ours.read() == ("+", b"OK")
    ((_, fields),) = pair.ours.read()[1]
    reads = [value for (_, name), (_, value) in itertools.pairwise(fields) if name == b"entries-read"]
    pair.words("FLUSHALL")
    assert reads in ([None], [b""]), "null, by RESP2 and RESP3"
