"""A cluster whose shards have replicas: which one takes a shard's place, when, with what, and what clients see."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from links import eventually
from redis.cluster import LoadBalancingStrategy, RedisCluster
from redis.exceptions import MovedError
from replicated_shards import (
    LOGGED,
    TABLE,
    about,
    add,
    add_to,
    chain_in,
    fail_over,
    has_all,
    is_settled,
    kill,
    kill_all,
    replicated,
    stopped,
    values,
)

import replay_server as rs
from replay_server import cluster_members, cluster_moves, replica_group
from replay_server.cluster_address import slot_of
from replay_server.cluster_command import main
from replay_server.cluster_moves import MoveRefused
from replay_server.cluster_replicas import ShardReplicas
from replay_server.topology import ReplicaPlace

# ---- who is a replica ------------------------------------------------------------------------------------------------


def test_replicas_are_listed_as_a_redis_cluster_does_and_can_be_read_from() -> None:
    with replicated() as cluster, redis.Redis.from_url(cluster.servers[1].url) as client:
        topology = cluster.topology
        for shard in topology.shards:
            (server,) = cluster.replicas[shard.number]
            run_id, port = about(server, "server")["run_id"], int(server.url.rpartition(":")[2])
            assert shard.replicas == (ReplicaPlace(run_id, "127.0.0.1", port),)
        replicas = [shard.replicas[0] for shard in topology.shards]
        nodes_of = [
            [(place.port, place.id.encode()) for place in (shard, *shard.replicas)] for shard in topology.shards
        ]
        slots: Any = client.execute_command("CLUSTER SLOTS")
        assert [[(node[1], node[2]) for node in nodes] for _, _, *nodes in slots] == nodes_of
        told = [maps(each[b"nodes"]) for each in maps(raw(client, "CLUSTER", "SHARDS"))]
        assert [[(node[b"port"], node[b"id"]) for node in nodes] for nodes in told] == nodes_of
        assert [[node[b"role"] for node in nodes] for nodes in told] == [[b"master", b"replica"]] * 2
        nodes: Any = client.execute_command("CLUSTER NODES")
        lines = {line["node_id"]: line for line in nodes.values()}
        assert len(lines) == 4
        for shard in topology.shards:
            line = lines[shard.replicas[0].id]
            assert (line["flags"], line["master_id"]) == ("slave", shard.id)
        of_first: Any = client.execute_command("CLUSTER REPLICAS", topology.shards[0].id)
        assert [line["node_id"] for line in of_first.values()] == [replicas[0].id]
        with pytest.raises(redis.ResponseError, match="The specified node is not a master"):
            client.execute_command("CLUSTER REPLICAS", replicas[0].id)
        with redis.Redis.from_url(cluster.replicas[0][0].url) as replica:
            own_id: Any = replica.execute_command("CLUSTER MYID")
            assert own_id.decode() == replicas[0].id
            own: Any = replica.execute_command("CLUSTER NODES")
            assert [line["node_id"] for line in own.values() if "myself" in line["flags"]] == [replicas[0].id]
            assert len(own) == 4
        seeds = "redis://" + cluster.url.removeprefix("redis+cluster://").split(",")[0]
        with RedisCluster.from_url(seeds, load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN_REPLICAS) as reader:
            keys = [f"key:{number}" for number in range(50)]
            for key in keys:
                reader.set(key, key)
            for server in cluster.servers:
                eventually(lambda server=server: has_all(server, 1), "the replicas")
            before = [about(replica, "stats")["total_commands_processed"] for (replica,) in cluster.replicas.values()]
            assert [reader.get(key) for key in keys] == [key.encode() for key in keys]
            after = [about(replica, "stats")["total_commands_processed"] for (replica,) in cluster.replicas.values()]
            assert all(late > early + 5 for early, late in zip(before, after, strict=True))


def raw(client: redis.Redis, *words: str) -> Any:
    """A reply as it came, which redis-py makes nothing of."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)


def maps(told: list[Any]) -> list[Any]:
    """Maps, which RESP2 has flat."""
    return [each if isinstance(each, dict) else dict(zip(each[::2], each[1::2], strict=True)) for each in told]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": -1}, "expected 0 to 4 replicas, got -1"),
        ({"replicas": 5}, "expected 0 to 4 replicas, got 5"),
        ({"replicas": 1, "shard_of": "redis+cluster://127.0.0.1:1"}, "expected replicas without shard_of"),
        ({"replicas": 1, "tables": [rs.Table("brief", 10, {"x": rs.Column("int64")}, durable=False)]}, "'brief' has"),
    ],
)
def test_what_cannot_have_replicas_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.ServerError, match=message):
        rs.Cluster(**options)


