"""Nitro's Figure 20 (a): where the time of a round with Nitro goes, and what share of it is overhead.

    replay-server bench scalers --figure 20 --env Hopper-v5 Walker2d-v5 CartPole-v1 --plot runs/20.png

Real rounds of a real job on this machine, with scores of Nitro: medians over all rounds but the first, which starts
cold. Followed is the actor that ended last, and then the learner. Overhead is what is neither acting nor learning nor
waiting for a place among --concurrency functions: weights, environments, trajectories, score, publishing, platform.
What a score takes in each of its forms (b) is told by `replay-server bench curvature`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.replayed import run_job
from replay_server.bench.papers.option_types import at_least
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.breakdown import PARTS, by_round, round_breakdown

WORK = ("act", "learn")
"""Parts that any training has."""


def breakdown(invocations: Sequence[Invocation]) -> dict[str, float]:
    """Part → seconds, the median over the rounds but the first. ValueError with fewer than two rounds."""
    rounds = [round_breakdown(members) for members in list(by_round(invocations).values())[1:]]
    if not rounds:
        raise ValueError("expected at least two rounds, got fewer: the first one starts cold and is left out")
    return {part: statistics.median(each[part] for each in rounds) for part in PARTS}


def overhead(parts: Mapping[str, float]) -> float:
    """Share of a round that is neither acting nor learning; waiting for a place is no part of the round here."""
    whole = sum(seconds for part, seconds in parts.items() if part != "waiting")
    return (whole - sum(parts[part] for part in WORK)) / whole if whole else 0.0


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    found: dict[str, dict[str, float]] = {}
    for env in options.env:
        job = argparse.Namespace(**{**vars(options), "env": env})
        found[env] = breakdown(run_job(job, options.concurrency, Path(folder) / env.replace("/", "-"), options.scaler))
        parts = ", ".join(f"{part} {seconds * 1000:.1f}" for part, seconds in found[env].items() if seconds > 0)
        say(f"{env}, ms: {parts}; overhead {overhead(found[env]):.1%}, score {_share(found[env], 'probe'):.1%}")
    if options.json:
        rows = [{f"{env}.{part}_s": seconds for env, parts in found.items() for part, seconds in parts.items()}]
        command = " ".join(["replay-server bench scalers --figure 20", *argv])
        content = result.document("scalers-figure-20", command, host, vars(options), rows, {})
        result.write(options.json, {**content, "overhead": {env: overhead(parts) for env, parts in found.items()}})
    if options.plot:
        draw(found, options.plot, "Nitro, Figure 20 (a)")
    return 0


def _share(parts: Mapping[str, float], part: str) -> float:
    whole = sum(seconds for name, seconds in parts.items() if name != "waiting")
    return parts[part] / whole if whole else 0.0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench scalers --figure 20",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    measured_options(parser, rounds=(6, "the first is left out"), actors=(64, "the most of a round"))
    parser.add_argument("--scaler", default="nitro", help="what decides how many actors (nitro)")
    return parser


def measured_options(parser: argparse.ArgumentParser, rounds: tuple[int, str], actors: tuple[int, str]) -> None:
    """Options of a real job whose rounds are measured.

    Args:
        rounds, actors: default and help.
    """
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"], help="gymnasium ids (Hopper-v5)")
    parser.add_argument("--algo", choices=("ppo",), default="ppo", help="synchronous rounds (ppo)")
    parser.add_argument("--rounds", type=at_least(2), default=rounds[0], help=f"{rounds[1]} ({rounds[0]})")
    parser.add_argument("--steps", type=at_least(1), default=256, help="of one environment in a round (256)")
    parser.add_argument("--environments", type=at_least(1), default=1, help="of each actor (1)")
    parser.add_argument("--job-actors", type=at_least(1), default=actors[0], help=f"{actors[1]} ({actors[0]})")
    parser.add_argument("--concurrency", type=at_least(1), default=1, help="functions at a time (1)")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")


def draw(found: Mapping[str, Mapping[str, float]], path: str, title: str) -> None:
    """Writes a PNG: a bar for each environment, a colour for each part."""
    from matplotlib.figure import Figure

    from replay_server.serverless.plots import PART_COLORS

    figure = Figure(figsize=(7, 1.2 + 0.6 * len(found)), layout="constrained")
    axes: Any = figure.subplots()
    left = dict.fromkeys(found, 0.0)
    for part, color in zip(PARTS, PART_COLORS, strict=True):
        if part == "waiting":
            continue
        widths = [parts[part] for parts in found.values()]
        axes.barh(list(found), widths, left=list(left.values()), color=color, label=part)
        left = {env: left[env] + parts[part] for env, parts in found.items()}
    axes.set_xlabel("s of a round (median), waiting for a place left out")
    axes.set_title(title, fontsize=9)
    figure.legend(fontsize=7, loc="outside right upper")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
