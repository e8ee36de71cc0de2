"""What an actor writes: each frame once, as a step of its environment's stream, and transitions that see them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.n_step import FinishedWindows, NStepAccumulator
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import STEP_COLUMN
from replay_server.writer import VectorWriter

Patiently = Callable[[Callable[[], None]], None]
"""Runs a call of the writer until it succeeds."""


class TransitionWriter:
    """Writes the steps of E environments to an Ape-X table, and the n-step transitions that they make.

    To the learner a lost life ends an episode, and so it does in the streams: windows end at their episode's last step,
    which gives shorter windows their final observation. A new episode's first observation may be a stack of frames that
    are no repetition of its newest one (after a lost life it shows frames of the life before): those frames are
    appended before it, so that what is sampled is what the network saw, bit by bit.

    Args:
        writer: of E environments, to a table of `replay_server.rl.tables.apex_table`.
        patiently: see `Patiently`; every call that may send goes through it.
    """

    def __init__(
        self,
        writer: VectorWriter,
        settings: ApexSettings,
        spec: EnvironmentSpec,
        patiently: Patiently = lambda call: call(),
    ) -> None:
        environments = settings.envs_per_actor
        self._writer = writer
        self._settings = settings
        self._spec = spec
        self._patiently = patiently
        self._accumulator = NStepAccumulator(environments, settings.n_step, settings.discount)
        self._going_on = np.zeros(environments, bool)
        """Episodes that the newest observations belong to."""
        self._ended = np.zeros(environments, bool)
        """Of these, those that the newest observations end."""

    @property
    def waiting(self) -> int:
        """Transitions that were made and not sent yet."""
        return self._writer.waiting

    def step(
        self,
        observations: np.ndarray,
        q_values: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ignored: np.ndarray,
    ) -> None:
        """Takes one step of all environments: the observations that were acted on, (E, …), and what came of it.

        The other arguments are those of `NStepAccumulator.step`.
        """
        if self._going_on.any():
            self._append(self._newest(observations), self._going_on, self._ended)
        for windows in self._accumulator.step(q_values, actions, rewards, terminated, truncated, ignored):
            self._make(windows)
        begins = ~ignored & (self._ended | ~self._going_on)
        if begins.any():
            self._begin(observations, begins)
        self._going_on = ~ignored
        self._ended = (terminated | truncated) & ~ignored

    def _newest(self, observations: np.ndarray) -> np.ndarray:
        return observations[:, -1] if self._spec.is_image else observations

    def _begin(self, observations: np.ndarray, begins: np.ndarray) -> None:
        """Appends the first observation of new episodes; of a stack, what repeating its first frame would not show."""
        if not self._spec.is_image:
            self._append(observations, begins)
            return
        stack = observations.shape[1]
        repeated = np.ones(len(observations), bool)
        for k in range(stack):
            if k + 1 < stack:
                repeated[begins] &= (observations[begins, k + 1] == observations[begins, 0]).all(axis=(1, 2))
            needed = begins & ~repeated if k + 1 < stack else begins
            if needed.any():
                self._append(observations[:, k], needed)

    def _append(self, steps: np.ndarray, mask: np.ndarray, final: np.ndarray | bool = False) -> None:
        self._patiently(lambda: self._writer.append({STEP_COLUMN: steps}, mask=mask, final=final))

    def _make(self, windows: FinishedWindows) -> None:
        settings = self._settings
        priorities = np.abs(windows.td_error) + settings.priority_epsilon if settings.prioritized else 1.0
        self._writer.create_items(
            np.where(windows.mask, priorities, 0.0),
            at=-1 - windows.steps,
            columns={"action": windows.action, "reward": windows.reward, "discount": windows.discount},
            mask=windows.mask,
        )
