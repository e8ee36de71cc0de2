"""Scripts and transactions that take many turns of the loop: who waits, who hears BUSY, and what ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from busy_scripts import running, wait_until_busy

import replay_server


@pytest.fixture
def impatient() -> Iterator[Any]:
    """A server that says BUSY soon, and the URL of it."""
    with replay_server.Server([], config={"busy-reply-threshold": 100}) as server:
        yield server


def test_commands_wait_while_a_script_runs_and_connections_are_served(our_peer: Any, client: redis.Redis) -> None:
    count = "local n = 0 for i = 1, 30000000 do n = n + i end redis.call('set', 'done', 1) return n"
    caller, other = our_peer.connect(), our_peer.connect()
    caller.send((b"EVAL", count.encode(), b"0"))
    time.sleep(0.02)
    other.send((b"GET", b"done"), (b"INCR", b"n"), (b"SET", b"large", b"x" * 200_000))
    assert other.read() == ("$", b"1")
    assert other.read() == (":", 1)
    assert other.read() == ("+", b"OK")
    assert caller.read() == (":", 450000015000000)
    caller.close()
    other.close()


def test_others_hear_busy_and_can_kill_the_script(impatient: Any) -> None:
    with redis.from_url(impatient.url) as other, running(impatient, "EVAL", "while true do end", 0) as failures:
        wait_until_busy(other)
        with pytest.raises(redis.ResponseError, match="BUSY"):
            other.set("a", 1)
        with pytest.raises(redis.ResponseError, match="BUSY"):
            other.execute_command("SHUTDOWN")
        pipe = other.pipeline()
        pipe.get("a")
        with pytest.raises(redis.RedisError, match="BUSY"):
            pipe.execute()
        assert other.script_kill() in (True, b"OK", "OK")
        assert other.get("a") is None
    assert "Script killed by user with SCRIPT KILL" in str(failures[0])
    with redis.from_url(impatient.url) as other, pytest.raises(redis.ResponseError, match="NOTBUSY"):
        other.script_kill()


@pytest.mark.parametrize(
    "script",
    [
        "while true do pcall(function() while true do end end) end",
        "while true do local co = coroutine.wrap(function() while true do end end) pcall(co) end",
        "while true do redis.pcall('get', 'a') end",
        "while true do xpcall(function() while true do end end, function() end) end",
        "local function deep(n) return deep(n + 1) + 1 end while true do pcall(deep, 1) end",
    ],
)
def test_no_script_escapes_being_killed(impatient: Any, script: str) -> None:
    with redis.from_url(impatient.url) as other, running(impatient, "EVAL", script, 0) as failures:
        wait_until_busy(other)
        other.script_kill()
    assert "Script killed" in str(failures[0])


def test_a_script_that_has_written_is_not_killed_but_ends_with_the_server(impatient: Any) -> None:
    script = "redis.call('set', 'a', 1) while true do end"
    with redis.from_url(impatient.url) as other, running(impatient, "EVAL", script, 0):
        wait_until_busy(other)
        with pytest.raises(redis.ResponseError, match="UNKILLABLE"):
            other.script_kill()
        with contextlib.suppress(redis.ConnectionError):
            other.execute_command("SHUTDOWN", "NOSAVE")


def test_a_script_goes_on_when_its_client_has_gone(impatient: Any) -> None:
    script = "local n = 0 for i = 1, 20000000 do n = n + 1 end redis.call('set', 'end', n) return n"
    gone = redis.from_url(impatient.url, socket_timeout=0.05)
    with pytest.raises(redis.TimeoutError):
        gone.eval(script, 0)
    gone.close()
    with redis.from_url(impatient.url) as other:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.ResponseError):
                assert other.get("end") == b"20000000"
                return
            time.sleep(0.02)
    raise AssertionError("the script has not ended")


def test_a_transaction_goes_on_when_its_client_has_gone(impatient: Any) -> None:
    gone = redis.from_url(impatient.url)
    connection = gone.connection_pool.get_connection()
    slow = "local n = 0 for i = 1, 10000000 do n = n + 1 end return n"
    for command in [("MULTI",), ("SET", "x", 1), ("EVAL", slow, 0), ("CLIENT", "INFO"), ("INCR", "x"), ("EXEC",)]:
        connection.send_command(*command)
    time.sleep(0.05)
    connection.disconnect()
    with redis.from_url(impatient.url) as other:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.ResponseError):
                assert other.get("x") in (b"2", None)
                if other.get("x") == b"2":
                    return
            time.sleep(0.02)
    raise AssertionError("the transaction has not ended")


def test_a_large_command_of_a_transaction_goes_on_when_its_client_has_gone(client: redis.Redis, our_peer: Any) -> None:
    for key in ("one", "two"):
        with client.pipeline(transaction=False) as pipe:
            for first in range(0, 100_000, 10_000):
                pipe.zadd(key, {f"{key}:{n}": n for n in range(first, first + 10_000)})
            pipe.execute()
    requests = [("MULTI",), ("ZUNIONSTORE", "both", 2, "one", "two"), ("ZRANGESTORE", "copy", "both", 0, -1)]
    for _ in range(5):
        gone = redis.Redis(unix_socket_path=str(our_peer.unix_path))
        connection = gone.connection_pool.get_connection()
        for request in [*requests, ("INCR", "ended"), ("EXEC",)]:
            connection.send_command(*request)
        time.sleep(0.03)
        connection.disconnect()
    deadline = time.monotonic() + 60
    while client.get("ended") != b"5" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [client.zcard("both"), client.zcard("copy"), client.get("ended")] == [200_000, 200_000, b"5"]


SLOW_REQUEST = (b"EVAL", b"#!lua flags=no-writes\nfor i = 1, 3000000 do local x = i end return 1", b"0")


def test_a_transaction_cannot_unblock_itself(our_peer: Any) -> None:
    connection = our_peer.connect()
    for _ in range(2):
        own = str(connection.run(b"CLIENT", b"ID")[1]).encode()
        connection.send((b"MULTI",), SLOW_REQUEST, (b"CLIENT", b"UNBLOCK", own), (b"PING",), (b"EXEC",), SLOW_REQUEST)
        replies = [connection.read() for _ in range(6)]
        assert replies[4:] == [("*", [(":", 1), (":", 0), ("+", b"PONG")]), (":", 1)]
    connection.close()


def test_the_end_of_a_pause_lets_nobody_into_a_transaction(our_peer: Any, client: redis.Redis) -> None:
    client.set("x", 0)
    connection, waiting = our_peer.connect(), our_peer.connect()
    connection.run(b"CLIENT", b"PAUSE", b"60000", b"WRITE")
    waiting.send((b"INCR", b"x"))
    while not any("b" in other["flags"] for other in client.client_list()):
        time.sleep(0.01)
    get = (b"GET", b"x")
    connection.send((b"MULTI",), SLOW_REQUEST, get, (b"CLIENT", b"UNPAUSE"), get, SLOW_REQUEST, get, (b"EXEC",))
    replies = [connection.read() for _ in range(8)]
    zero, one = ("$", b"0"), (":", 1)
    assert replies[-1] == ("*", [one, zero, ("+", b"OK"), zero, one, zero])
    assert waiting.read() == (":", 1)
    for each in (connection, waiting):
        each.close()


def test_a_server_stops_while_a_script_runs() -> None:
    with replay_server.Server([]) as server, running(server, "EVAL", "while true do end", 0):
        time.sleep(0.1)
        server.stop()


def test_a_long_transaction_is_run_whole(client: redis.Redis, our_peer: Any) -> None:
    with client.pipeline() as pipe:
        for _ in range(50_000):
            pipe.incr("n")
        sent = threading.Event()
        seen: list[int] = []

        def look() -> None:
            with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as other:
                while not sent.is_set():
                    seen.append(int(other.get("n") or 0))

        thread = threading.Thread(target=look)
        thread.start()
        replies = pipe.execute()
        sent.set()
        thread.join()
    assert replies == list(range(1, 50_001))
    assert set(seen) <= {0, 50_000}


def test_no_key_runs_out_in_the_midst_of_a_script(client: redis.Redis) -> None:
    script = """redis.call('set', 'k', 'v', 'px', 1)
        for i = 1, 2000000 do local x = i end
        return redis.call('get', 'k')"""
    assert client.eval(script, 0) == b"v"
    time.sleep(0.01)
    assert client.get("k") is None


# ---- durability ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["script", "transaction"])
def test_what_takes_many_turns_is_in_the_append_only_file_whole(tmp_path: Path, how: str) -> None:
    count, config = 30_000, {"appendonly": "yes", "appendfsync": "always"}
    with replay_server.Server([], directory=str(tmp_path), config=config) as server:
        with redis.from_url(server.url) as client:
            if how == "script":
                client.eval(f"for i = 1, {count} do redis.call('rpush', 'l', i) end", 0)
            else:
                pipe = client.pipeline()
                for i in range(count):
                    pipe.rpush("l", i + 1)
                pipe.execute()
            client.set("after", 1)
        os.kill(server.pid, signal.SIGKILL)
    with (
        replay_server.Server([], directory=str(tmp_path), config=config) as server,
        redis.from_url(server.url, decode_responses=True) as client,
    ):
        assert client.lrange("l", 0, -1) == [str(i) for i in range(1, count + 1)]
        assert client.get("after") == "1"
