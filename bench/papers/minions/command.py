"""The command line of `replay-server bench minions`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers import minions
from replay_server.bench.papers.minions.comparison import Comparison, compare, scheduler_named
from replay_server.bench.papers.minions.pictures import draw_decisions, draw_returns
from replay_server.bench.papers.option_types import Once, at_least
from replay_server.serverless.scheduler.decision import Goal
from replay_server.serverless.scheduler.reference import Reference
from replay_server.serverless.scheduler.training import read_episodes
from replay_server.serverless.settings import TrainSettings

FIXED = (2, 4, 8, 16, 24, 32)
SEEDS = tuple(range(1, 11))


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Returns the exit status: 0, or 1 where something was missing (RuntimeError says what)."""
    options = _parser().parse_args(argv)
    try:
        return _fine_tuning(options, say) if options.figure == 9 else _comparison(options, argv, say)
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench minions", description=minions.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", nargs="+", default=[], metavar="DIR",
                        help="directories of scheduler train; the first names task, target and budget")  # fmt: skip
    parser.add_argument("--folder", metavar="DIR", help="where jobs that were played are kept")
    parser.add_argument("--seeds", type=at_least(0), nargs="+", action=Once, default=list(SEEDS), metavar="SEED")
    parser.add_argument(
        "--fixed",
        type=at_least(1),
        nargs="*",
        action=Once,
        default=list(FIXED),
        metavar="N",
        help="fixed numbers of actors",
    )
    parser.add_argument("--greedy", action="store_true", help="policies take their likeliest number; else they draw")
    parser.add_argument("--figure", type=int, choices=(5, 9),
                        help="of MinionsRL: 5 decisions by round, 9 from scratch and fine-tuned")  # fmt: skip
    parser.add_argument("--scratch", metavar="DIR", help="figure 9: a training from scratch")
    parser.add_argument("--tuned", metavar="DIR", help="figure 9: the same task's with --from-policy")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")
    return parser


def _comparison(options: argparse.Namespace, argv: Sequence[str], say: Callable[[str], None]) -> int:
    if not options.policy or not options.folder:
        raise ValueError("expected --policy DIR and --folder DIR (or --figure 9 with --scratch and --tuned)")
    training = Path(options.policy[0])
    try:
        config = json.loads((training / "config.json").read_text())
        goal = Goal(**config["goal"]) if config["goal"] else Reference.load(training / "reference.json").goal
        job, cold_starts = TrainSettings(**config["job"]), config["cold_starts"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{training / 'config.json'}: expected a training of this version: {error!r}") from None
    comparison = Comparison(job, goal, Path(options.folder), tuple(options.seeds), cold_starts)
    names = [scheduler_named(Path(each), options.greedy) for each in options.policy]
    schedulers = [*names, "random", *(f"fixed-{count}" for count in options.fixed)]
    content = compare(comparison, schedulers, say)
    for line in content["table"]:
        say(line)
    if options.json:
        command = " ".join(["replay-server bench minions", *argv])
        result.write(options.json, {"name": "minions", "command": command, "machine": result.machine(), **content})
    if options.plot:
        draw_decisions(comparison, names, options.plot)
        say(options.plot)
    return 0


def _fine_tuning(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    if not options.scratch or not options.tuned:
        raise ValueError("--figure 9 needs --scratch DIR and --tuned DIR")
    sides = {name: read_episodes(Path(getattr(options, name))) for name in ("scratch", "tuned")}
    content = {name: _training(lines) for name, lines in sides.items()}
    for name, found in content.items():
        say(f"{name:8} {found['episodes']:4} episodes: return {found['first_10']:.2f} (first 10), "
            f"{found['last_10']:.2f} (last 10), {found['reached_last_10']:.0%} of these reached the target; "
            f"training took {found['time_s']:.0f} s and ${found['cost']:.4f} (simulated)")  # fmt: skip
    if options.json:
        result.write(options.json, {"name": "minions figure 9", "sides": content})
    if options.plot:
        draw_returns(sides, options.plot)
        say(options.plot)
    return 0


def _training(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def mean(found: Sequence[dict[str, Any]], what: str) -> float:
        return sum(float(each[what]) for each in found) / len(found)

    if not lines:
        raise ValueError("expected a training with at least one episode")
    return {
        "env": lines[0]["env"],
        "episodes": len(lines),
        "first_10": mean(lines[:10], "return"),
        "last_10": mean(lines[-10:], "return"),
        "reached_last_10": mean(lines[-10:], "reached"),
        "time_s": sum(each["time_s"] for each in lines),
        "cost": sum(each["cost"] for each in lines),
        "returns": [each["return"] for each in lines],
    }
