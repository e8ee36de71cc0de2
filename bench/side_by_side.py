"""Ape-X and what others offer for the same game, one after another on the same machine, for as many minutes each.

Every side runs as its authors set it up for Atari: this project's job as `replay-server apex` starts it, a peer in an
environment of its own with its own defaults and all cores. The same for all: the game, 4 frames skipped, sticky
actions, minutes. A side's minutes begin with its first step of play; the time to save a peer's checkpoint is not
counted. When a side has trained, whole games are played with each checkpoint, on the screens that its own wrappers
make: unclipped scores, no game ended by a lost life, one ε for all. The target is reached by the first checkpoint whose
mean is as high.

With `--folder` every run's files and scores stay there, and what is there is not done again: neither the training of a
run nor its games. So a comparison that was interrupted goes on where it was, and sides may be run one at a time. A side
that fails does not keep the others from running; the same command tries it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
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
from replay_server.rl.folder_lock import alone_in
from replay_server.rl.options import option_of

OURS = "replay"
RUN_FILE = "run.json"
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
    "threads": None,
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
    add("folder", help="where runs and their scores stay; what is there is not done again")
    add("threads", type=int, metavar="N", help="torch threads of each side (default: as many as it takes by itself)")


def chosen_sides(against: Sequence[str], only_peers: bool = False) -> list[str]:
    """This project's side, and those it is compared with. RuntimeError for one that is not known."""
    for name in against:
        if name not in PEERS:
            raise RuntimeError(f"--against: expected some of {', '.join(PEERS)}, got {name!r}")
    if only_peers and not against:
        raise RuntimeError("--only-peers: expected --against with at least one of them, got none")
    return [*against] if only_peers else [OURS, *against]


