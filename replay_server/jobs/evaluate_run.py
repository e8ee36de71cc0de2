"""`replay-server evaluate RUN`: plays games with a network that a run kept, and tells their scores."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.arguments import Parser
from replay_server.jobs.video import VideoFile
from replay_server.rl.options import typed_values
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings

BEST, NEWEST = "best", "newest"
EPISODES = 20

Play = Callable[..., list[float]]
"""Scores of games, by their number, their seed, and `watch` as `replay_server.actors.play_games.play_games` has it."""


def main_evaluate(argv: list[str] | None = None) -> int:
    """Plays the games that the command line asks for; returns 0, or 2 for what cannot be played."""
    parser = Parser(
        prog="replay-server evaluate",
        usage="%(prog)s RUN [options]",
        description="Plays whole games with a network that a run kept, and prints their scores: unclipped, no episodes "
        "by life, actions greedy but for --epsilon. RUN is the run directory of apex, learner, evaluator or train.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory, such as runs/cartpole")
    parser.add_argument("--episodes", type=int, metavar="N", default=EPISODES, help="whole games")
    parser.add_argument(
        "--checkpoint", metavar="NAME", help=f"folder in RUN/checkpoints, such as step_5000; {BEST}: the network that "
        f"was evaluated best; {NEWEST}: the newest step_N. Default: {BEST} where there is one, else {NEWEST}",
    )  # fmt: skip
    parser.add_argument(
        "--epsilon", type=float, metavar="X", help="share of random actions (default: the run's eval_epsilon)"
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="of the games: the same ones each time")
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="draw the first game: *.mp4 or *.webm (VP9), or *.avi"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(argv)
    from gymnasium.error import Error as GymnasiumError

    try:
        found = evaluate_run(options)
    except (ValueError, OSError, GymnasiumError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(json.dumps(found) if options.json else _told(found), flush=True)
    return 0


def evaluate_run(options: Namespace) -> dict[str, Any]:
    """What the games of `main_evaluate`'s options brought.

    Raises ValueError or OSError, naming what was expected, for a folder that holds no run, a checkpoint that is not
    there, damaged or of another network, and for games that cannot be played.
    """
    if options.episodes < 1:
        raise ValueError(f"--episodes: expected at least 1, got {options.episodes}")
    if options.seed < 0:
        raise ValueError(f"--seed: expected at least 0, got {options.seed}")
    if options.epsilon is not None and not 0.0 <= options.epsilon <= 1.0:
        raise ValueError(f"--epsilon: expected 0 to 1, got {options.epsilon}")
    run = RunDirectory(options.run)
    if not run.config.exists():
        raise ValueError(f"RUN: expected a run directory, {run.path} holds no config.json")
    try:
        values = json.loads(run.config.read_text())
    except ValueError as error:
        raise ValueError(f"{run.config} is damaged: {error}") from error
    checkpoint = _checkpoint(run, options.checkpoint)
    with contextlib.ExitStack() as stack:
        watch = None
        if options.video is not None:
            watch = stack.enter_context(VideoFile(options.video)).add
        if "setting" in values:  # of a run of replay-server train
            play, told = _policy_player(values, checkpoint, options.epsilon)
        else:
            play, told = _apex_player(run, checkpoint, options.epsilon)
        scores = play(episodes=options.episodes, seed=options.seed, watch=watch)
    return {
        "run": str(run.path),
        "env": values["env"],
        "checkpoint": str(checkpoint.relative_to(run.path)),
        **told,
        "seed": options.seed,
        "sticky_actions": values.get("sticky_actions", 0.0),
        "episodes": len(scores),
        "score_mean": float(np.mean(scores)),
        "score_std": float(np.std(scores)),
        "score_min": min(scores),
        "score_max": max(scores),
        "scores": scores,
        "video": None if options.video is None else str(options.video),
    }


def _checkpoint(run: RunDirectory, name: str | None) -> Path:
    """The folder that --checkpoint names."""
    from replay_server.learner.checkpoint import newest_checkpoint

    there = [path.name for path in run.checkpoints.glob("*") if (path / "counters.json").exists()]
    chosen = name or (BEST if BEST in there else NEWEST)
    if chosen == NEWEST:
        newest = newest_checkpoint(run.checkpoints, functools.partial(print, file=sys.stderr))
        if newest is not None:
            return newest
    elif chosen in there:
        return run.checkpoints / chosen
    listed = ", ".join(sorted(there, key=lambda each: (len(each), each))) or "none"
    raise ValueError(f"--checkpoint {chosen}: expected one of those in {run.checkpoints}, which are: {listed}")


def _apex_player(run: RunDirectory, checkpoint: Path, epsilon: float | None) -> tuple[Play, dict[str, Any]]:
    from replay_server.actors.evaluator import evaluate
    from replay_server.rl.environment_spec import environment_spec, told_without_limit
    from replay_server.rl.networks import make_acting_network

    settings = run.settings(ApexSettings, {})
    network = make_acting_network(settings, environment_spec(settings))
    counters = _load(checkpoint, network)
    if limit := told_without_limit(settings):
        print(limit, file=sys.stderr, flush=True)
    share = settings.eval_epsilon if epsilon is None else epsilon
    play = functools.partial(evaluate, network, settings, epsilon=share)
    return play, {"checkpoint_step": counters["step"], "epsilon": share}


def _policy_player(values: dict[str, Any], checkpoint: Path, epsilon: float | None) -> tuple[Play, dict[str, Any]]:
    """Of a run of `replay-server train`: its stochastic policy plays, as in that run's own evaluations."""
    from replay_server.actors.fragments import evaluate_policy
    from replay_server.learner.algorithms import make_settings, settings_kind
    from replay_server.rl.policy_networks import make_policy_network
    from replay_server.rl.policy_spec import policy_spec

    if epsilon is not None:
        raise ValueError("--epsilon: leave it out, because the policies of replay-server train sample their actions")
    given = typed_values(settings_kind(values["algo"]), values["setting"])
    own = {name: values[name] for name in ("env", "seed", "steps")}
    settings = make_settings(values["algo"], values["profile"], **own, **given)
    spec = policy_spec(settings)
    network = make_policy_network(settings, spec)
    counters = _load(checkpoint, network)
    return functools.partial(evaluate_policy, network, settings, spec), {"checkpoint_step": counters["version"]}


def _load(checkpoint: Path, network: Any) -> dict[str, Any]:
    """Puts a checkpoint's network into `network`; its counters."""
    from safetensors import SafetensorError

    from replay_server.learner.checkpoint import read_network

    try:
        return read_network(checkpoint, network)
    except RuntimeError as error:
        raise ValueError(
            f"{checkpoint} holds another network than the run's settings make: has the environment changed? ({error})"
        ) from error
    except SafetensorError as error:
        raise ValueError(f"{checkpoint / 'network.safetensors'} is damaged: {error}") from error


def _told(found: dict[str, Any]) -> str:
    epsilon = f" · ε {found['epsilon']:g}" if "epsilon" in found else ""
    lines = [
        f"{found['env']} · {found['checkpoint']}, step {found['checkpoint_step']}{epsilon} · seed {found['seed']} · "
        f"sticky actions {found['sticky_actions']:g}",
        "scores " + " ".join(f"{score:g}" for score in found["scores"]),
        f"score {found['score_mean']:.1f} ± {found['score_std']:.1f} over {found['episodes']} games "
        f"({found['score_min']:g} to {found['score_max']:g})",
    ]
    if found["video"] is not None:
        lines.append(f"video of the first game: {found['video']}")
    return "\n".join(lines)
