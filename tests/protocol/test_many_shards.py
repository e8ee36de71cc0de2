"""A client of many shards does what a client of one server does."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shards import cluster, servers, url_of

import replay_server as rs
from replay_server import cluster_sample

__all__ = ["cluster", "servers"]  # fixtures
SHARDS = 3

SIGNATURE = {
    "obs": {"k": rs.Column("int64"), "wide": rs.Column("uint8", (512,))},
    "words": rs.Column("int32", (None,)),
}


def batch_of(keys: np.ndarray) -> dict[str, Any]:
    wide = np.repeat(keys.astype(np.uint8)[:, None], 512, 1)
    words = [np.full(key % 5, key, np.int32) for key in keys]
    return {"obs": {"k": np.asarray(keys, np.int64), "wide": wide}, "words": words}


def assert_whole(batch: rs.Batch, ids: np.ndarray) -> None:
    """Every column of every item is that item's."""
    keys = batch.data["obs"]["k"]
    np.testing.assert_array_equal(batch.ids, ids[keys])
    np.testing.assert_array_equal(batch.data["obs"]["wide"], batch_of(keys)["obs"]["wide"])
    for key, words in zip(keys, batch.data["words"], strict=True):
        np.testing.assert_array_equal(words, np.full(key % 5, key))


@pytest.fixture
def filled(cluster) -> tuple[rs.Client, np.ndarray, np.ndarray]:
    """600 items over three shards: the client, their ids and their priorities."""
    cluster.create_table(rs.Table("t", 3000, SIGNATURE, sampler=rs.Prioritized(priority_exponent=0.5), seed=3))
    keys = np.arange(600)
    priorities = 1.0 + keys % 7
    return cluster, cluster.add("t", batch_of(keys), priorities), priorities


# ---- items -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_split_over_the_shards_and_its_ids_come_in_order(filled):
    client, ids, _ = filled
    numbers, counts = np.unique(ids >> np.uint64(56), return_counts=True)
    assert numbers.tolist() == [0, 1, 2]
    assert counts.tolist() == [200, 200, 200]
    batch = client.get("t", ids[[5, 599, 7, 300]])
    assert batch.data["obs"]["k"].tolist() == [5, 599, 7, 300]
    assert_whole(batch, ids)


def test_small_batches_go_to_one_shard_each_in_turn(cluster):
    cluster.create_table(rs.Table("t", 3000, SIGNATURE))
    for _ in range(6):
        assert len(np.unique(cluster.add("t", batch_of(np.arange(10))) >> np.uint64(56))) == 1
    assert {info["size"] for info in cluster.info("t")["shards"].values()} == {20}


def test_single_items_take_turns_on_two_shards(servers):
    with rs.Client(url_of(*servers[:2])) as client:
        client.create_table(rs.Table("turns", 100, {"k": rs.Column("int64")}))
        for key in range(10):
            client.add("turns", {"k": np.array([key])})
        assert {info["size"] for info in client.info("turns")["shards"].values()} == {5}
        client.drop_table("turns")


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("off", [1.0, 0.2, 5.0])
def test_every_item_of_a_sample_comes_whole_however_wrong_the_known_sums_are(filled, replace, off):
    client, ids, priorities = filled
    powers = np.sqrt(priorities)
    for size in (1, 7, 64, 256):
        client.sample("t", size, replace=replace)
        client._sums["t"] = {number: off * total for number, total in client._sums["t"].items()}
        batch = client.sample("t", size, beta=0.6, replace=replace)
        assert_whole(batch, ids)
        assert replace or len(set(batch.ids)) == size
        expected = powers[batch.data["obs"]["k"]] / powers.sum()
        np.testing.assert_allclose(batch.probabilities, expected)
        weights = (len(ids) * expected) ** -0.6
        np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)
        assert batch.missing == ()


def test_a_sample_of_all_items_fetches_heavy_ones_a_few_times_at_most(cluster):
    cluster.create_table(rs.Table("t", 1000, {"k": rs.Column("int64")}, sampler=rs.Prioritized(priority_exponent=1.0)))
    ids = cluster.add("t", {"k": np.arange(200)}, priorities=np.where(np.arange(200) % 20, 1.0, 1e-9))
    for batches in range(1, 6):
        batch = cluster.sample("t", 200, replace=False)
        assert set(batch.ids) == set(ids)
        assert cluster.info("t")["sampled"] <= batches * 3 * 200  # a question each


