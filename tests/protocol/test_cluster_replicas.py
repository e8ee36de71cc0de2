"""Replicas of shards: what they answer, and what clients of the cluster see when one takes its primary's part."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis
from links import eventually
from redis.cluster import RedisCluster
from shards import SHARD, K
from test_cluster import HALVES, IDS, SLOTS, ranges, slot_of

import replay_server as rs

TABLE = rs.Table("atari", 1000, K)


class Shard:
    """A server of a number, and a client of it."""

    def __init__(self, stack: contextlib.ExitStack, number: int, *tables: rs.Table) -> None:
        config = {"cluster-enabled": True, "shard": number}
        self.number, self.server = number, stack.enter_context(rs.Server(tables, config=config))
        self.port = int(self.server.url.rpartition(":")[2])
        self.client = stack.enter_context(contextlib.closing(redis.Redis(port=self.port)))

    def ask(self, *words: Any) -> Any:
        """The reply, or the error's text; a redirection's with its code."""
        return told(self.client, *words)

    def role(self) -> str:
        return self.client.info("replication")["role"]


def told(client: redis.Redis, *words: Any) -> Any:
    try:
        return client.execute_command(*words)
    except redis.exceptions.MovedError as error:
        return f"MOVED {error}"
    except redis.ResponseError as error:
        return str(error)


class Trio:
    """Two shards of half the slots each, and a replica of the first, which has not gone anywhere yet."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.first, self.second = Shard(stack, 0, TABLE), Shard(stack, 1, TABLE)
        self.replica = Shard(stack, 0)
        self.push(1, self.first)

    def push(self, version: int, first: Shard) -> None:
        """Tells all three the topology, in which this one is shard 0, by an id of its own."""
        ids = {self.first: IDS[0], self.second: IDS[1], self.replica: IDS[2]}
        for each in (self.first, self.second, self.replica):
            words: list[Any] = [version, each.number]
            for shard in (first, self.second):
                slots = [slot for slot in range(SLOTS) if HALVES[slot] == shard.number]
                words += ["SHARD", shard.number, ids[shard], "127.0.0.1", shard.port, "", ranges(slots)]
            each.client.execute_command("CLUSTER SETTOPOLOGY", *words)

    def follow(self) -> None:
        self.replica.client.execute_command("REPLICAOF", "127.0.0.1", self.first.port)
        eventually(lambda: self.replica.client.info("replication")["master_link_status"] == "up", "the first copy")

    def fail_over(self) -> None:
        self.first.client.execute_command("FAILOVER", "TO", "127.0.0.1", self.replica.port)
        eventually(lambda: (self.first.role(), self.replica.role()) == ("slave", "master"), "the change of places")


@pytest.fixture
def trio() -> Iterator[Trio]:
    with contextlib.ExitStack() as stack:
        trio = Trio(stack)
        trio.follow()
        yield trio


def keys_of(number: int, count: int = 1) -> list[str]:
    """Keys in slots of a shard."""
    return [key for key in map("key:{}".format, range(10 * count + 10)) if HALVES[slot_of(key.encode())] == number][
        :count
    ]


KEY, OTHER = keys_of(0)[0], keys_of(1)[0]


def moved(key: str, shard: Shard) -> str:
    return f"MOVED {slot_of(key.encode())} 127.0.0.1:{shard.port}"


def test_a_replica_has_what_its_shard_has_and_sends_clients_there(trio: Trio) -> None:
    first, replica = trio.first, trio.replica
    with rs.Client(first.server.url) as client:
        ids = client.add("atari", {"k": np.arange(5)})
    first.client.set(KEY, "value")
    first.client.eval("redis.call('set', KEYS[1], 'script')", 1, f"{{{KEY}}}:script")
    with first.client.pipeline() as pipe:
        pipe.set(f"{{{KEY}}}:transaction", "1").incr(f"{{{KEY}}}:transaction").execute()
    assert first.client.wait(1, 60_000) == 1
    for words in (["GET", KEY], ["SET", KEY, "x"], ["WEIGHTS.GET", KEY]):
        assert replica.ask(*words) == moved(KEY, first)
    assert replica.ask("GET", OTHER) == moved(OTHER, trio.second)
    assert replica.ask("MGET", KEY, OTHER) == "Keys in request don't hash to the same slot"
    for words in (["REPLAY.INFO", "atari"], ["REPLAY.GET", "atari", ids.tobytes()], ["REPLAY.SAMPLE", "atari", 1]):
        assert replica.ask(*words) == moved("atari", first)
    assert replica.ask("EVAL", "return redis.call('get', ARGV[1])", 0, KEY).startswith(
        "Script attempted to access a non local key"
    )
    assert replica.client.info("keyspace")["db0"]["keys"] == 3
    assert replica.client.execute_command("REPLAY.LIST") == [b"atari"]