@pytest.mark.parametrize("other", ["--on=ray", "--shard-of=redis+cluster://127.0.0.1:1"])
def test_the_command_starts_replicas_on_this_host_alone(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--replicas", "1", other]) == 2
    assert "--replicas does not go with" in capsys.readouterr().err


def test_a_shard_with_replicas_is_not_taken_over() -> None:
    with replicated(shards=1) as cluster, pytest.raises(rs.ReplayError, match="shard 0 has replicas"):
        rs.Cluster(shards=1, shard_of=cluster.url, take_over=0)


# ---- a process dies --------------------------------------------------------------------------------------------------


def test_the_replica_takes_a_killed_shards_place_which_comes_back_as_a_replica_and_so_on() -> None:
    with replicated(password="a/secret") as cluster, rs.Client(cluster.url, reconnect_timeout=60) as client:
        ids, before = dict[int, int](), cluster.topology
        for turn in range(3):
            replica, port = cluster.replicas[0][0], cluster.servers[0].url.rpartition(":")[2]
            ids.update(zip(add_to(cluster.servers[0], 10 * turn), range(10 * turn, 10 * turn + 10), strict=True))
            fail_over(cluster)
            assert cluster.servers[0] is replica
            assert cluster.replicas[0][0].url.rpartition(":")[2] == port
            assert values(client, list(ids)) == list(ids.values())
        after = cluster.topology
        assert [shard.slots for shard in after.shards] == [shard.slots for shard in before.shards]
        assert after.shards[1] == before.shards[1]
        assert (cluster.failovers, cluster.restarts) == (3, 0)
        assert add(client, 100)


def test_what_wait_has_acknowledged_is_there_and_nothing_twice_after_kills_amid_adds() -> None:
    """A call that was lost is not made again: its items are there once, or not at all."""
    with replicated(shards=1) as cluster:
        acknowledged, sent, failures, ends = dict[int, int](), [0], list[BaseException](), threading.Event()

        def work() -> None:
            try:
                while not ends.is_set():
                    with contextlib.suppress(rs.ConnectionLost, rs.NotPrimary, redis.RedisError, OSError):
                        server = cluster.servers[0]
                        with rs.Client(server.url, reconnect_timeout=0.0) as client:
                            while not ends.is_set() and cluster.servers[0] is server:
                                first, sent[0] = sent[0], sent[0] + 7
                                with client.redis.pipeline(transaction=False) as pipe:
                                    column = np.arange(first, first + 7).tobytes()
                                    pipe.execute_command("REPLAY.ADD", "atari", 7, b"", "COLUMNS", 1, "x", column)
                                    pipe.execute_command("WAIT", 1, 10_000)
                                    blob, copies = pipe.execute()
                                if copies >= 1:
                                    acknowledged.update(
                                        zip(np.frombuffer(blob, "<u8").tolist(), range(first, first + 7), strict=True)
                                    )
            except BaseException as error:
                failures.append(error)

        working = threading.Thread(target=work)
        working.start()
        for _ in range(4):
            count = len(acknowledged)
            eventually(lambda count=count: failures or len(acknowledged) > count + 200, "work")
            fail_over(cluster)
        count = len(acknowledged)
        eventually(lambda: failures or len(acknowledged) > count + 200, "work at the end")
        ends.set()
        working.join(60)
        assert not failures, failures
        # On a fast machine the oldest have left for newer ones.
        newest = {number: value for number, value in acknowledged.items() if value >= sent[0] - TABLE.capacity}
        with rs.Client(cluster.url) as client:
            assert values(client, list(newest)) == list(newest.values())
            everything = client.sample("atari", client.info("atari")["size"], replace=False).data["x"].tolist()
            assert len(everything) == len(set(everything)), "an item is there twice"
            assert set(everything) >= set(newest.values())


def test_a_client_and_a_redis_cluster_client_go_on_through_failovers() -> None:
    with replicated() as cluster:
        failures, ends, done = list[BaseException](), threading.Event(), [0, 0]
        seeds = "redis://" + cluster.url.removeprefix("redis+cluster://").split(",")[0]

        def items() -> None:
            try:
                with rs.Client(cluster.url, reconnect_timeout=60) as client:
                    while not ends.is_set():
                        with contextlib.suppress(rs.ConnectionLost):  # of a call that may have been done
                            add(client, 0)
                        assert len(client.sample("atari", 10).ids) == 10
                        done[0] += 1
            except BaseException as error:
                failures.append(error)

        def keys() -> None:
            try:
                with RedisCluster.from_url(
                    seeds, load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN_REPLICAS
                ) as client:
                    while not ends.is_set():
                        for number in range(20):
                            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                                client.set(f"key:{number}", number)
                                client.get(f"key:{number}")
                                done[1] += 1
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=each) for each in (items, keys)]
        for each in workers:
            each.start()
        for number in (0, 1, 0):
            before = list(done)
            eventually(lambda before=before: failures or go_on(done, before), "work")
            fail_over(cluster, number)
        before = list(done)
        eventually(lambda: failures or go_on(done, before), "work at the end")
        ends.set()
        for each in workers:
            each.join(120)
        assert not failures, failures


