"""JAX arrays from a table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

import replay_server as rs  # noqa: E402
from replay_server.jax import PriorityUpdates, RaggedArray, sampler, to_jax  # noqa: E402

SIGNATURE = {
    "obs": {"image": rs.Column("uint8", (96, 96)), "state": rs.Column("float32", (3,))},
    "done": rs.Column("bool"),
    "k": rs.Column("int64"),
}


@pytest.fixture(params=["in process", "socket", "shared memory"])
def handle(request, server, make_table):
    """A table of 200 items."""
    numbers = np.arange(200)
    rows = {
        "obs": {
            "image": np.broadcast_to(numbers.astype(np.uint8)[:, None, None], (200, 96, 96)).copy(),
            "state": np.repeat(numbers.astype(np.float32)[:, None], 3, axis=1),
        },
        "done": numbers % 2 == 0,
        "k": numbers,
    }
    if request.param == "in process":
        made = rs.Buffer(rs.Table("t", 1000, SIGNATURE))
        made.add(rows)
        yield made
        return
    with rs.Client(server.url, shared_memory=None if request.param == "shared memory" else False) as client:
        made = client[make_table(1000, SIGNATURE)]
        made.add(rows)
        yield made


def check(batch) -> None:
    keys = np.asarray(batch.data["k"])
    assert isinstance(batch.data["obs"]["image"], jax.Array)
    np.testing.assert_array_equal(np.asarray(batch.data["obs"]["image"][:, 3, 3]), keys % 256)
    np.testing.assert_array_equal(np.asarray(batch.columns["obs/state"][:, 1]), keys)
    np.testing.assert_array_equal(np.asarray(batch.data["done"]), keys % 2 == 0)
    assert batch.ids.dtype == np.uint64


def test_batches_are_jax_arrays_and_stay_as_they_were(handle):
    with sampler(handle, 32, beta=0.4) as batches:
        kept = [next(batches) for _ in range(30)]
        batches.beta = 1.0
    for batch in kept:
        check(batch)
    assert handle.update_priorities(kept[0].ids, jax.numpy.ones(32)) == (32, 0)


@pytest.mark.parametrize("where", ["in process", "socket", "shared memory"])
def test_a_ragged_column_is_what_the_host_s_is(where, server, make_table):
    signature = {"tokens": rs.Column("int32", (None, 2)), "k": rs.Column("int32")}
    if where == "in process":
        check_ragged(rs.Buffer(rs.Table("t", 10, signature)))
        return
    with rs.Client(server.url, shared_memory=where == "shared memory") as client:
        check_ragged(client[make_table(10, signature)])


def check_ragged(handle) -> None:
    items = [np.full((n, 2), n, np.int32) for n in (3, 0, 7_000, 1)]
    handle.add({"tokens": items, "k": np.arange(4, dtype=np.int32)})
    for batch in (handle.sample(8), handle.sample(3)):
        host, tokens = batch.data["tokens"], to_jax(batch).data["tokens"]
        assert isinstance(tokens.values, jax.Array)
        assert isinstance(tokens.offsets, jax.Array)
        assert len(tokens) == len(host)
        np.testing.assert_array_equal(tokens.values, host.values)
        np.testing.assert_array_equal(tokens.offsets, host.offsets)
        np.testing.assert_array_equal(tokens.lengths, host.lengths)
        np.testing.assert_array_equal(tokens.mask, host.mask)
        np.testing.assert_array_equal(tokens.padded(-1), host.padded(-1))
        np.testing.assert_array_equal(tokens.padded(7, 7_001), host.padded(7, 7_001))
        assert isinstance(tokens.padded(), jax.Array)
        assert isinstance(tokens.mask, jax.Array)
    handle.add({"tokens": [items[1]] * 10, "k": np.arange(10, dtype=np.int32)})  # nothing else is left
    empty = to_jax(handle.sample(2)).data["tokens"]
    assert (empty.padded().shape, empty.mask.shape) == ((2, 0, 2), (2, 0))
    assert empty.padded(5, 2)[:, :, 0].tolist() == [[5, 5], [5, 5]]


def ragged(*lengths: int) -> RaggedArray:
    offsets = np.cumsum([0, *lengths])
    return RaggedArray(jax.numpy.arange(offsets[-1], dtype=np.float32), jax.numpy.asarray(offsets))


def test_a_ragged_column_is_padded_within_jit_to_a_given_length():
    padded = jax.jit(lambda tokens: tokens.padded(-1, 3))
    assert padded(ragged(1, 2)).tolist() == [[0, -1, -1], [1, 2, -1]]
    assert padded(ragged(4, 1)).tolist() == [[0, 1, 2], [4, -1, -1]], "what is longer is cut off"
    assert padded(ragged(0, 0)).tolist() == [[-1] * 3] * 2
    tokens = ragged(1, 2)
    gradient = jax.grad(lambda values: (RaggedArray(values, tokens.offsets).padded(0, 2) ** 2).sum())(tokens.values)
    assert gradient.tolist() == [0, 2, 4], "the values alone are traced"
    with pytest.raises(rs.SchemaError, match=r"fill must be a value of int32, got -0\.5"):
        jax.jit(lambda tokens: tokens.padded(-0.5, 3))(RaggedArray(tokens.offsets, tokens.offsets))
    with pytest.raises(rs.SchemaError, match=r"not known within jax\.jit: give padded\(\) a length"):
        jax.jit(lambda tokens: tokens.padded())(ragged(1))
    with pytest.raises(rs.SchemaError, match=r"not known within jax\.jit"):
        jax.jit(lambda tokens: tokens.mask)(ragged(1))


@pytest.mark.parametrize("committed", [True, False])
def test_a_ragged_column_is_padded_where_it_is(committed):
    device = jax.devices("cpu")[0] if committed else None
    tokens = jax.device_put(RaggedArray(np.arange(3), np.array([0, 1, 3])), device)
    for made in (tokens.padded(), tokens.mask):
        assert made.sharding == tokens.values.sharding
        assert made.committed == tokens.values.committed == committed
    assert jax.device_get(tokens).padded().tolist() == tokens.padded().tolist()


def test_a_length_below_the_longest_and_a_fill_that_the_column_cannot_hold_are_refused():
    with pytest.raises(rs.SchemaError, match="at least 4 rows, the longest item's, got 3"):
        ragged(4, 1).padded(length=3)
    with pytest.raises(rs.SchemaError, match="fill must be a value of uint8, got -1"):
        RaggedArray(jax.numpy.ones(2, np.uint8), jax.numpy.asarray([0, 1, 2])).padded(-1)


def test_data_is_a_pytree_with_ragged_columns_in_it(make_table, client):
    signature = {
        "obs": {"pair": (rs.Column("float32", (3,)), rs.Column("int32"))},
        "tokens": rs.Column("int32", (None,)),
    }
    handle = client[make_table(10, signature)]
    pair = np.ones((2, 3), np.float32), np.arange(2, dtype=np.int32)
    handle.add({"obs": {"pair": pair}, "tokens": [np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32)]})
    data = to_jax(handle.sample(4)).data
    assert len(jax.tree.leaves(data)) == 4
    doubled = jax.jit(lambda tree: jax.tree.map(lambda array: 2 * array, tree))(data)
    assert isinstance(doubled["tokens"], RaggedArray)
    np.testing.assert_array_equal(doubled["tokens"].values, 2 * data["tokens"].values)
    np.testing.assert_array_equal(doubled["obs"]["pair"][0], np.full((4, 3), 2))
    part = to_jax(handle.sample(4, columns=["obs/pair/1"])).data
    assert [array.shape for array in jax.tree.leaves(part)] == [(4,)], "a place without a column is no leaf"
    placed = jax.device_put(data, jax.devices("cpu")[0])
    np.testing.assert_array_equal(placed["tokens"].padded(), data["tokens"].padded())


def test_priorities_come_from_an_array_and_the_last_ones_with_the_end(handle):
    with sampler(handle, 50, replace=False) as batches:
        for _ in range(10):
            batch = next(batches)
            batches.update_priorities(batch.ids, jax.numpy.full(50, 2.0))
    assert handle.info()["max_priority"] == 2.0
    assert handle.info()["updates_applied"] == 500


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_priorities_may_be_of_any_float(handle, dtype):
    ids = handle.sample(10, replace=False).ids
    with PriorityUpdates(handle) as updates:
        updates.update_priorities(ids, jax.numpy.full(10, 1.5, dtype))
    assert handle.info()["max_priority"] == 1.5


def test_priorities_may_be_an_array_of_the_host_and_keep_their_order(handle):
    with sampler(handle, 50, replace=False) as batches:
        ids = next(batches).ids
        batches.update_priorities(ids, jax.numpy.full(50, 7.0))
        batches.update_priorities(ids, np.full(50, 2.0))
        batches.update_priorities(ids[:2], [2.0, 2.0])
        with pytest.raises(rs.PriorityError, match="expected 50 priorities"):
            batches.update_priorities(ids, np.ones(3))
    assert handle.info()["updates_applied"] == 102
    assert set(handle.sample(200, replace=False, details=True).priorities.tolist()) == {1.0, 2.0}


def test_priorities_within_jit_are_refused_and_say_what_to_do(handle):
    ids = handle.sample(2).ids
    with PriorityUpdates(handle) as updates:

        @jax.jit
        def train(values):
            updates.update_priorities(ids, values)
            return values

        with pytest.raises(rs.PriorityError, match="got a tracer: return them from the jitted function"):
            train(np.ones(2))
    assert handle.info()["updates_applied"] == 0


def test_a_wrong_priority_is_raised_by_this_call_or_a_later_one(handle):
    ids = handle.sample(2).ids
    updates = PriorityUpdates(handle)

    def update() -> None:
        updates.update_priorities(ids, jax.numpy.full(2, np.nan))
        updates.flush()

    with pytest.raises(rs.PriorityError, match="finite"):
        update()
    updates.close()


def test_a_batch_of_jax_arrays_tells_the_details_that_were_asked_for(handle):
    single = handle.sample(8, details=True)
    assert to_jax(single).priorities.tolist() == single.priorities.tolist()
    assert to_jax(dataclasses.replace(single, missing=(3,))).missing == (3,)
    with sampler(handle, 16, details=True) as batches:
        assert (next(batches).table_sizes == 200).all()


def test_a_column_of_bytes_is_refused_by_its_name():
    buffer = rs.Buffer(rs.Table("t", 10, {"x": rs.Column("float32"), "tag": rs.Column("S4")}))
    buffer.add({"x": [1.0], "tag": [b"a"]})
    for made in (lambda: to_jax(buffer.sample(2)), lambda: sampler(buffer, 2)):
        with pytest.raises(rs.SchemaError, match=r"column 'tag' holds bytes \(S4\), which JAX has no dtype for"):
            made()
    with sampler(buffer, 2, columns=["x"]) as batches:
        assert next(batches).data["x"].tolist() == [1, 1]


def test_a_batch_is_put_on_a_device(handle):
    batch = to_jax(handle.sample(8), jax.devices("cpu")[0])
    check(batch)
    assert float(jax.jit(lambda data: data["obs"]["state"].sum())(batch.data)) >= 0


@pytest.mark.parametrize("made", [sampler, to_jax])
def test_what_is_no_device_is_refused_when_it_is_given(handle, made):
    arguments = (handle, 8) if made is sampler else (handle.sample(8),)
    with pytest.raises(ValueError, match=r"one of jax\.devices\(\) or a jax\.sharding\.Sharding, got 'cpu'"):
        made(*arguments, device="cpu")
    with sampler(handle, 8, device=jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])) as batches:
        check(next(batches))
