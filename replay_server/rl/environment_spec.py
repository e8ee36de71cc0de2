"""The shape of an environment as networks and tables need it, found from its id alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from replay_server.rl.settings import ApexSettings

SCREEN_SIZE = 84
"""Height and width of a preprocessed Atari frame, in pixels (Mnih et al. 2015)."""

FRAME_SKIP = 4
"""Emulator frames per agent step on Atari."""


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
    """Observation shape and dtype of one environment, its number of discrete actions, and emulator frames per step."""

    observation_shape: tuple[int, ...]
    """(frame_stack, 84, 84) for images, (features,) for vectors."""
    observation_dtype: str
    """uint8 for images, float32 for vectors."""
    num_actions: int
    frames_per_step: int = 1
    """Emulator frames that one agent step takes: 4 on Atari, 1 elsewhere."""

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3


def is_atari(env_id: str) -> bool:
    """True for ids that the arcade learning environment serves (ALE/Pong-v5)."""
    return env_id.startswith("ALE/")


def opened(env_id: str) -> tuple[Any, Any, int | None]:
    """Makes one environment, closes it, and returns (observation space, action space, time limit in its own steps).

    ValueError where the module of ``module:Id-v0`` cannot be imported; gymnasium's errors pass through.
    """
    import gymnasium

    if is_atari(env_id):
        import ale_py

        gymnasium.register_envs(ale_py)
    try:
        env = gymnasium.make(env_id)
    except ModuleNotFoundError as error:
        if ":" not in env_id:  # a package that Gymnasium's own environments need
            raise
        raise ValueError(f"--env {env_id}: {str(error).rstrip('.')}; is the module's folder in PYTHONPATH?") from error
    try:
        limit = env.spec.max_episode_steps if env.spec is not None else None
        return env.observation_space, env.action_space, limit
    finally:
        env.close()


OTHER_ACTIONS = (
    "no command here takes them: wrap it in a gymnasium.ActionWrapper whose action_space is Discrete "
    "(docs/how-to/own-environment.md)"
)


def check_vector(env: str, observation_space: Any) -> None:
    """Raises ValueError, with what to do, where the observations of an environment other than ALE's are no vectors."""
    import gymnasium

    if isinstance(observation_space, gymnasium.spaces.Box) and len(observation_space.shape) == 1:
        return
    if _has_images(observation_space):
        do = "of images, only those of ALE/* have a network: train on others with a learner of your own"
        page = "docs/how-to/own-learner.md"
    else:
        do, page = "wrap it in gymnasium.wrappers.FlattenObservation", "docs/how-to/own-environment.md"
    raise ValueError(
        f"{env}: expected ALE/* or an environment with vector observations, this one has {observation_space}; "
        f"{do} ({page})"
    )


def _has_images(space: Any) -> bool:
    import gymnasium

    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, gymnasium.spaces.Dict) else space.spaces
        return any(map(_has_images, parts))
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3


def environment_spec(settings: ApexSettings) -> EnvironmentSpec:
    """Makes one environment of ``settings.env``, reads its spaces, and closes it.

    Raises ValueError for an environment whose actions are not discrete or whose observations are neither Atari
    screens nor vectors; gymnasium's errors for an unknown id pass through.
    """
    import gymnasium

    observation_space, action_space, _ = opened(settings.env)
    if not isinstance(action_space, gymnasium.spaces.Discrete):
        box = isinstance(action_space, gymnasium.spaces.Box)
        raise ValueError(
            f"{settings.env}: Ape-X DQN needs discrete actions, this environment has {action_space}; "
            + ("replay-server train takes continuous ones" if box else OTHER_ACTIONS)
        )
    num_actions = int(action_space.n)
    if is_atari(settings.env):
        shape = (settings.frame_stack, SCREEN_SIZE, SCREEN_SIZE)
        return EnvironmentSpec(shape, "uint8", num_actions, frames_per_step=FRAME_SKIP)
    check_vector(settings.env, observation_space)
    return EnvironmentSpec(tuple(observation_space.shape), "float32", num_actions)
