"""A shard that another process takes over as a whole, while clients go on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from shards import SHARD, K, keys, shards_of, wait_for

import replay_server as rs
from replay_server import cluster_members
from replay_server.cluster_takeover import TakeOverRefused

TABLE = rs.Table("t", 200_000, K)
STEPS = rs.Table("steps", 10_000, {"x": rs.Column("int64", step_only=True), "pair": rs.Window("x", length=2)})


class Work:
    """A thread that does something again and again until it is ended; its error fails the test."""

    def __init__(self, url: str, do: Callable[[rs.Client], None]) -> None:
        self.times, self._ends, self._error = 0, threading.Event(), list[Exception]()
        self._thread = threading.Thread(target=self._work, args=(url, do))
        self._thread.start()

    def _work(self, url: str, do: Callable[[rs.Client], None]) -> None:
        try:
            with rs.Client(url) as client:
                while not self._ends.is_set():
                    do(client)
                    self.times += 1
        except Exception as error:
            self._error.append(error)

    def goes_on(self) -> None:
        """Waits until it has been done a few times more."""
        goal = self.times + 3
        wait_for(lambda: self._error or self.times >= goal)
        assert not self._error, self._error

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._error, self._error


class Adds:
    """Batches of new items, and the ids that were acknowledged."""

    def __init__(self) -> None:
        self.ids = list[np.ndarray]()

    def __call__(self, client: rs.Client) -> None:
        first = sum(map(len, self.ids))
        self.ids.append(client.add("t", keys(first, first + 96)))
        time.sleep(0.01)  # the table keeps them all

    def check(self, client: rs.Client) -> None:
        """Each is there, once, with its data."""
        ids = np.concatenate(self.ids)
        assert len(np.unique(ids)) == len(ids)
        assert client.info("t")["size"] == client.info("t")["added"] == len(ids)
        np.testing.assert_array_equal(client.get("t", ids).data["k"], np.arange(len(ids)))


@pytest.mark.parametrize("password", [None, "secret words"])
def test_clients_go_on_while_a_shard_is_taken_over_and_nothing_is_lost_or_doubled(password: str | None) -> None:
    adds, published = Adds(), list[int]()

    def samples(client: rs.Client) -> None:
        batch = client.sample("t", 64, timeout=60)
        client.update_priorities("t", batch.ids, np.ones(64))

    def publishes(client: rs.Client) -> None:
        for name in ("a", "b", "c", "d"):  # of both shards
            published.append(client.publish_weights(name, {"w": np.zeros(2, np.float32)}))

    with rs.Cluster([TABLE], shards=2, password=password) as cluster:
        works = [Work(cluster.url, do) for do in (adds, samples, publishes)]
        for work in works:
            work.goes_on()
        former = cluster.servers[0]
        with rs.Cluster(shards=1, shard_of=cluster.url, take_over=0) as other:
            for work in works:
                work.goes_on()
            assert other.numbers == [0]
            wait_for(lambda: cluster.numbers == [1] and not former.running)
            for work in works:
                work.goes_on()
                work.end()
            assert cluster.topology == other.topology
            assert cluster.restarts == 0
            with rs.Client(other.url) as client:
                adds.check(client)
                assert shards_of(np.concatenate(adds.ids)) == {0, 1}
                assert [client.fetch_weights(name)[0] for name in ("a", "b", "c", "d")] == published[-4:]  # type: ignore[index]
                assert client.info("t")["shards"][0]["size"] > 0


def test_a_queue_gives_each_item_once_while_a_shard_is_taken_over() -> None:
    queue = rs.Table("t", 100_000, K, sampler=rs.Fifo(), max_times_sampled=1)
    given = list[int]()

    def takes(client: rs.Client) -> None:
        given.extend(client.sample("t", 10, timeout=60).data["k"].tolist())

    with rs.Cluster([queue], shards=2) as cluster:
        adds = Adds()
        adding, taking = Work(cluster.url, adds), Work(cluster.url, takes)
        taking.goes_on()
        with rs.Cluster(shards=1, shard_of=cluster.url, take_over=1) as other:
            adding.goes_on()
            taking.goes_on()
            adding.end()
            wait_for(lambda: len(given) >= 10 * (sum(map(len, adds.ids)) // 10) - 10)
            assert other.numbers == [1]
            taking._ends.set()
            with rs.Client(cluster.url) as client:
                client.add("t", keys(10**9, 10**9 + 20))  # for a call that waits
            taking.end()
    own = [key for key in given if key < 10**9]
    assert len(set(own)) == len(own)


def test_a_writer_goes_on_at_the_server_that_took_its_shard_over() -> None:
    with rs.Cluster([STEPS], shards=2) as cluster, rs.Client(cluster.url) as client:
        writer = client.writer("steps", place=0)

        def writes(first: int) -> None:
            for number in range(first, first + 20):
                writer.append({"x": np.int64(number)})
                writer.create_item(1.0)
            writer.flush()

        writes(0)
        with rs.Cluster(shards=1, shard_of=cluster.url, take_over=0) as other:
            writes(20)
            wait_for(lambda: cluster.numbers == [1])
            writes(40)
            writer.close()
            info = client.info("steps")
            assert (info["added"], info["shards"][0]["added"]) == (60, 60)
            with rs.Client(other.servers[0].url) as own:
                pairs = own.sample("steps", 2000).data["pair"]
        assert sorted(set(pairs[:, 1].tolist())) == list(range(60))
        assert (pairs[:, 0] == np.maximum(pairs[:, 1] - 1, 0)).all()


def test_clients_wait_for_the_topology_where_a_shard_has_given_its_part_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the failover and the topology that tells of it."""
    refused = threading.Event()

    def then_waits(*given: Any) -> None:
        real(*given)
        assert refused.wait(60)

    real = cluster_members.change_places
    monkeypatch.setattr(cluster_members, "change_places", then_waits)
    with rs.Cluster([TABLE, STEPS], shards=2) as cluster, rs.Client(cluster.url, reconnect_timeout=60.0) as client:
        client.add("t", keys(0, 96))
        writer = client.writer("steps", place=0)
        former = cluster.servers[0]

        def refusals() -> int:
            with redis.Redis.from_url(former.url) as own:
                return own.info("errorstats").get("errorstat_MOVED", {"count": 0})["count"]

        def writes() -> None:
            writer.append({"x": np.int64(1)})
            writer.create_item(1.0)
            writer.flush()

        done = list[str]()
        calls: dict[str, Callable[[], Any]] = {
            "write": writes,
            "add": lambda: client.add("t", keys(96, 192)),
            "sample": lambda: client.sample("t", 32),
            "publish": lambda: [client.publish_weights(name, {"w": np.zeros(2)}) for name in ("a", "b", "c", "d")],
        }
        threads = [threading.Thread(target=lambda n=n, c=c: (c(), done.append(n))) for n, c in calls.items()]
        with contextlib.ExitStack() as stack:

            def take_over() -> None:
                stack.enter_context(rs.Cluster(shards=1, shard_of=cluster.url, take_over=0))

            taking = threading.Thread(target=take_over)
            writes()
            taking.start()
            with redis.Redis.from_url(former.url) as own:
                wait_for(lambda: own.info("replication")["role"] == "slave")
            for thread in threads:
                before = refusals()
                thread.start()
                wait_for(lambda before=before: refusals() > before)
            refused.set()
            for thread in [taking, *threads]:
                thread.join(60)
            assert sorted(done) == sorted(calls)
            writer.close()
            assert client.info("t")["added"] == 192
            assert client.info("steps")["added"] == 2


