"""Actions as networks and tables have them: choices, or numbers between bounds.

A discrete action is a choice of n, or several such choices side by side, called branches.

MultiDiscrete and MultiBinary have a branch for each of their numbers; a Dict or a Tuple has those of its parts, one
after the other. A network then gives the values of all branches in one row, and each branch is chosen by its own
(Tavakoli et al. 2018, Action Branching Architectures for Deep Reinforcement Learning).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Branches = tuple[int, ...]
"""Choices of each branch; () where an action is a single number."""


def action_branches(space: Any) -> tuple[int, Branches] | None:
    """(values that a network gives, branches) for an action space; None where it is not discrete."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n), ()
    sizes = list(_sizes(space))
    return (sum(sizes), tuple(sizes)) if sizes and 0 not in sizes else None


def _sizes(space: Any) -> Iterator[int]:
    """Of each branch; 0 for what is no discrete action."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        yield int(space.n)
    elif isinstance(space, gymnasium.spaces.MultiDiscrete):
        yield from (int(size) for size in np.ravel(space.nvec))
    elif isinstance(space, gymnasium.spaces.MultiBinary):
        yield from [2] * int(np.prod(space.shape))
    elif isinstance(space, gymnasium.spaces.Dict):
        for part in space.spaces.values():
            yield from _sizes(part)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for part in space.spaces:
            yield from _sizes(part)
    else:
        yield 0


def as_taken(space: Any, action: Any) -> Any:
    """An action, counted from 0, as an environment of that action space takes it; of a Box in its precision."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return action + space.start
    if isinstance(space, gymnasium.spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            return action
        # A float32 next to a float64's bound may be beyond it.
        return np.clip(np.asarray(action, space.dtype), space.low, space.high)
    return _assembled(space, iter(np.atleast_1d(action)))


def _assembled(space: Any, choices: Iterator[Any]) -> Any:
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return next(choices) + space.start
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _assembled(part, choices) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_assembled(part, choices) for part in space.spaces)
    taken = np.array([next(choices) for _ in range(int(np.prod(space.shape)))], space.dtype).reshape(space.shape)
    return taken + getattr(space, "start", np.zeros((), space.dtype))


LARGEST_BOUND = 1e9
"""Bounds beyond it are as good as none: an action drawn between them would mean nothing."""


@dataclass(frozen=True)
class Bounds:
    """Of continuous actions: what each number of an action may be. Networks have them between −1 and 1."""

    shape: tuple[int, ...]
    """Of one action."""
    low: tuple[float, ...]
    """Of each number, in C order."""
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Numbers of one action."""
        return len(self.low)

    @property
    def centre(self) -> np.ndarray:
        """float64 (size,), what is 0 to a network."""
        return (np.array(self.high) + np.array(self.low)) / 2

    @property
    def half_width(self) -> np.ndarray:
        """float64 (size,), from the centre to a bound."""
        return (np.array(self.high) - np.array(self.low)) / 2

    def actions(self, numbers: np.ndarray) -> np.ndarray:
        """What a network puts out, (N, size) from −1 to 1 → actions float32 (N, *shape), between the bounds."""
        actions = np.clip(self.centre + numbers * self.half_width, self.low, self.high)
        return actions.astype(np.float32).reshape(-1, *self.shape)


def action_bounds(space: Any) -> Bounds | None:
    """The bounds of a Box of real numbers, None for any other space. ValueError for a Box without finite bounds."""
    import gymnasium

    if not (isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)):
        return None
    low, high = (np.ravel(bound).astype(np.float64) for bound in (space.low, space.high))
    if not low.size:
        return None
    if not (np.abs(low).max() <= LARGEST_BOUND and np.abs(high).max() <= LARGEST_BOUND):
        raise ValueError(
            f"expected actions with bounds of at most ±{LARGEST_BOUND:g}, got {space}: wrap it in a "
            "gymnasium.wrappers.TransformAction whose action_space has the bounds that make sense"
        )
    return Bounds(tuple(int(side) for side in space.shape), tuple(low.tolist()), tuple(high.tolist()))


def greedy(q_values: np.ndarray, branches: Branches = ()) -> np.ndarray:
    """q_values (E, A) → the best actions int64 (E,), or (E, branches)."""
    if not branches:
        return q_values.argmax(axis=1)
    return np.stack([part.argmax(axis=1) for part in _split(q_values, branches)], axis=1)


def action_values(q_values: np.ndarray, actions: np.ndarray, branches: Branches = ()) -> tuple[np.ndarray, np.ndarray]:
    """(Q of the actions, the largest Q), each float (E,): the means over branches, where there are some."""
    everyone = np.arange(len(q_values))
    if not branches:
        return q_values[everyone, actions], q_values.max(axis=1)
    taken, best = np.zeros((2, len(q_values)))
    for branch, part in enumerate(_split(q_values, branches)):
        taken += part[everyone, actions[:, branch]]
        best += part.max(axis=1)
    return taken / len(branches), best / len(branches)


def _split(q_values: np.ndarray, branches: Sequence[int]) -> list[np.ndarray]:
    return np.split(q_values, np.cumsum(branches)[:-1], axis=1)
