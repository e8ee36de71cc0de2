"""What samples over shards wait for, such as the minimum of the whole table, and what they say meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from shards import cluster, servers

import replay_server as rs

__all__ = ["cluster", "servers"]  # fixtures
SHARDS = 3


def test_a_sample_waits_for_the_items_of_all_shards_together(cluster):
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}, rate_limiter=rs.MinSize(90)))
    cluster.add("t", {"k": np.arange(20)})  # all of them on one shard
    with pytest.raises(rs.Timeout, match="the table holds 20 on 3 shards, sampling waits for min_size_to_sample = 90"):
        cluster.sample("t", 8, timeout=0)
    got: list[rs.Batch] = []
    waiter = threading.Thread(target=lambda: got.append(cluster.sample("t", 8)))
    waiter.start()
    for _ in range(7):
        cluster.add("t", {"k": np.arange(10)})
    waiter.join(30)
    assert len(got[0]) == 8
    cluster.update_priorities("t", cluster.sample("t", 8).ids, np.zeros(8))
    with pytest.raises(rs.Timeout, match="without replacement waits"):
        cluster.sample("t", 91, timeout=0.02, replace=False)


def test_one_item_is_enough_where_one_is_the_minimum(cluster):
    """The minimum of each shard is 1, and so is that of all."""
    cluster.create_table(rs.Table("one", 100, {"k": rs.Column("int64")}))
    cluster.add("one", {"k": np.array([7])})
    batch = cluster.sample("one", np.int64(3), timeout=10.0)
    assert batch.data["k"].tolist() == [7] * 3
    for beta in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a number from 0 to 100"):
            cluster.sample("one", 1, beta=beta)
    with pytest.raises(rs.SchemaError, match="out must be a batch to receive into"):
        cluster.sample("one", 1, out=3)
    with pytest.raises(rs.SchemaError, match="has no column 'no'"):
        cluster.sampler("one", 1, columns=["no"])


def test_a_sample_of_priorities_that_are_all_zero_says_so(cluster):
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}))
    ids = cluster.add("t", {"k": np.arange(100)})
    assert len(cluster.sample("t", 8)) == 8
    cluster.update_priorities("t", ids, np.zeros(100))
    with pytest.raises(rs.Timeout, match="all priorities are zero: the table holds 100 items on 3 shards"):
        cluster.sample("t", 8, timeout=0.01)


def test_a_closed_table_ends_samplers_and_refuses_adds(cluster):
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}))
    cluster.close_table("t", "no more")
    with pytest.raises(rs.TableClosed):
        cluster.add("t", {"k": np.arange(100)})
    with pytest.raises(rs.TableClosed):
        cluster.sample("t", 8)
    with cluster.sampler("t", 8) as batches:
        assert list(batches) == []
    cluster.open_table("t")
    cluster.add("t", {"k": np.arange(100)})
    assert len(cluster.sample("t", 8)) == 8


def test_the_ratio_of_samples_to_inserts_holds_over_all_shards(cluster):
    limiter = rs.SampleToInsertRatio(samples_per_insert=2, min_size_to_sample=30, error_buffer=60)
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}, sampler=rs.Uniform(), rate_limiter=limiter))
    cluster.add("t", {"k": np.arange(60)}, timeout=0)
    reason, used = "", 0
    for _ in range(40):
        try:
            used += len(cluster.sample("t", 12, timeout=0))
        except rs.Timeout as timeout:
            reason = timeout.reason
    assert reason.startswith("rate limiter: a sample of 1 waits for inserts")
    info = cluster.info("t")
    assert 60 <= used <= info["sampled"] - info["unused"] <= 2 * info["added"]
    got: list[rs.Batch] = []
    waiter = threading.Thread(target=lambda: got.append(cluster.sample("t", 24)))
    waiter.start()
    for _ in range(10):  # no more than it needs: others might have to wait for samples
        if not got:
            cluster.add("t", {"k": np.arange(6)}, timeout=5)
            waiter.join(0.2)
    waiter.join(30)
    assert len(got) == 1


def test_items_are_awaited_wherever_they_come(cluster):
    cluster.create_table(rs.Table("t", 3000, {"k": rs.Column("int64")}))
    with pytest.raises(rs.Timeout):
        cluster.await_items("t", since=0, timeout=0)
    cluster.add("t", {"k": np.arange(10)})
    assert cluster.await_items("t", since=0) == (10, 10)
    cluster.add("t", {"k": np.arange(10)})
    assert cluster.await_items("t", size=20) == (20, 20)


def test_a_sample_asks_again_where_only_shards_without_items_are_known_of(cluster):
    cluster.create_table(rs.Table("t", 100, {"k": rs.Column("int64")}))
    with pytest.raises(rs.Timeout, match="too few items"):
        cluster.sample("t", 2, timeout=0)
    cluster.add("t", {"k": np.arange(9)})
    for sums in ({}, dict.fromkeys(range(3), 0.0)):
        cluster._sums["t"] = sums
        assert len(cluster.sample("t", 2, timeout=0)) == 2


def test_a_sample_waits_where_items_that_are_too_old_have_still_to_leave(cluster):
    columns = {"k": rs.Column("int64"), "policy_version": rs.Column("int64")}
    limiter = rs.SampleToInsertRatio(samples_per_insert=1e4, min_size_to_sample=1, error_buffer=1e9)
    cluster.create_table(rs.Table("t", 30_000, columns, max_staleness=5, rate_limiter=limiter))
    keys = np.arange(9000)
    cluster.add("t", {"k": keys, "policy_version": np.where(keys % 3, 5, 0)})
    cluster.sample("t", 256)
    assert cluster.info("t")["stale_items"] == 0
    batch = cluster.sample("t", 256, policy_version=10)
    assert (batch.data["k"] % 3 > 0).all()
    info = cluster.info("t")
    assert info["size"] == 6000
    assert info["sampled"] - info["unused"] - sum(cluster._unused.values()) == 2 * 256