def test_one_that_cannot_be_taken_over_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url) as client:
        before, ids = cluster.topology, client.add("t", keys(0, 96))
        for options, why in (
            ({"take_over": 2}, "take_over: expected the number of a shard, one of 0, 1, got 2"),
            ({"take_over": 0, "shards": 2}, "shards=1"),
            ({"take_over": 0, "shard_of": None}, "with shard_of"),
        ):
            given = {"shards": 1, "shard_of": cluster.url, **options}
            with pytest.raises(rs.ServerError, match=why):
                rs.Cluster(**given)
        with rs.Client(cluster.servers[0].url) as own:
            own.create_table(rs.Table("thrown_away", 10, K, durable=False))
            with pytest.raises(TakeOverRefused, match="table 'thrown_away' with durable=False"):
                rs.Cluster(shards=1, shard_of=cluster.url, take_over=0)
            own.drop_table("thrown_away")

        def lost(old: redis.Redis, new: redis.Redis, *_: Any) -> None:
            new.shutdown(nosave=True)
            real(old, new, *_)

        real = cluster_members.change_places
        monkeypatch.setattr(cluster_members, "change_places", lost)
        with pytest.raises((redis.RedisError, TakeOverRefused)):
            rs.Cluster(shards=1, shard_of=cluster.url, take_over=0)
        assert cluster.topology == before
        assert shards_of(client.add("t", keys(96, 192))) == {0, 1}
        assert len(client.get("t", ids)) == 96
        assert client.info("t")["size"] == 192