def test_a_sample_of_all_items_begins_anew_where_some_have_left(cluster, monkeypatch):
    cluster.create_table(rs.Table("t", 1000, {"k": rs.Column("int64")}, sampler=rs.Prioritized(priority_exponent=1.0)))
    ids = cluster.add("t", {"k": np.arange(200)}, priorities=np.where(np.arange(200) % 20, 1.0, 1e-9))
    look, rounds, new = cluster_sample._Draw._look, list[int](), list[np.ndarray]()

    def look_while_others_change_it(draw):
        rounds.append(draw.rounds)
        with rs.Client(cluster.url) as other:
            if rounds == [0, 2, 3]:
                new.append(other.add("t", {"k": np.arange(500, 700)}))
            yield from look(draw)
            if rounds == [0, 2]:  # before its last question
                other.delete("t", ids)
                new.append(other.add("t", {"k": np.arange(300, 303)}))

    monkeypatch.setattr(cluster_sample._Draw, "_look", look_while_others_change_it)
    batch = cluster.sample("t", 200, replace=False, timeout=60)
    assert rounds[:3] == [0, 2, 3]
    assert set(batch.ids) <= set(np.concatenate(new))
    assert len(set(batch.ids)) == 200


def test_a_sample_whose_items_leave_all_the_time_ends_at_its_timeout(filled, monkeypatch):
    def all_have_left(_):
        raise cluster_sample._Unknown

    monkeypatch.setattr(cluster_sample._Draw, "_questions", all_have_left)
    with pytest.raises(rs.Timeout, match="items leave while they are drawn"):
        filled[0].sample("t", 8, timeout=0.2)


def test_a_sample_fills_the_arrays_that_it_is_given(filled):
    client, ids, _ = filled
    out = client.sample("t", 64)
    wide = out.data["obs"]["wide"]
    for _ in range(5):
        assert client.sample("t", 64, out=out) is out
        assert out.data["obs"]["wide"] is wide
        assert_whole(out, ids)
    narrow = client.sample("t", 64, columns=["obs/k"])
    assert narrow.data["obs"].keys() == {"k"}
    with pytest.raises(rs.SchemaError):
        client.sample("t", 65, out=out)


def test_updates_and_deletions_go_home_and_their_counts_add_up(filled):
    client, ids, priorities = filled
    foreign = ids[:2] | np.uint64(200 << 56)
    assert client.update_priorities("t", np.concatenate([ids, foreign]), np.full(602, 2.0)) == (600, 2)
    assert client.info("t")["total_priority"] == pytest.approx(600 * 2**0.5)
    assert client.delete("t", ids[:100]) == 100
    assert client.delete("t", np.concatenate([ids[:101], foreign])) == 1
    assert client.update_priorities("t", ids, priorities) == (499, 101)
    with pytest.raises(rs.ServerError, match="is not in table"):
        client.get("t", ids[:1])
    with pytest.raises(rs.ServerError, match="no shard of"):
        client.get("t", np.array([foreign[0] + np.uint64(5)]))
    info = client.info("t")
    assert (info["size"], info["added"], info["removed"], info["capacity"]) == (499, 600, 101, 3000)
    assert sum(shard["size"] for shard in info["shards"].values()) == 499
    with client.updater("t") as updater:
        updater.update_priorities(ids, priorities)
    assert (updater.applied, updater.stale) == (499, 101)


def test_more_is_sampled_than_is_used_and_info_says_so(filled):
    client, _, _ = filled
    for _ in range(20):
        client.sample("t", 256)
    assert 20 * 256 <= client.info("t")["sampled"] < 1.3 * 20 * 256


def test_what_other_shards_stored_of_a_refused_batch_is_taken_back(cluster):
    cluster.create_table(rs.Table("t", 300, {"k": rs.Column("int64")}, rate_limiter=rs.Queue(300)))
    cluster.add("t", {"k": np.arange(270)})
    with pytest.raises(rs.Timeout):
        cluster.add("t", {"k": np.arange(99)}, timeout=0)
    assert cluster.info("t")["size"] == 270


def test_a_shard_that_is_full_leaves_an_add_to_others(cluster, servers):
    cluster.create_table(rs.Table("t", 300, {"k": rs.Column("int64")}, rate_limiter=rs.Queue(300)))
    with rs.Client(servers[1].url) as one:
        one.add("t", {"k": np.arange(100)})
    for _ in range(20):
        cluster.add("t", {"k": np.arange(10)}, timeout=0)
    assert cluster.info("t")["size"] == 300


