"""Ray: cpprb's prioritized buffer in an actor; items and batches go through Ray's shared memory."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
from typing import Any

import numpy as np
import peer_cpprb
import ray
from program import pushing, random_items, timed

PACKAGES = ("ray", "cpprb", "numpy")
FOLDER = os.path.dirname(os.path.abspath(__file__))
_actor: Any = None


class Replay:
    """The actor: it knows its process, so that its processor time and memory can be read."""

    def __init__(self, columns: Any, capacity: int, size: int) -> None:
        self._buffer = peer_cpprb.Buffer(columns, capacity, size, 0)

    def pid(self) -> int:
        return os.getpid()

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._buffer.add(items, priorities)

    def sample(self) -> dict[str, np.ndarray]:
        return self._buffer.sample()

    def update(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        self._buffer.last = indices
        self._buffer.update(priorities)


def _connect(address: str | None) -> None:
    if not ray.is_initialized():
        ray.init(
            address=address,
            namespace="bench",
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": FOLDER}},
            **({"object_store_memory": 1 << 30, "_node_ip_address": "127.0.0.1"} if address is None else {}),
        )


def server(columns: Any, capacity: int, size: int = 512, **_: Any) -> dict[str, Any]:
    """A cluster of this host alone, with the actor; both end with this process."""
    global _actor
    _connect(None)
    _actor = ray.remote(Replay).options(name="replay", num_cpus=0).remote(columns, capacity, size)
    return {"url": ray.get_runtime_context().gcs_address, "pid": ray.get(_actor.pid.remote())}


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    _connect(url)
    generator = np.random.default_rng(1)
    actor, block = ray.get_actor("replay"), random_items(columns, 100, generator)
    for _begin in range(0, capacity, 100):
        ray.get(actor.add.remote(block, generator.random(100) + 0.01))


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    _connect(url)
    actor = ray.get_actor("replay")
    return pushing(lambda *pushed: ray.get(actor.add.remote(*pushed)), columns, size, seed)


def learner(url: str, size: int, seed: int, **_: Any) -> Any:
    _connect(url)
    actor = ray.get_actor("replay")
    priorities = np.random.default_rng(seed).random(size) + 0.01

    def step(latencies: dict[str, list[float]]) -> None:
        drawn: Any = timed(latencies["sample"], lambda: ray.get(actor.sample.remote()))
        timed(latencies["update"], lambda: ray.get(actor.update.remote(drawn["indexes"], priorities)))

    return step
