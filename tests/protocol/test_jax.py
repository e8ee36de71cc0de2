"""JAX arrays from a table."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

import replay_server as rs  # noqa: E402
from replay_server.jax import sampler, to_jax  # noqa: E402

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


def test_a_ragged_column_has_jax_arrays():
    buffer = rs.Buffer(rs.Table("t", 10, {"tokens": rs.Column("int32", (None,))}))
    buffer.add({"tokens": [np.arange(3, dtype=np.int32)]})
    tokens = to_jax(buffer.sample(2)).data["tokens"]
    assert isinstance(tokens.values, jax.Array)
    assert (tokens.values.tolist(), tokens.offsets.tolist()) == ([0, 1, 2, 0, 1, 2], [0, 3, 6])


def test_a_batch_is_put_on_a_device(handle):
    batch = to_jax(handle.sample(8), jax.devices("cpu")[0])
    check(batch)
    assert float(jax.jit(lambda data: data["obs"]["state"].sum())(batch.data)) >= 0
