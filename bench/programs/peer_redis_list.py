"""Redis as a queue: pushers append to a list, the learner drains it into a prioritized buffer of its own (cpprb)."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import peer_cpprb
import peer_redis
import redis
from program import pushing, random_items, timed

PACKAGES = ("redis", "hiredis", "cpprb", "numpy")
LIST = "experience"
DRAINED = 5_000
"""Items that the learner takes off the list before a batch, at most."""
WAITING = 20_000
"""Items on the list at which the oldest are dropped, so that memory stays bounded where the learner cannot keep up."""


def fill(url: str, **_: Any) -> None:
    """The items lie with the learner, which fills its own buffer."""
    redis.Redis.from_url(url).delete(LIST)


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    client: Any = redis.Redis.from_url(url)

    def push(block: np.ndarray, _: np.ndarray) -> None:
        length = client.rpush(LIST, *[item.tobytes() for item in block])
        if length > WAITING:
            client.ltrim(LIST, -DRAINED, -1)

    return pushing(push, columns, size, seed, peer_redis.pack)


def learner(url: str, columns: Any, size: int, seed: int, capacity: int, **_: Any) -> Any:
    """Before each batch, what the pushers sent meanwhile is put into the learner's own buffer."""
    client = redis.Redis.from_url(url)
    generator = np.random.default_rng(seed)
    client.delete(LIST)
    buffer = peer_cpprb.Buffer(columns, capacity, size, DRAINED)
    block = random_items(columns, 100, generator)
    for _begin in range(0, capacity, 100):
        buffer.add(block, generator.random(100) + 0.01)
    priorities = generator.random(size) + 0.01
    dtype = peer_redis.packed_dtype(columns)

    def sample() -> None:
        values: Any = client.lpop(LIST, min(DRAINED, capacity)) or []
        if values:
            items = np.frombuffer(b"".join(values), dtype)
            buffer.add({name: items[name] for name in columns}, np.ones(len(items)))
        buffer.sample()

    def step(latencies: dict[str, list[float]]) -> None:
        timed(latencies["sample"], sample)
        timed(latencies["update"], lambda: buffer.update(priorities))

    return step
