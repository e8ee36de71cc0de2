"""n-step windows over many environments at once, with the actor's initial priorities, and one copy per stored frame.

A window that starts at step s and ends at observation s + m (m = n, or fewer where a life or episode ended) is the
transition

    obs = o_s    action = a_s    reward = r_s + γ r_{s+1} + … + γ^{m−1} r_{s+m−1}
    next_obs = o_{s+m}           discount = γ^m · (1 − terminated)

so that the learner's target is reward + discount · Q(next_obs, ·), whatever m was. `terminated` cuts the bootstrap,
`truncated` does not; both end the window at the true final observation.
"""

from __future__ import annotations

import numpy as np


class TransitionBuffer:
    """Rows of finished transitions, as the columns of the Ape-X table, in arrays that are reused from push to push."""

    def __init__(self, rows: int, observation_shape: tuple[int, ...], observation_dtype: str) -> None:
        self.rows = rows
        self.count = 0
        self.obs = np.empty((rows, *observation_shape), observation_dtype)
        self.next_obs = np.empty((rows, *observation_shape), observation_dtype)
        self.action = np.empty(rows, np.int64)
        self.reward = np.empty(rows, np.float32)
        self.discount = np.empty(rows, np.float32)
        self.td_error = np.empty(rows, np.float64)

    def columns(self) -> dict[str, np.ndarray]:
        """The rows filled so far, by column name: views, valid until `clear` and the next append."""
        filled = slice(0, self.count)
        return {
            "obs": self.obs[filled],
            "action": self.action[filled],
            "reward": self.reward[filled],
            "next_obs": self.next_obs[filled],
            "discount": self.discount[filled],
        }

    def priorities(self, epsilon: float) -> np.ndarray:
        """Initial priorities |n-step TD error| + ε of the rows filled so far: float64 (count,), not Hubered."""
        return np.abs(self.td_error[: self.count]) + epsilon

    def clear(self) -> None:
        self.count = 0


class NStepAccumulator:
    """Turns the steps of E environments into n-step transitions.

    Each `step` call brings the observations that were acted on, the Q values that chose the actions, and what the
    environments answered. It first finishes the windows that end at these observations: their bootstrap value is in
    the Q values just given, so initial priorities cost no second forward pass. This holds for the final observation
    of a truncated episode too, because with next-step autoreset the actor sees it, and computes its Q values, on the
    step whose action is ignored. Windows therefore wait one step for their last value, and the n newest steps of
    each environment are always pending.

    Observation arrays are kept by reference for n further steps and must not be overwritten (gymnasium's vector
    environments return fresh ones); a frame is copied only when its transition goes into the buffer.
    """

    def __init__(self, environments: int, n_step: int, discount: float) -> None:
        if n_step < 1:
            raise ValueError(f"expected n_step of at least 1, got {n_step}")
        self.n_step = n_step
        self.environments = environments
        self._powers = discount ** np.arange(n_step + 1)
        self._observations: list[np.ndarray | None] = [None] * n_step
        """Ring over time; slot t % n holds what step t acted on. The arrays below are rings of the same kind."""
        self._actions = np.zeros((n_step, environments), np.int64)
        self._chosen_q = np.zeros((n_step, environments), np.float64)
        self._returns = np.zeros((n_step, environments), np.float64)
        self._time = 0
        self._length = np.zeros(environments, np.int64)
        """Steps of the current life or episode that are in the ring, at most n."""
        self._terminated = np.zeros(environments, bool)
        self._ended = np.zeros(environments, bool)

    def step(
        self,
        observations: np.ndarray,
        q_values: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ignored: np.ndarray,
        out: TransitionBuffer,
    ) -> int:
        """Takes one step of all environments and appends the transitions that became complete; returns their number.

        observations (E, …): acted on; after a step that ended an episode, its true final observation.
        q_values (E, A) float: of `observations`. actions (E,) int. rewards (E,) float: as the learner shall see them.
        terminated, truncated (E,) bool: a lost life belongs to `terminated`. ignored (E,) bool: the environment only
        reset itself in this step, so that it makes no transition.
        At most E · n rows are appended; raises ValueError, with nothing changed, if `out` has not room for them.
        """
        needed, free = self.environments * self.n_step, out.rows - out.count
        if free < needed:
            raise ValueError(f"expected room for {needed} transitions, {free} are free; push and clear first")
        appended = self._finish_windows(observations, q_values, out)
        self._length[self._ended] = 0

        slot = self._time % self.n_step
        self._observations[slot] = observations
        self._actions[slot] = actions
        self._chosen_q[slot] = q_values[np.arange(self.environments), actions]
        self._returns[slot] = 0.0
        for age in range(min(self.n_step, self._time + 1)):
            # Windows of an episode that is over collect rewards too, but are never read again.
            self._returns[(self._time - age) % self.n_step] += self._powers[age] * rewards
        np.minimum(self._length + 1, self.n_step, out=self._length)
        self._length[ignored] = 0
        self._terminated = np.logical_and(terminated, ~ignored)
        self._ended = np.logical_and(terminated | truncated, ~ignored)
        self._time += 1
        return appended

    def _finish_windows(self, observations: np.ndarray, q_values: np.ndarray, out: TransitionBuffer) -> int:
        """Appends the windows that end at `observations`: the full ones, and after an end the shorter ones too."""
        before = out.count
        best_q = q_values.max(axis=1)
        for steps in range(self.n_step, 0, -1):
            finished = self._length >= steps
            if steps < self.n_step:
                finished &= self._ended
            environments = np.flatnonzero(finished)
            if environments.size:
                self._append(steps, environments, observations, best_q, out)
        return out.count - before

    def _append(
        self, steps: int, environments: np.ndarray, observations: np.ndarray, best_q: np.ndarray, out: TransitionBuffer
    ) -> None:
        slot = (self._time - steps) % self.n_step
        started_at = self._observations[slot]
        assert started_at is not None
        rows = slice(out.count, out.count + environments.size)
        for row, environment in zip(range(rows.start, rows.stop), environments.tolist(), strict=True):
            out.obs[row] = started_at[environment]
            out.next_obs[row] = observations[environment]
        returns = self._returns[slot, environments]
        discounts = self._powers[steps] * ~self._terminated[environments]
        out.action[rows] = self._actions[slot, environments]
        out.reward[rows] = returns
        out.discount[rows] = discounts
        out.td_error[rows] = returns + discounts * best_q[environments] - self._chosen_q[slot, environments]
        out.count = rows.stop
