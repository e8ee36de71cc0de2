"""REPLAY.AWAIT: new items are waited for, not asked after again and again; and nothing is sampled by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import replay_server as rs


@pytest.fixture
def table(client: rs.Client) -> Iterator[str]:
    signature = {"x": rs.Column("float32", (2,))}
    client.create_table(rs.Table("awaited", 8, signature, sampler=rs.Fifo(), remover=rs.Fifo()))
    yield "awaited"
    if "awaited" in client.tables():
        client.drop_table("awaited")


def add(client: rs.Client, n: int) -> None:
    client.add("awaited", {"x": np.zeros((n, 2), np.float32)})


def waiting(client: rs.Client, call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """The call in a thread, which waits on the server by now."""
    before, found = client.redis.info("clients")["blocked_clients"], []

    def run() -> None:
        try:
            found.append(call())
        except rs.ReplayError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while client.redis.info("clients")["blocked_clients"] == before and not found:
        assert time.monotonic() < deadline, "it does not wait"
        time.sleep(0.01)
    return thread, found


def test_what_is_there_is_answered_at_once(client, table):
    with pytest.raises(rs.Timeout, match="nothing was added since there were 0"):
        client.await_items(table, since=0, timeout=0)
    assert client.await_items(table, size=0, timeout=0) == (0, 0)
    add(client, 3)
    assert client.await_items(table, since=0, timeout=0) == (3, 3)
    assert client.await_items(table, since=2) == (3, 3)
    assert client.await_items(table, size=3) == (3, 3)
    add(client, 7)  # two of the older ones leave
    assert client.await_items(table, since=3) == (10, 8)
    with pytest.raises(rs.Timeout, match="8 items, 9 are wanted"):
        client.await_items(table, size=9, timeout=0.02)
    assert client.info(table)["sampled"] == 0


def test_each_waits_for_its_own(client, table):
    """One who wants much does not keep those behind it from what they want."""
    much, much_found = waiting(client, lambda: client.await_items(table, size=6, timeout=60))
    little, little_found = waiting(client, lambda: client.await_items(table, size=2, timeout=60))
    new, new_found = waiting(client, lambda: client.await_items(table, since=0, timeout=60))
    add(client, 2)
    little.join(60)
    new.join(60)
    assert little_found == new_found == [(2, 2)]
    assert much_found == []
    add(client, 4)
    much.join(60)
    assert much_found == [(6, 6)]


def test_a_table_that_goes_ends_the_wait(client, table):
    thread, found = waiting(client, lambda: client.await_items(table, size=6, timeout=60))
    client.drop_table(table)
    thread.join(60)
    assert isinstance(found[0], rs.TableNotFound)
    with pytest.raises(rs.TableNotFound):
        client.await_items(table, size=1, timeout=0)


def test_items_of_streams_count_as_others(client):
    signature = {"x": rs.Column("float32", (2,), step_only=True), "seen": rs.Window("x", length=2, offset=0)}
    client.create_table(rs.Table("awaited-windows", 8, signature))
    thread, found = waiting(client, lambda: client.await_items("awaited-windows", since=0, timeout=60))
    with client.writer("awaited-windows") as writer:
        for _ in range(3):
            writer.append({"x": np.zeros(2, np.float32)})
        writer.create_item(1.0)
        writer.flush()
    thread.join(60)
    assert found == [(1, 1)]
    client.drop_table("awaited-windows")


@pytest.mark.parametrize(
    "words",
    [("SINCE",), ("SINCE", "x"), ("SINCE", "-1"), ("SIZE", "-1"), ("COUNT", "1"), ("SIZE", "1", "BLOCK"),
     ("SIZE", "1", "BLOCK", "-1"), ("SIZE", "1", "SINCE", "1"), ("SIZE", "9223372036854775808")],
)  # fmt: skip
def test_nonsense_is_refused(client, table, words):
    with pytest.raises(rs.ServerError) as refused:
        client.command("REPLAY.AWAIT", table, *words)
    assert refused.value.code == "ERR"


def test_one_of_both_is_asked_for(client, table):
    for options in ({}, {"since": 0, "size": 0}):
        with pytest.raises(ValueError, match="either since or size"):
            client.await_items(table, **options)


def test_the_twin_waits_as_the_client_does(server, client, table):
    async def main() -> tuple[int, int]:
        async with rs.aio.Client(server.url) as twin:
            with pytest.raises(rs.Timeout):
                await twin.await_items(table, since=0, timeout=0.01)
            add(client, 2)
            return await twin.await_items(table, size=2, timeout=60)

    assert rs.aio.run(main()) == (2, 2)
