"""A client of many shards waits, refuses and ends where a client of one server does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from shards import K, cluster, keys, servers, shards

import replay_server as rs
from replay_server.cluster_leave import leaving_reason
from replay_server.cluster_tables import leaving_limiter
from replay_server.cluster_wait import Wait

__all__ = ["cluster", "servers", "shards"]  # fixtures


def drawn(batch: rs.Batch) -> list[int]:
    return batch.data["k"].tolist()


# ---- what is held of a queue -----------------------------------------------------------------------------------------


@pytest.fixture
def held(cluster, shards) -> rs.Client:
    """A client that holds the items 0 to 16 of shard 0: a sample timed out, because the limiter of shard 1 lets 10 of
    its items through, and 11 were its part. Shard 0 has 17 to 29 still, shard 1 has 100 to 119."""
    limiter = rs.SampleToInsertRatio(samples_per_insert=1, min_size_to_sample=40, error_buffer=20)
    cluster.create_table(
        rs.Table("q", 300, K, sampler=rs.Fifo(), remover=rs.Fifo(), rate_limiter=limiter, max_times_sampled=1)
    )
    shards[0].add("q", keys(0, 20), timeout=0)
    shards[0].add("q", keys(20, 30), timeout=0)
    shards[1].add("q", keys(100, 120), timeout=0)
    with pytest.raises(rs.Timeout, match="rate limiter"):
        cluster.sample("q", 28, timeout=0)
    assert cluster.info("q")["size"] == 33
    return cluster


def test_a_smaller_sample_is_cut_from_what_is_held_of_a_queue(held):
    assert drawn(held.sample("q", 5, timeout=0)) == [0, 1, 2, 3, 4]
    assert drawn(held.sample("q", 3, timeout=0)) == [5, 6, 7]
    held.configure("q", rate_limiter=rs.MinSize(1))
    assert drawn(held.sample("q", 12, timeout=0)) == [*range(8, 17), 17, 100, 101]


def test_calls_that_time_out_together_keep_what_is_held(held):
    def times_out() -> None:
        with pytest.raises(rs.Timeout):
            held.sample("q", 90, timeout=0.1)

    threads = [threading.Thread(target=times_out) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drawn(held.sample("q", 17, timeout=0))) == list(range(17))


def changes_sampler(client: rs.Client, _: rs.Client) -> None:
    client.configure("q", sampler=rs.Lifo(), rate_limiter=rs.MinSize(1))
    assert drawn(client.sample("q", 1, timeout=0)) == [119]
    client.configure("q", sampler=rs.Fifo())
    assert set(drawn(client.sample("q", 17, timeout=0))).isdisjoint(range(17))


def resets(client: rs.Client, _: rs.Client) -> None:
    client.reset("q")
    with pytest.raises(rs.Timeout):
        client.sample("q", 17, timeout=0)


def is_made_anew(client: rs.Client, other: rs.Client) -> None:
    other.drop_table("q")
    other.create_table(rs.Table.queue("q", K, 300))
    other.add("q", keys(500, 520))
    assert drawn(client.sample("q", 17, timeout=0)) == list(range(500, 517))


@pytest.mark.parametrize("change", [changes_sampler, resets, is_made_anew])
def test_nothing_is_held_of_a_table_that_is_another_now(held, change: Callable[..., None]):
    with rs.Client(held.url) as other:
        change(held, other)


# ---- samplers with an order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [rs.Fifo(), rs.Lifo(), rs.MaxHeap(), rs.MinHeap()])
def test_a_sample_in_order_waits_for_the_minimum_of_the_whole(cluster, shards, sampler):
    cluster.create_table(rs.Table("o", 300, K, sampler=sampler, rate_limiter=rs.MinSize(60)))
    shards[0].add("o", keys(0, 45))
    with pytest.raises(rs.Timeout, match="the table holds 45 on 2 shards, sampling waits for min_size_to_sample = 60"):
        cluster.sample("o", 4, timeout=0)
    shards[1].add("o", keys(100, 115))  # fewer than its share of the minimum: the others give theirs
    assert len(cluster.sample("o", 45, timeout=0)) == 45
    with pytest.raises(rs.Timeout, match="holds 60 on 2 shards, shards 1 below their share of min_size_to_sample"):
        cluster.sample("o", 46, timeout=0)
    shards[1].add("o", keys(200, 215))
    assert len(set(drawn(cluster.sample("o", 75, timeout=0)))) == 75


# ---- what can never be -----------------------------------------------------------------------------------------------


def ratio(least: int, buffer: float) -> rs.SampleToInsertRatio:
    return rs.SampleToInsertRatio(samples_per_insert=1, min_size_to_sample=least, error_buffer=buffer)


@pytest.mark.parametrize(
    ("table", "count", "said"),
    [
        (rs.Table("t", 1000, K, rate_limiter=ratio(40, 20)), 200, "more than twice error_buffer = 20"),
        (rs.Table.queue("t", K, 100), 101, "is more than a table of 100 can hold"),
        (rs.Table("t", 1000, K, rate_limiter=rs.Queue(100)), 101, "is more than a queue of 100 can hold"),
        (rs.Table("t", 100, K, sampler=rs.Lifo()), 101, "is more than a table of 100 can hold"),
        (rs.Table("t", 100, K), (1 << 20) + 1, "expected at most 1048576 items at once, got 1048577"),
    ],
)
@pytest.mark.parametrize("many", [True, False])
def test_a_sample_that_can_never_be_is_refused(cluster, shards, table, count, said, many):
    client = cluster if many else shards[0]
    client.create_table(table)
    client.add("t", keys(0, 50))
    with pytest.raises(rs.LimitExceeded, match=said):
        client.sample("t", count, timeout=60)
    client.drop_table("t")


@pytest.mark.parametrize("many", [True, False])
def test_a_sample_that_the_limiter_of_a_closed_table_would_never_admit_ends(cluster, shards, many):
    client = cluster if many else shards[0]
    client.create_table(rs.Table("t", 1000, K, rate_limiter=ratio(40, 20)))
    client.add("t", keys(0, 50))
    client.close_table("t")
    assert len(client.sample("t", 16, timeout=60)) == 16
    with pytest.raises(rs.TableClosed):
        client.sample("t", 30, timeout=60)
    with client.sampler("t", 30) as batches:
        assert list(batches) == []
    client.drop_table("t")


def test_what_a_sample_drew_before_it_was_refused_is_given_back_to_the_limiter(cluster):
    cluster.create_table(rs.Table("t", 1000, K, rate_limiter=ratio(40, 20)))
    cluster.add("t", keys(0, 50))
    for _ in range(10):
        with pytest.raises(rs.LimitExceeded):
            cluster.sample("t", 45, timeout=0)
    assert len(cluster.sample("t", 16, timeout=60)) == 16


def test_a_lone_writer_keeps_to_the_ratio_of_the_whole_beside_a_shard_that_was_never_sampled(cluster, shards):
    """Shard 1 holds 5 items of its share of 100, so it has no samples that could be counted elsewhere."""
    least, buffer, count = 200, 40, 8
    cluster.create_table(rs.Table("t", 5000, K, sampler=rs.Uniform(), rate_limiter=ratio(least, buffer)))
    shards[1].add("t", keys(5000, 5005))
    used, leads, over, held_back = 0, [], threading.Event(), threading.Event()

    def write() -> None:
        for key in range(5000):
            try:
                shards[0].add("t", keys(key, key + 1), timeout=0.2)
            except rs.Timeout:
                held_back.set()
                if over.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            used += len(cluster.sample("t", count, timeout=60))
            leads.append(cluster.info("t")["added"] - used)
    finally:
        over.set()
        writer.join()
    assert held_back.is_set()
    # What the last sample fetched and did not use counts until the next one.
    assert least - buffer <= min(leads)
    assert max(leads) <= least + buffer + 2 * count
    assert len(cluster.sample("t", count, timeout=60)) == count


def test_a_shard_with_few_and_heavy_items_gets_the_samples_that_the_others_have_left(cluster, shards):
    """Nothing is added any more, and nearly all that is drawn is on shard 1, which by itself would admit 55 samples of
    the 345 of the whole."""
    least, buffer, count = 200, 300, 8
    cluster.create_table(rs.Table("t", 5000, K, rate_limiter=ratio(least, buffer)))
    shards[0].add("t", keys(0, 240), priorities=np.full(240, 0.001))
    shards[1].add("t", keys(5000, 5005), priorities=np.full(5, 1000.0))

    def sample(times: int, timeout: float) -> int:
        return sum(len(cluster.sample("t", count, timeout=timeout)) for _ in range(times))

    assert sample(40, timeout=60) == 40 * count
    with pytest.raises(rs.Timeout, match="waits for inserts"):
        sample(4, timeout=0.2)


def test_a_closed_table_ends_when_no_shard_has_samples_left(cluster, shards):
    count = 8
    cluster.create_table(rs.Table("t", 5000, K, rate_limiter=ratio(200, 300)))
    shards[0].add("t", keys(0, 240), priorities=np.full(240, 0.001))
    shards[1].add("t", keys(5000, 5005), priorities=np.full(5, 1000.0))
    cluster.close_table("t")
    with cluster.sampler("t", count, prefetch=1) as batches:
        drawn = sum(len(batch) for batch in batches)
    assert 345 - 4 * count <= drawn <= 345


def test_a_shard_that_leaves_has_no_samples_for_the_others(cluster, shards):
    """Its rate limiter lets all samples through, and nothing is added there."""
    cluster.create_table(rs.Table("t", 5000, K, rate_limiter=ratio(200, 300)))
    shards[0].add("t", keys(0, 240), priorities=np.full(240, 0.001))
    shards[1].add("t", keys(5000, 5005), priorities=np.full(5, 1000.0))
    shards[0].configure("t", rate_limiter=leaving_limiter(shards[0].table("t").rate_limiter))
    shards[0].close_table("t", leaving_reason(0))
    count, drawn = 8, []

    def sample() -> None:
        for _ in range(20):
            drawn.append(len(cluster.sample("t", count, timeout=0.2)))

    with pytest.raises(rs.Timeout, match="waits for inserts"):
        sample()
    assert 55 - 2 * count <= sum(drawn) <= 55 + count


@pytest.mark.parametrize("many", [True, False])
def test_a_sample_of_nothing_is_refused(cluster, shards, many):
    client = cluster if many else shards[0]
    client.create_table(rs.Table("t", 100, K))
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        client.sample("t", 0)
    client.drop_table("t")


def test_what_was_left_over_before_a_reset_is_not_given_back_after_it(cluster):
    cluster.create_table(rs.Table("t", 4000, K, sampler=rs.Uniform(), rate_limiter=ratio(40, 2000)))
    cluster.add("t", keys(0, 500))
    for _ in range(4):
        cluster.sample("t", 64)
    before = cluster.info("t")["unused"]
    cluster.reset("t")
    cluster.add("t", keys(0, 500))
    cluster.sample("t", 64)
    assert cluster.info("t")["unused"] == before


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [rs.Prioritized(), rs.Uniform(), rs.Fifo()])
@pytest.mark.parametrize("many", [True, False])
def test_a_batch_may_be_without_columns(cluster, shards, sampler, many):
    client = cluster if many else shards[0]
    client.create_table(rs.Table("t", 300, K, sampler=sampler))
    ids = client.add("t", keys(0, 80))
    for count in (3, 70):
        batch = client.sample("t", count, columns=[])
        assert batch.data == {}
        assert set(batch.ids) <= set(ids)
    client.drop_table("t")


@pytest.mark.parametrize("sampler", [rs.Fifo(), rs.MaxHeap()])
def test_a_draw_in_order_is_certain(cluster, shards, sampler):
    cluster.create_table(rs.Table("t", 300, K, sampler=sampler))
    ids = np.concatenate([shard.add("t", keys(0, 80)) for shard in shards])
    assert (cluster.get("t", ids).probabilities == 1).all()


@pytest.mark.slow
def test_a_sample_waits_for_a_rate_limiter_for_longer_than_a_minute(cluster, monkeypatch):
    """It asks about 20 times a second, and each time twice as far. That became infinite, which shards refuse."""
    limiter = rs.SampleToInsertRatio(samples_per_insert=1, min_size_to_sample=1, error_buffer=40)
    cluster.create_table(rs.Table("t", 300, K, rate_limiter=limiter))
    cluster.add("t", keys(0, 40), timeout=0)
    with pytest.raises(rs.Timeout):
        [cluster.sample("t", 8, timeout=0) for _ in range(100)]
    pauses = []

    def pause(*_):
        pauses.append(1)
        if len(pauses) == 1200:
            raise rs.Timeout("a minute is over")
        return
        yield

    monkeypatch.setattr(Wait, "pause", pause)
    with pytest.raises(rs.Timeout, match="a minute is over"):
        cluster.sample("t", 8)


# ---- info ------------------------------------------------------------------------------------------------------------


def test_info_tells_whether_the_whole_can_be_sampled(cluster, shards):
    cluster.create_table(rs.Table("t", 300, K, rate_limiter=rs.MinSize(30)))
    assert cluster.info("t")["rate_limiter"] == "min_size(min_size_to_sample=30)"
    shards[0].add("t", keys(0, 25), priorities=np.zeros(25))
    assert cluster.info("t")["reason"].startswith("too few items: the table holds 25 on 2 shards")
    shards[0].add("t", keys(25, 40), priorities=np.zeros(15))
    assert cluster.info("t")["reason"].startswith("all priorities are zero: the table holds 40 items on 2 shards")
    shards[0].add("t", keys(40, 41), priorities=np.ones(1))
    assert shards[1].info("t")["reason"].startswith("too few items")
    assert cluster.info("t")["reason"] == ""
    assert len(cluster.sample("t", 8, timeout=0)) == 8


def test_info_tells_which_shards_rate_limiter_holds_the_whole_back(cluster, shards):
    cluster.create_table(rs.Table("t", 300, K, rate_limiter=ratio(20, 20)))
    limited = "sample_to_insert_ratio(samples_per_insert=1,min_size_to_sample=20,error_buffer=20)"
    assert cluster.info("t")["rate_limiter"] == limited
    for shard in shards:
        shard.add("t", keys(0, 10))
    assert cluster.info("t")["reason"] == ""
    assert len(shards[1].sample("t", 10, timeout=0)) == 10
    assert cluster.info("t")["reason"].startswith("rate limiter: a sample of 1 waits for inserts: 10 added, 10 sampled")
    with pytest.raises(rs.Timeout):
        cluster.sample("t", 8, timeout=0)


def test_info_tells_whether_any_shard_takes_more(cluster, shards):
    cluster.create_table(rs.Table("t", 300, K, rate_limiter=rs.Queue(20)))
    assert cluster.info("t")["rate_limiter"] == "queue(size=20)"
    shards[0].add("t", keys(0, 10))
    assert shards[0].info("t")["reason_add"] != ""
    assert cluster.info("t")["reason_add"] == ""
    shards[0].close_table("t", "it is done")  # as on a shard that leaves
    info = cluster.info("t")
    assert (info["closed"], info["closed_reason"], info["reason_add"]) == (False, "", "")
    shards[1].add("t", keys(0, 10))
    assert "waits for room" in cluster.info("t")["reason_add"]
    cluster.close_table("t", "it is done")
    assert cluster.info("t")["closed_reason"] == "it is done"
    assert "it is done" in cluster.info("t")["reason_add"]