def go_on(done: list[int], before: list[int]) -> bool:
    return all(late > early + 20 for early, late in zip(before, done, strict=True))


def test_a_replica_that_dies_comes_back_and_its_shard_stays() -> None:
    with replicated() as cluster, rs.Client(cluster.url) as client:
        ids, primary, (replica,) = add_to(cluster.servers[0], 0), cluster.pids[0], cluster.replicas[0]
        listed = cluster.topology.shards[0].replicas
        kill(replica)
        eventually(lambda: cluster.topology.shards[0].replicas not in ((), listed), "another process is listed")
        assert cluster.pids[0] == primary
        assert (cluster.failovers, cluster.restarts) == (0, 0)
        assert cluster.replicas[0][0].url == replica.url
        fail_over(cluster)
        assert values(client, ids) == list(range(10))


def test_a_shard_that_began_again_leads_before_it_has_its_tables_and_has_them_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete, fails, completed = rs.Cluster._complete, [True], list[int]()

    def may_fail(self: rs.Cluster, number: int, **options: Any) -> None:
        if fails[0]:
            raise rs.ConnectionLost("the shard did not answer")
        complete(self, number, **options)
        completed.append(number)

    with replicated(shards=1) as cluster:
        monkeypatch.setattr(rs.Cluster, "_complete", may_fail)
        kill_all(cluster.servers[0], *cluster.replicas[0])
        eventually(lambda: cluster.restarts == 1 and is_settled(cluster), "the shard again")
        fails[0] = False
        eventually(lambda: completed, "its tables")
        fail_over(cluster)


def test_a_shard_that_takes_long_to_begin_again_holds_up_no_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, go_on = rs.Cluster._start, threading.Event(), threading.Event()

    def slow(self: rs.Cluster, *arguments: Any) -> rs.Server:
        begun.set()
        assert go_on.wait(100)
        return start(self, *arguments)

    with replicated() as cluster:
        monkeypatch.setattr(rs.Cluster, "_start", slow)
        kill_all(cluster.servers[0], *cluster.replicas[0])
        eventually(begun.is_set, "the start of the first one")
        before = cluster.topology.shards[1]
        kill(cluster.servers[1])
        eventually(lambda: cluster.failovers == 1, "the failover of the other one")
        eventually(lambda: cluster.topology.shards[1].port != before.port, "its place is told")
        eventually(lambda: cluster.topology.shards[1].replicas, "its new replica")
        assert cluster.restarts == 0
        go_on.set()
        eventually(lambda: cluster.restarts == 1 and is_settled(cluster), "the first one")


def test_a_shard_that_begins_again_has_the_port_of_what_led_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with replicated(shards=1) as cluster:
        (replica,) = cluster.replicas[0]
        with monkeypatch.context() as patched:
            patched.setattr(ShardReplicas, "_tell_place", lambda _: None)  # it had no time to
            kill(cluster.servers[0])
            eventually(lambda: cluster.failovers == 1 and cluster.replicas[0][0].running, "the failover")
            kill_all(cluster.servers[0], *cluster.replicas[0])
            eventually(lambda: cluster.restarts == 1, "the shard again")
        assert cluster.servers[0].url == replica.url
        eventually(lambda: is_settled(cluster), "a replica")