# ---- tables with an order --------------------------------------------------------------------------------------------


def test_a_queue_gives_each_item_once_and_each_producers_in_order(cluster, servers):
    cluster.create_table(rs.Table.queue("q", {"producer": rs.Column("int64"), "k": rs.Column("int64")}, 900))
    with rs.Client(cluster.url) as one, rs.Client(cluster.url) as two:
        producers = [cluster, one, two]
        for turn in range(12):
            for number, producer in enumerate(producers):
                keys = np.arange(4 * turn, 4 * turn + 4)
                producer.add("q", {"producer": np.full(4, number), "k": keys}, timeout=5)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(8):
            batch = cluster.sample("q", 18, timeout=5)
            assert (batch.probabilities == 1).all()
            for producer, k in zip(batch.data["producer"], batch.data["k"], strict=True):
                seen[producer].append(k)
    assert seen == {number: list(range(48)) for number in range(3)}
    with pytest.raises(rs.Timeout, match="too few items: 1 are wanted, the table holds 0 on 3 shards"):
        cluster.sample("q", 1, timeout=0.01)


def test_two_consumers_of_a_queue_lose_nothing(cluster):
    cluster.create_table(rs.Table.queue("q", {"k": rs.Column("int64")}, 3000))
    got: list[int] = []

    def consume(client: rs.Client) -> None:
        for _ in range(30):
            got.extend(client.sample("q", 10).data["k"].tolist())

    with rs.Client(cluster.url) as other:
        threads = [threading.Thread(target=consume, args=(client,)) for client in (cluster, other)]
        for thread in threads:
            thread.start()
        for turn in range(60):
            (cluster, other)[turn % 2].add("q", {"k": np.arange(10 * turn, 10 * turn + 10)})
        for thread in threads:
            thread.join(60)
    assert sorted(got) == list(range(600))


@pytest.mark.parametrize("sampler", [rs.Lifo(), rs.MaxHeap(), rs.MinHeap(), rs.Fifo()])
def test_samplers_with_an_order_give_the_first_of_each_shard(cluster, sampler):
    cluster.create_table(rs.Table("o", 300, SIGNATURE, sampler=sampler))
    ids = cluster.add("o", batch_of(np.arange(60)), priorities=np.arange(60.0))
    batch = cluster.sample("o", 20)
    assert_whole(batch, ids)
    first = range(20) if isinstance(sampler, rs.Fifo | rs.MinHeap) else range(59, 39, -1)
    assert batch.data["obs"]["k"].tolist() == list(first)
    assert cluster.sample("o", 20, out=batch) is batch


def test_draws_that_would_use_items_up_are_refused(cluster):
    columns = {"k": rs.Column("int64")}
    with pytest.raises(rs.SchemaError, match=r"on several shards, expected max_times_sampled 0 .* got 2"):
        cluster.create_table(rs.Table("u", 300, columns, max_times_sampled=2))
    assert cluster.tables() == []
    cluster.create_table(rs.Table("u", 300, columns, sampler=rs.Uniform()))
    cluster.create_table(rs.Table("o", 300, columns, sampler=rs.Fifo(), max_times_sampled=2))
    for name, change in (("u", {"max_times_sampled": 2}), ("o", {"sampler": rs.Uniform()})):
        before = cluster.table(name)
        with pytest.raises(rs.SchemaError, match="expected max_times_sampled 0"):
            cluster.configure(name, **change)
        assert cluster.table(name) == before
    cluster.configure("o", sampler=rs.Uniform(), max_times_sampled=0)


def test_a_shard_does_not_join_where_draws_would_use_items_up():
    table = rs.Table("u", 300, {"k": rs.Column("int64")}, max_times_sampled=2)
    with rs.Cluster([table], shards=1) as alone:
        with pytest.raises(rs.SchemaError, match="expected max_times_sampled 0"):
            rs.Cluster(shards=1, shard_of=alone.url)
        assert [shard.number for shard in alone.topology.shards] == [0]
        with rs.Client(alone.url) as client:
            client.add("u", {"k": np.arange(9)})
            assert len(client.sample("u", 4)) == 4


