"""Tables as data: what a spec may say, and what a batch must look like."""

from __future__ import annotations

import numpy as np
import pytest

import replay_server as rs
from replay_server.checks import check_columns, check_ids, check_priorities
from replay_server.codec import pack
from replay_server.dtypes import COLUMN_DTYPES

SIGNATURE = {"obs": rs.Column("uint8", (2, 3)), "action": rs.Column("int64"), "reward": rs.Column(np.float32)}


def table(**changes: object) -> rs.Table:
    return rs.Table(**{"name": "t", "capacity": 100, "signature": SIGNATURE, **changes})  # type: ignore[arg-type]


def batch(n: int = 4) -> dict[str, object]:
    return {
        "obs": np.arange(n * 6, dtype=np.uint8).reshape(n, 2, 3),
        "action": np.arange(n),
        "reward": np.ones(n, np.float32),
    }


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"sampler": rs.Prioritized(0.9), "seed": 7},
        {"sampler": rs.Uniform(), "rate_limiter": rs.SampleToInsertRatio(8.0, 1000, 4096)},
        {"sampler": rs.Fifo(), "rate_limiter": rs.Queue(10), "max_times_sampled": 1, "max_bytes": 1 << 20},
    ],
)
def test_a_spec_comes_back_as_the_same_table(parts):
    original = table(**parts)
    assert rs.Table.unpack(original.pack()) == original
    assert list(rs.Table.unpack(original.pack()).signature) == list(SIGNATURE)
    assert rs.Table.unpack(original.pack(), "other").name == "other"


def test_a_spec_may_be_short():
    spec = {"name": "t", "capacity": 5, "signature": {"x": ["float32", [2]]}, "sampler": "uniform"}
    made = rs.Table.from_spec(spec)
    assert made.signature == {"x": rs.Column("float32", (2,))}
    assert made.sampler == rs.Uniform()
    assert made.rate_limiter == rs.MinSize(1)


@pytest.mark.parametrize(
    ("kind", "selector"),
    [
        ("prioritized", rs.Prioritized()),
        ("uniform", rs.Uniform()),
        ("fifo", rs.Fifo()),
        ("lifo", rs.Lifo()),
        ("max_heap", rs.MaxHeap()),
        ("min_heap", rs.MinHeap()),
    ],
)
def test_a_selector_goes_by_its_name_in_a_spec(kind, selector):
    spec = table(sampler=selector, remover=selector).to_spec()
    assert (spec["sampler"]["kind"], spec["remover"]["kind"]) == (kind, kind)
    made = rs.Table.from_spec({**spec, "sampler": kind, "remover": {"kind": kind}})
    assert (made.sampler, made.remover) == (selector, selector)


