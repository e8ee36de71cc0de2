"""A checkpoint restored onto another number of shards: limits of capacity, bytes and samples, and what it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import replay_server as rs

X = rs.Column("int64")


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
