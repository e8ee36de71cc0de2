"""Nitro's Figures 2 and 7: are there rounds in which more actors gain more? The boostable-rounds experiment.

    replay-server bench scalers --figure 7 --folder runs/boostable --seeds 1 2 3 4 5 6 7 8 9 10

For each seed a run of fixed count, with R after every round. Its checkpoints of the lowest, median and highest R, and
of random rounds are gone on from twice, boosted and not, and scored by the same fresh games. Told are the gains with
bootstrap intervals (95 %) over seeds, the lowest R's over the highest's paired by seed, and the regression of gain on
ln R with the round as covariate (Nitro's claim: b < 0). A seed that is in the folder is not played again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.boosting import BoostSettings, gains, regression, run_seed
from replay_server.bench.papers.nitro.branches import check_boosts, curvature_of, job_of, job_options, kept, settings_of
from replay_server.bench.papers.option_types import Once, at_least, share
from replay_server.learner.curvature import CurvatureOptions

NAMES = tuple(each.name for each in dataclasses.fields(BoostSettings))


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    try:
        settings = BoostSettings(**{name: getattr(options, name) for name in NAMES})
        check_boosts(options, settings.boosted)
    except ValueError as error:
        print(f"replay-server bench scalers --figure 7: {error}", file=sys.stderr)
        return 2
    points: list[dict[str, Any]] = []
    for index, seed in enumerate(options.seeds):
        path = Path(options.folder) / f"figure-7-seed-{seed}.json"

        def made(seed: int = seed) -> dict[str, Any]:
            return {"points": run_seed(job_of(options, seed), settings, curvature_of(options), say)}

        points += kept(path, settings_of(options, *NAMES), made)["points"]
        say(f"{index + 1} of {len(options.seeds)} seeds done")
    found = {"gain": gains(points), "regression": regression(points)}
    for name, interval in found["gain"].items():
        say(f"gain, {name:18} {interval.value:9.1f} ({interval.low:.1f} to {interval.high:.1f})")
    for name, interval in found["regression"].items():
        say(f"gain per {name:14} {interval.value:9.2f} ({interval.low:.2f} to {interval.high:.2f})")
    if options.json:
        rows = [{f"gain.{name}": each.value for name, each in found["gain"].items()}]
        command = " ".join(["replay-server bench scalers --figure 7", *argv])
        content = result.document("scalers-figure-7", command, host, vars(options), rows, {})
        intervals = {what: {name: dataclasses.asdict(each) for name, each in of.items()} for what, of in found.items()}
        result.write(options.json, {**content, **intervals, "points": points})
    if options.plot:
        _draw(points, options.plot, options.env)
    return 0


def _parser() -> argparse.ArgumentParser:
    default, subset = BoostSettings(), CurvatureOptions().subset
    parser = Parser(
        "replay-server bench scalers --figure 7",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
    )
    job_options(parser, rounds=default.rounds)
    parser.add_argument(
        "--seeds", type=at_least(0), nargs="+", action=Once, default=list(range(1, 11)), help="(1 to 10)"
    )
    parser.add_argument("--actors", type=at_least(1), default=16, help="of a round that is not boosted (16)")
    parser.add_argument("--subset", type=share, default=subset, help=f"share of the samples that R is of ({subset})")
    for name, about in (
        ("boosted", "actors of the boosted round"),
        ("horizon", "rounds from the checkpoint to the score"),
        ("first", "the earliest round after which is boosted"),
        ("random-rounds", "beside those of the lowest, median, highest R"),
        ("episodes", "fresh games of each score"),
    ):
        value = getattr(default, name.replace("-", "_"))
        least = 0 if name == "random-rounds" else 1
        parser.add_argument(f"--{name}", type=at_least(least), default=value, help=f"{about} ({value})")
    return parser


def _draw(points: Sequence[dict[str, Any]], path: str, env: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, (by_ratio, by_round) = plt.subplots(1, 2, figsize=(11, 4))
    gain = [point["gain"] for point in points]
    by_ratio.scatter([point["ratio"] for point in points], gain, s=14)
    by_ratio.set_xscale("log")
    by_ratio.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    by_ratio.xaxis.set_major_formatter("{x:g}")
    by_ratio.xaxis.set_minor_formatter("")
    by_ratio.set_xlabel("R = −λ_max / λ_min at the checkpoint")
    by_round.scatter([point["round"] for point in points], gain, s=14)
    by_round.set_xlabel("round of the checkpoint")
    for axes in (by_ratio, by_round):
        axes.axhline(0.0, color="grey", linewidth=0.8)
        axes.set_ylabel("gain in reward by boosting")
        axes.grid(alpha=0.3)
    figure.suptitle(f"{env}: one round boosted, net of going on without")
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
