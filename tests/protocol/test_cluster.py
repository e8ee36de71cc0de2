"""Shards against the rules of docs/cluster.md: a model of slots in plain Python, and a supervisor that pushes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from binascii import crc_hqx
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis.cluster import RedisCluster

import replay_server as rs

SLOTS = 16384
IDS = ["a" * 40, "b" * 40, "c" * 40]


def slot_of(key: bytes) -> int:
    """As the specification of Redis Cluster says, by the standard library's CRC16."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return crc_hqx(key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key, 0) % SLOTS


def ranges(slots: list[int]) -> str:
    """ "0-99,200" """
    runs: list[list[int]] = []
    for slot in sorted(slots):
        if runs and runs[-1][1] == slot - 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


class Shards:
    """Servers that are shards, plain clients of each, and what pushes topologies to them."""

    def __init__(self, stack: contextlib.ExitStack, count: int, tables: Any = ()) -> None:
        start = [rs.Server(tables, config={"cluster-enabled": True}) for _ in range(count)]
        self.servers = [stack.enter_context(server) for server in start]
        self.ports = [int(server.url.rpartition(":")[2]) for server in self.servers]
        self.clients = [redis.Redis(port=port) for port in self.ports]
        for client in self.clients:
            stack.callback(client.close)

    def words(self, version: int, me: int, owners: list[int], targets: list[int] | None = None) -> list[Any]:
        words: list[Any] = [version, me]
        for number, port in enumerate(self.ports):
            mine = ranges([slot for slot, owner in enumerate(owners) if owner == number])
            words += ["SHARD", number, IDS[number], "127.0.0.1", port, "", mine]
        for number in range(len(self.ports) if targets else 0):
            moving = [slot for slot in range(SLOTS) if targets[slot] == number != owners[slot]]
            words += ["MOVE", ranges(moving), number] if moving else []
        return words

    def push(self, version: int, owners: list[int], targets: list[int] | None = None) -> None:
        for number, client in enumerate(self.clients):
            client.execute_command("CLUSTER SETTOPOLOGY", *self.words(version, number, owners, targets))

    def ask(self, number: int, *words: Any) -> Any:
        """The reply, or the error's text with its code."""
        try:
            return self.clients[number].execute_command(*words)
        except redis.exceptions.MovedError as error:
            return f"MOVED {error}"
        except redis.exceptions.AskError as error:
            return f"ASK {error}"
        except redis.exceptions.ClusterDownError as error:
            return f"CLUSTERDOWN {error}"
        except redis.exceptions.ClusterCrossSlotError as error:
            return f"CROSSSLOT {error}"
        except redis.exceptions.ResponseError as error:
            return f"{type(error).__name__} {error}"


