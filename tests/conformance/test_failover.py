"""FAILOVER: a primary and its replica change places. Redis 7.0 at either end, or both of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from links import Member, eventually, settled, start

PAIRS = [("ours", "redis"), ("redis", "ours"), ("ours", "ours")]
NO_REPLICA = "FAILOVER target HOST and PORT is not a replica."


def is_online(primary: Member) -> bool:
    return primary.replication().get("slave0", {}).get("state") == "online"


@contextlib.contextmanager
def following(primary_name: str, replica_name: str, folder: Path) -> Iterator[tuple[Member, Member]]:
    at_once = ("repl-diskless-sync-delay", "0")
    with (
        start(primary_name, folder / "a", *at_once) as primary,
        start(replica_name, folder / "b", *at_once) as replica,
    ):
        replica.follow(primary.port)
        eventually(lambda: is_online(primary), "a replica")
        settled(primary, replica)
        yield primary, replica


def state(member: Member) -> str:
    return member.replication()["master_failover_state"]


def role(member: Member) -> str:
    return member.replication()["role"]


def refusal(member: Member, *words: Any) -> str:
    with pytest.raises(redis.ResponseError) as refused:
        member.client.execute_command(*words)
    return str(refused.value)


class Later:
    """A request whose answer comes later."""

    def __init__(self, member: Member, *words: Any) -> None:
        self.answer: Any = None
        self._thread = threading.Thread(target=self._ask, args=(member.port, words))
        self._thread.start()

    def _ask(self, port: int, words: tuple[Any, ...]) -> None:
        with contextlib.closing(redis.Redis(port=port)) as client:
            try:
                self.answer = client.execute_command(*words)
            except redis.ResponseError as error:
                self.answer = error

    def waits(self) -> bool:
        self._thread.join(0.1)
        return self._thread.is_alive()

    def get(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.answer


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[1]} takes over from {pair[0]}")
def test_what_was_acknowledged_is_on_the_new_primary_once(pair: tuple[str, str], tmp_path: Path) -> None:
    with following(*pair, tmp_path) as (first, second):
        acknowledged = [0] * 3

        def write(writer: int) -> None:
            with contextlib.closing(redis.Redis(port=first.port)) as client, contextlib.suppress(redis.ReadOnlyError):
                while True:
                    client.rpush(f"list {writer}", acknowledged[writer])
                    acknowledged[writer] += 1

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        for thread in writers:
            thread.start()
        eventually(lambda: min(acknowledged) > 20, "writes")
        reader = Later(first, "BLPOP", "nothing", 0)
        first.client.execute_command("FAILOVER", "TO", "127.0.0.1", second.port, "TIMEOUT", 60_000)
        for thread in writers:
            thread.join(60)
        assert str(reader.get()).startswith(("UNBLOCKED", "force unblock", "You can't write"))
        eventually(first.is_up, "the former primary as a replica")
        assert (role(first), role(second)) == ("slave", "master")
        for writer, count in enumerate(acknowledged):
            assert second.client.lrange(f"list {writer}", 0, -1) == [str(n).encode() for n in range(count)]

        second.client.set("after", 1)
        settled(second, first)
        assert first.client.get("after") == b"1"
        assert second.client.execute_command("FAILOVER", "TIMEOUT", 60_000) == b"OK"
        eventually(lambda: role(first) == "master" and second.is_up(), "the way back")
        assert state(first) == state(second) == "no-failover"
        first.client.set("after", 2)
        settled(first, second)
        assert second.client.get("after") == b"2"
        assert [member.client.info("stats")["sync_full"] for member in (first, second)] == [1, 0]


@contextlib.contextmanager
def stopped(member: Member) -> Iterator[Callable[[], None]]:
    assert member.process is not None
    process = member.process
    process.send_signal(signal.SIGSTOP)
    try:
        yield lambda: process.send_signal(signal.SIGCONT)
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("name", ["ours", "redis"])
def test_what_cannot_begin_is_refused(name: str, tmp_path: Path) -> None:
    with following(name, "redis", tmp_path) as (primary, replica), start(name, tmp_path / "c") as alone:
        assert refusal(alone, "FAILOVER") == "FAILOVER requires connected replicas."
        assert refusal(alone, "FAILOVER", "ABORT") == "No failover in progress."
        assert refusal(alone, "PSYNC", "x", "no number", "FAILOVER") == "PSYNC FAILOVER can't be sent to a master."
        assert refusal(primary, "FAILOVER", "TO", "127.0.0.1", 1) == NO_REPLICA
        assert refusal(primary, "FAILOVER", "TO", "elsewhere", replica.port) == NO_REPLICA
        needs = "FAILOVER with force option requires both a timeout and target HOST and IP."
        for words in (["FORCE"], ["FORCE", "TIMEOUT", 10], ["TO", "127.0.0.1", replica.port, "FORCE"]):
            assert refusal(primary, "FAILOVER", *words) == needs
        for timeout in (0, -1):
            assert refusal(primary, "FAILOVER", "TIMEOUT", timeout) == "FAILOVER timeout must be greater than 0"
        for words in (["TIMEOUT", "x"], ["TO", "a", "b"]):
            assert refusal(primary, "FAILOVER", *words) == "value is not an integer or out of range"
        for line in (
            "X",
            "TIMEOUT",
            "TO a",
            "ABORT ABORT",
            "TIMEOUT 5 TIMEOUT 5",
            "TO a 1 TO b 2",
            "TO a 1 FORCE FORCE",
        ):
            assert refusal(primary, "FAILOVER", *line.split()) == "syntax error"
        alone.follow(primary.port)
        eventually(alone.is_up, "a second replica")
        assert refusal(alone, "FAILOVER") == "FAILOVER is not valid when server is a replica."
        assert refusal(alone, "PSYNC", "x" * 40, 1, "FAILOVER") == "PSYNC FAILOVER replid must match my replid."
        assert (state(primary), role(primary), role(alone)) == ("no-failover", "master", "slave")


@pytest.mark.parametrize("name", ["ours", "redis"])
def test_writes_wait_until_a_failover_is_given_up(name: str, tmp_path: Path) -> None:
    with following(name, "redis", tmp_path) as (primary, replica), stopped(replica):
        client = primary.client
        client.set("short", 1, px=50)
        client.execute_command("FAILOVER", "TIMEOUT", 60_000)
        assert state(primary) == "waiting-for-sync"
        offset = primary.replication()["master_repl_offset"]
        write = Later(primary, "SET", "a", 1)
        assert write.waits()
        client.client_unpause()
        assert write.waits()
        assert client.get("a") is client.get("short") is None
        assert primary.replication()["master_repl_offset"] == offset
        for words in (["FAILOVER"], ["FAILOVER", "FORCE"], ["FAILOVER", "TO", "a", 1]):
            assert refusal(primary, *words) == "FAILOVER already in progress."
        for words in (["NO", "ONE"], ["127.0.0.1", 1]):
            assert refusal(primary, "REPLICAOF", *words) == "REPLICAOF not allowed while failing over."
        for words in (["SYNC"], ["PSYNC", "?", -1]):
            assert refusal(primary, *words) == "NOMASTERLINK Can't SYNC while failing over"
        assert client.execute_command("FAILOVER", "ABORT") == b"OK"
        assert write.get() is True
        assert (state(primary), role(primary), client.get("a")) == ("no-failover", "master", b"1")

        client.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port, "TIMEOUT", 20)
        eventually(lambda: state(primary) == "no-failover", "the end of the time")
        assert client.set("a", 2)
        assert role(primary) == "master"


@pytest.mark.parametrize("name", ["ours", "redis"])
def test_a_forced_failover_goes_on_once_its_time_is_over(name: str, tmp_path: Path) -> None:
    with following(name, "redis", tmp_path) as (primary, replica), stopped(replica) as go_on:
        client = primary.client
        client.set("a", 1)
        for ends in ("ABORT", "the replica"):
            client.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port, "FORCE", "TIMEOUT", 500)
            write = Later(primary, "SET", "b", ends)
            assert write.waits()
            eventually(lambda: state(primary) == "failover-in-progress", "the end of the time")
            assert role(primary) == "slave"
            assert write.waits()
            assert refusal(primary, "SET", "c", 1) == "You can't write against a read only replica."
            if ends == "ABORT":
                assert client.execute_command("FAILOVER", "ABORT") == b"OK"
                assert write.get() is True
                assert (state(primary), role(primary)) == ("no-failover", "master")
                go_on()
                eventually(lambda: is_online(primary), "the replica again")
                settled(primary, replica)
                assert replica.process is not None
                replica.process.send_signal(signal.SIGSTOP)
            else:
                go_on()
                assert isinstance(write.get(), redis.ReadOnlyError)
        eventually(primary.is_up, "the former primary as a replica")
        assert (role(replica), replica.client.get("b")) == ("master", b"ABORT")


def test_a_transaction_that_asks_for_it_is_on_the_new_primary_whole(tmp_path: Path) -> None:
    with following("ours", "ours", tmp_path) as (first, second):
        with first.client.pipeline(transaction=True) as pipe:
            pipe.set("a", 1).execute_command("FAILOVER").set("b", 2).execute()
        eventually(first.is_up, "the former primary as a replica")
        assert second.client.mget("a", "b") == [b"1", b"2"]
        assert role(second) == "master"


def test_a_target_that_refuses_leaves_the_primary_what_it_was(tmp_path: Path) -> None:
    with following("ours", "redis", tmp_path) as (primary, replica), start("ours", tmp_path / "c") as other:
        other.follow(primary.port)
        eventually(other.is_up, "a second replica")
        replica.client.config_set("requirepass", "secret")
        primary.client.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
        eventually(lambda: state(primary) == "no-failover" and role(primary) == "master", "the refusal")
        assert primary.client.set("a", 1)
        eventually(lambda: other.client.get("a") == b"1", "the other replica")
