"""Nitro's Figure 3: rewards around the policy that a round makes with 1, 8 and 16 actors, from the same checkpoint.

The round is the one after the lowest R of the job (or --round). Directions are the top two eigenvectors of the Hessian
on what that panel's policy learned from. A panel that is in the folder is not played again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro import landscape
from replay_server.bench.papers.nitro.branches import (
    check_boosts,
    curvature_of,
    job_of,
    job_options,
    kept,
    lowest_median_highest,
    rounds_of,
    settings_of,
)
from replay_server.bench.papers.option_types import Once, at_least


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 3", description=__doc__)
    job_options(parser, rounds=10)
    landscape.options(parser)
    parser.add_argument("--boosts", type=at_least(1), nargs="+", action=Once, default=[1, 8, 16],
                        help="actors of the round (1 8 16)")  # fmt: skip
    parser.add_argument("--round", type=at_least(0), default=0, help="boost the one after this (0: after the lowest R)")
    options = parser.parse_args(argv)
    if options.round > options.rounds:
        parser.error(f"--round: expected at most {options.rounds}, the --rounds of the job, got {options.round}")
    try:
        check_boosts(options, *options.boosts)
    except ValueError as error:
        parser.error(str(error))
    host = result.machine()

    checkpoint = None
    panels: dict[str, dict[str, Any]] = {}
    for actors in options.boosts:
        settings = settings_of(options, "round", "seed", *landscape.OPTIONS) | {"boost": actors}

        def panel(actors: int = actors) -> dict[str, Any]:
            nonlocal checkpoint
            if checkpoint is None:
                played = rounds_of(job_of(options, options.seed), options.rounds, curvature_of(options))
                checkpoint = played[options.round - 1] if options.round else lowest_median_highest(played)["lowest"]
            boosted = checkpoint.job.copy()
            fragments = boosted.play(actors)
            found = landscape.panel(boosted, fragments, options, say)
            return found | {"round": boosted.round, "ratio": boosted.ratio(fragments, curvature_of(options))}

        path = Path(options.folder) / f"figure-3-seed-{options.seed}-actors-{actors}.json"
        panels[f"{actors * options.steps} steps ({actors} actors)"] = kept(path, settings, panel)
    landscape.tell(panels, say)
    landscape.write(panels, options, host, ["replay-server bench scalers --figure 3", *argv], "Nitro, Figure 3")
    return 0
