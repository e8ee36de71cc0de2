"""Nitro's Figure 4: boosting scores of one job's rounds, by environment (a), by algorithm (b) and by run (c).

    replay-server bench scalers --figure 4 --folder runs/scores
    replay-server bench scalers --figure 4 --folder runs/scores --kept ppo=runs/hopper --env Hopper-v5

Ten rounds of one actor with 256 steps, as in the paper's preliminary experiment; R and the score S (equations 3 to 5)
are measured after each, of all samples, and boost nothing. Cells are kept under FOLDER/ALGORITHM and never run again.
--kept takes another comparison's cells of Nitro instead, with as many rounds and actors as those had, and trains none.

Told besides: the rank correlation of R between two series, round by round, as a mean over a panel's pairs, and between
a round and the next within a series. Both near 0 is what the paper calls unpredictable and ephemeral; but noise in R
looks the same. So panel c's runs of PPO are played again, the same but for rounding, with R measured a second time
after each round, of other trajectories of the same policies (--once leaves it out).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.learning import given_settings
from replay_server.bench.papers.nitro.campaign import Campaign
from replay_server.bench.papers.nitro.cell import Cell, CellName, JobSettings, run_cell
from replay_server.bench.papers.nitro.scheme import BOOSTED, Scheme
from replay_server.bench.papers.option_types import Once, at_least
from replay_server.rl.folder_lock import alone_in
from replay_server.serverless.backends.process import ProcessPlatform
from replay_server.serverless.scalers.nitro import Nitro, convexity_ratio

Pair = tuple[float | None, float | None]
ALGORITHMS = ("ppo", "impact", "impala")
MEASURED = Scheme(BOOSTED, (("least", 1), ("curvature", {"subset": 1.0})))
"""Nitro's score of all samples; with I_max = I_min it boosts nothing."""
PANELS = {"a": "environments", "b": "algorithms", "c": "runs"}


@dataclass(frozen=True)
class Series:
    """One run's rounds, from 1 on."""

    env: str
    algorithm: str
    seed: int
    counts: tuple[int, ...]
    """Actors."""
    ratios: tuple[float | None, ...]
    """R; None where it is not defined."""
    scores: tuple[float | None, ...]
    """S; None where the round has none of its own (the first one never has)."""

    def __str__(self) -> str:
        return f"{self.env} {self.algorithm} seed {self.seed}"


def series(cell: Cell, algorithm: str) -> Series:
    """What a cell of Nitro says of its rounds. ValueError for a cell whose rounds have no curvature."""
    scaler = Nitro()
    ratios = tuple(_ratio(each, cell) for each in cell.statistics)
    scores = tuple(scaler.look_at(number, ratio) for number, ratio in enumerate(ratios, 1))
    return Series(cell.env, algorithm, cell.seed, cell.counts, ratios, scores)


def _ratio(found: Mapping[str, float | None], cell: Cell) -> float | None:
    if "curvature_max" not in found:
        raise ValueError(f"{cell.env} {cell.scheme} seed {cell.seed}: expected rounds with their curvature, got none")
    most, least = found["curvature_max"], found["curvature_min"]
    return None if most is None or least is None else convexity_ratio(most, least)


def panels_of(found: Sequence[Series]) -> dict[str, list[Series]]:
    """Panel → the series that differ in what it shows alone: the rest is the first series'. One series is no panel."""
    first = found[0]
    differing = {
        "a": [each for each in found if (each.algorithm, each.seed) == (first.algorithm, first.seed)],
        "b": [each for each in found if (each.env, each.seed) == (first.env, first.seed)],
        "c": [each for each in found if (each.env, each.algorithm) == (first.env, first.algorithm)],
    }
    return {panel: members for panel, members in differing.items() if len(members) > 1}


def agreement(members: Sequence[Series]) -> float | None:
    """Mean rank correlation of R over all pairs of series, of the rounds that both have an R in.

    None where no pair has three.
    """
    pairs = itertools.combinations(members, 2)
    return _mean(_correlation(zip(one.ratios, other.ratios, strict=False)) for one, other in pairs)


def persistence(members: Sequence[Series]) -> float | None:
    """Mean rank correlation of R with the next round's, within each series; None where none has three pairs."""
    return _mean(_correlation(itertools.pairwise(each.ratios)) for each in members)


def _correlation(pairs: Any) -> float | None:
    from replay_server.bench.papers.nitro.curvature import rank_correlation

    both = [pair for pair in pairs if None not in pair]
    found = rank_correlation(*zip(*both, strict=True)) if both else math.nan
    return found if math.isfinite(found) else None


