"""A buffer's table in a file: what comes back, what is refused, and what goes on meanwhile."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}


def table(capacity: int = 100, signature: Any = SIGNATURE, **settings: Any) -> rs.Table:
    return rs.Table("kept", capacity, signature, **settings)


def items(*keys: int) -> dict[str, np.ndarray]:
    numbers = np.array(keys, np.int64)
    return {"x": np.repeat(numbers[:, None], 2, 1).astype(np.float32), "k": numbers}


def test_items_ids_priorities_and_the_next_draws_come_back(tmp_path):
    buffer = rs.Buffer(table(seed=7))
    ids = buffer.add(items(1, 2, 3), [1.0, 2.0, 3.0])
    buffer.delete(ids[:1])
    path = buffer.checkpoint(str(tmp_path / "one"))
    assert path == str(tmp_path / "one.snapshot")
    drawn = buffer.sample(32)
    buffer.add(items(4))
    buffer.update_priorities(ids[1:], [5.0, 6.0])
    assert "2 items" in buffer.restore(path)[0]
    assert len(buffer) == 2
    again = buffer.sample(32)
    np.testing.assert_array_equal(again.ids, drawn.ids)
    np.testing.assert_array_equal(again.weights, drawn.weights)
    assert buffer.get(ids[1:]).data["k"].tolist() == [2, 3]
    assert buffer.update_priorities(ids, np.ones(3)) == (2, 1)


def test_another_process_restores_what_this_one_saved(tmp_path):
    buffer = rs.Buffer(table())
    ids = buffer.add(items(*range(50)))
    path = buffer.checkpoint(str(tmp_path / "far"))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_of, (path, ids)) == sum(range(50))


def _sum_of(path: str, ids: np.ndarray) -> int:
    buffer = rs.Buffer(table())
    buffer.restore(path)
    return int(buffer.get(ids).data["k"].sum())


def test_a_buffer_and_a_server_read_each_others_files(tmp_path):
    buffer = rs.Buffer(table())
    ids = buffer.add(items(1, 2))
    buffer.checkpoint(str(tmp_path / "ours"))
    tables = [table(), rs.Table("other", 1, SIGNATURE)]
    with rs.Server(tables, directory=tmp_path) as server, rs.Client(server.url) as client:
        client["kept"].restore("ours")
        assert client.get("kept", ids).data["k"].tolist() == [1, 2]
        client.add("kept", items(3))
        path = client["kept"].checkpoint("theirs")
    buffer.restore(path)
    assert set(buffer.sample(64).data["k"]) <= {1, 2, 3}
    assert len(buffer) == 3


def test_settings_that_are_in_force_go_on(tmp_path):
    saved = rs.Buffer(table())
    saved.add(items(*range(20)))
    path = saved.checkpoint(str(tmp_path / "s"))
    buffer = rs.Buffer(table(sampler=rs.Fifo(), max_times_sampled=1))
    lines = buffer.restore(path)
    assert "settings are those of the buffer" in lines[1]
    assert buffer.sample(3).data["k"].tolist() == [0, 1, 2]
    assert len(buffer) == 17


def test_what_cannot_be_restored_is_refused_and_changes_nothing(tmp_path):
    saved = rs.Buffer(table())
    saved.add(items(1))
    path = saved.checkpoint(str(tmp_path / "s"))
    buffer = rs.Buffer(table(50))
    kept = buffer.add(items(9))
    with pytest.raises(rs.SchemaError, match="differs from the one here"):
        buffer.restore(path)
    with pytest.raises(rs.ServerError, match="cannot open"):
        buffer.restore(str(tmp_path / "none"))
    with pytest.raises(rs.TableNotFound, match="no table 'another'"):
        rs.Buffer(rs.Table("another", 100, SIGNATURE)).restore(path)
    damaged = tmp_path / "damaged.snapshot"
    damaged.write_bytes(Path(path).read_bytes()[:-9])
    with pytest.raises(rs.ServerError, match="cut short"):
        buffer.restore(str(damaged))
    with pytest.raises(rs.ServerError, match="No such file"):
        buffer.checkpoint(str(tmp_path / "missing" / "s"))
    with pytest.raises(rs.ServerError, match="expected the name of a file"):
        buffer.checkpoint(str(tmp_path / ".hidden"))
    assert buffer.get(kept).data["k"].tolist() == [9]


def test_others_go_on_while_it_is_saved_and_the_file_is_of_one_moment(tmp_path):
    signature = {"a": rs.Column("int64", (128,)), "b": rs.Column("int64")}
    buffer = rs.Buffer(table(4000, signature))
    stop = threading.Event()

    def add() -> None:
        number = 0
        while not stop.is_set():
            rows = np.arange(number, number + 64)
            buffer.add({"a": np.repeat(rows[:, None], 128, 1), "b": rows})
            number += 64

    adder = threading.Thread(target=add)
    adder.start()
    try:
        paths = [buffer.checkpoint(str(tmp_path / f"s{i}")) for i in range(5)]
    finally:
        stop.set()
        adder.join()
    for path in paths:
        other = rs.Buffer(table(4000, signature))
        other.restore(path)
        seen = other.sample(len(other), replace=False) if len(other) else other.get([])
        assert (seen.data["a"] == seen.data["b"][:, None]).all()
        numbers = np.sort(seen.data["b"])
        assert (np.diff(numbers) == 1).all()  # the newest of one moment
        assert len(numbers) % 64 == 0 or len(numbers) == 4000


def test_writers_go_on_after_the_table_under_them_was_restored(tmp_path):
    buffer = rs.Buffer(table(100, {"n": rs.Column("int64"), "seen": rs.Window("n", length=2)}))
    with buffer.writer() as writer:
        for number in range(3):
            writer.append({"n": number})
            writer.create_item()
        ids = writer.flush()
        path = buffer.checkpoint(str(tmp_path / "s"))
        writer.append({"n": 3})
        buffer.restore(path)
        with pytest.raises(rs.ConnectionLost, match="was restored from a snapshot"):
            writer.flush()
        writer.create_item()
        assert buffer.get(writer.flush()).data["seen"].tolist() == [[2, 3]]
    assert buffer.get(ids).data["seen"].tolist() == [[0, 0], [0, 1], [1, 2]]
    dropped = buffer.writer()
    dropped.append({"n": 1})
    dropped.flush()
    buffer.restore(path)
    del dropped
    with buffer.writer() as another:
        another.append({"n": 5})
        another.create_item()
        assert buffer.get(another.flush()).data["n"].tolist() == [5]
