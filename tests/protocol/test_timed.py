"""TIMED: one shard's part of a sample of many, byte by byte, by plain redis-py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import redis

import replay_server as rs


def table(name: str, **settings: Any) -> rs.Table:
    signature = {"k": rs.Column("int64"), "wide": rs.Column("uint8", (4096,))}
    return rs.Table(name, 100, signature, **{"sampler": rs.Prioritized(priority_exponent=0.5), **settings})


def timed(connection: Any, name: str, n: int, *options: object) -> tuple[Any, ...]:
    """ids, powers, times, [until, sum, size], reason, and the columns k and wide."""
    reply = connection.execute_command("REPLAY.SAMPLE", name, n, *options)
    assert [reply[5], reply[7]] == [b"k", b"wide"]
    kinds = (np.uint64, np.float64, np.float64, np.float64)
    heads = [np.frombuffer(blob, kind) for blob, kind in zip(reply[:4], kinds, strict=True)]
    wide = np.frombuffer(reply[8], np.uint8).reshape(-1, 4096)
    return (*heads, reply[4], np.frombuffer(reply[6], np.int64), wide)


@pytest.fixture(scope="module")
def shard():
    """A server of number 9 with items of k = 0 … 49, of priority k."""
    with rs.Server([table("t")], config={"shard": 9}) as server, rs.Client(server.url) as client:
        k = np.arange(50)
        columns = {"k": k, "wide": np.repeat(k.astype(np.uint8)[:, None], 4096, 1)}
        ids = client.add("t", columns, priorities=k.astype(np.float64))
        yield server, client, ids


def test_an_answer_is_in_the_order_of_time_and_says_what_it_is_drawn_from(shard):
    _, client, ids = shard
    assert set(ids >> np.uint64(56)) == {9}
    assert client.info("t")["shard"] == 9
    total = np.sqrt(np.arange(50)).sum()
    given, powers, times, state, reason, k, wide = timed(client.redis, "t", 512, "TIMED", 0, float(200 / total))
    assert 100 < len(given) < 350
    np.testing.assert_array_equal(given, ids[k])
    np.testing.assert_allclose(powers, np.sqrt(k))
    assert (np.diff(times) >= 0).all()
    assert times[-1] <= 200 / total
    np.testing.assert_allclose(state, [200 / total, total, 50])
    assert reason == b""
    np.testing.assert_array_equal(wide, np.repeat(k.astype(np.uint8)[:, None], 4096, 1))


def test_no_more_come_than_asked_for_and_the_answer_is_complete_up_to_the_last(shard):
    _, client, _ = shard
    before = client.info("t")["sampled"]
    _, _, times, state, _, _, _ = timed(client.redis, "t", 7, "TIMED", "0.5", "1e6")
    assert len(times) == 7
    assert times[0] >= 0.5
    assert state[0] == times[-1]
    assert client.info("t")["sampled"] == before + 7


def test_without_replacement_each_item_comes_once(shard):
    _, client, ids = shard
    given, _, times, state, _, _, _ = timed(client.redis, "t", 512, "REPLACE", 0, "TIMED", 0, "1e9")
    assert sorted(given) == sorted(ids[1:])  # that of priority zero never comes
    assert state[0] == 1e9
    assert (np.diff(times) >= 0).all()


def test_a_horizon_in_which_nothing_arrives_is_answered_with_nothing(shard):
    _, client, _ = shard
    given, powers, times, state, _, k, wide = timed(client.redis, "t", 512, "TIMED", 0, "1e-300")
    assert len(given) == len(powers) == len(times) == len(k) == len(wide) == 0
    assert state[0] == 1e-300
    assert state[2] == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("TIMED", 0), "expected TIMED with two finite times"),
        (("TIMED", 1, 1), "expected TIMED with two finite times"),
        (("TIMED", -1, 1), "expected TIMED with two finite times"),
        (("TIMED", 0, "inf"), "expected TIMED with two finite times"),
        (("TIMED", "nan", 1), "expected TIMED with two finite times"),
        (("TIMED", 0, 1, "BETA", 0.4), "expected no BETA"),
        (("BETA", 0.4, "TIMED", 0, 1, "COLUMNS", 1, "k"), "expected no BETA"),
        (("UNUSED", 3), "expected UNUSED beside TIMED alone"),
        (("TIMED", 0, 1, "UNUSED", -1), "expected UNUSED with how many draws"),
        (("TIMED", 0, 1, "UNUSED", 8388609), "UNUSED: expected at most 8388608 draws that were left over, got 8388609"),
    ],
)
def test_what_does_not_go_with_it_is_refused(shard, options, message):
    _, client, _ = shard
    with pytest.raises(redis.ResponseError, match=message):
        client.redis.execute_command("REPLAY.SAMPLE", "t", 4, *options)


def test_more_than_may_be_pinned_is_refused(shard):
    _, client, _ = shard
    with pytest.raises(redis.ResponseError, match="LIMIT TIMED: expected at most 8192 items at once, got 8193"):
        client.redis.execute_command("REPLAY.SAMPLE", "t", 8193, "TIMED", 0, 1)


def test_tables_whose_order_no_shard_knows_are_refused(client):
    for name, settings in [("timed-fifo", {"sampler": rs.Fifo()}), ("timed-worn", {"max_times_sampled": 1})]:
        client.create_table(table(name, **settings))
        with pytest.raises(redis.ResponseError, match="sample each shard by itself"):
            client.redis.execute_command("REPLAY.SAMPLE", name, 4, "TIMED", 0, 1, "BLOCK", 0)
        client.drop_table(name)


def test_the_rate_limiter_of_a_shard_lets_through_what_it_may(client):
    limiter = rs.SampleToInsertRatio(samples_per_insert=2, min_size_to_sample=1, error_buffer=2)
    client.create_table(table("timed-limited", rate_limiter=limiter))
    one = {"k": np.zeros(1, np.int64), "wide": np.zeros((1, 4096), np.uint8)}
    for _ in range(2):
        client.add("timed-limited", one)
    given, _, times, state, reason, _, _ = timed(client.redis, "timed-limited", 512, "TIMED", 0, 1000)
    assert len(given) == 4
    assert state[0] == times[-1] < 1000
    assert reason.startswith(b"rate limiter: a sample of 1 waits for inserts")
    given, _, _, state, reason, _, _ = timed(client.redis, "timed-limited", 512, "TIMED", 5, 1000)
    assert len(given) == 0
    assert state[0] == 5
    assert reason
    assert len(timed(client.redis, "timed-limited", 512, "TIMED", 5, 1000, "UNUSED", 3)[0]) == 3
    assert (client.info("timed-limited")["sampled"], client.info("timed-limited")["unused"]) == (7, 3)
    client.drop_table("timed-limited")


def test_windows_come_as_steps_and_columns_through_shared_memory(client):
    signature = {"frame": rs.Column("uint8", (64,), step_only=True), "obs": rs.Window("frame", length=2, offset=0)}
    client.create_table(rs.Table("timed-windows", 100, signature, sampler=rs.Uniform()))
    with client.writer("timed-windows") as writer:
        for step in range(20):
            writer.append({"frame": np.full(64, step, np.uint8)})
            writer.create_item(1.0)
    plain = client.redis.execute_command("REPLAY.SAMPLE", "timed-windows", 64, "TIMED", 0, 2)
    coded = client.redis.execute_command("REPLAY.SAMPLE", "timed-windows", 64, "CODED", "TIMED", 0, 2)
    n = len(plain[0]) // 8
    assert plain[5] == b"obs"
    assert len(plain[6]) == n * 2 * 64
    assert len(coded) == 7
    assert coded[5] == b"frame"
    assert len(coded[0]) == len(coded[2])
    assert int.from_bytes(coded[6][:4], "little") <= 20
    client.drop_table("timed-windows")


def test_a_snapshot_restored_by_another_shard_gives_its_items_ids_of_that_shard(tmp_path):
    with (
        rs.Server([table("t")], directory=tmp_path, config={"shard": 2}) as server,
        rs.Client(server.url) as client,
    ):
        ids = client.add("t", {"k": np.arange(3), "wide": np.zeros((3, 4096), np.uint8)})
        client.checkpoint("kept")
    with rs.Server(directory=tmp_path, config={"shard": 3}) as server, rs.Client(server.url) as client:
        client.restore("kept")
        assert client.update_priorities("t", ids, np.ones(3)) == (0, 3)
        moved = ids ^ np.uint64((2 ^ 3) << 56)
        assert client.update_priorities("t", moved, np.ones(3)) == (3, 0)
    with (
        rs.Server(directory=tmp_path, config={"shard": 2}) as server,
        rs.Client(server.url) as client,
    ):
        client.restore("kept")
        assert client.update_priorities("t", ids, np.ones(3)) == (3, 0)