EMPTY = {"version": 0, "shards": [], "moves": [], "leaving": [], "gone": []}
HALVES = [0] * (SLOTS // 2) + [1] * (SLOTS // 2)


@pytest.fixture
def two() -> Iterator[Shards]:
    with contextlib.ExitStack() as stack:
        shards = Shards(stack, 2)
        shards.push(1, HALVES)
        yield shards


# ---- the rules, in plain Python ------------------------------------------

TAGS = [b"{%d}" % number for number in range(6)]


class Model(RuleBasedStateMachine):
    """Three shards: each has a version, owners, targets and keys. Only slots of six tags change hands."""

    shards: Shards

    def __init__(self) -> None:
        super().__init__()
        self.version = type(self).first_version
        self.owners = [slot * 3 // SLOTS for slot in range(SLOTS)]
        self.targets = list(self.owners)
        self.keys: list[set[bytes]] = [set(), set(), set()]
        for client in self.shards.clients:
            client.flushall()
        self.push()

    first_version = 1

    def push(self) -> None:
        type(self).first_version = self.version = self.version + 1
        self.shards.push(self.version, self.owners, self.targets)

    def expected(self, shard: int, keys: list[bytes], asking: bool) -> str | None:
        """The error, or None: the shard runs it."""
        slots = {slot_of(key) for key in keys}
        if len(slots) > 1:
            return "CROSSSLOT Keys in request don't hash to the same slot"
        slot = slots.pop()
        owner, target = self.owners[slot], self.targets[slot]
        missing = owner != target and any(key not in self.keys[shard] for key in keys)
        if owner == shard:
            return f"ASK {slot} 127.0.0.1:{self.shards.ports[target]}" if missing else None
        if target == shard and asking:
            several = len(set(keys)) > 1
            return "TryAgainError Multiple keys request during rehashing of slot" if several and missing else None
        return f"MOVED {slot} 127.0.0.1:{self.shards.ports[owner]}"

    @rule(
        shard=st.integers(0, 2),
        names=st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from([b"x", b"y"])), min_size=1, max_size=3),
        write=st.booleans(),
        asking=st.booleans(),
    )
    def request(self, shard: int, names: list[tuple[bytes, bytes]], write: bool, asking: bool) -> None:
        keys = [tag + name for tag, name in names]
        words = ["MSET", *(word for key in keys for word in (key, b"1"))] if write else ["EXISTS", *keys]
        client = self.shards.clients[shard]
        with client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*(["ASKING"] if asking else ["PING"]))
            pipe.execute_command(*words)
            reply = pipe.execute(raise_on_error=False)[1]
        expected = self.expected(shard, keys, asking)
        if expected is None:
            assert not isinstance(reply, Exception), reply
            if write:
                self.keys[shard].update(keys)
            else:
                assert reply == sum(key in self.keys[shard] for key in keys)
        else:
            assert isinstance(reply, Exception)
            assert str(reply) == expected.partition(" ")[2], (reply, expected)

    @rule(tag=st.sampled_from(TAGS), goal=st.integers(0, 2))
    def a_slot_begins_to_move(self, tag: bytes, goal: int) -> None:
        self.targets[slot_of(tag + b"x")] = goal
        self.push()

    @rule(tag=st.sampled_from(TAGS))
    def a_slot_has_moved(self, tag: bytes) -> None:
        slot = slot_of(tag + b"x")
        source, target = self.owners[slot], self.targets[slot]
        for key in [key for key in self.keys[source] if slot_of(key) == slot and source != target]:
            self.keys[source].discard(key)
            self.keys[target].add(key)
            with self.shards.clients[target].pipeline(transaction=False) as pipe:
                pipe.execute_command("ASKING")
                pipe.execute_command("SET", key, b"1")
                pipe.execute()
            self.shards.clients[source].execute_command("DEL", key)
        self.owners[slot] = target
        self.push()

    @rule(shard=st.integers(0, 2), back=st.integers(1, 3))
    def an_older_topology_changes_nothing(self, shard: int, back: int) -> None:
        words = self.shards.words(self.version - back, shard, [0] * SLOTS)
        if self.version - back >= 1:
            assert "push a newer one" in self.shards.ask(shard, "CLUSTER SETTOPOLOGY", *words)

    @rule(shard=st.integers(0, 2), slot=st.integers(0, SLOTS - 1))
    def an_incomplete_topology_changes_nothing(self, shard: int, slot: int) -> None:
        owners = [0] * SLOTS
        owners[slot] = 9
        reply = self.shards.ask(shard, "CLUSTER SETTOPOLOGY", *self.shards.words(self.version + 5, shard, owners))
        assert f"slot {slot} has no shard" in reply

    @rule(shard=st.integers(0, 2))
    def the_same_topology_may_come_again(self, shard: int) -> None:
        words = self.shards.words(self.version, shard, self.owners, self.targets)
        assert self.shards.ask(shard, "CLUSTER SETTOPOLOGY", *words) in (b"OK", True)

    @invariant()
    def every_shard_tells_of_the_same_owners(self) -> None:
        for client in self.shards.clients:
            told = json.loads(client.execute_command("CLUSTER TOPOLOGY"))
            assert told["version"] == self.version
            for tag in TAGS:
                slot = slot_of(tag + b"x")
                (owner,) = (
                    shard["shard"]
                    for shard in told["shards"]
                    for first, last in shard["slots"]
                    if first <= slot <= last
                )
                assert owner == self.owners[slot]
                moves = [move["to"] for move in told["moves"] if move["slots"][0] <= slot <= move["slots"][1]]
                assert moves == ([self.targets[slot]] if self.targets[slot] != owner else [])


def test_shards_follow_the_rules_whatever_is_asked_and_pushed() -> None:
    with contextlib.ExitStack() as stack:
        Model.shards = Shards(stack, 3)
        case = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
        Model.TestCase.settings = case
        Model.TestCase("runTest").runTest()


# ---- before, and without, a topology ------------------------------------------


