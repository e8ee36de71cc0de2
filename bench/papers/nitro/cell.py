"""One cell of a comparison: one whole run of one scheme with one seed on one environment, kept as JSON.

Everything that tables and pictures need stands in it, and the processor times from which the run can be put on another
clock. It is written at once when the run has ended, and not at all if it has not.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from replay_server.bench.papers.nitro.scheme import RESERVED, Scheme
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import Platform
from replay_server.serverless.cost import Bill
from replay_server.serverless.job_clock import JobClock, lambda_stage, reserved_stage
from replay_server.serverless.orchestrator import Orchestrator, Progress
from replay_server.serverless.prices import load_prices
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

FORMAT = 1


@dataclass(frozen=True)
class JobSettings:
    """What all cells of a comparison have in common: one profile, one clock, one way of scoring for all sides."""

    algo: Literal["ppo", "impact", "impala"] = "ppo"
    profile: str = "default"
    setting: dict[str, Any] = field(default_factory=dict)
    """Of the algorithm, over its profile."""
    rounds: int = 50
    steps: int = 256
    """Agent steps of one actor function in one round; it has one environment."""
    actors: int = 16
    """Of the scheme fixed, which sets target and budget."""
    actors_max: int = 64
    """I_max."""
    eval_every: int = 2
    """Rounds between two evaluations, by which the target is reached; off the clock and off the bill."""
    eval_episodes: int = 20
    final_episodes: int = 20
    memory_mb: int = 1024
    """Of an actor function on the simulated platform."""
    price_profile: str = "lambda"
    price_column: Literal["paper", "code", "full"] = "full"
    learner: Literal["rllib"] | None = None
    """Whose PPO learns: RLlib's (`replay_server.bench.papers.nitro.rllib`); None = this project's."""


@dataclass(frozen=True)
class CellName:
    """Which cell."""

    env: str
    scheme: Scheme
    seed: int

    def path(self, folder: Path) -> Path:
        """Its file. A stage has none of its own: it is played from what was trained."""
        scheme = re.sub(r"[^A-Za-z0-9=,.:_+-]", "-", self.scheme.trained_name)
        return folder / re.sub(r"[^A-Za-z0-9_.-]", "-", self.env) / scheme / f"seed-{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.env} {self.scheme} seed {self.seed}"


@dataclass(frozen=True)
class Target:
    """What fixed-16 sets before any other scheme runs."""

    score: float
    """J."""
    budget: float
    """B, dollars; infinite where fixed-16's median run never reached J."""


@dataclass(frozen=True)
class Cell:
    """A run as it was, by round; times simulated, in seconds, and dollars so far."""

    env: str
    scheme: str
    seed: int
    counts: tuple[int, ...]
    steps: tuple[int, ...]
    """Agent steps so far."""
    scores: tuple[float | None, ...]
    """Mean of the games that ended in the round."""
    round_s: tuple[float, ...]
    learner_s: tuple[float, ...]
    cost: tuple[float, ...]
    evaluations: tuple[tuple[int, float], ...]
    """(round, mean score); the last one, of fresh games after the last round, is `final`."""
    final: float
    final_scores: tuple[float, ...]
    statistics: tuple[dict[str, float | None], ...]
    actor_cpu_s: tuple[tuple[float, ...], ...]
    learner_cpu_s: tuple[float, ...]
    scaler_state: dict[str, Any]
    wall_s: float
    """Of the real run, evaluations included."""
    format: int = FORMAT

    @property
    def elapsed_s(self) -> list[float]:
        """Simulated seconds so far, by round."""
        total, found = 0.0, []
        for each in self.round_s:
            total += each
            found.append(total)
        return found

    @property
    def actors(self) -> int:
        """Of all rounds together."""
        return sum(self.counts)

    def write(self, path: Path) -> None:
        """All at once: whoever is killed leaves no half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
            json.dump(dataclasses.asdict(self), file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)

    @classmethod
    def read(cls, path: Path) -> Cell:
        """ValueError for a file that is no cell, or of another version's format."""
        try:
            values = json.loads(path.read_text())
            if values["format"] != FORMAT:
                raise ValueError(f"expected format {FORMAT}, got {values['format']}")
            as_tuples: dict[str, Any] = {
                name: tuple(tuple(each) if isinstance(each, list) else each for each in value)
                if isinstance(value, list) else value
                for name, value in values.items()
            }  # fmt: skip
            return cls(**as_tuples)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected a cell of a comparison: {error}; delete it to run it again") from error


