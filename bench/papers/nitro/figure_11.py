"""Nitro's Figure 11: IMPACT with and without its boosting, on each environment, with decay alone beside it.

Rewards are against rounds and steps as they are. The clock plays a round's actors and then its learner, as PPO's rounds
are: IMPACT's overlap, so that its times here are upper bounds, the same way for all sides.
"""

from __future__ import annotations

from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options
from replay_server.bench.papers.nitro.figure_10 import SCHEMES


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 11", description=__doc__)
    job_options(parser)
    parser.set_defaults(algo="impact")
    options = parser.parse_args(argv)
    command = " ".join(["replay-server bench scalers --figure 11", *argv])
    return compare(options, SCHEMES, command, "Nitro, Figure 11", say)
