"""Shards with TLS beside their plain ports: a client is sent on to ports of the kind that it came to."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster
from shards import shards_of, wait_for
from test_tls import certificates, settings

import replay_server as rs
import replay_server.aio
from replay_server.cluster_address import slot_of

__all__ = ["certificates"]
TABLE = rs.Table("t", capacity=2000, signature={"x": rs.Column("float32", (10,))})


@pytest.fixture
def cluster(certificates: Path) -> Iterator[rs.Cluster]:
    with rs.Cluster([TABLE], shards=2, password="secret", config=settings(certificates)) as running:
        yield running


def tls_url(cluster: rs.Cluster, number: int = 0) -> str:
    url = cluster.servers[number].tls_url
    assert url is not None
    return url


def ports(cluster: rs.Cluster) -> tuple[list[int], list[int]]:
    shards = cluster.topology.shards
    return [shard.port for shard in shards], [shard.tls_port for shard in shards]


def key_of(cluster: rs.Cluster, number: int) -> str:
    owners = cluster.topology.owners()
    return next(key for key in map("{}".format, range(1000)) if owners[slot_of(key)] == number)


def test_each_client_is_told_the_ports_of_its_kind(cluster: rs.Cluster) -> None:
    plain, tls = ports(cluster)
    assert [urlsplit(tls_url(cluster, number)).port for number in range(2)] == tls
    other = key_of(cluster, 1)
    for url, own in ((cluster.servers[0].url, plain), (tls_url(cluster), tls)):
        with redis.Redis.from_url(url, decode_responses=True, protocol=3) as client, client.client() as one:
            raw = one.connection
            assert raw is not None

            def ask(*words: str, raw: redis.Connection = raw) -> Any:
                raw.send_command(*words)
                return raw.read_response()

            slots = ask("CLUSTER", "SLOTS")
            assert [each[2][1] for each in slots] == own
            nodes = ask("CLUSTER", "NODES").splitlines()
            assert [int(line.split()[1].partition("@")[0].rpartition(":")[2]) for line in nodes] == own
            said = ask("EVAL", "local told = redis.call('CLUSTER', 'SLOTS') return {told[1][3][2], told[2][3][2]}", "0")
            assert said == own
            shards = ask("CLUSTER", "SHARDS")
            found = [each["nodes"][0] for each in shards]
            assert [(node["port"], node["tls-port"]) for node in found] == list(zip(plain, tls, strict=True))
            with pytest.raises(redis.exceptions.MovedError) as moved:
                ask("GET", other)
            assert moved.value.port == own[1]


def test_a_client_that_waits_for_a_key_is_sent_to_a_tls_port_when_its_slot_leaves(cluster: rs.Cluster) -> None:
    key, (_, tls) = key_of(cluster, 0), ports(cluster)
    said: list[redis.exceptions.AskError] = []

    def wait() -> None:
        with redis.Redis.from_url(tls_url(cluster)) as client:
            try:
                client.blpop([key], 60)
            except redis.exceptions.AskError as error:  # of which a MovedError is one
                said.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with redis.Redis.from_url(cluster.servers[0].url) as client:
        wait_for(lambda: client.info("clients")["blocked_clients"] == 1)
    cluster.move([slot_of(key)], 1)
    waiter.join(60)
    assert [error.port for error in said] == [tls[1]]


def test_redis_py_stays_on_tls_through_a_move_of_slots(cluster: rs.Cluster) -> None:
    _, tls = ports(cluster)
    with RedisCluster.from_url(tls_url(cluster), ssl_check_hostname=True) as client:
        for number in range(200):
            client.set(f"key:{number}", number)
        cluster.move("0-4000", 1)
        assert [int(client.get(f"key:{number}")) for number in range(200)] == list(range(200))
        assert sorted(node.port for node in client.get_nodes()) == sorted(tls)


def test_our_clients_stay_on_tls_and_go_on_when_a_shard_was_started_again(cluster: rs.Cluster) -> None:
    assert cluster.tls_url is not None
    _, tls = ports(cluster)
    with rs.Client(cluster.tls_url.replace(f",127.0.0.1:{tls[1]}", ""), reconnect_timeout=60) as client:
        assert shards_of(client.add("t", {"x": np.ones((100, 10), np.float32)})) == {0, 1}
        client.publish_weights(key_of(cluster, 1), {"w": np.array([7])})
        client.checkpoint()
        os.kill(cluster.pids[1], signal.SIGKILL)
        assert shards_of(client.sample("t", 64).ids) == {0, 1}
        assert ports(cluster)[1] == tls
        assert client.info("t")["size"] == 100
        assert {urlsplit(shard.url).port for shard in client._shards} == set(tls)

    async def work() -> None:
        assert cluster.tls_url is not None
        async with rs.aio.Client(cluster.tls_url) as awaited:
            assert shards_of((await awaited.sample("t", 64)).ids) == {0, 1}

    asyncio.run(work())


def test_the_tls_ports_of_a_cluster_follow_the_first(certificates: Path, free_port: int) -> None:
    with rs.Cluster(shards=1, config={**settings(certificates), "tls-port": free_port}) as cluster:
        assert ports(cluster)[1] == [free_port]
    with rs.Cluster(shards=1) as cluster:
        assert cluster.tls_url is None
        assert ports(cluster)[1] == [0]


def test_replicas_are_told_with_the_ports_of_the_clients_kind_also_after_a_failover(certificates: Path) -> None:
    config = settings(certificates)
    with rs.Cluster([TABLE], shards=2, password="secret", config=config, replicas=1) as cluster:
        wait_for(lambda: all(shard.replicas for shard in cluster.topology.shards))
        replica = cluster.topology.shards[0].replicas[0]
        for url, port in ((cluster.servers[1].url, replica.port), (tls_url(cluster, 1), replica.tls_port)):
            with redis.Redis.from_url(url) as client:
                slots: Any = client.execute_command("CLUSTER SLOTS")
                assert slots[0][3][1] == port
        assert f"127.0.0.1:{replica.tls_port}" in str(cluster.tls_url)
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.failovers == 1 and all(shard.replicas for shard in cluster.topology.shards))
        shard = cluster.topology.shards[0]
        assert (shard.port, shard.tls_port) == (replica.port, replica.tls_port)
        with redis.Redis.from_url(tls_url(cluster)) as client:
            assert client.set(key_of(cluster, 0), "value")
