"""A table dropped and made anew under its name is never taken for the one that it replaced."""

from __future__ import annotations

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

FLOATS = rs.Table("remade", 10, {"x": rs.Column("float32", (2,))}, sampler=rs.Uniform())
INTEGERS = rs.Table("remade", 10, {"x": rs.Column("int64")}, sampler=rs.Uniform())


@pytest.fixture
def remake(server):
    """Drops the table and makes it anew, by another client than the one that is tested."""
    with rs.Client(server.url) as other:
        other.create_table(FLOATS)

        def change(table: rs.Table = INTEGERS) -> None:
            other.drop_table("remade")
            other.create_table(table)
            other.add("remade", {"x": np.full((2, *table.signature["x"].shape), 7, table.signature["x"].dtype)})

        yield change
        other.drop_table("remade")


def test_a_sample_is_never_read_as_the_dtype_that_the_table_had_before(client, remake):
    client.add("remade", {"x": np.ones((3, 2), np.float32)})
    assert client.sample("remade", 2).data["x"].dtype == np.float32
    remake()  # items are 8 bytes, as before
    assert client.sample("remade", 2).data["x"].tolist() == [7, 7]
    remake(FLOATS)
    batch = client.sample("remade", 1)
    remake()
    with pytest.raises(rs.SchemaError, match="'x' must be a C-contiguous int64"):
        client.sample("remade", 1, out=batch)


def test_a_get_is_never_read_as_the_dtype_that_the_table_had_before(client, remake):
    ids = client.add("remade", {"x": np.ones((2, 2), np.float32)})
    remake()
    assert client.get("remade", ids).data["x"].tolist() == [7, 7]  # the first ids of either table


def test_an_add_is_never_stored_as_the_dtype_that_the_table_has_now(client, remake):
    client.add("remade", {"x": np.ones((1, 2), np.float32)})
    remake()
    with pytest.raises(rs.SchemaError, match="expects dtype int64, got float32"):
        client.add("remade", {"x": np.ones((1, 2), np.float32)})
    assert client.info("remade")["size"] == 2
    client.add("remade", {"x": np.ones(1, np.int64)})


def test_a_background_sampler_goes_on_with_the_new_table(client, remake, eventually):
    client.add("remade", {"x": np.ones((1, 2), np.float32)})
    with client.sampler("remade", 2, prefetch=1) as batches:
        assert next(batches).data["x"].dtype == np.float32
        eventually(lambda: client.info("remade")["sampled"] == 4, "a batch ahead, and nothing asked for now")
        remake()
        dtypes = [next(batches).data["x"].dtype for _ in range(4)]
    assert dtypes[-1] == np.int64


def test_the_asyncio_client_notices_too(server, remake):
    async def play() -> None:
        async with aio.Client(server.url) as client:
            await client.add("remade", {"x": np.ones((1, 2), np.float32)})
            remake()
            assert (await client.sample("remade", 2)).data["x"].tolist() == [7, 7]
            with pytest.raises(rs.SchemaError, match="int64"):
                await client.add("remade", {"x": np.ones((1, 2), np.float32)})

    aio.run(play())


def test_another_incarnation_is_refused_with_both_numbers(client, raw, remake):
    incarnation = client.info("remade")["incarnation"]
    assert len(str(incarnation)) == 19
    item = np.ones(2, np.float32).tobytes()
    raw.command("HELLO", 3)
    for command in (
        ("REPLAY.ADD", "remade", 1, b"", "INCARNATION", incarnation - 1, "COLUMNS", 1, "x", item),
        ("REPLAY.SAMPLE", "remade", 1, "INCARNATION", incarnation - 1),
        ("REPLAY.GET", "remade", b"", "INCARNATION", incarnation - 1),
    ):
        answer = raw.command(*command)
        assert isinstance(answer, rs.SchemaError)
        assert f"expected INCARNATION {incarnation}, got {incarnation - 1}" in str(answer)
    assert client.info("remade")["added"] == 0
    assert len(raw.command("REPLAY.ADD", "remade", 1, b"", "INCARNATION", incarnation, "COLUMNS", 1, "x", item)) == 8
    assert "expected INCARNATION" in str(raw.command("REPLAY.SAMPLE", "remade", 1, "INCARNATION", "x"))


def test_a_large_add_for_another_incarnation_is_refused_before_its_bytes_are_kept(client, raw, make_table):
    name = make_table(signature={"frame": rs.Column("uint8", (84, 84))})
    frames = bytes(8 * 84 * 84)
    answer = raw.command("REPLAY.ADD", name, 8, b"", "INCARNATION", 1, "COLUMNS", 1, "frame", frames)
    assert isinstance(answer, rs.SchemaError)
    assert client.info(name)["reserved_slots"] == 0
    assert raw.command("PING") == "PONG"


def test_a_spec_with_its_incarnation_makes_a_table(raw, client, make_table):
    name = make_table()
    spec = raw.command("REPLAY.SPEC", name)
    assert b"incarnation" in spec
    assert raw.command("REPLAY.CREATE", f"{name}-copy", spec) == "OK"
    assert client.info(f"{name}-copy")["incarnation"] != client.info(name)["incarnation"]
    client.drop_table(f"{name}-copy")
