"""Many copies of one environment, stepped together, with ends, lost lives and resets told apart.

All of them reset themselves in the step after an episode's end ("next-step autoreset"): the observation returned
with an end is the episode's true final one, and the action of the following step is ignored. `restart` after an end
does it at once instead, so that no step is ignored.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from replay_server.actors.atari_games import EMULATOR_FRAMES_PER_S, AtariGames
from replay_server.actors.environment_states import StateUnsupported, environment_state, restore_environment
from replay_server.actors.environment_steps import Environments, EnvStep
from replay_server.actors.state_codec import StateError, pack_state, unpack_state
from replay_server.rl.actions import as_taken
from replay_server.rl.environment_spec import FRAME_SKIP, SCREEN_SIZE, EnvironmentSettings, is_atari
from replay_server.rl.observations import ObservationReader, Observations

PICTURES_PER_S = 30.0
"""Of an environment whose metadata say nothing of render_fps."""


class PicturesUnsupported(ValueError):
    """The environment cannot show itself."""


class AtariEnvironments:
    """`AtariVectorEnv` (84×84 grey, 4 frames skipped, max of the last 2, stacked) as the Ape-X paper plays it.

    Minimal action set, rewards unclipped, up to `noop_max` no-ops and FIRE after a reset, games cut after
    `max_frames_per_episode` emulator frames. Lives are watched here and not by the library: its episodic life would
    end episodes, while here a lost life is only reported.
    """

    def __init__(self, settings: EnvironmentSettings, num_envs: int, seed: np.random.SeedSequence) -> None:
        import ale_py

        gymnasium.register_envs(ale_py)
        # One thread: a run has an actor process for every core to be used.
        self._env: Any = gymnasium.make_vec(
            settings.env,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            num_threads=1,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            repeat_action_probability=settings.sticky_actions,
            full_action_space=False,
            max_num_frames_per_episode=settings.max_frames_per_episode,
            img_height=SCREEN_SIZE,
            img_width=SCREEN_SIZE,
            stack_num=settings.frame_stack,
            frameskip=FRAME_SKIP,
            maxpool=True,
            noop_max=settings.noop_max,
            use_fire_reset=settings.fire_on_reset,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
        )
        self.num_envs = num_envs
        self.num_actions = int(self._env.single_action_space.n)
        action_set = list(self._env.ale.get_action_set())
        has_fire = settings.fire_on_reset and ale_py.Action.FIRE in action_set
        self._fire = action_set.index(ale_py.Action.FIRE) if has_fire else None
        self._seeds = (seed.generate_state(num_envs) >> 1).astype(np.int64)
        self._lives = np.zeros(num_envs, np.int64)
        self._must_fire = np.zeros(num_envs, bool)
        self._resetting = np.zeros(num_envs, bool)

    def reset(self) -> np.ndarray:
        observations, info = self._env.reset(seed=self._seeds)
        self._lives = np.array(info["lives"], np.int64)
        self._must_fire[:] = False
        self._resetting[:] = False
        return observations

    def restart(self, ended: np.ndarray) -> np.ndarray:
        observations, info = self._env.reset(options={"reset_mask": np.asarray(ended, bool)})
        # What came is of those environments alone, or of all.
        rows = np.array(info["env_id"], np.int64)
        fresh = np.zeros((self.num_envs, *observations.shape[1:]), observations.dtype)
        fresh[rows] = observations
        self._lives[rows] = info["lives"]
        self._must_fire = self._must_fire & ~ended
        self._resetting &= ~ended
        return fresh

    def forced(self, actions: np.ndarray) -> np.ndarray:
        return actions if self._fire is None else np.where(self._must_fire, self._fire, actions)

    def step(self, actions: np.ndarray) -> EnvStep:
        observations, rewards, terminated, truncated, info = self._env.step(actions)
        ignored = self._resetting
        lives = np.array(info["lives"], np.int64)
        truncated = truncated & ~terminated
        # Some games (Qbert) show 0 lives for a moment in the middle of a game: only a remaining life counts.
        lost_life = (lives > 0) & (lives < self._lives) & ~ignored & ~terminated & ~truncated
        self._lives = lives
        self._must_fire = lost_life
        self._resetting = terminated | truncated
        return EnvStep(observations, rewards.astype(np.float64), terminated, truncated, lost_life, ignored)

    def state(self) -> bytes:
        raise StateUnsupported("AtariVectorEnv cannot give its state: make environments that can (stateful=True)")

    def restore(self, state: bytes) -> None:
        raise StateUnsupported("AtariVectorEnv cannot take a state: make environments that can (stateful=True)")

    def picture(self) -> np.ndarray:
        raise PicturesUnsupported("AtariVectorEnv shows no colours: make environments that do (shown=True)")

    @property
    def pictures_per_s(self) -> float:
        return EMULATOR_FRAMES_PER_S / FRAME_SKIP

    def close(self) -> None:
        self._env.close()


class SingleEnvironments:
    """Environments of any kind (CartPole, LunarLander, MuJoCo's, one's own), stepped one after the other.

    Args:
        shown: whether the first of them draws what it shows. Raises PicturesUnsupported where it cannot.
        cut: whether games are truncated after `max_frames_per_episode` steps (0 = not), whatever their own limit.
    """

    def __init__(
        self,
        settings: EnvironmentSettings,
        num_envs: int,
        seed: np.random.SeedSequence,
        shown: bool = False,
        cut: bool = False,
    ) -> None:
        # Gymnasium's checker only warns, and cannot go on from a state.
        self._envs: list[gymnasium.Env[Any, Any]] = [
            gymnasium.make(settings.env, disable_env_checker=True) for _ in range(num_envs - shown)
        ]
        if shown:
            self._envs.insert(0, _shown_environment(settings.env))
        if cut and settings.max_frames_per_episode > 0:
            self._envs = [gymnasium.wrappers.TimeLimit(env, settings.max_frames_per_episode) for env in self._envs]
        self.num_envs = num_envs
        self._env_id = settings.env
        self._action_space = actions = self._envs[0].action_space
        self.num_actions = int(actions.n) if isinstance(actions, gymnasium.spaces.Discrete) else 0
        self._reader = ObservationReader(self._envs[0].observation_space)
        self._seeds = [int(value) for value in seed.generate_state(num_envs)]
        self._resetting = np.zeros(num_envs, bool)
        self._no_lives = np.zeros(num_envs, bool)

    def reset(self) -> Observations:
        observations = self._reader.empty(self.num_envs)
        for row, (env, seed) in enumerate(zip(self._envs, self._seeds, strict=True)):
            self._reader.take(observations, row, env.reset(seed=seed)[0])
        self._resetting[:] = False
        return observations

    def restart(self, ended: np.ndarray) -> Observations:
        observations = self._reader.empty(self.num_envs)
        for row in np.flatnonzero(ended).tolist():
            self._reader.take(observations, row, self._envs[row].reset()[0])
        self._resetting &= ~ended
        return observations

    def forced(self, actions: np.ndarray) -> np.ndarray:
        return actions

    def step(self, actions: np.ndarray) -> EnvStep:
        observations, ignored = self._reader.empty(self.num_envs), self._resetting
        rewards, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        for row, env in enumerate(self._envs):
            if ignored[row]:
                seen, _ = env.reset()
            else:
                action = as_taken(self._action_space, actions[row])
                seen, rewards[row], terminated[row], truncated[row], _ = env.step(action)
            self._reader.take(observations, row, seen)
        truncated &= ~terminated
        self._resetting = terminated | truncated
        return EnvStep(observations, rewards, terminated, truncated, self._no_lives, ignored)

    def state(self) -> bytes:
        states = [environment_state(env) for env in self._envs]
        return pack_state({"environments": states, "resetting": self._resetting})

    def restore(self, state: bytes) -> None:
        values = unpack_state(state)
        states = values["environments"]
        if len(states) != self.num_envs:
            raise StateError(f"expected the states of {self.num_envs} environments, got those of {len(states)}")
        for env, one in zip(self._envs, states, strict=True):
            restore_environment(env, one)
        self._resetting = values["resetting"]

    def picture(self) -> np.ndarray:
        picture: Any = self._envs[0].render()
        if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,):
            return picture
        got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise PicturesUnsupported(
            f"{self._env_id}: expected one that draws what it shows, as an array uint8 (height, width, 3) of render() "
            f"in render_mode rgb_array, got {got}"
        )

    @property
    def pictures_per_s(self) -> float:
        return float(self._envs[0].metadata.get("render_fps") or PICTURES_PER_S)

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _shown_environment(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, render_mode="rgb_array")
    except TypeError as error:  # Its entry point takes no render_mode.
        raise PicturesUnsupported(f"{env_id}: expected one that takes render_mode='rgb_array', got {error}") from error


def make_environments(
    settings: EnvironmentSettings,
    num_envs: int,
    seed: np.random.SeedSequence,
    stateful: bool = False,
    shown: bool = False,
    cut: bool = False,
) -> Environments:
    """`num_envs` copies of ``settings.env``, each with its own seed drawn from `seed`.

    With `stateful`, Atari games that can give their state; with `shown`, environments whose first one gives pictures.
    Atari games are then played the same way, somewhat slower, with other no-ops. Those are always truncated after
    ``settings.max_frames_per_episode`` frames; games of others, after so many steps, with `cut` alone.
    """
    if not is_atari(settings.env):
        return SingleEnvironments(settings, num_envs, seed, shown, cut)
    return (AtariGames if stateful or shown else AtariEnvironments)(settings, num_envs, seed)


def check_states(settings: EnvironmentSettings) -> None:
    """Makes an environment and takes its state, so that a job with one that has none is refused before it begins.

    Raises StateUnsupported, saying what is expected.
    """
    environments = make_environments(settings, 1, np.random.SeedSequence(0), stateful=True)
    try:
        environments.reset()
        environments.state()
    finally:
        environments.close()


class EpisodeScores:
    """Adds up unclipped rewards, game by game: lost lives do not split a score."""

    def __init__(self, num_envs: int) -> None:
        self._running = np.zeros(num_envs)

    @property
    def running(self) -> np.ndarray:
        """Of the games that go on, float64 (E,); may be set."""
        return self._running.copy()

    @running.setter
    def running(self, scores: np.ndarray) -> None:
        if np.shape(scores) != self._running.shape:
            raise ValueError(f"expected scores of shape {self._running.shape}, got {np.shape(scores)}")
        self._running = np.array(scores, np.float64)

    def add(self, step: EnvStep) -> list[tuple[int, float]]:
        """Returns (environment, score) of each game that ended in this step."""
        self._running += np.where(step.ignored, 0.0, step.rewards)
        finished = np.flatnonzero(step.terminated | step.truncated)
        scores = [(int(environment), float(self._running[environment])) for environment in finished]
        self._running[finished] = 0.0
        return scores
