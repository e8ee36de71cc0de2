"""What the programs that train on an Atari game have in common: their clock and checkpoints, and the evaluator.

A program's ``train(**options)`` plays and learns for so many seconds, as the library that it is of does by itself. It
returns ``checkpoints``, with ``file``, ``minutes`` since the first step, and ``frames`` played and ``updates`` made by
then of each, and ``used``: the settings that the library was given. Its ``evaluate(**options)`` plays whole games with
the networks of these files. The time to save is not counted; nothing is evaluated while a side trains.

Only NumPy and torch are needed here, beside what those who call it have.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

FRAME_SKIP = 4
MAX_FRAMES = 108_000
"""Emulator frames after which a game is cut: half an hour."""
WIDTH = 10
"""Games played side by side."""


class TimeIsUp(Exception):
    """The time to train is over."""


LOOK_EVERY_S = 1.0


def is_left() -> bool:
    """Whether the asker of this program has gone: it has closed its end of standard input."""
    poll = select.poll()
    poll.register(0, 0)  # a hang-up alone is told
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def optimizer_steps() -> Callable[[], int]:
    """A count of the steps that torch's optimizers take in this process from now on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    register_optimizer_step_post_hook(count)
    return lambda: steps


class Checkpoints:
    """Saves what a side has learned, every so many seconds and at the end.

    Args:
        folder: where the files go; it is made.
        seconds: of training in all, counted from the first `step` on.
        every_s: seconds of training between two checkpoints.
        save: writes the network as it is now to a file.
        left: whether nobody waits for the end any more.
    """

    def __init__(
        self,
        folder: str,
        seconds: float,
        every_s: float,
        save: Callable[[Path], None],
        clock: Callable[[], float] = time.monotonic,
        left: Callable[[], bool] = is_left,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._left, self._look_at = left, 0.0
        self._updates = optimizer_steps()
        self._seconds, self._every_s, self._save, self._clock = seconds, every_s, save, clock
        self._began: float | None = None
        self._saving_s = 0.0
        self._due_s = every_s
        self.written: list[dict[str, Any]] = []

    def step(self, steps: int) -> None:
        """To be called after each step of the environments, with the steps so far.

        Raises TimeIsUp at the end, SystemExit where nobody waits for it any more.
        """
        now = self._clock()
        if self._began is None:
            self._began = now
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            if self._left():
                raise SystemExit("nobody waits for this run any more")
        passed = now - self._began - self._saving_s
        if passed < min(self._due_s, self._seconds):
            return
        file = self._folder / f"{len(self.written):04}.safetensors"
        self._save(file)
        self._saving_s += self._clock() - now
        done = {"minutes": round(passed / 60, 4), "frames": steps * FRAME_SKIP, "updates": self._updates()}
        self.written.append({"file": str(file), **done})
        self._due_s = (passed // self._every_s + 1) * self._every_s
        if passed >= self._seconds:
            raise TimeIsUp


class Games(Protocol):
    """Some games played side by side, each begun anew when it is over. A lost life ends none of them.

    They are for one call of `play`: a game that was left in the middle may go on after `reset`.
    """

    def reset(self) -> np.ndarray:
        """The first observations, one a game."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
        """The next observations, and (number, unclipped score) of each game that is over."""
        ...


def play(
    games: Games, width: int, values: Callable[[np.ndarray], np.ndarray], count: int, epsilon: float, seed: int
) -> list[float]:
    """Scores of `count` whole games, greedy but for `epsilon`.

    Each of the `width` side by side is played a number of times fixed beforehand: to take those that end first would
    favour short ones.

    Args:
        values: observations → one value for each action.
    """
    quota = np.full(width, count // width)
    quota[: count % width] += 1
    generator = np.random.default_rng(seed)
    scores: list[float] = []
    observations = games.reset()
    while quota.any():
        value = values(observations)
        random = generator.integers(0, value.shape[1], width)
        actions = np.where(generator.random(width) < epsilon, random, value.argmax(axis=1))
        observations, over = games.step(actions)
        for number, score in over:
            if quota[number]:
                quota[number] -= 1
                scores.append(score)
    return scores


class GymnasiumGames:
    """Games of Gymnasium that tell the score of a game when it is over, as ``info["episode"]["r"]``.

    So does `RecordEpisodeStatistics` under all other wrappers, whatever they make of lost lives and rewards.
    """

    def __init__(self, environments: Sequence[Any], seed: int) -> None:
        self._environments, self._seed = environments, seed

    def reset(self) -> np.ndarray:
        return np.stack(
            [np.asarray(each.reset(seed=self._seed + number)[0]) for number, each in enumerate(self._environments)]
        )

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
        observations, over = [], []
        for number, (environment, action) in enumerate(zip(self._environments, actions, strict=True)):
            observation, _, terminated, truncated, info = environment.step(int(action))
            if "episode" in info:
                over.append((number, float(np.sum(info["episode"]["r"]))))
            if terminated or truncated:
                observation, _ = environment.reset()
            observations.append(np.asarray(observation))
        return np.stack(observations), over


def register_game(env: str, sticky_actions: float) -> str:
    """Makes ``PongNoFrameskip-v4`` of ``ALE/Pong-v5`` with this chance of a repeated action; returns that id.

    It is the id that the libraries' wrappers are written for: they skip frames themselves.
    """
    import ale_py.registration
    import gymnasium

    if env not in gymnasium.registry:  # importing ale_py does it for Gymnasium 1 alone
        ale_py.registration.register_v5_envs()
    spec = gymnasium.spec(env)
    name = f"{env.removeprefix('ALE/').partition('-')[0]}NoFrameskip-v4"
    gymnasium.registry.pop(name, None)
    gymnasium.register(
        name,
        entry_point=spec.entry_point,
        kwargs={
            "game": spec.kwargs["game"],
            "obs_type": "rgb",
            "frameskip": 1,
            "repeat_action_probability": sticky_actions,
            "full_action_space": False,
            "max_num_frames_per_episode": MAX_FRAMES,
        },
    )
    return name


def save_network(network: Any, file: Path) -> None:
    """Writes a torch module's state."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}, file)


def load_network(network: Any, file: str) -> Any:
    """Loads what `save_network` wrote; returns the module, ready to play."""
    from safetensors.torch import load_file

    network.load_state_dict(load_file(file))
    return network.eval()


def values_of(network: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A torch module as what `play` asks for."""
    import torch

    torch.set_num_threads(1)

    def values(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(observations)).numpy()

    return values


def room_for(wanted: int, item_bytes: int) -> int:
    """Items of a replay buffer: as many as wanted, or what three quarters of the memory that is free now hold."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_kb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return min(wanted, free_kb * 1024 * 3 // 4 // item_bytes)
