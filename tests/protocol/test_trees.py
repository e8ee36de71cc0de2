"""Nested signatures, wherever data goes in and comes out: in process, over TCP, by shared memory, with asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import numpy as np
import pytest

import replay_server as rs

SIGNATURE = {
    "obs": {"image": rs.Column("uint8", (48, 48)), "state": (rs.Column("float32", (3,)), rs.Column("int64"))},
    "action": rs.Column("int64"),
}
STEPS = {
    "seen": {"image": rs.Column("uint8", (16,), step_only=True), "state": (rs.Column("float32"), rs.Column("int64"))},
    "obs": rs.Window("seen", length=2),
    "next_obs": rs.Window("seen", offset=1),
    "action": rs.Column("int64"),
    "reward": rs.Column("float32"),
    "discount": rs.Column("float32"),
}


def data(*keys: int) -> dict[str, Any]:
    """Items in which every value follows from the key."""
    numbers = np.array(keys, np.int64)
    image = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (len(keys), 48, 48)).copy()
    state = (np.repeat(numbers.astype(np.float32)[:, None], 3, 1), numbers)
    return {"obs": {"image": image, "state": state}, "action": numbers * 10}


def check(batch: rs.Batch) -> None:
    seen, keys = batch.data["obs"], batch.data["obs"]["state"][1]
    assert isinstance(seen["state"], tuple)
    assert (seen["image"][:, 5, 7] == keys % 251).all()
    assert (seen["state"][0] == keys[:, None]).all()
    assert (batch.data["action"] == keys * 10).all()


@pytest.fixture(params=["buffer", "tcp", "shared memory"])
def holder(request, server, make_table):
    """Makes a holder of a new table of a signature."""
    clients = []

    def make(signature: dict[str, Any] = SIGNATURE, **settings: Any) -> Any:
        if request.param == "buffer":
            return rs.Buffer(rs.Table("t", 100, signature, **settings))
        clients.append(rs.Client(server.url, shared_memory=request.param == "shared memory"))
        return clients[-1][make_table(100, signature, **settings)]

    yield make
    for client in clients:
        client.close()


def test_data_goes_in_and_comes_back_as_the_same_tree(holder):
    held = holder()
    assert held.table.signature == SIGNATURE
    ids = held.add(data(1, 2, 3))
    check(held.get(ids))
    batch = held.sample(64)
    check(batch)
    assert list(batch.columns) == ["obs/image", "obs/state/0", "obs/state/1", "action"]
    out = held.sample(64, writable=True)
    assert held.sample(64, out=out) is out
    check(out)
    with held.sampler(32) as batches:
        for _ in range(8):
            check(next(batches))
    batch.release()
    lists = data(4)
    lists["obs"]["state"] = [lists["obs"]["state"][0], [4]]
    check(held.get(held.add(lists)))


def test_columns_are_chosen_by_path_or_by_what_they_lie_in(holder):
    held = holder()
    held.add(data(1, 2, 3))
    one = held.sample(8, columns=["obs/state/1"]).data
    assert list(one) == ["obs"]
    assert list(one["obs"]) == ["state"]
    assert one["obs"]["state"][0] is None
    assert set(one["obs"]["state"][1]) <= {1, 2, 3}
    some = held.sample(8, columns=["action", "obs/state"]).data
    assert list(some) == ["obs", "action"]
    assert list(some["obs"]) == ["state"]
    assert (some["action"] == some["obs"]["state"][1] * 10).all()
    out = held.sample(8, columns=["obs"], writable=True)
    assert held.sample(8, columns=["obs"], out=out) is out
    with held.sampler(8, columns=["obs"]) as batches:
        assert list(next(batches).data) == ["obs"]
    with pytest.raises(rs.SchemaError, match="no column 'obs/sound': expected some of obs/image, obs/state/0"):
        held.sample(8, columns=["obs/sound"])


def changed(path: str, value: Any) -> dict[str, Any]:
    whole = data(1, 2)
    *within, last = path.split("/")
    node = whole
    for part in within:
        node = node[part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return whole


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (changed("obs/image", np.zeros((2, 4), np.uint8)), r"'obs/image' expects shape \(N, 48, 48\), got \(2, 4\)"),
        (changed("obs/state", (np.zeros((2, 3)), np.arange(2))), "'obs/state/0' expects dtype float32, got float64"),
        (changed("obs/state", (np.zeros((2, 3), np.float32), None)), "missing: obs/state/1"),
        (changed("obs/image", None), "missing: obs/image"),
        (changed("obs", None), "missing: obs/image; missing: obs/state/0; missing: obs/state/1"),
        (changed("obs/sound", np.zeros(2)), "unknown: obs/sound"),
        (changed("obs", np.zeros(2)), "'obs' expects a dict of image, state, got ndarray"),
        (changed("obs/state", np.zeros(2)), "'obs/state' expects a tuple of 2 values, got ndarray"),
        (changed("obs/state", (np.zeros(2),)), "'obs/state' expects a tuple of 2 values, got 1 values"),
        (changed("action", np.zeros(3, np.int64)), "'action' has 3 items where the columns before it have 2"),
        ({**data(1), "obs/image": np.zeros(1)}, r"got 'obs/image' as a key: expected a nested dict, \{'obs': "),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(holder, wrong, words):
    held = holder()
    with pytest.raises(rs.SchemaError, match=words):
        held.add(wrong)
    assert held.info()["size"] == 0


def test_writers_take_trees_and_windows_show_them(holder):
    held = holder(STEPS, compression="lz4")

    def step(number: int) -> dict[str, Any]:
        return {"image": np.full(16, number, np.uint8), "state": (float(number), number)}

    with held.writer(n_step=1, discount=0.5) as writer:
        for number in range(3):
            writer.append({"seen": step(number), "action": number, "reward": 1.0}, terminated=number == 2)
        with pytest.raises(rs.SchemaError, match="'seen/state/1' is missing"):
            writer.append({"seen": {"image": step(3)["image"], "state": (3.0, None)}})
        writer.append({"seen": step(3)})
        ids = writer.flush()
    for batch in (held.get(ids), held.sample(64), held.sample(64, coded=True), held.sample(64, coded=False)):
        numbers = batch.data["action"]
        assert (batch.data["obs"]["image"][:, 1, 0] == numbers).all()
        assert (batch.data["obs"]["state"][1][:, 0] == np.maximum(numbers - 1, 0)).all()
        assert (batch.data["next_obs"]["state"][0] == numbers + 1).all()
        assert (batch.data["seen"]["state"][1] == numbers).all()
        assert (batch.data["discount"] == np.where(numbers == 2, 0, 0.5)).all()
    with held.vector_writer(2) as writer:
        rows = {"image": np.zeros((2, 16), np.uint8), "state": (np.float32([7, 8]), np.array([7, 8]))}
        writer.append({"seen": rows, "action": np.array([70, 80])})
        writer.create_items(columns={"reward": np.float32([1, 2]), "discount": np.float32([1, 1])})
        writer.end_episode()
        assert held.get(writer.flush()).data["seen"]["state"][1].tolist() == [7, 8]


def test_another_client_finds_the_tree_that_the_table_was_made_with(server, client, make_table):
    name = make_table(100, SIGNATURE)
    client.add(name, data(1, 2))

    async def main() -> rs.Batch:
        async with rs.aio.Client(server.url) as other:
            assert (await other.table(name)).signature == SIGNATURE
            await other.add(name, data(3))
            async with other.sampler(name, 16) as batches:
                check(await anext(batches))
            return await other.sample(name, 16)

    check(asyncio.run(main()))


def test_columns_made_as_paths_by_another_program_are_a_tree(client, make_table):
    flat = {"a/0": rs.Column("int64"), "b": rs.Column("int64"), "a/1": rs.Column("int64")}
    spec = {"name": "foreign", "capacity": 8, "signature": {path: column.to_spec() for path, column in flat.items()}}
    client.command("REPLAY.CREATE", "foreign", msgpack.packb(spec))
    try:
        numbers = np.arange(4)
        client.add("foreign", {"a": (numbers, numbers * 2), "b": numbers * 3})
        batch = client.sample("foreign", 16)
        assert (batch.data["a"][1] == batch.data["a"][0] * 2).all()
        assert (batch.data["b"] == batch.data["a"][0] * 3).all()
    finally:
        client.drop_table("foreign")


def test_trees_come_back_from_a_snapshot(tmp_path):
    with rs.Server([rs.Table("t", 100, SIGNATURE)], directory=tmp_path) as server, rs.Client(server.url) as client:
        ids = client.add("t", data(1, 2, 3))
        client.checkpoint("kept")
        client.drop_table("t")
        client.restore("kept")
        assert client.table("t").signature == SIGNATURE
        check(client.get("t", ids))
