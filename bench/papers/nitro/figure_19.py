"""Nitro's Figure 19: up to 128 actors, with Nitro and on reserved machines.

    replay-server bench scalers --figure 19 --folder runs/large --env Hopper-v5

As many rounds as elsewhere, but 128 actors at most, and 96 where their number is fixed, as the paper's 96 cores have
them. The paper's other side is RLlib on one p3.8xlarge and one c5.24xlarge; here it is this project's own engine with
actors on reserved machines, as in Figure 17. Nobody has the paper's four GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options

SCHEMES = ("fixed", "nitro", "fixed@reserved")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser(
        "replay-server bench scalers --figure 19",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    job_options(parser)
    parser.set_defaults(actors=96, actors_max=128)
    options = parser.parse_args(argv)
    command = " ".join(["replay-server bench scalers --figure 19", *argv])
    return compare(options, SCHEMES, command, "Nitro, Figure 19", say)
