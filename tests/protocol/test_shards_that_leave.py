"""Shards that are taken out of a cluster that runs, while clients go on: nothing acknowledged is lost in silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from shards import SHARD, shards_of, wait_for

import replay_server as rs
from replay_server.cluster_leave import LeaveRefused
from replay_server.cluster_moves import MoveRefused
from replay_server.topology import ShardPlace, Topology

TABLE = rs.Table("t", capacity=10**6, signature={"k": rs.Column("int64")}, seed=7)
QUEUE = rs.Table(
    "q", 10**5, {"k": rs.Column("int64")}, sampler=rs.Fifo(), rate_limiter=rs.Queue(400), max_times_sampled=1
)
WINDOWS = rs.Table(
    "w",
    10**4,
    {
        "frame": rs.Column("int64", step_only=True),
        "obs": rs.Window("frame", length=3, offset=0),
        "k": rs.Column("int64"),
    },
)


def count_on(ids: np.ndarray, number: int) -> int:
    return int((ids >> SHARD == number).sum())


@contextlib.contextmanager
def repeated(*calls: Callable[[int], Any]) -> Iterator[None]:
    """Does each call again and again in a thread of its own, with the number of the turn; fails where one fails."""
    stop, failed = threading.Event(), list[BaseException]()

    def run(call: Callable[[int], Any]) -> None:
        turn = 0
        try:
            while not stop.is_set():
                call(turn)
                turn += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def another_host(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A shard that joins, under a supervisor of its own: that process, and the shard's."""
    command = [sys.executable, "-m", "replay_server", "cluster", "start", "--shard-of", url, "--port", "0"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready url="), line
        yield process, int(line.rpartition("pids=")[2])
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.communicate(timeout=60)


# ---- in order --------------------------------------------------------------------------------------------------------


def test_a_queue_is_drained_of_a_shard_that_leaves_and_each_item_comes_once() -> None:
    """Writers add, a sampler takes: what is acknowledged is what is taken, each item once."""
    added, taken = list[np.ndarray](), list[np.ndarray]()
    with rs.Cluster([QUEUE], shards=3) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(rs.Client(cluster.url)) for _ in range(4)]

        def act(number: int) -> Callable[[int], None]:
            def call(turn: int) -> None:
                keys = number * 10**6 + turn * 4 + np.arange(4)
                with contextlib.suppress(rs.Timeout):
                    ids = clients[number].add("q", {"k": keys}, timeout=0.5)
                    added.append(np.stack([ids.astype(np.int64), keys]))

            return call

        def learn(_: int) -> None:
            with contextlib.suppress(rs.Timeout):
                taken.append(clients[3].sample("q", 8, timeout=0.2).data["k"])

        with repeated(act(0), act(1), act(2), learn):
            wait_for(lambda: len(added) > 50)
            number = int(added[-1][0][0]) >> 56
            forgotten = cluster.forget(number)
            assert forgotten.items == {"q": 0}
            others = {0, 1, 2} - {number}
            assert {shard.number for shard in forgotten.topology.shards} == others
            count = len(added)
            wait_for(lambda: len(added) > count + 50)
            assert {int(ids[0]) >> 56 for ids, _ in added[count + 10 :]} <= others
        while clients[3].info("q")["size"] >= 8:
            taken.append(clients[3].sample("q", 8).data["k"])
        if left := clients[3].info("q")["size"]:
            taken.append(clients[3].sample("q", left).data["k"])
        keys = np.concatenate([keys for _, keys in added])
        assert np.array_equal(np.sort(np.concatenate(taken)), np.sort(keys))
        assert set(cluster.numbers) == others
        wait_for(lambda: len(cluster.pids) == 2 and cluster.running)


