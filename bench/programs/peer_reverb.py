"""Reverb: a replay server over gRPC; its batches come through a TensorFlow data set, which computes no weights."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from program import pushing, random_items, timed
from recorded import Recorded

PACKAGES = ("dm-reverb", "tensorflow", "numpy")
_server: Any = None
_kept: list[Any] = []
"""Connections that stay open until this process ends, so that what went over them can be read."""


def signature(columns: Any) -> dict[str, Any]:
    return {name: tf.TensorSpec(shape, tf.as_dtype(dtype)) for name, (dtype, shape) in columns.items()}


def server(columns: Any, capacity: int, **_: Any) -> dict[str, Any]:
    """A server in this process, with a prioritized table."""
    global _server
    _server = reverb.Server(
        [
            reverb.Table(
                "bench",
                sampler=reverb.selectors.Prioritized(0.6),
                remover=reverb.selectors.Fifo(),
                max_size=capacity,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=signature(columns),
            )
        ]
    )
    return {"url": f"localhost:{_server.port}", "pid": os.getpid()}


class Writer:
    """Pushes items, each a step of its own."""

    def __init__(self, url: str) -> None:
        self._client = reverb.Client(url)
        self._writer = self._client.writer(max_sequence_length=1, chunk_length=1)

    def push(self, rows: list[dict[str, np.ndarray]], priorities: np.ndarray) -> None:
        """Returns when the server has confirmed all of them."""
        writer = self._writer
        for row, priority in zip(rows, priorities):
            writer.append(row)
            writer.create_item("bench", 1, priority)
        writer.flush()


def rows_of(items: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Items one by one, as an actor's environment makes them."""
    count = len(next(iter(items.values())))
    return [{name: array[i] for name, array in items.items()} for i in range(count)]


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    generator = np.random.default_rng(1)
    writer, block = Writer(url), rows_of(random_items(columns, 100, generator))
    for begin in range(0, capacity, 100):
        count = min(100, capacity - begin)
        writer.push(block[:count], generator.random(count) + 0.01)


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    return pushing(Writer(url).push, columns, size, seed, rows_of)


def learner(url: str, size: int, seed: int, **_: Any) -> Any:
    """Batches from the data set, prefetched by it, as arrays; priorities are written back by the client."""
    client = reverb.Client(url)
    dataset = reverb.TimestepDataset.from_table_signature(url, "bench", max_in_flight_samples_per_worker=2 * size)
    batches = dataset.batch(size, drop_remainder=True).prefetch(2).as_numpy_iterator()
    priorities = np.random.default_rng(seed).random(size) + 0.01

    def step(latencies: dict[str, list[float]]) -> None:
        batch: Any = timed(latencies["sample"], lambda: next(batches))
        updates = dict(zip(batch.info.key.tolist(), priorities.tolist()))
        timed(latencies["update"], lambda: client.mutate_priorities("bench", updates))

    return step


def experience(url: str, folder: str, **_: Any) -> dict[str, float]:
    """Puts a recording in as whole transitions, which Reverb compresses one by one."""
    recorded, writer = Recorded(folder), Writer(url)
    for items in recorded.transitions():
        writer.push(rows_of(items), np.ones(len(items["action"])))
    _kept.append(writer)
    return {"items": recorded.items}
