"""n-step windows over many environments at once, with the actor's initial priorities.

A window that starts at step s and ends at observation s + m (m = n, or fewer where a life or episode ended) is the
transition

    obs = o_s    action = a_s    reward = r_s + γ r_{s+1} + … + γ^{m−1} r_{s+m−1}
    next_obs = o_{s+m}           discount = γ^m · (1 − terminated)

so that the learner's target is reward + discount · Q(next_obs, ·), whatever m was. `terminated` cuts the bootstrap,
`truncated` does not; both end the window at the true final observation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FinishedWindows:
    """Windows of one length that end at the newest observation, at most one for each of E environments.

    All arrays have E entries; those outside `mask` mean nothing.
    """

    steps: int
    """m: how many steps before the newest observation they start."""
    mask: np.ndarray
    """bool: the environments whose window it is."""
    action: np.ndarray
    """int64."""
    reward: np.ndarray
    """float32: the discounted sum."""
    discount: np.ndarray
    """float32."""
    td_error: np.ndarray
    """float64: of the network that acted; its absolute value is the initial priority, not Hubered."""


class NStepAccumulator:
    """Turns the steps of E environments into n-step transitions.

    Each `step` call brings the Q values of the observations that were acted on, and what the environments answered. It
    first finishes the windows that end at these observations: their bootstrap value is in the Q values just given, so
    initial priorities cost no second forward pass. This holds for the final observation of a truncated episode too,
    because with next-step autoreset the actor sees it, and computes its Q values, on the step whose action is ignored.
    Windows therefore wait one step for their last value, and the n newest steps of each environment are always pending.
    """

    def __init__(self, environments: int, n_step: int, discount: float) -> None:
        if n_step < 1:
            raise ValueError(f"expected n_step of at least 1, got {n_step}")
        self.n_step = n_step
        self.environments = environments
        self._powers = discount ** np.arange(n_step + 1)
        self._actions = np.zeros((n_step, environments), np.int64)
        """Ring over time; row t % n holds what step t did. The arrays below are rings of the same kind."""
        self._chosen_q = np.zeros((n_step, environments), np.float64)
        self._returns = np.zeros((n_step, environments), np.float64)
        self._time = 0
        self._length = np.zeros(environments, np.int64)
        """Steps of the current life or episode that are in the ring, at most n."""
        self._terminated = np.zeros(environments, bool)
        self._ended = np.zeros(environments, bool)

    def step(
        self,
        q_values: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ignored: np.ndarray,
    ) -> list[FinishedWindows]:
        """Takes one step of all environments; returns the windows that end at the observations acted on, longest first.

        q_values (E, A) float: of those observations; after a step that ended an episode, of its true final one.
        actions (E,) int. rewards (E,) float: as the learner shall see them. terminated, truncated (E,) bool: a lost
        life belongs to `terminated`. ignored (E,) bool: the environment only reset itself in this step, so that it
        makes no transition.
        """
        finished = self._finish_windows(q_values)
        self._length[self._ended] = 0

        row = self._time % self.n_step
        self._actions[row] = actions
        self._chosen_q[row] = q_values[np.arange(self.environments), actions]
        self._returns[row] = 0.0
        for age in range(min(self.n_step, self._time + 1)):
            # Windows of an episode that is over collect rewards too, but are never read again.
            self._returns[(self._time - age) % self.n_step] += self._powers[age] * rewards
        np.minimum(self._length + 1, self.n_step, out=self._length)
        self._length[ignored] = 0
        self._terminated = np.logical_and(terminated, ~ignored)
        self._ended = np.logical_and(terminated | truncated, ~ignored)
        self._time += 1
        return finished

    def _finish_windows(self, q_values: np.ndarray) -> list[FinishedWindows]:
        """The full windows, and after an end the shorter ones too."""
        best_q = q_values.max(axis=1)
        windows = []
        for steps in range(self.n_step, 0, -1):
            mask = self._length >= steps
            if steps < self.n_step:
                mask &= self._ended
            if mask.any():
                windows.append(self._window(steps, mask, best_q))
        return windows

    def _window(self, steps: int, mask: np.ndarray, best_q: np.ndarray) -> FinishedWindows:
        row = (self._time - steps) % self.n_step
        returns = self._returns[row].copy()
        discounts = self._powers[steps] * ~self._terminated
        return FinishedWindows(
            steps=steps,
            mask=mask,
            action=self._actions[row].copy(),
            reward=returns.astype(np.float32),
            discount=discounts.astype(np.float32),
            td_error=returns + discounts * best_q - self._chosen_q[row],
        )
