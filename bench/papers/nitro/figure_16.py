"""Nitro's Figure 16: how sensitive it is to its decay d, its window n, and the memory of a function.

A function's memory is its share of a processor and its price: the same training on another clock.
"""

from __future__ import annotations

from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options
from replay_server.bench.papers.option_types import at_least


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure 16", description=__doc__)
    parser.add_argument("--decay", type=float, nargs="*", default=[0.9, 0.94, 0.98, 1.0], help="besides 0.96")
    parser.add_argument("--window", type=at_least(1), nargs="*", default=[2, 4, 10, 20], help="besides 6")
    parser.add_argument(
        "--memory", type=at_least(1), nargs="*", default=[512, 1769, 2048], help="MB, besides --memory-mb"
    )
    job_options(parser)
    options = parser.parse_args(argv)
    schemes = [
        "fixed",
        "nitro",
        *(f"nitro:decay={each}" for each in options.decay),
        *(f"nitro:window={each}" for each in options.window),
        *(f"nitro@memory_mb={each}" for each in options.memory),
    ]
    return compare(
        options, schemes, " ".join(["replay-server bench scalers --figure 16", *argv]), "Nitro, Figure 16", say
    )