def test_readonly_lets_a_connection_read_from_a_replica_and_write_nothing(trio: Trio) -> None:
    trio.first.client.set(KEY, "value")
    with rs.Client(trio.first.server.url) as client:
        client.add("atari", {"k": np.arange(5)})
    assert trio.first.client.wait(1, 60_000) == 1
    with redis.Redis(port=trio.replica.port, single_connection_client=True) as client:
        assert client.readonly()
        assert client.get(KEY) == b"value"
        assert told(client, "REPLAY.INFO", "atari")
        assert client.execute_command("EVAL", "return redis.call('get', KEYS[1])", 1, KEY) == b"value"
        assert client.client_info()["flags"] == "r"
        assert told(client, "GET", OTHER) == moved(OTHER, trio.second)
        assert told(client, "SET", KEY, "x") == moved(KEY, trio.first)
        assert told(client, "REPLAY.SAMPLE", "atari", 1) == moved("atari", trio.first)
        assert client.readwrite()
        assert told(client, "GET", KEY) == moved(KEY, trio.first)
        assert client.readonly()
        assert client.execute_command("RESET") == "RESET"
        assert told(client, "GET", KEY) == moved(KEY, trio.first)


def test_a_replica_tells_of_the_shards_and_of_itself_as_a_replica(trio: Trio) -> None:
    replica = trio.replica.client
    own = replica.execute_command("CLUSTER MYID").decode()
    assert own not in IDS
    nodes: Any = replica.execute_command("CLUSTER NODES")
    (line,) = [each for each in nodes.values() if "myself" in each["flags"]]
    assert (line["node_id"], line["flags"], line["master_id"]) == (own, "myself,slave", IDS[0])
    assert trio.first.client.execute_command("CLUSTER MYID").decode() == IDS[0]
    assert replica.execute_command("CLUSTER SLOTS") == trio.second.client.execute_command("CLUSTER SLOTS")


def test_a_shard_that_gave_its_part_away_sends_clients_on_before_it_hears_of_a_new_topology(trio: Trio) -> None:
    trio.first.client.set(KEY, "value")
    trio.fail_over()
    assert trio.replica.ask("GET", KEY) == b"value"
    for words in (["GET", KEY], ["SET", KEY, "x"]):
        assert trio.first.ask(*words) == moved(KEY, trio.replica)
    assert trio.first.ask("REPLAY.SAMPLE", "atari", 1) == moved("atari", trio.replica)
    assert trio.second.ask("GET", KEY) == moved(KEY, trio.first)  # as its topology says still
    trio.push(2, trio.replica)
    assert trio.second.ask("GET", KEY) == moved(KEY, trio.replica)
    assert trio.replica.client.execute_command("CLUSTER MYID").decode() == IDS[2]


def test_who_waits_at_a_shard_is_sent_away_when_it_gives_its_part_away(trio: Trio) -> None:
    first = trio.first
    answers: list[Any] = []
    popping = threading.Thread(target=lambda: answers.append(first.ask("BLPOP", KEY, 0)))
    sampling = threading.Thread(target=lambda: answers.append(first.ask("REPLAY.SAMPLE", "atari", 1, "BLOCK", 0)))
    popping.start()
    sampling.start()
    with redis.Redis(port=first.port) as client:
        eventually(lambda: client.info("clients")["blocked_clients"] == 2, "two that wait")
    with redis.Redis(port=first.port) as client:
        client.execute_command("FAILOVER", "TO", "127.0.0.1", trio.replica.port)
    popping.join(60)
    sampling.join(60)
    assert len(answers) == 2
    assert all("instance state changed" in answer for answer in answers)


def test_a_failover_is_given_up_as_without_a_cluster(trio: Trio) -> None:
    assert trio.first.ask("FAILOVER", "TO", "127.0.0.1", 1) == "FAILOVER target HOST and PORT is not a replica."
    assert trio.second.ask("FAILOVER") == "FAILOVER requires connected replicas."
    assert trio.first.ask("SET", KEY, "here") is True


def test_redis_py_goes_on_while_a_shard_changes_its_place(trio: Trio) -> None:
    """Keys and items, by a client that knows nothing of this server: what was acknowledged is there, once."""
    names = keys_of(0, 50) + keys_of(1, 50)
    counts, added, failures = dict.fromkeys(names, 0), list[int](), list[Exception]()
    ends = threading.Event()

    def work() -> None:
        try:
            with RedisCluster(host="127.0.0.1", port=trio.second.port) as cluster:
                while not ends.is_set():
                    for name in names:
                        cluster.incr(name)
                        counts[name] += 1
                    column = np.arange(len(added), len(added) + 3).tobytes()
                    blob = cluster.execute_command("REPLAY.ADD", "atari", 3, b"", "COLUMNS", 1, "k", column)
                    added.extend(np.frombuffer(blob, "<u8").tolist())
        except Exception as error:
            failures.append(error)

    working = threading.Thread(target=work)
    working.start()
    home = HALVES[slot_of(b"atari")]
    eventually(lambda: failures or min(counts.values()) >= 2, "work")
    trio.fail_over()
    before = min(counts.values())
    eventually(lambda: failures or min(counts.values()) >= before + 2, "work between failover and topology")
    trio.push(2, trio.replica)
    before = min(counts.values())
    eventually(lambda: failures or min(counts.values()) >= before + 2, "work afterwards")
    ends.set()
    working.join(60)
    assert not failures, failures
    with RedisCluster(host="127.0.0.1", port=trio.replica.port) as cluster:
        assert {name: int(cluster.get(name)) for name in names} == counts
    holder = (trio.replica, trio.second)[home]
    with rs.Client(holder.server.url) as client:
        batch = client.get("atari", np.array(added[-300:], np.uint64))
        assert batch.data["k"].tolist() == list(range(len(added)))[-300:]
        assert client.info("atari")["added"] == len(added)
    assert {each >> int(SHARD) for each in added} == {home}
