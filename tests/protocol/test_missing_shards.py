"""A shard that is lost, or does not answer: the client leaves it out, waits for it or raises, as its caller chose."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import start, url_of

import replay_server as rs
from replay_server import cluster_known, cluster_queue
from replay_server.cluster_address import slot_of
from replay_server.topology import ShardPlace, Topology


@pytest.fixture
def losing():
    """Three shards of 100 items each, the last of which can be stopped."""
    with contextlib.ExitStack() as stack:
        servers = start(stack, 3)
        with rs.Client(url_of(*servers)) as client:
            client.create_table(rs.Table("t", 300, {"k": rs.Column("int64")}, sampler=rs.Uniform()))
            ids = client.add("t", {"k": np.arange(300)})
        yield servers, ids


def test_a_lost_shard_is_left_out_and_the_batch_says_so(losing):
    servers, ids = losing
    with rs.Client(url_of(*servers), missing="leave_out") as client:
        assert client.sample("t", 64).missing == ()
        servers[2].stop()
        for _ in range(5):
            batch = client.sample("t", 64)
            assert batch.missing == (2,)
            assert set(batch.ids >> np.uint64(56)) == {0, 1}
            np.testing.assert_allclose(batch.probabilities, 1 / 200)
        assert client.update_priorities("t", ids, np.ones(300)) == (200, 100)
        info = client.info("t")
        assert (info["size"], info["missing"]) == (200, [2])


def test_a_shard_that_does_not_answer_is_left_out_and_taken_in_again(losing, eventually):
    servers, _ = losing
    with rs.Client(url_of(*servers), missing="leave_out", missing_after=0.2) as client:
        assert client.sample("t", 64).missing == ()
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                batch = client.sample("t", 64)
                assert batch.missing == (1,)
                assert set(batch.ids >> np.uint64(56)) == {0, 2}
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)
        eventually(lambda: client.sample("t", 64).missing == (), "the shard is asked again")


def test_a_lost_shard_is_an_error_where_the_caller_chose_that(losing):
    servers, _ = losing
    with rs.Client(url_of(*servers), missing="error") as client:
        client.sample("t", 64)
        servers[2].stop()
        began = time.monotonic()
        with pytest.raises(rs.ConnectionLost):
            client.sample("t", 64)
        assert time.monotonic() - began < 30


def test_a_lost_shard_is_waited_for_and_its_return_noticed(losing):
    servers, _ = losing
    port = int(servers[2].url.rpartition(":")[2])
    with rs.Client(url_of(*servers), reconnect_timeout=60) as client:
        client.sample("t", 64)
        servers[2].stop()
        got: list[rs.Batch] = []
        waiter = threading.Thread(target=lambda: got.append(client.sample("t", 64)))
        waiter.start()
        table = rs.Table("t", 100, {"k": rs.Column("int64")}, sampler=rs.Uniform())
        with rs.Server([table], port=port, config={"shard": 2}):
            waiter.join(60)
        assert len(got) == 1
        assert got[0].missing == ()


def test_items_of_a_queue_come_from_the_other_shards_when_one_dies_between_its_info_and_its_part(losing, monkeypatch):
    servers, _ = losing
    shares = cluster_queue.shares

    def one_dies(sizes: Mapping[int, int], wanted: int) -> dict[int, int]:
        servers[2].stop()
        return shares(sizes, wanted)

    with rs.Client(url_of(*servers), missing="leave_out") as client:
        queue = rs.Table("q", 300, {"k": rs.Column("int64")}, sampler=rs.Fifo(), max_times_sampled=1)
        client.create_table(queue)
        for server in servers:
            with rs.Client(server.url) as own:
                own.add("q", {"k": np.arange(20)})
        monkeypatch.setattr(cluster_queue, "shares", one_dies)
        batch = client.sample("q", 30, timeout=60)
        assert batch.missing == (2,)
        assert set(batch.ids >> np.uint64(56)) == {0, 1}
        assert len(set(batch.ids)) == 30
        assert client.info("q")["size"] == 10


def test_what_the_others_gave_when_a_shard_was_lost_is_not_counted_as_sampled(losing):
    servers, _ = losing
    limiter = rs.SampleToInsertRatio(samples_per_insert=1e6, min_size_to_sample=1, error_buffer=1e9)
    with rs.Client(url_of(*servers), missing="error") as client, rs.Client(servers[0].url) as own:
        client.create_table(rs.Table("r", 300, {"k": rs.Column("int64")}, sampler=rs.Uniform(), rate_limiter=limiter))
        client.add("r", {"k": np.arange(300)})
        used = np.sum(client.sample("r", 64).ids >> np.uint64(56) == 0)
        servers[2].stop()
        for _ in range(3):
            with pytest.raises(rs.ConnectionLost):
                client.sample("r", 64)
        info = own.info("r")
        assert info["sampled"] - info["unused"] - client._unused.get(("r", 0), 0) == used


def shard(
    stack: contextlib.ExitStack, number: int, directory: Path, **options: Any
) -> tuple[rs.Server, rs.Client, ShardPlace]:
    """A server that has yet to be told a topology, a client of it, and its place."""
    table, config = rs.Table("t", 400, {"k": rs.Column("int64")}), {"cluster-enabled": True, "shard": number}
    server = stack.enter_context(rs.Server([table], directory=directory, config=config, **options))
    place = ShardPlace(number, f"{number}" * 40, "127.0.0.1", int(server.url.rpartition(":")[2]))
    return server, stack.enter_context(rs.Client(server.url)), place


def told_to(first: ShardPlace, second: ShardPlace, *clients: rs.Client) -> Topology:
    """The topology of two shards, which both know from now on."""
    topology = Topology(1, (replace(first, slots=((0, 8191),)), replace(second, slots=((8192, 16383),))))
    for number, client in enumerate(clients):
        client.command(*topology.arguments(number))
    return topology


def times_asked(client: rs.Client) -> int:
    """How often anybody has asked this shard for the topology."""
    return int(client.redis.info("commandstats")["cmdstat_cluster|topology"]["calls"])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(
            lambda client, ids: sorted(client.sample("t", 200, replace=False).data["k"]), range(200), id="sample"
        ),
        pytest.param(lambda client, ids: client.get("t", ids).data["k"], range(200), id="get"),
        pytest.param(lambda client, ids: client.update_priorities("t", ids, np.ones(200)), (200, 0), id="update"),
        pytest.param(lambda client, ids: client.fetch_weights("{x}")[1]["w"], [7], id="weights"),
    ],
)
def test_a_call_that_waits_for_a_shard_goes_on_where_the_others_say_that_it_is_now(
    call: Callable[[rs.Client, np.ndarray], Any], expected: Any, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """Long before `reconnect_timeout`: that is longer here than any test."""
    with contextlib.ExitStack() as stack:
        (_, stays, first), (dies, own, second) = (shard(stack, number, tmp_path) for number in range(2))
        topology = told_to(first, second, stays, own)
        client = stack.enter_context(rs.Client(f"redis+cluster://127.0.0.1:{first.port}", reconnect_timeout=3600))
        ids = client.add("t", {"k": np.arange(200)})
        client.publish_weights("{x}", {"w": np.array([7])})  # its slot is 16287
        snapshot = own.checkpoint()
        dies.stop()
        before, got = times_asked(stays), []
        waiter = threading.Thread(target=lambda: got.append(call(client, ids)), daemon=True)
        waiter.start()
        eventually(lambda: times_asked(stays) > before, "the other shard is asked, and has not heard of a new place")
        _, again, third = shard(stack, 1, tmp_path, restore=snapshot)
        moved = topology.with_shards([replace(third, slots=((8192, 16383),))])
        for number, each in enumerate((stays, again)):
            each.command(*moved.arguments(number))
        waiter.join(60)
        assert not waiter.is_alive(), "it still waits at the old place"
        assert list(got[0]) == list(expected)


def test_a_hung_shard_costs_a_client_one_wait_however_many_connections_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    """A question that is not answered is a wait. The shard counts the questions when it goes on."""
    monkeypatch.setattr(cluster_known, "LOOK_EVERY_S", 0.0)
    with contextlib.ExitStack() as stack:
        (_, stays, first), (hangs, own, second) = (shard(stack, number, tmp_path) for number in range(2))
        told_to(first, second, stays, own)
        client = stack.enter_context(rs.Client(f"redis+cluster://127.0.0.1:{first.port}"))
        there = "{x}"  # its slot is 16287
        here = next(key for key in map("{}".format, range(100)) if slot_of(key) < 8192)
        client.publish_weights(here, {"w": np.array([7])})
        takers = [threading.Thread(target=client.take_gradients, args=(there, 1)) for _ in range(4)]
        for taker in takers:
            taker.start()
        eventually(lambda: own.redis.info("clients")["blocked_clients"] == 4, "each waits on a connection of its own")
        client.push_gradient(there, 1, "g", np.ones(1, np.float32))
        for taker in takers:
            taker.join()
        before = times_asked(own)
        os.kill(hangs.pid, signal.SIGSTOP)
        try:
            for _ in range(8):
                client.fetch_weights(here)
        finally:
            os.kill(hangs.pid, signal.SIGCONT)
        own.redis.ping()
        assert times_asked(own) - before <= 1
        assert client.gradient_info(there)["waiting"] == 1


def test_choices_that_are_none_are_refused():
    with pytest.raises(ValueError, match="missing must be one of wait, leave_out, error"):
        rs.Client("redis+cluster://a:1", missing="forget")
