"""Nitro's Figures 2 and 7: are there rounds in which more actors gain more? The boostable-rounds experiment.

    replay-server bench scalers --figure 7 --folder runs/boostable --seeds 1 2 3 4 5 6 7 8 9 10

For each seed a run of fixed count, with R after every round. Its checkpoints of the lowest, median and highest R, and
of random rounds are gone on from twice, boosted and not, and scored by the same fresh games. Told are the gains with
bootstrap intervals (95 %) over seeds, the lowest R's over the highest's paired by seed, and the regression of gain on
ln R with the round as covariate (Nitro's claim: b < 0). What is in the folder is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay_server.bench import result
from replay_server.bench.learning import given_settings
from replay_server.bench.scalers.boosting import BoostSettings, gains, regression, run_seed
from replay_server.bench.scalers.cell import JobSettings
from replay_server.serverless.backends.process import ProcessPlatform


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    job = JobSettings(
        algo="ppo", profile=options.profile, setting=given_settings(options.set), rounds=options.rounds,
        steps=options.steps, actors=options.actors,
    )  # fmt: skip
    settings = BoostSettings(
        options.env, job, options.boosted, options.horizon, options.first, options.random_rounds, options.episodes
    )
    kept = Path(options.folder)
    try:
        _check_settings(settings, kept)
    except ValueError as error:
        print(f"replay-server bench scalers --figure 7: {error}", file=sys.stderr)
        return 2
    points: list[dict[str, Any]] = []
    with ProcessPlatform() as platform:
        for index, seed in enumerate(options.seeds):
            points += run_seed(settings, seed, kept, platform, say)
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


def _check_settings(settings: BoostSettings, folder: Path) -> None:
    """One experiment a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "settings.json"
    values = json.loads(json.dumps(dataclasses.asdict(settings)))
    if path.exists() and json.loads(path.read_text()) != values:
        raise ValueError(f"{path} has other settings: give another --folder, or the same as before")
    path.write_text(json.dumps(values, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "replay-server bench scalers --figure 7",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", required=True, metavar="DIR")
    parser.add_argument("--env", default="Hopper-v5", help="gymnasium id (Hopper-v5)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)), help="(1 to 10)")
    parser.add_argument("--profile", default="default", help="of PPO's settings (default)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    for name, default, about in (
        ("rounds", 50, "of the run that is boosted"),
        ("steps", 256, "of one actor in a round"),
        ("actors", 16, "of a round that is not boosted"),
        ("boosted", 64, "actors of the boosted round"),
        ("horizon", 3, "rounds from the checkpoint to the score"),
        ("first", 3, "the earliest round after which is boosted"),
        ("random-rounds", 2, "beside those of the lowest, median, highest R"),
        ("episodes", 40, "fresh games of each score"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png", help="gain against R, and against the round")
    return parser


def _draw(points: Sequence[dict[str, Any]], path: str, env: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (by_ratio, by_round) = plt.subplots(1, 2, figsize=(11, 4))
    gain = [point["gain"] for point in points]
    by_ratio.scatter([point["ratio"] for point in points], gain, s=14)
    by_ratio.set_xscale("log")
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