def run(options: argparse.Namespace, argv: Sequence[str], folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Trains and evaluates every side with every seed; the content of a result file.

    Its `failed` has what went wrong with sides that could not be run, by run.
    """
    sides = chosen_sides(options.against, options.only_peers)
    env = _checked_env(options.env)
    _prepare(options, sides, say)
    target = TARGETS.get(env) if options.target is None else options.target
    host = result.machine()
    kept = Path(options.folder or folder).resolve()
    for seed in options.seeds:
        for side in sides:
            _found(options, env, side, seed, _folder(kept, side, seed))
    runs: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    content: dict[str, Any] = {}
    for number, seed in enumerate(options.seeds):
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            name = f"{side}.seed={seed}"
            try:
                runs[name] = _run(options, env, side, seed, _folder(kept, side, seed), say)
            except (RuntimeError, OSError) as error:
                failed[name] = str(error)
                say(f"{side}, seed {seed}: failed: {error}")
            except KeyboardInterrupt:
                if options.folder:
                    say(f"{side}, seed {seed}: interrupted; the same command goes on from here")
                raise
            content = {**_content(options, argv, host, env, target, sides, runs), "failed": failed}
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
    if options.threads is not None and options.threads < 1:
        raise RuntimeError(f"--threads: expected at least 1, got {options.threads}")
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
    """One side's run with one seed: what it was given, and its checkpoints with the scores of their games. FolderInUse
    where another command is at it."""
    lock = folder.with_name(f"{folder.name}.lock")  # beside it, since it is removed where it was interrupted
    lock.mkdir(parents=True, exist_ok=True)
    with alone_in(lock):
        return _run_alone(options, env, side, seed, folder, say)


def _run_alone(
    options: argparse.Namespace, env: str, side: str, seed: int, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    file, found = folder / RUN_FILE, _found(options, env, side, seed, folder)
    if "checkpoints" not in found:
        if file.exists():
            shutil.rmtree(folder)  # of a training that was interrupted
        result.write(file, found)
        say(f"{side}, seed {seed}: trains for {options.minutes:g} minutes")
        found |= _trained(options, env, side, seed, folder)
        result.write(file, found)
    written = found["checkpoints"]
    if all("scores" in each for each in written):
        say(f"{side}, seed {seed}: {file} is there")
        return found
    say(f"{side}, seed {seed}: plays {options.episodes} games with each of {len(written)} checkpoints")
    files = [str(folder / each["file"]) for each in written]
    for checkpoint, games in zip(written, _evaluated(options, env, side, seed, files), strict=True):
        checkpoint |= {"scores": games, "mean": float(np.mean(games)), "std": float(np.std(games))}
    result.write(file, found)
    best = max((each["mean"] for each in written), default=float("nan"))
    say(f"{side}, seed {seed}: " + " ".join(f"{each['mean']:.1f}" for each in written) + f" (best {best:.1f})")
    return found


def _found(options: argparse.Namespace, env: str, side: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is known of a run: at first what is asked for, then what its training left, then the scores of its games.

    RuntimeError where the folder is of something else, or damaged.
    """
    asked, file = _asked(options, env, side, seed), folder / RUN_FILE
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise RuntimeError(f"{folder} holds other files: give another --folder, or remove it")
        return {"asked": asked}
    try:
        found = json.loads(file.read_text())
        is_other = found["asked"] != asked
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{file} cannot be read ({error!r}): remove {folder}") from error
    if is_other:
        raise RuntimeError(f"{file} is of a run with other settings: give another --folder, or remove {folder}")
    return found


def _folder(kept: Path, side: str, seed: int) -> Path:
    return kept / f"{side}-seed{seed}"


def _trained(options: argparse.Namespace, env: str, side: str, seed: int, folder: Path) -> dict[str, Any]:
    """What a side's training leaves: its checkpoints, whose files are in `folder`, and on what it ran."""
    load = round(os.getloadavg()[0], 2)
    with _program(side, options.threads) as program:
        versions = program.ask("versions")
        trained = program.ask("train", **_given(options, env, side), seed=seed, folder=str(folder),
                              seconds=60 * options.minutes, every_s=60 * options.every)  # fmt: skip
        place = {**program.ask("place"), "load_average_before": load}
    for checkpoint in trained["checkpoints"]:
        checkpoint["file"] = os.path.relpath(checkpoint["file"], folder)
    return {"versions": versions, "place": place, "used": trained["used"], "checkpoints": trained["checkpoints"]}


def _asked(options: argparse.Namespace, env: str, side: str, seed: int) -> dict[str, Any]:
    names = ("minutes", "every", "episodes", "eval_epsilon")
    asked = {"side": side, "seed": seed, **_given(options, env, side), **{n: getattr(options, n) for n in names}}
    return asked if options.threads is None else {**asked, "threads": options.threads}


def _given(options: argparse.Namespace, env: str, side: str) -> dict[str, Any]:
    """What the side's program is told of the game and of itself."""
    given: dict[str, Any] = {"env": env, "sticky_actions": options.sticky_actions, **SIDES[side].options}
    if side == OURS:
        words = [["--profile", options.profile]] if options.profile != "default" else []
        pairs = (word.partition("=") for word in options.set)
        words += [["--learner-threads", str(options.threads)]] if options.threads else []
        words += [[option_of(name), value] for name, _, value in pairs]
        given["words"] = [word for pair in words for word in pair]
    elif SIDES[side].program == "cleanrl":
        folder = options.cleanrl if SIDES[side].checkout else None
        given["scripts"] = str(Path(folder).resolve()) if folder else None
    return given


def _program(side: str, threads: int | None) -> Program:
    variables = {"OMP_NUM_THREADS": str(threads)} if threads else None
    return Program(SIDES[side].program, SIDES[side].environment, variables)


def _evaluated(
    options: argparse.Namespace, env: str, side: str, seed: int, written: Sequence[str]
) -> list[list[float]]:
    """Scores of the games of each file; as many processes play as there are cores, with one thread each."""
    count = max(1, min(len(written), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(count) as pool, contextlib.ExitStack() as stack:  # programs that end end what waits
        programs = [stack.enter_context(_program(side, 1)) for _ in range(count)]

        def play(number: int) -> list[list[float]]:
            given = {**_given(options, env, side), "games": options.episodes, "epsilon": options.eval_epsilon}
            return programs[number].ask("evaluate", files=written[number::count], seed=10_000 + seed, **given)

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
        f"{side}.frames_per_s": last["frames"] / (60 * max(last["minutes"], 1e-9)),
        f"{side}.updates_per_s": last.get("updates", 0) / (60 * max(last["minutes"], 1e-9)),
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
    lines = [
        f"| side | seed | frames/s | updates/s | frames | mean scores of the checkpoints | best | {aim} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, run in content["runs"].items():
        side, _, seed = name.partition(".seed=")
        checkpoints = run["checkpoints"]
        measured = _measured(side, checkpoints, target)
        rates = [measured.get(f"{side}.{what}_per_s", 0.0) for what in ("frames", "updates")]
        means = " ".join(f"{each['mean']:.0f}" for each in checkpoints)
        best = max((each["mean"] for each in checkpoints), default=float("nan"))
        reached = reached_at(checkpoints, target)
        after = f"{reached['minutes']:.1f} min" if reached else f"not within {content['settings']['minutes']:g} min"
        frames = checkpoints[-1]["frames"] if checkpoints else 0
        lines.append(
            f"| {side} | {seed} | {rates[0]:,.0f} | {rates[1]:.1f} | {frames:,} | {means} | {best:.1f} | "
            f"{'' if target is None else after} |"
        )
    return "\n".join(lines)