def test_items_that_are_given_up_are_counted_and_all_others_stay() -> None:
    added: list[tuple[np.ndarray, np.ndarray]] = []
    with rs.Cluster([TABLE], shards=2) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(rs.Client(cluster.url)) for _ in range(3)]

        def act(number: int) -> Callable[[int], None]:
            def call(turn: int) -> None:
                keys = number * 10**6 + turn * 64 + np.arange(64)
                added.append((clients[number].add("t", {"k": keys}), keys))
                time.sleep(0.005)

            return call

        def learn(_: int) -> None:
            batch = clients[2].sample("t", 32, timeout=60.0)
            applied, stale = clients[2].update_priorities("t", batch.ids, np.ones(32))
            assert applied + stale == 32

        with repeated(act(0), act(1), learn):
            wait_for(lambda: len(added) > 20)
            forgotten = cluster.forget(0, lose_items=True)
            count = len(added)
            wait_for(lambda: len(added) > count + 50)
        ids, keys = (np.concatenate(arrays) for arrays in zip(*added, strict=True))
        assert forgotten.items == {"t": count_on(ids, 0)}
        assert count_on(ids, 0) > 0
        stays = ids >> SHARD == 1
        wait_for(lambda: clients[0].info("t")["size"] == stays.sum(), 10)
        assert np.array_equal(clients[0].get("t", ids[stays]).data["k"], keys[stays])
        gone = ids[~stays]
        wait_for(lambda: clients[2].info("t")["size"] == stays.sum(), 10)
        assert clients[2].update_priorities("t", ids, np.ones(len(ids))) == (stays.sum(), len(gone))
        assert clients[2].delete("t", gone) == 0
        with pytest.raises(rs.ServerError, match="is not in table"):
            clients[2].get("t", gone[:3])


def test_a_shard_that_still_holds_items_stays_as_it_was() -> None:
    limiter = rs.SampleToInsertRatio(samples_per_insert=1.0, min_size_to_sample=10, error_buffer=100.0)
    table = rs.Table("t", 1000, {"k": rs.Column("int64")}, rate_limiter=limiter)
    with rs.Cluster([table], shards=2) as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"k": np.arange(64)})
        before = cluster.topology
        with rs.Client(cluster.servers[1].url) as own:
            part = own.table("t")
            size = own.info("t")["size"]
            with pytest.raises(LeaveRefused, match=f"shard 1 holds {size} items of table 't' after 0 s, and stays"):
                cluster.forget(1, timeout=0)
            assert own.table("t") == part
            assert not own.info("t")["closed"]
        after = cluster.topology
        assert (after.leaving, after.gone) == (frozenset(), frozenset())
        assert {shard.number: shard.id for shard in after.shards} == {each.number: each.id for each in before.shards}
        wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(2)}, timeout=0)), 10)


def test_samples_go_on_while_a_rate_limiter_on_the_shard_that_leaves_is_given_no_more_items() -> None:
    limiter = rs.SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=20, error_buffer=200.0)
    table = rs.Table("t", 10**5, {"k": rs.Column("int64")}, rate_limiter=limiter)
    with rs.Cluster([table], shards=2) as cluster, rs.Client(cluster.url) as client, rs.Client(cluster.url) as learner:
        client.add("t", {"k": np.arange(64)})
        sampled = list[float]()

        def act(_: int) -> None:
            with contextlib.suppress(rs.Timeout):
                client.add("t", {"k": np.arange(4)}, timeout=0.5)

        def learn(_: int) -> None:
            with contextlib.suppress(rs.Timeout):
                learner.sample("t", 16, timeout=0.5)
                sampled.append(time.monotonic())

        with repeated(act, learn):
            wait_for(lambda: len(sampled) > 20)
            with pytest.raises(LeaveRefused):
                cluster.forget(1, timeout=6.0)
            during = sampled[20:]
        assert np.diff(during).max() < 3.0


def test_keys_and_weights_move_to_the_others() -> None:
    with (
        rs.Cluster([TABLE], shards=3) as cluster,
        redis.RedisCluster.from_url(cluster.servers[0].url) as keys,
        rs.Client(cluster.url) as client,
    ):
        for number in range(200):
            keys.set(f"key:{number}", number)
            if number % 20 == 0:
                client.publish_weights(f"weights:{number}", {"w": np.full(3, number)})
        with repeated(lambda turn: keys.incr(f"count:{turn % 50}")):
            topology = cluster.forget(f"redis://127.0.0.1:{cluster.topology.shard(1).port}").topology
        assert [shard.number for shard in topology.shards] == [0, 2]
        assert sum(last - first + 1 for shard in topology.shards for first, last in shard.slots) == 16384
        for number in range(200):
            assert keys.get(f"key:{number}") == b"%d" % number
            if number % 20 == 0:
                found = client.fetch_weights(f"weights:{number}")
                assert found is not None
                assert found[1]["w"].tolist() == [number] * 3
        for server in cluster.servers:
            with redis.Redis.from_url(server.url) as own:
                told: Any = [own.execute_command("CLUSTER SHARDS"), own.execute_command("CLUSTER NODES")]
                assert [*map(len, told)] == [2, 2]


