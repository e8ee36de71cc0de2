"""The servers of a job that has replicas: which one becomes the primary, when, and what the others do then."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
from links import eventually, free_port
from replicated_shards import stopped
from test_sentinel_tables import TABLE as STEPS
from test_sentinel_tables import Work, all_keys

import replay_server as rs
from replay_server import replica_group
from replay_server.jobs.job_replicas import JobReplicas
from replay_server.jobs.job_server import ReplaySaver

TABLE = rs.Table("apex", 1000, {"x": rs.Column("int64")})


class Servers:
    """A job's servers, watched from outside: each by its own URL."""

    def __init__(self, folder: Path, table: rs.Table, replicas: int, resumed: bool = False, **options: Any) -> None:
        self.said: list[str] = []
        self.folder = folder / "replay"
        given = {"host": "127.0.0.1", "password": None, **options}
        self.job = JobReplicas(table, replicas, self.folder, 0, True, resumed, given, self.said.append)
        before, _, places = self.job.url.rpartition("//")
        login, at, places = places.rpartition("@")
        self.urls = [f"{before}//{login}{at}{place}" for place in places.split(",")]

    def ask(self, number: int, *words: Any) -> Any:
        with rs.Client(self.urls[number], socket_timeout=5.0, reconnect_timeout=0.0) as client:
            return client.redis.execute_command(*words)

    def about(self, number: int) -> dict[str, Any]:
        try:
            return self.ask(number, "INFO", "replication")
        except (rs.ReplayError, redis.RedisError, OSError):
            return {}

    def port(self, number: int) -> int:
        return urlsplit(self.urls[number]).port or 0

    def pid(self, number: int) -> int:
        return self.ask(number, "INFO", "server")["process_id"]

    def primaries(self) -> list[int]:
        """Those that take writes."""
        told = {number: self.about(number) for number in range(len(self.urls))}
        return [
            number for number, about in told.items() if about.get("role") == "master" and not about["master_fenced"]
        ]

    def await_primary(self, number: int) -> None:
        """Until this one alone is a primary, and all others have its data."""
        others = [other for other in range(len(self.urls)) if other != number]
        eventually(
            lambda: (
                self.primaries() == [number]
                and all(self.about(other).get("master_link_status") == "up" for other in others)
            ),
            f"server {number} leads all",
        )

    def kill(self, number: int) -> None:
        os.kill(self.pid(number), signal.SIGKILL)


@contextlib.contextmanager
def servers(folder: Path, table: rs.Table = TABLE, replicas: int = 1, **options: Any) -> Iterator[Servers]:
    begun = Servers(folder, table, replicas, **options)
    try:
        begun.await_primary(0)
        yield begun
    finally:
        begun.job.stop(10.0)


def add(client: rs.Client, begin: int, count: int = 10) -> list[int]:
    return client.add("apex", {"x": np.arange(begin, begin + count)}).tolist()


def values(client: rs.Client, ids: list[int]) -> list[int]:
    return client.get("apex", np.array(ids, np.uint64)).data["x"].tolist()


def test_the_replica_takes_a_killed_primarys_place_which_comes_back_as_a_replica_and_so_on(tmp_path: Path) -> None:
    with servers(tmp_path, password="secret") as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids: list[int] = []
        for turn in range(3):
            ids += add(client, len(ids))
            assert client.redis.wait(1, 60_000) == 1
            those.kill(turn % 2)
            those.await_primary((turn + 1) % 2)
            assert those.job.watch()
            assert those.job.primary_url == those.urls[(turn + 1) % 2]
            assert values(client, ids) == list(range(len(ids)))
        assert len(set(ids)) == len(ids)
        assert "secret" not in those.job.address + those.job.processes
        assert not those.job.watch()
    assert not list(those.folder.glob("server-*"))


