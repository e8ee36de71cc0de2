"""Nitro's Figure 15: its boosting beside Hydrozoa, KungFu and MinionsRL, on one engine with one learner.

The figure also stands for Figure 14 (cost): the table and the third panel have the dollars. MinionsRL's scheduler needs
a policy: --minions DIR (`replay-server scheduler train`).
"""

from __future__ import annotations

from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options

SCHEMES = ("fixed", "nitro", "hydrozoa", "kungfu")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 15", description=__doc__)
    parser.add_argument("--minions", metavar="DIR", help="policy of the learned scheduler")
    job_options(parser)
    options = parser.parse_args(argv)
    schemes = [*SCHEMES, *([f"minions:policy={options.minions}"] if options.minions else [])]
    return compare(
        options, schemes, " ".join(["replay-server bench scalers --figure 15", *argv]), "Nitro, Figure 15", say
    )
