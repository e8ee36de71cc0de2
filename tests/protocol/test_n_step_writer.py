"""Writers of n-step transitions over the wire: the items that a buffer in this process gets from the same steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

SIGNATURE = {
    "frame": rs.Column("uint8", (5, 5), step_only=True),
    "obs": rs.Window("frame", length=3),
    "next_obs": rs.Window("frame", length=3, offset=2),
    "action": rs.Column("int64"),
    "reward": rs.Column("float64"),
    "discount": rs.Column("float32"),
}
RETURNS = {"n_step": 2, "discount": 0.9}
GENERATOR = np.random.default_rng(5)
FRAMES = GENERATOR.integers(0, 256, (31, 5, 5), np.uint8)
REWARDS = GENERATOR.normal(size=30)
TERMINATED, TRUNCATED = (6, 29), (7, 19)


def calls() -> list[tuple[dict[str, Any], dict[str, bool]]]:
    """What a loop over one environment appends."""
    made: list[tuple[dict[str, Any], dict[str, bool]]] = []
    for t, reward in enumerate(REWARDS.tolist()):
        ends = {"terminated": t in TERMINATED, "truncated": t in TRUNCATED}
        made.append(({"frame": FRAMES[t], "action": t, "reward": reward}, ends))
        if any(ends.values()):
            made.append(({"frame": FRAMES[t + 1]}, {}))
    return made


def rows(step: dict[str, Any], environments: int) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(value)] * environments) for name, value in step.items()}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    buffer = rs.Buffer(rs.Table("t", 100, SIGNATURE))
    with buffer.writer(**RETURNS) as writer:
        for step, ends in calls():
            writer.append(step, **ends)
        data = buffer.get(writer.flush()).data
    assert sorted(data["action"].tolist()) == list(range(30))
    assert (data["discount"] == 0).sum() == 4
    order = np.argsort(data["action"])
    return {name: array[order] for name, array in data.items()}


def check(batch: rs.Batch, reference: dict[str, np.ndarray]) -> None:
    for name, array in batch.data.items():
        np.testing.assert_array_equal(array, reference[name][batch.data["action"]], err_msg=name)


@pytest.fixture
def name(make_table) -> str:
    return make_table(1000, SIGNATURE, sampler=rs.Uniform())


def test_a_client_writes_what_a_buffer_holds(client, name, reference):
    with client.writer(name, **RETURNS, flush_steps=4) as writer:
        for step, ends in calls():
            writer.append(step, **ends)
        ids = writer.flush()
    assert len(ids) == 30
    check(client.get(name, ids), reference)


def test_many_environments_at_once_do_too(client, name, reference):
    with client.vector_writer(name, 3, **RETURNS) as writer:
        for step, ends in calls():
            writer.append(rows(step, 3), **ends)
        ids = writer.flush()
    assert len(ids) == 90
    check(client.get(name, ids), reference)


def test_the_asyncio_twin_does_too(server, client, name, reference, eventually):
    async def play() -> None:
        async with aio.Client(server.url) as twin:
            async with await twin.writer(name, **RETURNS) as writer:
                for step, ends in calls():
                    await writer.append(step, **ends)
                ids = await writer.flush()
            async with await twin.vector_writer(name, 2, **RETURNS, flush_steps=3) as vector:
                for step, ends in calls():
                    await vector.append(rows(step, 2), **ends)
                await vector.append({"frame": FRAMES[:2]})
                await vector.append(rows(calls()[0][0], 2))
                vector.end_episode()  # an action whose outcome is not known makes no item
                ids = np.concatenate([ids, await vector.flush()])
            assert len(ids) == 90
            check(await twin.get(name, ids), reference)
            with pytest.raises(rs.SchemaError, match="n_step=3 needs a window of offset 3"):
                await twin.writer(name, n_step=3, discount=0.9)

    aio.run(play())
    eventually(lambda: client.info(name)["streams"] == 0, "the writers' streams are closed")


def test_a_connection_that_breaks_costs_only_what_was_on_its_way(client, reference):
    """The step that raised is appended again, and its rewards count once."""
    with (
        rs.Server([rs.Table("w", 1000, SIGNATURE, sampler=rs.Uniform())]) as own,
        rs.Client(own.url) as writing,
        rs.Client(own.url) as other,
    ):
        writer = writing.writer("w", **RETURNS, flush_steps=4)
        lost = 0
        for number, (step, ends) in enumerate(calls()):
            if number == 12:
                writer.flush()
                for connection in other.redis.client_list():
                    if "replay" in connection["cmd"]:
                        other.redis.client_kill_filter(_id=connection["id"])
            while True:
                try:
                    writer.append(step, **ends)
                    break
                except rs.ConnectionLost:
                    lost += 1
        writer.close()
        assert lost == 1
        batch = other.sample("w", 2000)
        check(batch, reference)
        assert set(batch.data["action"].tolist()) == set(range(30))