def test_a_shard_that_is_taken_out_amid_a_failover_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    lead = ShardReplicas._lead
    with replicated() as cluster:
        servers = [cluster.servers[1], *cluster.replicas[1]]

        def taken_out(self: ShardReplicas, number: int) -> None:
            lead(self, number)
            with cluster._lock:
                cluster._part_with({1})

        monkeypatch.setattr(ShardReplicas, "_lead", taken_out)
        kill(servers[0])
        eventually(lambda: cluster.numbers == [0], "its end")
        eventually(lambda: not any(server.running for server in servers), "the end of its processes")


# ---- a process hangs, or comes back ----------------------------------------------------------------------------------


def test_a_shard_that_hangs_is_killed_before_its_replica_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 1.0)
    with replicated() as cluster, rs.Client(cluster.url, reconnect_timeout=60) as client:
        ids, hung = add_to(cluster.servers[0], 0), cluster.servers[0]
        with stopped(hung.pid):
            eventually(lambda: cluster.failovers == 1 and is_settled(cluster), "the failover")
            assert not hung.running
        assert values(client, ids) == list(range(10))


def test_shards_that_hang_are_asked_at_once_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, is_free = threading.Barrier(4), list[bool]()

    def hangs(_: redis.Redis) -> None:
        """Until as many as there are shards have been asked."""
        asked.wait(60)
        is_free.append(cluster._lock.acquire(timeout=60))
        cluster._lock.release()

    with replicated(shards=4) as cluster, monkeypatch.context() as patched:
        patched.setattr(cluster_members, "_told_by", hangs)
        assert len(cluster.topology.shards) == 4
        assert len(is_free) >= 4
        assert all(is_free)


@pytest.mark.parametrize("log", ["there", "none", "turned off"])
def test_a_shard_that_hangs_and_has_more_than_its_replica_begins_with_its_append_only_file(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_logged, config = log == "there", None if log == "none" else LOGGED
    with replicated(shards=1, directory=tmp_path, config=config) as cluster:
        hung, (replica,), group = cluster.servers[0], cluster.replicas[0], cluster._groups[0]
        ids = add_to(hung, 0)
        with contextlib.ExitStack() as stack:
            with rs.Client(hung.url) as client, stopped(replica.pid):
                leave_behind(client, hung, group)
                if log == "turned off":  # its files stay, and are of then
                    client.redis.config_set("appendonly", "no")
                    eventually(lambda: not group._is_logged, "the group knows that")
                ids += add(client, 10)
                if not is_logged:
                    client.checkpoint()
                stack.enter_context(stopped(hung.pid))
            monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 1.0)
            eventually(lambda: "no replica that answers has all" in cluster.failing.get(0, ""), "the reason")
            eventually(lambda: "does not serve so far: it does not answer" in shown(cluster, capsys), "the same")
            assert hung.running
            monkeypatch.setattr(replica_group, "KILL_AFTER_S", 2.0)
            if is_logged:
                eventually(lambda: cluster.restarts == 1 and is_settled(cluster), "the shard again")
            else:
                time.sleep(5.0)
                assert hung.running
        eventually(lambda: not cluster.failing and is_settled(cluster), "the shard again")
        assert (cluster.failovers, cluster.restarts) == (0, int(is_logged))
        eventually(lambda: "does not serve" not in shown(cluster, capsys), "the shard in the status")
        with rs.Client(cluster.url) as client:
            assert values(client, ids) == list(range(20))


def leave_behind(client: rs.Client, server: rs.Server, group: ShardReplicas) -> None:
    """Adds more than reaches a replica that is stopped, and lets the group know of it for some seconds."""
    for number in range(64):
        client.redis.set(f"filler:{number}", b"0" * (1 << 20))
    end = about(server)["master_repl_offset"]
    eventually(lambda: (group._ahead.get(1) or [(0, 0.0)])[-1][0] >= end, "the group knows how far the shard is")
    eventually(lambda: group._told_at > group._ahead[1][0][1] + 3.0, "some more seconds")


