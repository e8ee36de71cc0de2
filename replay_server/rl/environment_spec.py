"""The shape of an environment as networks and tables need it, found from its id alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from replay_server.extras import EXTRAS
from replay_server.rl.actions import Bounds, Branches, action_bounds, action_branches
from replay_server.rl.observations import Leaf, Tree, atari_screens, leaves, map_tree, observation_tree
from replay_server.rl.settings import ApexSettings

SCREEN_SIZE = 84
"""Height and width of a preprocessed Atari frame, in pixels (Mnih et al. 2015)."""

FRAME_SKIP = 4
"""Emulator frames per agent step on Atari."""


Algorithm: TypeAlias = Literal["dqn", "sac"]


class EnvironmentSettings(Protocol):
    """What environments are made from, of the settings of any algorithm."""

    env: str
    frame_stack: int
    sticky_actions: float
    noop_max: int
    fire_on_reset: bool
    max_frames_per_episode: int


@dataclass(frozen=True)
class EnvironmentSpec:
    """Observations of one environment, its actions, and emulator frames per step."""

    observation: Tree[Leaf]
    """A leaf, or several by their paths."""
    num_actions: int
    """Values that a Q-network gives for an observation: one for each action; those of all branches, side by side; 0
    where actions are continuous."""
    frames_per_step: int = 1
    """Emulator frames that one agent step takes: 4 on Atari, 1 elsewhere."""
    branches: Branches = ()
    """Choices of each branch of an action; () where an action is a single number."""
    bounds: Bounds | None = None
    """Of continuous actions; None where they are discrete."""

    @property
    def algorithm(self) -> Algorithm:
        """What learns such actions: "dqn", or "sac" for continuous ones."""
        return "dqn" if self.bounds is None else "sac"

    @property
    def action_dtype(self) -> str:
        return "int64" if self.bounds is None else "float32"

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action, as the table has it; () where it is a single number."""
        if self.bounds is not None:
            return self.bounds.shape
        return (len(self.branches),) if self.branches else ()

    def random_actions(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Uniformly drawn actions, as the table has them: (count, *action_shape)."""
        if self.bounds is not None:
            return self.bounds.actions(generator.uniform(-1.0, 1.0, (count, self.bounds.size)))
        return generator.integers(self.branches or self.num_actions, size=(count, *self.action_shape))

    @property
    def observation_shape(self) -> Tree[tuple[int, ...]]:
        """Of one observation, such as (4, 84, 84); of several leaves a dict of shapes by path."""
        return map_tree(lambda leaf: leaf.shape, self.observation)

    @property
    def has_images(self) -> bool:
        return any(leaf.is_image for leaf in leaves(self.observation).values())


def is_atari(env_id: str) -> bool:
    """True for ids that the arcade learning environment serves (ALE/Pong-v5)."""
    return env_id.startswith("ALE/")


def opened(env_id: str) -> tuple[Any, Any, int | None]:
    """Makes one environment, closes it, and returns (observation space, action space, time limit in its own steps).

    ValueError where the module of ``module:Id-v0`` cannot be imported; ModuleNotFoundError where the environment needs
    a library that an extra of this package brings; gymnasium's errors pass through.
    """
    import gymnasium

    if is_atari(env_id):
        import ale_py

        gymnasium.register_envs(ale_py)
    try:
        env = gymnasium.make(env_id)
    except gymnasium.error.DependencyNotInstalled as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name in EXTRAS:
            raise ModuleNotFoundError(f"{env_id} needs {missing.name}", name=missing.name) from error
        raise
    except ModuleNotFoundError as error:
        if ":" not in env_id:  # a package that Gymnasium's own environments need
            raise
        raise ValueError(f"--env {env_id}: {str(error).rstrip('.')}; is the module's folder in PYTHONPATH?") from error
    try:
        limit = env.spec.max_episode_steps if env.spec is not None else None
        return env.observation_space, env.action_space, limit
    finally:
        env.close()


def told_without_limit(settings: ApexSettings) -> str:
    """For people: after how many steps evaluation games are cut that have no limit of their own; "" where they have."""
    most = settings.eval_max_frames_per_episode
    if is_atari(settings.env) or most < 1 or opened(settings.env)[2] is not None:
        return ""
    return (
        f"{settings.env} has no max_episode_steps: evaluation games are cut after {most} steps "
        "(--eval-max-frames-per-episode)"
    )


OTHER_ACTIONS = (
    "no command here takes them: wrap it in a gymnasium.ActionWrapper whose action_space is discrete "
    "(docs/how-to/own-environment.md)"
)


def algorithm_for(settings: ApexSettings) -> Algorithm:
    """The algorithm that the settings name; for "auto" the one that learns the environment's actions.

    Errors as `environment_spec`.
    """
    if settings.algo != "auto":
        return settings.algo
    return "dqn" if is_atari(settings.env) else environment_spec(settings).algorithm


def environment_spec(settings: ApexSettings) -> EnvironmentSpec:
    """Makes one environment of ``settings.env``, reads its spaces, and closes it.

    Raises ValueError for an environment whose actions are neither discrete nor a Box, or not for ``settings.algo``, or
    whose observations have no fixed size; gymnasium's errors for an unknown id pass through.
    """
    observation_space, action_space, _ = opened(settings.env)
    num_actions, branches, bounds = _actions(settings, action_space)
    if is_atari(settings.env):
        return EnvironmentSpec(atari_screens(settings.frame_stack, SCREEN_SIZE), num_actions, FRAME_SKIP)
    try:
        observation = observation_tree(observation_space)
    except ValueError as error:
        raise ValueError(f"{settings.env}: {error} (docs/how-to/own-environment.md)") from error
    return EnvironmentSpec(observation, num_actions, branches=branches, bounds=bounds)


def _actions(settings: ApexSettings, space: Any) -> tuple[int, Branches, Bounds | None]:
    """(values of a Q-network, branches, bounds) for an action space. ValueError where the algorithm cannot learn it."""
    try:
        bounds, discrete = action_bounds(space), action_branches(space)
    except ValueError as error:
        raise ValueError(f"{settings.env}: {error}") from error
    if bounds is None and discrete is None:
        raise ValueError(
            f"{settings.env}: expected discrete actions or a Box of real numbers, this environment has {space}; "
            f"{OTHER_ACTIONS}"
        )
    if settings.algo == "dqn" and discrete is None:
        raise ValueError(
            f"--algo dqn: expected discrete actions, {settings.env} has {space}; leave --algo out, and SAC learns them"
        )
    if settings.algo == "sac" and bounds is None:
        raise ValueError(
            f"--algo sac: expected a Box of actions, {settings.env} has {space}; leave --algo out, and DQN learns them"
        )
    num_actions, branches = discrete or (0, ())
    return num_actions, branches, bounds
