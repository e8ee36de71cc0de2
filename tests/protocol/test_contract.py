"""The client's contract against a real server: what each call does when all is well."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import replay_server as rs


def test_what_is_added_is_what_is_sampled(client, table, items):
    ids = client.add(table, items(1, 2, 3), priorities=[1.0, 2.0, 3.0])
    assert ids.dtype == np.uint64
    assert ids.shape == (3,)
    batch = client.sample(table, 64, importance_sampling_exponent=0.5)
    assert len(batch) == 64
    assert batch.data["x"].shape == (64, 2)
    assert (batch.probabilities.dtype, batch.weights.dtype) == (np.float64, np.float32)
    np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
    np.testing.assert_array_equal(batch.ids, ids[batch.data["k"] - 1])
    expected = np.array([1.0, 2.0, 3.0]) ** 0.6
    np.testing.assert_allclose(batch.probabilities, (expected / expected.sum())[batch.data["k"] - 1])
    np.testing.assert_allclose(batch.weights, (batch.probabilities.min() / batch.probabilities) ** 0.5, rtol=1e-6)


def test_a_sample_without_replacement_repeats_nothing(client, table, items):
    client.add(table, items(*range(50)), priorities=np.geomspace(1e-6, 1e6, 50))
    for _ in range(5):
        assert sorted(client.sample(table, 50, replace=False).data["k"]) == list(range(50))
    with pytest.raises(rs.Timeout, match="50 may be drawn, a sample of 51 without replacement waits"):
        client.sample(table, 51, timeout=0, replace=False)
    with client.sampler(table, 40, replace=False) as batches:
        assert len(set(next(batches).ids)) == 40


def test_independent_draws_are_a_setting_of_the_table(client, make_table, items):
    name = make_table(sampler=rs.Prioritized(1.0, stratified=False))
    assert client.table(name).sampler == rs.Prioritized(1.0, stratified=False)
    client.add(name, items(*range(50)))
    repeats = [np.bincount(client.sample(name, 50).data["k"]).max() for _ in range(20)]
    assert max(repeats) > 3  # of stratified draws of equal items none comes more than twice


def test_the_arrays_belong_to_the_caller(client, table, items):
    client.add(table, items(1, 2, 3))
    batch = client.sample(table, 8)
    batch.data["x"][:] = 0
    batch.ids[:] = 0
    assert client.sample(table, 8).data["x"].any()


def test_out_is_received_into_without_new_arrays(client, table, items):
    client.add(table, items(1, 2, 3))
    out = client.sample(table, 16)
    addresses = [array.ctypes.data for array in out.arrays()]
    assert client.sample(table, 16, out=out) is out
    assert [array.ctypes.data for array in out.arrays()] == addresses


def test_a_batch_size_may_be_a_numpy_integer(client, table, items):
    client.add(table, items(1, 2))
    assert len(client.sample(table, np.int64(3))) == 3


def test_some_columns_may_be_asked_for(client, table, items):
    client.add(table, items(1, 2, 3))
    assert list(client.sample(table, 4, columns=["k"]).data) == ["k"]
    assert list(client.sample(table, 4, columns=["k", "x"]).data) == ["k", "x"]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("bool", (3,)),
        ("int8", ()),
        ("uint16", (2, 2)),
        ("uint64", ()),
        ("float16", (5,)),
        ("float64", (1, 1, 1)),
        ("complex64", (2,)),
        ("S16", ()),
    ],
)
def test_every_dtype_comes_back_bit_by_bit(client, make_table, dtype, shape):
    name = make_table(signature={"v": rs.Column(dtype, shape)})
    size = 50 * int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    noise = np.random.default_rng(5).integers(0, 256, size, np.uint8)
    values = (noise % 2 if dtype == "bool" else noise).view(dtype).reshape(50, *shape)
    ids = client.add(name, {"v": values})
    assert client.get(name, ids).data["v"].tobytes() == values.tobytes()


def test_a_large_batch_of_frames_comes_back_bit_by_bit(client, make_table):
    signature = {"obs": rs.Column("uint8", (4, 84, 84)), "next_obs": rs.Column("uint8", (4, 84, 84))}
    name = make_table(1024, signature, sampler=rs.Uniform())
    generator = np.random.default_rng(6)
    frames = generator.integers(0, 256, (2, 512, 4, 84, 84), np.uint8)
    ids = client.add(name, {"obs": frames[0], "next_obs": frames[1]})
    order = generator.permutation(512)
    batch = client.get(name, ids[order])
    np.testing.assert_array_equal(batch.data["obs"], frames[0][order])
    np.testing.assert_array_equal(batch.data["next_obs"], frames[1][order])
    row = {item: i for i, item in enumerate(ids.tolist())}
    batch = client.sample(name, 512)  # 29 MB
    rows = [row[item] for item in batch.ids.tolist()]
    np.testing.assert_array_equal(batch.data["next_obs"], frames[1][rows])


def test_priorities_default_to_the_maximum_of_the_live(client, make_table, items):
    name = make_table(sampler=rs.Prioritized(1.0))
    first = client.add(name, items(1))
    assert client.info(name)["max_priority"] == 1.0
    assert client.update_priorities(name, first, [4.0]) == (1, 0)
    client.add(name, items(2))
    assert client.info(name)["total_priority"] == 8.0


def test_updates_change_what_is_drawn(client, table, items):
    ids = client.add(table, items(1, 2, 3))
    assert client.update_priorities(table, ids, [0.0, 0.0, 5.0]) == (3, 0)
    assert set(client.sample(table, 200).data["k"]) == {3}


def test_an_update_to_an_item_that_was_replaced_is_stale_and_changes_nothing(client, make_table, items):
    name = make_table(capacity=2)
    old = client.add(name, items(1, 2), [1.0, 1.0])
    new = client.add(name, items(3, 4), [1.0, 1.0])
    assert client.update_priorities(name, np.concatenate([old, new[:1]]), [9.0, 9.0, 1.0]) == (1, 2)
    np.testing.assert_array_equal(client.get(name, new).probabilities, [0.5, 0.5])
    info = client.info(name)
    assert (info["stale_updates"], info["max_priority"], info["size"], info["removed"]) == (2, 1.0, 2, 2)


def test_delete_and_get(client, table, items):
    ids = client.add(table, items(1, 2, 3))
    assert client.delete(table, ids[:1]) == 1
    assert client.delete(table, ids[:1]) == 0
    with pytest.raises(rs.ServerError, match="is not in table"):
        client.get(table, ids)
    assert client.get(table, ids[1:]).data["k"].tolist() == [2, 3]
    assert len(client.get(table, [])) == 0


def test_info_counts(client, table, items):
    client.add(table, items(1, 2, 3))
    client.sample(table, 10)
    info = client.info(table)
    fields = {"size", "capacity", "bytes", "added", "sampled", "removed", "stale_updates", "max_priority"}
    assert fields | {"waiting", "reason"} <= set(info)
    assert (info["size"], info["capacity"], info["added"], info["sampled"]) == (3, 100, 3, 10)
    assert info["bytes"] == 3 * 16
    assert info["reason"] == ""


def test_reset_keeps_ids_unique(client, table, items):
    old = client.add(table, items(1, 2))
    client.reset(table)
    assert client.info(table)["size"] == 0
    assert not set(old.tolist()) & set(client.add(table, items(1, 2)).tolist())


def test_an_item_leaves_after_max_times_sampled(client, make_table, items):
    name = make_table(sampler=rs.Fifo(), max_times_sampled=1)
    client.add(name, items(1, 2, 3))
    assert client.sample(name, 2).data["k"].tolist() == [1, 2]
    assert client.sample(name, 1).data["k"].tolist() == [3]
    assert client.info(name)["size"] == 0


def test_max_bytes_removes_the_oldest(client, make_table, items):
    name = make_table(max_bytes=5 * 16)
    client.add(name, items(*range(4)))
    client.add(name, items(*range(4, 8)))
    info = client.info(name)
    assert (info["size"], info["bytes"], info["removed"]) == (5, 80, 3)


def test_tables_are_listed_described_and_dropped(client, make_table):
    made = rs.Table(
        "described",
        50,
        {"a": rs.Column("uint8", (4, 84, 84)), "b": rs.Column("float32")},
        sampler=rs.Prioritized(0.7),
        rate_limiter=rs.SampleToInsertRatio(4.0, 10, 100.0),
        max_times_sampled=4,
        max_bytes=10**9,
        seed=5,
    )
    client.create_table(made)
    client.create_table(made)
    assert client.table("described") == made
    assert "described" in client.tables()
    with pytest.raises(rs.SchemaError, match="exists"):
        client.create_table(rs.Table("described", 51, made.signature))
    client.drop_table("described")
    assert "described" not in client.tables()
    with pytest.raises(rs.TableNotFound, match="described"):
        client.info("described")


def test_a_live_table_is_configured(client, make_table, items):
    name = make_table(rate_limiter=rs.MinSize(5))
    client.add(name, items(1, 2, 3))
    with pytest.raises(rs.Timeout, match="min_size_to_sample = 5"):
        client.sample(name, 1, timeout=0)
    client.configure(name, rate_limiter=rs.MinSize(3), max_times_sampled=7)
    client.sample(name, 1, timeout=0)
    assert client.table(name).rate_limiter == rs.MinSize(3)
    assert client.table(name).max_times_sampled == 7
    assert client.table(name).max_bytes == 0


def test_a_table_made_anew_with_other_columns_is_noticed(client, server, make_table, items):
    name = make_table()
    client.add(name, items(1))
    client.sample(name, 1)
    with rs.Client(server.url) as other:
        other.drop_table(name)
        other.create_table(rs.Table(name, 10, {"y": rs.Column("int8")}))
    client.add(name, {"y": [1, 2]})
    assert set(client.sample(name, 4).data) == {"y"}


def test_weights_travel_by_version(client):
    arrays = {"w": np.random.default_rng(0).normal(size=(512, 700)), "b": np.arange(5, dtype=np.int64)}
    assert client.fetch_weights("policy") is None
    assert client.publish_weights("policy", arrays) == 1
    version, fetched = client.fetch_weights("policy")
    assert version == 1
    for name in arrays:
        np.testing.assert_array_equal(fetched[name], arrays[name])
    assert client.fetch_weights("policy", newer_than=1) is None
    assert client.publish_weights("policy", {"w": arrays["b"]}, version=10) == 10
    version, fetched = client.fetch_weights("policy", newer_than=1)
    assert (version, list(fetched)) == (10, ["w"])
    with pytest.raises(rs.StaleVersion, match="10"):
        client.publish_weights("policy", arrays, version=10)
    assert client.fetch_weights("policy")[0] == 10


def test_publishing_the_same_weights_as_the_same_version_again_changes_nothing(client):
    arrays = {"w": np.arange(1000.0)}
    for _ in range(2):
        assert client.publish_weights("again", arrays, version=4) == 4
    assert client.fetch_weights("again", newer_than=4) is None
    for conflict in ({"w": np.arange(1000.0) + 1}, {"w": np.arange(999.0)}, {"v": np.arange(1000.0)}):
        with pytest.raises(rs.StaleVersion, match="expected a version above 4"):
            client.publish_weights("again", conflict, version=4)
    assert client.publish_weights("again", arrays) == 5  # without a version it is a new one
    with pytest.raises(rs.StaleVersion, match="expected a version above 5"):
        client.publish_weights("again", arrays, version=4)  # somebody has published since


def test_the_redis_client_of_the_same_server(client):
    client.redis.set("key", "value")
    assert client.redis.get("key") == b"value"
    client.redis.delete("key")


def test_the_redis_client_is_as_patient_as_its_own(server):
    # redis-py's own default, 5 s, is less than a busy machine's longest pause.
    with rs.Client(server.url, connect_timeout=3.0, socket_timeout=61.0) as client:
        given = client.redis.connection_pool.connection_kwargs
        assert (given["socket_connect_timeout"], given["socket_timeout"]) == (3.0, 61.0)


def test_plain_redis_py_drives_every_command(client, make_table, items):
    redis, name = client.redis, make_table(sampler=rs.Prioritized(1.0))
    batch = items(1, 2, 3)
    priorities = np.array([1.0, 1.0, 2.0])
    arguments = ["COLUMNS", 2, "x", batch["x"].tobytes(), "k", batch["k"].tobytes()]
    ids = redis.execute_command("REPLAY.ADD", name, 3, priorities.tobytes(), *arguments)
    assert len(set(np.frombuffer(ids, "<u8").tolist())) == 3
    reply = redis.execute_command("REPLAY.SAMPLE", name, 8, "BETA", 1, "COLUMNS", 1, "k")
    assert len(reply) == 5
    assert reply[3] == b"k"
    keys, weights = np.frombuffer(reply[4], "<i8"), np.frombuffer(reply[2], "<f4")
    probabilities = np.frombuffer(reply[1], "<f8")
    np.testing.assert_allclose(probabilities, priorities[keys - 1] / 4)
    np.testing.assert_allclose(weights, probabilities.min() / probabilities)
    assert redis.execute_command("REPLAY.UPDATE", name, ids, priorities.tobytes()) == [3, 0]
    assert redis.execute_command("REPLAY.GET", name, ids)[6] == batch["k"].tobytes()
    assert redis.execute_command("REPLAY.DEL", name, ids[:8]) == 1
    assert name.encode() in redis.execute_command("REPLAY.LIST")
    info = redis.execute_command("REPLAY.INFO", name)
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    assert fields[b"size"] == 2
    assert redis.execute_command("REPLAY.RESET", name) in (b"OK", "OK", True)
    assert redis.execute_command("WEIGHTS.PUBLISH", "raw", "*", b"bytes") == 1
    assert redis.execute_command("WEIGHTS.GET", "raw") == [1, b"bytes"]
    assert redis.execute_command("WEIGHTS.GET", "raw", "NEWER", 1) is None
    assert b"raw" in redis.execute_command("WEIGHTS.LIST")
    about = redis.execute_command("WEIGHTS.INFO", "raw")
    about = about if isinstance(about, dict) else dict(zip(about[::2], about[1::2]))
    assert (about[b"version"], about[b"bytes"]) == (1, 5)
    assert 0 <= about[b"age_ms"] < 600_000
    assert redis.execute_command("WEIGHTS.DEL", "raw") == 1


def test_resp2_has_flat_arrays_where_resp3_has_maps(raw, table):
    flat = raw.command("REPLAY.INFO", table)
    assert isinstance(flat, list)
    raw.command("HELLO", 3)
    mapped = raw.command("REPLAY.INFO", table)
    assert list(mapped) == flat[::2]
    assert isinstance(mapped[b"max_priority"], float)


def test_many_threads_share_a_client(client, make_table, items):
    name = make_table(capacity=10_000)
    client.add(name, items(0))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(50):
                ids = client.add(name, items(*range(i, i + 4)))
                batch = client.sample(name, 32)
                np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
                client.update_priorities(name, ids, np.ones(4))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert client.info(name)["added"] == 1 + 6 * 50 * 4


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(client, table, items):
    client.add(table, items(1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for key in range(50):
                client.add(table, items(key))
            status = 0
        finally:
            os._exit(status)
    for key in range(50):
        client.add(table, items(key))
    assert os.waitpid(child, 0)[1] == 0
    assert client.info(table)["added"] == 101


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_closes_its_client_leaves_its_parent_connected(server, table, items):
    with rs.Client(server.url) as parent:
        connection = parent.command("CLIENT", "ID")
        child = os.fork()
        if child == 0:
            parent.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert parent.command("CLIENT", "ID") == connection


def test_any_command_is_answered_as_it_comes(client):
    assert client.command("SET", "any", b"\x00\xff", "EX", 100) == "OK"
    assert client.command("SET", "any", b"other", "NX") is None
    assert client.command("GET", "any", repeatable=True) == b"\x00\xff"
    assert client.command("RPUSH", "any-list", "a", "b") == 2
    assert client.command("LRANGE", "any-list", 0, -1) == [b"a", b"b"]
    assert client.command("DEL", "any", "any-list") == 2
    with pytest.raises(rs.ServerError, match="unknown command"):
        client.command("NO.SUCH")


def test_a_connection_costs_no_error(server):
    """redis-py asks each server for notices of maintenance, and its refusal would count as an error of a client."""
    with rs.Client(server.url) as client:
        before = client.redis.info("errorstats")
        with rs.Client(server.url) as other:
            assert other.redis.ping()
        assert client.redis.info("errorstats") == before