def shown(cluster: rs.Cluster, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of the cluster."""
    main(["status", "--server", cluster.url])
    return capsys.readouterr().out


def test_a_shard_that_could_not_be_killed_takes_no_writes_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 1.0)
    with replicated(shards=1) as cluster:
        hung, ids = cluster.servers[0], add_to(cluster.servers[0], 0)
        with monkeypatch.context() as patched:
            patched.setattr(ShardReplicas, "_kill", lambda *_: None)
            with stopped(hung.pid):
                eventually(lambda: cluster.failovers == 1, "the failover")
                ids += add_to(cluster.servers[0], 10, replicas=0)
            eventually(lambda: about(hung)["role"] == "slave", "the former primary follows")
            with redis.Redis.from_url(hung.url) as client, pytest.raises(MovedError):
                client.set("key", "value")
        eventually(lambda: not hung.running and is_settled(cluster), "a fresh replica in its place")
        with rs.Client(cluster.url) as client:
            assert values(client, ids) == list(range(20))


def test_a_shard_that_hangs_is_not_replaced_while_its_replica_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_group, "REPLACE_AFTER_S", 0.5)
    with replicated(shards=1) as cluster:
        ids, processes = add_to(cluster.servers[0], 0), [cluster.pids[0], cluster.replicas[0][0].pid]
        with stopped(*processes):
            time.sleep(6.0)
        eventually(lambda: is_settled(cluster), "both answer")
        assert [cluster.pids[0], cluster.replicas[0][0].pid] == processes
        with rs.Client(cluster.url) as client:
            assert values(client, ids) == list(range(10))


# ---- people ----------------------------------------------------------------------------------------------------------


def test_the_cluster_goes_with_the_primary_that_somebody_chose() -> None:
    with replicated() as cluster, rs.Client(cluster.url, reconnect_timeout=60) as client:
        ids, former, (replica,) = add_to(cluster.servers[0], 0), cluster.servers[0], cluster.replicas[0]
        with redis.Redis.from_url(former.url) as asked:
            asked.execute_command("FAILOVER")
        eventually(lambda: cluster.failovers == 1 and is_settled(cluster), "the change of places")
        assert cluster.servers[0] is replica
        assert not former.running
        assert values(client, ids) == list(range(10))
        fail_over(cluster)
        assert values(client, ids) == list(range(10))


def test_a_chosen_primary_stays_where_the_former_one_is_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with replicated(shards=1) as cluster, rs.Client(cluster.url, reconnect_timeout=60) as client:
        ids, former, (replica,) = add_to(cluster.servers[0], 0), cluster.servers[0], cluster.replicas[0]
        monkeypatch.setattr(replica_group, "ASK_EVERY_S", 5.0)  # until after the end below
        asks_at = cluster._groups[0]._ask_at
        eventually(lambda: cluster._groups[0]._ask_at >= asks_at + 5.0, "a question that is not soon asked again")
        with redis.Redis.from_url(former.url) as asked:
            asked.execute_command("FAILOVER")
            eventually(lambda: about(replica)["role"] == "master", "the change of places")
            asked.shutdown()
        eventually(lambda: cluster.failovers == 1 and is_settled(cluster), "the failover")
        assert cluster.servers[0] is replica
        assert values(client, ids) == list(range(10))
        assert not cluster.was_stopped


def test_a_shard_that_is_stopped_in_order_is_not_replaced() -> None:
    with replicated() as cluster:
        replicas = [server for each in cluster.replicas.values() for server in each]
        for server in cluster.servers:
            with redis.Redis.from_url(server.url) as client:
                client.shutdown()
        eventually(lambda: cluster.was_stopped, "the shards' end")
        eventually(lambda: not any(server.running for server in replicas), "the replicas' end")
        assert (cluster.failovers, cluster.restarts) == (0, 0)


def test_a_shard_that_is_taken_out_takes_its_replicas_along() -> None:
    with replicated() as cluster:
        servers = [cluster.servers[1], *cluster.replicas[1]]
        cluster.forget(1, lose_items=True)
        eventually(lambda: not any(server.running for server in servers), "their end")
        assert list(cluster.replicas) == [0]
        fail_over(cluster)


def test_slots_move_between_shards_that_have_replicas() -> None:
    with replicated() as cluster:
        seeds = "redis://" + cluster.url.removeprefix("redis+cluster://").split(",")[0]
        with RedisCluster.from_url(seeds) as client:
            for number in range(100):
                client.set(f"key:{number}", number)
            cluster.move("0-4000", 1)
            fail_over(cluster, 1)
            assert [client.get(f"key:{number}") for number in range(100)] == [b"%d" % number for number in range(100)]
        assert cluster.topology.owners()[0] == 1


@pytest.mark.parametrize("late", [0, 1])
def test_a_key_moves_only_with_its_copies(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `WAIT` has acknowledged would else be lost, or what was deleted come back, with the next failover."""
    monkeypatch.setattr(cluster_moves, "_COPIED_WITHIN_MS", 300)
    with replicated() as cluster:
        source, target = cluster.servers
        with redis.Redis.from_url(source.url) as client, redis.Redis.from_url(target.url) as other:
            client.set("key:0", "value")
            assert client.wait(1, 30_000) == 1
            with stopped(cluster.replicas[late][0].pid):
                with pytest.raises(MoveRefused, match="expected 1 replicas of the"):
                    cluster.move([slot_of(b"key:0")], 1)
                assert (client.dbsize(), other.dbsize()) == ((0, 1) if late == 0 else (1, 0))
            cluster.move([slot_of(b"key:0")], 1)
        for number in (0, 1):
            eventually(lambda: is_settled(cluster), "replicas")
            fail_over(cluster, number)
        sizes = list[int]()
        for server in cluster.servers:
            with redis.Redis.from_url(server.url) as client:
                sizes.append(int(client.dbsize()))
        assert sizes == [0, 1]


def test_weights_move_only_with_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_moves, "_COPIED_WITHIN_MS", 300)
    with replicated() as cluster, rs.Client(cluster.url) as client:
        name = next(name for name in map(str, range(1000)) if slot_of(name.encode()) < 8192)
        client.publish_weights(name, {"x": np.arange(3)})
        slot = slot_of(name.encode())
        with stopped(cluster.replicas[1][0].pid), pytest.raises(MoveRefused, match="expected 1 replicas of the target"):
            cluster.move([slot], 1)
        assert cluster.topology.owners()[slot] == 0


