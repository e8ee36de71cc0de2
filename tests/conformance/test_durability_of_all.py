"""A restart finds the store as commands of every family have left it, in any order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import redis
from against_redis import KEYS, SLOW_IS_FINE, VALUES, Command, command, some, words
from durable import assert_same, contents, kill, serve, wait_until
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_lists_waiting import COMMANDS as MOVES
from test_sets import sets
from test_sorted_sets import adding, algebra, popping, removing
from test_store_against_redis import EXPIRY, GENERIC, hashes, lists, strings
from test_streams import FEW as STREAM_KEYS
from test_streams import entries, groups

SCRIPT = """
redis.call('set', KEYS[1], ARGV[1])
redis.call('expire', KEYS[1], 1000)
return redis.call('incrbyfloat', KEYS[2], '0.1')
"""
DATABASES = words("0", "1", "9")
MORE = [
    command("swapdb", DATABASES, DATABASES),
    command("move", KEYS, DATABASES),
    command("copy", KEYS, KEYS, words("", "DB 1", "REPLACE", "DB 9 REPLACE")),
    command("multi"),
    command("exec"),
    command("exec"),
    command("discard"),
    command("eval", st.just(SCRIPT.encode()), st.just(b"2"), KEYS, KEYS, VALUES),
    command("sort", KEYS, words("ALPHA STORE", "ALPHA DESC STORE"), KEYS),
    command("bitop", words("AND", "OR", "NOT"), KEYS, some(KEYS)),
    command("setbit", KEYS, words("7 1", "100 0")),
    command("spop", KEYS, words("", "2")),
]
STREAMS = [
    *(entries(STREAM_KEYS) + groups(STREAM_KEYS) + groups(STREAM_KEYS)),
    command("xadd", STREAM_KEYS, words("*", "MAXLEN ~ 5 *", "MINID ~ 3 *", "MAXLEN = 4 *"), st.just((b"f", b"v"))),
    command("multi"),
    command("exec"),
]
COMMANDS = [
    *(strings(KEYS) + lists(KEYS) + hashes(KEYS) + GENERIC + EXPIRY),
    *(sets(KEYS) + adding(KEYS) + removing(KEYS) + popping(KEYS) + algebra(KEYS) + MOVES + MORE),
    *STREAMS,
]
SEQUENCES = st.lists(st.one_of(*COMMANDS), min_size=100, max_size=200)


def check_sequence(folder: Path, sequence: list[Command]) -> None:
    """The store after the commands is what a restart finds, and what a rewrite and another restart leave."""
    with serve(folder, "everysec") as (server, client):
        client.flushall()
        connection = client.connection_pool.get_connection()
        for sent in sequence:
            connection.send_command(*sent)
            with contextlib.suppress(redis.ResponseError):
                connection.read_response()
        connection.disconnect()
        before = contents(client)
        server.stop()
    with serve(folder, "everysec") as (server, client):
        assert_same(contents(client), before)
        assert "failed" not in server.log()
        client.execute_command("BGREWRITEAOF")
        wait_until(lambda: client.info("persistence")["aof_rewrites"] == 1)
        kill(server)
    with serve(folder, "everysec") as (_, client):
        assert_same(contents(client), before)


def test_after_a_restart_all_is_as_random_commands_left_it(tmp_path: Path) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, phases=[Phase.generate])
    @given(SEQUENCES)
    def run(sequence: list[Command]) -> None:
        check_sequence(tmp_path, sequence)

    run()


def test_after_a_restart_streams_are_as_random_commands_left_them(tmp_path: Path) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, phases=[Phase.generate])
    @given(st.lists(st.one_of(*STREAMS), min_size=100, max_size=200))
    def run(sequence: list[Command]) -> None:
        check_sequence(tmp_path, sequence)

    run()


@pytest.mark.slow
def test_after_a_restart_all_is_as_many_random_commands_left_it(tmp_path: Path) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None)
    @given(SEQUENCES)
    def run(sequence: list[Command]) -> None:
        check_sequence(tmp_path, sequence)

    run()
