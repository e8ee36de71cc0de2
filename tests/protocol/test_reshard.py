"""A checkpoint of some shards, restored onto another number: what stays, what changes, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster
from shards import wait_for

import replay_server as rs

OLD = 3
X = rs.Column("int64")
PLAIN = rs.Table("plain", 300, {"x": X, "wide": rs.Column("float32", (40,))}, storage="disk")
RAGGED = rs.Table("ragged", 300, {"x": X, "words": rs.Column("int32", (None,), max_length=50)})
QUEUE = rs.Table.queue("queue", {"x": X}, 60)
RATIO = rs.Table("ratio", 300, {"x": X}, rs.Uniform(), rate_limiter=rs.SampleToInsertRatio(2, 30, 60))
EMPTY = rs.Table("empty", 30, {"x": X})
FRAMES = rs.Table(
    "frames",
    300,
    {
        "frame": rs.Column("uint8", (16, 16), step_only=True),
        "x": X,
        "obs": rs.Window("frame", length=3),
        "next_obs": rs.Window("frame", length=3, offset=1),
    },
    compression="lz4",
)
SPANS = rs.Table("spans", 300, {"x": X, "span": rs.Window("x", max_length=6), "last": rs.Window("x")})
TABLES = [PLAIN, RAGGED, QUEUE, RATIO, EMPTY, FRAMES, SPANS]
LIBRARY = "#!lua name=mine\nredis.register_function('twice', function(_, a) return 2 * a[1] end)"


def fill_shard(number: int, client: rs.Client) -> dict[str, np.ndarray]:
    """Puts something of everything on one shard; ids by table."""
    x = np.arange(20 * (number + 1)) + 1000 * number
    wide = np.repeat(x[:, None], 40, 1).astype(np.float32)
    ids = {"plain": client.add("plain", {"x": x, "wide": wide}, 1.0 + x % 17)}
    client.sample("plain", 30)
    client.delete("plain", ids["plain"][::7])
    ids["ragged"] = client.add("ragged", {"x": x, "words": [np.full(each % 9, each, np.int32) for each in x]})
    ids["queue"] = client.add("queue", {"x": x[:10]})
    ids["ratio"] = client.add("ratio", {"x": x[:20]})
    client.sample("ratio", 2 + number)
    with client.vector_writer("frames", 2) as writer:
        for step in range(25):
            x = 1000 * number + 100 * np.arange(2) + step
            writer.append({"frame": np.broadcast_to((x % 251).astype(np.uint8)[:, None, None], (2, 16, 16)), "x": x})
            writer.create_items(1.0 + x % 5)
            if step % 10 == 9:
                writer.end_episode()
        writer.end_episode()
        ids["frames"] = writer.flush()
    with client.writer("spans") as one:
        for step in range(30):
            one.append({"x": 1000 * number + step})
            one.create_item(columns={"span": slice(max(0, step - step % 7), step)})
        ids["spans"] = one.flush()
    return ids


def fill(cluster: rs.Cluster) -> dict[str, np.ndarray]:
    """Puts something of everything there; ids by table."""
    of_shards = []
    for number, server in enumerate(cluster.servers):
        with rs.Client(server.url) as client:
            of_shards.append(fill_shard(number, client))
    with RedisCluster.from_url("redis://" + cluster.url.removeprefix("redis+cluster://").split(",")[0]) as client:
        for number in range(200):
            client.set(f"key:{number}", number, ex=1000 if number % 2 else None)
        client.set("long", "x" * 100_000)
        client.rpush("list", *range(20_000))
        client.hset("hash", mapping={f"field:{number}": number for number in range(5000)})
        client.sadd("set", *map(str, range(3000)))
        client.zadd("zset", {str(number): number for number in range(3000)})
        for number in range(300):
            client.xadd("stream", {"n": number}, id=f"{number + 1}-0")
    with redis.Redis.from_url(cluster.servers[1].url) as client:
        client.execute_command("FUNCTION", "LOAD", LIBRARY)
    with rs.Client(cluster.url) as client:
        for number in range(20):
            client.publish_weights(f"policy:{number}", {"w": np.full(9, number, np.float32)}, version=number + 1)
        for number in range(3):
            client.push_gradient("grads", number, f"g{number}", np.full(4, number, np.float32))
    return {name: np.concatenate([each[name] for each in of_shards]) for name in of_shards[0]}


def contents(cluster: rs.Cluster, name: str) -> tuple[dict[int, Any], list[list[int]]]:
    """Each item by its x: priority, times sampled and columns; and the x of each shard's items, oldest first."""
    items, orders = {}, []
    for server in cluster.servers:
        with rs.Client(server.url) as client:
            if (size := client.info(name)["size"]) == 0:
                orders.append([])
                continue
            if name == "ratio":
                client.configure(name, rate_limiter=rs.MinSize(1))
            batch = client.sample(name, size, replace=name == "queue", details=True)
            xs = batch.data["x"].tolist()
            for row, x in enumerate(xs):
                columns = {key: np.asarray(column[row]).tolist() for key, column in batch.data.items()}
                assert x not in items
                items[x] = (batch.priorities[row], batch.times_sampled[row], columns)
            orders.append([xs[row] for row in np.argsort(batch.ages)[::-1]])
    return items, orders


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[rs.Cluster, Path, dict[str, np.ndarray]]]:
    with rs.Cluster(TABLES, shards=OLD, directory=tmp_path_factory.mktemp("old")) as cluster:
        ids = fill(cluster)
        manifest = cluster.checkpoint()
        told: Any = cluster
        with rs.Client(cluster.url) as client:
            told.infos = {table.name: client.info(table.name) for table in TABLES}
        told.items = {table.name: contents(cluster, table.name) for table in TABLES}
        yield cluster, manifest, ids