@pytest.mark.parametrize("dtype", COLUMN_DTYPES)
def test_every_column_dtype_has_its_size(dtype):
    assert rs.Column(dtype, (3, 5)).item_bytes == 15 * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("complex256", ()),
        ("U5", ()),
        (object, ()),
        (">f4", ()),
        ("nonsense", ()),
        ("uint8", (None, 0)),
        ("uint8", (-1,)),
        ("uint8", (1.5,)),
        ("uint8", (1,) * 9),
    ],
)
def test_a_column_that_cannot_be_is_refused(dtype, shape):
    with pytest.raises(rs.SchemaError):
        rs.Column(dtype, shape)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "x" * 256},
        {"name": "two words"},
        {"name": "line\nbreak"},
        {"capacity": 0},
        {"capacity": 1.5},
        {"capacity": True},
        {"signature": {}},
        {"signature": {f"c{i}": rs.Column("int8") for i in range(257)}},
        {"signature": {"x": "float32"}},
        {"sampler": "prioritized"},
        {"sampler": rs.Prioritized(-0.1)},
        {"sampler": rs.Prioritized(float("nan"))},
        {"sampler": rs.MinSize(1)},
        {"remover": rs.Queue(1)},
        {"remover": rs.Prioritized(-1.0)},
        {"max_staleness": -2},
        {"rate_limiter": rs.MinSize(0)},
        {"rate_limiter": rs.Queue(0)},
        {"rate_limiter": rs.SampleToInsertRatio(0.0, 1, 1)},
        {"rate_limiter": rs.SampleToInsertRatio(1.0, 1, float("inf"))},
        {"max_times_sampled": -1},
        {"max_bytes": -1},
    ],
)
def test_a_table_that_cannot_be_is_refused(changes):
    with pytest.raises(rs.SchemaError):
        table(**changes)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"capacity": 1, "signature": {"x": {"dtype": "int8"}}}, "name"),
        ({"name": "t", "signature": {"x": {"dtype": "int8"}}}, "capacity"),
        ({"name": "t", "capacity": 1}, "signature"),
        ({"name": "t", "capacity": 1, "signature": [1]}, "signature"),
        ({"name": "t", "capacity": 1, "signature": {"x": {"type": "int8"}}}, "'x'"),
        ({"name": "t", "capacity": 1, "signature": {"x": ["int8", []]}, "colour": 1}, "'colour'"),
        ({"name": "t", "capacity": 1, "signature": {"x": ["int8", []]}, "sampler": {"kind": "best"}}, "sampler"),
        (
            {"name": "t", "capacity": 1, "signature": {"x": ["int8", []]}, "rate_limiter": {"kind": "queue", "n": 1}},
            "size",
        ),
    ],
)
def test_a_wrong_spec_is_refused_by_the_name_of_what_is_wrong(spec, said):
    with pytest.raises(rs.SchemaError, match=said):
        rs.Table.unpack(pack(spec))


def test_a_batch_of_arrays_is_passed_on_without_a_copy():
    data = batch()
    count, columns = check_columns(table(), data)
    assert count == 4
    assert all(np.shares_memory(column, data[name]) for name, column in zip(SIGNATURE, columns, strict=True))


def test_columns_may_come_in_any_order_and_layout():
    data = dict(reversed(batch().items()))
    data["obs"] = np.asfortranarray(data["obs"])
    _, columns = check_columns(table(), data)
    np.testing.assert_array_equal(columns[0], batch()["obs"])
    assert columns[0].flags.c_contiguous


def test_lists_of_python_numbers_become_the_columns_dtype():
    _, columns = check_columns(table(), {"obs": [[[1, 2, 3], [4, 5, 255]]], "action": [True], "reward": [0.1]})
    assert [column.dtype for column in columns] == [np.uint8, np.int64, np.float32]
    assert columns[0][0, 1, 2] == 255
    assert columns[2][0] == np.float32(0.1)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("obs", np.zeros((4, 2, 3), np.float32), "dtype uint8, got float32"),
        ("obs", np.zeros((4, 3, 2), np.uint8), r"shape \(N, 2, 3\), got \(4, 3, 2\)"),
        ("obs", np.zeros((4, 2), np.uint8), "shape"),
        ("obs", np.zeros((5, 2, 3), np.uint8), "has 4 items"),
        ("obs", [[[1, 2, 3], [4, 5, 256]]] * 4, "cannot hold 1 to 256"),
        ("obs", [[[1, 2, 3], [4, 5, -1]]] * 4, "cannot hold -1 to 5"),
        ("obs", [[[1, 2, 3], [4, 5]]] * 4, "one shape"),
        ("action", np.zeros(4, np.int32), "dtype int64, got int32"),
        ("action", np.zeros(4), r"\.astype\('int64'\)"),
        ("action", np.zeros(4, ">i8"), "dtype int64, got >i8"),
        ("action", [0.0, 1.0, 2.0, 3.0], "list of float64"),
        ("action", ["a"] * 4, "list of"),
        ("action", 3, "shape"),
        ("action", [2**63] * 4, "int64"),
        ("reward", np.zeros((4, 1), np.float32), "shape"),
        ("reward", np.zeros(4), "dtype float32, got float64"),
        ("reward", [1e300] * 4, "cannot hold"),
        ("reward", None, "dtype float32"),
    ],
)
def test_a_wrong_column_is_refused_with_what_was_expected_and_what_came(column, value, said):
    with pytest.raises(rs.SchemaError, match=said) as caught:
        check_columns(table(), {**batch(), column: value})
    assert "'" in str(caught.value)


