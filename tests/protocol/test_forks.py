"""os.fork while batches lie in shared memory: what the child sees of them stays as it was. Of connections, and what
holds them: test_holders_left.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import Child

import replay_server as rs

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
LARGE = {"x": rs.Column("uint8", (256, 1024)), "k": rs.Column("int64")}


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
