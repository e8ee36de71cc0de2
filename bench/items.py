"""What is pushed and sampled: kinds of transition, with their sizes, and random ones of each kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import replay_server as rs
from replay_server.bench.programs.program import random_items


@dataclass(frozen=True)
class ItemKind:
    """One kind of transition and the sizes of the messages that carry it."""

    name: str
    columns: dict[str, tuple[str, tuple[int, ...]]]
    """Column → dtype and shape of one item."""
    capacity: int
    """Items in the table, unless told otherwise: enough to leave the caches, little enough for a small machine."""
    push_size: int
    """Items in one push."""
    batch_size: int
    """Items in one sample."""
    about: str

    @property
    def item_bytes(self) -> int:
        """Bytes of one item as it goes over the wire."""
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in self.columns.values())

    @property
    def has_stacks(self) -> bool:
        """Whether its observations are stacks of frames, so that a frame may be stored once."""
        return len(self.columns["obs"][1]) == 3

    def table(self, capacity: int | None = None) -> rs.Table:
        """A prioritized table of this kind that never makes anybody wait."""
        return rs.Table(
            "bench",
            capacity=capacity or self.capacity,
            signature={name: rs.Column(dtype, shape) for name, (dtype, shape) in self.columns.items()},
            sampler=rs.Prioritized(priority_exponent=0.6),
            remover=rs.Fifo(),
            rate_limiter=rs.MinSize(1),
        )

    def random(self, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """`count` random items, column → array (count, ...)."""
        return random_items(self.columns, count, generator)


def _transition(
    dtype: str, shape: tuple[int, ...], action: tuple[str, tuple[int, ...]]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "obs": (dtype, shape),
        "action": action,
        "reward": ("float32", ()),
        "next_obs": (dtype, shape),
        "discount": ("float32", ()),
    }


KINDS = {
    kind.name: kind
    for kind in (
        ItemKind(
            "atari",
            _transition("uint8", (4, 84, 84), ("int64", ())),
            capacity=20_000,
            push_size=50,
            batch_size=512,
            about="Atari transition: two stacks of four 84×84 uint8 frames, 56.5 kB",
        ),
        ItemKind(
            "hopper",
            _transition("float32", (11,), ("float32", (3,))),
            capacity=100_000,
            push_size=50,
            batch_size=512,
            about="Hopper transition: two observations of 11 float32, 108 B",
        ),
        ItemKind(
            "float-frames",
            _transition("float32", (4, 84, 84), ("int64", ())),
            capacity=4_000,
            push_size=200,
            batch_size=512,
            about="frames as float32, 200 a push: the 43 MB messages of in-network replay (PDP 2022)",
        ),
    )
}
