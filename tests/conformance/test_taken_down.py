"""Commands that are taken down as others: what is read back from the append-only file is what was there."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import test_bits
import test_keys
import test_lists_waiting
from against_redis import KEYS, SLOW_IS_FINE, Command, Commands, command
from hypothesis import given, settings
from hypothesis import strategies as st
from test_durability import assert_same, contents, kill, serve

import replay_server as rs

FAMILIES: list[Commands] = [
    *test_bits.COMMANDS,
    *test_keys.COMMANDS,
    *test_lists_waiting.COMMANDS,
    command("incrbyfloat", KEYS, st.sampled_from([b"0.1", b"3.0e3", b"1e-9"])),
    command("hincrbyfloat", KEYS, st.sampled_from([b"f", b"g"]), st.sampled_from([b"0.1", b"-2.5"])),
    command("set", KEYS, st.just(b"v"), st.sampled_from([(b"EX", b"900"), (b"GET", b"PX", b"900000"), (b"KEEPTTL",)])),
    command("getex", KEYS, st.sampled_from([(b"EX", b"900"), (b"PERSIST",), (b"PXAT", b"1")])),
    command("expire", KEYS, st.sampled_from([(b"900",), (b"-1",), (b"900", b"GT")])),
    command("setex", KEYS, st.just(b"900"), st.just(b"v")),
    command("psetex", KEYS, st.just(b"900000"), st.just(b"v")),
    command("getdel", KEYS),
]


def test_what_random_commands_left_is_read_back(tmp_path: Path) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(st.lists(st.one_of(*FAMILIES), min_size=60, max_size=200))
    def run(sequence: list[Command]) -> None:
        folder = tmp_path / str(time.monotonic_ns())
        folder.mkdir()
        with serve(folder, "no") as (_, client):
            pipeline = client.pipeline(transaction=False)
            for words in sequence:
                pipeline.execute_command(*words)
            pipeline.execute(raise_on_error=False)
            before = contents(client)
        with serve(folder, "no") as (_, client):
            assert_same(contents(client), before)

    run()


def test_what_was_popped_after_a_wait_stays_popped(tmp_path: Path) -> None:
    waits = ["BLPOP a 0", "BRPOP z a 0", "BLMOVE a b LEFT RIGHT 0", "BRPOPLPUSH a c 0", "BLMPOP 0 2 z a LEFT COUNT 2"]
    with serve(tmp_path) as (server, client):

        def wait(line: str) -> None:
            with rs.Client(server.url) as waiting:
                waiting.redis.execute_command(*line.split())

        threads = [threading.Thread(target=wait, args=(line,)) for line in waits]
        for blocked, thread in enumerate(threads, 1):
            thread.start()
            while client.info("clients")["blocked_clients"] < blocked:
                time.sleep(0.001)
        client.rpush("a", *range(8))
        for thread in threads:
            thread.join()
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert_same(contents(client), before)
        assert client.lrange("b", 0, -1) == [b"1"]
        assert client.llen("a") == 2
