"""A checkpoint restored onto another number of shards: limits of capacity, bytes and samples, and what it takes."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.cluster_reshard import reshard

X = rs.Column("int64")
ROWS = {"x": X, "rows": rs.Column("float32", (None,), max_length=1000)}
SPAN = {"x": rs.Column("float32", (256,)), "span": rs.Window("x", length=4)}


def fill(cluster: rs.Cluster, name: str, lengths: Sequence[int], count: int) -> int:
    """As many values of ragged rows on each shard; bytes of all."""
    for number, server in enumerate(cluster.servers):
        with rs.Client(server.url) as client:
            for first in range(0, count, len(lengths)):
                x = 1000 * number + first + np.arange(len(lengths))
                client.add(name, {"x": x, "rows": [np.full(length, 1, np.float32) for length in lengths]})
    with rs.Client(cluster.url) as client:
        return int(client.info(name)["bytes"])


def restored(manifest: Path, tables: list[rs.Table], shards: int, folder: Path, name: str) -> dict[str, Any]:
    """What a table is when a checkpoint was restored."""
    with (
        rs.Cluster(tables, shards=shards, directory=folder, restore=manifest) as cluster,
        rs.Client(cluster.url) as client,
    ):
        return {**client.info(name), "table": client.table(name)}


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_what_a_full_table_waits_for_is_no_more_than_it_has_room_for(tmp_path: Path, shards: int) -> None:
    """Shares of 100 on 3 shards are 34, and 102 is more than the capacity of the table that is asked for."""
    ratio = rs.SampleToInsertRatio(2, 100, 250)
    tables = [
        rs.Table.queue("queue", {"x": X}, 100),
        rs.Table("size", 100, {"x": X}, rs.Uniform(), rate_limiter=rs.MinSize(100)),
        rs.Table("ratio", 100, {"x": X}, rs.Uniform(), rate_limiter=ratio),
    ]
    with rs.Cluster(tables, shards=3, directory=tmp_path / "old") as cluster:
        manifest = cluster.checkpoint()
    for given in (tables, []):
        folder = tmp_path / f"new{len(given)}"
        with (
            rs.Cluster(given, shards=shards, directory=folder, restore=manifest) as cluster,
            rs.Client(cluster.url) as client,
        ):
            assert client.table("size").rate_limiter == rs.MinSize(100)
            assert client.table("ratio").rate_limiter == ratio
            assert 100 <= client.table("queue").rate_limiter.size <= 104


def test_where_bytes_are_room_for_fewer_no_more_is_waited_for(tmp_path: Path) -> None:
    """100 items on 2 shards; on 3, shares of the bytes are room for 33 each."""
    table = rs.Table("t", 1000, {"x": X}, rs.Uniform(), rate_limiter=rs.MinSize(100), max_bytes=800)
    with rs.Cluster([table], shards=2, directory=tmp_path / "old") as cluster:
        manifest = cluster.checkpoint()
    assert restored(manifest, [], 3, tmp_path / "new", "t")["table"].rate_limiter == rs.MinSize(99)


def test_a_larger_queue_holds_as_many_as_it_is_asked_for(tmp_path: Path) -> None:
    queue = rs.Table.queue("q", {"x": X}, 60)
    with rs.Cluster([queue], shards=3, directory=tmp_path / "old") as cluster:
        for server in cluster.servers:
            with rs.Client(server.url) as client:
                client.add("q", {"x": np.arange(20)})
        manifest = cluster.checkpoint()
    small = rs.Table.queue("q", {"x": X}, 40)
    with pytest.raises(rs.ServerError, match="its capacity of 40 is 40 on 2 shards: give it at least 60"):
        rs.Cluster([small], shards=2, directory=tmp_path / "small", restore=manifest)
    for size in (60, 120):
        larger = rs.Table.queue("q", {"x": X}, size)
        with rs.Cluster([larger], shards=2, directory=tmp_path / f"{size}", restore=manifest) as cluster:
            for server in cluster.servers:
                with rs.Client(server.url) as client:
                    left = size // 2 - client.info("q")["size"]
                    client.add("q", {"x": np.arange(left)}, timeout=5) if left else None
            with rs.Client(cluster.url) as client:
                assert client.info("q")["size"] == size
                assert client.table("q").rate_limiter.size == size


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("least", [2, 3, 4, 5, 100])
def test_a_closed_table_with_just_its_minimum_can_be_sampled(tmp_path: Path, given: bool, least: int) -> None:
    table = rs.Table("t", 300, {"x": X}, rs.Uniform(), rate_limiter=rs.MinSize(least))
    with rs.Cluster([table], shards=1, directory=tmp_path / "old") as cluster, rs.Client(cluster.url) as client:
        client.add("t", {"x": np.arange(least)})
        client.close_table("t", "whole")
        manifest = cluster.checkpoint()
    tables = [table] if given else []
    with (
        rs.Cluster(tables, shards=3, directory=tmp_path / "new", restore=manifest) as cluster,
        rs.Client(cluster.url) as client,
    ):
        assert client.table("t").rate_limiter == rs.MinSize(least)
        assert len(client.sample("t", 32, timeout=20)) == 32


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (3, 6)])
@pytest.mark.parametrize("ordered", [False, True])
def test_items_that_fit_max_bytes_are_all_kept(tmp_path: Path, before: int, after: int, ordered: bool) -> None:
    """Every third item is long: dealt by count, they would be on one shard; a shard's items at once, on one as well."""
    sampler = rs.Fifo() if ordered else rs.Uniform()
    table = rs.Table("t", 600, ROWS, sampler, max_bytes=300_000)
    with rs.Cluster([table], shards=before, directory=tmp_path / "old") as cluster:
        held = fill(cluster, "t", (1000, 1, 1), 180 // before)
        manifest = cluster.checkpoint()
    info = restored(manifest, [table], after, tmp_path / "new", "t")
    assert (info["size"], info["bytes"], info["removed"]) == (180, held, 0)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_steps_count_as_bytes_and_what_does_not_fit_is_refused(tmp_path: Path, compression: str) -> None:
    """The number in the error is one that helps."""
    table = rs.Table("t", 600, SPAN, max_bytes=2_000_000, compression=compression)
    with rs.Cluster([table], shards=2, directory=tmp_path / "old") as cluster:
        random = np.random.default_rng(3)
        for number, server in enumerate(cluster.servers):
            with rs.Client(server.url) as client, client.writer("t") as writer:
                for step in range(290 if number == 0 else 20):
                    writer.append({"x": random.standard_normal(256).astype(np.float32)})
                    if step >= 4 and (step % 5 == 0 or step > 150):
                        writer.create_item()
        manifest = cluster.checkpoint()
        with rs.Client(cluster.url) as client:
            size, held = client.info("t")["size"], client.info("t")["bytes"]
    tight = replace(table, max_bytes=held // 2)
    with pytest.raises(rs.ServerError, match=r"that do not fit its max_bytes of [0-9,]+, .* give it at least ") as told:
        rs.Cluster([tight], shards=3, directory=tmp_path / "tight", restore=manifest)
    assert not [file for file in (tmp_path / "tight").rglob("*") if file.is_file()]
    needed = int(re.findall("at least ([0-9,]+)", str(told.value))[0].replace(",", ""))
    assert held // 2 < needed < 1.2 * held
    info = restored(manifest, [replace(table, max_bytes=needed)], 3, tmp_path / "new", "t")
    assert (info["size"], info["removed"]) == (size, 0)
    assert max(shard["bytes"] for shard in info["shards"].values()) < 0.4 * held
    with pytest.raises(rs.ServerError, match="give it at least"):  # and no number that is much too large
        rs.Cluster([replace(table, max_bytes=needed * 3 // 4)], shards=3, directory=tmp_path / "less", restore=manifest)


def test_memory_goes_with_the_steps_that_items_see_and_not_with_the_longest_window(tmp_path: Path) -> None:
    table = rs.Table("t", 4000, {"x": X, "span": rs.Window("x", max_length=16384)})
    with rs.Cluster([table], shards=1, directory=tmp_path / "old") as cluster, rs.Client(cluster.url) as client:
        with client.vector_writer("t", 50, history=8) as writer:
            for _ in range(20):
                writer.append({"x": np.arange(50)})
                writer.create_items(columns={"span": slice(-1, None)})
        cluster.checkpoint()
        (snapshot,) = (tmp_path / "old" / "shard-0").glob("*.snapshot")
    out = [tmp_path / f"{number}.snapshot" for number in range(3)]
    tracemalloc.start()
    try:
        reshard([snapshot], [0] * 16384, {}, range(3), [0] * 16384, out)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 24_000_000  # padded, 1,000 items have 65 MB; a record of 64 of them has 4


@pytest.mark.parametrize("compression", ["", "none", "zstd"])
def test_bytes_are_counted_as_the_server_counts_them(tmp_path: Path, compression: str) -> None:
    """ "": ragged rows of all kinds of lengths; else steps."""
    random = np.random.default_rng(5)
    table = rs.Table("t", 600, ROWS)
    if compression:
        table = rs.Table("t", 600, SPAN, compression=compression)
    with rs.Cluster([table], shards=2, directory=tmp_path / "old") as cluster, rs.Client(cluster.url) as client:
        if compression:
            with client.writer("t") as writer:
                for step in range(200):
                    x = random.standard_normal(256) * (random.random(256) < step / 200)
                    writer.append({"x": x.astype(np.float32)})
                    if step >= 4 and step % 3:
                        writer.create_item()
        else:
            fill(cluster, "t", random.integers(0, 1001, 200).tolist(), 200)
        manifest = cluster.checkpoint()
    held = restored(manifest, [table], 1, tmp_path / "new", "t")["bytes"]
    tight = replace(table, max_bytes=held - 1)
    with pytest.raises(rs.ServerError, match=f"give it at least {held:,}$|give it at least {held:,}[^0-9,]"):
        rs.Cluster([tight], shards=1, directory=tmp_path / "tight", restore=manifest)
    assert restored(manifest, [replace(table, max_bytes=held)], 1, tmp_path / "just", "t")["bytes"] == held
