"""What environments that are stepped side by side are and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from replay_server.rl.observations import Observations


@dataclass(frozen=True)
class EnvStep:
    """What E environments answered. All arrays have E entries along their first axis."""

    observations: Observations
    """An array, or a dict of these by path."""
    rewards: np.ndarray
    """float64, unclipped."""
    terminated: np.ndarray
    """bool: the game is over. Lost lives are not in here."""
    truncated: np.ndarray
    """bool: cut by a time limit; never together with `terminated`."""
    lost_life: np.ndarray
    """bool: a life was lost and the game goes on."""
    ignored: np.ndarray
    """bool: the environment reset itself in this step; action and reward mean nothing."""


class Environments(Protocol):
    """E environments side by side."""

    num_envs: int
    num_actions: int
    """0 where actions are no single number."""

    def reset(self) -> Observations:
        """Starts every environment anew; returns observations (E, …)."""
        ...

    def restart(self, ended: np.ndarray) -> Observations:
        """Begins new episodes where `ended` (E,) bool says so, of environments that the last step ended.

        Returns observations (E, …) of which only theirs mean anything: fresh arrays.
        """
        ...

    def step(self, actions: np.ndarray) -> EnvStep:
        """actions (E,) int64; of branches (E, branches) int64; continuous ones (E, A) float32, within their bounds.

        Observations are fresh arrays: earlier ones stay as they were.
        """
        ...

    def forced(self, actions: np.ndarray) -> np.ndarray:
        """The actions that will really be taken: FIRE where a life was just lost, so that the game goes on."""
        ...

    def state(self) -> bytes:
        """All that these environments need to go on elsewhere. StateUnsupported where one of them cannot give it."""
        ...

    def restore(self, state: bytes) -> None:
        """Goes on from the state of environments made with the same settings and number; no reset is needed.

        Raises StateError for another state.
        """
        ...

    def picture(self) -> np.ndarray:
        """What the first environment shows to people: uint8 (H, W, 3). For environments made to be looked at."""
        ...

    @property
    def pictures_per_s(self) -> float:
        """Steps of a second of the game."""
        ...

    def close(self) -> None: ...
