"""Recorded frames of several environments, as the steps that they are and as the transitions made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

STACK = 4
N_STEP = 3


class Recorded:
    """What was played: T steps of each of E environments, read from a folder that `write` made.

    Attributes:
        frames: uint8 (T, E, 84, 84).
        actions, rewards: int64 and float32 (T, E).
        first, last: bool (T, E), whether a step is the first or the last of its episode.
    """

    def __init__(self, folder: str | Path) -> None:
        self.frames, self.actions, self.rewards, self.first = (
            np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("frames", "actions", "rewards", "first")
        )
        self.last = np.ones_like(self.first)
        self.last[:-1] = self.first[1:]

    @property
    def items(self) -> int:
        """Transitions there are: one at each step."""
        return self.first.size

    def transitions(self) -> Iterator[dict[str, np.ndarray]]:
        """For each step the E transitions at it, frames stacked explicitly.

        Stacks reach from the first to the last step of an episode, as windows do and Gymnasium's frame stacking.
        """
        steps, count = self.first.shape
        numbers = np.arange(steps)[:, None]
        begins = np.maximum.accumulate(np.where(self.first, numbers, 0), axis=0)
        ends = np.minimum.accumulate(np.where(self.last, numbers, steps - 1)[::-1], axis=0)[::-1]
        for step in range(steps):
            until = np.minimum(step + N_STEP, ends[step])
            yield {
                "obs": self._stack(np.full(count, step), begins[step]),
                "action": np.array(self.actions[step]),
                "reward": np.array(self.rewards[step]),
                "next_obs": self._stack(until, begins[step]),
                "discount": np.where(until == step + N_STEP, np.float32(0.97), np.float32(0)),
            }

    def _stack(self, newest: np.ndarray, begin: np.ndarray) -> np.ndarray:
        steps = np.maximum(newest[:, None] - np.arange(STACK - 1, -1, -1), begin[:, None])
        return self.frames[steps, np.arange(len(newest))[:, None]]


def write(folder: str | Path, frames: np.ndarray, actions: np.ndarray, rewards: np.ndarray, first: np.ndarray) -> None:
    """Leaves a recording for `Recorded`."""
    for name, array in (("frames", frames), ("actions", actions), ("rewards", rewards), ("first", first)):
        np.save(Path(folder) / f"{name}.npy", array)
