"""Nitro's Figure 5: what functions and machines take to start (a), and what that does to one boosted round (b).

    replay-server bench scalers --figure 5 --folder runs/waiting --seeds 1 2 3 4 5

As the paper's preliminary experiment: PPO on Hopper, one actor with 256 steps a round, ten rounds, and 16 actors in
the fourth. `functions` has them from cold functions; `pause` and `replay` from a machine of 16 processors that has to
start, while the learner stops, or goes on with the trajectories of the rounds before. No actor acts meanwhile, as the
paper says of both. What the paper leaves out is `unboosted`, which has no boost and waits for nothing; it goes on until
the others' boosted rounds are over.

Acting and learning are real, times and dollars SIMULATED from processor times of this process. Pause learns what
functions learn, bit by bit, only later. Replay makes as many updates as fit (or --replays). Start-up times are no
measurements: a function's is MinionsRL's (figure 8), a machine's the price file's; --machine-start-s and
--function-start-s take others. A seed that is in the folder is not played again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.branches import check_boosts, job_of, job_options, kept, settings_of
from replay_server.bench.papers.nitro.waiting import WAYS, WaitSettings, run
from replay_server.bench.papers.option_types import Once, at_least
from replay_server.bench.papers.statistics import Interval, paired_interval
from replay_server.serverless.prices import load_prices

Cell = Mapping[str, Any]


def measures(cell: Cell, settings: WaitSettings) -> dict[str, dict[str, float]]:
    """Way → `boosted`, the score after the boosted round; `mean`, of it and all rounds after it; `final`, the last
    round's; `s`, simulated seconds to the end of the last round. The unboosted job's last round is the others'."""
    found = {}
    for way in WAYS:
        rows = [row for row in cell["points"][way] if settings.round <= row["round"] <= settings.rounds]
        scores = [row["score"] for row in rows]
        mean = float(np.mean(scores))
        found[way] = {"boosted": scores[0], "mean": mean, "final": scores[-1], "s": rows[-1]["time_s"]}
    return found


def at_time(points: Sequence[Mapping[str, float]], time_s: float) -> float:
    """The score at a time, by a line between rounds; the last one's after them."""
    return float(np.interp(time_s, [row["time_s"] for row in points], [row["score"] for row in points]))


def differences(cells: Sequence[Cell], settings: WaitSettings) -> dict[str, Interval]:
    """Functions − every other side, paired by seed: at equal rounds (`boosted`, `mean`, `final`), and `at equal time`,
    against the unboosted job when each boost's round is over. Pause is functions' equal at equal rounds."""
    found = {}
    each = [measures(cell, settings) for cell in cells]
    for other in ("replay", "unboosted"):
        for what in ("boosted", "mean", "final"):
            pairs = [(one["functions"][what], one[other][what]) for one in each]
            found[f"functions − {other}, {what}"] = paired_interval(*map(list, zip(*pairs, strict=True)))
    for way in ("functions", "pause", "replay"):
        pairs = []
        for cell in cells:
            row = next(row for row in cell["points"][way] if row["round"] == settings.round)
            pairs.append((row["score"], at_time(cell["points"]["unboosted"], row["time_s"])))
        found[f"{way} − unboosted, at equal time"] = paired_interval(*map(list, zip(*pairs, strict=True)))
    return found


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    try:
        settings = WaitSettings(**{each.name: getattr(options, each.name) for each in dataclasses.fields(WaitSettings)})
        check_boosts(options, settings.boosted)
    except ValueError as error:
        print(f"replay-server bench scalers --figure 5: {error}", file=sys.stderr)
        return 2
    of_cell = settings_of(options, *(each.name for each in dataclasses.fields(WaitSettings)))
    cells = []
    for seed in options.seeds:
        path = Path(options.folder) / f"figure-5-seed-{seed}.json"
        cells.append(kept(path, of_cell, lambda seed=seed: run(job_of(options, seed), settings, say)))
    for line in told(cells, settings):
        say(line)
    found = differences(cells, settings)
    for name, each in found.items():
        say(f"{name:38} {each.value:8.1f} ({each.low:.1f} to {each.high:.1f})")
    if options.json:
        rows = [
            {f"{way}.{what}": value for way, values in measures(cell, settings).items() for what, value in
             values.items()} for cell in cells
        ]  # fmt: skip
        command = " ".join(["replay-server bench scalers --figure 5", *argv])
        content = result.document("scalers-figure-5", command, host, vars(options), rows, {})
        intervals = {name: dataclasses.asdict(each) for name, each in found.items()}
        result.write(options.json, {**content, "differences": intervals, "cells": cells})
    if options.plot:
        _draw(cells, settings, options.plot, options.env)
    return 0


