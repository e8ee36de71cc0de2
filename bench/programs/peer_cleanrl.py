"""CleanRL's scripts for Atari, run as they are: `dqn_atari`, `rainbow_atari`, `pqn_atari_envpool`.

PyPI's cleanrl 1.2.0 holds `dqn_atari`; the two others are in its repository alone, of which `scripts` names a folder.
A script is run as its own main program, with its defaults; between two steps of its environments its network is saved.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from games import (
    MAX_FRAMES,
    WIDTH,
    Checkpoints,
    GymnasiumGames,
    TimeIsUp,
    load_network,
    play,
    register_game,
    room_for,
    save_network,
    values_of,
)

PACKAGES = ("cleanrl", "stable-baselines3", "gymnasium", "ale-py", "envpool", "numpy", "torch")
STACK_BYTES = 4 * 84 * 84
BUFFERS = {"dqn_atari": STACK_BYTES, "rainbow_atari": 2 * STACK_BYTES}
"""Of scripts with a replay buffer, the bytes of a transition in it."""
BUFFER_SIZE = 1_000_000
"""The scripts' default."""


def train(
    env: str,
    seed: int,
    seconds: float,
    every_s: float,
    sticky_actions: float,
    folder: str,
    script: str,
    scripts: str | None,
) -> dict[str, Any]:
    path = _script(script, scripts)
    words = ["--seed", str(seed)]
    if script in BUFFERS:
        # It is never full in the time given where there is less room than the default: then it makes no difference.
        words += ["--buffer-size", str(room_for(BUFFER_SIZE, BUFFERS[script]))]
    checkpoints = Checkpoints(folder, seconds, every_s, lambda file: save_network(_running("q_network"), file))
    words += ["--env-id", _hooked(script, env, sticky_actions, checkpoints)]
    os.chdir(folder)  # It writes to runs/ where it is.
    sys.argv = [str(path), *words]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except TimeIsUp:
        return {"checkpoints": checkpoints.written, "used": {"script": path.name, "words": words}}
    raise RuntimeError(f"{path.name} ended by itself before its time was over")


def _hooked(script: str, env: str, sticky_actions: float, checkpoints: Checkpoints) -> str:
    """Has `checkpoints` look after each step of the script's environments; returns the id to give it."""
    if script == "pqn_atari_envpool":
        import envpool
        import gym

        envpool.make = functools.partial(envpool.make, **_envpool_options(sticky_actions))
        _after_each_step(gym.Wrapper, checkpoints)
        return env.removeprefix("ALE/")
    import gymnasium

    _after_each_step(gymnasium.vector.SyncVectorEnv, checkpoints)
    return register_game(env, sticky_actions)


def _after_each_step(kind: Any, checkpoints: Checkpoints) -> None:
    original = kind.step

    def step(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        checkpoints.step(_running("global_step"))
        return found

    kind.step = step


def _running(name: str) -> Any:
    """A global variable of the script that runs."""
    return getattr(sys.modules["__main__"], name)


def _envpool_options(sticky_actions: float) -> dict[str, Any]:
    return {"repeat_action_probability": sticky_actions, "max_episode_steps": MAX_FRAMES // 4}


def evaluate(
    files: list[str],
    env: str,
    sticky_actions: float,
    games: int,
    epsilon: float,
    seed: int,
    script: str,
    scripts: str | None,
) -> list[list[float]]:
    module = _imported(_script(script, scripts))
    width = min(games, WIDTH)
    return [
        play(*_games(module, script, env, sticky_actions, width, seed), _values(module, script, env, file), games,
             epsilon, seed)
        for file in files
    ]  # fmt: skip


def _games(module: Any, script: str, env: str, sticky_actions: float, width: int, seed: int) -> tuple[Any, int]:
    """Games as the script makes them. It keeps the score of whole games below its own wrappers."""
    if script == "pqn_atari_envpool":
        return EnvpoolGames(env.removeprefix("ALE/"), width, seed, _envpool_options(sticky_actions)), width
    name = register_game(env, sticky_actions)
    made = [module.make_env(name, seed + number, 1, False, "")() for number in range(width)]
    return GymnasiumGames(made, seed), width


def _values(module: Any, script: str, env: str, file: str) -> Callable[[np.ndarray], np.ndarray]:
    import gymnasium

    class Space:
        single_action_space = gymnasium.spaces.Discrete(_actions(env))

    if script != "rainbow_atari":
        return values_of(load_network(module.QNetwork(Space), file))
    settings = module.Args()
    network = load_network(
        module.NoisyDuelingDistributionalNetwork(Space, settings.n_atoms, settings.v_min, settings.v_max), file
    )
    return values_of(lambda observations: (network(observations) * network.support).sum(dim=2))


def _actions(env: str) -> int:
    import gymnasium

    environment: Any = gymnasium.make(register_game(env, 0.0))
    try:
        return int(environment.action_space.n)
    finally:
        environment.close()


class EnvpoolGames:
    """Games of envpool as `pqn_atari_envpool` makes them, lost lives and all."""

    def __init__(self, task: str, width: int, seed: int, options: dict[str, Any]) -> None:
        import envpool

        self._games = envpool.make(
            task, env_type="gym", num_envs=width, episodic_life=True, reward_clip=True, seed=seed, **options
        )
        self._scores = np.zeros(width)

    def reset(self) -> np.ndarray:
        self._scores[:] = 0.0
        return self._games.reset()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
        observations, _, ended, info = self._games.step(actions.astype(np.int32))
        self._scores += info["reward"]
        # Where a life is lost, or time is over, it begins anew by itself; a game is over with its last life.
        cut = info["TimeLimit.truncated"] if "TimeLimit.truncated" in info else np.zeros(len(ended), bool)
        over = np.flatnonzero(ended & ((info["terminated"] != 0) | cut))
        found = [(int(number), float(self._scores[number])) for number in over]
        self._scores[over] = 0.0
        return observations, found


def _script(name: str, scripts: str | None) -> Path:
    if scripts is not None:
        sys.path.insert(0, scripts)  # cleanrl_utils of the same version
        folders = [str(Path(scripts) / "cleanrl")]
    else:
        found = importlib.util.find_spec("cleanrl")
        folders = list(found.submodule_search_locations or []) if found else []
    for folder in folders:
        if (path := Path(folder) / f"{name}.py").is_file():
            return path
    places = " or ".join(folders) or "the package cleanrl"
    raise RuntimeError(f"expected CleanRL's script {name}.py in {places}: give --cleanrl its repository's folder")


def _imported(path: Path) -> Any:
    """The script as a module: its classes and functions."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
