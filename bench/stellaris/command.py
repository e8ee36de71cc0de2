"""The command line of ``replay-server bench stellaris``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replay_server.bench import result, stellaris
from replay_server.bench.scalers.statistics import interquartile_mean, paired_interval, stratified_interval
from replay_server.bench.stellaris.job import Clock, Played, play, summary
from replay_server.bench.stellaris.methods import BASELINE, METHODS, method
from replay_server.learner.algorithms import Settings, make_settings, settings_kind
from replay_server.rl.options import typed_values
from replay_server.serverless.simulated_learners import LearnerTimes

SIMULATED = "times, dollars and utilization are simulated; scores are real"


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Returns the exit status: 0; RuntimeError says what was wrong."""
    parser = _parser()
    options = parser.parse_args(argv)
    host = result.machine()
    try:
        found = _scaling(options, say) if options.scaling else _comparison(options, say)
    except ValueError as error:
        parser.error(str(error))
    say(SIMULATED)
    if options.json:
        command = " ".join(["replay-server bench stellaris", *argv])
        content = {"name": "stellaris", "command": command, "machine": host, "settings": vars(options),
                   "note": SIMULATED, **found}  # fmt: skip
        result.write(options.json, content)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "replay-server bench stellaris",
        description=stellaris.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--algo", choices=("ppo", "impact"), default="ppo")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the algorithm")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--actors", type=int, default=16, help="with one environment each (16)")
    parser.add_argument("--steps", type=int, default=256, help="of each actor in a round (256)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=20, help="of the final score (20)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="SEED")
    parser.add_argument("--delays", type=int, nargs="+", default=[0], metavar="VERSIONS",
                        help="that every learner's policy is older on purpose, for all methods (0)")  # fmt: skip
    parser.add_argument("--learning-rates", type=float, nargs="*", default=[], metavar="RATE",
                        help="tried by every method, of which each tells its best")  # fmt: skip
    parser.add_argument("--scaling", type=int, nargs="*", default=[], metavar="LEARNERS",
                        help="weak scaling: with so many learners, each with --actors / --learners actors")  # fmt: skip
    clock = parser.add_argument_group("simulated times, in seconds")
    for each in dataclasses.fields(LearnerTimes):
        clock.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default)
    clock.add_argument("--agent-step-s", type=float, default=Clock.step_s)
    parser.add_argument("--json", metavar="FILE")
    return parser


def _clock(options: argparse.Namespace) -> Clock:
    times = {each.name: getattr(options, each.name) for each in dataclasses.fields(LearnerTimes)}
    return Clock(learner=LearnerTimes(**times), step_s=options.agent_step_s)


def _settings(options: argparse.Namespace, seed: int, **given: Any) -> Settings:
    words = dict(each.partition("=")[::2] for each in options.setting)
    values = typed_values(settings_kind(options.algo), words) | given
    return make_settings(options.algo, options.profile, env=options.env, steps=options.steps, seed=seed, **values)


# ---- methods ---------------------------------------------------------------------------------------------------------