def test_what_was_cut_short_goes_on() -> None:
    """Who took the shard out died, with some of its slots on their way."""
    with (
        rs.Cluster([TABLE], shards=3) as cluster,
        redis.RedisCluster.from_url(cluster.servers[0].url) as keys,
        rs.Client(cluster.url) as client,
    ):
        client.add("t", {"k": np.arange(96)})
        for number in range(300):
            keys.set(f"key:{number}", number)
        left = cluster.topology.leaves(1)
        begun = left.beginning(range(6000, 8000), 2)
        for server in cluster.servers:
            with rs.Client(server.url) as own:
                own.command(*begun.arguments(own.info("t")["shard"]))
        with rs.Client(cluster.servers[1].url) as own:
            own.close_table("t", "shard 1 leaves the cluster")
        wait_for(lambda: shards_of(client.add("t", {"k": np.arange(96)})) == {0, 2}, 10)
        forgotten = cluster.forget(1, lose_items=True)
        assert forgotten.items is not None
        assert forgotten.items["t"] >= 32
        assert cluster.topology.moves == ()
        assert [keys.get(f"key:{number}") for number in range(300)] == [b"%d" % number for number in range(300)]


def test_two_that_leave_at_once_lose_no_key() -> None:
    """One of them is refused, perhaps, and then does it again."""
    with rs.Cluster([TABLE], shards=4) as cluster, redis.RedisCluster.from_url(cluster.servers[0].url) as keys:
        for number in range(500):
            keys.set(f"key:{number}", number)

        def leave(number: int) -> None:
            for _ in range(10):
                with contextlib.suppress(rs.ReplayError, redis.RedisError):
                    cluster.forget(number)
                    return

        threads = [threading.Thread(target=leave, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = cluster.topology
        assert [shard.number for shard in after.shards] == [0, 3]
        assert (after.gone, after.leaving, after.moves) == ({1, 2}, frozenset(), ())
        assert [keys.get(f"key:{number}") for number in range(500)] == [b"%d" % number for number in range(500)]


def test_no_slot_moves_to_a_shard_that_leaves() -> None:
    with rs.Cluster([TABLE], shards=2) as cluster:
        leaving = cluster.topology.leaves(1)
        for number, server in enumerate(cluster.servers):
            with rs.Client(server.url) as own:
                own.command(*leaving.arguments(number))
        wait_for(lambda: cluster.topology.leaving)
        with pytest.raises(MoveRefused, match="shard 1 leaves the cluster"):
            cluster.move([5], 1)


def test_what_does_not_move_keeps_its_shard() -> None:
    with rs.Cluster([TABLE], shards=2) as cluster, rs.Client(cluster.url) as client:
        name = next(f"g{number}" for number in range(99) if slot_owner(cluster, f"g{number}") == 1)
        client.push_gradient(name, 0, "one", np.ones(2, np.float32))
        with pytest.raises(MoveRefused, match="gradients have waited"):
            cluster.forget(1)
        assert cluster.topology.leaving == frozenset()
        assert cluster.topology.shard(1).slots


def slot_owner(cluster: rs.Cluster, key: str) -> int:
    from replay_server.cluster_address import slot_of

    return cluster.topology.owners()[slot_of(key)]


# ---- who waits, and who writes ---------------------------------------------------------------------------------------


def test_an_add_that_waits_goes_to_another_shard() -> None:
    with rs.Cluster([QUEUE], shards=2) as cluster, rs.Client(cluster.url) as client:
        own = shards_of(client.add("q", {"k": np.arange(200)})).pop()  # all that its part of the queue holds
        added = list[np.ndarray]()
        waiting = threading.Thread(target=lambda: added.append(client.add("q", {"k": np.arange(3)}, timeout=60.0)))
        waiting.start()
        with rs.Client(cluster.servers[own].url) as shard:
            wait_for(lambda: shard.info("q")["waiting_add"])
        assert cluster.forget(own, lose_items=True).items == {"q": 200}
        waiting.join()
        assert shards_of(added[0]) == {1 - own}


def test_a_client_that_knows_one_shard_alone_goes_on_when_that_leaves() -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client, rs.Client(cluster.url) as learner:
        client.add("t", {"k": np.arange(3)})
        batches = list[rs.Batch]()
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined:
            with rs.Client(cluster.servers[0].url) as own:
                own.reset("t")
            waiting = threading.Thread(target=lambda: batches.append(learner.sample("t", 2, timeout=60.0)))
            waiting.start()
            joined.forget(0)
            assert shards_of(client.add("t", {"k": np.arange(5)})) == {1}
            waiting.join()
            assert shards_of(batches[0].ids) == {1}
            assert joined.topology.shard(1).slots == ((0, 16383),)


def test_writers_go_to_another_shard_in_the_middle_of_an_episode_and_lose_nothing() -> None:
    """Windows look back over the steps before the move."""
    with rs.Cluster([WINDOWS], shards=2) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(rs.Client(cluster.url)) for _ in range(2)]
        writers = [client.writer("w", place=1, flush_steps=4) for client in clients]
        written, ids = [0, 0], [list[np.ndarray]() for _ in writers]

        def write(number: int) -> Callable[[int], None]:
            def call(turn: int) -> None:
                for step in range(turn * 5, turn * 5 + 5):
                    writers[number].append({"frame": number * 10**6 + step, "k": number * 10**6 + step})
                    writers[number].create_item(1.0)
                ids[number].append(writers[number].flush())
                written[number] = turn * 5 + 5
                time.sleep(0.01)

            return call

        with repeated(write(0), write(1)):
            wait_for(lambda: min(written) > 50)
            forgotten = cluster.forget(1, lose_items=True)
            least = min(written)
            wait_for(lambda: min(written) > least + 50)
        for writer in writers:
            writer.close()
        lost = 0
        for number, parts in enumerate(ids):
            own = np.concatenate(parts)
            assert len(own) == written[number]
            assert shards_of(own[-40:]) == {0}
            lost += count_on(own, 1)
            batch = clients[0].get("w", own[own >> SHARD == 0])
            steps = batch.data["k"] - number * 10**6
            assert np.array_equal(steps, np.arange(count_on(own, 1), written[number]))
            seen = number * 10**6 + np.maximum(0, steps[:, None] + np.arange(-2, 1))
            assert np.array_equal(batch.data["obs"], seen)
        assert forgotten.items == {"w": lost}
        assert lost > 0


def test_the_asyncio_client_goes_on() -> None:
    async def run(cluster: rs.Cluster) -> None:
        ids, frames = list[np.ndarray](), 0
        async with rs.aio.Client(cluster.url) as client:
            writer = await client.writer("w", place=1, flush_steps=2)
            leaving = asyncio.create_task(asyncio.to_thread(cluster.forget, 1, lose_items=True))
            while not leaving.done() or frames < 100:
                ids.append(await client.add("t", {"k": np.arange(64)}))
                await client.sample("t", 16, timeout=60.0)
                await writer.append({"frame": frames, "k": frames})
                writer.create_item(1.0)
                frames += 1
                await asyncio.sleep(0.005)
            forgotten = await leaving
            written = await writer.flush()
            await writer.close()
            assert len(written) == frames
            added = np.concatenate(ids)
            assert forgotten.items == {"t": count_on(added, 1), "w": count_on(written, 1)}
            while (size := (await client.info("t"))["size"]) > count_on(added, 0):  # until it has noticed
                await asyncio.sleep(0.05)
            assert size == count_on(added, 0)
            assert shards_of(await client.add("t", {"k": np.arange(64)})) == {0}
            assert await client.update_priorities("t", added, np.ones(len(added))) == (
                count_on(added, 0),
                count_on(added, 1),
            )

    with rs.Cluster([TABLE, WINDOWS], shards=2) as cluster:
        asyncio.run(run(cluster))


# ---- dead ------------------------------------------------------------------------------------------------------------


def test_a_dead_shard_is_forgotten_with_what_it_held(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:
        with another_host(cluster.url, tmp_path) as (supervisor, shard):
            wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(64)})))
            ids = client.add("t", {"k": np.arange(64)})
            cluster.move("0-99", 1)
            with pytest.raises(LeaveRefused, match="shard 1 answers, so it is not dead"):
                cluster.forget(1, dead=True)
            supervisor.kill()
            wait_for(lambda: not Path(f"/proc/{shard}").exists() or b"Z" in state_of(shard))
            with pytest.raises(LeaveRefused, match="shard 1 does not answer"):
                cluster.forget(1, lose_items=True)
            forgotten = cluster.forget(1, dead=True)
            assert forgotten.items is None
            assert forgotten.topology.shard(0).slots == ((0, 16383),)
        assert client.update_priorities("t", ids, np.ones(64)) == (count_on(ids, 0), count_on(ids, 1))
        assert shards_of(client.add("t", {"k": np.arange(64)})) == {0}
        assert shards_of(client.sample("t", 64).ids) == {0}
        assert client.delete("t", ids) == count_on(ids, 0)
        with pytest.raises(rs.ServerError, match="were taken out of the cluster, and their numbers are not given ag"):
            rs.Cluster(shard_of=cluster.url, shards=1, directory=tmp_path)


