"""`replay-server bench replayed`: rounds with up to 1,000 functions at a time, on the replayed clock.

Every function of a real job is played again where each instance has its share of a processor. What is told of that is
SIMULATED: time and cost of a round, their spread, and the learner's share, which no number of actors shortens.
`--learner-speed` takes several factors (1 = this machine's processor): a band, where the learner's machine is not here.

--validate plays the same job for real with 1, 2 and 4 worker processes, and holds each round against what the clock
makes of another run, of one process: the same seed gives the same trajectories, so that a round has the same work.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.load import ONE_THREAD
from replay_server.bench.papers.nitro.replayed_clock import (
    Estimate,
    Measurements,
    estimate,
    real_durations_s,
    relative_errors,
    replay,
)
from replay_server.bench.pictures import add_price_options, bill_of
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.simulated_round import Host, Stage, cpu_share

JOB_S = 1800
"""The longest that a real job may take."""


def run_job(options: argparse.Namespace, processes: int, folder: Path, scaler: str = "fixed") -> list[Invocation]:
    """A real job through `replay-server train` with so many worker processes; its invocations.

    A round has ``options.job_actors`` actors, at most so many where `scaler` is another one than fixed.

    RuntimeError with the end of what it said where it failed.
    """
    arguments = ["train", "--env", options.env, "--algo", options.algo, "--rounds", options.rounds]
    arguments += ["--scaler", scaler, "--actors", options.job_actors, "--actors-max", options.job_actors]
    arguments += ["--steps", options.steps, "--environments", options.environments]
    arguments += ["--concurrency", processes, "--seed", options.seed, "--final-episodes", 0, "--logdir", folder]
    arguments += ["--dashboard", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "replay_server", *map(str, arguments)],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=JOB_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"replay-server train failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return read_invocations(folder)


# ---- validation ------------------------------------------------------------------------------------------------------


def validate(options: argparse.Namespace, folder: Path, say: Callable[[str], None] = print) -> list[dict[str, float]]:
    """For each round real and simulated seconds, and the error, for each number of processes.

    `repeat_error` is what one real run is off another, both with one process: no clock can tell single rounds better.
    """
    source = list(run_job(options, 1, folder / "source"))
    measurements = Measurements.of(source)
    source_s = list(real_durations_s(source).values())
    rows: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    for processes in options.processes:
        real_s = list(real_durations_s(run_job(options, processes, folder / f"processes-{processes}")).values())
        simulated_s = simulated_durations_s(measurements, options, processes)
        errors = relative_errors(real_s, simulated_s)
        for row, real, simulated, error in zip(rows, real_s, simulated_s, errors, strict=True):
            row[f"processes={processes}.real_s"] = real
            row[f"processes={processes}.simulated_s"] = simulated
            row[f"processes={processes}.error"] = error
        took, simulated = statistics.median(real_s), statistics.median(simulated_s)
        say(
            f"{processes} processes: a round took {took:.3f} s (median), simulated {simulated:.3f} s: off by "
            f"{abs(simulated - took) / took:.1%}; single rounds off by {statistics.median(errors):.1%} (median), "
            f"{max(errors):.1%} (most)"
        )
        if processes == 1:
            repeats = relative_errors(real_s, source_s)
            for row, error in zip(rows, repeats, strict=True):
                row["processes=1.repeat_error"] = error
            say(f"the same job, really run twice: single rounds off by {statistics.median(repeats):.1%} (median)")
    return rows


def simulated_durations_s(measurements: Measurements, options: argparse.Namespace, processes: int) -> list[float]:
    """Each round's median over the repetitions, on this machine's cores."""
    stage = Stage(Host(processes, cores=len(os.sched_getaffinity(0))))
    profile = bill_of(options).prices.profile("lambda" if options.prices is None else options.price_profile)
    plays = [
        replay(measurements, [options.job_actors] * options.rounds, stage, profile, options.seed + repetition)
        for repetition in range(options.repetitions)
    ]
    return [statistics.median(each.duration_s for each in same) for same in zip(*plays, strict=True)]


# ---- estimates -------------------------------------------------------------------------------------------------------


def estimates(
    options: argparse.Namespace, measurements: Measurements, say: Callable[[str], None] = print
) -> dict[str, Estimate]:
    """Name, actors and the learner's factor → what rounds would take and cost."""
    found = {}
    bill = bill_of(options)
    say("SIMULATED      actors  learner   round, s (5 % to 95 %)      C_k, $ (5 % to 95 %)           learner's share")
    for speed in options.learner_speed:
        for actors in options.actors:
            stage = Stage(
                Host(options.concurrency or actors, cpu_share(options.memory_mb)),
                memory_mb=options.memory_mb,
                learner_memory_mb=options.learner_memory_mb,
                learner_speed=speed,
                warm=options.warm,
                cold_wait_s=options.cold_wait_s,
            )
            one = estimate(measurements, actors, stage, bill, options.rounds, options.repetitions, options.seed)
            found[f"actors={actors}.learner={speed:g}x"] = one
            took, cost = one.duration_s, one.cost
            say(
                f"{'':14} {actors:6} {speed:6g}x {took.median:9.3f} ({took.low:.3f} to {took.high:.3f})"
                f"   {cost.median:.7f} ({cost.low:.7f} to {cost.high:.7f})   {one.learner_share.median:6.1%}"
            )
    return found