def _comparison(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    names = list(dict.fromkeys([BASELINE, *options.methods]))
    rates: list[float | None] = list(options.learning_rates) or [None]
    played: dict[tuple[str, int, float | None], list[Played]] = {}
    delays: list[int] = options.delays
    for name, delay, rate in [(name, delay, rate) for name in names for delay in delays for rate in rates]:
        given = {} if rate is None else {"learning_rate": rate}
        runs = played[name, delay, rate] = []
        for seed in options.seeds:
            runs.append(
                play(_settings(options, seed, **given), method(name, options.learners, delay), actors=options.actors,
                     rounds=options.rounds, clock=_clock(options), episodes=options.episodes)
            )  # fmt: skip
            say(f"{name} delay {delay} {'' if rate is None else f'learning rate {rate:g} '}seed {seed}: "
                f"{runs[-1].final:.1f} after {runs[-1].rounds[-1]['time_s']:.1f} s")  # fmt: skip
    rows = []
    say("")
    say(f"{'method':14} {'delay':>5} {'final score':>27} {'- synchronous':>24} {'at equal time':>24} {'time':>6} "
        f"{'cost':>6} {'stale':>6} {'cut':>5} {'busy':>5} {'KL':>8}")  # fmt: skip
    for delay in delays:
        baseline = _best(played, BASELINE, delay, rates)
        for name in names:
            best = _best(played, name, delay, rates)
            told = summary(played[best], played[baseline]) | {"method": name, "delay": delay, "learning_rate": best[2]}
            rows.append(told)
            _tell(told, summary(played[baseline], played[baseline]), say)
    return {
        "methods": rows,
        "runs": [
            {"method": name, "delay": delay, "learning_rate": rate, "seed": seed, "final_scores": run.final_scores,
             "rounds": run.rounds}
            for (name, delay, rate), runs in played.items() for seed, run in zip(options.seeds, runs, strict=True)
        ],
    }  # fmt: skip


def _best(
    played: dict[tuple[str, int, float | None], list[Played]], name: str, delay: int, rates: Sequence[float | None]
) -> tuple[str, int, float | None]:
    """Of the learning rates that were tried the one with the best final score."""
    return max(((name, delay, rate) for rate in rates), key=lambda each: np.mean([run.final for run in played[each]]))


def _tell(told: dict[str, Any], baseline: dict[str, Any], say: Callable[[str], None]) -> None:
    """A line: scores with 95 % intervals over seeds (paired for differences), times and cost as ratios."""
    score = stratified_interval([told["final"]])
    apart = paired_interval(told["final"], baseline["final"])
    equal = [pair for pair in zip(told["at_equal_time"], told["baseline_at_equal_time"], strict=True)
             if not np.isnan(pair).any()]  # fmt: skip
    sooner = paired_interval(*zip(*equal, strict=True)) if equal else None
    equally = f"{sooner.value:+8.1f} ({sooner.low:+.0f} to {sooner.high:+.0f})" if sooner is not None else "-"
    say(
        f"{told['method']:14} {told['delay']:5} {score.value:9.1f} ({score.low:.0f} to {score.high:.0f}) "
        f"{apart.value:+9.1f} ({apart.low:+.0f} to {apart.high:+.0f}) {equally:>24} "
        f"{told['time_s'] / baseline['time_s']:6.2f} {told['cost'] / baseline['cost']:6.2f} {told['staleness']:6.2f} "
        f"{told['truncated_fraction']:5.2f} {told['utilization']:5.2f} {told['kl']:8.5f}"
    )


# ---- weak scaling ----------------------------------------------------------------------------------------------------


def _scaling(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """The same share of data for each learner, more learners: gradients a simulated second."""
    rows = []
    share = max(1, options.actors // options.learners)
    say(f"{'method':14} {'learners':>8} {'gradients/s':>12} {'efficiency':>10} {'busy':>5} {'stale':>6}")
    for name in dict.fromkeys([BASELINE, *options.methods]):
        alone: float | None = None
        for learners in options.scaling:
            runs = [
                play(_settings(options, seed), method(name, learners), actors=share * learners, rounds=options.rounds,
                     clock=_clock(options), episodes=1)
                for seed in options.seeds
            ]  # fmt: skip
            rate = interquartile_mean([run.total("gradients") / run.total("learning_s") for run in runs])
            told = summary(runs, runs)
            alone = rate / learners if alone is None else alone
            row = {"method": name, "learners": learners, "gradients_per_s": rate, "efficiency": rate / learners / alone,
                   "utilization": told["utilization"], "staleness": told["staleness"]}  # fmt: skip
            rows.append(row)
            say(f"{name:14} {learners:8} {rate:12.1f} {row['efficiency']:10.2f} {row['utilization']:5.2f} "
                f"{row['staleness']:6.2f}")  # fmt: skip
    return {"scaling": rows}