def test_missing_and_unknown_columns_are_named():
    data = batch()
    data["rewards"] = data.pop("reward")
    with pytest.raises(rs.SchemaError, match="missing: reward; unknown: rewards"):
        check_columns(table(), data)
    with pytest.raises(rs.SchemaError, match="dict"):
        check_columns(table(), [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("priorities", "said"),
    [
        ([1.0, float("nan"), 1.0], "nan at index 1"),
        ([1.0, 1.0, float("inf")], "inf at index 2"),
        ([-1e-9, 1.0, 1.0], "at index 0"),
        ([1.0, 1.0], "expected 3 priorities"),
        ([[1.0], [1.0], [1.0]], "shape"),
        (1.0, "shape"),
        (["a", "b", "c"], "numbers"),
    ],
)
def test_a_wrong_priority_is_refused(priorities, said):
    with pytest.raises(rs.PriorityError, match=said):
        check_priorities(priorities, 3)


def test_priorities_of_other_number_types_become_float64():
    assert check_priorities(np.ones(3, np.float32), 3).dtype == np.float64
    assert check_priorities([0, 1, 2], 3).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("ids", [[1.5], [-1], 7, [[1]], ["a"]])
def test_what_is_no_id_is_refused(ids):
    with pytest.raises(rs.SchemaError):
        check_ids(ids)


def test_ids_of_lists_become_uint64():
    assert check_ids([1, 2**63 + 1]).tolist() == [1, 2**63 + 1]
    assert check_ids([]).dtype == np.uint64


# ---- windows ---------------------------------------------------------------------------------------------------------

WINDOWS = {
    "obs": rs.Window("frame", length=4),
    "frame": rs.Column("uint8", (84, 84), step_only=True),
    "reward": rs.Column("float32"),
    "reward_before": rs.Window("reward", offset=-1),
    "next_obs": rs.Window("frame", length=4, offset=3),
}


def test_windows_come_back_from_a_spec():
    original = table(signature=WINDOWS)
    again = rs.Table.unpack(original.pack())
    assert again == original
    assert list(again.signature) == list(WINDOWS)


def test_a_batch_has_windows_as_columns_and_no_step_only_ones():
    columns = table(signature=WINDOWS).columns
    assert list(columns) == ["obs", "reward", "reward_before", "next_obs"]
    assert (columns["obs"].dtype, columns["obs"].shape) == ("uint8", (4, 84, 84))
    assert (columns["reward_before"].dtype, columns["reward_before"].shape) == ("float32", ())
    assert list(table(signature=WINDOWS).step_columns) == ["frame", "reward"]
    assert list(table(signature=WINDOWS).item_columns) == ["reward"]
    assert table(signature=WINDOWS).reach == (3, 3)
    assert table(signature=WINDOWS).item_bytes == 2 * 4 * 7056 + 8


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compression_comes_back_from_a_spec(compression):
    original = table(signature=WINDOWS, compression=compression)
    assert rs.Table.unpack(original.pack()) == original


def test_compression_that_cannot_be_is_refused():
    with pytest.raises(rs.SchemaError, match="one of none, lz4, zstd, got 'gzip'"):
        table(signature=WINDOWS, compression="gzip")
    with pytest.raises(rs.SchemaError, match="no windows and so no steps"):
        table(compression="lz4")


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ({"w": rs.Window("x")}, "looks at 'x': expected the name of an rs.Column"),
        ({"w": rs.Window("w")}, "looks at 'w'"),
        ({"x": rs.Column("int8", step_only=True)}, "nobody could read it"),
        ({"x": rs.Column("int8", (1,) * 8), "w": rs.Window("x", 2)}, "up to 8 sizes"),
    ],
)
def test_windows_that_cannot_be_are_refused(signature, said):
    with pytest.raises(rs.SchemaError, match=said):
        table(signature=signature)


@pytest.mark.parametrize(
    "parts", [{"length": 0}, {"length": 16385}, {"offset": 16385}, {"offset": -16385}, {"length": 1.5}]
)
def test_a_window_out_of_range_is_refused(parts):
    with pytest.raises(rs.SchemaError, match="a window's"):
        rs.Window("x", **parts)
