"""The command line of `replay-server bench stellaris`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers import stellaris
from replay_server.bench.papers.statistics import interquartile_mean
from replay_server.bench.papers.stellaris.cells import Cell, Cells
from replay_server.bench.papers.stellaris.job import Clock, play, summary
from replay_server.bench.papers.stellaris.methods import BASELINE, METHODS, MINIONS, RECORDED, method
from replay_server.bench.papers.stellaris.simulated_learners import LearnerTimes
from replay_server.bench.papers.stellaris.table import HEADING, tell
from replay_server.learner.algorithms import Settings, make_settings, settings_kind
from replay_server.rl.options import typed_values

SIMULATED = "times, dollars and utilization are simulated; scores are real"


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Returns the exit status: 0; RuntimeError says what was wrong."""
    parser = _parser()
    options = parser.parse_args(argv)
    host = result.machine()
    try:
        found = _scaling(options, say) if options.scaling else _comparison(options, say)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    say(SIMULATED)
    if options.json:
        command = " ".join(["replay-server bench stellaris", *argv])
        content = {"name": "stellaris", "command": command, "machine": host, "settings": vars(options),
                   "note": SIMULATED, **found}  # fmt: skip
        result.write(options.json, content)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench stellaris",
        description=stellaris.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"], metavar="ENV", help="one or several (Hopper-v5)")
    parser.add_argument("--algo", choices=("ppo", "impact"), default="ppo")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the algorithm")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD",
                        help=f"{', '.join(METHODS)} (all), several joined by +, {MINIONS}:policy=DIR")  # fmt: skip
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--actors", type=int, default=16, help="with one environment each (16)")
    parser.add_argument("--steps", type=int, default=256, help="of each actor in a round (256)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=20, help="of the final score (20)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="SEED")
    parser.add_argument("--delays", type=_delay, nargs="+", default=[0], metavar="VERSIONS",
                        help="that every learner's policy is older on purpose, for all methods (0); recorded:DIR as "
                             "the gradients of train --learners async --logdir DIR were")  # fmt: skip
    parser.add_argument("--learning-rates", type=float, nargs="*", default=[], metavar="RATE",
                        help="tried by every method, of which each tells its best")  # fmt: skip
    parser.add_argument("--tuning-seeds", type=int, nargs="*", default=[], metavar="SEED",
                        help="choose the learning rate; --seeds are played with the chosen one alone")  # fmt: skip
    parser.add_argument("--folder", metavar="DIR", help="keeps each job, and goes on with those that are missing")
    parser.add_argument("--scaling", type=int, nargs="*", default=[], metavar="LEARNERS",
                        help="weak scaling: with so many learners, each with --actors / --learners actors")  # fmt: skip
    clock = parser.add_argument_group("simulated times, in seconds")
    for each in dataclasses.fields(LearnerTimes):
        clock.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default)
    clock.add_argument("--agent-step-s", type=float, default=Clock.step_s)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--plot", metavar="FILE.png", help="scores against simulated time and cost, with the first of --delays"
    )
    return parser


def _delay(text: str) -> int | str:
    return text if text.startswith(RECORDED) else int(text)


def _clock(options: argparse.Namespace) -> Clock:
    times = {each.name: getattr(options, each.name) for each in dataclasses.fields(LearnerTimes)}
    return Clock(learner=LearnerTimes(**times), step_s=options.agent_step_s)


def _settings(options: argparse.Namespace, env: str, seed: int, rate: float | None = None) -> Settings:
    words = dict(each.partition("=")[::2] for each in options.setting)
    values = typed_values(settings_kind(options.algo), words) | ({} if rate is None else {"learning_rate": rate})
    return make_settings(options.algo, options.profile, env=env, steps=options.steps, seed=seed, **values)


# ---- methods ---------------------------------------------------------------------------------------------------------


def _comparison(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    names = list(dict.fromkeys([BASELINE, *options.methods]))
    rates: list[float | None] = list(options.learning_rates) or [None]
    sides = [(env, name, delay) for env in options.env for delay in options.delays for name in names]
    cells = Cells(
        lambda env, seed, rate: _settings(options, env, seed, rate), options.learners, options.actors, options.rounds,
        options.episodes, _clock(options), Path(options.folder) if options.folder else None,
    )  # fmt: skip
    tried: list[int] = options.tuning_seeds or options.seeds
    if len(rates) > 1:
        # Seeds come last, so that whatever ends it leaves as many of each method.
        cells.play([Cell(*side, rate, seed) for seed in tried for rate in rates for side in sides], say)
    best = {side: _best(cells, side, rates, tried) for side in sides}
    told = [Cell(*side, best[side], seed) for seed in options.seeds for side in sides]
    cells.play(told, say)
    rows, drawn = [], {}
    for env in options.env:
        say("")
        say(f"{env}, {len(options.seeds)} seeds")
        say(HEADING)
        for delay in options.delays:
            sets = {
                name: [cells.played(Cell(env, name, delay, best[env, name, delay], seed)) for seed in options.seeds]
                for name in names
            }
            drawn.setdefault(env, sets)
            baseline = summary(sets[BASELINE], sets[BASELINE])
            for name, runs in sets.items():
                row = {"env": env, "method": name, "delay": delay, "learning_rate": best[env, name, delay]}
                rows.append(summary(runs, sets[BASELINE]) | row)
                tell(rows[-1], baseline, say)
    if options.plot:
        from replay_server.bench.papers.stellaris.pictures import draw_scores

        draw_scores(drawn, options.plot)
        say(options.plot)
    return {
        "methods": rows,
        "runs": [
            {**dataclasses.asdict(cell), "learning_rate": cell.rate, "final_scores": cells.played(cell).final_scores,
             "rounds": cells.played(cell).rounds} for cell in told
        ],
    }  # fmt: skip


def _best(
    cells: Cells, side: tuple[str, str, int], rates: Sequence[float | None], seeds: Sequence[int]
) -> float | None:
    """Of the learning rates that were tried the one with the best final score, over these seeds."""
    if len(rates) == 1:
        return rates[0]
    return max(rates, key=lambda rate: np.mean([cells.played(Cell(*side, rate, seed)).final for seed in seeds]))


# ---- weak scaling ----------------------------------------------------------------------------------------------------


def _scaling(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """The same share of data for each learner, more learners: gradients a simulated second."""
    rows = []
    share = max(1, options.actors // options.learners)
    for env in options.env:
        say(f"{env}, {len(options.seeds)} seeds")
        say(f"{'method':20} {'learners':>8} {'gradients/s':>12} {'efficiency':>10} {'busy':>5} {'stale':>6}")
        for name in dict.fromkeys([BASELINE, *options.methods]):
            alone: float | None = None
            for learners in options.scaling:
                runs = [
                    play(_settings(options, env, seed), method(name, learners), actors=share * learners,
                         rounds=options.rounds, clock=_clock(options), episodes=1)
                    for seed in options.seeds
                ]  # fmt: skip
                rate = interquartile_mean([run.total("gradients") / run.total("learning_s") for run in runs])
                told = summary(runs, runs)
                alone = rate / learners if alone is None else alone
                row = {"env": env, "method": name, "learners": learners, "gradients_per_s": rate,
                       "efficiency": rate / learners / alone, "utilization": told["utilization"],
                       "staleness": told["staleness"]}  # fmt: skip
                rows.append(row)
                say(f"{name:20} {learners:8} {rate:12.1f} {row['efficiency']:10.2f} {row['utilization']:5.2f} "
                    f"{row['staleness']:6.2f}")  # fmt: skip
    return {"scaling": rows}
