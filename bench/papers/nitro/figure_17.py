"""Nitro's Figure 17: what is left of it without boosting (16 actors always) and without functions (reserved machines).

Without functions: the same training on machines that are there all the time, a p3.2xlarge for the learner and as many
c5.4xlarge as the most actors need, whose cores all actors share.
"""

from __future__ import annotations

from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options

SCHEMES = ("fixed", "nitro", "max", "nitro@reserved", "fixed@reserved")
"""Without boosting; whole; always boosting; without functions; without both."""


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 17", description=__doc__)
    job_options(parser)
    options = parser.parse_args(argv)
    command = " ".join(["replay-server bench scalers --figure 17", *argv])
    return compare(options, SCHEMES, command, "Nitro, Figure 17", say)