def test_an_older_topology_that_somebody_pushes_again_is_put_right() -> None:
    with replicated() as cluster:
        before = cluster.topology
        fail_over(cluster)
        server, version = cluster.servers[0], cluster.topology.version + 5
        with redis.Redis.from_url(cluster.servers[1].url) as client:
            client.execute_command(*replace(before, version=version).arguments(1))
        eventually(lambda: cluster.topology.version > version and is_settled(cluster), "a newer one")
        assert cluster.servers[0] is server
        assert cluster.url.count(server.url.rpartition("/")[2]) == 1
        assert cluster.topology.shards[0].port == int(server.url.rpartition(":")[2])


def test_a_supervisor_that_died_before_it_wrote_of_a_promotion_knows_its_shard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards of another supervisor know of the promotion by then."""
    tell, file, written = rs.Cluster._tell, tmp_path / "cluster.json", list[str]()

    def kept(self: rs.Cluster, *arguments: Any) -> None:
        if self.failovers and not written:
            written.append(file.read_text())
        tell(self, *arguments)

    with replicated(shards=1, directory=tmp_path, config=LOGGED) as cluster:
        ids, port = add_to(cluster.servers[0], 0), int(cluster.servers[0].url.rpartition(":")[2])
        with rs.Cluster(shards=1, shard_of=cluster.url) as other:
            eventually(lambda: len(json.loads(file.read_text())["shards"]) == 2, "the other shard in the file")
            monkeypatch.setattr(rs.Cluster, "_tell", kept)
            kill(cluster.servers[0])
            eventually(lambda: other.topology.shards[0].port != port, "the promotion")
            eventually(lambda: chain_in(tmp_path) == [1], "its append-only file")
            cluster.stop()
            chains = json.loads(file.read_text())["chains"]
            file.write_text(json.dumps({**json.loads(written[0]), "chains": chains}))
            with rs.Cluster([TABLE], shards=1, directory=tmp_path, config=LOGGED, replicas=1) as again:
                eventually(lambda: other.topology == again.topology, "the shard is where it is")
                with rs.Client(again.servers[0].url) as client:
                    assert values(client, ids) == list(range(10))


def test_of_several_replicas_one_leads_and_the_others_follow_it() -> None:
    with replicated(shards=1, replicas=2) as cluster, rs.Client(cluster.url, reconnect_timeout=60) as client:
        ids = add_to(cluster.servers[0], 0, replicas=2)
        kill(cluster.servers[0])
        eventually(lambda: cluster.failovers == 1 and is_settled(cluster, 2), "the failover")
        ids += add_to(cluster.servers[0], 10, replicas=2)
        kill(cluster.servers[0])
        eventually(lambda: cluster.failovers == 2 and is_settled(cluster, 2), "the next failover")
        assert values(client, ids) == list(range(20))
