"""Ragged columns in process: what is taken and refused, what a batch has, how much of it is stored, and interrupts."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import replay_server as rs


def table(capacity: int = 100, **parts: object) -> rs.Table:
    parts = {"signature": {"tokens": rs.Column("int32", (None,), max_length=4096)}, "sampler": rs.Fifo(), **parts}
    return rs.Table("t", capacity, **parts)  # type: ignore[arg-type]


def rows(*lengths: int) -> list[np.ndarray]:
    return [np.arange(length, dtype=np.int32) + 1000 * index for index, length in enumerate(lengths)]


def check_same(column: rs.Ragged, expected: list[np.ndarray]) -> None:
    assert len(column) == len(expected)
    for got, wanted in zip(column, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


GIVEN = rows(3, 0, 1)


@pytest.mark.parametrize(
    "given_as",
    [
        GIVEN,
        [row.tolist() for row in GIVEN],
        (np.concatenate(GIVEN), np.array([0, 3, 3, 4])),
        (np.concatenate(GIVEN), [0, 3, 3, 4]),
        rs.Ragged(np.concatenate(GIVEN), np.array([0, 3, 3, 4])),
    ],
    ids=["arrays", "lists", "values and offsets", "offsets in a list", "Ragged"],
)
def test_items_are_taken_as_arrays_or_as_values_and_offsets(given_as):
    buffer = rs.Buffer(table())
    assert len(buffer.add({"tokens": given_as})) == 3
    batch = buffer.sample(3)
    check_same(batch.data["tokens"], GIVEN)
    assert batch.data["tokens"].values.dtype == np.int32
    np.testing.assert_array_equal(batch.data["tokens"].offsets, [0, 3, 3, 4])


def test_one_array_is_items_of_one_length():
    buffer = rs.Buffer(table())
    buffer.add({"tokens": np.arange(12, dtype=np.int32).reshape(3, 4)})
    assert buffer.sample(3).data["tokens"].padded().tolist() == np.arange(12).reshape(3, 4).tolist()


def test_rows_may_have_a_shape_of_their_own():
    points = [np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32), np.full((1, 3), 5, np.float32)]
    buffer = rs.Buffer(table(signature={"points": rs.Column("float32", (None, 3)), "k": rs.Column("int64")}))
    buffer.add({"points": points, "k": np.arange(3)})
    batch = buffer.sample(3)
    check_same(batch.data["points"], points)
    assert batch.data["points"].padded(-1.0).shape == (3, 2, 3)
    assert batch.data["points"].padded(-1.0)[1].tolist() == [[-1.0] * 3] * 2
    assert batch.data["k"].tolist() == [0, 1, 2]


def test_ragged_columns_may_lie_in_dicts_and_tuples():
    signature = {
        "text": {"tokens": rs.Column("int32", (None,)), "pair": (rs.Column("int8", (None,)), rs.Column("int64"))}
    }
    buffer = rs.Buffer(table(signature=signature))
    parts = [np.ones(2, np.int8), np.zeros(0, np.int8), np.ones(1, np.int8)]
    buffer.add({"text": {"tokens": GIVEN, "pair": (parts, np.arange(3))}})
    batch = buffer.sample(3)
    check_same(batch.data["text"]["tokens"], GIVEN)
    check_same(batch.data["text"]["pair"][0], parts)
    check_same(buffer.sample(3, columns=["text/tokens"], writable=False).data["text"]["tokens"], GIVEN)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([np.zeros(3, np.int64)], "item 0 of a ragged column: column 'tokens' expects dtype int32, got int64"),
        ([np.zeros((3, 1), np.int32)], r"item 0 .* expects shape \(N,\), got \(3, 1\)"),
        ([np.zeros(4097, np.int32)], r"at most 4096 rows \(its max_length\), got 4097 at index 0"),
        ((np.zeros(3, np.int32), [0, 2]), "end with the number of rows, 3"),
        ((np.zeros(3, np.int32), [1, 3]), "begin with 0"),
        ((np.zeros(3, np.int32), [0, 5, 3]), "ascend"),
        ((np.zeros(3, np.int32), [0.0, 3.0]), "whole numbers of shape"),
        ((np.zeros(3, np.int32),), "a tuple of 1"),
        (np.zeros(3, np.int32), "expected a list of arrays of int32"),
        (7, "expected a list of arrays of int32"),
        ([["a"]], "item 0 of a ragged column"),
    ],
)
def test_what_is_not_rows_of_items_is_refused_whole(value, message):
    buffer = rs.Buffer(table())
    with pytest.raises(rs.SchemaError, match=message):
        buffer.add({"tokens": value})
    assert buffer.info()["added"] == buffer.info()["bytes"] == 0


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda: rs.Column("int32", (3, None)), "or None and sizes of at least 1"),
        (lambda: rs.Column("int32", (3,), max_length=5), "max_length is for ragged columns"),
        (lambda: rs.Column("int32", (None,), step_only=True), "step_only has a fixed shape"),
        (lambda: rs.Column("int32", (None,), max_length=0), "at least 1"),
        (
            lambda: rs.Buffer(table(signature={"x": rs.Column("int32", (None,), max_length=1 << 28)})),
            "expected at most",
        ),
        (lambda: rs.Buffer(table(max_bytes=10000)), "room for the longest item"),
        (
            lambda: table(signature={"f": rs.Column("int32", (None,)), "w": rs.Window("f", 2)}),
            "the name of an rs.Column of a fixed shape",
        ),
        (
            lambda: table(
                signature={"f": rs.Column("int32"), "w": rs.Window("f", 2), "tokens": rs.Column("int32", (None,))}
            ),
            "has windows and the ragged column 'tokens'",
        ),
        (lambda: table(compression="lz4"), "compression applies to steps"),
    ],
)
def test_what_cannot_work_is_refused_when_the_table_is_made(column, message):
    with pytest.raises(rs.SchemaError, match=message):
        column()


def test_a_spec_keeps_ragged_columns():
    made = table(signature={"a": rs.Column("int32", (None, 2), max_length=7), "b": rs.Column("int8", None)})
    assert rs.Table.unpack(made.pack()) == made
    assert made.signature["b"].max_length == 65536


def test_the_mask_says_where_padded_rows_are_items():
    tokens = rs.Ragged(np.concatenate(GIVEN), np.array([0, 3, 3, 4]))
    assert tokens.mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    padded = tokens.padded(-1)
    assert padded.tolist() == [[0, 1, 2], [-1, -1, -1], [2000, -1, -1]]
    np.testing.assert_array_equal(padded[tokens.mask], tokens.values)
    assert tokens.padded(0, 5).shape == (3, 5)
    with pytest.raises(rs.SchemaError, match="at least 3 rows"):
        tokens.padded(0, 2)
    assert rs.Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)).padded().shape == (0, 0)


def test_a_batch_is_received_into_again_and_its_memory_grows():
    buffer = rs.Buffer(table(sampler=rs.Lifo()))
    buffer.add({"tokens": rows(5, 6)})
    batch = buffer.sample(2)
    memory = batch.data["tokens"].room.memory
    again = buffer.sample(2, out=batch)
    assert again is batch
    assert batch.data["tokens"].room.memory is memory
    longer = rows(400, 3000)
    buffer.add({"tokens": longer})
    buffer.sample(2, out=batch)
    check_same(batch.data["tokens"], longer[::-1])
    assert buffer.info()["pinned_slots"] == 0
    own = rs.Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))
    batch.data["tokens"] = own
    buffer.sample(2, out=batch)
    check_same(own, longer[::-1])
    batch.data["tokens"] = np.zeros(2, np.int32)
    with pytest.raises(rs.SchemaError, match=r"must be an rs\.Ragged"):
        buffer.sample(2, out=batch)


def test_batches_can_be_read_only_and_travel():
    buffer = rs.Buffer(table())
    buffer.add({"tokens": GIVEN})
    batch = buffer.sample(3, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        batch.data["tokens"].values[0] = 1
    with pytest.raises(rs.SchemaError, match="read-only"):
        buffer.sample(3, out=batch)
    check_same(pickle.loads(pickle.dumps(batch)).data["tokens"], GIVEN)  # noqa: S301


def test_the_longest_mix_takes_little_more_than_its_values():
    """Items of 1 to 4,096 tokens, uniformly and by order of magnitude: what is stored is at most 1.02 of the values."""
    generator = np.random.default_rng(3)
    for lengths in (generator.integers(1, 4097, 2000), np.exp(generator.uniform(0, np.log(4096), 2000)).astype(int)):
        buffer = rs.Buffer(table(2000, sampler=rs.Uniform()))
        for part in np.split(lengths, 10):
            buffer.add({"tokens": [np.zeros(length, np.int32) for length in part]})
        assert buffer.info()["size"] == 2000
        assert lengths.sum() * 4 < buffer.info()["bytes"] <= lengths.sum() * 4 * 1.02


def test_the_oldest_items_make_room_within_max_bytes():
    buffer = rs.Buffer(table(1000, max_bytes=40000))
    for length in range(100, 4100, 100):
        buffer.add({"tokens": rows(length)})
        assert buffer.info()["bytes"] <= 40000
    held = buffer.sample(buffer.info()["size"]).data["tokens"]
    assert held.lengths.tolist() == [3900, 4000]  # 31,600 bytes: one of 3,800 rows does not fit beside them
    with pytest.raises(rs.LimitExceeded, match="max_bytes of table 't' is 40000"):
        buffer.add({"tokens": rows(4000, 4000, 4000)})
    assert buffer.info()["size"] == 2


def test_raising_max_bytes_on_a_live_table_makes_room_at_once():
    buffer = rs.Buffer(table(1000, max_bytes=20000))
    buffer.configure(max_bytes=400000)
    buffer.add({"tokens": rows(4000, 4000, 4000)})
    assert buffer.info()["size"] == 3
    buffer.configure(max_bytes=20000)
    assert buffer.info()["size"] == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(arrays.arrays(np.uint8, st.tuples(st.integers(0, 5000), st.just(2))), min_size=1, max_size=9), st.data()
)
def test_every_item_comes_back_whatever_its_length(items, data):
    buffer = rs.Buffer(rs.Table("t", 20, {"x": rs.Column("uint8", (None, 2))}, rs.Uniform()))
    ids = np.concatenate([buffer.add({"x": [item]}) for item in items])
    order = data.draw(st.permutations(range(len(items))))
    got = buffer.get(ids[order])
    check_same(got.data["x"], [items[index] for index in order])


def test_a_restored_buffer_has_the_same_rows(tmp_path):
    buffer = rs.Buffer(table())
    ids = buffer.add({"tokens": GIVEN})
    path = buffer.checkpoint(str(tmp_path / "kept"))
    buffer.reset()
    buffer.restore(path)
    check_same(buffer.get(ids).data["tokens"], GIVEN)
    assert buffer.info()["pinned_slots"] == 0


class Interrupt(BaseException):
    pass


def test_interrupts_leave_no_item_pinned():
    buffer = rs.Buffer(table(sampler=rs.Uniform()))
    buffer.add({"tokens": rows(*range(1, 90))})

    def sample_for_ever() -> None:
        with contextlib.suppress(Interrupt):
            while True:
                buffer.sample(8)

    for _ in range(100):
        thread = threading.Thread(target=sample_for_ever)
        thread.start()
        while thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt))
            thread.join(0.002)
    buffer.sample(8)
    assert buffer.info()["pinned_slots"] == 0


@pytest.mark.parametrize("dtype", ["bool", "float16", "complex64", "S5"])
def test_rows_of_other_dtypes_come_back(dtype):
    buffer = rs.Buffer(table(signature={"x": rs.Column(dtype, (None, 2))}))
    values = [np.array([[1, 0], [0, 1]]).astype(dtype), np.empty((0, 2), dtype)]
    buffer.add({"x": values})
    check_same(buffer.sample(2).data["x"], values)
    assert buffer.sample(2).data["x"].padded().shape == (2, 2, 2)


@pytest.mark.parametrize("rows", [2, 200])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("int32", np.nan), ("int32", 0.5), ("uint8", -1), ("uint8", 256), ("int64", np.inf), ("bool", 2)],
)
def test_a_fill_that_the_column_cannot_hold_is_refused(rows, dtype, fill):
    ragged = rs.Ragged(np.ones(rows, dtype), np.array([0, rows, rows], np.int64))
    with pytest.raises(rs.SchemaError, match=f"fill must be a value of {dtype}, got {fill!r}"):
        ragged.padded(fill)
    assert ragged.padded(True).shape == (2, rows)
    assert np.isnan(rs.Ragged(np.ones(rows), ragged.offsets).padded(np.nan)[1]).all()
