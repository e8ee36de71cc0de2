"""os.fork: what the parent has open stays the parent's, and what the child sees of it stays as it was."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replay_server as rs

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
STEPS = {"number": rs.Column("int64"), "seen": rs.Window("number", length=2)}
LARGE = {"x": rs.Column("uint8", (256, 1024)), "k": rs.Column("int64")}


class Child:
    """A forked child that runs one call, once it is told to; what that returns comes back as JSON."""

    def __init__(self, call: Callable[[], Any]) -> None:
        go, self._go = os.pipe()
        self._result, result = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                os.read(go, 1)
                os.write(result, json.dumps(call()).encode())
            except BaseException:
                os.write(result, json.dumps(traceback.format_exc()).encode())
            finally:
                os._exit(0)
        os.close(go)
        os.close(result)

    def result(self) -> Any:
        """Lets the child go on, and waits for what it has to say."""
        os.close(self._go)
        with open(self._result, "rb") as told:
            text = told.read()
        os.waitpid(self.pid, 0)
        return json.loads(text)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(rs.ReplayError) as refused:
        call()
    assert not isinstance(refused.value, rs.ConnectionLost), "who tries again after a loss would do so for ever"
    return str(refused.value)


# ---- writers ---------------------------------------------------------------------------------------------------------


def test_a_writer_is_refused_to_a_child_and_shows_its_own_steps_to_the_parent(client, make_table):
    name = make_table(100, STEPS, sampler=rs.Fifo())
    writer = client.writer(name)

    def append(number: int) -> None:
        writer.append({"number": number})
        writer.create_item()

    append(100)
    writer.flush()

    def in_child() -> str:
        append(999)
        message = refusal(writer.flush)
        writer.close(flush=False)
        return message

    message = Child(in_child).result()
    assert f"process {os.getpid()}" in message
    assert "make another writer here" in message
    append(101)
    ids = writer.flush()
    assert client.get(name, ids).data["seen"].tolist() == [[100, 101]]
    assert client.info(name)["size"] == 2
    writer.close()


def test_a_child_makes_writers_of_its_own(client, make_table):
    name = make_table(100, STEPS, sampler=rs.Fifo())
    client.info(name)

    def in_child() -> list[int]:
        with client.writer(name) as writer:
            writer.append({"number": 5})
            writer.create_item()
            return writer.flush().tolist()

    ids = Child(in_child).result()
    assert client.get(name, ids).data["number"].tolist() == [5]


# ---- shared memory ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(server: rs.Server, make_table: Callable[..., str]) -> tuple[rs.Client, str]:
    name = make_table(8, LARGE, sampler=rs.Fifo())
    return rs.Client(server.url, shared_memory=True), name


def fill(client: rs.Client, name: str, value: int) -> None:
    client.add(name, {"x": np.full((8, 256, 1024), value, np.uint8), "k": np.full(8, value)})


def values(batch: rs.Batch) -> list[int]:
    return sorted({int(value) for value in np.unique(batch.data["x"])})


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_a_batch_that_a_child_holds_is_not_written_again(tmp_path, over):
    server = rs.Server([rs.Table("t", 8, LARGE, sampler=rs.Fifo())], unix=tmp_path / "s")
    url = server.unix_url if over == "unix" else server.url
    with server, rs.Client(url, shared_memory=True) as client:
        fill(client, "t", 1)
        held = [client.sample("t", 8)]
        assert held[0].lease is not None, "the batch lies in shared memory"
        kept = client.sample("t", 4)
        child = Child(lambda: values(held[0]))
        held.clear()
        fill(client, "t", 7)
        for _ in range(30):
            later = client.sample("t", 8)
            assert values(later) == [7]
            assert later.lease is not None, "batches go on coming through shared memory"
        assert child.result() == [1]
        assert values(kept) == [1], "the parent's own batches stay, too"


def test_a_fork_while_no_batch_is_held_leaves_the_connection_in_use(shared):
    client, name = shared
    with client:
        fill(client, name, 1)
        values(client.sample(name, 8))
        connection = client.command("CLIENT", "ID")
        child = Child(lambda: values(client.sample(name, 8)))
        assert values(client.sample(name, 8)) == [1]
        assert client.command("CLIENT", "ID") == connection
        assert child.result() == [1]


def test_forks_beside_threads_that_sample_leave_every_batch_as_it_was(shared):
    """Threads hold, drop and take batches while children are made; each batch holds one value, whoever looks."""
    client, name = shared
    stop = threading.Event()
    failures: list[Any] = []

    def sample() -> None:
        while not stop.is_set():
            held = [client.sample(name, 8) for _ in range(2)]
            failures.extend(batch for batch in held if len(values(batch)) != 1)

    with client:
        fill(client, name, 1)
        threads = [threading.Thread(target=sample) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for value in range(2, 12):
                mine = client.sample(name, 8)
                before = values(mine)
                child = Child(lambda mine=mine: values(mine))
                del mine
                fill(client, name, value)
                assert child.result() == before
                assert len(before) == 1
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not failures


# ---- samplers and buffers --------------------------------------------------------------------------------------------


def test_a_sampler_is_refused_to_a_child_and_goes_on_in_the_parent(client, table, items):
    client.add(table, items(1, 2))
    with client.sampler(table, 4) as batches:
        next(batches)

        def in_child() -> str:
            message = refusal(lambda: next(batches))
            batches.close()
            return message

        message = Child(in_child).result()
        assert f"process {os.getpid()}" in message
        assert "make another sampler here" in message
        for _ in range(10):
            assert len(next(batches)) == 4


def test_a_child_has_a_whole_copy_of_a_buffer_that_threads_use(items):
    table = rs.Table("t", 1000, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}, sampler=rs.Uniform())
    buffer = rs.Buffer(table)
    buffer.add(items(*range(500)))

    def in_child() -> int:
        buffer.add(items(*range(100)))
        batch = buffer.sample(64)
        assert (batch.data["x"][:, 0] == batch.data["k"]).all()
        return buffer.info()["added"]

    with buffer.sampler(512) as batches:
        for _ in range(20):
            next(batches)
            assert Child(in_child).result() == 600
    assert buffer.info()["added"] == 500
