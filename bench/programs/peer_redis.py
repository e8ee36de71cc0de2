"""Redis: MSET to push, MGET of random keys to sample. It has no priorities and computes no weights."""

# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import redis
from program import pushing, random_items, timed
from recorded import Recorded

PACKAGES = ("redis", "hiredis", "numpy")
_kept: list[Any] = []
"""Connections that stay open until this process ends, so that what went over them can be read."""


def pack(items: dict[str, np.ndarray]) -> np.ndarray:
    """Columns → one structured array, an element an item."""
    count = len(next(iter(items.values())))
    packed = np.empty(count, np.dtype([(name, array.dtype, array.shape[1:]) for name, array in items.items()]))
    for name, array in items.items():
        packed[name] = array
    return packed


def packed_dtype(columns: Any) -> np.dtype:
    """All columns of an item side by side."""
    return np.dtype([(name, dtype, shape) for name, (dtype, shape) in columns.items()])


def unpack(values: list[bytes], dtype: np.dtype, out: dict[str, np.ndarray]) -> None:
    """Puts packed items into one array a column."""
    for row, value in enumerate(values):
        item = np.frombuffer(value, dtype)[0]
        for name, array in out.items():
            array[row] = item[name]


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    """As many items as the others hold, each one value."""
    client = redis.Redis.from_url(url)
    client.flushall()
    packed = pack(random_items(columns, 100, np.random.default_rng(1)))
    for begin in range(0, capacity, 100):
        client.mset({f"item:{begin + i}": packed[i].tobytes() for i in range(min(100, capacity - begin))})
    client.close()


def pusher(url: str, columns: Any, size: int, seed: int, capacity: int, first: int, stride: int, **_: Any) -> Any:
    """MSET of `size` items, each one value, over a ring of keys that the pushers share out."""
    client = redis.Redis.from_url(url)
    positions = itertools.count(first * size, stride * size)

    def push(block: np.ndarray, _: np.ndarray) -> None:
        # As the others, which take arrays: putting an item's columns together belongs to the push.
        position = next(positions)
        client.mset({f"item:{(position + i) % capacity}": item.tobytes() for i, item in enumerate(block)})

    return pushing(push, columns, size, seed, pack)


def learner(url: str, columns: Any, size: int, seed: int, capacity: int, **_: Any) -> Any:
    """MGET of `size` uniformly drawn keys, put into one array a column."""
    client = redis.Redis.from_url(url)
    generator = np.random.default_rng(seed)
    dtype = packed_dtype(columns)
    out = {name: np.empty((size, *shape), of) for name, (of, shape) in columns.items()}

    def sample() -> None:
        values: Any = client.mget([f"item:{index}" for index in generator.integers(0, capacity, size)])
        unpack(values, dtype, out)

    return lambda latencies: timed(latencies["sample"], sample)


def experience(url: str, folder: str, **_: Any) -> dict[str, float]:
    """Puts a recording in as whole transitions, each one value, those of all environments at a step in one MSET."""
    recorded, client = Recorded(folder), redis.Redis.from_url(url)
    at = 0
    for items in recorded.transitions():
        packed = pack(items)
        client.mset({f"item:{at + i}": packed[i].tobytes() for i in range(len(packed))})
        at += len(packed)
    _kept.append(client)
    return {"items": recorded.items}
