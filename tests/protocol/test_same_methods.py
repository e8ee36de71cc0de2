"""A handle of a server's table and a buffer in this process have the same methods, so that code is written once."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import numpy as np
import pytest

import replay_server as rs
from replay_server.aio import AsyncTableHandle
from replay_server.client import TableHandle


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} | {"__len__"}


def test_a_handle_and_a_buffer_have_the_same_public_methods_and_signatures():
    ours, theirs = public(rs.Buffer), public(TableHandle)
    assert ours == theirs | {"name"}  # which a handle has as an attribute
    for name in theirs:
        of_buffer, of_handle = getattr(rs.Buffer, name), getattr(TableHandle, name)
        assert callable(of_buffer) == callable(of_handle)
        if callable(of_buffer):
            assert inspect.signature(of_buffer) == inspect.signature(of_handle), name


def test_the_asyncio_handle_has_them_too_but_for_what_does_not_wait():
    names = set(dir(TableHandle)) - set(dir(AsyncTableHandle)) - {"__len__"}
    assert {name for name in names if not name.startswith("_")} == {"table", "updater"}


@pytest.fixture(params=["buffer", "handle"])
def held(request, client, make_table):
    signature = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}
    return rs.Buffer(rs.Table("t", 100, signature)) if request.param == "buffer" else client[make_table()]


def test_alpha_and_beta_are_short_names_and_both_at_once_are_refused(held, items):
    assert rs.Prioritized(alpha=0.3) == rs.Prioritized(0.3) == rs.Prioritized(priority_exponent=0.3)
    assert rs.Prioritized() == rs.Prioritized(alpha=0.6)
    with pytest.raises(ValueError, match="priority_exponent and alpha are names of the same number"):
        rs.Prioritized(priority_exponent=0.3, alpha=0.3)
    held.add(items(1, 2, 3), [1.0, 10.0, 100.0])
    flat, steep = held.sample(50, beta=0.0), held.sample(50, beta=1.0)
    assert (flat.weights == 1).all()
    np.testing.assert_allclose(steep.weights, steep.probabilities.min() / steep.probabilities, rtol=1e-6)
    assert (held.sample(50, 0.0).weights == 1).all()
    with pytest.raises(ValueError, match="importance_sampling_exponent and beta"):
        held.sample(5, 0.4, beta=0.4)
    with held.sampler(50, beta=0.0) as batches:
        assert (next(batches).weights == 1).all()
        assert batches.beta == batches.importance_sampling_exponent == 0.0
        batches.beta = 1.0
        assert batches.importance_sampling_exponent == 1.0
    with pytest.raises(ValueError, match="importance_sampling_exponent and beta"):
        held.sampler(5, 0.4, beta=0.4)


def test_items_are_awaited(held, items):
    with pytest.raises(rs.Timeout, match=r"0 items|holds 0"):
        held.await_items(size=2, timeout=0)
    with pytest.raises(ValueError, match="either since or size"):
        held.await_items()
    adder = threading.Timer(0.05, lambda: held.add(items(1, 2)))
    adder.start()
    assert held.await_items(since=0, timeout=30) == (2, 2)
    assert held.await_items(size=2, timeout=0) == (2, 2)
    adder.join()
    held.close_table("over")
    with pytest.raises(rs.TableClosed, match="over"):
        held.await_items(size=3)


def test_an_updater_counts(held, items):
    ids = held.add(items(1, 2, 3))
    with held.updater() as updater:
        updater.update_priorities(ids, np.ones(3))
        updater.update_priorities(np.append(ids, np.uint64(999)), np.ones(4))
        assert updater.flush() == (6, 1)
        updater.update_priorities(ids, np.full(3, 2.0))
    assert updater.applied == 9
    with pytest.raises(rs.PriorityError):
        updater.update_priorities(ids, [-1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"beta": -1}, ValueError, r"\(beta\) must be a number from 0 to 100, got -1"),
        ({"beta": "x"}, ValueError, "got 'x'"),
        ({"beta": float("nan")}, ValueError, "got nan"),
        ({"timeout": -1}, ValueError, "timeout must be None or at least 0 seconds, got -1"),
        ({"timeout": "x"}, ValueError, "timeout must be None or at least 0 seconds, got 'x'"),
        ({"columns": ["no"]}, rs.SchemaError, "has no column 'no'"),
        ({"columns": [3]}, rs.SchemaError, "columns must be a list of names, got 3 in it"),
        ({"columns": 3}, rs.SchemaError, "columns must be a list of names, got 3"),
        ({"columns": iter(["x"])}, rs.SchemaError, "columns must be a list of names, got .*iterator"),
        ({"beta": 10**400}, ValueError, r"\(beta\) must be a number from 0 to 100"),
        ({"allocate": 3}, ValueError, "allocate must be a function"),
        ({"workers": 1.5}, ValueError, "workers must be a whole number of at least 1, got 1.5"),
        ({"in_flight": 2.5}, ValueError, "in_flight must be a whole number"),
        ({"prefetch": "a"}, ValueError, "prefetch must be a whole number of at least 1 batch, got 'a'"),
    ],
)
def test_a_sampler_with_a_wrong_option_is_refused_when_it_is_made(held, items, options, error, told):
    held.add(items(1, 2, 3))
    with pytest.raises(error, match=told):
        held.sampler(4, **options)


def test_a_wrong_exponent_or_version_is_refused_and_the_sampler_goes_on(held, items):
    held.add(items(1, 2, 3))
    with held.sampler(4, beta=0.5) as batches:
        for wrong in (-1, 101, "x", "0.5", None, float("nan")):
            with pytest.raises(ValueError, match="must be a number from 0 to 100"):
                batches.beta = wrong
        for wrong in (1.5, "x", 2**63):
            with pytest.raises(ValueError, match="policy_version must"):
                batches.policy_version = wrong
        assert (batches.beta, batches.policy_version) == (0.5, None)
        batches.beta = np.float32(1)
        assert [len(next(batches)) for _ in range(6)] == [4] * 6


def test_one_string_is_no_list_of_columns(held, items):
    held.add(items(1, 2, 3))
    held.sample(1, columns=["x"])
    for make in (held.sample, held.sampler):
        with pytest.raises(rs.SchemaError, match=r"columns must be a list of names, got the string 'x': write \['x'\]"):
            make(1, columns="x")


def test_what_is_no_batch_is_refused_as_out(held, items):
    held.add(items(1, 2, 3))
    for wrong in (3, np.zeros(4)):
        with pytest.raises(rs.SchemaError, match="out must be a batch to receive into"):
            held.sample(4, out=wrong)


def test_whether_columns_can_be_written_to_is_the_callers_choice(held, items):
    held.add(items(1, 2, 3))
    for options, expected in (({}, True), ({"writable": True}, True), ({"writable": False}, False)):
        assert held.sample(8, **options).data["x"].flags.writeable == expected
    for options, expected in (({}, False), ({"writable": True}, True)):
        with held.sampler(8, **options) as batches:
            assert next(batches).data["x"].flags.writeable == expected


def test_a_batch_given_to_be_filled_is_returned_unless_read_only_columns_are_asked_for(held, items):
    held.add(items(1, 2, 3))
    given = held.sample(8)
    assert held.sample(8, out=given) is given
    assert held.sample(8, out=given, writable=True) is given
    shown = held.sample(8, out=given, writable=False)
    assert not shown.data["x"].flags.writeable
    assert given.data["x"].flags.writeable
    assert np.shares_memory(shown.data["x"], given.data["x"])
    np.testing.assert_array_equal(shown.ids, given.ids)


def test_a_snapshots_name_may_be_a_path_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served").mkdir()
    table = rs.Table("t", 100, {"k": rs.Column("int64")})
    name = Path("kept")
    with rs.Server([table], directory=tmp_path / "served") as server, rs.Client(server.url) as client:
        for held in (rs.Buffer(table), client["t"]):
            held.add({"k": [1]})
            assert held.checkpoint(name).endswith("kept.snapshot")
            held.add({"k": [2]})
            held.restore(name)
            assert len(held) == 1
            for wrong in (held.checkpoint, held.restore):
                with pytest.raises(TypeError, match="int"):
                    wrong(3)

        async def work() -> None:
            async with rs.aio.Client(server.url) as client:
                await client["t"].checkpoint(name)
                await client["t"].restore(name)

        rs.aio.run(work())


def test_a_handle_saves_and_restores_all_tables_of_its_server(tmp_path):
    tables = [rs.Table(name, 100, {"k": rs.Column("int64")}) for name in ("t", "other")]
    with rs.Server(tables, directory=tmp_path) as server, rs.Client(server.url) as client:
        client["t"].checkpoint("kept")
        client["other"].add({"k": [1]})
        client["t"].restore("kept")
        assert len(client["other"]) == 0
        with pytest.raises(rs.ServerError, match="no slash"):
            client["t"].checkpoint(tmp_path / "kept")


def test_arguments_out_of_range_are_refused_alike_and_change_nothing(held, items):
    held.add(items(1, 2, 3))
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"^batch_size must be at least 1, got {count}$"):
            held.sample(count)
    with pytest.raises(rs.LimitExceeded, match=r"^expected at most 1048576 items at once, got 1048577$"):
        held.sample(2**20 + 1)
    for beta in (-1, 100.5, float("nan")):
        refusal = rf"^importance_sampling_exponent \(beta\) must be a number from 0 to 100, got {beta}$"
        with pytest.raises(ValueError, match=refusal):
            held.sample(2, beta=beta)
        with pytest.raises(ValueError, match=refusal):
            held.sampler(2, beta=beta)
        with held.sampler(2) as batches:
            with pytest.raises(ValueError, match=refusal):
                batches.beta = beta
            assert batches.beta == 0.4
    with pytest.raises(ValueError, match=r"^reason must be a line of text or None, got 3$"):
        held.close_table(3)
    assert not held.info()["closed"]


FRAMES = {
    "frame": rs.Column("uint8", (3, 2), step_only=True),
    "obs": rs.Window("frame", length=4),
    "after": rs.Window("frame", offset=1),
    "rows": rs.Window("frame", max_length=9),
    "reward": rs.Column("float32"),
}
NESTED = {
    "obs": {"a": rs.Column("bfloat16", (2,)), "b": (rs.Column("S7"), rs.Column("complex64", (0, 2)))},
    "policy_version": rs.Column("int64"),
    "tokens": rs.Column("int32", (None, 3), max_length=20),
}


@pytest.mark.parametrize(
    "table",
    [
        rs.Table("told", 100, FRAMES, rs.Prioritized(0.25), rs.Prioritized(1 / 3), seed=1),
        rs.Table("told", 100, NESTED, rs.Prioritized(1e-7, stratified=False), max_bytes=10**6, max_staleness=2),
        rs.Table("told", 100, {"k": rs.Column("bool")}, rs.MaxHeap(), rate_limiter=rs.SampleToInsertRatio(2.5, 3, 1e6)),
        rs.Table.queue("told", {"k": rs.Column("bool")}, 100),
    ],
    ids=["windows", "nested", "heap", "queue"],
)
def test_infos_tell_the_same_but_for_what_a_server_has_of_its_own(client, table):
    client.create_table(table)
    buffer, handle = rs.Buffer(table), client["told"]
    for change in ({}, {"sampler": rs.Lifo(), "rate_limiter": rs.MinSize(7), "max_bytes": 10**9}):
        for held in (buffer, handle):
            held.configure(**change)
        ours, theirs = buffer.info(), handle.info()
        assert {name for name in theirs if name not in ours} == {"shard", "incarnation"}
        assert ours == {name: value for name, value in theirs.items() if name in ours}
    client.drop_table("told")
