"""Signatures of many columns, and columns without bytes, wherever the table is and through its snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs

MOST = 256
SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (0,), (40,), (3, 0), (200,), (0, 7))


def wide(count: int) -> dict[str, rs.Column]:
    dtypes = ("float32", "uint8", "int64", "bool")
    return {f"c{i}": rs.Column(dtypes[i % 4], SHAPES[i % len(SHAPES)]) for i in range(count)}


def values_of(signature: dict[str, rs.Column], keys: np.ndarray) -> dict[str, np.ndarray]:
    """Values that tell column and item apart."""
    made = {}
    for at, (name, column) in enumerate(signature.items()):
        numbers = (keys * 7 + at).reshape(-1, *[1] * len(column.shape))
        made[name] = np.broadcast_to(numbers, (len(keys), *column.shape)).astype(column.dtype)
    return made


def assert_items(batch: rs.Batch, signature: dict[str, rs.Column], ids: np.ndarray) -> None:
    key_of = {identity: key for key, identity in enumerate(ids.tolist())}
    keys = np.array([key_of[identity] for identity in batch.ids.tolist()])
    for name, expected in values_of(signature, keys).items():
        assert batch.data[name].shape == expected.shape
        np.testing.assert_array_equal(batch.data[name], expected)


@pytest.fixture(params=["in process", "tcp", "shared memory"])
def make(request: Any, server: rs.Server) -> Iterator[Callable[..., Any]]:
    with rs.Client(server.url, shared_memory=request.param == "shared memory") as client:
        made: list[str] = []

        def table(signature: Any, capacity: int = 300, **parts: Any) -> Any:
            described = rs.Table(f"shapes-{len(made)}", capacity, signature, **parts)
            if request.param == "in process":
                return rs.Buffer(described)
            client.create_table(described)
            made.append(described.name)
            return client[described.name]

        yield table
        for name in made:
            client.drop_table(name)


@pytest.mark.parametrize("count", [65, MOST])
def test_a_table_holds_as_many_columns_as_it_may(make, count):
    signature = wide(count)
    holder = make(signature)
    ids = holder.add(values_of(signature, np.arange(200)))
    assert_items(holder.sample(64), signature, ids)
    assert_items(holder.get(ids[::-7]), signature, ids)
    for _ in range(3):  # beyond the spare slots
        ids = np.concatenate([ids, holder.add(values_of(signature, len(ids) + np.arange(150)))])
    assert_items(holder.sample(100), signature, ids)
    chosen = [f"c{i}" for i in range(count - 1, -1, -3)]
    batch = holder.sample(8, columns=chosen)
    assert list(batch.data) == chosen


def test_more_columns_are_refused(make):
    with pytest.raises(rs.SchemaError, match="dict of 1 to 256 columns, got 257"):
        make(wide(MOST + 1))


def test_a_large_add_of_many_columns_lands_in_its_slots(make):
    signature = {f"c{i}": rs.Column("uint8", (2000,)) for i in range(100)}
    holder = make(signature, 128)
    ids = holder.add(values_of(signature, np.arange(100)))
    assert_items(holder.sample(64), signature, ids)


@pytest.mark.parametrize("served", [False, True])
def test_columns_without_bytes_come_through_a_snapshot(tmp_path, served):
    signature = wide(80)
    table = rs.Table("t", 300, signature)
    with contextlib.ExitStack() as stack:
        if served:
            server = stack.enter_context(rs.Server([table], directory=tmp_path))
            holder: Any = stack.enter_context(rs.Client(server.url))["t"]
        else:
            holder = rs.Buffer(table)
        ids = holder.add(values_of(signature, np.arange(50)))
        name = "empty" if served else str(tmp_path / "empty.snapshot")
        holder.checkpoint(name)
        holder.reset()
        holder.restore(name)
        assert_items(holder.get(ids), signature, ids)


def test_a_table_of_columns_without_bytes_still_counts_draws(make):
    signature = {"nothing": rs.Column("float32", (0,)), "none": rs.Column("int64", (2, 0))}
    holder = make(signature, sampler=rs.Prioritized(priority_exponent=1.0))
    ids = holder.add({"nothing": np.empty((4, 0), np.float32), "none": np.empty((4, 2, 0), np.int64)}, [0, 0, 1, 0])
    batch = holder.sample(10)
    assert batch.ids.tolist() == [ids[2]] * 10
    assert batch.data["nothing"].shape == (10, 0)
    assert batch.data["none"].shape == (10, 2, 0)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_windows_over_steps_of_many_columns_and_of_no_bytes(make, compression):
    columns = {f"c{i}": rs.Column("float32", SHAPES[i % len(SHAPES)]) for i in range(100)}
    windows = {f"seen{i}": rs.Window(f"c{i}", length=2) for i in range(60, 100)}
    holder = make({**columns, **windows}, compression=compression)
    with holder.writer() as writer:
        for step in range(10):
            row = {name: np.full(column.shape, step, np.float32) for name, column in columns.items()}
            writer.append(row)
            writer.create_item(1.0)
    for options in ({}, {"coded": True}):
        batch = holder.sample(16, **options)
        at = batch.data["c0"]
        for i in range(60, 100):
            shape = columns[f"c{i}"].shape
            assert batch.data[f"seen{i}"].shape == (16, 2, *shape)
            expected = np.stack([np.maximum(at - 1, 0), at], 1).reshape(16, 2, *[1] * len(shape))
            np.testing.assert_array_equal(batch.data[f"seen{i}"], np.broadcast_to(expected, (16, 2, *shape)))


def test_steps_without_bytes_alone(make):
    holder = make({"frame": rs.Column("uint8", (0,), step_only=True), "seen": rs.Window("frame", length=3)})
    with holder.writer() as writer:
        for _ in range(5):
            writer.append({"frame": np.empty(0, np.uint8)})
            writer.create_item(1.0)
    for options in ({}, {"coded": True}):
        assert holder.sample(8, **options).data["seen"].shape == (8, 3, 0)


def test_rows_of_a_ragged_column_have_bytes(client):
    with pytest.raises(rs.SchemaError, match="or None and sizes of at least 1"):
        rs.Column("float32", (None, 0))
    spec = b"\x82\xa8capacity\x0a\xa9signature\x81\xa1k\x92\xa5int64\x92\xc0\x00"
    with pytest.raises(rs.SchemaError, match="column 'k'"):
        client.command("REPLAY.CREATE", "ragged-without-bytes", spec)