def test_a_shard_serves_no_key_before_it_has_a_topology() -> None:
    with contextlib.ExitStack() as stack:
        shards = Shards(stack, 1)
        assert shards.ask(0, "GET", "x") == "CLUSTERDOWN Hash slot not served"
        assert json.loads(shards.ask(0, "CLUSTER TOPOLOGY")) == EMPTY
        assert shards.clients[0].ping()


def test_a_plain_server_knows_no_topology() -> None:
    with rs.Server([]) as server, redis.Redis.from_url(server.url) as client:
        for words in (["CLUSTER TOPOLOGY"], ["CLUSTER SETTOPOLOGY", 1, 0, "SHARD", 0, IDS[0], "h", 1, "", "0-16383"]):
            with pytest.raises(redis.ResponseError, match="This instance has cluster support disabled"):
                client.execute_command(*words)
        client.mset({"x": 1, "foo": 2})
        assert client.info("cluster") == {"cluster_enabled": 0}


# ---- what has no slot ------------------------------------------


def test_every_shard_serves_its_part_of_a_table_whatever_its_name(two: Shards) -> None:
    table = rs.Table("atari", capacity=10, signature={"x": rs.Column("int32")})
    for server in two.servers:
        with rs.Client(server.url) as client:
            client.create_table(table)
            client.add("atari", {"x": np.arange(3, dtype=np.int32)})
            assert client.info("atari")["size"] == 3


def test_weights_have_the_home_of_a_key_of_their_name(two: Shards) -> None:
    home = HALVES[slot_of(b"policy")]
    with rs.Client(two.servers[home].url) as client:
        assert client.publish_weights("policy", {"w": np.zeros(2, np.float32)}) == 1
    reply = two.ask(1 - home, "WEIGHTS.GET", "policy")
    assert reply == f"MOVED {slot_of(b'policy')} 127.0.0.1:{two.ports[home]}"


# ---- clients that wait ------------------------------------------


def test_a_client_that_waits_for_a_key_is_sent_where_its_slot_has_gone(two: Shards) -> None:
    home = HALVES[slot_of(b"queue")]
    told: list[str] = []
    waiter = threading.Thread(target=lambda: told.append(two.ask(home, "BLPOP", "queue", 0)))
    waiter.start()
    with redis.Redis(port=two.ports[home]) as client:
        deadline = time.monotonic() + 30
        while client.info("clients")["blocked_clients"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    two.clients[1 - home].execute_command("CLUSTER SETTOPOLOGY", *two.words(2, 1 - home, [1 - home] * SLOTS))
    with redis.Redis(port=two.ports[home]) as client:
        client.execute_command("CLUSTER SETTOPOLOGY", *two.words(2, home, [1 - home] * SLOTS))
    waiter.join(30)
    assert told == [f"MOVED {slot_of(b'queue')} 127.0.0.1:{two.ports[1 - home]}"]


# ---- clients that know clusters ------------------------------------------


def test_redis_py_uses_the_shards_as_one(two: Shards) -> None:
    with RedisCluster(host="127.0.0.1", port=two.ports[0]) as cluster:
        for number in range(300):
            cluster.set(f"key:{number}", number)
        assert [int(cluster.get(f"key:{number}")) for number in range(300)] == list(range(300))
        assert all(client.dbsize() > 50 for client in two.clients)
        assert sum(client.dbsize() for client in two.clients) == 300
        cluster.mset_nonatomic({f"key:{number}": -number for number in range(300)})
        assert cluster.eval("return redis.call('get', KEYS[1])", 1, "key:7") == b"-7"
        two.push(2, [1 - owner for owner in HALVES])
        cluster.set("key:1", "moved")
        assert cluster.get("key:1") == b"moved"


def test_a_long_walk_for_the_keys_of_a_slot_lets_others_be_served(two: Shards) -> None:
    client = two.clients[0]
    tag = next(b"{%d}" % number for number in range(100) if HALVES[slot_of(b"%d" % number)] == 0)
    slot = slot_of(tag + b"x")
    with client.pipeline(transaction=False) as pipe:
        for number in range(50_000):
            pipe.set(tag + b"%d" % number, b"")
        pipe.execute()
    assert client.execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 50_000
    names = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 60_000)
    assert len({*names}) == 50_000
    assert len(client.execute_command("CLUSTER GETKEYSINSLOT", slot, 7)) == 7