def test_a_share_of_a_ratio_that_would_stand_still_is_refused_in_the_numbers_of_the_whole(cluster):
    limiter = rs.SampleToInsertRatio(samples_per_insert=4, min_size_to_sample=10, error_buffer=8)
    table = rs.Table("t", 300, {"k": rs.Column("int64")}, rate_limiter=limiter)
    said = r"on 3 shards, expected error_buffer .* so 12, got 8 with samples_per_insert 4"
    with pytest.raises(rs.SchemaError, match=said):
        cluster.create_table(table)
    assert cluster.tables() == []
    cluster.create_table(replace(table, rate_limiter=replace(limiter, error_buffer=12)))
    with pytest.raises(rs.SchemaError, match=said):
        cluster.configure("t", rate_limiter=limiter)
    assert cluster.table("t").rate_limiter.error_buffer == 12
    with pytest.raises(rs.SchemaError, match="on 3 shards, expected error_buffer"):
        rs.Cluster([table], shards=3)


# ---- tables, streams, keys -------------------------------------------------------------------------------------------


def test_a_table_is_shared_out_and_known_as_the_whole(cluster, servers):
    limiter = rs.SampleToInsertRatio(samples_per_insert=4, min_size_to_sample=300, error_buffer=1200)
    table = rs.Table("t", 30_000, {"k": rs.Column("int64")}, rate_limiter=limiter, max_bytes=3 << 20, seed=11)
    cluster.create_table(table)
    cluster.create_table(table)
    assert cluster.table("t") == table
    assert cluster["t"].table == table
    seeds = set()
    for server in servers:
        with rs.Client(server.url) as one:
            part = one.table("t")
            assert part.rate_limiter == rs.SampleToInsertRatio(4, 100, 400)
            assert (part.capacity, part.max_bytes) == (10_000, 1 << 20)
            seeds.add(part.seed)
    assert len(seeds) == 3
    cluster.configure("t", rate_limiter=rs.MinSize(30), sampler=rs.Uniform())
    assert cluster.table("t").rate_limiter == rs.MinSize(30)
    cluster.add("t", {"k": np.arange(99)})
    cluster.reset("t")
    assert cluster.info("t")["size"] == 0
    assert cluster.tables() == ["t"]
    cluster.drop_table("t")
    with pytest.raises(rs.TableNotFound):
        cluster.info("t")


def test_a_table_made_anew_is_noticed(cluster):
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}))
    cluster.add("t", {"k": np.arange(100)})
    cluster.sample("t", 8)
    cluster.drop_table("t")
    cluster.create_table(rs.Table("t", 3000, {"other": rs.Column("float32")}))
    cluster.add("t", {"other": np.arange(100, dtype=np.float32)})
    assert cluster.sample("t", 8).data.keys() == {"other"}


@pytest.mark.parametrize("coded", [False, True])
def test_streams_stay_on_one_shard_and_their_windows_are_sampled(cluster, coded):
    signature = {"frame": rs.Column("uint8", (64,), step_only=True), "obs": rs.Window("frame", length=3, offset=0)}
    cluster.create_table(rs.Table("w", 3000, signature, sampler=rs.Uniform()))
    with contextlib.ExitStack() as stack:
        for number in range(6):
            writer = stack.enter_context(cluster.writer("w"))
            for step in range(20):
                writer.append({"frame": np.full(64, 40 * number + step, np.uint8)})
                writer.create_item(1.0)
            writer.flush()
        assert {info["streams"] for info in cluster.info("w")["shards"].values()} == {2}
    assert {info["size"] for info in cluster.info("w")["shards"].values()} == {40}
    for _ in range(10):
        obs = cluster.sample("w", 64, coded=coded).data["obs"]
        newest = obs[:, 2, 0].astype(int)
        first = newest // 40 * 40
        for back in range(3):
            expected = np.maximum(newest - back, first).astype(np.uint8)
            np.testing.assert_array_equal(obs[:, 2 - back], np.repeat(expected[:, None], 64, 1))


def test_weights_and_gradients_have_one_home(cluster, servers):
    for key in ("policy", "critic", "{policy}:target"):
        assert cluster.publish_weights(key, {"w": np.arange(3.0)}) == 1
        version, arrays = cluster.fetch_weights(key)
        assert version == 1
        np.testing.assert_array_equal(arrays["w"], np.arange(3.0))
    homes = []
    for server in servers:
        with rs.Client(server.url) as one:
            homes.append({key for key in ("policy", "critic", "{policy}:target") if one.fetch_weights(key)})
    assert sorted(key for home in homes for key in home) == ["critic", "policy", "{policy}:target"]
    assert any({"policy", "{policy}:target"} <= home for home in homes)
    cluster.push_gradient("policy", 1, "g", np.ones(3, np.float32))
    assert cluster.gradient_keys() == ["policy"]
    assert cluster.take_gradients("policy", 1).names == ["g"]
    cluster.delete_gradients("policy")