def measured_here(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> Measurements:
    """From a file, from a run's log, or from a job of its own; with the server's times under real connections."""
    if options.measurements:
        return Measurements.load(Path(options.measurements))
    if options.run:
        invocations = read_invocations(options.run)
    else:
        say(f"a real job: {options.env}, {options.job_actors} actors, {options.rounds} rounds, 1 process")
        invocations = run_job(options, 1, folder / "job")
    fetch_s, ingest_s = {}, {}
    if options.connections != [0]:
        from replay_server.bench.papers.nitro.many_connections import measure
        from replay_server.learner.algorithms import make_settings

        settings = make_settings(options.algo, "default", env=options.env, steps=options.steps)
        fetch_s, ingest_s = measure(settings, options.environments, options.connections, folder, say=say)
    return Measurements.of(invocations, fetch_s, ingest_s)


def draw(found: dict[str, Estimate], speeds: Sequence[float], title: str, path: str) -> None:
    """Writes a PNG: time, cost and the learner's share of a round against the number of actors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    figure.suptitle(f"SIMULATED by the replayed clock: {title}", fontsize=10)
    panels = figure.subplots(1, 3)
    for index, speed in enumerate(speeds):
        mine = [one for name, one in found.items() if name.endswith(f"learner={speed:g}x")]
        actors = [one.actors for one in mine]
        for axes, what in zip(panels, ("duration_s", "cost", "learner_share"), strict=True):
            spreads = [getattr(one, what) for one in mine]
            axes.fill_between(
                actors, [each.low for each in spreads], [each.high for each in spreads], color=f"C{index}", alpha=0.2
            )
            medians = [each.median for each in spreads]
            axes.plot(actors, medians, "o-", color=f"C{index}", markersize=3, label=f"learner {speed:g}×")
    for axes, label in zip(panels, ("a round, s", "C_k of a round, $", "learner's share of a round"), strict=True):
        axes.set_xscale("log")
        axes.set_xlabel("actors at a time")
        axes.set_title(label, fontsize=9)
        axes.grid(alpha=0.3)
    for axes in panels[:2]:
        axes.set_yscale("log")
    panels[2].set_ylim(0, 1)
    panels[0].legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def job_options(parser: argparse.ArgumentParser) -> None:
    """Of the job that is really run."""
    job = parser.add_argument_group("the real job")
    job.add_argument("--run", metavar="DIR", help="run directory to take; else a job is run")
    job.add_argument("--measurements", metavar="FILE", help="those that --save-measurements wrote")
    job.add_argument("--save-measurements", metavar="FILE", help="write them there")
    job.add_argument("--env", default="Hopper-v5", help="gymnasium id (Hopper-v5)")
    job.add_argument("--algo", choices=("ppo",), default="ppo", help="synchronous rounds (ppo)")
    job.add_argument("--job-actors", type=int, default=8, help="of each of its rounds (8)")
    job.add_argument("--steps", type=int, default=256, help="of each environment in a round (256)")
    job.add_argument("--environments", type=int, default=1, help="of each actor (1)")
    job.add_argument("--rounds", type=int, default=20, help="real ones, and simulated ones of each play (20)")
    job.add_argument("--seed", type=int, default=1)


def stage_options(parser: argparse.ArgumentParser) -> None:
    """Of the platform that it is played on."""
    stage = parser.add_argument_group("the simulated platform")
    stage.add_argument("--actors", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512, 1000], help="of a round")
    stage.add_argument("--concurrency", type=int, default=0, help="functions at a time (0 = as many as actors)")
    stage.add_argument("--memory-mb", type=int, default=1024, help="of an actor function (1024: 0.58 vCPU)")
    stage.add_argument(
        "--learner-memory-mb", type=int, default=1769, help="of a learner function, for its price (1769)"
    )
    stage.add_argument(
        "--learner-speed", type=float, nargs="+", default=[1.0], help="1 = this processor; several: a band"
    )
    stage.add_argument("--warm", type=int, default=0, help="instances that are there at the start (0)")
    stage.add_argument("--cold-wait-s", type=float, default=0.0, help="of a cold start before its process begins (0)")
    stage.add_argument(
        "--connections", type=int, nargs="+", default=[1, 8, 64, 256, 1000], help="real ones to the server; 0 = none"
    )
    stage.add_argument("--repetitions", type=int, default=20, help="plays, each with its own seed (20)")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench replayed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--validate", action="store_true", help="hold simulated rounds against real ones")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="of --validate (1 2 4)")
    job_options(parser)
    stage_options(parser)
    add_price_options(parser)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE.png", help="against the number of actors")
    return parser


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    command = " ".join(["replay-server bench replayed", *argv])
    extra: dict[str, Any] = {}
    if options.validate:
        rows = validate(options, Path(folder), say)
    else:
        measurements = measured_here(options, Path(folder), say)
        if options.save_measurements:
            measurements.save(Path(options.save_measurements))
        found = estimates(options, measurements, say)
        rows = [{f"{name}.round_s": one.duration_s.median for name, one in found.items()}]
        extra = {"simulated": {name: dataclasses.asdict(one) for name, one in found.items()}}
        if options.plot:
            title = f"{options.env}, {options.memory_mb} MB, {options.price_profile}"
            draw(found, options.learner_speed, title, options.plot)
    if options.json:
        result.write(options.json, {**result.document("replayed", command, host, vars(options), rows, {}), **extra})
    return 0
