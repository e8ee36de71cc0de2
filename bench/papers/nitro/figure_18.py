"""Nitro's Figure 18: how long a group of 100 to 1,000 concurrent actors takes, from invocation to the last submission.

    replay-server bench scalers --figure 18 --env Hopper-v5 Walker2d-v5 --json runs/18.json --plot runs/18.png

SIMULATED by the replayed clock: for each environment a real job gives the processor times of actor functions, and real
connections to a real server, as many as there are actors, give how long it is busy with each; then each instance has
its share of a processor. The paper finds the time the same for all numbers. Here what grows is told apart: `same` is
what one group of the least number takes, so that time / same is 1 where nothing grows. Instances are warm unless
--cold; what the platform needs to admit so many at once is not known here, and in none of these times.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.replayed import measured_here
from replay_server.bench.papers.nitro.replayed_clock import Measurements, Spread, replay, server_busy_s
from replay_server.bench.papers.option_types import Once, at_least
from replay_server.bench.pictures import add_price_options, bill_of
from replay_server.serverless.prices import Profile
from replay_server.serverless.simulated_round import Host, Stage, cpu_share

ACTORS = (100, 200, 400, 600, 800, 1000)


@dataclasses.dataclass(frozen=True)
class Group:
    """Groups of one size; simulated seconds from the first invocation to the last submission."""

    actors: int
    acting_s: Spread
    server_s: float
    """Of these, how long the server is busy with all of them: at most so much is its doing."""


def group(
    measurements: Measurements, actors: int, memory_mb: int, profile: Profile, warm: bool, plays: int, seed: int = 1
) -> Group:
    """Plays a group of that many `plays` times."""
    stage = Stage(
        Host(actors, cpu_share(memory_mb)), memory_mb=memory_mb, warm=actors if warm else 0, keeps_instances=warm
    )
    times = [each.actors_s for each in replay(measurements, [actors] * plays, stage, profile, seed)]
    busy_s = sum(server_busy_s(table, actors) for table in (measurements.fetch_s, measurements.ingest_s))
    return Group(actors, Spread.of(times), actors * busy_s)


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    profile = bill_of(options).prices.profile(options.price_profile)
    found: dict[str, list[Group]] = {}
    for env in options.env:
        one = argparse.Namespace(**{**vars(options), "env": env})
        measurements = measured_here(one, folder_of(folder, env), say)
        if options.save_measurements:
            measurements.save(Path(options.save_measurements))
        found[env] = [
            group(measurements, count, options.memory_mb, profile, not options.cold, options.plays, options.seed)
            for count in options.actors
        ]
        for line in told(env, found[env]):
            say(line)
    if options.json:
        rows = [{f"{env}.actors={each.actors}.acting_s": each.acting_s.median for env in found for each in found[env]}]
        command = " ".join(["replay-server bench scalers --figure 18", *argv])
        groups = {env: [dataclasses.asdict(each) for each in of_env] for env, of_env in found.items()}
        content = result.document("scalers-figure-18", command, host, vars(options), rows, {})
        result.write(options.json, {**content, "simulated": groups})
    if options.plot:
        _draw(found, options.plot)
    return 0


def folder_of(folder: str, env: str) -> Path:
    """A folder of its own for each environment's job: a second job in the same one is refused."""
    found = Path(folder) / env.replace("/", "-")
    found.mkdir(parents=True, exist_ok=True)
    return found


def told(env: str, groups: Sequence[Group]) -> list[str]:
    """For people."""
    same_s = groups[0].acting_s.median
    lines = [f"{env}, SIMULATED: actors   s to the last submission (5 % to 95 %)   time / same   server busy, s"]
    for each in groups:
        took = each.acting_s
        lines.append(
            f"{each.actors:{len(env) + 18}} {took.median:10.3f} ({took.low:.3f} to {took.high:.3f})"
            f" {took.median / same_s:21.2f} {each.server_s:14.3f}"
        )
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench scalers --figure 18",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"], help="gymnasium ids (Hopper-v5)")
    parser.add_argument(
        "--actors", type=at_least(1), nargs="+", action=Once, default=list(ACTORS), help="of each group (100 to 1000)"
    )
    parser.add_argument("--memory-mb", type=at_least(1), default=1024, help="of an actor function (1024: 0.58 vCPU)")
    parser.add_argument("--cold", action="store_true", help="no instance is warm")
    parser.add_argument("--plays", type=at_least(1), default=20, help="groups of each size (20)")
    job = parser.add_argument_group("the real job")
    job.add_argument("--run", metavar="DIR", help="run directory to take; else a job is run")
    job.add_argument("--measurements", metavar="FILE", help="those that --save-measurements wrote")
    job.add_argument("--save-measurements", metavar="FILE", help="write them there")
    job.add_argument("--job-actors", type=at_least(1), default=8, help="of each of its rounds (8)")
    job.add_argument("--steps", type=at_least(1), default=256, help="of one actor in a round (256)")
    job.add_argument("--rounds", type=at_least(1), default=5, help="(5)")
    job.add_argument("--seed", type=at_least(0), default=1)
    job.add_argument(
        "--connections",
        type=at_least(0),
        nargs="+",
        default=[1, 100, 400, 1000],
        help="real ones to the server; 0 = none",
    )
    add_price_options(parser)
    parser.set_defaults(algo="ppo", environments=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")
    return parser


def _draw(found: dict[str, list[Group]], path: str) -> None:
    curves = {env: [(each.actors, each.acting_s) for each in groups] for env, groups in found.items()}
    draw_spreads(
        curves,
        path,
        "SIMULATED by the replayed clock (Nitro, Figure 18)",
        "concurrent actors",
        "s to the last submission",
    )


def draw_spreads(
    curves: Mapping[str, Sequence[tuple[int, Spread]]], path: str, title: str, along: str, seconds: str
) -> None:
    """Writes a PNG: of each name a line of medians over (actors, seconds), with what lies between low and high."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes: Any = figure.subplots()
    for index, (name, points) in enumerate(curves.items()):
        actors, spreads = [each for each, _ in points], [each for _, each in points]
        axes.fill_between(
            actors, [each.low for each in spreads], [each.high for each in spreads], color=f"C{index}", alpha=0.2
        )
        axes.plot(actors, [each.median for each in spreads], "o-", color=f"C{index}", label=name)
    axes.set(xlabel=along, ylabel=seconds, ylim=(0, None))
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
