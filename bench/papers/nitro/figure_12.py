"""Nitro's Figure 12: RLlib with this project's actor functions in place of its rollout workers, without and with Nitro.

    replay-server bench scalers --figure 12 --setup --folder runs/rllib --env Hopper-v5

RLlib's `Algorithm.train` runs as it is, but for its rollout worker: that hands on what actor functions have played, and
its weights go out to them by the replay server. `workers` is RLlib as it comes, with as many environments in a worker
of its own; `fixed` is RLlib with 16 actor functions, `fixed@reserved` the same on machines that are always there;
`nitro` is boosted by the curvature of RLlib's policy, measured on this project's network with RLlib's weights; and
`decay` is told beside it, which the paper leaves out. Vectors only: RLlib's convolutions are others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.environments import set_up
from replay_server.bench.papers.nitro.command import compare, job_options
from replay_server.bench.papers.nitro.rllib.learner import ENVIRONMENT

SCHEMES = ("workers", "fixed", "fixed@reserved", "nitro", "decay")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser(
        "replay-server bench scalers --figure 12",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--setup", action="store_true", help="make RLlib's environment if it is missing")
    parser.add_argument("--pip-options", default="", help="further options of pip with --setup, as one word")
    job_options(parser)
    parser.set_defaults(learner="rllib")
    options = parser.parse_args(argv)
    if options.setup:
        set_up(ENVIRONMENT, options.pip_options.split(), say)
    command = " ".join(["replay-server bench scalers --figure 12", *argv])
    return compare(options, SCHEMES, command, "Nitro, Figure 12: RLlib", say)
