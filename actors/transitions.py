"""What an actor writes: each frame once, as a step of its environment's stream, and transitions that see them.

The writer (`replay_server.n_step_writer`) makes the initial priorities, of the values that the actor has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from replay_server.n_step_writer import VectorNStepWriter
from replay_server.rl.acting import make_acting
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import Leaf, Observations, columns
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import STEP_COLUMN
from replay_server.tree import Leaves

Patiently = Callable[[Callable[[], None]], bool]
"""Runs a call of the writer until it succeeds; False where it was given up, since the actor is to stop."""


def at_once(call: Callable[[], None]) -> bool:
    """Runs a call once."""
    call()
    return True


class TransitionWriter:
    """Writes the steps of E environments to an Ape-X table, and the n-step transitions that they make.

    To the learner a lost life ends an episode, and so it does in the streams: the observation after it is the final one
    of one episode and the first of the next. A new episode's first observation may be a stack of frames that are no
    repetition of its newest one (after a lost life it shows frames of the life before): those frames are appended
    before it, so that what is sampled is what the network saw, bit by bit.

    Args:
        writer: of E environments, to a table of `replay_server.rl.tables.apex_table`; see `n_step_options`.
        patiently: see `Patiently`; every call that may send goes through it.
    """

    def __init__(
        self,
        writer: VectorNStepWriter,
        settings: ApexSettings,
        spec: EnvironmentSpec,
        patiently: Patiently = at_once,
    ) -> None:
        environments = settings.envs_per_actor
        self._writer = writer
        self._prioritized = settings.prioritized
        self._acting = make_acting(spec)
        self._is_stack = isinstance(spec.observation, Leaf) and spec.observation.is_stack
        self._patiently = patiently
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
        observations: Observations,
        outputs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ignored: np.ndarray,
    ) -> None:
        """Takes one step of all environments; what is given up patiently ends the writing.

        Args:
            observations: (E, …), those that were acted on; after a step that ended an episode, its true final one.
            outputs: float (E, …), of the network that plays, for these observations.
            actions: (E, …), as the table has them.
            rewards: float (E,), as the learner shall see them.
            terminated, truncated: bool (E,); a lost life belongs to `terminated`.
            ignored: bool (E,): the environment only reset itself in this step, so that it makes no transition.
        """
        newest = columns(STEP_COLUMN, observations[:, -1] if self._is_stack else observations)
        valued = self._acting.values(outputs, actions) if self._prioritized else None
        # With next-step autoreset the actor computes the values of final observations too: no second forward pass.
        state_value = {} if valued is None else {"state_value": valued[1]}
        if self._ended.any() and not self._append(newest, self._ended, **state_value):
            return
        acts = ~ignored
        if not self._begin(observations, acts & (self._ended | ~self._going_on)):
            return
        values = {} if valued is None else {"action_value": valued[0], **state_value}
        step = {**newest, "action": actions, "reward": rewards}
        self._append(step, acts, terminated=terminated, truncated=truncated, **values)
        self._going_on = acts
        self._ended = (terminated | truncated) & acts

    def _begin(self, observations: Observations, begins: np.ndarray) -> bool:
        """Appends what the first stack of new episodes shows and repeating its first frame would not."""
        if not self._is_stack or not begins.any():
            return True
        stack = observations.shape[1]
        repeated = np.ones(len(observations), bool)
        for k in range(stack - 1):
            repeated[begins] &= (observations[begins, k + 1] == observations[begins, 0]).all(axis=(1, 2))
            needed = begins & ~repeated
            if needed.any() and not self._append({STEP_COLUMN: observations[:, k]}, needed):
                return False
        return True

    def _append(self, step: dict[str, np.ndarray], mask: np.ndarray, **more: Any) -> bool:
        return self._patiently(lambda: self._writer.append(Leaves(step), mask=mask, **more))


def n_step_options(settings: ApexSettings) -> dict[str, Any]:
    """How an actor's writer makes its returns and priorities."""
    return {"n_step": settings.n_step, "discount": settings.discount, "priority_epsilon": settings.priority_epsilon}
