"""The shape of an environment as a stochastic policy needs it: observations, actions, and how long episodes can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from replay_server.rl.environment_spec import FRAME_SKIP, OTHER_ACTIONS, SCREEN_SIZE, is_atari, opened
from replay_server.rl.policy_settings import PolicySettings


@dataclass(frozen=True)
class PolicySpec:
    """Observation shape and dtype, actions, and episode length of one environment."""

    observation_shape: tuple[int, ...]
    """(frame_stack, 84, 84) for images, (features,) for vectors."""
    observation_dtype: str
    """uint8 for images, float32 for vectors."""
    num_actions: int
    """Discrete actions; 0 where they are continuous."""
    action_low: tuple[float, ...] = ()
    """Bounds of continuous actions, one for each dimension; () where they are discrete."""
    action_high: tuple[float, ...] = ()
    max_episode_steps: int | None = None
    """Agent steps after which an episode is truncated; None = unknown."""
    frames_per_step: int = 1
    """Emulator frames that one agent step takes: 4 on Atari, 1 elsewhere."""

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3

    @property
    def is_discrete(self) -> bool:
        return self.num_actions > 0

    @property
    def action_size(self) -> int:
        """Dimensions of a continuous action; 0 where they are discrete."""
        return len(self.action_low)

    def bounded(self, actions: np.ndarray) -> np.ndarray:
        """The actions as the environment takes them: continuous ones clipped to its bounds."""
        if self.is_discrete:
            return actions
        return np.clip(actions, np.asarray(self.action_low, np.float32), np.asarray(self.action_high, np.float32))


def policy_spec(settings: PolicySettings) -> PolicySpec:
    """Makes one environment of ``settings.env``, reads its spaces, and closes it.

    Raises ValueError for an environment whose actions are neither discrete nor a vector, or whose observations are
    neither Atari screens nor vectors; gymnasium's errors for an unknown id pass through.
    """
    import gymnasium

    observation_space, action_space, max_episode_steps = opened(settings.env)
    actions: dict[str, Any]
    if isinstance(action_space, gymnasium.spaces.Discrete):
        actions = {"num_actions": int(action_space.n)}
    elif isinstance(action_space, gymnasium.spaces.Box) and len(action_space.shape) == 1:
        low, high = (tuple(float(value) for value in bound) for bound in (action_space.low, action_space.high))
        actions = {"num_actions": 0, "action_low": low, "action_high": high}
    else:
        raise ValueError(
            f"{settings.env}: expected discrete actions or a vector of continuous ones, this one has {action_space}; "
            f"{OTHER_ACTIONS}"
        )
    if is_atari(settings.env):
        return PolicySpec(
            (settings.frame_stack, SCREEN_SIZE, SCREEN_SIZE),
            "uint8",
            **actions,
            max_episode_steps=settings.max_frames_per_episode // FRAME_SKIP,
            frames_per_step=FRAME_SKIP,
        )
    if not (isinstance(observation_space, gymnasium.spaces.Box) and len(observation_space.shape) == 1):
        raise ValueError(
            f"{settings.env}: expected ALE/* or an environment with vector observations, this one has "
            f"{observation_space}; gymnasium.wrappers.FlattenObservation makes vectors of them, and with discrete "
            "actions replay-server apex takes them as they are (docs/how-to/own-environment.md)"
        )
    return PolicySpec(tuple(observation_space.shape), "float32", **actions, max_episode_steps=max_episode_steps)
