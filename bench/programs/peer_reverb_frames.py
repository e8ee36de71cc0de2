"""Reverb with frames sent once: steps of one frame each, and items that are trajectories over them."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import peer_reverb
import reverb
import tensorflow as tf
from program import pushing, random_items, timed
from recorded import N_STEP, STACK, Recorded

PACKAGES = peer_reverb.PACKAGES
REACH = STACK + N_STEP
EPISODE = 200
_kept: list[Any] = []
server = peer_reverb.server


class Stream:
    """The steps of one environment. An item is made once the frames of its successor are there.

    At an episode's start the first frame is appended as often as stacks see it: a trajectory cannot repeat a step.
    """

    def __init__(self, client: Any) -> None:
        self._writer = client.trajectory_writer(num_keep_alive_refs=2 * REACH)
        self._steps = 0

    def append(self, step: dict[str, np.ndarray], priority: float, last: bool) -> int:
        """How many items were made."""
        repeats = 1 if self._steps else STACK
        for _ in range(repeats):
            self._writer.append(step)
        self._steps += repeats
        made = 0
        if self._steps >= REACH:
            history = self._writer.history
            trajectory = {
                "obs": history["frame"][-REACH : -REACH + STACK],
                "next_obs": history["frame"][-STACK:],
                **{name: history[name][-1 - N_STEP] for name in ("action", "reward", "discount")},
            }
            self._writer.create_item("bench", priority, trajectory)
            made = 1
        if last:
            self._writer.end_episode(clear_buffers=True)
            self._steps = 0
        return made

    def flush(self) -> None:
        self._writer.flush()


def _steps_of(items: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [
        {"frame": frames[0], **{name: items[name][i] for name in ("action", "reward", "discount")}}
        for i, frames in enumerate(items["obs"])
    ]


def fill(url: str, columns: Any, capacity: int, **_: Any) -> None:
    stream, steps = Stream(reverb.Client(url)), _steps_of(random_items(columns, 100, np.random.default_rng(1)))
    for i in range(capacity + REACH):
        stream.append(steps[i % 100], 1.0, last=False)
        if i % 100 == 99:
            stream.flush()
    stream.flush()


def pusher(url: str, columns: Any, size: int, seed: int, **_: Any) -> Any:
    stream = Stream(reverb.Client(url))

    def push(steps: list[dict[str, np.ndarray]], priorities: np.ndarray) -> None:
        for step, priority in zip(steps, priorities):
            stream.append(step, priority, last=False)
        stream.flush()

    return pushing(push, columns, size, seed, _steps_of)


def learner(url: str, size: int, seed: int, **_: Any) -> Any:
    """Batches from the data set, prefetched by it, as arrays; priorities are written back by the client."""
    client = reverb.Client(url)
    dataset = reverb.TrajectoryDataset.from_table_signature(url, "bench", max_in_flight_samples_per_worker=2 * size)
    batches = dataset.batch(size, drop_remainder=True).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    priorities = np.random.default_rng(seed).random(size) + 0.01

    def step(latencies: dict[str, list[float]]) -> None:
        batch: Any = timed(latencies["sample"], lambda: next(batches))
        updates = dict(
            zip(
                batch.info.key[:, 0].tolist() if batch.info.key.ndim > 1 else batch.info.key.tolist(),
                priorities.tolist(),
            )
        )
        timed(latencies["update"], lambda: client.mutate_priorities("bench", updates))

    return step


def experience(url: str, folder: str, **_: Any) -> dict[str, float]:
    """Puts a recording in, a stream for each environment; the last steps of episodes make no items."""
    recorded, client = Recorded(folder), reverb.Client(url)
    steps, count = recorded.first.shape
    streams = [Stream(client) for _ in range(count)]
    made = 0
    for step in range(steps):
        for i, stream in enumerate(streams):
            row = {
                "frame": recorded.frames[step, i],
                "action": recorded.actions[step, i],
                "reward": recorded.rewards[step, i],
                "discount": np.float32(0.97),
            }
            made += stream.append(row, 1.0, bool(recorded.last[step, i]))
        if step % 8 == 7 or step == steps - 1:
            for stream in streams:
                stream.flush()
    _kept.append(streams)
    return {"items": made}