@pytest.fixture(scope="module", params=[1, 2, 5])
def restored(
    request: pytest.FixtureRequest, checkpoint: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("new")
    with rs.Cluster(TABLES, shards=request.param, directory=folder, restore=checkpoint[1]) as cluster:
        made: Any = cluster
        with rs.Client(cluster.url) as client:
            made.infos = {table.name: client.info(table.name) for table in TABLES}
        yield cluster


def test_old_ids_are_stale_and_never_another_item(checkpoint, restored) -> None:
    with rs.Client(restored.url) as client:
        for name, ids in checkpoint[2].items():
            assert client.update_priorities(name, ids, np.full(len(ids), 7.0)) == (0, len(ids))
            with pytest.raises(rs.ServerError, match="is not in table"):
                client.get(name, ids[:1])
        new = client.add("empty", {"x": np.arange(5)})
        assert not np.isin(np.concatenate(list(checkpoint[2].values())), new).any()
        assert (
            new >> np.uint64(32) & np.uint64(0xFFFFFF)
        ).min() > 2 * 16384  # a jump for the move, one for the restore
        client.delete("empty", new)


def test_counters_add_up_to_what_they_were(checkpoint, restored) -> None:
    keys = "size", "added", "sampled", "removed", "updates_applied", "max_priority", "policy_version"
    for table in TABLES:
        for key in keys:
            assert restored.infos[table.name][key] == checkpoint[0].infos[table.name][key], (table.name, key)


def test_items_are_as_many_on_each_shard(restored) -> None:
    for name in ("plain", "ragged", "ratio", "frames", "spans"):
        sizes = [info["size"] for info in restored.infos[name]["shards"].values()] if len(restored.servers) > 1 else []
        assert not sizes or max(sizes) - min(sizes) <= (1 if name in ("plain", "ragged", "ratio") else len(sizes))


def test_steps_are_stored_once_but_for_a_cut_a_shard(checkpoint, restored) -> None:
    before, after = checkpoint[0].infos["frames"]["steps"], restored.infos["frames"]["steps"]
    assert before <= after <= before + 4 * (len(restored.servers) - 1)


def test_a_ratio_of_samples_to_inserts_goes_on_where_it_was(checkpoint, restored) -> None:
    """60 were added and 9 were drawn: the lead is 111, at least 0, and so many may be drawn."""
    drawn = 0
    for server in restored.servers:
        with rs.Client(server.url) as client, contextlib.suppress(rs.Timeout):
            for _ in range(1000):
                drawn += len(client.sample("ratio", 1, timeout=0))
    assert abs(drawn - 111) <= 2 * len(restored.servers)


def test_items_keep_data_priorities_counts_and_order(checkpoint, restored) -> None:
    for table in TABLES:
        items, orders = contents(restored, table.name)
        items_before, orders_before = checkpoint[0].items[table.name]
        if table.name == "ratio":  # drawn from since
            assert set(items) == set(items_before)
        else:
            assert items == items_before, table.name
        shard_of = {x: shard for shard, order in enumerate(orders_before) for x in order}
        for order in orders:
            for shard, before in enumerate(orders_before):
                own = set(order)
                assert [x for x in order if shard_of[x] == shard] == [x for x in before if x in own], table.name
    assert sum(len(order) > 0 for order in contents(restored, "queue")[1]) == 0  # each came once


def test_keys_weights_gradients_and_functions_are_where_clients_look(restored) -> None:
    with RedisCluster.from_url("redis://" + restored.url.removeprefix("redis+cluster://").split(",")[0]) as client:
        assert [int(client.get(f"key:{number}")) for number in range(200)] == list(range(200))
        assert {client.ttl(f"key:{number}") > 0 for number in range(1, 200, 2)} == {True}
        assert {client.ttl(f"key:{number}") for number in range(0, 200, 2)} == {-1}
        assert client.get("long") == b"x" * 100_000
        assert client.lrange("list", 0, -1) == [b"%d" % number for number in range(20_000)]
        assert client.hgetall("hash") == {b"field:%d" % number: b"%d" % number for number in range(5000)}
        assert client.scard("set") == 3000
        assert client.zrange("zset", 0, -1, withscores=True)[-1] == (b"2999", 2999.0)
        assert client.xlen("stream") == 300
    sizes = []
    for server in restored.servers:
        with redis.Redis.from_url(server.url) as shard:
            sizes.append(shard.dbsize())
            assert shard.execute_command("FCALL", "twice", 0, 21) == 42
    assert sum(sizes) == 206
    with rs.Client(restored.url) as client:
        for number in range(20):
            version, weights = client.fetch_weights(f"policy:{number}")
            assert (version, weights["w"].tolist()) == (number + 1, [number] * 9)
        assert client.take_gradients("grads", 3).names == ["g0", "g1", "g2"]


def test_streams_go_on_with_steps_sent_again(restored) -> None:
    with rs.Client(restored.url) as client, client.writer("frames") as writer:
        for step in range(5):
            writer.append({"frame": np.full((16, 16), step, np.uint8), "x": 5000 + step})
            writer.create_item(3.0)
        writer.end_episode()
        ids = writer.flush()
        assert client.get("frames", ids).data["obs"][-1, :, 0, 0].tolist() == [2, 3, 4]
        client.delete("frames", ids)


def test_numbers_of_shards_stay_and_new_ones_follow(restored) -> None:
    assert [shard.number for shard in restored.topology.shards] == list(range(len(restored.servers)))
    slots = [last - first + 1 for shard in restored.topology.shards for first, last in shard.slots]
    assert sum(slots) == 16384
    assert max(slots) - min(slots) <= 1


@pytest.mark.parametrize("log", [False, True], ids=["snapshots", "append-only file"])
def test_a_shard_that_dies_after_it_comes_back_with_its_items(checkpoint, tmp_path: Path, log: bool) -> None:
    settings: Any = {"directory": tmp_path, "config": {"appendonly": log}}
    with rs.Cluster(TABLES, shards=2, restore=checkpoint[1], **settings) as cluster, rs.Client(cluster.url) as client:
        size = client.info("plain")["size"]
        os.kill(cluster.pids[0], signal.SIGKILL)
        assert len(client.sample("plain", size, replace=False, timeout=60)) == size
    with rs.Cluster(TABLES, shards=2, restore="latest", **settings) as cluster, rs.Client(cluster.url) as client:
        assert client.info("plain")["size"] == size


def test_again_and_again_no_id_is_given_twice(tmp_path: Path) -> None:
    """Also of numbers that went and came back, while the table was empty, and after items left."""
    table = rs.Table("t", 60, {"x": X})
    given, manifest = [], None
    for turn, shards in enumerate((3, 1, 4, 2, 4)):
        with rs.Cluster([table], shards=shards, directory=tmp_path / str(turn), restore=manifest) as cluster:
            with rs.Client(cluster.url) as client:
                for old in given:
                    assert client.delete("t", old) == 0
                    assert client.update_priorities("t", old, np.ones(len(old))) == (0, len(old))
                given.append(client.add("t", {"x": np.arange(60)}))
                if turn == 2:
                    assert client.delete("t", given[-1]) == 60
            manifest = cluster.checkpoint()
    ids = np.concatenate(given)
    assert len(np.unique(ids)) == len(ids)


def test_numbers_that_were_taken_out_are_not_given_again(tmp_path: Path) -> None:
    with rs.Cluster([EMPTY], shards=3, directory=tmp_path / "old") as cluster:
        cluster.forget(1, lose_items=True)
        manifest = cluster.checkpoint()
        version = cluster.topology.version
    with rs.Cluster([EMPTY], shards=3, directory=tmp_path / "new", restore=manifest) as cluster:
        assert [shard.number for shard in cluster.topology.shards] == [0, 2, 3]
        assert cluster.topology.gone == {1}
        assert cluster.topology.version > version
        with rs.Client(cluster.url) as client:
            ids = client.add("empty", {"x": np.arange(30)}, timeout=5)
            assert set((ids >> np.uint64(56)).tolist()) <= {0, 2, 3}


def test_as_many_shards_in_another_folder_keep_ids_and_slots(checkpoint, tmp_path: Path) -> None:
    old, manifest, ids = checkpoint
    with rs.Cluster(TABLES, shards=OLD, directory=tmp_path, restore=manifest) as cluster:
        assert [shard.slots for shard in cluster.topology.shards] == [shard.slots for shard in old.topology.shards]
        with rs.Client(cluster.url) as client:
            assert client.get("ragged", ids["ragged"]).data["x"].tolist() == [
                1000 * shard + x for shard in range(OLD) for x in range(20 * (shard + 1))
            ]


def test_without_tables_they_are_those_of_the_checkpoint(checkpoint, tmp_path: Path) -> None:
    with rs.Cluster(shards=2, directory=tmp_path, restore=checkpoint[1]) as cluster, rs.Client(cluster.url) as client:
        assert set(client.tables()) == {table.name for table in TABLES}
        assert client.table("frames").capacity == 300
        assert client.info("plain")["size"] == checkpoint[0].infos["plain"]["size"]


def test_what_shares_were_rounded_up_leaves_from_a_full_table(tmp_path: Path) -> None:
    """100 on 3 shards are 3 · 34; on one shard they are 100, and the two oldest items go."""
    table = rs.Table("t", 100, {"x": X})
    with rs.Cluster([table], shards=3, directory=tmp_path / "old") as cluster:
        for number, server in enumerate(cluster.servers):
            with rs.Client(server.url) as client:
                client.add("t", {"x": 100 * number + np.arange(34)})
        manifest = cluster.checkpoint()
    with rs.Cluster([table], shards=1, directory=tmp_path / "new", restore=manifest) as cluster:
        items, _ = contents(cluster, "t")
        with rs.Client(cluster.url) as client:
            assert (client.info("t")["removed"], client.info("t")["added"]) == (2, 102)
    assert sorted(set(range(34)) | set(range(100, 134)) | set(range(200, 234))) == sorted({*items, 0, 100})
    with rs.Cluster([replace(table, capacity=500)], shards=2, directory=tmp_path / "more", restore=manifest) as cluster:
        assert len(contents(cluster, "t")[0]) == 102


def test_a_checkpoint_amid_streams_adds_and_samples_is_whole(tmp_path: Path) -> None:
    """Streams are open, steps wait for items, items leave a full table, some while a reply has them."""
    frames = replace(FRAMES, compression="zstd", capacity=600)
    tables = [frames, replace(PLAIN, capacity=60)]
    done = threading.Event()

    def load(work: Callable[[rs.Client], object], url: str) -> None:
        with rs.Client(url) as client:
            while not done.is_set():
                work(client)

    def stream(client: rs.Client) -> None:
        with client.writer("frames", flush_steps=3) as writer:
            for step in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
                writer.append({"frame": np.full((16, 16), step % 251, np.uint8), "x": step})
                writer.create_item(1.0)
                if step % 40 == 39:
                    writer.end_episode()

    def add(client: rs.Client) -> None:
        x = np.random.default_rng().integers(0, 1 << 20, 8)
        client.add("plain", {"x": x, "wide": np.repeat(x[:, None], 40, 1).astype(np.float32)})

    def sample(client: rs.Client) -> None:
        for name in ("plain", "frames"):
            batch = client.sample(name, 16)
            client.update_priorities(name, batch.ids, np.full(16, 2.0))

    with rs.Cluster(tables, shards=3, directory=tmp_path / "old") as cluster:
        threads = [threading.Thread(target=load, args=(work, cluster.url)) for work in (stream, stream, add, sample)]
        for thread in threads:
            thread.start()
        try:
            with rs.Client(cluster.url) as client:
                wait_for(lambda: client.info("plain")["removed"] > 100 and client.info("frames")["size"] > 100)
            for turn in range(1, 4):
                manifest = cluster.checkpoint()
                for name in [manifest.name, *json.loads(manifest.read_text())["snapshots"]]:
                    kept = tmp_path / f"old-{turn}" / name  # the next checkpoint takes its place
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(manifest.parent / name, kept)
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
    for shards, turn in ((2, 1), (1, 2), (4, 3)):
        manifest = tmp_path / f"old-{turn}" / manifest.name
        with (
            rs.Cluster(tables, shards=shards, directory=tmp_path / str(turn), restore=manifest) as cluster,
            rs.Client(cluster.url) as client,
        ):
            batch = client.sample("plain", client.info("plain")["size"], replace=False)
            assert (batch.data["wide"] == batch.data["x"][:, None].astype(np.float32)).all()
            batch = client.sample("frames", client.info("frames")["size"], replace=False)
            x = batch.data["x"]
            shown = np.maximum(x[:, None] - [2, 1, 0], (x - x % 40)[:, None])
            assert (batch.data["obs"][..., 0, 0] == shown % 251).all()


def bytes_under(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "wrong", ["capacity", "signature", "missing", "damaged", "cut short", "leaving", "no manifest", "full disk"]
)
def test_what_cannot_be_restored_is_refused_and_changes_nothing(tmp_path: Path, wrong: str) -> None:
    table = rs.Table("t", 100, {"x": X})
    with rs.Cluster([table], shards=2, directory=tmp_path / "old") as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"x": np.arange(100)})
        manifest = cluster.checkpoint()
    told = json.loads(manifest.read_text())
    snapshot = manifest.parent / told["snapshots"][1]
    said = {
        "capacity": "100 items, and its capacity of 50 is 51 on 3 shards: give it at least 100",
        "signature": "differs from the one here in more than can be changed",
        "missing": "not there any more",
        "damaged": "is damaged; nothing was restored",
        "cut short": "cut short; nothing was restored",
        "leaving": "one was leaving",
        "no manifest": "expected restore to be",
        "full disk": "the snapshots of the new shards cannot be written: .*too large",
    }[wrong]
    if wrong == "capacity":
        table = replace(table, capacity=50)
    elif wrong == "signature":
        table = replace(table, signature={"x": rs.Column("int32")})
    elif wrong == "missing":
        snapshot.unlink()
    elif wrong == "damaged":
        data = bytearray(snapshot.read_bytes())
        data[len(data) // 2] ^= 1
        snapshot.write_bytes(data)
    elif wrong == "cut short":
        snapshot.write_bytes(snapshot.read_bytes()[:-100])
    elif wrong == "leaving":
        told["topology"]["leaving"] = [1]
        manifest.write_text(json.dumps(told))
    elif wrong == "no manifest":
        manifest = tmp_path / "nothing.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = bytes_under(tmp_path / "old")
    try:
        if wrong == "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        with pytest.raises(rs.ServerError, match=said):
            rs.Cluster([table], shards=3, directory=tmp_path / "new", restore=manifest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert bytes_under(tmp_path / "new") == {}
    assert bytes_under(tmp_path / "old") == before


def test_a_folder_with_shards_is_not_written_over(tmp_path: Path) -> None:
    with rs.Cluster(shards=2, directory=tmp_path) as cluster:
        manifest = cluster.checkpoint()
    before = bytes_under(tmp_path)
    with pytest.raises(rs.ServerError, match=r"holds cluster.json already: restore .* in another directory"):
        rs.Cluster(shards=3, directory=tmp_path, restore=manifest)
    assert bytes_under(tmp_path) == before


def test_samples_that_a_shard_counts_for_another_are_added_up(tmp_path: Path) -> None:
    """Shard 0 has been told of 15 samples that count on shard 1, more than it had: it counts less than none."""
    limiter = rs.SampleToInsertRatio(samples_per_insert=1, min_size_to_sample=20, error_buffer=40)
    table = rs.Table("ratio", 300, {"x": X}, rs.Uniform(), rate_limiter=limiter)
    with rs.Cluster([table], shards=2, directory=tmp_path / "two") as cluster:
        for server in cluster.servers:
            with rs.Client(server.url) as client:
                client.add("ratio", {"x": np.arange(20)})
        with redis.Redis.from_url(cluster.servers[0].url) as shard:
            shard.execute_command("REPLAY.SAMPLE", "ratio", 1, "TIMED", 0, 1e-9, "UNUSED", 15, "COLUMNS", 0)
        with rs.Client(cluster.servers[1].url) as client:
            client.sample("ratio", 15, timeout=0)
        manifest = cluster.checkpoint()
    with (
        rs.Cluster([table], shards=1, directory=tmp_path / "one", restore=manifest) as cluster,
        rs.Client(cluster.url) as client,
    ):
        drawn = 0
        with contextlib.suppress(rs.Timeout):
            while drawn < 100:
                drawn += len(client.sample("ratio", 1, timeout=0))
        assert drawn == 60  # 40 inserts and no sample that counts: the lead may fall to 20 - 40
