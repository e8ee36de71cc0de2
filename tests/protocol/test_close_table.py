"""Closed tables: nothing enters, samples go on with what is there, and everyone who waits is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replay_server as rs

WINDOWS = {"frame": rs.Column("uint8", (3,), step_only=True), "obs": rs.Window("frame", length=2)}


class Background:
    """A call in a thread of its own; `outcome` is its result, or the exception that it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome = call()
        except BaseException as error:
            self._outcome = error

    def outcome(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive(), "it still waits"
        return self._outcome


class InProcess:
    """A buffer with the methods of a client."""

    def __init__(self, *spec: Any, **parts: Any) -> None:
        self.buffer = rs.Buffer(rs.Table("in-process", *spec, **parts))

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda name, *arguments, **options: getattr(self.buffer, method)(*arguments, **options)


@pytest.fixture(params=["client", "buffer"])
def made(request, client, make_table):
    """Makes a table on the server or in process: whose methods to call, and its name."""

    def make(capacity: int = 100, signature: Any = None, **parts: Any) -> tuple[Any, str]:
        signature = signature or {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}
        if request.param == "client":
            return client, make_table(capacity, signature, **parts)
        return InProcess(capacity, signature, **parts), "in-process"

    return make


def queue_of(size: int) -> dict[str, Any]:
    return {"sampler": rs.Fifo(), "rate_limiter": rs.Queue(size), "max_times_sampled": 1}


def test_nothing_enters_a_closed_table_until_it_is_opened(made, items):
    owner, name = made()
    owner.add(name, items(1, 2))
    owner.close_table(name, "the learner is done")
    with pytest.raises(rs.TableClosed, match=f"table '{name}' is closed: the learner is done"):
        owner.add(name, items(3))
    info = owner.info(name)
    assert (info["closed"], info["closed_reason"], info["size"]) == (True, "the learner is done", 2)
    assert "is closed: the learner is done" in info["reason_add"]
    assert info["reason"] == ""
    batch = owner.sample(name, 8)
    assert owner.update_priorities(name, batch.ids, np.ones(8)) == (8, 0)
    owner.close_table(name)
    assert owner.info(name)["closed_reason"] == ""
    owner.open_table(name)
    owner.open_table(name)
    owner.add(name, items(3))
    info = owner.info(name)
    assert (info["closed"], info["size"]) == (False, 3)


def test_a_reason_that_is_no_line_is_refused_and_the_table_stays_open(made, items):
    owner, name = made()
    with pytest.raises(rs.LimitExceeded, match="at most 127 bytes, got 128"):
        owner.close_table(name, "é" * 64)
    with pytest.raises(rs.ServerError, match="one line without control characters, got byte 10 at index 3"):
        owner.close_table(name, "two\nlines")
    assert not owner.info(name)["closed"]
    owner.add(name, items(1))


def test_a_queue_drains_and_its_sampler_ends(made, items):
    owner, name = made(**queue_of(50))
    owner.add(name, items(*range(10)))
    with owner.sampler(name, 4, prefetch=1) as batches:
        first = next(batches)
        owner.close_table(name, "no more episodes")
        assert [*first.data["k"], *next(batches).data["k"]] == list(range(8))
        assert list(batches) == []
        assert "no more episodes" in str(batches.table_closed)
        assert list(batches) == []
    with pytest.raises(rs.TableClosed, match="a sample of 4 waits, the queue holds 2"):
        owner.sample(name, 4)
    assert owner.sample(name, 2).data["k"].tolist() == [8, 9]
    with owner.sampler(name, 1) as batches:
        assert list(batches) == []


def test_who_waits_is_told_at_once(made, items, eventually):
    owner, name = made(**queue_of(2))
    owner.add(name, items(1, 2))
    adders = [Background(lambda: owner.add(name, items(3))), Background(lambda: owner.add(name, items(4)))]
    eventually(lambda: owner.info(name)["waiting_add"] == 2, "both adds wait")
    owner.close_table(name, "over")
    assert [type(adder.outcome()) for adder in adders] == [rs.TableClosed] * 2
    owner.sample(name, 2)
    owner.open_table(name)
    sampler = Background(lambda: owner.sample(name, 1))
    eventually(lambda: owner.info(name)["waiting_sample"] == 1, "the sample waits")
    owner.close_table(name, "over")
    assert "is closed: over" in str(sampler.outcome())
    assert isinstance(sampler.outcome(), rs.TableClosed)
    assert owner.info(name)["waiting"] == 0


def test_a_sample_that_an_update_may_let_through_waits_for_it(made, items, eventually):
    owner, name = made()
    ids = owner.add(name, items(1, 2), [0.0, 0.0])
    owner.close_table(name)
    sampler = Background(lambda: owner.sample(name, 3))
    eventually(lambda: owner.info(name)["waiting_sample"] == 1, "the sample waits")
    owner.update_priorities(name, ids[1:], [1.0])
    assert sampler.outcome().data["k"].tolist() == [2, 2, 2]


def step(number: int) -> dict[str, Any]:
    return {"frame": np.full(3, number, np.uint8)}


def test_a_writer_is_told_by_append_and_by_flush(made):
    owner, name = made(signature=WINDOWS)
    with owner.writer(name, flush_steps=4) as writer:
        writer.append(step(0))
        writer.create_item()
        assert len(writer.flush()) == 1
    writer = owner.writer(name, flush_steps=2)
    vector = owner.vector_writer(name, 2, flush_steps=1)
    owner.close_table(name, "over")
    writer.append(step(1))
    writer.create_item()
    with pytest.raises(rs.TableClosed, match="is closed: over"):
        writer.flush()

    def go_on(append: Callable[[], None]) -> None:
        for _ in range(8):
            append()

    with pytest.raises(rs.TableClosed):
        go_on(lambda: writer.append(step(2)))
    with pytest.raises(rs.TableClosed):
        go_on(lambda: vector.append({"frame": np.zeros((2, 3), np.uint8)}))
    for ended in (writer, vector):
        ended.close(flush=False)
    assert owner.info(name)["size"] == 1
    owner.open_table(name)
    with owner.writer(name) as writer:
        writer.append(step(2))
        writer.create_item()
    assert owner.info(name)["size"] == 2


def test_a_writer_that_waits_behind_the_limiter_is_told(made, eventually):
    owner, name = made(signature=WINDOWS, **queue_of(1))
    writer = owner.writer(name)
    for number in range(2):
        writer.append(step(number))
        writer.create_item()
    flush = Background(writer.flush)
    eventually(lambda: owner.info(name)["waiting_add"] == 1, "the second item waits")
    owner.close_table(name)
    assert isinstance(flush.outcome(), rs.TableClosed)
    writer.close(flush=False)


def test_who_awaits_items_is_told(client, table, eventually):
    waiter = Background(lambda: client.await_items(table, since=0))
    eventually(lambda: client.redis.info("clients")["blocked_clients"] >= 1, "it waits")
    client.close_table(table, "over")
    assert isinstance(waiter.outcome(), rs.TableClosed)


def test_an_unknown_table_is_neither_closed_nor_opened(client):
    for command in (client.close_table, client.open_table):
        with pytest.raises(rs.TableNotFound):
            command("nowhere")


def test_creating_and_resetting_leave_it_closed_and_a_new_one_is_open(client, make_table, items):
    name = make_table()
    client.close_table(name, "over")
    client.create_table(client.table(name))
    client.reset(name)
    assert client.info(name)["closed_reason"] == "over"
    spec = client.table(name)
    client.drop_table(name)
    client.create_table(spec)
    client.add(name, items(1))


def test_the_asyncio_twin_closes_and_ends_its_samplers(server, make_table, items):
    name = make_table(**queue_of(10))

    async def main() -> list[int]:
        async with rs.aio.Client(server.url) as client:
            await client.add(name, items(1, 2, 3))
            await client.close_table(name, "over")
            with pytest.raises(rs.TableClosed):
                await client.add(name, items(4))
            async with client.sampler(name, 1) as batches:
                taken = [int(batch.data["k"][0]) async for batch in batches]
            await client.open_table(name)
            await client.add(name, items(4))
            return taken

    assert asyncio.run(main()) == [1, 2, 3]


def test_a_snapshot_keeps_a_table_closed_over_a_restart(tmp_path, items):
    table = rs.Table("t", 10, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")})
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("t", items(1, 2))
        client.close_table("t", "the run is over")
        saved = client.checkpoint()
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        assert not client.info("t")["closed"]
    with rs.Server([table], directory=tmp_path, restore=saved) as server, rs.Client(server.url) as client:
        assert client.info("t")["closed_reason"] == "the run is over"
        assert len(client.sample("t", 4)) == 4
        with pytest.raises(rs.TableClosed, match="the run is over"):
            client.add("t", items(3))
        client.open_table("t")
        client.restore(saved.rsplit("/", 1)[1])
        assert client.info("t")["closed"]
        client.open_table("t")
        client.add("t", items(3))


def test_info_and_commands_tell_of_it(client, make_table):
    name = make_table()
    client.close_table(name)
    assert client.redis.info("replay")[f"table_{name}"]["closed"] == 1
    client.open_table(name)
    assert client.redis.info("replay")[f"table_{name}"]["closed"] == 0
    for command in ("replay.closetable", "replay.opentable"):
        facts = client.redis.execute_command("COMMAND", "INFO", command)
        assert "write" in str(facts)
