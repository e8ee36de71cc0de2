"""What travels in the comparison of transports: the paper's messages and this project's, prepared as bytes.

The paper (Furukawa and Matsutani, in-network replay, PDP 2022) pushes 200 transitions of float32 observations at once
(43 MB, ``float-frames``) and has networks of 13 MB. This project pushes 50 transitions of uint8 frames, whole or with
each frame once. Redis gets as many bytes by its own commands.
"""

from __future__ import annotations

import functools
import os

import numpy as np

import replay_server as rs
from replay_server import commands
from replay_server.bench import client as load
from replay_server.bench.client import request
from replay_server.bench.items import KINDS, ItemKind

PARAMETERS = 3_292_837
"""Of the dueling network for four actions: 13.17 MB of float32."""
N_STEP = 3
STACK = 4
FRAMES = "frames"
"""Name of the table with frames once; that of whole transitions is "bench"."""
WEIGHTS = "policy"
EXPERIENCE = "experience"
"""The list that blobs of experience are pushed on."""


@functools.lru_cache(maxsize=8)
def random_bytes(size: int) -> bytes:
    return os.urandom(size)


@functools.lru_cache(maxsize=1)
def weights_blob() -> bytes:
    """The parameters as the Python library publishes them."""
    made = commands.publish_weights(WEIGHTS, {"parameters": np.zeros(PARAMETERS, np.float32)}, None)
    blob = bytearray(b"".join(bytes(part) for part in made.arguments[-1].buffers))  # type: ignore[union-attr]
    blob[-4 * PARAMETERS :] = random_bytes(4 * PARAMETERS)
    return bytes(blob)


# ---- tables ----------------------------------------------------------------------------------------------------------


def frames_table(capacity: int) -> rs.Table:
    """Transitions over 3 steps of stacks of 4 uint8 frames, each frame once."""
    return rs.Table(
        FRAMES,
        capacity,
        {
            "frame": rs.Column("uint8", (84, 84), step_only=True),
            "obs": rs.Window("frame", length=STACK),
            "action": rs.Column("int64"),
            "reward": rs.Column("float32"),
            "next_obs": rs.Window("frame", length=STACK, offset=N_STEP),
            "discount": rs.Column("float32"),
        },
        sampler=rs.Prioritized(priority_exponent=0.6),
    )


def _priorities(count: int) -> bytes:
    return (np.random.default_rng(count).random(count) + 0.01).tobytes()


# ---- requests --------------------------------------------------------------------------------------------------------


def echo(size: int = 64) -> bytes:
    """A round trip of so many bytes each way, in every dialect."""
    return request(["PING", random_bytes(size).hex()[:size]])


def put(key: str, size: int) -> bytes:
    return request(["SET", key, random_bytes(size)])


def fetch(key: str) -> bytes:
    return request(["GET", key])


def push(kind: ItemKind, count: int, redis: bool = False, first: int = 0) -> bytes:
    """Whole transitions: an ADD; of Redis an MSET of one value an item."""
    if redis:
        block = random_bytes(kind.item_bytes * count)
        pairs = ((f"item:{first + i}", block[i * kind.item_bytes : (i + 1) * kind.item_bytes]) for i in range(count))
        return request(["MSET", *(word for pair in pairs for word in pair)])
    columns: list[load.Argument] = []
    for name, (dtype, shape) in kind.columns.items():
        columns += [name, random_bytes(np.dtype(dtype).itemsize * int(np.prod(shape)) * count)]
    return request(["REPLAY.ADD", "bench", count, _priorities(count), "COLUMNS", len(kind.columns), *columns])


def push_frames(count: int, redis: bool = False) -> bytes:
    """So many transitions of one episode, each frame once: its steps, items that see them, and the end of the stream.

    Of Redis an RPUSH of as many bytes on a list that is cut to one element.
    """
    steps = count + N_STEP
    streams, frames = np.zeros(steps, np.uint32), random_bytes(84 * 84 * steps)
    flags = np.zeros(steps, np.uint8)
    flags[0], flags[-1] = 1, 2
    items = np.arange(count, dtype=np.uint64)
    own = ["action", bytes(8 * count), "reward", bytes(4 * count), "discount", bytes(4 * count)]
    places = (streams[:count].tobytes(), items.tobytes(), _priorities(count))
    made = request(
        ["REPLAY.APPEND", FRAMES, steps, streams.tobytes(), flags.tobytes(), "COLUMNS", 1, "frame", frames],
        ["REPLAY.ITEM", FRAMES, count, *places, "COLUMNS", 3, *own],
        ["REPLAY.CLOSE", FRAMES, streams[:1].tobytes()],
    )
    return push_blob(len(made)) if redis else made


def push_blob(size: int, kept: int = 1) -> bytes:
    """The paper's push: a blob to the end of a list. The list keeps so many of the newest: memory stays bounded."""
    return request(["RPUSH", EXPERIENCE, random_bytes(size)], ["LTRIM", EXPERIENCE, -kept, -1])


def pull_blobs() -> bytes:
    """The paper's learner: everything that is on the list."""
    return request(["LRANGE", EXPERIENCE, 0, -1])


def sample(count: int, capacity: int = 0, redis: bool = False, table: str = "bench") -> bytes:
    """A prioritized batch with weights; of Redis, MGET of so many random items, uniformly."""
    if redis:
        chosen = np.random.default_rng(count).integers(0, capacity, count)
        return request(["MGET", *(f"item:{number}" for number in chosen)])
    return request(["REPLAY.SAMPLE", table, count, "BETA", "0.4"])


def publish(redis: bool = False) -> bytes:
    return request(["SET", WEIGHTS, weights_blob()] if redis else ["WEIGHTS.PUBLISH", WEIGHTS, "*", weights_blob()])


def pull_weights(redis: bool = False) -> bytes:
    return request(["GET", WEIGHTS] if redis else ["WEIGHTS.GET", WEIGHTS])


ATARI = KINDS["atari"]
FAITHFUL = KINDS["float-frames"]
FAITHFUL_PUSH_BYTES = FAITHFUL.item_bytes * FAITHFUL.push_size
"""43.07 MiB: 200 transitions, actions and rewards included."""
