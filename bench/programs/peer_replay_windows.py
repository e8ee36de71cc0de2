"""This project with frames stored and sent once: steps, and items that see them through windows."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import peer_replay
from program import pushing, random_items
from recorded import N_STEP, Recorded

import replay_server as rs

PACKAGES = peer_replay.PACKAGES
EPISODE = 200
"""Steps of an episode of random frames."""


def table(columns: Any, capacity: int, compression: str = "none") -> rs.Table:
    """The signature's observations as windows over one column of frames; the rest as it was."""
    dtype, (stack, *frame) = columns["obs"]
    signature: dict[str, rs.Column | rs.Window] = {"frame": rs.Column(dtype, tuple(frame), step_only=True)}
    for name, (of, shape) in columns.items():
        signature[name] = rs.Column(of, shape)
    signature["obs"] = rs.Window("frame", length=stack, offset=0)
    signature["next_obs"] = rs.Window("frame", length=stack, offset=N_STEP)
    return rs.Table(
        "bench",
        capacity=capacity,
        signature=signature,
        sampler=rs.Prioritized(priority_exponent=0.6),
        remover=rs.Fifo(),
        rate_limiter=rs.MinSize(1),
        compression=compression,
    )


def server(columns: Any, capacity: int, compression: str = "none", **_: Any) -> dict[str, Any]:
    return peer_replay.serve(table(columns, capacity, compression))


class Pushes:
    """`size` environments, of which each push sends a step and an item each: one APPEND and one ITEM in all."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._turn = 0

    def push(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        """Appends the newest frame of each observation, and makes items that see it."""
        self._turn += 1
        # Of each environment the item whose successor's last frame is this one; after an episode's start, of the first.
        step = self._turn % EPISODE
        self._writer.append({"frame": items["obs"][:, -1]}, final=step == 0)
        own = {name: items[name] for name in ("action", "reward", "discount")}
        self._writer.create_items(priorities, -1 - N_STEP if step == 0 or step > N_STEP else -1, own)
        self._writer.flush()


class Buffer(peer_replay.Buffer):
    """`rs.Buffer` with windows, written to by as many environments as items are added at once."""

    def __init__(self, columns: Any, capacity: int, batch_size: int, push_size: int) -> None:
        self._buffer = rs.Buffer(table(columns, capacity))
        self._pushes = Pushes(self._buffer.vector_writer(push_size, flush_steps=1))
        self._batch_size = batch_size
        self._batch = None

    def add(self, items: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self._pushes.push(items, priorities)


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    generator = np.random.default_rng(1)
    with rs.Client(url) as client, client.vector_writer("bench", 50, flush_steps=1) as writer:
        pushes, block = Pushes(writer), random_items(columns, 50, generator)
        for _begin in range(0, capacity, 50):
            pushes.push(block, generator.random(50) + 0.01)


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    pushes = Pushes(rs.Client(url).vector_writer("bench", size, flush_steps=1))
    return pushing(pushes.push, columns, size, seed)


def learner(url: str, size: int, seed: int, shared_memory: bool = False, **_: Any) -> Any:
    return peer_replay.learner(url, size, seed, shared_memory)


def experience(url: str, folder: str, **_: Any) -> dict[str, float]:
    """Puts a recording in: every frame once."""
    recorded = Recorded(folder)
    steps, count = recorded.first.shape
    client: Any = rs.Client(url)
    peer_replay.kept.append(client)
    writer = client.vector_writer("bench", count)
    for step in range(steps):
        writer.append({"frame": np.array(recorded.frames[step])}, final=recorded.last[step])
        own = {
            "action": np.array(recorded.actions[step]),
            "reward": np.array(recorded.rewards[step]),
            "discount": np.full(count, 0.97, np.float32),
        }
        writer.create_items(np.ones(count), -1, own)
    writer.end_episode()
    writer.flush()
    return {"items": recorded.items}
