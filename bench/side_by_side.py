"""Ape-X and what others offer for the same game, one after another on the same machine, for as many minutes each.

Every side runs as its authors set it up for Atari: this project's job as `replay-server apex` starts it, a peer in an
environment of its own with its own defaults and all cores. The same for all: the game, 4 frames skipped, sticky
actions, minutes. A side's minutes begin with its first step of play; the time to save a peer's checkpoint is not
counted. When a side has trained, whole games are played with each checkpoint, on the screens that its own wrappers
make: unclipped scores, no game ended by a lost life, one ε for all. The target is reached by the first checkpoint whose
mean is as high.

With `--folder` every run's files and scores stay there, and a run that is there is not done again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.bench import result
from replay_server.bench.environments import is_ready, set_up
from replay_server.bench.process import Program
from replay_server.rl.environment_spec import is_atari

OURS = "replay"
ENV = "ALE/Pong-v5"
TARGETS = {"ALE/Pong-v5": 18.0, "ALE/Breakout-v5": 30.0}
"""The score that is asked for where `--target` says none."""


@dataclass(frozen=True)
class Side:
    """One of those that train."""

    program: str
    """Of `programs/peer_NAME.py`."""
    environment: str | None
    options: dict[str, Any] = field(default_factory=dict)
    checkout: bool = False
    """Whether it is in CleanRL's repository alone."""
    about: str = ""


SIDES = {
    OURS: Side("replay_apex", None, about="replay-server apex"),
    "cleanrl-dqn": Side("cleanrl", "cleanrl", {"script": "dqn_atari"}, about="CleanRL's dqn_atari.py"),
    "cleanrl-rainbow": Side(
        "cleanrl", "cleanrl", {"script": "rainbow_atari"}, checkout=True, about="CleanRL's rainbow_atari.py"
    ),
    "cleanrl-pqn": Side(
        "cleanrl", "cleanrl", {"script": "pqn_atari_envpool"}, checkout=True, about="CleanRL's pqn_atari_envpool.py"
    ),
    "sb3-dqn": Side(
        "stable_baselines3_dqn", "stable_baselines3_atari", about="Stable-Baselines3's DQN, RL Zoo's settings"
    ),
    "tianshou-dqn": Side("tianshou_dqn", "tianshou_atari", about="Tianshou's DQN, its example's settings"),
}
PEERS = tuple(name for name in SIDES if name != OURS)


DEFAULTS: dict[str, Any] = {
    "minutes": 25.0,
    "every": 5.0,
    "target": None,
    "sticky_actions": 0.0,
    "eval_epsilon": 0.0,
    "cleanrl": None,
    "only_peers": False,
    "folder": None,
}
"""Of the options that are of this comparison alone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds those options; one that is not given leaves no trace."""
    group = parser.add_argument_group(f"Ape-X beside {', '.join(PEERS)} (--algorithm apex, or --against one of them)")

    def add(name: str, **more: Any) -> None:
        group.add_argument(f"--{name}", default=argparse.SUPPRESS, **more)

    add("minutes", type=float, help="that each side trains for (25)")
    add("every", type=float, metavar="MINUTES", help="minutes between two checkpoints (5)")
    add("target", type=float, metavar="SCORE", help="that is asked for (Pong 18, Breakout 30)")
    add("sticky-actions", type=float, metavar="CHANCE", help="chance of a repeated action (0)")
    add("eval-epsilon", type=float, metavar="EPSILON", help="exploration of evaluations (0)")
    add("cleanrl", metavar="FOLDER", help="CleanRL's repository, for what its package does not have")
    add("only-peers", action="store_true", help="leave this project's side out")
    add("folder", help="where runs and their scores stay; one that is there is not done again")


def chosen_sides(against: Sequence[str], only_peers: bool = False) -> list[str]:
    """This project's side, and those it is compared with. RuntimeError for one that is not known."""
    for name in against:
        if name not in PEERS:
            raise RuntimeError(f"--against: expected some of {', '.join(PEERS)}, got {name!r}")
    if only_peers and not against:
        raise RuntimeError("--only-peers: expected --against with at least one of them, got none")
    return [*against] if only_peers else [OURS, *against]


