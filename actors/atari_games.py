"""Atari games as `AtariEnvironments` plays them, whose whole state can be taken out and put into another process.

`AtariVectorEnv` cannot give its state, so the emulator is driven from here: 84×84 grey, 4 frames skipped, max of the
last 2, stacked; no-ops and FIRE after a reset; games cut after `max_frames_per_episode` emulator frames.

What the emulator says of its own state is incomplete in two ways, which are made up for:

- Sticky actions repeat an action that is not part of it: they are done here, frame by frame, by the same rule
  (Machado et al. 2018, section 5.1), with a generator of each game's own.
- Whether the last frame was drawn to its end is not part of it either (ale-py up to 0.12.1: Qbert and Tetris go on
  otherwise without it). It is the same after every frame of a game that is being played, so a state is put only into an
  emulator that has just played one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_server.actors.environment_steps import EnvStep
from replay_server.actors.state_codec import StateError, pack_state, unpack_state
from replay_server.rl.environment_spec import FRAME_SKIP, SCREEN_SIZE, EnvironmentSettings

NOOP = 0
FIRE = 1
"""Of ALE's actions."""
EMULATOR_FRAMES_PER_S = 60.0


class AtariGame:
    """One emulator, its stack of frames, and its random numbers.

    Args:
        seed: of the emulator, of no-ops and of sticky actions.
    """

    def __init__(self, settings: EnvironmentSettings, seed: int) -> None:
        import ale_py
        import cv2
        import gymnasium
        from ale_py import roms

        gymnasium.register_envs(ale_py)
        self._area, self._resize = cv2.INTER_AREA, cv2.resize
        self._state_of = ale_py.ALEState
        kwargs = gymnasium.spec(settings.env).kwargs
        rom = roms.get_rom_path(kwargs["game"])
        if rom is None:
            raise ValueError(f"{settings.env}: expected a game that ale_py comes with, it has none of this name")
        emulator = ale_py.ALEInterface()
        emulator.setLoggerMode(ale_py.LoggerMode.Error)
        emulator.setFloat("repeat_action_probability", 0.0)
        emulator.setInt("max_num_frames_per_episode", settings.max_frames_per_episode)
        emulator.setInt("random_seed", seed)
        emulator.loadROM(str(rom))
        if kwargs.get("mode") is not None:
            emulator.setMode(kwargs["mode"])
        if kwargs.get("difficulty") is not None:
            emulator.setDifficulty(kwargs["difficulty"])
        self._emulator: Any = emulator
        self.actions: list[int] = [action.value for action in emulator.getMinimalActionSet()]
        self.fires = settings.fire_on_reset and FIRE in self.actions
        self._noop_max = settings.noop_max
        self._sticky = settings.sticky_actions
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._taken = NOOP
        self.stack = np.zeros((settings.frame_stack, SCREEN_SIZE, SCREEN_SIZE), np.uint8)
        """uint8 (stack, 84, 84), the newest last; replaced at each step, never written to again."""
        height, width = emulator.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)

    @property
    def lives(self) -> int:
        return self._emulator.lives()

    def reset(self) -> None:
        """Begins a game: fewer than `noop_max` frames of no-ops, then FIRE where that starts it."""
        self._begin()
        for _ in range(self._random.integers(self._noop_max) if self._noop_max else 0):
            self._act(NOOP)
            if self._emulator.game_over():
                self._begin()
        if self.fires:
            self._act(FIRE)
        self._emulator.getScreenGrayscale(self._screens[0])
        self.stack = np.zeros_like(self.stack)
        self.stack[-1] = self._shrunk(self._screens[0])

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Plays `actions[action]` for 4 frames, fewer where the game ends. Returns reward, terminated, truncated."""
        reward, emulator, left = 0.0, self._emulator, 0
        for left in reversed(range(FRAME_SKIP)):
            reward += self._act(self.actions[action])
            over = emulator.game_over()
            if left < 2 or over:
                emulator.getScreenGrayscale(self._screens[left % 2])
            if over:
                break
        screen = np.maximum(self._screens[0], self._screens[1]) if left == 0 else self._screens[left % 2]
        self.stack = np.concatenate([self.stack[1:], self._shrunk(screen)[None]])
        terminated = emulator.game_over(with_truncation=False)
        return reward, terminated, emulator.game_truncated() and not terminated

    def picture(self) -> np.ndarray:
        """The newest screen, in colours: uint8 (210, 160, 3)."""
        return self._emulator.getScreenRGB()

    def state(self) -> dict[str, Any]:
        """All of it, for `restore`."""
        return {
            "emulator": self._emulator.cloneSystemState().serialize(),
            "played": self._emulator.getEpisodeFrameNumber() > 0,
            "taken": self._taken,
            "random": self._random.bit_generator.state,
            "stack": self.stack,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from the state of a game with the same settings."""
        if state["stack"].shape != self.stack.shape:
            raise StateError(f"expected a stack of shape {self.stack.shape}, got {state['stack'].shape}")
        self._emulator.reset_game()
        if state["played"]:
            self._emulator.act(NOOP)
        self._emulator.restoreSystemState(self._state_of(state["emulator"]))
        self._taken = state["taken"]
        self._random.bit_generator.state = state["random"]
        self.stack = state["stack"]

    def _begin(self) -> None:
        self._emulator.reset_game()
        self._taken = NOOP

    def _act(self, action: int) -> float:
        """One frame."""
        if not self._sticky or self._random.random() >= self._sticky:
            self._taken = action
        return self._emulator.act(self._taken)

    def _shrunk(self, screen: np.ndarray) -> np.ndarray:
        return self._resize(screen, (SCREEN_SIZE, SCREEN_SIZE), interpolation=self._area)


