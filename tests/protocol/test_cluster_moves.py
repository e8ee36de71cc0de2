"""Slots that move from shard to shard, and back, while clients go on: none sees a key on both sides, or on neither."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster

import replay_server as rs
from replay_server import cluster_moves
from replay_server.cluster_address import SLOTS, slot_of
from replay_server.cluster_moves import MoveRefused, move


@pytest.fixture
def cluster() -> Iterator[rs.Cluster]:
    with rs.Cluster(shards=2) as started:
        yield started


def client_of(cluster: rs.Cluster) -> RedisCluster:
    return RedisCluster.from_url(cluster.servers[0].url)


def on(cluster: rs.Cluster, number: int) -> redis.Redis:
    return redis.Redis.from_url(cluster.servers[number].url)


class Worker(threading.Thread):
    """Does random things to keys of its own, and knows what must come back."""

    def __init__(self, cluster: rs.Cluster, number: int) -> None:
        super().__init__()
        self.client, self.random, self.name = client_of(cluster), random.Random(number), f"worker:{number}"
        self.counts: dict[str, int] = {}
        self.lists: dict[str, list[bytes]] = {}
        self.ending, self.failure, self.done = threading.Event(), None, 0

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.random.choice([self.count, self.forget, self.look, self.push, self.several, self.script])()
                self.done += 1
        except BaseException as failure:
            self.failure = failure

    def key(self) -> str:
        return f"{self.name}:{self.random.randrange(40)}"

    def count(self) -> None:
        key = self.key()
        self.counts[key] = self.counts.get(key, 0) + 1
        assert self.client.incr(key) == self.counts[key]

    def forget(self) -> None:
        key = self.key()
        assert self.client.delete(key) == (self.counts.pop(key, None) is not None)

    def look(self) -> None:
        key = self.key()
        found = self.client.get(key)
        assert (None if found is None else int(found)) == self.counts.get(key)

    def push(self) -> None:
        key = "list:" + self.key()
        items = self.lists.setdefault(key, [])
        items.append(b"%d" % len(items))
        assert self.client.rpush(key, items[-1]) == len(items)

    def several(self) -> None:
        tag = "{" + self.key() + "}"
        with self.client.pipeline(transaction=False) as pipe:
            pipe.set(tag + "a", "1").set(tag + "b", "2")
            pipe.execute()
        assert self.client.get(tag + "a") == b"1"
        assert self.client.get(tag + "b") == b"2"

    def script(self) -> None:
        key = self.key()
        self.counts[key] = self.counts.get(key, 0) + 5
        assert self.client.eval("return redis.call('incrby', KEYS[1], 5)", 1, key) == self.counts[key]

    def check(self) -> None:
        """All that is there is what should be."""
        for number in range(40):
            key = f"{self.name}:{number}"
            found = self.client.get(key)
            assert (None if found is None else int(found)) == self.counts.get(key)
            assert self.client.lrange("list:" + key, 0, -1) == self.lists.get("list:" + key, [])


def test_clients_that_know_clusters_notice_nothing_of_slots_that_move(cluster: rs.Cluster) -> None:
    workers = [Worker(cluster, number) for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        for round_number in range(4):
            for target in (1, 0):
                # Each shard keeps some: redis-py forgets one that has none, and cannot be sent there by ASK.
                topology = cluster.move(range(0, SLOTS, 3) if round_number % 2 else "100-16000", target)
                assert topology.moves == ()
    finally:
        for worker in workers:
            worker.ending.set()
        for worker in workers:
            worker.join(60)
    assert [worker.failure for worker in workers] == [None, None]
    for worker in workers:
        assert worker.done > 20
        worker.check()
    for number in range(2):
        with on(cluster, number) as shard:
            owners = cluster.topology.owners()
            assert {owners[slot_of(key)] for key in shard.scan_iter()} <= {number}, "none should be left behind"


def test_keys_keep_their_types_and_their_time_to_live(cluster: rs.Cluster) -> None:
    with client_of(cluster) as client:
        client.set("{t}text", "a\x00b", px=100_000)
        client.hset("{t}hash", "field", "value")
        client.zadd("{t}zset", {"member": 1.5})
        client.xadd("{t}stream", {"a": 1}, id="5-1")
        cluster.move([slot_of(b"t")], 1 - cluster.topology.owners()[slot_of(b"t")])
        assert client.get("{t}text") == b"a\x00b"
        assert 50_000 < client.pttl("{t}text") <= 100_000
        assert client.hgetall("{t}hash") == {b"field": b"value"}
        assert client.zscore("{t}zset", "member") == 1.5
        assert client.xrange("{t}stream") == [(b"5-1", {b"a": b"1"})]
        assert client.ttl("{t}hash") == -1


class Dying(redis.Redis):
    """Kills the server of its shard between two scans of a walk, and goes on when that was started again."""

    cluster: rs.Cluster
    scans = 0

    def scan(self, *arguments: Any, **options: Any) -> Any:
        self.scans += 1
        if self.scans == 3:
            os.kill(self.cluster.pids[0], signal.SIGKILL)
            wait_for(lambda: self.cluster.restarts == 1)
        return super().scan(*arguments, **options)


def test_no_key_is_passed_over_when_a_shard_dies_while_its_slots_move() -> None:
    log = {"appendonly": "yes", "appendfsync": "always"}
    with rs.Cluster(shards=2, config=log) as cluster, client_of(cluster) as client, on(cluster, 1) as target:
        slots = range(SLOTS // 2)
        keys = [key for number in range(12_000) if slot_of(key := f"key:{number}".encode()) in slots]
        assert len(keys) > 5000
        with on(cluster, 0) as source, source.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(key, key)
            pipe.execute()
        dying = Dying.from_url(cluster.servers[0].url)
        dying.cluster = cluster
        with dying:
            move({0: dying, 1: target}, cluster.topology, slots, 1)
        assert dying.scans > 3
        assert target.dbsize() == len(keys)
        assert client.mget_nonatomic(keys) == keys


def test_no_key_is_lost_where_the_reply_to_its_removal_is(cluster: rs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    holding, lost = cluster_moves._holding, []

    @contextmanager
    def loses_a_reply(source: redis.Redis, names: Sequence[bytes]) -> Iterator[Callable[..., list[Any]]]:
        with holding(source, names) as ask:

            def asked(*requests: Any) -> list[Any]:
                replies = ask(*requests)
                if requests[0][0] == "DEL" and not lost:
                    lost.append(requests)
                    raise redis.ConnectionError("it died")
                return replies

            yield asked

    monkeypatch.setattr(cluster_moves, "_holding", loses_a_reply)
    with client_of(cluster) as client:
        for key in ("{a}1", "{a}2"):
            client.set(key, key)
        slot = slot_of(b"{a}")
        source = next(shard.number for shard in cluster.topology.shards if any(a <= slot <= b for a, b in shard.slots))
        cluster.move([slot], 1 - source)
        assert lost
        assert client.mget("{a}1", "{a}2") == [b"{a}1", b"{a}2"]


@pytest.mark.parametrize("goes_on", [0, 2], ids=["back", "elsewhere"])
def test_no_key_is_lost_when_a_slot_goes_on_to_another_shard_than_a_move_began_with(
    goes_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise MoveRefused("it was interrupted")

    with rs.Cluster(shards=3) as cluster, client_of(cluster) as client:
        slot = slot_of(b"{a}")
        cluster.move([slot], 0)
        for key in ("{a}1", "{a}2"):
            client.set(key, key)
        with monkeypatch.context() as patch:
            patch.setattr(cluster_moves, "_hand_over", interrupted)
            with pytest.raises(MoveRefused, match="interrupted"):
                cluster.move([slot], 1)
        topology = cluster.move([slot], goes_on)
        assert (topology.owners()[slot], topology.moves) == (goes_on, ())
        with on(cluster, goes_on) as there:
            assert there.mget("{a}1", "{a}2") == [b"{a}1", b"{a}2"]


def test_weights_move_with_their_slot(cluster: rs.Cluster) -> None:
    slot = slot_of(b"policy")
    home = cluster.topology.owners()[slot]
    with rs.Client(cluster.servers[home].url) as client:
        client.publish_weights("policy", {"w": np.arange(3, dtype=np.float32)})
        version = client.publish_weights("policy", {"w": np.arange(4, dtype=np.float32)})
    cluster.move([slot], 1 - home)
    with rs.Client(cluster.servers[1 - home].url) as client:
        found = client.fetch_weights("policy")
        assert found is not None
        assert found[0] == version
        assert found[1]["w"].tolist() == [0, 1, 2, 3]
        assert client.publish_weights("policy", {"w": np.zeros(1, np.float32)}) == version + 1
    with on(cluster, home) as shard, pytest.raises(redis.exceptions.MovedError):
        shard.execute_command("WEIGHTS.GET", "policy")


def test_gradients_that_wait_are_in_the_way(cluster: rs.Cluster) -> None:
    slot = slot_of(b"sums")
    home = cluster.topology.owners()[slot]
    with on(cluster, home) as shard:
        shard.execute_command("GRAD.PUSH", "sums", 1, "one", "float32", np.ones(2, np.float32).tobytes())
        with pytest.raises(MoveRefused, match="'sums' on shard"):
            cluster.move([slot], 1 - home)
        assert cluster.topology.version == 1
        shard.execute_command("GRAD.DEL", "sums")
    cluster.move([slot], 1 - home)


def test_who_waits_for_a_list_is_served_where_the_slot_has_gone(cluster: rs.Cluster) -> None:
    slot = slot_of(b"queue")
    told: list[Any] = []

    def wait() -> None:
        with client_of(cluster) as client:
            told.append(client.blpop(["queue"], 60))

    waiter = threading.Thread(target=wait)
    waiter.start()
    home = cluster.topology.owners()[slot]
    wait_for(lambda: blocked(cluster, home) == 1)
    cluster.move([slot], 1 - home)
    wait_for(lambda: blocked(cluster, 1 - home) == 1)
    with client_of(cluster) as client:
        client.rpush("queue", "item")
    waiter.join(60)
    assert told == [(b"queue", b"item")]


def blocked(cluster: rs.Cluster, number: int) -> int:
    with on(cluster, number) as shard:
        return shard.info("clients")["blocked_clients"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it should have come true within a minute"
        time.sleep(0.01)


# ---- keys that are held ----------------------------------------------------------------------------------------------


def test_a_request_for_a_held_key_waits_until_it_is_let_go(cluster: rs.Cluster) -> None:
    home = cluster.topology.owners()[slot_of(b"key")]
    with on(cluster, home).client() as holder, on(cluster, home) as other:
        assert holder.execute_command("CLUSTER HOLD", "key", "{key}2", "key") == 2
        for words in (["SET", "key", "1"], ["GET", "{key}2"]):
            with pytest.raises(redis.exceptions.TimeoutError):
                redis.Redis.from_url(cluster.servers[home].url, socket_timeout=0.2, retry=None).execute_command(*words)
        other.set("{key}3", "others are not held")
        with pytest.raises(redis.ResponseError, match="holds keys: one connection can at a time"):
            other.execute_command("CLUSTER HOLD", "key")
        told: list[Any] = []
        waiter = threading.Thread(target=lambda: told.append(transaction(other)))
        waiter.start()
        wait_for(lambda: blocked(cluster, home) >= 1)
        assert holder.set("key", "7")
        assert holder.execute_command("CLUSTER RELEASE") == 1
        waiter.join(60)
        assert told == [[8]]
        assert holder.execute_command("CLUSTER RELEASE") == 0


def transaction(client: redis.Redis) -> Any:
    with client.pipeline() as pipe:
        return pipe.incr("key").execute()


def test_a_hold_ends_with_its_connection(cluster: rs.Cluster) -> None:
    home = cluster.topology.owners()[slot_of(b"key")]
    with on(cluster, home).client() as holder:
        holder.execute_command("CLUSTER HOLD", "key")
        assert holder.connection is not None
        holder.connection.disconnect()
    with on(cluster, home) as other:
        assert other.set("key", "1")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_moves_slots(cluster: rs.Cluster) -> None:
    with client_of(cluster) as client:
        client.mset_nonatomic({f"key:{number}": number for number in range(200)})
        command = [sys.executable, "-m", "replay_server", "cluster", "move", "--server", cluster.url]
        moved = subprocess.run(
            [*command, "--slots", "0-100,5000-8191", "--to", "1"], capture_output=True, text=True, timeout=120
        )
        assert (moved.returncode, moved.stderr) == (0, "")
        assert "slots 0-100,5000-8191 are on shard 1" in moved.stdout
        assert [int(client.get(f"key:{number}")) for number in range(200)] == list(range(200))
    for words, status in ((["--slots", "5-1", "--to", "1"], 2), (["--slots", "5", "--to", "9"], 1)):
        refused = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)
        assert refused.returncode == status, refused.stderr
    assert cluster.topology.shard(1).slots == ((0, 100), (5000, 16383))