def state_of(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
    return b"Z"


def test_a_sampler_goes_on_when_a_shard_dies_and_is_forgotten(tmp_path: Path) -> None:
    with (
        rs.Cluster([TABLE], shards=1) as cluster,
        rs.Client(cluster.url, reconnect_timeout=30.0) as client,
        another_host(cluster.url, tmp_path) as (supervisor, _),
    ):
        wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(64)})))
        with client.sampler("t", 16, prefetch=2) as batches:
            wait_for(lambda: 1 in shards_of(next(batches).ids))
            supervisor.kill()
            wait_for(lambda: is_dead(cluster, 1))
            cluster.forget(1, dead=True)
            wait_for(lambda: shards_of(next(batches).ids) == {0})


def is_dead(cluster: rs.Cluster, number: int) -> bool:
    place = cluster.topology.shard(number)
    try:
        with redis.Redis(place.host, place.port, socket_timeout=1.0) as client:
            return not client.ping()
    except redis.RedisError:
        return True


def test_a_host_that_was_cut_off_and_forgotten_ends_when_it_is_back(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:
        with another_host(cluster.url, tmp_path) as (supervisor, shard):
            wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(64)})))
            for process in (supervisor.pid, shard):
                os.kill(process, signal.SIGSTOP)
            try:
                after = cluster.forget(1, dead=True).topology
            finally:
                for process in (shard, supervisor.pid):
                    os.kill(process, signal.SIGCONT)
            assert supervisor.wait(timeout=60) == 0
        assert cluster.topology == after
        assert json.loads((tmp_path / "cluster.json").read_text())["own"] == []
        assert shards_of(client.add("t", {"k": np.arange(64)})) == {0}