def _mean(values: Any) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.fmean(known) if known else None


# ---- the cells -------------------------------------------------------------------------------------------------------


def wanted(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Environment, algorithm and seed of every series, each once, the one that all panels share first."""
    env, algorithm, seed = options.env[0], options.algo[0], options.seeds[0]
    names = [
        *((each, algorithm, seed) for each in options.env),
        *((env, each, seed) for each in options.algo),
        *((env, algorithm, each) for each in options.seeds),
    ]
    return list(dict.fromkeys(names))


def campaigns(options: argparse.Namespace) -> dict[str, tuple[Campaign, Scheme]]:
    """Algorithm → the comparison that its cells are in, and the scheme that they are of.

    ValueError where a folder holds a comparison with other settings or, of --kept, none of that algorithm.
    """
    kept = dict(_algorithm_and_folder(word) for word in options.kept)
    found = {}
    for algorithm in options.algo:
        folder, scheme = kept.get(algorithm), Scheme(BOOSTED)
        if folder is None:
            folder, scheme = Path(options.folder) / algorithm, MEASURED
            job = JobSettings(
                algo=algorithm, profile=options.profile, setting=given_settings(options.set), rounds=options.rounds,
                steps=options.steps, actors=options.actors, actors_max=options.actors, eval_every=0, final_episodes=1,
            )  # fmt: skip
            scheme = dataclasses.replace(scheme, options=(("least", options.actors), *scheme.options[1:]))
        else:
            job = _settings_of(folder, algorithm)
        found[algorithm] = Campaign(folder, job, options.env, [scheme], options.seeds), scheme
    return found


def _algorithm_and_folder(word: str) -> tuple[str, Path]:
    algorithm, _, folder = word.partition("=")
    if algorithm not in ALGORITHMS or not folder:
        raise ValueError(f"--kept: expected ALGORITHM=DIR, one of {', '.join(ALGORITHMS)}, got {word!r}")
    return algorithm, Path(folder)


def _settings_of(folder: Path, algorithm: str) -> JobSettings:
    try:
        job = JobSettings(**json.loads((folder / "settings.json").read_text()))
    except OSError as error:
        raise ValueError(f"--kept {algorithm}={folder}: expected a folder of bench scalers: {error}") from error
    if job.algo != algorithm:
        raise ValueError(f"--kept {algorithm}={folder}: its comparison is of {job.algo}")
    return job


def _train(
    options: argparse.Namespace, where: Mapping[str, tuple[Campaign, Scheme]], say: Callable[[str], None]
) -> None:
    """Every cell that is missing, but for those of --kept."""
    kept = {_algorithm_and_folder(word)[0] for word in options.kept}
    missing = [
        (algorithm, CellName(env, where[algorithm][1], seed))
        for env, algorithm, seed in wanted(options)
        if algorithm not in kept and where[algorithm][0].read(env, where[algorithm][1], seed) is None
    ]
    if not missing:
        return
    with ProcessPlatform() as platform:
        for index, (algorithm, name) in enumerate(missing, 1):
            campaign = where[algorithm][0]
            with alone_in(campaign.folder):
                cell = run_cell(name, campaign.job, platform)
                cell.write(name.path(campaign.folder))
            say(f"[{index}/{len(missing)}] {name.env} {algorithm} seed {name.seed}: {cell.wall_s:.0f} s")


def measured_twice(options: argparse.Namespace) -> list[Pair] | None:
    """R of panel c's rounds and R of other trajectories of the same policies; None where these are not of PPO here."""
    if options.once or options.algo[0] != "ppo" or any(word.startswith("ppo=") for word in options.kept):
        return None
    from replay_server.bench.papers.nitro.branches import curvature_of, job_of, kept, settings_of
    from replay_server.bench.papers.nitro.repeated import repeated_ratios

    one = argparse.Namespace(**{**vars(options), "env": options.env[0], "subset": 1.0})
    found: list[Pair] = []
    for seed in options.seeds:
        path = Path(options.folder) / f"figure-4-twice-seed-{seed}.json"
        if options.report and not path.exists():
            return None

        def made(seed: int = seed) -> dict[str, Any]:
            return {"ratios": repeated_ratios(job_of(one, seed), options.rounds, curvature_of(one))}

        found += [(own, other) for own, other in kept(path, settings_of(one), made)["ratios"]]
    return found


# ---- the command -----------------------------------------------------------------------------------------------------


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    try:
        where = campaigns(options)
    except (TypeError, ValueError) as error:
        print(f"replay-server bench scalers --figure 4: {error}", file=sys.stderr)
        return 2
    if not options.report:
        _train(options, where, say)
    cells = [(algorithm, where[algorithm][0].read(env, where[algorithm][1], seed)) for env, algorithm, seed in
             wanted(options)]  # fmt: skip
    found = [series(cell, algorithm) for algorithm, cell in cells if cell is not None]
    if missing := len(cells) - len(found):
        say(f"{missing} of {len(cells)} cells are missing")
    if not found:
        return 1
    for line in told(found):
        say(line)
    panels = panels_of(found)
    between = {panel: agreement(members) for panel, members in panels.items()}
    for panel, value in between.items():
        say(f"({panel}) rank correlation of R between {PANELS[panel]}: {_number(value)}")
    say(f"rank correlation of R with the next round's: {_number(persistence(found))}")
    twice = measured_twice(options)
    if twice is not None:
        say(f"rank correlation of R with R of other trajectories of the same policies: {_number(_correlation(twice))}")
    if options.json:
        rows = [{f"{each}.undefined_rounds": float(each.scores.count(None)) for each in found}]
        command = " ".join(["replay-server bench scalers --figure 4", *argv])
        content = result.document("scalers-figure-4", command, host, vars(options), rows, {})
        extra = {"series": [dataclasses.asdict(each) for each in found], "agreement": between,
                 "persistence": persistence(found), "twice": twice,
                 "twice_agreement": twice and _correlation(twice)}  # fmt: skip
        result.write(options.json, {**content, **extra})
    if options.plot:
        _draw(panels, options.plot)
    return 0


def told(found: Sequence[Series]) -> list[str]:
    """A line for each series: S of every round, and the round of the highest."""
    lines = []
    for each in found:
        known = {number: score for number, score in enumerate(each.scores, 1) if score is not None}
        top = f"highest in round {max(known, key=lambda number: known[number])}" if known else "no round has a score"
        scores = " ".join("   –" if score is None else f"{score:4.2f}" for score in each.scores)
        lines.append(f"{each!s:28} S {scores}   {top}")
    return lines


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.2f}"