def test_gradients_of_several_homes_are_removed_together():
    keys = [f"g{number}" for number in range(8)]

    async def removed(url: str) -> int:
        async with rs.aio.Client(url) as client:
            return await client.delete_gradients(*keys, "none")

    with rs.Cluster(shards=2) as started, rs.Client(started.url) as client:
        for remove in (lambda: client.delete_gradients(*keys, "none"), lambda: asyncio.run(removed(started.url))):
            for key in keys:
                client.push_gradient(key, 1, "g", np.ones(3, np.float32))
            assert remove() == len(keys)
            assert client.gradient_keys() == []


def test_the_redis_client_begins_with_any_server_of_the_url():
    async def value(url: str) -> bytes:
        async with rs.aio.Client(url) as client:
            return await client.redis.get("key")

    with rs.Cluster(shards=2, password="secret") as started, rs.Client(started.url) as client:
        client.redis.set("key", "value")
        places = started.url.rpartition("@")[2]
        with socket.create_server(("127.0.0.1", 0)) as silent:
            closed = silent.getsockname()[1]
        assert asyncio.run(value(f"redis+cluster://:secret@127.0.0.1:{closed},{places}")) == b"value"


def test_checkpoints_are_taken_and_restored_on_every_shard(tmp_path):
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / str(number) for number in range(2)]
        for folder in folders:
            folder.mkdir()
        servers = [
            stack.enter_context(rs.Server(config={"shard": number}, directory=folder))
            for number, folder in enumerate(folders)
        ]
        client = stack.enter_context(rs.Client(url_of(*servers)))
        client.create_table(rs.Table("t", 100, {"k": rs.Column("int64")}))
        ids = client.add("t", {"k": np.arange(80)})
        assert len(client.checkpoint("kept").splitlines()) == 2
        client.reset("t")
        client.restore("kept")
        assert client.get("t", ids).data["k"].tolist() == list(range(80))


# ---- clients ---------------------------------------------------------------------------------------------------------


def test_samplers_and_handles_and_pickled_clients_work_as_of_one_server(filled):
    client, ids, _ = filled
    with client["t"].sampler(64, prefetch=3, workers=2) as batches:
        for _, batch in zip(range(12), batches, strict=False):
            assert_whole(batch, ids)
            assert not batch.data["obs"]["wide"].flags.writeable
    assert len(client["t"]) == 600
    with pickle.loads(pickle.dumps(client)) as other:  # noqa: S301
        assert other.url == client.url
        assert_whole(other["t"].sample(32), ids)
    assert isinstance(client, rs.Client)


def test_the_asyncio_client_does_the_same(filled):
    client, ids, priorities = filled

    async def use() -> None:
        async with rs.aio.Client(client.url) as twin:
            batch = await twin.sample("t", 64)
            assert_whole(batch, ids)
            assert await twin["t"].update_priorities(ids, priorities) == (600, 0)
            assert (await twin.get("t", ids[:3])).data["obs"]["k"].tolist() == [0, 1, 2]
            more = await twin.add("t", batch_of(np.arange(600, 700)))
            assert await twin.delete("t", more) == 100
            async with twin.sampler("t", 32, in_flight=2) as batches:
                async for ahead in batches:
                    assert_whole(ahead, ids)
                    break
            assert (await twin.info("t"))["size"] == 600

    rs.aio.run(use())


def test_a_client_may_be_made_by_name_and_by_subclasses_with_arguments_of_their_own(filled, servers):
    class Named(rs.Client):
        def __init__(self, url: str, name: str) -> None:
            super().__init__(url)
            self.name = name

    client, ids, _ = filled
    with rs.Client(url=client.url) as again:
        assert_whole(again.sample("t", 8), ids)
    one = Named(servers[0].url, "one")
    with one:
        assert (one.name, one.tables()) == ("one", ["t"])


