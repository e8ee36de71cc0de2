"""CLIENT TRACKING: clients are told of the same changes as by Redis 7.0, and after the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from against_redis import COMPARED, SLOW_IS_FINE, Command
from hypothesis import given, settings
from hypothesis import strategies as st

CHANNEL = b"__redis__:invalidate"
EVERYTHING = b"(everything)"

# ---- two servers, each with two clients that track, one that is told for others, and one that only writes --------


class Listened:
    """A connection that keeps apart what it is told and what it is replied."""

    def __init__(self, peer: Any, protocol: int) -> None:
        self.connection = peer.connect(protocol)
        self.protocol = protocol
        self.number = self.connection.run(b"CLIENT", b"ID")[1]
        self.messages: list[bytes] = []
        self.target = 0

    def run(self, command: Command) -> tuple[str, Any]:
        self.connection.send(command)
        return self.reply()

    def reply(self) -> tuple[str, Any]:
        while self.is_message(reply := self.connection.read()):
            pass
        return reply

    def is_message(self, reply: tuple[str, Any]) -> bool:
        kind, parts = reply
        if kind == ">" and parts[0][1] == b"invalidate":
            self.take(parts[1])
        elif kind == ">" and parts[0][1] == b"tracking-redir-broken":
            self.messages.append(b"(broken)")
        elif kind == "*" and parts and parts[0][1] == b"message" and parts[1][1] == CHANNEL:
            self.take(parts[2])
        else:
            return False
        return True

    def take(self, payload: tuple[str, Any]) -> None:
        self.messages += [EVERYTHING] if payload[0] == "_" or payload[1] is None else [key for _, key in payload[1]]

    def told(self) -> list[bytes]:
        """What it was told since it was asked last. Order is left open, and what else is said beside "everything"."""
        self.run((b"PING",))
        messages, self.messages = self.messages, []
        return [EVERYTHING] if EVERYTHING in messages else sorted(messages)


class Both:
    """The same clients of both servers; every command goes to both, and replies and messages must agree."""

    def __init__(self, peers: Any, protocol: int) -> None:
        self.sides = [{name: Listened(peer, protocol) for name in ("a", "b", "w", "listener")} for peer in peers]
        if protocol == 2:
            for side in self.sides:
                side["listener"].run((b"SUBSCRIBE", CHANNEL))
        self.begin()

    def begin(self) -> None:
        for name in ("a", "b", "w"):
            self.run(name, b"CLIENT", b"TRACKING", b"OFF")
        self.run("w", b"FLUSHALL")

    def run(self, name: str, *command: bytes) -> tuple[str, Any]:
        """`TARGET` stands for the client that is told for others."""
        replies = []
        for side in self.sides:
            number = side["listener"].number
            sent = tuple(b"%d" % number if word == b"TARGET" else word for word in command)
            replies.append(without_number(side[name].run(sent), number))
        assert replies[0] == replies[1], (name, command)
        COMPARED.add(command[0].lower())
        COMPARED.add(b"|".join(command[:2]).lower())
        told = [{client: listened.told() for client, listened in side.items()} for side in self.sides]
        assert told[0] == told[1], (name, command)
        return replies[0]

    def told_by(self, name: str, *command: bytes) -> dict[str, list[bytes]]:
        """Runs the command and returns what clients were told, nothing left out."""
        heard = []
        for side in self.sides:
            number = side["listener"].number
            side[name].run(tuple(b"%d" % number if word == b"TARGET" else word for word in command))
            heard.append({client: told for client, listened in side.items() if (told := listened.told())})
        assert heard[0] == heard[1], (name, command)
        return heard[0]

    def close(self) -> None:
        for side in self.sides:
            for listened in side.values():
                listened.connection.close()


def without_number(reply: Any, number: int) -> Any:
    kind, value = reply
    if kind == ":" and value == number:
        return kind, "TARGET"
    return (kind, [without_number(part, number) for part in value]) if isinstance(value, list) else reply


@pytest.fixture(scope="module", params=[2, 3], ids=["resp2", "resp3"])
def both(request: pytest.FixtureRequest, peers: Any) -> Iterator[Both]:
    connected = Both(peers, request.param)
    yield connected
    connected.begin()
    connected.close()


# ---- random sequences --------------------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"ab", b"abc", b"b", b"bc", b"\x00\xff\r\n", b""])
WHO = st.sampled_from(["a", "a", "b", "w"])
PREFIXES = st.sampled_from([(), (b"PREFIX", b"a"), (b"PREFIX", b"ab", b"PREFIX", b"b"), (b"PREFIX", b"abc")])


def words(*parts: Any) -> st.SearchStrategy[Command]:
    def flatten(chosen: tuple[Any, ...]) -> Command:
        return tuple(word for part in chosen for word in (part if isinstance(part, tuple) else (part,)))

    return st.tuples(*(part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts)).map(flatten)


READS = st.one_of(
    words(b"GET", KEYS),
    words(b"MGET", KEYS, KEYS),
    words(b"STRLEN", KEYS),
    words(b"EXISTS", KEYS, KEYS),
    words(b"LRANGE", KEYS, b"0", b"-1"),
    words(b"TTL", KEYS),
    words(b"EVAL", b"return redis.call('EXISTS', KEYS[1])", b"2", KEYS, KEYS),
    words(b"EVAL_RO", b"return redis.call('EXISTS', KEYS[1])", b"1", KEYS),
    words(b"EVAL", b"return 1", b"1", KEYS),
)
WRITES = st.one_of(
    words(b"SET", KEYS, b"1"),
    words(b"SET", KEYS, b"1"),
    words(b"MSET", KEYS, b"1", KEYS, b"2"),
    words(b"DEL", KEYS, KEYS),
    words(b"INCR", KEYS),
    words(b"APPEND", KEYS, b"x"),
    words(b"RENAME", KEYS, KEYS),
    words(b"RPUSH", KEYS, b"x"),
    words(b"LPOP", KEYS),
    words(b"EXPIRE", KEYS, b"100"),
    words(b"EXPIRE", KEYS, b"-1"),
    words(b"PERSIST", KEYS),
    words(b"COPY", KEYS, KEYS, b"REPLACE"),
    words(b"GETDEL", KEYS),
    words(b"EVAL", b"redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], 2)", b"1", KEYS),
    words(st.sampled_from([b"FLUSHALL", b"FLUSHDB"])),
)
TRACKS = st.one_of(
    words(
        b"CLIENT",
        b"TRACKING",
        b"ON",
        st.sampled_from([(), (b"REDIRECT", b"TARGET")]),
        st.one_of(
            st.sampled_from([(), (b"OPTIN",), (b"OPTOUT",)]), PREFIXES.map(lambda prefixes: (b"BCAST", *prefixes))
        ),
        st.sampled_from([(), (b"NOLOOP",)]),
    ),
    words(b"CLIENT", b"TRACKING", b"OFF"),
    words(b"CLIENT", b"CACHING", st.sampled_from([b"YES", b"NO", b"maybe"])),
    words(b"CLIENT", st.sampled_from([b"TRACKINGINFO", b"GETREDIR"])),
    words(
        b"CLIENT", b"TRACKING", b"ON", st.sampled_from([(b"PREFIX", b"a"), (b"BCAST", b"OPTIN"), (b"REDIRECT", b"0")])
    ),
)
TRANSACTIONS = st.lists(st.one_of(READS, WRITES), min_size=1, max_size=4).map(
    lambda inside: [(b"MULTI",), *inside, (b"EXEC",)]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(WHO, READS.map(lambda one: [one])),
        st.tuples(WHO, READS.map(lambda one: [one])),
        st.tuples(WHO, WRITES.map(lambda one: [one])),
        st.tuples(WHO, TRACKS.map(lambda one: [one])),
        st.tuples(WHO, TRANSACTIONS),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(steps=STEPS)
def test_random_requests(both: Both, steps: list[tuple[str, list[Command]]]) -> None:
    both.begin()
    for name, commands in steps:
        for command in commands:
            both.run(name, *command)


# ---- one at a time -----------------------------------------------------------------------------------------------


def tracked(both: Both, *options: bytes) -> str:
    """Client `a` tracks. Returns who is told: itself, or over RESP2 the one that listens for it."""
    both.begin()
    redirect = (b"REDIRECT", b"TARGET") if both.sides[0]["a"].protocol == 2 else ()
    both.run("a", b"CLIENT", b"TRACKING", b"ON", *redirect, *options)
    return "listener" if redirect else "a"


def test_a_reader_is_told_once(both: Both) -> None:
    told = tracked(both)
    both.run("a", b"GET", b"x")
    assert both.told_by("w", b"SET", b"x", b"1") == {told: [b"x"]}
    assert both.told_by("w", b"SET", b"x", b"2") == {}


def test_a_change_of_its_own_is_told_unless_it_says_no(both: Both) -> None:
    for options, heard in [((), True), ((b"NOLOOP",), False)]:
        told = tracked(both, *options)
        both.run("a", b"GET", b"x")
        assert both.told_by("a", b"SET", b"x", b"1") == ({told: [b"x"]} if heard else {})


def test_a_flush_changes_everything(both: Both) -> None:
    told = tracked(both)
    both.run("a", b"GET", b"x")
    assert both.told_by("w", b"FLUSHDB") == {told: [EVERYTHING]}
    assert both.told_by("w", b"SET", b"x", b"1") == {}


def test_keys_whose_time_is_over_are_told_of(both: Both) -> None:
    told = tracked(both)
    both.run("w", b"SET", b"x", b"1", b"PX", b"200")
    both.run("a", b"GET", b"x")
    for side in both.sides:
        heard: list[bytes] = []
        while not heard:  # when Redis gets to it, it will say so
            heard = side[told].told()
            side["w"].run((b"GET", b"x"))
        assert heard == [b"x"]


def test_broadcasts_reach_whoever_asked_for_the_prefix(both: Both) -> None:
    told = tracked(both, b"BCAST", b"PREFIX", b"user:", b"PREFIX", b"item:")
    heard = both.told_by("w", b"MSET", b"user:1", b"x", b"item:2", b"x", b"other", b"x")
    assert heard == {told: [b"item:2", b"user:1"]}


@pytest.mark.parametrize(
    "line",
    [
        "CLIENT TRACKING ON REDIRECT TARGET REDIRECT TARGET",
        "CLIENT TRACKING ON REDIRECT 123456789",
        "CLIENT TRACKING ON REDIRECT x",
        "CLIENT TRACKING ON PREFIX",
        "CLIENT TRACKING ON PREFIX a",
        "CLIENT TRACKING ON BCAST OPTOUT",
        "CLIENT TRACKING ON OPTIN OPTOUT",
        "CLIENT TRACKING ON BCAST PREFIX a PREFIX ab",
        "CLIENT TRACKING perhaps",
        "CLIENT TRACKING OFF NONSENSE",
        "CLIENT CACHING YES",
        "CLIENT TRACKING ON OPTIN;CLIENT TRACKING ON OPTOUT",
        "CLIENT TRACKING ON OPTIN;CLIENT TRACKING ON BCAST",
        "CLIENT TRACKING ON OPTIN;CLIENT CACHING NO",
        "CLIENT TRACKING ON OPTIN;CLIENT CACHING YES;CLIENT TRACKINGINFO;PING;CLIENT TRACKINGINFO",
        "CLIENT TRACKING ON BCAST PREFIX b PREFIX a;CLIENT TRACKING ON BCAST PREFIX c;CLIENT TRACKINGINFO",
        "CLIENT TRACKING ON BCAST PREFIX b;CLIENT TRACKING ON BCAST PREFIX bb",
        "CLIENT TRACKING ON BCAST;CLIENT TRACKING ON BCAST NOLOOP;CLIENT TRACKINGINFO",
        "CLIENT TRACKING ON REDIRECT TARGET;CLIENT GETREDIR;CLIENT TRACKING ON;CLIENT GETREDIR",
    ],
)
def test_what_goes_together(both: Both, line: str) -> None:
    both.begin()
    for command in line.split(";"):
        both.run("a", *(word.encode() for word in command.split()))


def test_a_reset_ends_tracking(both: Both) -> None:
    tracked(both)
    both.run("a", b"GET", b"x")
    both.run("a", b"RESET")
    if both.sides[0]["a"].protocol == 3:
        for side in both.sides:
            side["a"].run((b"HELLO", b"3"))
    both.run("a", b"CLIENT", b"TRACKINGINFO")
    assert both.told_by("w", b"SET", b"x", b"1") == {}