@pytest.mark.parametrize("is_silent", [False, True])
def test_of_several_replicas_the_furthest_ahead_is_promoted_and_the_others_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """`is_silent`: also where it does not answer the first questions, and another one does."""
    monkeypatch.setattr(replica_group, "ANSWERS_WITHIN_S", 100.0)
    with servers(tmp_path, replicas=2) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        assert client.redis.wait(2, 60_000) == 2
        with monkeypatch.context() as patched:
            patched.setattr(JobReplicas, "_have_follow", lambda *_: None)
            those.ask(2, "REPLICAOF", "127.0.0.1", free_port())
            ids += add(client, 10)
            assert client.redis.wait(1, 60_000) == 1
            with stopped(*([those.pid(1)] if is_silent else [])):
                those.kill(0)
                time.sleep(3.0 if is_silent else 0.0)
            eventually(those.job.watch, "another primary")
        those.await_primary(1)
        assert values(client, ids) == list(range(20))
        with rs.Client(those.urls[2]) as other:
            assert values(other, ids) == list(range(20))


def test_a_primary_that_hangs_is_killed_before_another_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 1.0)
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0, socket_timeout=60.0) as client:
        ids, hung = add(client, 0), those.pid(0)
        assert client.redis.wait(1, 60_000) == 1
        with stopped(hung):
            ids += add_once(client, 10)
            assert those.primaries() == [1]
        those.await_primary(1)
        assert those.pid(0) != hung
        assert values(client, ids) == list(range(20))
        assert any("has not answered for" in sentence for sentence in those.said)


def add_once(client: rs.Client, begin: int) -> list[int]:
    """Until it is acknowledged: a primary that hung until it was killed had not read what was sent to it."""
    while True:
        with contextlib.suppress(rs.ConnectionLost):
            return add(client, begin)


def test_a_replica_that_is_slow_when_the_primary_dies_is_waited_for_and_has_what_that_sent(
    tmp_path: Path,
) -> None:
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        with stopped(those.pid(1)):
            ids = add(client, 0)
            those.kill(0)
            time.sleep(3.0)  # it does not answer the first questions
        those.await_primary(1)
        assert values(client, ids) == list(range(10))


def lead_meddled(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[str, Callable[[], Any]], Any]) -> None:
    """`meddle(word, ask)` stands for each question to server 1 while it is being promoted, as long as it is patched."""
    ask, lead = JobReplicas._ask, JobReplicas._lead
    leading: list[int] = []

    def meddled_lead(job: JobReplicas, number: int) -> None:
        leading.append(number)
        try:
            lead(job, number)
        finally:
            leading.remove(number)

    def meddled_ask(job: JobReplicas, number: int, command: Any, *timeout: float) -> Any:
        if leading != [1]:
            return ask(job, number, command, *timeout)
        return meddle(str(command.arguments[0]), lambda: ask(job, number, command, *timeout))

    monkeypatch.setattr(JobReplicas, "_lead", meddled_lead)
    monkeypatch.setattr(JobReplicas, "_ask", meddled_ask)


@pytest.mark.parametrize("within_s", [0.0, 60.0])
def test_a_replica_that_falls_silent_before_it_is_promoted_is_asked_again_and_stays_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float
) -> None:
    """Where `within_s` is over, too, the primary does not begin again with less."""
    monkeypatch.setattr(replica_group, "ANSWERS_WITHIN_S", within_s)
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids, replica = add(client, 0), those.pid(1)
        assert client.redis.wait(1, 60_000) == 1
        silent = []

        def silent_once(word: str, ask: Callable[[], Any]) -> Any:
            if silent:
                return ask()
            silent.append(word)
            with stopped(replica):
                return ask()

        lead_meddled(monkeypatch, silent_once)
        those.kill(0)
        those.await_primary(1)
        assert silent == ["FENCE"]
        assert any("does not become the primary" in sentence for sentence in those.said) == (within_s == 0.0)
        assert those.pid(1) == replica
        assert values(client, ids) == list(range(10))


