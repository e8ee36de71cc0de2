"""A handle of a server's table and a buffer in this process have the same methods, so that code is written once."""

from __future__ import annotations

import inspect
import threading

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


def test_whether_columns_can_be_written_to_is_the_callers_choice(held, items):
    held.add(items(1, 2, 3))
    for options, expected in (({}, True), ({"writable": True}, True), ({"writable": False}, False)):
        assert held.sample(8, **options).data["x"].flags.writeable == expected
    for options, expected in (({}, False), ({"writable": True}, True)):
        with held.sampler(8, **options) as batches:
            assert next(batches).data["x"].flags.writeable == expected
