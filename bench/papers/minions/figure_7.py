"""MinionsRL's Figure 7: how long a round takes with 1 to 32 actors, by environment.

    replay-server bench scalers --figure minions-7 --env Hopper-v5 ALE/Qbert-v5 --plot runs/minions-7.png

SIMULATED by the replayed clock: a real job of each environment gives the processor times of actors and learners, real
connections to a real server those of the server; each actor has an instance of its own, warm from the start, as the
paper's are. What grows with the actors is then the learner's part: it was measured with --job-actors, and is taken to
grow in proportion. The paper's environments are Hopper, Humanoid and HalfCheetah, and
Gravitar, SpaceInvaders and Qbert, whose rounds it finds to grow faster. Its learner has a GPU: --learner-speed takes
other factors than this machine's processor.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.figure_18 import draw_spreads, folder_of
from replay_server.bench.papers.nitro.replayed import estimates, job_options, measured_here, stage_options
from replay_server.bench.papers.nitro.replayed_clock import Estimate
from replay_server.bench.pictures import add_price_options

ACTORS = (1, 2, 4, 8, 16, 24, 32)
ENVIRONMENTS = ("Hopper-v5", "Humanoid-v5", "HalfCheetah-v5")


def growth(found: Mapping[str, Estimate]) -> dict[str, float]:
    """Of one environment: `each_s`, seconds that a further actor adds to a round, `learner_s`, of these the learner's,
    both between the least and the most actors; `share`, the learner's of a round with the most."""
    by_actors = sorted(found.values(), key=lambda each: each.actors)
    least, most = by_actors[0], by_actors[-1]
    more = max(1, most.actors - least.actors)

    def learner_s(each: Estimate) -> float:
        return each.duration_s.median * each.learner_share.median

    return {
        "each_s": (most.duration_s.median - least.duration_s.median) / more,
        "learner_s": (learner_s(most) - learner_s(least)) / more,
        "share": most.learner_share.median,
    }


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    found: dict[str, dict[str, Estimate]] = {}
    for env in options.env:
        one = argparse.Namespace(**{**vars(options), "env": env})
        measurements = measured_here(one, folder_of(folder, env), say)
        if options.save_measurements:
            measurements.save(Path(options.save_measurements))
        say(env)
        found[env] = estimates(one, measurements, say)
        each_ms, learner_ms = (growth(found[env])[what] * 1000 for what in ("each_s", "learner_s"))
        say(f"{env}: {each_ms:.1f} ms for each actor more, the learner's {learner_ms:.1f}")
    if options.json:
        rows = [
            {f"{env}.{name}.round_s": each.duration_s.median for env, of_env in found.items() for name, each in
             of_env.items()}
        ]  # fmt: skip
        command = " ".join(["replay-server bench scalers --figure minions-7", *argv])
        content = result.document("scalers-figure-minions-7", command, host, vars(options), rows, {})
        simulated = {env: {name: dataclasses.asdict(each) for name, each in of_env.items()} for env, of_env in
                     found.items()}  # fmt: skip
        extra = {"simulated": simulated, "growth": {env: growth(of_env) for env, of_env in found.items()}}
        result.write(options.json, {**content, **extra})
    if options.plot:
        _draw(found, options.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench scalers --figure minions-7",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
    )
    job_options(parser)
    stage_options(parser)
    parser.add_argument("--env", nargs="+", help=f"gymnasium ids ({' '.join(ENVIRONMENTS)})")
    parser.add_argument("--learner-speed", type=lambda word: [float(word)], help="1 = this machine's processor (1)")
    add_price_options(parser)
    parser.set_defaults(
        env=list(ENVIRONMENTS), actors=list(ACTORS), warm=max(ACTORS), rounds=5, learner_speed=[1.0],
        connections=[1, 8, 32],
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")
    return parser


def _draw(found: Mapping[str, Mapping[str, Estimate]], path: str) -> None:
    curves = {
        env: sorted(((each.actors, each.duration_s) for each in of_env.values()), key=lambda point: point[0])
        for env, of_env in found.items()
    }
    draw_spreads(curves, path, "SIMULATED by the replayed clock (MinionsRL, Figure 7)", "actors", "s of a round")
