"""Tables, weights and gradients when a replica becomes the primary, and in the files of replicas."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import redis
from links import eventually
from replica_tables import TABLE, Member, assert_same, pair, serve, settle
from test_table_log import COLUMNS, batch, live_items, told, use

import replay_server as rs
from replay_server.driver import run

# ---- another primary --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Acknowledged:
    """What a writer was told that a replica has."""

    items: dict[int, float] = dataclasses.field(default_factory=dict[int, float])  # priority; -1: as it entered
    version: int = 0
    failure: BaseException | None = None

    def write(self, url: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with rs.Client(url, reconnect_timeout=0.0) as client:
                while True:
                    priority = rng.random() + 0.5
                    ids = client.add("t", batch(range(4)))
                    client.update_priorities("t", ids[:1], np.array([priority]))
                    version = client.publish_weights("w", {"w": np.ones(2)})
                    if client.redis.wait(1, 60_000) >= 1:
                        self.items |= {int(ids[0]): priority, **dict.fromkeys(map(int, ids[1:]), -1.0)}
                        self.version = version
        except (rs.ConnectionLost, redis.ConnectionError):
            return
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize("batches", [5, 30, 70])
def test_what_wait_has_acknowledged_survives_the_primary(tmp_path: Path, batches: int) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, link):
        replica.follow(link.port)
        told_of = Acknowledged()
        writing = threading.Thread(target=told_of.write, args=(primary.server.url, batches))
        writing.start()
        eventually(lambda: len(told_of.items) >= 4 * batches or told_of.failure, "acknowledged items")
        primary.kill()
        writing.join()
        assert told_of.failure is None
        replica.promote()
        newest = list(told_of.items)[-32:]  # of 64 those that cannot have left
        there = live_items(replica.client, newest)
        assert sorted(there) == sorted(newest)
        total = replica.client.info("t")["total_priority"]
        for item in newest:
            if told_of.items[item] >= 0:
                np.testing.assert_allclose(there[item][-1] * total, told_of.items[item] ** 0.6, rtol=1e-9)
        fetched = replica.client.fetch_weights("w")
        assert fetched is not None
        assert fetched[0] >= told_of.version


def change_places(primary: Member, replica: Member) -> None:
    primary.redis.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
    eventually(lambda: primary.redis.info("replication")["role"] == "slave", "the change of places")
    eventually(lambda: primary.redis.info("replication")["master_link_status"] == "up", "the link")
    eventually(lambda: replica.redis.info("replication")["slave0"]["state"] == "online", "its other end")


def test_failover_leaves_the_tables_with_both(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    with pair(tmp_path, TABLE) as (primary, replica, _):
        ids = use(primary.client, TABLE, 10, rng)
        replica.follow(primary.port)
        ids += use(primary.client, TABLE, 10, rng)
        before, items = told(primary.client), live_items(primary.client, ids)
        change_places(primary, replica)
        assert told(replica.client) == before
        assert live_items(replica.client, ids) == items
        new = use(replica.client, TABLE, 10, rng)
        assert not set(new) & set(ids)
        settle(replica, primary)
        assert_same(replica, primary, ids + new)


def test_other_replicas_go_on_with_the_one_that_is_promoted(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    with pair(tmp_path, TABLE) as (primary, replica, link), serve(tmp_path / "third") as third:
        ids = use(primary.client, TABLE, 10, rng)
        replica.follow(link.port)
        third.follow(replica.port)
        ids += use(primary.client, TABLE, 10, rng)
        settle(primary, third)
        assert_same(primary, third, ids)
        link.cut(mend=False)
        replica.promote()
        ids += use(replica.client, TABLE, 10, rng)
        settle(replica, third)
        assert_same(replica, third, ids)
        assert replica.stats() == (1, 1)
        third.promote()
        assert_same(replica, third, ids)
        third.client.sample("t", 3)


def test_a_client_of_both_goes_on_with_the_new_primary(tmp_path: Path) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, _):
        replica.follow(primary.port)
        with rs.Client(f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}") as client:
            ids = client.add("t", batch(range(9)))
            assert client.redis.wait(1, 60_000) == 1
            primary.kill()
            replica.promote()
            assert client.get("t", ids).data["key"].tolist() == list(range(9))
            assert set(client.sample("t", 20).ids.tolist()) <= set(ids.tolist())
            client.add("t", batch(range(3)))
            assert client.info("t")["size"] == 12


@pytest.mark.parametrize("places", [(0, 1), (1, 0)], ids=["primary first", "replica first"])
def test_the_redis_of_a_client_of_both_is_of_the_primary(tmp_path: Path, places: tuple[int, int]) -> None:
    """Also of one that has done nothing else yet, and after a change of places."""
    with pair(tmp_path) as (primary, replica, _):
        replica.follow(primary.port)
        ports = (primary.port, replica.port)
        hosts = ",".join(f"127.0.0.1:{ports[place]}" for place in places)
        with rs.Client(f"redis://{hosts}", reconnect_timeout=30.0) as client:
            assert client.redis.set("k", 1)
            change_places(primary, replica)
            with pytest.raises(redis.ReadOnlyError):
                primary.redis.incr("k")
            assert client.redis.incr("k") == 2
            replica.kill()
            with (
                pytest.raises(rs.ConnectionLost, match="no primary answers"),
                rs.Client(f"redis://{hosts}", reconnect_timeout=0.0) as late,
            ):
                late.redis.get("k")


def test_a_connection_to_the_former_primary_is_not_used_again(tmp_path: Path) -> None:
    """One comes back late. The tables there are others, though they have the same names."""
    with pair(tmp_path, TABLE) as (primary, replica, _):
        replica.follow(primary.port)
        url = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        with rs.Client(url, shared_memory=True, reconnect_timeout=30.0) as client:
            ids = client.add("t", batch(range(9)))
            client.sample("t", 4)
            pool = client._pool
            sharing, late = (run(pool.connected(time.monotonic() + 30.0)) for _ in range(2))  # as calls under way have
            pool.release(sharing)
            settle(primary, replica)
            change_places(primary, replica)
            client.sample("t", 4)  # goes to the new primary, over a connection of its own
            pool.release(late)
            for _ in range(3):
                client.table("t")  # is looked up anew
                assert set(client.sample("t", 4).ids.tolist()) <= set(ids.tolist())
                client.update_priorities("t", ids, np.ones(9))
                assert client.info("t")["size"] == 9


def test_a_writer_and_a_waiting_sample_go_on_where_the_primary_is_now(tmp_path: Path) -> None:
    """Nothing that was refused is lost or made twice, and the sample returns what comes later."""
    signature = {"frame": rs.Column("int64", step_only=True), "obs": rs.Window("frame", length=2)}
    table = rs.Table("steps", 1000, signature)
    queue = rs.Table("queue", 100, {"k": rs.Column("int64")}, sampler=rs.Fifo(), max_times_sampled=1)
    with pair(tmp_path, table, queue) as (primary, replica, _):
        replica.follow(primary.port)
        both = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        taken: list[int] = []

        def take() -> None:
            with rs.Client(both, reconnect_timeout=30.0) as client:
                taken.extend(client.sample("queue", 1, timeout=60).data["k"].tolist())

        with rs.Client(both, reconnect_timeout=30.0) as client, client.writer("steps", flush_steps=3) as writer:
            waits = threading.Thread(target=take)
            waits.start()
            eventually(lambda: primary.client.info("queue")["waiting_sample"] == 1, "the sample waits")
            for step in range(60):
                writer.append({"frame": step})
                writer.create_item()
                if step in (20, 40):
                    change_places(*((primary, replica) if step == 20 else (replica, primary)))
            ids = writer.flush()
            assert len(ids) == 60
            client.add("queue", {"k": [7]})
            waits.join()
            assert taken == [7]
            assert client.info("steps")["added"] == 60
            shown = client.get("steps", ids).data["obs"]
            assert shown.tolist() == [[max(0, step - 1), step] for step in range(60)]


STEPS = {"frame": rs.Column("int64", step_only=True), "obs": rs.Window("frame", length=1)}


def test_items_that_wait_outlive_two_changes_of_places(tmp_path: Path) -> None:
    """The connection to the first primary is still there then, and its streams are not."""
    with pair(tmp_path, rs.Table("steps", 100, STEPS)) as (primary, replica, _):
        replica.follow(primary.port)
        both = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        with rs.Client(both, reconnect_timeout=30.0) as client, client.writer("steps") as writer:
            writer.append({"frame": 1})
            assert len(writer.flush()) == 0
            change_places(primary, replica)
            change_places(replica, primary)
            writer.create_item()
            ids = writer.flush()
            assert client.get("steps", ids).data["obs"].tolist() == [[1]]


def test_a_writer_of_one_host_keeps_its_items_until_that_is_the_primary_again(tmp_path: Path) -> None:
    with pair(tmp_path, rs.Table("steps", 100, STEPS)) as (primary, replica, _):
        replica.follow(primary.port)
        with rs.Client(primary.server.url) as client, client.writer("steps") as writer:
            writer.append({"frame": 1})
            writer.create_item()
            change_places(primary, replica)
            for _ in range(3):
                with pytest.raises(rs.NotPrimary):
                    writer.flush()
                assert writer.waiting == 1
            change_places(replica, primary)
            assert client.get("steps", writer.flush()).data["obs"].tolist() == [[1]]


# ---- and the append-only file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rewritten", [False, True], ids=["", "rewritten"])
def test_a_replica_writes_its_own_append_only_file(tmp_path: Path, rewritten: bool) -> None:
    rng = np.random.default_rng(8)
    on = {"appendonly": "yes", "appendfsync": "always"}
    with (
        serve(tmp_path / "primary", TABLE, **on) as primary,
        serve(tmp_path / "replica", **on) as replica,
    ):
        ids = use(primary.client, TABLE, 10, rng)
        replica.follow(primary.port)
        eventually(lambda: replica.redis.info("persistence")["aof_pending_rewrite"] == 0, "the base")
        ids += use(primary.client, TABLE, 10, rng)
        primary.client.create_table(rs.Table("new", 30, COLUMNS))
        if rewritten:
            for member in (primary, replica):
                count = member.redis.info("persistence")["aof_rewrites"]
                member.redis.execute_command("BGREWRITEAOF")
                eventually(lambda m=member, c=count: m.redis.info("persistence")["aof_rewrites"] > c, "a rewrite")  # pyright: ignore
            ids += use(primary.client, TABLE, 10, rng)
        primary.client.add("new", batch(range(20)))
        primary.client.publish_weights("w", {"w": np.ones(3)})
        settle(primary, replica)
        before = {name: told(primary.client, name) for name in ("t", "new")}
        items = live_items(primary.client, ids)
        replica.kill()
    with serve(tmp_path / "replica", **on) as again:
        assert {name: told(again.client, name) for name in ("t", "new")} == before
        assert live_items(again.client, ids) == items
        fetched = again.client.fetch_weights("w")
        assert fetched is not None
        assert fetched[1]["w"].tolist() == [1, 1, 1]
        again.promote()  # it was a replica
        new = use(again.client, TABLE, 5, rng)
        assert not set(new) & set(ids)


def test_a_promoted_replica_tells_its_file_of_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    on = {"appendonly": "yes", "appendfsync": "always"}
    with serve(tmp_path / "primary", TABLE) as primary, serve(tmp_path / "replica", **on) as replica:
        replica.follow(primary.port)
        ids = use(primary.client, TABLE, 10, rng)
        settle(primary, replica)
        eventually(lambda: replica.redis.info("persistence")["aof_pending_rewrite"] == 0, "the base")
        replica.promote()
        ids += use(replica.client, TABLE, 10, rng)
        before, items = told(replica.client), live_items(replica.client, ids)
        replica.kill()
    with serve(tmp_path / "replica", **on) as again:
        assert told(again.client) == before
        assert live_items(again.client, ids) == items
