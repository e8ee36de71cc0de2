"""Nitro's Figure 8: rewards around the policies of a job's rounds with the lowest, median and highest R.

Directions are the top two eigenvectors of the Hessian on what the round learned from. A panel that is in the folder is
not played again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro import landscape
from replay_server.bench.papers.nitro.branches import (
    Played,
    curvature_of,
    job_of,
    job_options,
    kept,
    lowest_median_highest,
    rounds_of,
    settings_of,
)


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 8", description=__doc__)
    job_options(parser, rounds=10)
    landscape.options(parser)
    options = parser.parse_args(argv)
    host = result.machine()

    chosen: dict[str, Played] = {}
    panels: dict[str, dict[str, Any]] = {}
    for which in ("lowest", "median", "highest"):

        def panel(which: str = which) -> dict[str, Any]:
            if not chosen:
                played = rounds_of(job_of(options, options.seed), options.rounds, curvature_of(options))
                chosen.update(lowest_median_highest(played))
            one = chosen[which]
            found = landscape.panel(one.job, one.fragments, options, say)
            return found | {"round": one.job.round, "ratio": one.ratio}

        path = Path(options.folder) / f"figure-8-seed-{options.seed}-{which}.json"
        cell = kept(path, settings_of(options, "seed", *landscape.OPTIONS), panel)
        panels[f"{which} R ({cell['ratio']:.2f}), round {cell['round']}"] = cell
    landscape.tell(panels, say)
    landscape.write(panels, options, host, ["replay-server bench scalers --figure 8", *argv], "Nitro, Figure 8")
    return 0
