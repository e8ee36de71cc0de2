"""Transactions answer as Redis 7.0's do: MULTI, EXEC, DISCARD, WATCH and UNWATCH, alone and between two clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis
import redis.asyncio
from against_redis import KEYS, SLOW_IS_FINE, VALUES, Command, Pair, command, some
from hypothesis import given, note, settings
from hypothesis import strategies as st

import replay_server


@pytest.fixture
def other(pair: Pair, peers: Any) -> Iterator[Pair]:
    """A second client of each server."""
    connected = Pair(peers, 2)
    yield connected
    connected.close()


# ---- against Redis -----------------------------------------------------------------------------------------------

STEPS = [
    command("multi"),
    command("exec"),
    command("exec"),
    command("exec"),
    command("discard"),
    command("watch", some(KEYS)),
    command("unwatch"),
    command("exec", VALUES),
    command("multi", VALUES),
    command("watch"),
    command("nope", KEYS),
    command("get"),
    command("set", KEYS, VALUES),
    command("set", KEYS, VALUES),
    command("get", KEYS),
    command("incr", KEYS),
    command("del", some(KEYS)),
    command("rpush", KEYS, some(VALUES)),
    command("lrange", KEYS, st.just(b"0"), st.just(b"-1")),
    command("pexpire", KEYS, st.just(b"100000")),
    command("rename", KEYS, KEYS),
    command("select", st.sampled_from([b"0", b"1"])),
    command("flushdb"),
    command("flushall"),
    command("expire", KEYS, st.just(b"-1")),
]


@pytest.mark.parametrize("examples", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_two_clients_with_transactions_get_the_same_replies(pair: Pair, other: Pair, examples: int) -> None:
    clients = (pair, other)

    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(st.lists(st.tuples(st.sampled_from([0, 0, 1]), st.one_of(*STEPS)), min_size=1, max_size=60))
    def run(sequence: list[tuple[int, Command]]) -> None:
        for each in clients:
            # Out of the transaction that a sequence before has left, of its watches and its database.
            each.run((b"MULTI",), (b"DISCARD",), (b"SELECT", b"0"), (b"FLUSHALL",))
        note(repr(sequence))
        for which, sent in sequence:
            clients[which].run(sent)

    run()


def test_commands_are_queued_and_run_by_exec(pair: Pair) -> None:
    for line in ["FLUSHALL", "MULTI", "SET a 1", "INCR a", "LPUSH a x", "GET a", "EXEC", "GET a", "MULTI", "EXEC"]:
        pair.words(line)
    assert pair.words("EXEC") == ("-", b"ERR EXEC without MULTI")
    assert pair.words("DISCARD") == ("-", b"ERR DISCARD without MULTI")


def test_an_error_while_queueing_aborts_the_transaction(pair: Pair) -> None:
    for bad in ["NOPE", "GET", "GET a b", "EXEC foo"]:
        for line in ["SET a 1", "MULTI", "SET a 2", bad, "EXEC", "GET a", "EXEC"]:
            pair.words(line)
    for line in ["EXEC foo", "MULTI x", "DISCARD x", "WATCH", "UNWATCH x"]:
        pair.words(line)


def test_what_is_not_allowed_in_a_transaction_does_not_abort_it(pair: Pair) -> None:
    for line in ["MULTI", "MULTI", "WATCH a", "SET a 7", "EXEC", "GET a"]:
        pair.words(line)


def test_the_database_chosen_in_a_transaction_stays_chosen(pair: Pair) -> None:
    for line in ["SELECT 0", "MULTI", "SELECT 3", "SET q 1", "EXEC", "GET q", "SELECT 0", "GET q", "SELECT 3", "DEL q"]:
        pair.words(line)
    pair.words("SELECT 0")


CHANGES = """SET w 2, DEL w, EXPIRE w 100, EXPIRE w -1, RENAME w v, RENAME x w, FLUSHDB, FLUSHALL, APPEND w y, GET w,
    SET other 1, PERSIST w, EXISTS w, SETNX w 1, DEL nothing, UNLINK w, GETDEL w, GETEX w PERSIST, GETEX w EX 100,
    TOUCH w, SETRANGE w 0 abc, SWAPDB 0 1, SWAPDB 2 3, SWAPDB 0 0, COPY x w REPLACE, COPY w v, MOVE w 1"""


@pytest.mark.parametrize("change", [change.strip() for change in CHANGES.split(",")])
@pytest.mark.parametrize("by", ["itself", "another"])
def test_a_change_of_a_watched_key_stops_exec(pair: Pair, other: Pair, change: str, by: str) -> None:
    for line in ["FLUSHALL", "SET w 1", "SET x 1", "WATCH w y"]:
        pair.words(line)
    (pair if by == "itself" else other).words(change)
    for line in ["MULTI", "SET r 1", "EXEC", "GET r", "MULTI", "SET r 2", "EXEC", "GET r"]:
        pair.words(line)


def test_watches_end_with_unwatch_discard_exec_and_reset(pair: Pair, other: Pair) -> None:
    for ends in (["UNWATCH"], ["MULTI", "DISCARD"], ["MULTI", "EXEC"]):
        pair.words("WATCH w")
        for line in ends:
            pair.words(line)
        other.words("SET w 2")
        for line in ["MULTI", "PING", "EXEC"]:
            pair.words(line)


def test_a_watched_key_of_another_database_does_not_matter(pair: Pair, other: Pair) -> None:
    for line in ["SELECT 1", "WATCH w", "SELECT 0"]:
        pair.words(line)
    other.words("SET w 2")
    for line in ["MULTI", "PING", "EXEC", "SELECT 1", "WATCH w", "SELECT 0"]:
        pair.words(line)
    for line in ["SELECT 1", "SET w 2", "SELECT 0"]:
        other.words(line)
    for line in ["MULTI", "PING", "EXEC"]:
        pair.words(line)


def test_a_watched_key_that_runs_out_stops_exec(pair: Pair) -> None:
    pair.run((b"SET", b"w", b"1", b"PX", b"20"), (b"WATCH", b"w"))  # at once: it has not run out in between
    for line in ["MULTI", "PING"]:
        pair.words(line)
    time.sleep(0.05)
    pair.words("EXEC")
    for line in ["SET w 1 PX 20"]:
        pair.words(line)
    time.sleep(0.05)
    for line in ["WATCH w", "MULTI", "PING", "EXEC"]:
        pair.words(line)


def test_reset_and_quit_leave_a_transaction(peers: Any) -> None:
    for end in [b"RESET", b"QUIT"]:
        pair = Pair(peers, 2)
        try:
            for line in ["WATCH a", "MULTI", "SET a 1"]:
                pair.words(line)
            pair.run((end,))
            if end == b"RESET":
                pair.words("EXEC")
        finally:
            pair.close()


def test_the_commands_describe_themselves_as_in_redis(pair: Pair) -> None:
    for name in ["multi", "exec", "discard", "watch", "unwatch"]:
        redis_says, we_say = (
            connection.run(b"COMMAND", b"INFO", name.encode())[1][0][1] for connection in (pair.redis, pair.ours)
        )
        assert redis_says[1] == we_say[1]
        assert redis_says[3:6] == we_say[3:6]


# ---- what only our server has ---------------------------------------------------------------------------------------


def test_large_values_are_kept_until_exec(client: redis.Redis) -> None:
    value = np.random.default_rng(0).bytes(3_000_000)
    with client.pipeline() as pipe:
        pipe.set("large", value)
        pipe.append("large", b"end")
        pipe.get("large")
        assert pipe.execute() == [True, len(value) + 3, value + b"end"]


def test_a_transaction_is_bounded() -> None:
    with (
        replay_server.Server([], config={"max-request-bytes": 1 << 20}) as server,
        redis.from_url(server.url) as client,
    ):
        pipe = client.pipeline()
        for _ in range(3):
            pipe.set("k", b"x" * 500_000)
        with pytest.raises(redis.ResponseError, match="LIMIT the transaction's commands are") as failure:
            pipe.execute()
        assert "max-request-bytes" in str(failure.value)
        assert client.get("k") is None
        assert client.set("k", "v")


def test_memory_that_runs_out_aborts_a_transaction() -> None:
    with replay_server.Server([]) as server, redis.from_url(server.url) as client:
        connection = client.connection_pool.get_connection()
        try:
            for line, reply in [("MULTI", b"OK"), ("SET a 1", b"QUEUED")]:
                connection.send_command(*line.split())
                assert connection.read_response() == reply
            client.config_set("maxmemory", 1)
            connection.send_command("EXEC")
            with pytest.raises(redis.exceptions.ExecAbortError, match="because of: OOM command not allowed"):
                connection.read_response()
            connection.send_command("EXEC")
            with pytest.raises(redis.ResponseError, match="EXEC without MULTI"):
                connection.read_response()
        finally:
            connection.disconnect()


def test_experience_is_not_added_in_a_transaction_but_can_be_sampled_in_one() -> None:
    table = replay_server.Table("t", capacity=100, signature={"x": replay_server.Column("float32", (10_000,))})
    with replay_server.Server([table]) as server, replay_server.Client(server.url) as client:
        client.add("t", {"x": np.ones((4, 10_000), np.float32)})
        with client.redis.pipeline() as pipe:
            pipe.execute_command("REPLAY.INFO", "t")
            pipe.execute_command("REPLAY.SAMPLE", "t", 4)
            info, batch = pipe.execute()
            assert info
            assert len(batch[0]) == 4 * 8
        for rows in (1, 40):  # small enough to be an argument, and large enough to land in the table
            blob = np.ones((rows, 10_000), np.float32).tobytes()
            pipe = client.redis.pipeline()
            pipe.execute_command("REPLAY.ADD", "t", rows, b"", "COLUMNS", 1, "x", blob)
            with pytest.raises(redis.ResponseError, match="Command not allowed inside a transaction"):
                pipe.execute()
        assert client.info("t")["size"] == 4
        client.add("t", {"x": np.ones((4, 10_000), np.float32)})
        assert client.info("t")["size"] == 8


def test_a_client_that_goes_in_the_middle_of_a_transaction_leaves_nothing(our_peer: Any, client: redis.Redis) -> None:
    connection = our_peer.connect()
    for line in [b"WATCH a", b"MULTI", b"SET a 1"]:
        connection.run(*line.split())
    connection.close()
    assert client.get("a") is None
    assert client.set("a", 2)


# ---- redis-py -----------------------------------------------------------------------------------------------------


def test_redis_py_pipelines_are_transactions(client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        assert pipe.set("a", 1).incr("a").get("a").lpush("a", 1).execute(raise_on_error=False)[:3] == [True, 2, b"2"]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"), client.pipeline() as pipe:
        pipe.lpush("a", 1).execute()


def test_redis_py_retries_when_a_watched_key_changes(client: redis.Redis) -> None:
    client.set("counter", 0)
    attempts = 0

    def increment(pipe: Any) -> None:
        nonlocal attempts
        attempts += 1
        current = int(pipe.get("counter"))
        if attempts == 1:
            client.set("counter", 10)
        pipe.multi()
        pipe.set("counter", current + 1)

    assert client.transaction(increment, "counter") == [True]
    assert client.get("counter") == b"11"
    assert attempts == 2


def test_redis_py_asyncio_pipelines_count_together(our_peer: Any, client: redis.Redis) -> None:
    async def count(clients: int, times: int) -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(our_peer.unix_path)) as connected:

            async def one() -> None:
                for _ in range(times):
                    async with connected.pipeline(transaction=True) as pipe:
                        first, second = await pipe.incr("n").incr("n").execute()
                        assert second == first + 1

            await asyncio.gather(*(one() for _ in range(clients)))

    asyncio.run(count(8, 25))
    assert client.get("n") == b"400"
