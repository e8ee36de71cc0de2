"""CLIENT PAUSE WRITE holds back what Redis 7.0 holds back, above all whatever may write."""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Iterator
from typing import Any

import pytest

Request = tuple[bytes, ...]

SET = b"return redis.call('set',KEYS[1],'after')"
GET = b"return redis.call('get',KEYS[1])"
READS = b"#!lua flags=no-writes\n" + GET
WRITES = b"#!lua\n" + SET
MEANS_NO_HARM = b"#!lua flags=allow-oom\n" + GET
FAULTY = b"#!lua flags=none\n" + SET


def sha(script: bytes) -> bytes:
    return hashlib.sha1(script).hexdigest().encode()


HELD: list[Request] = [
    (b"SET", b"paused", b"after"),
    (b"DEL", b"paused"),
    (b"PUBLISH", b"channel", b"message"),
    (b"SPUBLISH", b"channel", b"message"),
    (b"EVAL", SET, b"1", b"paused"),
    (b"EVAL", GET, b"1", b"paused"),
    (b"EVAL", WRITES, b"1", b"paused"),
    (b"EVAL", MEANS_NO_HARM, b"1", b"paused"),
    (b"EVAL", FAULTY, b"1", b"paused"),
    (b"EVAL_RO", WRITES, b"1", b"paused"),
    (b"EVALSHA", sha(SET), b"1", b"paused"),
    (b"EVALSHA", sha(WRITES), b"1", b"paused"),
    (b"EVALSHA", b"0" * 40, b"1", b"paused"),
    (b"EVALSHA", b"short", b"1", b"paused"),
]
RUN: list[Request] = [
    (b"GET", b"paused"),
    (b"EVAL", READS, b"1", b"paused"),
    (b"EVAL_RO", GET, b"1", b"paused"),
    (b"EVAL_RO", SET, b"1", b"paused"),
    (b"EVALSHA", sha(READS), b"1", b"paused"),
    (b"EVALSHA", sha(READS).upper(), b"1", b"paused"),
    (b"EVALSHA_RO", sha(SET), b"1", b"paused"),
    (b"EVALSHA_RO", b"0" * 40, b"1", b"paused"),
    (b"SCRIPT", b"EXISTS", sha(SET)),
    (b"SCRIPT", b"LOAD", b"return 1"),
    (b"MULTI",),
]


def named(request: Request) -> str:
    return b" ".join(request).decode().replace("\n", " ")[:60]


def is_waiting(connection: Any, number: int) -> bool:
    _, line = connection.run(b"CLIENT", b"LIST", b"ID", b"%d" % number)
    return "b" in line.decode().split(" flags=")[1].split(" ")[0]


def is_held(peer: Any, *requests: Request) -> bool:
    """Whether the last of the requests is put off; it is answered otherwise."""
    asked, asking = peer.connect(), peer.connect()
    try:
        kind, number = asked.run(b"CLIENT", b"ID")
        assert kind == ":"
        for request in requests[:-1]:
            asked.run(*request)
        asked.send(requests[-1])
        deadline = time.monotonic() + 60
        while not is_waiting(asking, number):
            if select.select([asked.socket], [], [], 0.01)[0]:
                return False
            assert time.monotonic() < deadline, f"{requests[-1]!r} is neither answered nor held"
        return True
    finally:
        asked.close()
        asking.close()


@pytest.fixture
def paused(peers: Any) -> Iterator[Any]:
    """Both servers, with the scripts loaded, in a pause of writes."""
    connections = [peer.connect() for peer in peers]
    for connection in connections:
        connection.run(b"FLUSHALL")
        connection.run(b"SET", b"paused", b"before")
        for script in (SET, GET, READS, WRITES):
            assert connection.run(b"SCRIPT", b"LOAD", script) == ("$", sha(script))
        assert connection.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE") == ("+", b"OK")
    yield peers
    for connection in connections:
        connection.run(b"CLIENT", b"UNPAUSE")
        connection.close()


@pytest.mark.parametrize("request_", [*HELD, *RUN], ids=named)
def test_a_pause_of_writes_holds_what_redis_holds(paused: Any, request_: Request) -> None:
    expected = request_ in HELD
    assert [is_held(peer, request_) for peer in paused] == [expected, expected]
    _, ours = paused
    connection = ours.connect()
    assert connection.run(b"GET", b"paused") == ("$", b"before")
    connection.close()


@pytest.mark.parametrize("request_", [*HELD, *RUN[:-1]], ids=named)
def test_a_pause_holds_the_same_in_a_transaction(paused: Any, request_: Request) -> None:
    expected = request_ in HELD
    assert [is_held(peer, (b"MULTI",), request_) for peer in paused] == [expected, expected]


ONLY_READ = {"replay.await", "replay.get", "replay.info", "replay.list", "replay.spec", "weights.get", "weights.info"}
ONLY_READ |= {"weights.list", "grad.await", "grad.info", "grad.list", "grad.state", "grad.take"}
CHANGE_NO_DATA = {"replay.prove", "replay.release", "replay.share"}