@pytest.mark.parametrize("answers", [True, False])
def test_there_are_no_two_primaries_where_one_does_not_say_that_it_became_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """If it answers later, it is the primary. Else it is killed before another one is promoted."""
    monkeypatch.setattr(replica_group, "ANSWERS_WITHIN_S", 100.0)
    with servers(tmp_path, replicas=2) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        assert client.redis.wait(2, 60_000) == 2
        first, asked = those.pid(1), []

        def reply_lost(word: str, ask: Callable[[], Any]) -> Any:
            asked.append(word)
            reply = ask()
            if word == "REPLICAOF" and not answers:
                monkeypatch.setattr(replica_group, "ANSWERS_WITHIN_S", 0.0)
            if word == "REPLICAOF" or (not answers and "REPLICAOF" in asked):
                raise rs.ConnectionLost("as if it came too late")
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(JobReplicas, "_have_follow", lambda *_: None)
            those.ask(2, "REPLICAOF", "127.0.0.1", free_port())
            ids += add(client, 10)
            assert client.redis.wait(1, 60_000) == 1  # so 1 is ahead, and asked first
            lead_meddled(patched, reply_lost)
            those.kill(0)
            eventually(those.job.watch, "another primary")
        those.await_primary(1 if answers else 2)
        assert "REPLICAOF" in asked
        assert (those.pid(1) == first) == answers
        assert values(client, ids[: 20 if answers else 10]) == list(range(20 if answers else 10))


def test_a_former_primary_that_could_not_be_killed_takes_no_writes_and_becomes_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 1.0)
    monkeypatch.setattr(JobReplicas, "_kill", lambda *_: None)
    with servers(tmp_path) as those, rs.Client(those.urls[0]) as late, rs.Client(those.urls[1]) as client:
        ids, hung = add(late, 0), those.pid(0)
        assert late.redis.wait(1, 60_000) == 1
        with stopped(hung):
            eventually(those.job.watch, "another primary")
            ids += add(client, 10)
        those.await_primary(1)
        assert those.pid(0) == hung
        with pytest.raises(rs.NotPrimary):
            add(late, 20)
        assert values(late, ids) == list(range(20))


def test_a_primary_that_hangs_is_not_replaced_while_no_replica_answers_nor_is_that_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 0.5)
    with servers(tmp_path) as those, rs.Client(those.job.url) as client:
        ids, processes = add(client, 0), [those.pid(0), those.pid(1)]
        with stopped(*reversed(processes)):
            monkeypatch.setattr(replica_group, "KILL_AFTER_S", 1.0)
            time.sleep(8.0)  # with questions that wait a second for an answer it takes up to five
            monkeypatch.setattr(replica_group, "KILL_AFTER_S", 100.0)
            os.kill(processes[0], signal.SIGCONT)
            eventually(lambda: those.about(0), "an answer")
        those.await_primary(0)
        assert [those.pid(0), those.pid(1)] == processes
        assert values(client, ids) == list(range(10))
        assert not those.job.watch()


def test_where_no_replica_is_left_the_primary_begins_again_with_the_snapshot_of_a_newer_one(tmp_path: Path) -> None:
    """A client that has heard of a newer epoch than the snapshot's goes on as well."""
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        assert client.redis.wait(1, 60_000) == 1
        save(those)
        those.kill(0)
        those.await_primary(1)
        epoch = those.about(1)["master_epoch"]
        add(client, 10)
        assert those.job.watch()
        for process in (those.pid(0), those.pid(1)):
            os.kill(process, signal.SIGKILL)
        those.await_primary(1)
        assert those.job.watch()
        assert client.info("apex")["size"] == 10
        assert values(client, ids) == list(range(10))
        assert those.about(1)["master_epoch"] > epoch
        add(client, 20)


def test_where_no_replica_answers_any_more_the_primary_begins_empty_and_a_client_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica's data are of another origin: it would never follow the primary, nor the client use that."""
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=100.0) as client:
        add(client, 0)
        assert client.redis.wait(1, 60_000) == 1
        hung = those.pid(1)
        with stopped(hung):
            those.kill(0)
            monkeypatch.setattr(replica_group, "KILL_AFTER_S", 2.0)
            eventually(those.job.watch, "a primary")
        monkeypatch.undo()
        those.await_primary(0)
        assert those.pid(1) != hung
        ids = add(client, 20)
        assert values(client, ids) == list(range(20, 30))
        assert client.info("apex")["size"] == 10


def test_a_replica_of_an_older_epoch_than_the_snapshot_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_group, "ANSWERS_WITHIN_S", 0.0)
    with servers(tmp_path, replicas=2) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        assert client.redis.wait(2, 60_000) == 2
        with stopped(those.pid(2)):
            those.kill(0)
            eventually(those.job.watch, "another primary")
            ids += add(client, 10)
            save(those)
            eventually(lambda: those.about(0).get("master_link_status") == "up", "the former primary as a replica")
            for number in (0, 1):
                those.kill(number)
        eventually(those.job.watch, "a primary")
        those.await_primary(1)
        assert values(client, ids) == list(range(20))


