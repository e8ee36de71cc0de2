"""`rs.Cluster`: shards that are started, watched and stopped together."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster
from shards import wait_for
from slow_server import pids_in, slow_server

import replay_server as rs
from replay_server.cluster_members import failing_in
from replay_server.topology import ShardPlace, Topology, parse_slots, slot_ranges

TABLE = rs.Table("atari", capacity=1001, signature={"x": rs.Column("int64")}, rate_limiter=rs.MinSize(10))
ON_DEVICE = {"dpdk-address": "10.0.0.2/24"}


def cluster_client(url: str) -> RedisCluster:
    return RedisCluster.from_url("redis://" + url.removeprefix("redis+cluster://").split(",")[0])


def test_each_shard_holds_a_share_of_a_table_and_gives_ids_of_its_number() -> None:
    with rs.Cluster([TABLE], shards=3) as cluster:
        assert len(set(cluster.pids)) == 3
        for number, server in enumerate(cluster.servers):
            with rs.Client(server.url) as client:
                ids = client.add("atari", {"x": np.arange(4)})
                assert set(ids >> np.uint64(56)) == {number}
                assert client.info("atari")["capacity"] == 334
    assert not cluster.running


def test_the_shards_are_one_redis_cluster_with_a_password() -> None:
    with rs.Cluster(shards=2, password="a/secret") as cluster:
        assert cluster.url.startswith("redis+cluster://:a%2Fsecret@127.0.0.1:")
        with cluster_client(cluster.url) as client:
            client.mset_nonatomic({f"key:{number}": number for number in range(100)})
            assert [int(client.get(f"key:{number}")) for number in range(100)] == list(range(100))
        topologies = []
        for server in cluster.servers:
            with redis.Redis.from_url(server.url) as shard:
                assert shard.dbsize() > 10
                topologies.append(Topology.from_json(shard.execute_command("CLUSTER TOPOLOGY")))
        assert topologies == [cluster.topology] * 2


def test_a_command_goes_where_its_key_is() -> None:
    with rs.Cluster(shards=3) as cluster, rs.Client(cluster.url) as client:
        for number in range(20):
            assert client.command("SET", f"key:{number}", str(number), repeatable=True) == "OK"
        assert [client.command("GET", f"key:{number}") for number in range(20)] == [b"%d" % n for n in range(20)]
        assert client.command("PING") == "PONG"
        with pytest.raises(rs.NotPrimary, match="MOVED"):  # its key is not its first argument
            [client.command("OBJECT", "ENCODING", f"key:{number}") for number in range(20)]


def test_a_shard_that_dies_comes_back_from_its_snapshot_at_its_place(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path) as cluster:
        before, pids = cluster.topology, cluster.pids
        with rs.Client(cluster.servers[1].url) as client:
            ids = client.add("atari", {"x": np.arange(20)})
            client.checkpoint()
        os.kill(pids[1], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        assert cluster.topology == before
        assert cluster.pids[0] == pids[0]
        with rs.Client(cluster.servers[1].url) as client:
            assert client.get("atari", ids).data["x"].tolist() == list(range(20))
        with redis.Redis.from_url(cluster.servers[1].url) as shard:
            assert shard.info("cluster")["cluster_shard"] == 1


def test_a_shard_that_takes_long_to_start_again_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, go_on = rs.Cluster._start, threading.Event(), threading.Event()

    def slow(self: rs.Cluster, number: int, *arguments: Any) -> rs.Server:
        if number == 0:
            begun.set()
            assert go_on.wait(100)
        return start(self, number, *arguments)

    with rs.Cluster([TABLE], shards=2) as cluster:
        monkeypatch.setattr(rs.Cluster, "_start", slow)
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(begun.is_set)
        os.kill(cluster.pids[1], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.servers[1].running)
        assert len(cluster.topology.shards) == 2
        go_on.set()
        wait_for(lambda: cluster.restarts == 2 and cluster.running)


def test_a_second_start_of_a_shard_that_is_back_leaves_it_alone() -> None:
    with rs.Cluster([TABLE], shards=1) as cluster:
        (server,) = cluster.servers
        assert cluster._restart(0)
        assert server.running
        assert (cluster.servers, cluster.restarts) == ([server], 0)


def test_shards_are_watched_on_whatever_a_look_at_them_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh, looks, fails = rs.Cluster._refresh, [0], [True]

    def may_fail(self: rs.Cluster) -> Topology:
        looks[0] += 1
        if fails[0]:
            raise RuntimeError("can't start new thread")
        return refresh(self)

    with rs.Cluster([TABLE], shards=1) as cluster:
        monkeypatch.setattr(rs.Cluster, "_refresh", may_fail)
        wait_for(lambda: looks[0] > 1)
        fails[0] = False
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)


def test_a_temporary_folder_is_removed_when_nothing_is_written_there_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, written = threading.Event(), threading.Event(), list[bool]()

    def late(self: rs.Cluster) -> Topology:
        begun.set()
        assert go_on.wait(100)
        self._write_topology()
        written.append(True)
        return self._topology

    cluster = rs.Cluster([TABLE], shards=1)
    monkeypatch.setattr(rs.Cluster, "_refresh", late)
    wait_for(begun.is_set)
    stops = threading.Thread(target=cluster.stop)
    stops.start()
    wait_for(lambda: not cluster.running)
    stops.join(0.2)  # it has had time to remove the folder too early
    go_on.set()
    stops.join()
    assert written == [True]
    assert not cluster._directory.exists()


def test_shards_are_stopped_whatever_a_last_look_at_them_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: rs.Cluster) -> Topology:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    cluster = rs.Cluster([TABLE], shards=1, directory=tmp_path)
    monkeypatch.setattr(rs.Cluster, "_refresh", fail)
    cluster.stop()
    assert not cluster.running


def test_a_shard_that_does_not_start_again_is_not_told_of_when_it_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise rs.ServerError("the disk is full")

    with rs.Cluster([TABLE], shards=2, directory=tmp_path) as cluster:
        monkeypatch.setattr(rs.Cluster, "_start", fail)
        os.kill(cluster.pids[1], signal.SIGKILL)
        wait_for(lambda: cluster.failing == {1: "the disk is full"})
        wait_for(lambda: failing_in(tmp_path, cluster.topology) == cluster.failing)
        another = [replace(each, id=f"{each.number:040x}") for each in cluster.topology.shards]
        assert failing_in(tmp_path, Topology(9, tuple(another))) == {}
        cluster.forget(1, dead=True)
        assert (cluster.numbers, cluster.failing, failing_in(tmp_path, cluster.topology)) == ([0], {}, {})
        wait_for(lambda: not cluster._starts[1].is_alive())
        assert cluster.failing == {}


def test_an_id_that_leads_again_is_known_longer_than_those_of_before() -> None:
    with rs.Cluster(shards=1) as cluster:
        cluster._own(0, "leads")
        cluster._own(0, *(f"of before {number}" for number in range(99)))
        cluster._own(0, "leads")
        cluster._own(0, "may lead")
        assert cluster._own_ids[0][-2:] == ["leads", "may lead"]


def test_a_topology_that_is_being_told_is_not_what_the_shards_have(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = rs.Cluster._refresh

    def proposed_meanwhile(self: rs.Cluster) -> Topology:
        found = refresh(self)
        self._topology = found.leaves(0)  # another thread may, as soon as the lock is free
        return found

    with rs.Cluster(shards=2) as cluster:
        before = cluster.topology
        with monkeypatch.context() as patched, cluster._lock:
            patched.setattr(rs.Cluster, "_refresh", proposed_meanwhile)
            assert cluster.topology == before
            cluster._topology = before


def test_a_shards_server_is_not_looked_up_while_another_shard_goes() -> None:
    with rs.Cluster(shards=2) as cluster:
        numbers, servers, found = cluster.numbers, cluster.servers, list[rs.Server]()
        asking = threading.Thread(target=lambda: found.append(cluster._server_of(1)))
        with cluster._lock:
            cluster.numbers = [1]
            asking.start()
            asking.join(0.5)
            cluster.servers = servers[1:]
        asking.join()
        cluster.numbers, cluster.servers = numbers, servers
        assert found == [servers[1]]


def test_a_shard_gets_its_tables_from_one_that_answers_and_the_others_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rs.Cluster(shards=3) as cluster, rs.Client(cluster.url) as client:
        client.create_table(TABLE)
        with rs.Client(cluster.servers[0].url) as own:
            own.drop_table("atari")
        asked = list[str]()

        def noted(url: str, **options: Any) -> rs.Client:
            asked.append(url)
            return rs.Client(url, **options)

        monkeypatch.setattr("replay_server.cluster_members.Client", noted)
        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            cluster._complete(0)
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)
        assert asked == [cluster.servers[2].url, cluster.servers[0].url]
        with rs.Client(cluster.servers[0].url) as own:
            assert own.tables() == ["atari"]


def test_a_cluster_that_is_stopped_gives_up_what_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rs.Cluster([TABLE], shards=1, start_timeout=300.0) as cluster:
        monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(slow_server(tmp_path, seconds=600.0)))
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: pids_in(tmp_path))
    (starting,) = pids_in(tmp_path)
    assert not Path(f"/proc/{starting}").exists()


def test_a_shard_that_dies_after_an_older_checkpoint_was_restored_has_nothing_of_what_was_given_up(
    tmp_path: Path,
) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path) as cluster, rs.Client(cluster.url) as client:
        client.add("atari", {"x": np.arange(100)})
        cluster.checkpoint()
        client.add("atari", {"x": np.arange(100, 200)})
        client.checkpoint()
    with (
        rs.Cluster([TABLE], shards=2, directory=tmp_path, restore="checkpoint") as cluster,
        rs.Client(cluster.url, reconnect_timeout=60) as client,
    ):
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        assert sorted(client.sample("atari", 100, replace=False).data["x"]) == list(range(100))
        assert client.info("atari")["size"] == 100
        client.add("atari", {"x": np.arange(1000, 1100)})
        client.checkpoint()
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 2 and cluster.running)
        assert client.info("atari")["size"] == 200  # its newest snapshot now


def test_a_checkpoint_is_not_restored_beside_append_only_files_that_go_beyond_it(tmp_path: Path) -> None:
    log: dict[str, Any] = {"appendonly": True}
    with rs.Cluster([TABLE], shards=2, directory=tmp_path, config=log) as cluster, rs.Client(cluster.url) as client:
        client.add("atari", {"x": np.arange(100)})
        manifest = cluster.checkpoint()
        client.add("atari", {"x": np.arange(100)})
    with pytest.raises(rs.ServerError, match="shard-0/appendonlydir has what came after the checkpoint"):
        rs.Cluster([TABLE], shards=2, directory=tmp_path, config=log, restore="checkpoint")
    for settings in ({"directory": tmp_path, "restore": "checkpoint"}, {"config": log, "restore": manifest}):
        with rs.Cluster([TABLE], shards=2, **settings) as cluster, rs.Client(cluster.url) as client:
            assert client.info("atari")["size"] == 100


def test_a_shard_that_dies_in_a_cluster_that_began_empty_has_nothing_of_the_run_before(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1, directory=tmp_path) as cluster, rs.Client(cluster.url) as client:
        client.add("atari", {"x": np.arange(100)})
        client.checkpoint()
    with (
        rs.Cluster([TABLE], shards=1, directory=tmp_path) as cluster,
        rs.Client(cluster.url, reconnect_timeout=60) as client,
    ):
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        assert client.info("atari")["size"] == 0


def test_a_shard_that_comes_back_has_the_tables_that_a_client_created() -> None:
    with rs.Cluster(shards=2) as cluster, rs.Client(cluster.url) as client:
        client.create_table(TABLE)
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        assert client.tables() == ["atari"]
        assert client.info("atari")["capacity"] == 2 * 501


def test_a_cluster_that_is_started_again_has_the_same_slots_and_ids(tmp_path: Path) -> None:
    with rs.Cluster(shards=2, directory=tmp_path) as cluster:
        before = cluster.topology
        with cluster_client(cluster.url) as client:
            client.set("key", "value")
        for server in cluster.servers:
            with rs.Client(server.url) as shard:
                shard.checkpoint()
    with rs.Cluster(shards=2, directory=tmp_path, restore="latest") as cluster:
        after = cluster.topology
        assert after.version > before.version
        assert [(each.id, each.slots) for each in after.shards] == [(each.id, each.slots) for each in before.shards]
        with cluster_client(cluster.url) as client:
            assert client.get("key") == b"value"
    with pytest.raises(rs.ServerError, match="files of 2 shards, and 3 were asked for"):
        rs.Cluster(shards=3, directory=tmp_path)


def test_a_checkpoint_is_of_all_shards_or_is_none(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path) as cluster:
        with rs.Client(cluster.url) as client:
            client.add("atari", {"x": np.arange(50)})
            manifest = cluster.checkpoint()
            client.add("atari", {"x": np.arange(50)})
            client.checkpoint()  # newer snapshots, which the checkpoint does not name
        before = manifest.read_text()
        for number in range(2):
            with redis.Redis.from_url(cluster.servers[number].url) as shard:
                shard.execute_command(*cluster.topology.beginning([5], 1).arguments(number))
        with pytest.raises(rs.ServerError, match="no slot to be moving"):
            cluster.checkpoint()
        assert manifest.read_text() == before
    with rs.Cluster([TABLE], shards=2, directory=tmp_path, restore="checkpoint") as cluster:
        assert cluster.topology.moves == ()
        with rs.Client(cluster.url) as client:
            assert client.info("atari")["size"] == 50
    with pytest.raises(rs.ServerError, match="of 2 shards, and 3 were asked for"):
        rs.Cluster([TABLE], shards=3, directory=tmp_path, restore="checkpoint")
    for snapshot in json.loads(before)["snapshots"]:
        (tmp_path / snapshot).unlink()
    with pytest.raises(rs.ServerError, match="not there any more"):
        rs.Cluster([TABLE], shards=2, directory=tmp_path, restore="checkpoint")


def test_a_shard_that_was_started_again_has_what_clients_configured(tmp_path: Path) -> None:
    table = rs.Table("atari", 3000, {"x": rs.Column("int64")}, rate_limiter=rs.MinSize(101))
    with rs.Cluster([table], shards=2, directory=tmp_path) as cluster, rs.Client(cluster.url) as client:

        def dies() -> rs.Table:
            before = cluster.restarts
            os.kill(cluster.pids[0], signal.SIGKILL)
            wait_for(lambda: cluster.restarts > before)
            return client.table("atari")

        assert dies().rate_limiter == rs.MinSize(101)
        client.add("atari", {"x": np.arange(1000)})
        client.checkpoint()
        client.configure("atari", sampler=rs.Prioritized(1.0), max_bytes=1 << 20, rate_limiter=rs.MinSize(300))
        changed = client.table("atari")
        assert dies() == changed
        with rs.Client(cluster.servers[0].url) as own:
            assert own.table("atari").sampler == rs.Prioritized(1.0)
            assert own.table("atari").rate_limiter == rs.MinSize(150)


def test_shards_of_different_samplers_give_no_batch() -> None:
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url, reconnect_timeout=0.2) as client:
        with rs.Client(cluster.servers[1].url) as own:
            own.configure("atari", sampler=rs.Prioritized(1.0))
        client.add("atari", {"x": np.arange(200)})
        with pytest.raises(rs.ServerError, match="expected the same sampler on all shards, got Prioritized"):
            client.sample("atari", 64)
        client.configure("atari", sampler=rs.Prioritized(1.0))
        assert len(client.sample("atari", 64)) == 64


def test_a_checkpoint_stays_until_the_next_one_however_many_snapshots_are_written(tmp_path: Path) -> None:
    options = {"shards": 2, "directory": tmp_path, "config": {"snapshot-keep": 2}}

    def own() -> set[str]:
        return {str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/cluster-checkpoint-*")}

    with rs.Cluster([TABLE], **options) as cluster, rs.Client(cluster.url) as client:
        for attempt in range(2):
            client.add("atari", {"x": np.arange(50)})
            manifest = cluster.checkpoint()
            named = set(json.loads(manifest.read_text())["snapshots"])
            assert own() == named, attempt
        for _ in range(3):
            client.checkpoint()
        with redis.Redis.from_url(cluster.servers[1].url) as shard:
            shard.config_set("snapshot-named-limit", 1)  # there is no room for a second one on this shard
            for _ in range(2):
                client.add("atari", {"x": np.arange(50)})
                with pytest.raises(rs.LimitExceeded):
                    cluster.checkpoint()
                assert named < own()
                assert len(own()) == 3  # that of the first shard alone
            size = client.info("atari")["size"]
            shard.config_set("snapshot-named-limit", 2)
            manifest = cluster.checkpoint()
            assert own() == set(json.loads(manifest.read_text())["snapshots"])
    with rs.Cluster([TABLE], restore="checkpoint", **options) as cluster, rs.Client(cluster.url) as client:
        assert client.info("atari")["size"] == size


def test_the_client_of_a_cluster_goes_on_when_a_shard_died_and_came_back() -> None:
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url) as client:
        ids = client.add("atari", {"x": np.arange(200)}, priorities=np.ones(200))
        client.checkpoint()
        os.kill(cluster.pids[0], signal.SIGKILL)
        batch = client.sample("atari", 64, timeout=60)
        assert set(batch.ids) <= set(ids)
        assert client.update_priorities("atari", batch.ids, np.full(64, 2.0)) == (64, 0)
        assert client.info("atari")["size"] == 200


def test_a_newer_topology_that_somebody_else_has_pushed_is_taken_over(tmp_path: Path) -> None:
    with rs.Cluster(shards=2, directory=tmp_path) as cluster:
        newer = cluster.topology.beginning([5, 6], 1)
        for number, server in enumerate(cluster.servers):
            with redis.Redis.from_url(server.url) as shard:
                shard.execute_command(*newer.arguments(number))
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        with redis.Redis.from_url(cluster.servers[0].url) as shard:
            assert Topology.from_json(shard.execute_command("CLUSTER TOPOLOGY")) == newer
    assert Topology.from_json((tmp_path / "cluster.json").read_text()) == newer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "1 to 256 shards, got 0"),
        ({"shards": 257}, "1 to 256 shards, got 257"),
        ({"restore": "yesterday"}, "latest"),
        ({"host": "0.0.0.0"}, "expected announce"),
        ({"transport": "fstack"}, "transport to be one of kernel, dpdk, got 'fstack'"),
        ({"transport": "dpdk"}, 'expected the setting "dpdk-address"'),
        ({"transport": "dpdk", "replicas": 1}, "without host, pin, replicas, shard_of and members"),
        ({"transport": "dpdk", "members": ["a:7000"]}, "without host, pin, replicas, shard_of and members"),
        ({"transport": "dpdk", "pin": False}, "without host, pin, replicas, shard_of and members"),
        ({"transport": "dpdk", "config": ON_DEVICE | {"dpdk-queue": 1}}, 'settings without "dpdk-queue"'),
        ({"transport": "dpdk", "config": ON_DEVICE | {"tls-port": 0}}, 'no "tls-port"'),
        ({"transport": "dpdk", "shards": 256, "config": ON_DEVICE}, "a processor for each of 256 shards"),
    ],
)
def test_what_makes_no_cluster_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.ServerError, match=message):
        rs.Cluster(**arguments)


# ---- topologies in Python --------------------------------------------------------------------------------------------


class Hangs:
    """A client of a shard that hangs: it gives up when as many others have been asked, too."""

    def __init__(self, asked: threading.Barrier) -> None:
        self.asked = asked

    def ping(self) -> None:
        self.asked.wait(60)
        raise redis.TimeoutError

    def execute_command(self, *_: Any) -> None:
        self.ping()


class Answers:
    def __init__(self, number: int, told: list[tuple[int, Any]]) -> None:
        self.number, self.told = number, told

    def ping(self) -> None:
        pass

    def execute_command(self, *words: Any) -> None:
        self.told.append((self.number, words[2]))


def test_shards_that_hang_are_told_a_topology_at_once_and_no_other_one_waits_for_each() -> None:
    shards = [ShardPlace(number, f"{number:040x}", "127.0.0.1", 7000 + number) for number in range(6)]
    asked, told = threading.Barrier(3), list[tuple[int, Any]]()
    clients: dict[int, Any] = {number: Hangs(asked) for number in range(3)}
    clients |= {number: Answers(number, told) for number in range(3, 6)}
    Topology(7, tuple(shards)).push_to(clients, first=5)
    assert told[:2] == [(5, 7), (3, 7)]
    assert sorted(told[2:]) == [(4, 7)]


def test_slots_begin_to_move_and_arrive() -> None:
    with rs.Cluster(shards=3) as cluster:
        topology = cluster.topology
    moving = topology.beginning(range(5400, 5500), 2)
    assert [(move.slots, move.source, move.target) for move in moving.moves] == [
        ((5400, 5460), 0, 2),
        ((5461, 5499), 1, 2),
    ]
    partly = moving.arrived(range(5400, 5450))
    assert [move.slots for move in partly.moves] == [(5450, 5460), (5461, 5499)]
    arrived = partly.arrived(range(16384))
    assert (arrived.version, arrived.moves) == (topology.version + 3, ())
    assert arrived.shard(2).slots[0] == (5400, 5499)
    assert Topology.from_json(arrived.to_json()) == arrived
    assert topology.beginning([0, 1], 0).moves == ()
    with pytest.raises(ValueError, match="one of 0, 1, 2, got 3"):
        topology.beginning([0], 3)


def test_slots_are_read_as_they_are_written() -> None:
    assert slot_ranges(parse_slots("0-2,7,5-6")) == ((0, 2), (5, 7))
    for wrong in ("", "x", "1-", "-1", "16384", "3-2", "1,,2"):
        with pytest.raises(ValueError, match="expected slots within"):
            parse_slots(wrong)