def test_two_servers_of_one_number_are_refused(servers):
    with (
        rs.Server(config={"shard": 1}) as twin,
        rs.Client(url_of(*servers, twin)) as client,
        pytest.raises(rs.ReplayError, match="are both shard 1"),
    ):
        client.tables()


def push_topology(servers: list[rs.Server], version: int, slots: list[str]) -> None:
    words: list[Any] = []
    for number, (server, own) in enumerate(zip(servers, slots, strict=True)):
        words += ["SHARD", number, str(number) * 40, "127.0.0.1", server.url.rpartition(":")[2], "", own]
    for number, server in enumerate(servers):
        with rs.Client(server.url) as one:
            one.command("CLUSTER", "SETTOPOLOGY", version, number, *words)


def test_shards_are_found_by_one_of_them_where_they_have_a_topology():
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(rs.Server(config={"cluster-enabled": True, "shard": number})) for number in range(2)
        ]
        push_topology(servers, 1, ["0-9999", "10000-16383"])
        client = stack.enter_context(rs.Client(url_of(servers[1])))
        client.create_table(rs.Table("t", 1000, SIGNATURE, sampler=rs.Uniform()))
        ids = client.add("t", batch_of(np.arange(200)))
        assert_whole(client.sample("t", 64), ids)
        keys = [f"policy{number}" for number in range(8)]
        for key in keys:
            assert client.publish_weights(key, {"w": np.ones(2)}) == 1
        assert client.redis.set("a", 1)
        push_topology(servers, 2, ["0-99", "100-16383"])
        for key in keys:  # their home has moved
            client.publish_weights(key, {"w": np.ones(2)})
            assert client.fetch_weights(key) is not None


def test_a_shard_that_was_started_again_is_waited_for_until_it_is_told_its_slots():
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(rs.Server(config={"cluster-enabled": True}))
        push_topology([server], 1, ["0-16383"])
        client = stack.enter_context(rs.Client(url_of(server), reconnect_timeout=30.0))
        hasty = stack.enter_context(rs.Client(url_of(server), reconnect_timeout=0.1))
        for each in (client, hasty):
            each.publish_weights("policy", {"w": np.ones(2)})
        port = int(server.url.rpartition(":")[2])
        server.stop()
        server = stack.enter_context(rs.Server(port=port, config={"cluster-enabled": True}))
        with pytest.raises(rs.ConnectionLost, match="was not told its slots"):
            hasty.fetch_weights("policy")
        telling = threading.Timer(0.3, push_topology, ([server], 1, ["0-16383"]))
        telling.start()
        assert client.publish_weights("policy", {"w": np.ones(2)}) == 1
        telling.join()


def test_a_server_whose_ids_are_of_another_shard_than_its_topology_says_is_refused():
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(rs.Server(config={"cluster-enabled": True})) for _ in range(2)]
        push_topology(servers, 1, ["0-9999", "10000-16383"])
        client = stack.enter_context(rs.Client(url_of(*servers)))
        with pytest.raises(rs.ReplayError, match="as shard 1, and its ids are of shard 0"):
            client.tables()


@pytest.mark.parametrize(
    "url", ["redis+cluster://", "redis+cluster://:secret@", "redis+cluster://host:port", "redis+cluster://a:1,"]
)
def test_a_url_without_a_server_is_refused(url):
    with pytest.raises(ValueError):
        rs.Client(url)


def test_a_password_in_the_url_is_not_shown():
    client = rs.Client("redis+cluster://:secret@a:1,b:2")
    assert str(client._address) == "redis+cluster://a:1,b:2"
    assert "secret" not in repr(client)
    assert b"secret" not in pickle.dumps(client)


def test_a_cluster_of_one_shard_gives_what_its_server_gives():
    table = rs.Table("t", 1000, {"k": rs.Column("int64")}, seed=5)
    batches = []
    for make_url in (lambda server: server.url, url_of):
        with rs.Server() as server, rs.Client(make_url(server)) as client:
            client.create_table(table)
            ids = client.add("t", {"k": np.arange(500)}, priorities=np.arange(500.0))
            drawn = []
            for replace in (True, False, True):
                batch = client.sample("t", 64, beta=0.7, replace=replace)
                client.update_priorities("t", batch.ids, 1.0 + batch.data["k"] % 3)
                drawn += [batch.ids, batch.probabilities, batch.weights, batch.data["k"]]
            batches.append([ids, *drawn])
    for one, other in zip(*batches, strict=True):
        np.testing.assert_array_equal(one, other)
