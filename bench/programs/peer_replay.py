"""This project, on the same terms as its peers."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
from program import pushing, random_items, timed
from recorded import Recorded

import replay_server as rs

PACKAGES = ("replay-server", "numpy")
_server: rs.Server | None = None
kept: list[Any] = []
"""Connections that stay open until this process ends, so that what went over them can be read."""


class Tree:
    """`rs.SumTree`, with arrays that are made anew for each call as the peers' are."""

    dtype = np.float64

    def __init__(self, leaves: int) -> None:
        self._tree = rs.SumTree(leaves)

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        self._tree.update(indices, priorities)

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self._tree.sample(count, stratified=False)


class Buffer:
    """`rs.Buffer`; batches are received into the arrays of the one before."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        self._buffer = rs.Buffer(table(columns, capacity))
        self._batch_size = batch_size
        self._batch: rs.Batch | None = None

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._buffer.add(items, priorities)

    def sample(self) -> rs.Batch:
        self._batch = self._buffer.sample(self._batch_size, importance_sampling_exponent=0.4, out=self._batch)
        return self._batch

    def update(self, priorities: np.ndarray) -> None:
        assert self._batch is not None
        self._buffer.update_priorities(self._batch.ids, priorities)


def table(columns: Any, capacity: int) -> rs.Table:
    """A prioritized table that never makes anybody wait."""
    return rs.Table(
        "bench",
        capacity=capacity,
        signature={name: rs.Column(dtype, shape) for name, (dtype, shape) in columns.items()},
        sampler=rs.Prioritized(priority_exponent=0.6),
        remover=rs.Fifo(),
        rate_limiter=rs.MinSize(1),
    )


def serve(of: rs.Table) -> dict[str, Any]:
    """A server that lives until this process ends."""
    global _server
    _server = rs.Server([of], host="127.0.0.1", port=0)
    return {"url": _server.url, "pid": _server.pid}


def server(columns: Any, capacity: int, **_: Any) -> dict[str, Any]:
    return serve(table(columns, capacity))


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    """Adds random items until the table is full."""
    generator = np.random.default_rng(1)
    client, block = rs.Client(url), random_items(columns, 100, generator)
    for begin in range(0, capacity, 100):
        count = min(100, capacity - begin)
        client.add("bench", {name: array[:count] for name, array in block.items()}, generator.random(count) + 0.01)
    client.close()


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    """Adds `size` items a call, with priorities of its own, as an Ape-X actor does."""
    client = rs.Client(url)
    return pushing(lambda *pushed: client.add("bench", *pushed), columns, size, seed)


def learner(url: str, size: int, seed: int, shared_memory: bool = False, **_: Any) -> Any:
    """Samples a batch into the same arrays each time, or into shared memory, and writes new priorities back."""
    client = rs.Client(url, shared_memory=shared_memory)
    priorities = np.random.default_rng(seed).random(size) + 0.01
    batch = None

    def step(latencies: dict[str, list[float]]) -> None:
        nonlocal batch
        reused = None if shared_memory else batch
        drawn = batch = timed(
            latencies["sample"],
            lambda: client.sample("bench", size, importance_sampling_exponent=0.4, out=reused),
        )
        timed(latencies["update"], lambda: client.update_priorities("bench", drawn.ids, priorities))

    return step


def experience(url: str, folder: str, **_: Any) -> dict[str, float]:
    """Puts a recording in as whole transitions, those of all environments at a step in one call."""
    recorded, client = Recorded(folder), rs.Client(url)
    for items in recorded.transitions():
        client.add("bench", items, np.ones(len(items["action"])))
    kept.append(client)
    return {"items": recorded.items}