def told(cells: Sequence[Cell], settings: WaitSettings) -> list[str]:
    """For people: a line for each side, medians over seeds; times simulated."""
    each = [measures(cell, settings) for cell in cells]
    took = {name: np.median([cell["boost_s"][name] for cell in cells]) for name in ("functions", "machine")}
    paid = {name: np.median([cell["boost_dollars"][name] for cell in cells]) for name in ("functions", "machine")}
    idle = np.median([cell["idle_learner_dollars"] for cell in cells])
    replays = np.median([cell["replays"] for cell in cells])
    lines = [
        f"SIMULATED: the boost's actors take {took['functions']:.2f} s by functions (${paid['functions']:.5f}), "
        f"{took['machine']:.2f} s by a machine that starts (${paid['machine']:.5f}, and ${idle:.5f} of a learner that "
        f"waits); {replays:.0f} updates meanwhile",
        f"{'':12} {'boosted round':>14} {'mean from it on':>16} {'last round':>11} {'s to it':>9}",
    ]
    for way in WAYS:
        row = {what: float(np.median([one[way][what] for one in each])) for what in each[0][way]}
        lines.append(f"{way:12} {row['boosted']:14.0f} {row['mean']:16.0f} {row['final']:11.0f} {row['s']:9.2f}")
    return lines


def _parser() -> argparse.ArgumentParser:
    default = WaitSettings(machine_start_s=float(load_prices().profile("reserved-vms").machine("actor").start_s))
    parser = Parser(
        "replay-server bench scalers --figure 5",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    job_options(parser, rounds=default.rounds)
    parser.add_argument(
        "--seeds", type=at_least(0), nargs="+", action=Once, default=[1, 2, 3, 4, 5], help="one job each (1 2 3 4 5)"
    )
    for name, about in (
        ("round", "which is boosted, from 2 on"),
        ("boosted", "actors of it"),
        ("memory-mb", "of a function"),
        ("replays", "updates while the machine starts; 0 = as many as fit"),
        ("episodes", "fresh games of each score"),
    ):
        value = getattr(default, name.replace("-", "_"))
        least = 0 if name == "replays" else 1
        parser.add_argument(f"--{name}", type=at_least(least), default=value, help=f"{about} ({value})")
    for name, about in (("machine-start-s", "until its actors act"), ("function-start-s", "of a cold one")):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{about} ({value:g})")
    return parser


def _draw(cells: Sequence[Cell], settings: WaitSettings, path: str, env: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained", dpi=110)
    starts, scores = figure.subplots(1, 2, width_ratios=[1, 2.5])
    starts.bar(["function", "machine"], [settings.function_start_s, settings.machine_start_s], color=["C0", "C1"])
    starts.set(ylabel="s to start (assumed)", yscale="log", title="(a)")
    for index, way in enumerate(WAYS):
        # A round that some seeds' unboosted jobs only have is left out.
        shared = set.intersection(*({row["round"] for row in cell["points"][way]} for cell in cells))
        rows = [[row for row in cell["points"][way] if row["round"] in shared] for cell in cells]
        times, means = (np.mean([[row[what] for row in each] for each in rows], axis=0) for what in ("time_s", "score"))
        scores.plot(times, means, "o-", color=f"C{index}", markersize=3, label=way)
    scores.set(xlabel="s (simulated)", ylabel=f"reward, mean of {len(cells)} seeds", title=f"(b) {env}")
    scores.grid(alpha=0.3)
    scores.legend(fontsize=8)
    figure.suptitle("Nitro, Figure 5", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
