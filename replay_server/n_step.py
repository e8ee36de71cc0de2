"""n-step returns over many environments at once, from plain steps.

A window that starts at step s and ends at observation s + m (m = n, or fewer where the episode ended) has the return
and the discount

    R = r_s + γ r_{s+1} + … + γ^{m−1} r_{s+m−1}        γ^m, or 0 where the episode terminated in observation s + m

so that R + discount · V(o_{s+m}) is the n-step return (Sutton and Barto 2018, equation 7.1), whatever m was. Sums are
taken in float64, the reward of step s first.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FinishedWindows:
    """Windows of one length that have ended, at most one for each environment. All arrays are (k,)."""

    back: int
    """How far before the newest observation they start: m, or m − 1 where the final observation was left out."""
    environments: np.ndarray
    """int64: the environments that they belong to."""
    returns: np.ndarray
    """float64: R."""
    discounts: np.ndarray
    """float64: γ^m, or 0."""
    values: np.ndarray
    """float64: what `act` was given for the first step."""


class NStepReturns:
    """Turns the rewards of E environments into n-step returns. Environments need not keep step.

    An observation arrives (`observe`), then an action is taken on it and brings a reward (`act`); the reward counts
    once the next observation has arrived. So every window ends at an observation that is there.
    """

    def __init__(self, environments: int, n_step: int, discount: float) -> None:
        self._n_step = n_step
        self._powers = np.array([discount**k for k in range(n_step + 1)])
        self._ages = np.arange(n_step)[:, None]
        self._returns = np.zeros((n_step, environments))
        """Ring over the steps of each environment; row t % n holds the window that starts at step t."""
        self._values = np.zeros((n_step, environments))
        self._steps = np.zeros(environments, np.int64)
        self._length = np.zeros(environments, np.int64)
        """Steps of the current episode whose successor is there, at most n: the windows that are open."""
        self._rewards = np.zeros(environments)
        self._acted = np.zeros(environments, bool)
        self._terminated = np.zeros(environments, bool)
        self._ended = np.zeros(environments, bool)

    def copy(self) -> NStepReturns:
        """One that goes on from here by itself."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(other, name, value.copy())
        return other

    @property
    def acted(self) -> np.ndarray:
        """bool (E,): whether the newest step of each environment took an action whose successor is still to arrive."""
        return self._acted

    @property
    def ended(self) -> np.ndarray:
        """bool (E,): whether that action ended the episode, so that its successor is the final observation."""
        return self._ended

    @property
    def terminated(self) -> np.ndarray:
        """bool (E,): whether it ended in a terminal state."""
        return self._terminated

    def act(
        self,
        chosen: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        values: np.ndarray | float = 0.0,
    ) -> None:
        """Environments `chosen`, int64 (k,), acted on their newest observations; all arrays are (k,)."""
        rows = self._steps[chosen] % self._n_step
        self._returns[rows, chosen] = 0.0
        self._values[rows, chosen] = values
        self._steps[chosen] += 1
        self._rewards[chosen] = rewards
        self._acted[chosen] = True
        self._terminated[chosen] = terminated
        self._ended[chosen] = terminated | truncated

    def observe(self, chosen: np.ndarray, final: np.ndarray) -> list[FinishedWindows]:
        """The next observations of environments `chosen` have arrived, of which `final`, bool (k,), are the last of
        their episodes: the windows that end there, longest first."""
        acted = self._acted[chosen]
        if not acted.all():
            chosen, final = chosen[acted], final[acted]
        self._collect(chosen)
        return self._finish(chosen, final, 0)

    def cut(self, chosen: np.ndarray) -> list[FinishedWindows]:
        """The episodes of environments `chosen` end at their newest observations, and no other will arrive.

        An action whose successor is unknown makes no window, unless it terminated the episode.
        """
        chosen = chosen[self._acted[chosen]]
        ends_here = self._terminated[chosen]
        terminal, others = chosen[ends_here], chosen[~ends_here]
        self._collect(terminal)
        windows = self._finish(terminal, np.ones(len(terminal), bool), 1)
        # The window of n steps that ends at the newest observation was made when that arrived.
        self._steps[others] -= 1
        self._length[others] = np.minimum(self._length[others], self._n_step - 1)
        return windows + self._finish(others, np.ones(len(others), bool), 0)

    def _collect(self, chosen: np.ndarray) -> None:
        """Adds the pending rewards to the windows that they lie in."""
        rows = (self._steps[chosen] - 1 - self._ages) % self._n_step
        # Windows of episodes that are over collect rewards too, but are never read again.
        self._returns[rows, chosen] += self._powers[:-1, None] * self._rewards[chosen]
        self._length[chosen] = np.minimum(self._length[chosen] + 1, self._n_step)

    def _finish(self, chosen: np.ndarray, final: np.ndarray, missing: int) -> list[FinishedWindows]:
        """The full windows, and of those that are over the shorter ones too."""
        windows = []
        lengths = self._length[chosen]
        shortest = 1 if final.any() else self._n_step
        for steps in range(self._n_step, shortest - 1, -1):
            ready = lengths >= steps
            if steps < self._n_step:
                ready &= final
            if ready.any():
                windows.append(self._windows(steps, chosen[ready], steps - missing))
        over = chosen[final]
        self._length[over] = 0
        self._acted[chosen] = False
        self._terminated[over] = False
        self._ended[over] = False
        return windows

    def _windows(self, steps: int, chosen: np.ndarray, back: int) -> FinishedWindows:
        rows = (self._steps[chosen] - steps) % self._n_step
        discounts = np.where(self._terminated[chosen], 0.0, self._powers[steps])
        return FinishedWindows(back, chosen, self._returns[rows, chosen], discounts, self._values[rows, chosen])
