"""`replay-server bench scalers`: schemes × environments × seeds, each cell one whole run, and what they come to.

    replay-server bench scalers --folder runs/hopper --env Hopper-v5 --seeds 1 2 3 4 5
    replay-server bench scalers --folder runs/hopper --figure 15

Acting and learning are real; times and dollars are SIMULATED, from the processor times of each function played on a
platform (`replay_server.serverless.job_clock`). Cells that are in the folder are never run again:
the same command goes on after an interruption, and makes the tables anew. Target J: 90 % of the median of fixed-16's
final rewards. Budget B: the median of what fixed-16 paid to reach J. Nitro's controls have as many actors in all as
Nitro had with the same seed.

Schemes are NAME, NAME:option=value,... or NAME@reserved (the same training on reserved machines): the scalers of
replay-server train, and the controls constant, decay, shuffled, inverted.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.learning import given_settings
from replay_server.bench.papers.nitro.campaign import Campaign
from replay_server.bench.papers.nitro.cell import JobSettings
from replay_server.bench.papers.nitro.scheme import Scheme
from replay_server.bench.papers.option_types import Once, at_least

ALL = (
    "fixed", "nitro", "decay", "shuffled", "constant", "inverted", "max", "hydrozoa", "kungfu", "adapt",
    "fixed@reserved", "nitro@reserved",
)  # fmt: skip
"""What is compared unless --schemes says otherwise; minions needs a policy: minions:policy=DIR."""


def job_options(parser: argparse.ArgumentParser) -> None:
    """What every comparison takes."""
    default = JobSettings()
    parser.add_argument("--folder", required=True, metavar="DIR", help="cells are kept there, and looked for there")
    parser.add_argument("--env", nargs="+", action=Once, default=["Hopper-v5"], help="gymnasium ids (Hopper-v5)")
    parser.add_argument("--seeds", type=at_least(0), nargs="+", action=Once, default=[1, 2, 3, 4, 5],
                        help="one run each (1 2 3 4 5)")  # fmt: skip
    parser.add_argument("--lanes", type=at_least(1), default=1, help="cells at a time (1)")
    parser.add_argument("--report", action="store_true", help="train nothing: tables and pictures of what is there")
    parser.add_argument(
        "--even-load",
        action="store_true",
        help="tell times as if the machine had been equally busy in all cells: by how long their fragments took",
    )
    parser.add_argument(
        "--scheduler-dollars",
        type=float,
        default=0.0,
        help="what the policy of minions cost to train, simulated: told spread over 1, 10 and 100 jobs",
    )
    parser.add_argument("--json", metavar="FILE", help="write the tables there")
    parser.add_argument("--plot", metavar="FILE.png", help="reward and actors; of several environments one file each")
    job = parser.add_argument_group("every run")
    job.add_argument("--algo", choices=("ppo", "impact", "impala"), default=default.algo)
    job.add_argument("--profile", default=default.profile, help="of the algorithm's settings (default)")
    job.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    for name, about in (
        ("rounds", "of acting and learning"),
        ("steps", "of one actor in a round"),
        ("actors", "of the scheme fixed, which sets target and budget"),
        ("actors-max", "the most of any scheme"),
        ("eval-every", "rounds between evaluations, by which the target is reached"),
        ("eval-episodes", "fresh games of each"),
        ("final-episodes", "fresh games at the end"),
        ("memory-mb", "of an actor function on the simulated platform"),
    ):
        value = getattr(default, name.replace("-", "_"))
        least = 0 if name == "eval-every" else 1
        job.add_argument(f"--{name}", type=at_least(least), default=value, help=f"{about} ({value})")
    job.add_argument("--learner", choices=("rllib",), help="RLlib's PPO learns, from this project's actor functions")
    job.add_argument("--price-profile", default=default.price_profile)
    job.add_argument("--price-column", choices=("paper", "code", "full"), default=default.price_column)


def job_settings(options: argparse.Namespace) -> JobSettings:
    """Of the parsed options."""
    return JobSettings(
        algo=options.algo, profile=options.profile, setting=given_settings(options.set), rounds=options.rounds,
        steps=options.steps, actors=options.actors, actors_max=options.actors_max, eval_every=options.eval_every,
        eval_episodes=options.eval_episodes, final_episodes=options.final_episodes, memory_mb=options.memory_mb,
        price_profile=options.price_profile, price_column=options.price_column,
        learner=options.learner,
    )  # fmt: skip


def compare(
    options: argparse.Namespace, schemes: Sequence[str], command: str, title: str, say: Callable[[str], None] = print
) -> int:
    """Trains what is missing of these schemes, then tells and draws. Returns the exit status."""
    from replay_server.bench.papers.nitro.table import comparison, lines, over_environments, together_lines

    host = result.machine()
    try:
        parsed = [Scheme.parse(word) for word in schemes]
        campaign = Campaign(
            Path(options.folder), job_settings(options), options.env, parsed, options.seeds, options.even_load
        )
    except ValueError as error:
        print(f"replay-server bench scalers: {error}", file=sys.stderr)
        return 2
    failures: list[str] = []
    try:
        if not options.report:
            failures = campaign.run(options.lanes, say)
        tables = comparison(campaign, options.scheduler_dollars)
    except ValueError as error:  # A file in the folder that is damaged, or of something else.
        raise RuntimeError(str(error)) from error
    for env, table in tables.items():
        say("\n".join(lines(env, table)))
    together = over_environments(tables)
    if together:
        say("\n".join(together_lines(together)))
    missing = campaign.missing()
    if missing:
        say(f"{len(missing)} of {len(campaign.cells())} cells are missing: " + "; ".join(map(str, missing[:8]))
            + ("; …" if len(missing) > 8 else ""))  # fmt: skip
    if options.json:
        content = result.document("scalers", command, host, vars(options), [_measured(tables)], {})
        result.write(
            options.json,
            {**content, "tables": tables, "together": together, "missing": [str(each) for each in missing]},
        )
    if options.plot:
        _draw(campaign, parsed, Path(options.plot), title)
    for failure in failures:
        print(f"replay-server bench scalers: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith("--figure=") else (word,))]
    if "--figure" in argv:
        return _figure(argv, folder, say)
    parser = Parser(
        "replay-server bench scalers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # Of --fig 7 nothing but the figure's number would be left out.
    )
    parser.add_argument("--schemes", nargs="+", default=list(ALL), help="; ".join(ALL))
    parser.add_argument("--figure", metavar="NAME", help=f"a paper's figure instead: {', '.join(figures())}")
    job_options(parser)
    options = parser.parse_args(argv)
    return compare(options, options.schemes, " ".join(["replay-server bench scalers", *argv]), "scalers", say)


def figures() -> dict[str, str]:
    """Name of each figure → the module of `replay_server.bench.papers` that makes it.

    Nitro's own, and those of MinionsRL, which compares scalers by whole jobs, too: their names begin with "minions-".
    """
    papers = Path(__file__).parents[1]
    found = {path.stem.removeprefix("figure_"): f"nitro.{path.stem}" for path in papers.glob("nitro/figure_*.py")}
    for path in papers.glob("minions/figure_*.py"):
        found[f"minions-{path.stem.removeprefix('figure_')}"] = f"minions.{path.stem}"
    found["table-2"] = "minions.table_2"
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), each[0])))


def _figure(argv: list[str], folder: str, say: Callable[[str], None]) -> int:
    at = argv.index("--figure")
    name = argv[at + 1] if at + 1 < len(argv) else ""
    if name not in figures():
        print(f"unknown figure {name!r}: expected one of {', '.join(figures())}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"replay_server.bench.papers.{figures()[name]}")
    run: Any = module.main
    given = ([*argv[:at], *argv[at + 2 :]], folder, say)
    try:
        return run(*given[: len(inspect.signature(run).parameters)])
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def _measured(tables: dict[str, Any]) -> dict[str, float]:
    """Numbers for the result file, by environment, scheme and what they are."""
    return {
        f"{env}.{name}.{what}": value
        for env, table in tables.items()
        for name, row in table["rows"].items()
        for what, value in (
            ("final_reward", row["final"]["value"]),
            ("time_s", row["time_s"]),
            ("cost_dollars", row["cost"]),
            ("reached", row["reached"]),
        )
    }


def _draw(campaign: Campaign, schemes: Sequence[Scheme], path: Path, title: str) -> None:
    from replay_server.bench.papers.nitro.pictures import draw

    for env in campaign.environments:
        of_env = path if len(campaign.environments) == 1 else path.with_name(f"{path.stem}-{env}{path.suffix}")
        draw(campaign, env, schemes, of_env, title)