def run_cell(
    name: CellName,
    job: JobSettings,
    platform: Platform,
    *,
    target: Target | None = None,
    boosted: Sequence[int] | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> Cell:
    """Trains, evaluates and clocks one cell. `platform` is lent: it stays as it is.

    Raises what `Orchestrator.run` does; ValueError for a scheme whose options or needs are not met.
    """
    began = time.monotonic()
    clock = lambda_clock(job)
    with tempfile.TemporaryDirectory(prefix="replay-cell-") as folder:
        settings = train_settings(name, job, folder)
        whole = settings
        if target is not None:
            budget = target.budget if math.isfinite(target.budget) else None
            whole = dataclasses.replace(settings, target_score=target.score, budget=budget)
        scaler = name.scheme.scaler(whole, boosted)
        run_directory = RunDirectory(Path(folder))
        run_directory.create(settings)
        orchestrator = Orchestrator(
            settings, run_directory, platform=Lent(platform), scaler=scaler, clock=clock, on_progress=on_round
        )
        orchestrator.run()
        records = read_rounds(run_directory.path)
        evaluations = json.loads(run_directory.summary.read_text())["evaluations"]
    final = next(each for each in reversed(evaluations) if each["final"])
    return Cell(
        env=name.env,
        scheme=name.scheme.trained_name,
        seed=name.seed,
        counts=tuple(each.actors for each in records),
        steps=tuple(each.total_steps for each in records),
        scores=tuple(each.score for each in records),
        round_s=tuple(each.round_s for each in records),
        learner_s=tuple(each.learner_s for each in records),
        cost=tuple(each.cost for each in records),
        evaluations=tuple((each["round"], each["score_mean"]) for each in evaluations if not each["final"]),
        final=final["score_mean"],
        final_scores=tuple(final["scores"]),
        statistics=tuple(dict(each.statistics) for each in records),
        actor_cpu_s=tuple(each.actor_cpu_s for each in clock.rounds),
        learner_cpu_s=tuple(each.learner_cpu_s for each in clock.rounds),
        scaler_state=dict(scaler.state()),
        wall_s=time.monotonic() - began,
    )


def train_settings(name: CellName, job: JobSettings, folder: str) -> TrainSettings:
    """Of the engine: one function at a time, since the clock counts processor time and plays them side by side."""
    return TrainSettings(
        env=name.env, algo=job.algo, profile=job.profile, setting=dict(job.setting), seed=name.seed, rounds=job.rounds,
        steps=job.steps, actors=job.actors, actors_max=job.actors_max, concurrency=1, eval_every=job.eval_every,
        eval_episodes=job.eval_episodes, final_episodes=job.final_episodes, checkpoint_every=10**9, logdir=folder,
        timeout_s=600.0, learner_timeout_s=3600.0, price_profile=job.price_profile, price_column=job.price_column,
    )  # fmt: skip


def on_stage(cell: Cell, scheme: Scheme, job: JobSettings) -> Cell:
    """The same training on the scheme's stage: other times and dollars, the same scores. Simulated."""
    if not scheme.stage:
        return cell
    if scheme.stage == RESERVED:
        clock = reserved_clock(max(cell.counts), job.price_column)
    else:
        clock = lambda_clock(dataclasses.replace(job, memory_mb=int(scheme.stage.partition("=")[2])))
    return dataclasses.replace(played_again(cell, clock), scheme=str(scheme))


def reserved_clock(actors: int, column: str) -> JobClock:
    """Of the machines that the bill has for so many actors at a time, their cores and no others."""
    prices = load_prices()
    slots = prices.profile("reserved-vms").machine("actor").slots
    cores = slots * math.ceil(actors / slots)
    return JobClock(reserved_stage(cores), bill=Bill(prices, "reserved-vms", column))


def lambda_clock(job: JobSettings) -> JobClock:
    """Of functions, as all cells are clocked first."""
    return JobClock(lambda_stage(job.memory_mb), bill=Bill(load_prices(), job.price_profile, job.price_column))


def played_again(cell: Cell, clock: JobClock) -> Cell:
    """The same training with the times and dollars that `clock`, a new one, makes of its processor times."""
    played = [clock.play(*each) for each in zip(cell.actor_cpu_s, cell.learner_cpu_s, strict=True)]
    return dataclasses.replace(
        cell,
        round_s=tuple(each.duration_s for each in played),
        learner_s=tuple(each.learner_s for each in played),
        cost=tuple(each.cost for each in played),
    )


class Lent:
    """A platform that outlives a job: the job's backend must not close it."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.name = platform.name
        self.memory_mb = platform.memory_mb
        self.invoke = platform.invoke
        self.prewarm = platform.prewarm

    def close(self) -> None:
        """It stays open for the next job."""
