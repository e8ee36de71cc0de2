"""MinionsRL's Figure 2: as many actors in all, spread evenly, first many and then few, or first few and then many.

    replay-server bench scalers --figure minions-2 --folder runs/minions-2

Fixed, Decrease and Increase on CartPole-v1 with PPO: in five stages of ten rounds each Decrease has 50, 40, 30, 20 and
10 actors, Increase the same the other way round, Fixed 30. The paper shows one run of each; here every seed plays all
three, so that differences are paired.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from replay_server.arguments import Parser
from replay_server.bench.papers.nitro.command import compare, job_options


def schemes(stages: int, step: int, rounds: int) -> tuple[str, str, str]:
    """Fixed, Decrease and Increase: `stages` stages of `rounds` rounds each, `step` actors apart, the least `step`."""
    rising = [step * number for number in range(1, stages + 1)]
    written = (json.dumps(counts, separators=(",", ":")) for counts in (rising[::-1], rising))
    decrease, increase = (f"schedule:counts={counts},rounds={rounds}" for counts in written)
    return "fixed", decrease, increase


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser(
        "replay-server bench scalers --figure minions-2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    job_options(parser)
    parser.add_argument("--stages", type=int, default=5, help="of equal length (5); --rounds in all")
    parser.add_argument("--step", type=int, default=10, help="actors that one stage has more than the one before (10)")
    parser.set_defaults(
        env=["CartPole-v1"], seeds=list(range(1, 11)), rounds=50, steps=32, eval_every=10,
        set=["hidden=64"], actors=0, actors_max=0,
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.stages < 1 or options.step < 1 or options.rounds % options.stages or options.stages % 2 == 0:
        parser.error("expected an odd number of --stages, --step at least 1, and --rounds a multiple of --stages")
    if options.actors or options.actors_max:
        parser.error("--actors and --actors-max follow from --stages and --step")
    options.actors_max = options.step * options.stages
    options.actors = options.actors_max // options.stages * (options.stages + 1) // 2
    command = " ".join(["replay-server bench scalers --figure minions-2", *argv])
    return compare(
        options,
        schemes(options.stages, options.step, options.rounds // options.stages),
        command,
        "MinionsRL, Figure 2: fixed, decrease, increase",
        say,
    )