class AtariGames:
    """E games side by side (`replay_server.actors.envs.Environments`)."""

    def __init__(self, settings: EnvironmentSettings, num_envs: int, seed: np.random.SeedSequence) -> None:
        seeds = (seed.generate_state(num_envs) >> 1).tolist()
        self._games = [AtariGame(settings, value) for value in seeds]
        self.num_envs = num_envs
        self.num_actions = len(self._games[0].actions)
        self._fire = self._games[0].actions.index(FIRE) if self._games[0].fires else None
        self._lives = np.zeros(num_envs, np.int64)
        self._must_fire = np.zeros(num_envs, bool)
        self._resetting = np.zeros(num_envs, bool)

    def reset(self) -> np.ndarray:
        return self.restart(np.ones(self.num_envs, bool))

    def restart(self, ended: np.ndarray) -> np.ndarray:
        for row in np.flatnonzero(ended):
            self._games[row].reset()
        self._lives = self._count_lives()
        self._must_fire = self._must_fire & ~ended
        self._resetting = self._resetting & ~ended
        return self._observations()

    def forced(self, actions: np.ndarray) -> np.ndarray:
        return actions if self._fire is None else np.where(self._must_fire, self._fire, actions)

    def step(self, actions: np.ndarray) -> EnvStep:
        ignored = self._resetting
        rewards, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        for row, game in enumerate(self._games):
            if ignored[row]:
                game.reset()
            else:
                rewards[row], terminated[row], truncated[row] = game.step(int(actions[row]))
        lives, ended = self._count_lives(), terminated | truncated
        # Some games (Qbert) show 0 lives for a moment in the middle of a game: only a remaining life counts.
        lost_life = (lives > 0) & (lives < self._lives) & ~ignored & ~ended
        self._lives, self._must_fire, self._resetting = lives, lost_life, ended
        return EnvStep(self._observations(), rewards, terminated, truncated, lost_life, ignored)

    def state(self) -> bytes:
        games = [game.state() for game in self._games]
        flags = {"lives": self._lives, "must_fire": self._must_fire, "resetting": self._resetting}
        return pack_state({"games": games, **flags})

    def restore(self, state: bytes) -> None:
        values = unpack_state(state)
        if "games" not in values or len(values["games"]) != self.num_envs:
            got = len(values.get("games", ()))
            raise StateError(f"expected the states of {self.num_envs} Atari games, got those of {got}")
        for game, one in zip(self._games, values["games"], strict=True):
            game.restore(one)
        self._lives, self._must_fire, self._resetting = values["lives"], values["must_fire"], values["resetting"]

    def picture(self) -> np.ndarray:
        return self._games[0].picture()

    @property
    def pictures_per_s(self) -> float:
        return EMULATOR_FRAMES_PER_S / FRAME_SKIP

    def close(self) -> None:
        self._games = []

    def _observations(self) -> np.ndarray:
        return np.stack([game.stack for game in self._games])

    def _count_lives(self) -> np.ndarray:
        return np.array([game.lives for game in self._games], np.int64)