def test_a_shard_whose_successor_died_untold_gets_its_part_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(old: redis.Redis, new: redis.Redis, *where: Any) -> None:
        real(old, new, *where)
        raise KeyboardInterrupt

    real = cluster_members.change_places
    monkeypatch.setattr(cluster_members, "change_places", dies)
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url, reconnect_timeout=0.5) as client:
        ids = client.add("t", keys(0, 96))
        with pytest.raises(KeyboardInterrupt):
            rs.Cluster(shards=1, shard_of=cluster.url, take_over=0)
        with pytest.raises(rs.NotPrimary, match="MOVED"):
            client.add("t", keys(96, 192))
        with redis.Redis.from_url(cluster.servers[0].url) as former:
            former.execute_command("REPLICAOF", "NO", "ONE")
        assert shards_of(client.add("t", keys(96, 192))) == {0, 1}
        assert client.get("t", ids).data["k"].tolist() == list(range(96))
        assert client.info("t")["size"] == 192


def test_both_supervisors_begin_again_with_the_shards_that_they_have(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path / "first") as cluster:
        with rs.Client(cluster.url) as client:
            client.add("t", keys(0, 960))
        url = cluster.url
        with rs.Cluster(shards=1, shard_of=url, take_over=0, directory=tmp_path / "second") as other:
            wait_for(lambda: cluster.numbers == [1])
            with rs.Client(other.url) as client:
                client.checkpoint()
            own_id = other.topology.shard(0).id
        with rs.Cluster(
            shards=1, shard_of=cluster.url, take_over=0, directory=tmp_path / "second", restore="latest"
        ) as other:
            assert other.topology.shard(0).id == own_id
            with rs.Client(cluster.url) as client:
                assert client.info("t")["size"] == 960
            with pytest.raises(
                rs.ServerError, match="holds the files of other shards: take shard 1 over in another folder"
            ):
                rs.Cluster(shards=1, shard_of=cluster.url, take_over=1, directory=tmp_path / "second")
    with rs.Cluster([TABLE], shards=1, directory=tmp_path / "first", restore="latest") as cluster:
        assert cluster.numbers == [1]
        with rs.Cluster(shards=1, shard_of=cluster.url, take_over=1):
            wait_for(lambda: cluster.numbers == [])
            assert cluster.topology  # which is in the folder by now
            with pytest.raises(rs.ServerError, match="holds the files of other shards: take shard 1 over in another"):
                rs.Cluster(shards=1, shard_of=cluster.url, take_over=1, directory=tmp_path / "first")


def test_a_shard_is_taken_over_and_back(tmp_path: Path) -> None:
    adds = Adds()
    with rs.Cluster([TABLE], shards=2) as cluster:
        adding = Work(cluster.url, adds)
        adding.goes_on()
        with rs.Cluster(shards=1, shard_of=cluster.url, take_over=0) as second:
            adding.goes_on()
            with rs.Cluster(shards=1, shard_of=cluster.url, take_over=0) as third:
                adding.goes_on()
                wait_for(lambda: second.numbers == [] and second.was_stopped)
                adding.end()
                assert third.numbers == [0]
                with rs.Client(third.url) as client:
                    adds.check(client)
    assert {int(each) >> int(SHARD) for each in np.concatenate(adds.ids)} == {0, 1}


def test_the_command_takes_the_only_shard_over_and_the_former_one_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replay_server", "cluster", "start", "--port", "0"]

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready url="), line
        return process, line.split()[1].removeprefix("url=")

    refused = subprocess.run([*command, "--take-over", "0"], capture_output=True, text=True, timeout=60)
    assert (refused.returncode, "--take-over goes with --shard-of" in refused.stderr) == (2, True)
    first, url = start("--shards", "1", "--dir", str(tmp_path / "a"))
    processes = [first]
    try:
        with rs.Client(url) as client:
            client.create_table(TABLE)
            client.add("t", keys(0, 96))
            second, other = start("--shard-of", url, "--take-over", "0", "--dir", str(tmp_path / "b"))
            processes.append(second)
            assert other != url
            client.add("t", keys(96, 192))
            assert first.wait(timeout=60) == 0
            assert client.info("t")["size"] == 192
        unknown = [*command, "--shard-of", other, "--take-over", "1", "--dir", str(tmp_path / "c")]
        refused = subprocess.run(unknown, capture_output=True, text=True, timeout=60)
        assert (refused.returncode, "take_over: expected the number of a shard" in refused.stderr) == (1, True)
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=60)
