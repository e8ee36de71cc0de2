"""Nitro's Figure 9: what boosting brings at 4, 8, 16 and 32 times the actors, early and late in a job.

The job's rounds are cut into --periods equal ones; in each the round after the lowest R is boosted, from one
checkpoint, by every factor. Gain: reward after the boosted round minus reward before it; net gain: minus the reward
after the same round without a boost. Efficiency: gain for each actor of the boosted round, as a share of the largest.
A seed that is in the folder is not played again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.branches import (
    Job,
    Played,
    curvature_of,
    job_of,
    job_options,
    kept,
    rounds_of,
    settings_of,
)
from replay_server.bench.papers.option_types import Once, at_least
from replay_server.learner.curvature import CurvatureOptions


def points(played: Sequence[Played], periods: int) -> dict[int, Played]:
    """Period, from 1 on → its round of the lowest R; periods without any R are left out."""
    found = {}
    for period, part in enumerate(np.array_split(np.arange(len(played)), periods), 1):
        ranked = [played[index] for index in part if played[index].ratio is not None]
        if ranked:
            found[period] = min(ranked, key=lambda each: each.ratio or 0.0)
    return found


def boosted(job: Job, actors: int, episodes: int, curvature: CurvatureOptions) -> dict[str, Any]:
    """Reward and R after a round with so many actors; the job itself stays as it is."""
    branch = job.copy()
    fragments = branch.play(actors)
    return {"actors": actors, "score": branch.score(episodes), "ratio": branch.ratio(fragments, curvature)}


def cell(options: argparse.Namespace, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """One seed: its points, each with what every boost came to."""
    curvature = curvature_of(options)
    played = rounds_of(job_of(options, seed), options.rounds, curvature)
    rows = []
    for period, one in points(played, options.periods).items():
        row = {
            "period": period,
            "round": one.job.round,
            "ratio": one.ratio,
            "before": one.job.score(options.episodes),
            "unboosted": boosted(one.job, options.actors, options.episodes, curvature),
            "boosts": [
                boosted(one.job, options.actors * factor, options.episodes, curvature) for factor in options.factors
            ],
        }
        rows.append(row)
        say(f"seed {seed}: boosted after round {row['round']} (R {row['ratio']:.2f})")
    return {"points": rows, "ratios": [each.ratio for each in played]}


def table(cells: Sequence[dict[str, Any]], periods: int, factors: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each period and factor, means over the seeds that have it: gain, net gain, gain for each actor."""
    rows = []
    for period in range(1, periods + 1):
        found = [point for each in cells for point in each["points"] if point["period"] == period]
        for index, factor in enumerate(factors if found else ()):
            gains = [point["boosts"][index]["score"] - point["before"] for point in found]
            nets = [point["boosts"][index]["score"] - point["unboosted"]["score"] for point in found]
            actors = [point["boosts"][index]["actors"] for point in found]
            row: dict[str, float] = {"period": period, "factor": factor, "seeds": len(found)}
            row["round"] = float(np.mean([point["round"] for point in found]))
            row["gain"], row["net_gain"] = float(np.mean(gains)), float(np.mean(nets))
            row["gain_of_an_actor"] = float(np.mean(np.divide(gains, actors)))
            rows.append(row)
    most = max((row["gain_of_an_actor"] for row in rows), default=0.0)
    return [row | {"efficiency": row["gain_of_an_actor"] / most if most > 0.0 else float("nan")} for row in rows]


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 9", description=__doc__)
    job_options(parser, rounds=50)
    parser.add_argument(
        "--seeds", type=at_least(0), nargs="+", action=Once, default=[1, 2, 3], help="one job each (1 2 3)"
    )
    parser.add_argument("--factors", type=at_least(1), nargs="+", action=Once, default=[4, 8, 16, 32],
                        help="of the actors (4 8 16 32)")  # fmt: skip
    parser.add_argument("--periods", type=at_least(1), default=5, help="that the rounds are cut into (5)")
    parser.add_argument("--episodes", type=at_least(1), default=20, help="fresh games of every reward (20)")
    options = parser.parse_args(argv)
    host = result.machine()
    cells = []
    for seed in options.seeds:
        settings = settings_of(options, "factors", "periods", "episodes") | {"seed": seed}
        path = Path(options.folder) / f"figure-9-seed-{seed}.json"
        cells.append(kept(path, settings, lambda seed=seed: cell(options, seed, say)))
    rows = table(cells, options.periods, options.factors)
    say("rounds  factor      gain  net gain  efficiency")
    for row in rows:
        gains = f"{row['gain']:9.1f} {row['net_gain']:9.1f} {row['efficiency']:11.2f}"
        say(f"{row['round']:6.1f} {row['factor']:6}× {gains}")
    if options.json:
        measured = {
            f"period={row['period']}.factor={row['factor']}.{what}": row[what]
            for row in rows
            for what in ("gain", "net_gain", "efficiency")
        }
        command = " ".join(["replay-server bench scalers --figure 9", *argv])
        content = result.document("boosting-efficiency", command, host, vars(options), [measured], {})
        result.write(options.json, {**content, "rows": rows, "cells": cells})
    if options.plot:
        draw(rows, options.factors, f"Nitro, Figure 9: {options.env}, {len(cells)} seeds", Path(options.plot))
    return 0


def draw(rows: Sequence[dict[str, float]], factors: Sequence[int], title: str, path: Path) -> None:
    """Writes a PNG: gain, net gain and efficiency against the round, a line for each factor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axes, what in zip(figure.subplots(1, 3), ("gain", "net_gain", "efficiency"), strict=True):
        for factor in factors:
            mine = [row for row in rows if row["factor"] == factor]
            axes.plot([row["round"] for row in mine], [row[what] for row in mine], "o-", label=f"{factor}×")
        axes.set_title(what.replace("_", " "), fontsize=9)
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