def run(options: argparse.Namespace, argv: Sequence[str], folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Trains and evaluates every side with every seed; the content of a result file."""
    sides = chosen_sides(options.against, options.only_peers)
    env = _checked_env(options.env)
    _prepare(options, sides, say)
    target = TARGETS.get(env) if options.target is None else options.target
    host = result.machine()
    kept = Path(options.folder or folder).resolve()
    runs: dict[str, dict[str, Any]] = {}
    content: dict[str, Any] = {}
    for number, seed in enumerate(options.seeds):
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            runs[f"{side}.seed={seed}"] = _run(options, env, side, seed, kept / f"{side}-seed{seed}", say)
            content = _content(options, argv, host, env, target, sides, runs)
            if options.json:  # what there is so far: all of it takes hours
                result.write(options.json, content)
    return content


def _checked_env(envs: Sequence[str]) -> str:
    if len(envs) != 1:
        raise RuntimeError(f"--env: expected one game at a time, got {' '.join(envs)}")
    return envs[0]


def _prepare(options: argparse.Namespace, sides: Sequence[str], say: Callable[[str], None]) -> None:
    """Refuses what cannot run before hours are spent on what can."""
    if options.minutes <= 0 or options.every <= 0:
        raise RuntimeError(f"--minutes, --every: expected more than 0, got {options.minutes:g} and {options.every:g}")
    if options.episodes < 1:
        raise RuntimeError(f"--episodes: expected at least 1, got {options.episodes}")
    for name in sides:
        side = SIDES[name]
        if side.environment is None:
            continue
        if not is_atari(options.env[0]):
            raise RuntimeError(f"{name} plays Atari games alone: expected --env ALE/…, got {options.env[0]}")
        if side.checkout and not options.cleanrl:
            raise RuntimeError(
                f"{name} is not in PyPI's package: give --cleanrl a folder with CleanRL's repository "
                "(https://github.com/vwxyzjn/cleanrl)"
            )
        if options.setup:
            set_up(side.environment, shlex.split(options.pip_options), say)
        if not is_ready(side.environment):
            raise RuntimeError(f"{name} has no environment: make it by `{_setup(name)}`")


def _setup(name: str) -> str:
    return f"replay-server bench learning --setup --against {name}"


def _run(
    options: argparse.Namespace, env: str, side: str, seed: int, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """One side's run with one seed: what it was given, and its checkpoints with the scores of their games."""
    asked = _asked(options, env, side, seed)
    file = folder / "run.json"
    if file.exists():
        found = json.loads(file.read_text())
        if found["asked"] != asked:
            raise RuntimeError(f"{file} is of a run with other settings: give another --folder, or remove {folder}")
        say(f"{side}, seed {seed}: {file} is there")
        return found
    say(f"{side}, seed {seed}: trains for {options.minutes:g} minutes")
    with _program(side) as program:
        versions = program.ask("versions")
        trained = program.ask("train", **_given(options, env, side), seed=seed, folder=str(folder),
                              seconds=60 * options.minutes, every_s=60 * options.every)  # fmt: skip
    written = trained["checkpoints"]
    say(f"{side}, seed {seed}: plays {options.episodes} games with each of {len(written)} checkpoints")
    for checkpoint, games in zip(written, _evaluated(options, env, side, seed, written), strict=True):
        checkpoint |= {"scores": games, "mean": float(np.mean(games)), "std": float(np.std(games))}
        checkpoint["file"] = os.path.relpath(checkpoint["file"], folder)
    found = {"asked": asked, "versions": versions, "used": trained["used"], "checkpoints": written}
    result.write(file, found)
    best = max((each["mean"] for each in written), default=float("nan"))
    say(f"{side}, seed {seed}: " + " ".join(f"{each['mean']:.1f}" for each in written) + f" (best {best:.1f})")
    return found


def _asked(options: argparse.Namespace, env: str, side: str, seed: int) -> dict[str, Any]:
    names = ("minutes", "every", "episodes", "eval_epsilon")
    return {"side": side, "seed": seed, **_given(options, env, side), **{n: getattr(options, n) for n in names}}


def _given(options: argparse.Namespace, env: str, side: str) -> dict[str, Any]:
    """What the side's program is told of the game and of itself."""
    given: dict[str, Any] = {"env": env, "sticky_actions": options.sticky_actions, **SIDES[side].options}
    if side == OURS:
        words = [["--profile", options.profile]] if options.profile != "default" else []
        pairs = (word.partition("=") for word in options.set)
        words += [[f"--{name.replace('_', '-')}", value] for name, _, value in pairs]
        given["words"] = [word for pair in words for word in pair]
    elif SIDES[side].program == "cleanrl":
        folder = options.cleanrl if SIDES[side].checkout else None
        given["scripts"] = str(Path(folder).resolve()) if folder else None
    return given


def _program(side: str, variables: Mapping[str, str] | None = None) -> Program:
    return Program(SIDES[side].program, SIDES[side].environment, variables)


def _evaluated(
    options: argparse.Namespace, env: str, side: str, seed: int, written: Sequence[Mapping[str, Any]]
) -> list[list[float]]:
    """Scores of each checkpoint's games; as many processes play as there are cores, with one thread each."""
    count = max(1, min(len(written), len(os.sched_getaffinity(0))))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        programs = [stack.enter_context(_program(side, {"OMP_NUM_THREADS": "1"})) for _ in range(count)]

        def play(number: int) -> list[list[float]]:
            files = [each["file"] for each in written[number::count]]
            given = {**_given(options, env, side), "games": options.episodes, "epsilon": options.eval_epsilon}
            return programs[number].ask("evaluate", files=files, seed=10_000 + seed, **given)

        found = list(pool.map(play, range(count)))
    return [found[number % count][number // count] for number in range(len(written))]


def _content(
    options: argparse.Namespace,
    argv: Sequence[str],
    host: Mapping[str, Any],
    env: str,
    target: float | None,
    sides: Sequence[str],
    runs: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    rounds = []
    for seed in options.seeds:
        rounds.append(measured := {})
        for side in sides:
            if f"{side}.seed={seed}" in runs:
                measured |= _measured(side, runs[f"{side}.seed={seed}"]["checkpoints"], target)
    command = shlex.join(["replay-server", "bench", "learning", *argv])
    settings = {**vars(options), "env": env, "target": target, "sides": list(sides)}
    return {**result.document("learning-apex", command, host, settings, rounds, {}), "runs": dict(runs)}


def _measured(side: str, checkpoints: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, float]:
    """Of one run. The minutes to the target are left out where it was not reached."""
    if not checkpoints:
        return {}
    last = checkpoints[-1]
    found = {
        f"{side}.best_score": max(each["mean"] for each in checkpoints),
        f"{side}.last_score": last["mean"],
        f"{side}.frames": last["frames"],
    }
    if (reached := reached_at(checkpoints, target)) is not None:
        found |= {f"{side}.minutes_to_target": reached["minutes"], f"{side}.frames_to_target": reached["frames"]}
    return found


def reached_at(checkpoints: Sequence[Mapping[str, Any]], target: float | None) -> Mapping[str, Any] | None:
    """The first checkpoint whose mean score is the target's or above; None where there is none."""
    return next((each for each in checkpoints if target is not None and each["mean"] >= target), None)


def markdown(content: Mapping[str, Any]) -> str:
    """A table with a line for each run."""
    target = content["settings"]["target"]
    aim = "target" if target is None else f"≥ {target:g} after"
    lines = [f"| side | seed | frames | mean scores of the checkpoints | best | {aim} |", "|---|---|---|---|---|---|"]
    for name, run in content["runs"].items():
        side, _, seed = name.partition(".seed=")
        checkpoints = run["checkpoints"]
        means = " ".join(f"{each['mean']:.0f}" for each in checkpoints)
        best = max((each["mean"] for each in checkpoints), default=float("nan"))
        reached = reached_at(checkpoints, target)
        after = f"{reached['minutes']:.1f} min" if reached else f"not within {content['settings']['minutes']:g} min"
        frames = checkpoints[-1]["frames"] if checkpoints else 0
        lines.append(f"| {side} | {seed} | {frames:,} | {means} | {best:.1f} | {'' if target is None else after} |")
    return "\n".join(lines)
