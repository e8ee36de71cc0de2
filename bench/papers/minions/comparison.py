"""Schedulers on the same jobs: cells (one scheduler, one seed, one whole job), and what they come to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.bench.learning import mean_interval
from replay_server.rl.run_directory import write_json
from replay_server.serverless.scalers.fixed import Fixed
from replay_server.serverless.scalers.minions import Minions
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.serverless.scalers.uniform import Uniform
from replay_server.serverless.scheduler.decision import Goal
from replay_server.serverless.scheduler.job import Jobs, cold_job_clock, job_clock, jobs, timed
from replay_server.serverless.scheduler.policy import SchedulerSettings, load_policy
from replay_server.serverless.scheduler.reference import Reference
from replay_server.serverless.scheduler.training import played_return, read_episodes
from replay_server.serverless.settings import TrainSettings

JOBS_SHARED = (1, 10, 100)
"""Jobs that the training of a scheduler is spread over."""


@dataclass(frozen=True)
class Comparison:
    """What all cells have in common."""

    job: TrainSettings
    goal: Goal
    folder: Path
    seeds: tuple[int, ...]
    cold_starts: bool = False

    def path(self, scheduler: str, seed: int) -> Path:
        """Of a cell: its name has the job and the goal in it, so that another comparison has other cells."""
        told = json.dumps(
            [dataclasses.asdict(self.job), dataclasses.asdict(self.goal), self.cold_starts], sort_keys=True
        )
        job = hashlib.sha256(told.encode()).hexdigest()[:12]
        return self.folder / f"{_file_name(scheduler)}.seed={seed}.{job}.json"

    def cell(self, scheduler: str, seed: int) -> dict[str, Any] | None:
        """One that was played; None = not yet."""
        path = self.path(scheduler, seed)
        try:
            return json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): delete it to play the job again") from None

    def cells(self, scheduler: str) -> list[dict[str, Any]]:
        """Those of a scheduler, in the order of the seeds; KeyError where one was not played."""
        found = [self.cell(scheduler, seed) for seed in self.seeds]
        if missing := [seed for seed, each in zip(self.seeds, found, strict=True) if each is None]:
            raise KeyError(f"{scheduler}: seeds {missing} were not played")
        return [each for each in found if each is not None]


def scheduler_named(training: Path, greedy: bool) -> str:
    """The name of a policy among schedulers, as it is now: one that has learned more has another name."""
    policy, _ = load_policy(training)
    return f"learned:{training}:{policy.episodes}{':greedy' if greedy else ''}"


def make_scheduler(name: str, comparison: Comparison, seed: int) -> Scaler:
    """learned:DIR:EPISODES[:greedy], random, fixed-N. ValueError for others, and for a policy that has changed."""
    most = comparison.job.actors_max
    if name == "random":
        return Uniform(most, seed)
    if name.startswith("fixed-"):
        return Fixed(int(name.removeprefix("fixed-")))
    if not name.startswith("learned:"):
        raise ValueError(f"unknown scheduler {name!r}: expected learned:DIR:EPISODES, random or fixed-N")
    whole = name.removesuffix(":greedy")
    folder, _, episodes = whole.removeprefix("learned:").rpartition(":")
    policy, _ = load_policy(Path(folder))
    if policy.episodes != int(episodes):
        raise ValueError(f"{folder} has learned from {policy.episodes} episodes by now, {episodes} are to be compared")
    return Minions(policy, comparison.goal, most, seed, greedy=whole != name)


def compare(comparison: Comparison, schedulers: Sequence[str], say: Callable[[str], None] = print) -> dict[str, Any]:
    """Plays what was not played yet, and says what all of it comes to. Raises ValueError for counts above the job's."""
    for name in schedulers:
        if name.startswith("fixed-") and not 1 <= int(name.removeprefix("fixed-")) <= comparison.job.actors_max:
            raise ValueError(f"{name}: expected 1 to {comparison.job.actors_max} actors, as the task has them")
    _play(comparison, schedulers, say)
    rows = {name: _row(comparison.cells(name)) for name in schedulers}
    fixed = [name for name in schedulers if name.startswith("fixed-")]
    best = max(fixed, key=lambda name: rows[name]["return"]) if fixed else None
    others = [name for name in schedulers if name in ("random", best)]
    differences = {
        name: {other: _difference(comparison, name, other) for other in others}
        for name in schedulers
        if name.startswith("learned:")
    }
    training = {name: _training_cost(name, rows[name]) for name in differences}
    content = {
        "env": comparison.job.env,
        "goal": dataclasses.asdict(comparison.goal),
        "seeds": list(comparison.seeds),
        "best_fixed": best,
        "schedulers": rows,
        "differences": differences,
        "training": training,
    }
    return {**content, "table": _table(content)}