def _parser() -> argparse.ArgumentParser:
    default = JobSettings()
    parser = Parser(
        "replay-server bench scalers --figure 4",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", required=True, metavar="DIR", help="cells are kept there, and looked for there")
    parser.add_argument(
        "--kept", nargs="+", default=[], metavar="ALGORITHM=DIR", help="a comparison with Nitro's cells"
    )
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--once", action="store_true", help="do not measure R of panel c's runs a second time")
    environments = ["Hopper-v5", "Humanoid-v5", "Walker2d-v5"]
    parser.add_argument("--env", nargs="+", default=environments,
                        help=f"gymnasium ids; the first is b's and c's ({' '.join(environments)})")  # fmt: skip
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS),
                        help="the first is panel a's and c's (ppo impact impala)")  # fmt: skip
    parser.add_argument("--seeds", type=at_least(0), nargs="+", action=Once, default=[1, 2, 3],
                        help="the first is a's and b's (1 2 3)")  # fmt: skip
    parser.add_argument("--profile", default=default.profile, help="of the algorithms' settings (default)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="(10)")
    parser.add_argument("--steps", type=at_least(1), default=default.steps,
                        help=f"of one actor in a round ({default.steps})")  # fmt: skip
    parser.add_argument("--actors", type=at_least(1), default=1, help="of every round (1)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png", help="scores by round, a panel each")
    return parser


def _draw(panels: Mapping[str, Sequence[Series]], path: str) -> None:
    from matplotlib.figure import Figure

    names = {"a": lambda each: each.env, "b": lambda each: each.algorithm, "c": lambda each: f"seed {each.seed}"}
    figure = Figure(figsize=(1.0 + 4.0 * max(1, len(panels)), 3.4), layout="constrained")
    for index, (panel, members) in enumerate(panels.items(), 1):
        axes: Any = figure.add_subplot(1, len(panels), index)
        for each in members:
            scores = [math.nan if score is None else score for score in each.scores]
            axes.plot(range(1, len(scores) + 1), scores, "o-", markersize=3, label=names[panel](each))
        axes.set(xlabel="round", ylabel="boosting score S", ylim=(0, 1), title=f"({panel}) {PANELS[panel]}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Nitro, Figure 4", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
