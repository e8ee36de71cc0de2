"""MinionsRL's Table 2: time and dollars to the target, of its learned scheduler, Max, Adapt and a fixed count.

    replay-server bench scalers --figure table-2 --folder runs/table-2 --env Hopper-v5 --minions policies/hopper

All sides have this project's engine, learner and clock, which the paper's had not. Its IMPACT column is an algorithm,
not a scaler, and its rounds overlap, which the clock does not know: it is left out. Without --minions DIR (a policy of
replay-server scheduler) the learned scheduler is left out, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options

SCHEMES = ("fixed", "max", "adapt")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser(
        "replay-server bench scalers --figure table-2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minions", metavar="DIR", help="policy of the learned scheduler")
    job_options(parser)
    parser.set_defaults(actors_max=32)
    options = parser.parse_args(argv)
    schemes = [*SCHEMES, *([f"minions:policy={options.minions}"] if options.minions else [])]
    command = " ".join(["replay-server bench scalers --figure table-2", *argv])
    return compare(options, schemes, command, "MinionsRL, Table 2", say)