def test_a_shard_that_hangs_is_given_up_without_waiting_for_it_again_and_again(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=3, directory=tmp_path) as cluster:
        hangs = cluster.pids[1]
        os.kill(hangs, signal.SIGSTOP)
        began = time.monotonic()
        try:
            assert cluster.forget(1, dead=True).topology.gone == {1}
            assert time.monotonic() - began < 25  # less than one patient question of half a minute
            assert cluster.numbers == [0, 2]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hangs, signal.SIGCONT)
        with rs.Client(cluster.url) as client:
            wait_for(lambda: shards_of(client.add("t", {"k": np.arange(64)})) == {0, 2})


def test_a_client_believes_the_newest_topology_of_all_shards_that_it_hears_of() -> None:
    """One that was cut off still has a topology in which it is a shard."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(rs.Server([TABLE], config={"cluster-enabled": True, "shard": number}))
            for number in range(3)
        ]
        places = [
            ShardPlace(number, f"{number}" * 40, "127.0.0.1", int(server.url.rpartition(":")[2]))
            for number, server in enumerate(servers)
        ]
        owns = [stack.enter_context(rs.Client(server.url)) for server in servers]
        first = Topology(1, (replace(places[0], slots=((0, 16383),)), *places[1:]))
        for number, own in enumerate(owns):
            own.command(*first.arguments(number))
        cluster_url = f"redis+cluster://127.0.0.1:{places[2].port}"
        known = stack.enter_context(rs.Client(cluster_url))
        assert shards_of(known.add("t", {"k": np.arange(96)})) == {0, 1, 2}
        second = first.without([2])
        for number in range(2):
            owns[number].command(*second.arguments(number))
        new = stack.enter_context(rs.Client(cluster_url))
        assert shards_of(new.add("t", {"k": np.arange(96)})) == {0, 1}
        wait_for(lambda: shards_of(known.add("t", {"k": np.arange(96)})) == {0, 1}, 10)
        with pytest.raises(rs.ServerError, match="shard 2 has gone for good"):
            owns[0].command(*replace(second, version=3, gone=frozenset()).arguments(0))
        # Told, it sends everybody to the others.
        owns[2].command(*second.arguments(2))
        with pytest.raises(rs.ServerError, match=f"MOVED .* 127.0.0.1:{places[0].port}"):
            owns[2].command("GET", "x")
        told = dict(line.split(":") for line in owns[2].command("INFO", "cluster").decode().split() if ":" in line)
        assert (told["cluster_shard"], told["cluster_shards"]) == ("2", "2")
        assert len(owns[2].command("CLUSTER", "MYID")) == 40
        assert b"myself" not in owns[2].command("CLUSTER", "NODES")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_a_number_is_not_given_again(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1, directory=tmp_path) as cluster, rs.Client(cluster.url) as client:
        with rs.Cluster(shard_of=cluster.url, shards=1) as joined:
            wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(64)})))
            old = client.add("t", {"k": np.arange(64)})
            cluster.forget(1, lose_items=True)
            wait_for(lambda: joined.numbers == [])
            wait_for(lambda: joined.was_stopped)
        with rs.Cluster(shard_of=cluster.url, shards=1) as again:
            assert again.numbers == [2]
            wait_for(lambda: 2 in shards_of(client.add("t", {"k": np.arange(64)})))
            applied, stale = client.update_priorities("t", old, np.ones(64))
            assert (applied, stale) == (count_on(old, 0), count_on(old, 1))
        topology = cluster.topology
    with rs.Cluster([TABLE], shards=1, directory=tmp_path) as cluster:
        assert cluster.topology.gone == topology.gone == {1}
        full = replace(cluster.topology, version=cluster.topology.version + 1, gone=frozenset({1, 255}))
        with rs.Client(cluster.servers[0].url) as own:
            own.command(*full.arguments(0))
        with pytest.raises(rs.ServerError, match="255 is taken: a number is in ids, and is not given again"):
            rs.Cluster(shard_of=cluster.url, shards=1)


def test_a_shard_that_outlives_the_others_of_its_folder_begins_again_with_its_part(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=2, directory=tmp_path) as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"k": np.arange(64)})
        cluster.forget(0, lose_items=True)
        size = client.info("t")["size"]
        client.checkpoint()
        os.kill(cluster.pids[0], signal.SIGKILL)
        wait_for(lambda: cluster.restarts == 1 and cluster.running)
        wait_for(lambda: client.info("t")["size"] == size)
    with rs.Cluster([TABLE], shards=1, directory=tmp_path, restore="latest") as cluster:
        assert cluster.numbers == [1]
        with rs.Client(cluster.url) as client:
            assert client.info("t")["size"] == size
            assert client.table("t").capacity == TABLE.capacity // 2


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_the_last_shard_stays_and_shards_that_there_are_not_are_named() -> None:
    with rs.Cluster([TABLE], shards=2) as cluster:
        with pytest.raises(ValueError, match="expected the number of a shard, one of 0, 1, got 7"):
            cluster.forget(7)
        with pytest.raises(ValueError, match=r"expected the number or the address of a shard, one of 127\.0\.0\.1:"):
            cluster.forget("10.0.0.1:7000")
        cluster.forget(0)
        for words in ({}, {"lose_items": True}, {"dead": True}):
            with pytest.raises(LeaveRefused, match="shard 1 is the last one"):
                cluster.forget(1, **words)
        with pytest.raises(ValueError, match="got 0, which has gone"):
            cluster.forget(0)


def test_the_command_takes_a_shard_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replay_server", "cluster"]

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words, "--server", url], capture_output=True, text=True, check=False)

    with rs.Cluster([TABLE], shards=1) as cluster, rs.Client(cluster.url) as client:
        url = cluster.url
        with another_host(url, tmp_path) as (supervisor, _):
            wait_for(lambda: 1 in shards_of(client.add("t", {"k": np.arange(64)})))
            refused = asked("forget", "1", "--timeout", "0")
            assert (refused.returncode, "give them up (--lose-items" in refused.stderr) == (1, True)
            assert asked("forget", "9").returncode == 1
            place = cluster.topology.shard(1)
            done = asked("forget", f"{place.host}:{place.port}", "--lose-items")
            assert done.returncode == 0, done.stderr
            assert "without shard 1; " in done.stdout
            assert "items are lost with it" in done.stdout
            assert supervisor.wait(timeout=60) == 0
        status = json.loads(asked("status", "--json").stdout)
        assert (status["gone"], status["leaving"], len(status["shards"])) == ([1], [], 1)
        assert "shards that were taken out: 1" in asked("status").stdout


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_nobody_is_refused_while_a_leave_is_undone() -> None:
    tables = [rs.Table(f"t{number}", 10**5, {"k": rs.Column("int64")}) for number in range(12)]
    with rs.Cluster(tables, shards=2) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(rs.Client(cluster.url)) for _ in range(6)]
        adds = [lambda turn, client=client: client.add(f"t{turn % 12}", {"k": [turn] * 8}) for client in clients]
        with repeated(*adds):
            for _ in range(3):
                time.sleep(0.5)
                with pytest.raises(LeaveRefused, match="and stays"):
                    cluster.forget(1, timeout=0.1)


def test_rate_limiters_are_as_before_where_a_leave_was_killed_and_then_refused() -> None:
    limiter = rs.SampleToInsertRatio(4.0, min_size_to_sample=10, error_buffer=1000.0)
    with (
        rs.Cluster([replace(TABLE, rate_limiter=limiter)], shards=2) as cluster,
        rs.Client(cluster.url) as client,
        rs.Client(cluster.servers[1].url) as shard,
    ):
        for key in range(40):
            client.add("t", {"k": [key]})
        before = shard.table("t").rate_limiter
        command = [sys.executable, "-m", "replay_server", "cluster", "forget", "1", "--server", cluster.url]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as killed:
            wait_for(lambda: shard.info("t")["closed"])
            killed.kill()
        assert shard.table("t").rate_limiter != before
        with pytest.raises(LeaveRefused, match="and stays"):
            cluster.forget(1, timeout=0.1)
        assert shard.table("t").rate_limiter == before
        assert not shard.info("t")["closed"]
        assert cluster.topology.leaving == frozenset()


def test_a_topology_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    in_the_way = tmp_path / f".cluster.json.{os.getpid()}.partial"
    with rs.Cluster([TABLE], shards=3, directory=str(tmp_path)) as cluster:
        in_the_way.mkdir()  # stands for a full disk
        cluster.forget(2, lose_items=True)
        time.sleep(1)
        in_the_way.rmdir()
        wait_for(lambda: json.loads((tmp_path / "cluster.json").read_text())["own"] == [0, 1])
    with rs.Cluster([TABLE], shards=2, directory=str(tmp_path)) as cluster:
        assert (cluster.numbers, cluster.topology.gone) == ([0, 1], {2})


def test_an_add_does_not_spin_while_the_shards_that_stay_are_away() -> None:
    def refused() -> None:
        with pytest.raises(LeaveRefused, match="and stays"):
            cluster.forget(1, timeout=4)

    with (
        rs.Cluster([TABLE], shards=2) as cluster,
        rs.Client(cluster.url, missing="leave_out", reconnect_timeout=0.2) as client,
    ):
        client.add("t", {"k": np.arange(100)})
        leaving = threading.Thread(target=refused)
        leaving.start()
        with rs.Client(cluster.servers[1].url) as shard:
            wait_for(lambda: shard.info("t")["closed"])
            before = shard.redis.info("stats")["total_connections_received"]
            os.kill(cluster.servers[0].pid, signal.SIGKILL)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                with contextlib.suppress(rs.ConnectionLost, rs.TableClosed):
                    client.add("t", {"k": np.arange(100)}, timeout=1)
                time.sleep(0.05)
            assert shard.redis.info("stats")["total_connections_received"] - before < 60
        leaving.join()