def _play(comparison: Comparison, schedulers: Sequence[str], say: Callable[[str], None]) -> None:
    missing = [(seed, name) for seed in comparison.seeds for name in schedulers if comparison.cell(name, seed) is None]
    if not missing:
        return
    comparison.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with jobs(comparison.job, cold_job_clock if comparison.cold_starts else job_clock) as played:
        for number, (seed, name) in enumerate(missing, 1):
            _play_cell(comparison, played, name, seed)
            left_s = (time.perf_counter() - began) / number * (len(missing) - number)
            say(f"{number}/{len(missing)} {name}, seed {seed}; about {left_s / 60:.1f} minutes left")


def _play_cell(comparison: Comparison, played: Jobs, name: str, seed: int) -> None:
    scaler = make_scheduler(name, comparison, seed)
    job, took = timed(lambda: played.play(scaler, seed, comparison.goal))
    cell = {
        "scheduler": name,
        "seed": seed,
        "return": played_return(job, comparison.goal, SchedulerSettings().time_weight),
        "reached": job.within(comparison.goal),
        **job.told(),
        **took,
    }
    write_json(comparison.path(name, seed), cell)


def _row(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds. Times and dollars are of jobs as they ended, whether they had reached the target or not."""
    reached = [each for each in cells if each["reached"]]
    actors = [statistics.fmean(each["actors"]) for each in cells]
    return {
        "return": statistics.fmean(each["return"] for each in cells),
        "reached": len(reached) / len(cells),
        "time_s": statistics.fmean(each["time_s"] for each in cells),
        "cost": statistics.fmean(each["cost"] for each in cells),
        "time_s_reached": statistics.fmean(each["time_s"] for each in reached) if reached else None,
        "cost_reached": statistics.fmean(each["cost"] for each in reached) if reached else None,
        "actors": statistics.fmean(actors),
        "returns": [each["return"] for each in cells],
    }


def _difference(comparison: Comparison, ours: str, theirs: str) -> dict[str, float]:
    """Mean of the returns' differences, seeds paired, with its 95 % bootstrap interval."""
    pairs = zip(comparison.cells(ours), comparison.cells(theirs), strict=True)
    values = [our["return"] - their["return"] for our, their in pairs]
    return mean_interval(values)


def _training_cost(name: str, row: dict[str, Any]) -> dict[str, float]:
    """Simulated dollars of a job with its share of what the scheduler's training cost."""
    folder = Path(name.removeprefix("learned:").removesuffix(":greedy").rpartition(":")[0])
    spent = sum(each["cost"] for each in read_episodes(folder))
    if (path := folder / "reference.json").exists():
        spent += sum(Reference.load(path).spent)
    return {"training": spent} | {f"over_{count}": row["cost"] + spent / count for count in JOBS_SHARED}


def _table(content: dict[str, Any]) -> list[str]:
    goal = content["goal"]
    lines = [
        f"{content['env']}: J = {goal['target']:.1f} for at most ${goal['budget']:.6f}; {len(content['seeds'])} seeds; "
        "times and dollars are simulated",
        f"{'scheduler':36} {'return':>9} {'reached':>8} {'time s':>8} {'dollars':>10} {'actors':>7}",
    ]
    for name, row in content["schedulers"].items():
        mark = " <- best fixed" if name == content["best_fixed"] else ""
        lines.append(
            f"{name[-36:]:36} {row['return']:9.2f} {row['reached']:8.0%} {row['time_s']:8.2f} {row['cost']:10.6f} "
            f"{row['actors']:7.1f}{mark}"
        )
    for name, others in content["differences"].items():
        for other, found in others.items():
            lines.append(f"{name} − {other}: {found['mean']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f}, 95 %)")
        shares = content["training"][name]
        told = ", ".join(f"${shares[f'over_{count}']:.6f} over {count}" for count in JOBS_SHARED)
        lines.append(f"{name}: training cost ${shares['training']:.6f}; a job with its share of it {told} jobs")
    return lines


def _file_name(scheduler: str) -> str:
    readable = "".join(each if each.isalnum() or each in "-_" else "_" for each in scheduler)[-60:]
    if readable == scheduler:
        return readable
    return f"{readable}-{hashlib.sha256(scheduler.encode()).hexdigest()[:8]}"
