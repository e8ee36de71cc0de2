"""One process of a benchmark's load: ``python -m replay_server.bench.worker JSON``.

It connects, prints "ready", starts at the first line on its input, works until its time is over, and prints one line of
JSON: over how many seconds it worked, and the latency of each call of each kind. Processes of their own rather than
threads, since actors are processes too; JSON over pipes, since nothing is pickled.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.bench.items import KINDS, ItemKind

BLOCKS = 8
"""Different blocks of random items that a pusher takes turns with."""

Latencies = dict[str, list[float]]
Step = Callable[[Latencies], None]


def timed(latencies: list[float], call: Callable[[], Any]) -> Any:
    """Calls, and appends the call's latency in microseconds."""
    begin = time.perf_counter_ns()
    result = call()
    latencies.append((time.perf_counter_ns() - begin) / 1e3)
    return result


def replay_pusher(url: str, kind: ItemKind, size: int, seed: int, **_: Any) -> Step:
    """Adds `size` items a call, with priorities of its own, as an Ape-X actor does."""
    client = rs.Client(url)
    generator = np.random.default_rng(seed)
    blocks = [kind.random(size, generator) for _ in range(BLOCKS)]
    priorities = generator.random(size) + 0.01
    turn = 0

    def step(latencies: Latencies) -> None:
        nonlocal turn
        turn += 1
        timed(latencies["push"], lambda: client.add("bench", blocks[turn % BLOCKS], priorities))

    return step


def replay_learner(url: str, kind: ItemKind, size: int, seed: int, **_: Any) -> Step:
    """Samples a batch into the same arrays each time, and writes new priorities back."""
    client = rs.Client(url)
    generator = np.random.default_rng(seed)
    priorities = generator.random(size) + 0.01
    batch = None

    def step(latencies: Latencies) -> None:
        nonlocal batch
        reused = batch
        drawn = batch = timed(
            latencies["sample"],
            lambda: client.sample("bench", size, importance_sampling_exponent=0.4, out=reused),
        )
        timed(latencies["update"], lambda: client.update_priorities("bench", drawn.ids, priorities))

    return step


def redis_pusher(
    url: str, kind: ItemKind, size: int, seed: int, capacity: int, first: int, stride: int, **_: Any
) -> Step:
    """MSET of `size` items, each one value, over a ring of keys that the pushers share out."""
    import redis

    client = redis.Redis.from_url(url)
    generator = np.random.default_rng(seed)
    blocks = [pack(kind.random(size, generator)) for _ in range(BLOCKS)]
    position = first * size

    def step(latencies: Latencies) -> None:
        nonlocal position
        # As the replay client, which takes arrays: putting an item's columns together belongs to the push.
        timed(
            latencies["push"],
            lambda: client.mset(
                {
                    f"item:{(position + i) % capacity}": item.tobytes()
                    for i, item in enumerate(blocks[position % BLOCKS])
                }
            ),
        )
        position += stride * size

    return step


def redis_learner(url: str, kind: ItemKind, size: int, seed: int, capacity: int, **_: Any) -> Step:
    """MGET of `size` uniformly drawn keys, put into one array a column (no priorities, so no weights either)."""
    import redis

    client = redis.Redis.from_url(url)
    generator = np.random.default_rng(seed)
    dtype = packed_dtype(kind)
    out = {name: np.empty((size, *shape), of) for name, (of, shape) in kind.columns.items()}

    def sample() -> None:
        values: Any = client.mget([f"item:{index}" for index in generator.integers(0, capacity, size)])
        for row, value in enumerate(values):
            item = np.frombuffer(value, dtype)[0]
            for name, array in out.items():
                array[row] = item[name]

    return lambda latencies: timed(latencies["sample"], sample)


def packed_dtype(kind: ItemKind) -> np.dtype:
    """All columns of an item side by side."""
    return np.dtype([(name, of, shape) for name, (of, shape) in kind.columns.items()])


def pack(items: dict[str, np.ndarray]) -> np.ndarray:
    """Columns → one structured array, an element an item."""
    count = len(next(iter(items.values())))
    packed = np.empty(count, np.dtype([(name, array.dtype, array.shape[1:]) for name, array in items.items()]))
    for name, array in items.items():
        packed[name] = array
    return packed


ROLES: dict[str, Callable[..., Step]] = {
    "replay_pusher": replay_pusher,
    "replay_learner": replay_learner,
    "redis_pusher": redis_pusher,
    "redis_learner": redis_learner,
}


def main(argument: str) -> int:
    options = json.loads(argument)
    kind = KINDS[options.pop("kind")]
    seconds, warm_up = options.pop("seconds"), options.pop("warm_up")
    step = ROLES[options.pop("role")](kind=kind, **options)
    latencies: Latencies = {"push": [], "sample": [], "update": []}

    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    end = time.perf_counter() + warm_up
    while time.perf_counter() < end:
        step(latencies)
    for values in latencies.values():
        values.clear()
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        step(latencies)
    took = time.perf_counter() - begin
    print(json.dumps({"seconds": took, "latencies_us": {k: [round(v, 1) for v in vs] for k, vs in latencies.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