def test_a_replica_of_another_replica_is_told_to_follow_the_primary(tmp_path: Path) -> None:
    with servers(tmp_path, replicas=2) as those:
        those.ask(2, "REPLICAOF", "127.0.0.1", those.port(1))
        eventually(lambda: those.about(2).get("master_port") == those.port(0), "it follows the primary")
        those.await_primary(0)


def save(those: Servers) -> None:
    saver = ReplaySaver(those.job, 3600.0)
    saver.save_last()
    assert saver.wait(60.0)
    saver.close()


def test_a_job_that_is_resumed_begins_with_what_the_promoted_replica_saved(tmp_path: Path) -> None:
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        save(those)
        assert client.redis.wait(1, 60_000) == 1
        those.kill(0)
        those.await_primary(1)
        ids += add(client, 10)
        save(those)
        those.ask(1, "FAILOVER")
        those.await_primary(0)
        eventually(lambda: list(those.folder.glob("server-*/*.snapshot")), "one that 1 begins, of another epoch now")
        save(those)
        assert not list(those.folder.glob("server-*/*.snapshot"))
    assert [path.name for path in those.folder.iterdir()] == ["replay.snapshot"]
    with servers(tmp_path, resumed=True) as those, rs.Client(those.job.url) as client:
        assert client.info("apex")["size"] == 20
        assert values(client, ids) == list(range(20))
        add(client, 20)


def test_the_job_goes_with_the_primary_that_somebody_chose(tmp_path: Path) -> None:
    with servers(tmp_path) as those, rs.Client(those.job.url, reconnect_timeout=60.0) as client:
        ids = add(client, 0)
        those.ask(0, "FAILOVER")
        eventually(those.job.watch, "the job has noticed")
        those.await_primary(1)
        ids += add(client, 10)
        assert client.redis.wait(1, 60_000) == 1
        those.kill(1)
        those.await_primary(0)
        assert values(client, ids) == list(range(20))


def test_what_was_acknowledged_is_there_and_nothing_twice_after_kills_amid_work(tmp_path: Path) -> None:
    with servers(tmp_path, STEPS) as those:
        with Work(those.job.url) as work:
            for turn in range(2):
                count, batches = len(work.acknowledged), work.batches
                eventually(
                    lambda count=count, batches=batches: (
                        work.failures or (len(work.acknowledged) > count + 100 and work.batches > batches + 20)
                    ),
                    "work",
                )
                assert not work.failures
                those.kill(turn)
                those.await_primary(1 - turn)
            made, batches = work.made, work.batches
            eventually(
                lambda: work.failures or (work.made > made + 100 and work.batches > batches + 20), "work on the replica"
            )
        assert not work.failures
        with rs.Client(those.job.url) as client:
            there = client.get("t", work.acknowledged)  # an error where one is missing
            assert np.array_equal(there.data["seen"][:, 1], there.data["key"])
            keys = all_keys(client)
            assert len(keys) == len(set(keys)), "an item is there twice"


def test_a_replica_that_dies_comes_back_and_the_primary_stays(tmp_path: Path) -> None:
    with servers(tmp_path) as those, rs.Client(those.job.url) as client:
        ids, primary, replica = add(client, 0), those.pid(0), those.pid(1)
        os.kill(replica, signal.SIGKILL)
        eventually(lambda: those.about(1) and those.pid(1) != replica, "another process")
        those.await_primary(0)
        assert those.pid(0) == primary
        assert not those.job.watch()
        with rs.Client(those.urls[1]) as other:
            assert values(other, ids) == list(range(10))


def test_primaries_that_end_too_often_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_server.jobs.supervisor.RESTARTS_PER_MINUTE", 1)
    with servers(tmp_path) as those:
        those.kill(0)
        those.await_primary(1)
        those.kill(1)
        with pytest.raises(rs.ConnectionLost, match=r"primaries ended 2 times within a minute.*ended \(-9"):
            eventually(lambda: those.job.watch() and False, "the end")
