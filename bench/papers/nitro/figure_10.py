"""Nitro's Figure 10: PPO with and without its boosting, on each environment.

The paper's are Hopper, Humanoid, Walker2d, SpaceInvaders, Qbert and Gravitar. Beside them stands decay alone, which the
paper leaves out: it tells what boosting owes to the curvature.
"""

from __future__ import annotations

from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options

SCHEMES = ("fixed", "nitro", "decay")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 10", description=__doc__)
    job_options(parser)
    options = parser.parse_args(argv)
    command = " ".join(["replay-server bench scalers --figure 10", *argv])
    return compare(options, SCHEMES, command, "Nitro, Figure 10", say)