def test_a_pause_of_writes_holds_what_changes_tables_weights_and_gradients(paused: Any) -> None:
    _, ours = paused
    connection = ours.connect()
    _, told = connection.run(b"COMMAND")
    connection.close()
    arities = {fields[0][1].decode(): abs(fields[1][1]) for _, fields in told}
    own = {name for name in arities if name.startswith(("replay.", "weights.", "grad."))}
    own.remove("replay.save")  # it waits by itself, for the disk
    held = {name for name in own if is_held(ours, (name.encode(), *[b"1"] * (arities[name] - 1)))}
    assert held == own - ONLY_READ - CHANGE_NO_DATA
    assert len(held) > 15


def test_no_key_goes_in_a_pause_because_its_time_is_over(paused: Any) -> None:
    for peer in paused:
        connection = peer.connect()
        connection.run(b"CLIENT", b"UNPAUSE")
        connection.run(b"CONFIG", b"RESETSTAT")
        connection.run(b"PSETEX", b"read", b"1", b"v")
        connection.run(b"PSETEX", b"left", b"1", b"v")
        connection.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE")
        connection.close()
    time.sleep(0.3)  # Redis looks for such keys ten times a second
    for peer in paused:
        connection = peer.connect()
        assert connection.run(b"GET", b"read") == ("$", None)
        before = connection.run(b"DBSIZE"), expired(connection)
        connection.run(b"CLIENT", b"UNPAUSE")
        deadline = time.monotonic() + 60
        while connection.run(b"DBSIZE") != (":", 1):  # `paused` has no time
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if before[1] == 0:  # unless a slow machine has let the time be over before the pause began
            assert before == ((":", 3), 0)
            assert expired(connection) == 2
        connection.close()


def test_a_key_whose_time_is_over_breaks_a_watch_in_a_pause_too(peers: Any) -> None:
    for peer in peers:
        watching, other = peer.connect(), peer.connect()
        try:
            other.run(b"FLUSHALL")
            other.run(b"PSETEX", b"k", b"200", b"v")
            watching.run(b"WATCH", b"k")
            assert other.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE") == ("+", b"OK")
            while watching.run(b"GET", b"k") != ("$", None):
                time.sleep(0.01)
            for words in (b"MULTI", b"GET k"):
                watching.run(*words.split())
            assert watching.run(b"EXEC") == ("*", None)
            for words in (b"WATCH k", b"MULTI", b"GET k"):  # it was over before
                watching.run(*words.split())
            assert watching.run(b"EXEC") == ("*", [("$", None)])
        finally:
            other.run(b"CLIENT", b"UNPAUSE")
            watching.close()
            other.close()


def expired(connection: Any) -> int:
    _, text = connection.run(b"INFO", b"stats")
    (line,) = [line for line in text.decode().splitlines() if line.startswith("expired_keys:")]
    return int(line.partition(":")[2])


def test_exec_waits_for_the_end_of_a_pause_that_began_after_a_script_was_queued(peers: Any) -> None:
    for peer in peers:
        other = peer.connect()
        other.run(b"SET", b"paused", b"before")
        for script, holds in [(SET, True), (WRITES, True), (READS, False)]:
            queued = peer.connect()
            _, number = queued.run(b"CLIENT", b"ID")
            queued.run(b"MULTI")
            assert queued.run(b"EVAL", script, b"1", b"paused") == ("+", b"QUEUED")
            assert other.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE") == ("+", b"OK")
            queued.send((b"EXEC",))
            if not holds:
                assert queued.read() == ("*", [("$", b"after")])
            else:
                deadline = time.monotonic() + 60
                while not is_waiting(other, number):
                    assert time.monotonic() < deadline, f"{script!r} is not held"
                    time.sleep(0.01)
                assert other.run(b"CLIENT", b"UNPAUSE") == ("+", b"OK")
                assert queued.read() == ("*", [("+", b"OK")])
            other.run(b"CLIENT", b"UNPAUSE")
            queued.close()
        assert other.run(b"GET", b"paused") == ("$", b"after")
        other.close()


TAKES_SLICES = b"""
redis.call('rpush', 'order', 'begin ' .. ARGV[1])
for i = 1, 3000000 do local x = i end
redis.call('rpush', 'order', 'end ' .. ARGV[1])"""


def test_scripts_that_a_pause_held_run_one_after_the_other(our_peer: Any) -> None:
    names = [b"%d" % number for number in range(4)]
    waiting = {name: our_peer.connect() for name in names}
    connection = our_peer.connect()
    connection.run(b"DEL", b"order")
    connection.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE")
    deadline = time.monotonic() + 60
    for name, each in waiting.items():
        _, number = each.run(b"CLIENT", b"ID")
        each.send((b"EVAL", TAKES_SLICES, b"0", name))
        while not is_waiting(connection, number):
            assert time.monotonic() < deadline, f"script {name!r} is not held"
    connection.run(b"CLIENT", b"UNPAUSE")
    assert [each.read() for each in waiting.values()] == [("$", None)] * len(names)
    expected = [("$", word + name) for name in names for word in (b"begin ", b"end ")]
    assert connection.run(b"LRANGE", b"order", b"0", b"-1") == ("*", expected)
    for each in (connection, *waiting.values()):
        each.close()
