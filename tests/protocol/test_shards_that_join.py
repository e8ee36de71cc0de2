"""Shards that join a cluster that runs, while clients go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from shards import SHARD, shards_of, wait_for

import replay_server as rs
from replay_server.cluster_begin import _knows_of_none
from replay_server.topology import Topology

TABLE = rs.Table("t", capacity=600, signature={"k": rs.Column("int64")}, rate_limiter=rs.MinSize(2), seed=7)
PASSWORD = "a/secret"


def test_clients_add_to_and_draw_from_a_shard_that_has_joined() -> None:
    with (
        rs.Cluster([TABLE], shards=2, password=PASSWORD) as cluster,
        rs.Client(cluster.url) as client,
        rs.Client(cluster.url) as idle,
    ):
        first = client.add("t", {"k": np.arange(200)})
        assert shards_of(first) == {0, 1}
        idle.sample("t", 8)
        url = cluster.url.split(",")[0].replace(f":{cluster.url.split('@')[0].rpartition(':')[2]}@", "")
        with rs.Cluster(shards=1, shard_of=url, password=PASSWORD) as joined:
            assert (joined.numbers, cluster.numbers) == ([2], [0, 1])
            assert joined.topology == cluster.topology
            assert joined.url == cluster.url
            assert joined.topology.shard(2).slots == ()
            wait_for(lambda: 2 in shards_of(client.add("t", {"k": np.arange(1000, 1096)})))
            assert client.info("t")["capacity"] == 900
            wait_for(lambda: 2 in shards_of(idle.sample("t", 64).ids))
            third = joined.servers[0].url
            with rs.Client(third) as own:
                assert own.info("t")["size"] > 0
                assert own.table("t").seed not in (0, cluster_part(cluster, 0).seed, cluster_part(cluster, 1).seed)
            # Created by a client that knows all three.
            client.create_table(rs.Table("later", 30, {"k": rs.Column("int64")}))
            with rs.Client(third) as own:
                assert own.tables() == ["t", "later"]
            assert cluster.move("0-99", 2).shard(2).slots == ((0, 99),)
            with pytest.raises(rs.ServerError, match="2 are run by another"):
                cluster.checkpoint()


def test_a_supervisor_that_stops_at_once_has_written_who_joined(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1, directory=tmp_path) as cluster, rs.Cluster(shards=1, shard_of=cluster.url):
        cluster.stop()
    assert len(Topology.from_json((tmp_path / "cluster.json").read_text()).shards) == 2


def cluster_part(cluster: rs.Cluster, number: int) -> rs.Table:
    with rs.Client(cluster.servers[number].url) as client:
        return client.table("t")


def test_draws_are_by_priority_over_the_old_shards_and_the_new_one() -> None:
    """χ² of 20,000 draws over 30 items, 29 degrees of freedom: above 66 with a chance of 1e-4."""
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"k": np.arange(20)}, np.arange(1.0, 21.0))
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined, rs.Client(joined.url) as other:
            with rs.Client(joined.servers[0].url) as own:
                own.add("t", {"k": np.arange(20, 30)}, np.arange(21.0, 31.0))
            wait_for(lambda: 2 in shards_of(client.sample("t", 64).ids))
            powers = np.arange(1.0, 31.0) ** 0.6
            for each in (client, other):
                counts = np.zeros(30)
                for _ in range(40):
                    batch = each.sample("t", 500)
                    np.add.at(counts, batch.data["k"], 1)
                    assert np.allclose(batch.probabilities, (powers / powers.sum())[batch.data["k"]])
                expected = powers / powers.sum() * 20_000
                assert float(((counts - expected) ** 2 / expected).sum()) < 66


def test_the_first_items_of_a_shard_that_joined_do_not_hold_up_samples() -> None:
    limiter = rs.SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=20, error_buffer=1000.0)
    table = rs.Table("t", 600, {"k": rs.Column("int64")}, rate_limiter=limiter)
    with rs.Cluster([table], shards=1) as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"k": np.arange(40)})
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined, rs.Client(joined.url) as both:
            assert shards_of(both.sample("t", 8, timeout=0).ids) == {0}
            with rs.Client(joined.servers[0].url) as own:
                own.add("t", {"k": np.arange(40, 41)}, [100.0])
            assert both.table("t").rate_limiter == rs.SampleToInsertRatio(4.0, 20, 2000.0)
            assert shards_of(both.sample("t", 64, timeout=0).ids) == {0, 1}


def test_a_shard_that_joined_is_started_again_by_who_runs_it_and_joins_again_from_its_folder(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path / "first") as cluster, rs.Client(cluster.url) as client:
        with rs.Cluster(shard_of=cluster.url, shards=2, directory=tmp_path / "second") as joined:
            assert joined.numbers == [2, 3]
            with rs.Client(joined.servers[1].url) as own:
                ids = own.add("t", {"k": np.arange(5)})
                own.checkpoint()
            os.kill(joined.pids[1], signal.SIGKILL)
            wait_for(lambda: joined.restarts == 1 and joined.running)
            assert client.get("t", ids).data["k"].tolist() == list(range(5))
        before = cluster.topology
        with rs.Cluster(shard_of=cluster.url, shards=2, directory=tmp_path / "second", restore="latest") as joined:
            after = joined.topology
            assert joined.numbers == [2, 3]
            assert [each.id for each in after.shards] == [each.id for each in before.shards]
            wait_for(lambda: cluster.topology == after)
            with rs.Client(joined.url) as new:
                assert new.get("t", ids).data["k"].tolist() == list(range(5))
        assert json.loads((tmp_path / "second" / "cluster.json").read_text())["own"] == [2, 3]
        with pytest.raises(rs.ServerError, match="files of 2 shards, and 1 were asked for"):
            rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path / "second")
    with rs.Cluster([TABLE], shards=2, directory=tmp_path / "first") as cluster:  # while the others are away
        assert [shard.number for shard in cluster.topology.shards] == [0, 1, 2, 3]


def test_two_that_join_at_once_get_places_of_their_own() -> None:
    with rs.Cluster([TABLE], shards=1) as cluster:
        made: list[rs.Cluster] = []
        threads = [
            threading.Thread(target=lambda: made.append(rs.Cluster(shard_of=cluster.url, shards=1))) for _ in range(3)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(each.numbers[0] for each in made) == [1, 2, 3]
            wait_for(lambda: len({each.topology for each in (cluster, *made)}) == 1)
            with rs.Client(cluster.url) as client:
                ids = client.add("t", {"k": np.arange(400)})
                assert shards_of(ids) == {0, 1, 2, 3}
        finally:
            for each in made:
                each.stop()


def test_what_cannot_be_joined_is_told() -> None:
    for config, why in (
        ({}, "cluster support disabled"),
        ({"cluster-enabled": True}, "no cluster: it has no topology"),
    ):
        with rs.Server([TABLE], config=config) as server:
            place = server.url.removeprefix("redis://")
            with pytest.raises(rs.ServerError, match=f"shard_of: .*{why}"):
                rs.Cluster(shard_of=f"redis+cluster://{place}", shards=1)
    with pytest.raises(rs.ServerError, match="no shard answers at"):
        rs.Cluster(shard_of=f"redis+cluster://{place}", shards=1)
    with pytest.raises(rs.ServerError, match=r"expected redis\+cluster://"):
        rs.Cluster(shard_of=server.url, shards=1)
    with pytest.raises(rs.ServerError, match="shard_of without tables"):
        rs.Cluster([TABLE], shard_of=f"redis+cluster://{place}")


def test_the_command_joins(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replay_server", "cluster"]

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([*command, "start", *options], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready url="), line
        return process, line.split()[1].removeprefix("url=")

    first, url = start("--shards", "1", "--port", "0", "--dir", str(tmp_path / "a"))
    processes = [first]
    try:
        second, both = start("--shard-of", url, "--port", "0", "--dir", str(tmp_path / "b"))
        processes.append(second)
        assert both.startswith(f"{url},")
        status = json.loads(
            subprocess.run(
                [*command, "status", "--server", both, "--json"], check=True, capture_output=True, text=True
            ).stdout
        )
        assert [(shard["shard"], shard["running"]) for shard in status["shards"]] == [(0, True), (1, True)]
        second.terminate()
        assert second.wait(timeout=60) == 0
        assert first.poll() is None
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=60)


def test_a_sample_that_waits_is_given_what_is_added_to_a_shard_that_joins() -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:
        batches: list[rs.Batch] = []
        waiting = threading.Thread(target=lambda: batches.append(client.sample("t", 4, timeout=60.0)))
        waiting.start()
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined, rs.Client(joined.servers[0].url) as own:
            own.add("t", {"k": np.arange(6)})
            waiting.join()
            assert shards_of(batches[0].ids) == {1}


def test_actors_and_a_learner_go_on_while_shards_join_and_lose_nothing() -> None:
    table = rs.Table("t", 10**6, {"k": rs.Column("int64")}, rate_limiter=rs.MinSize(1))
    stop, failed = threading.Event(), list[BaseException]()
    added: list[tuple[np.ndarray, np.ndarray]] = []

    def repeated(call: Callable[[rs.Client, int], None]) -> threading.Thread:
        def run() -> None:
            turn = 0
            try:
                with rs.Client(cluster.url) as client:
                    while not stop.is_set():
                        call(client, turn)
                        turn += 1
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def act(client: rs.Client, turn: int, number: int) -> None:
        keys = number * 10**6 + turn * 8 + np.arange(8)
        added.append((client.add("t", {"k": keys}), keys))

    def learn(client: rs.Client, turn: int) -> None:
        batch = client.sample("t", 32, timeout=60.0)
        client.update_priorities("t", batch.ids, np.ones(32))

    def is_used(number: int) -> None:
        count = len(added)
        wait_for(lambda: failed or any(number in shards_of(ids) for ids, _ in added[count:]))

    with rs.Cluster([table], shards=1) as cluster, contextlib.ExitStack() as stack:
        threads = [repeated(lambda client, turn, number=number: act(client, turn, number)) for number in range(2)]
        threads.append(repeated(learn))
        try:
            for number in (1, 2):
                stack.enter_context(rs.Cluster(shard_of=cluster.url, shards=1))
                is_used(number)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
        with rs.Client(cluster.url) as client:
            ids, keys = (np.concatenate(arrays) for arrays in zip(*added, strict=True))
            assert client.info("t")["size"] == len(ids)
            assert np.array_equal(client.get("t", ids).data["k"], keys)


def test_what_concerns_all_shards_reaches_one_that_has_just_joined() -> None:
    """At once: not only when the client asks again whether shards have come."""
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:
        client.create_table(rs.Table("closed", 10, {"k": rs.Column("int64")}))
        client.close_table("closed", "no more")
        client.add("t", {"k": np.arange(20)})
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined, rs.Client(joined.servers[0].url) as own:
            client.configure("t", rate_limiter=rs.MinSize(40))
            assert own.table("t").rate_limiter == rs.MinSize(20)
            assert own.info("closed")["closed_reason"] == "no more"
            with pytest.raises(rs.TableClosed):
                client.sample("closed", 1, timeout=5.0)
            client.drop_table("t")
            assert own.tables() == ["closed"]


def test_samples_wait_for_no_more_items_because_a_shard_has_joined() -> None:
    table = rs.Table("t", 100, {"k": rs.Column("int64")}, rate_limiter=rs.MinSize(20))
    with rs.Cluster([table], shards=1) as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"k": np.arange(20)})
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined, rs.Client(joined.url) as both:
            assert both.table("t").rate_limiter == rs.MinSize(20)
            assert len(both.sample("t", 8, timeout=0)) == 8


def test_a_shard_that_is_started_again_while_the_others_are_away_has_its_tables(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(rs.Cluster([TABLE], shards=1, directory=tmp_path))
        port = cluster.topology.shard(0).port
        joined = stack.enter_context(rs.Cluster(shard_of=cluster.url, shards=1))
        with rs.Client(cluster.url) as client:
            client.configure("t", rate_limiter=rs.MinSize(40))
        with rs.Client(joined.servers[0].url) as own:
            own.checkpoint()
        cluster.stop()
        os.kill(joined.pids[0], signal.SIGKILL)
        wait_for(lambda: joined.restarts == 1 and joined.running)
        with rs.Client(joined.servers[0].url) as own:
            wait_for(lambda: own.tables() == ["t"])
            assert own.table("t").rate_limiter == rs.MinSize(20)
        again = stack.enter_context(rs.Cluster([TABLE], shards=1, directory=tmp_path, port=port))
        # Perhaps its file is of before the other one joined: then that joins again.
        wait_for(lambda: [shard.number for shard in again.topology.shards] == [0, 1])
        with rs.Client(again.url) as client:
            assert len(client.add("t", {"k": np.arange(64)})) == 64


def test_a_join_that_fails_leaves_no_shard_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:

        def fails(_: rs.Cluster) -> None:
            raise OSError("no space is left")

        with monkeypatch.context() as patched:
            patched.setattr(rs.Cluster, "_write_topology", fails)
            with pytest.raises(OSError, match="no space is left"):
                rs.Cluster(shard_of=cluster.url, shards=1)
        assert [shard.number for shard in cluster.topology.shards] == [0]
        assert shards_of(client.add("t", {"k": np.arange(64)})) == {0}


def test_a_shard_that_missed_the_topology_is_told_when_it_answers_again() -> None:
    with rs.Cluster([TABLE], shards=2, start_timeout=3.0) as cluster:
        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            joined = rs.Cluster(shard_of=cluster.url, shards=1, start_timeout=3.0)
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)
        with joined:
            wait_for(lambda: len(cluster.topology.shards) == 3)
            with rs.Client(cluster.servers[1].url) as own:
                wait_for(lambda: json.loads(own.command("CLUSTER", "TOPOLOGY"))["version"] == joined.topology.version)


def test_a_shard_that_does_not_answer_holds_up_nobody_who_does_not_need_it() -> None:
    with (
        rs.Cluster([TABLE], shards=1) as cluster,
        rs.Cluster(shard_of=cluster.url, shards=1) as joined,
        rs.Client(cluster.url) as client,
    ):
        ids = client.add("t", {"k": np.arange(64)})
        old = ids[ids >> SHARD == 0]
        os.kill(joined.pids[0], signal.SIGSTOP)
        try:
            slow = 0
            for _ in range(30):
                began = time.monotonic()
                assert client.update_priorities("t", old, np.ones(len(old))) == (len(old), 0)
                slow += time.monotonic() - began > 0.5
                time.sleep(0.1)
            assert slow <= 2  # where the connection is given up that was there
        finally:
            os.kill(joined.pids[0], signal.SIGCONT)


def test_a_cluster_without_a_password_is_not_joined_with_one() -> None:
    with rs.Cluster(shards=1) as cluster, pytest.raises(rs.ServerError, match="the cluster has no password"):
        rs.Cluster(shard_of=cluster.url, shards=1, password=PASSWORD)
    with rs.Cluster(shards=1, password=PASSWORD) as cluster:
        url = cluster.url.replace(cluster.url.split("@")[0].rpartition(":")[2], "wrong")
        with pytest.raises(rs.ServerError, match=r"shard_of: .*password"):
            rs.Cluster(shard_of=url, shards=1)


def test_a_join_waits_for_slots_that_move_and_one_that_comes_back_does_not(tmp_path: Path) -> None:
    with rs.Cluster(shards=2) as cluster:
        with rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path) as joined:
            assert joined.numbers == [2]
        for number in range(2):
            with rs.Client(cluster.servers[number].url) as own:
                own.command(*cluster.topology.beginning([5], 1).arguments(number))
        wait_for(lambda: cluster.topology.moves)
        with rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path) as back:  # the move may need it
            assert back.topology.moves == cluster.topology.moves != ()
            with pytest.raises(rs.ServerError, match="slots of keys are moving"):
                rs.Cluster(shard_of=cluster.url, shards=1, start_timeout=1.0)
            cluster.move([5], 1)
            with rs.Cluster(shard_of=cluster.url, shards=1) as joined:
                assert (back.numbers, joined.numbers) == ([2], [3])


def test_a_folder_joins_no_other_cluster_while_shards_of_its_own_answer(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Cluster([TABLE], shards=1) as other:
        with rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path):
            before = cluster.topology
        with pytest.raises(rs.ServerError, match=r"another cluster than that of .*, whose other shards still answer"):
            rs.Cluster(shard_of=other.url, shards=1, directory=tmp_path)
        assert [shard.number for shard in other.topology.shards] == [0]
        with rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path) as joined:
            assert [each.id for each in joined.topology.shards] == [each.id for each in before.shards]


def test_a_folder_is_joined_again_unless_another_shard_has_its_number(tmp_path: Path) -> None:
    with (
        rs.Cluster([TABLE], shards=1) as cluster,
        rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path) as joined,
        rs.Client(joined.servers[0].url) as own,
    ):
        ids = own.add("t", {"k": np.arange(3)})
        own.checkpoint()
    with (
        rs.Cluster([TABLE], shards=1) as cluster,  # which does not know of that shard
        rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path, restore="latest") as joined,
        rs.Client(cluster.url) as client,
    ):
        assert joined.numbers == [1]
        assert client.get("t", ids).data["k"].tolist() == [0, 1, 2]
    with (
        rs.Cluster([TABLE], shards=1) as cluster,
        rs.Cluster(shard_of=cluster.url, shards=1),
        pytest.raises(rs.ServerError, match="shard 1, and another one has this number by now"),
    ):
        rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path)


# ---- members ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ports() -> list[int]:
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in (one, other)]


@pytest.fixture
def members(ports: list[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def test_a_first_member_begins_no_cluster_while_another_one_may_have_one(
    tmp_path: Path, ports: list[int], members: list[str]
) -> None:
    of_first: dict[str, Any] = {"shards": 1, "port": ports[0], "members": members, "directory": tmp_path / "first"}
    of_second: dict[str, Any] = {"shards": 1, "port": ports[1], "members": members, "directory": tmp_path / "second"}

    def refused() -> None:
        with pytest.raises(rs.ServerError, match=rf"{members[1]} did not answer: they may have a cluster.*--begin"):
            rs.Cluster([TABLE], **of_first, start_timeout=0.0)
        assert not (tmp_path / "first").exists()

    refused()
    with rs.Server(port=ports[1], config={"cluster-enabled": True}):  # it has started, and is told its topology later
        refused()
    with rs.Cluster([TABLE], **of_first, begin=True, start_timeout=10.0) as cluster:
        assert cluster.numbers == [0]
        with rs.Cluster([TABLE], **of_second) as joined, rs.Client(joined.url) as client:
            assert joined.numbers == [1]
            assert client.info("t")["capacity"] == 1200
    shutil.rmtree(tmp_path / "first")
    refused()


def test_members_wait_for_the_first_one_unless_it_has_lost_its_files(
    tmp_path: Path, ports: list[int], members: list[str]
) -> None:
    def member(number: int) -> rs.Cluster:
        return rs.Cluster(
            [TABLE], shards=1, port=ports[number], members=members, directory=tmp_path / str(number), restore="latest"
        )

    def both() -> tuple[rs.Cluster, rs.Cluster]:
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(member, 1)
            return member(0), second.result()

    first, second = both()
    with first, second, rs.Client(first.url) as client:
        assert (first.numbers, second.numbers) == ([0], [1])
        ids = client.add("t", {"k": np.arange(200)})
        client.checkpoint()
    first, second = both()
    with first, second:
        assert (first.numbers, second.numbers) == ([0], [1])
    shutil.rmtree(tmp_path / "0")
    first, second = both()
    with first, second, rs.Client(first.url) as client:
        assert (first.numbers, second.numbers, first.topology.gone) == ([2], [1], {0})
        left = ids[ids >> np.uint64(56) == 1]
        assert len(client.get("t", left)) == client.info("t")["size"] == len(left)
    first, second = both()
    with first, second:
        assert (first.numbers, second.numbers) == ([2], [1])


def test_a_shard_that_hangs_is_not_taken_out_by_a_start_with_another_folder(
    tmp_path: Path, ports: list[int], members: list[str]
) -> None:
    of_second: dict[str, Any] = {"shards": 1, "port": ports[1], "members": members}
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(lambda: rs.Cluster(**of_second, directory=tmp_path / "1", given_up=given_up))
        try:
            first = rs.Cluster([TABLE], shards=1, port=ports[0], members=members, directory=tmp_path / "0")
        except BaseException:
            given_up.set()
            raise
        with first, starting.result() as second:
            os.kill(second.pids[0], signal.SIGSTOP)
            try:
                with pytest.raises(rs.ServerError, match=f"cannot listen on 127.0.0.1 port {ports[1]}"):
                    rs.Cluster(**of_second, directory=tmp_path / "wrong")
            finally:
                os.kill(second.pids[0], signal.SIGCONT)
            assert [shard.number for shard in first.topology.shards] == [0, 1]
            assert not first.topology.gone


def test_a_member_that_is_not_in_the_list_says_so(
    ports: list[int], members: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(lambda: rs.Cluster(shards=1, port=ports[1], members=members[:1], given_up=given_up))
        try:
            wait_for(lambda: f"{members[1]}, which waits, is no member" in caplog.text)
        finally:
            given_up.set()
        with pytest.raises(rs.ServerError, match="the start was given up"):
            starting.result()


def test_clients_find_a_closed_connection_where_a_member_waits(ports: list[int], members: list[str]) -> None:
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            starting = pool.submit(lambda: rs.Cluster(shards=1, port=ports[1], members=members, given_up=given_up))
            wait_for(lambda: _knows_of_none(members[1]))
            with pytest.raises(rs.ConnectionLost), rs.Client(f"redis://{members[1]}", reconnect_timeout=0.0) as client:
                client.tables()
            with redis.Redis(port=ports[1]) as client, pytest.raises(redis.ConnectionError):
                client.ping()
        finally:
            given_up.set()
        with pytest.raises(rs.ServerError, match="the start was given up"):
            starting.result()


def test_a_member_that_refuses_the_password_is_no_reason_to_begin(ports: list[int], members: list[str]) -> None:
    with (
        rs.Server(port=ports[1], password="another", config={"cluster-enabled": True}),
        pytest.raises(rs.ServerError, match=f"member {members[1]} refuses the password"),
    ):
        rs.Cluster(shards=1, port=ports[0], members=members, password=PASSWORD, begin=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": []}, "expected members, host:port of each host, got none"),
        ({"members": ["a:1", "b"]}, "expected members as host:port, got 'b'"),
        ({"members": ["a:1"], "port": 0}, "expected members with a port"),
        ({"members": ["a:1"], "shard_of": "redis+cluster://127.0.0.1:1"}, "expected members with a port, and without"),
        ({"members": ["a:1"], "restore": "checkpoint"}, "expected members with a port, and without"),
        ({"begin": True}, "expected begin with members"),
    ],
)
def test_members_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.ServerError, match=message):
        rs.Cluster(**{"shards": 1, "port": 1, **options})
