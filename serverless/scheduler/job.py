"""Whole training jobs as episodes of a scheduler: really learned in this process, timed and billed by the job clock.

Rounds, learning and records are those of `replay-server train`; only the functions run here one after the other
(`replay_server.serverless.backends.in_process`), and times and dollars are those of a simulated platform
(`replay_server.serverless.job_clock`), since a scheduler has to see what a round with 32 actors at a time would take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.in_process import InProcessPlatform
from replay_server.serverless.job_clock import JobClock, lambda_stage
from replay_server.serverless.orchestrator import Clock, Orchestrator, make_bill
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.serverless.scheduler.decision import Goal, best_score
from replay_server.serverless.settings import TrainSettings

TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1",
        "rounds": 20,
        "steps": 32,
        "environments": 4,
        "setting": {"hidden": 64, "learning_rate": 1e-3, "iterations": 6},
    },
    "hopper": {"env": "Hopper-v5", "rounds": 20, "steps": 256, "setting": {"iterations": 10}},
}
"""Jobs that are short enough for a hundred episodes; name → settings of `TrainSettings`."""

ClockOf = Callable[[TrainSettings], Clock]


def job_clock(settings: TrainSettings) -> Clock:
    """A new clock for a job with these settings: AWS Lambda, billed by the settings' prices.

    All instances are warm, as MinionsRL has them: in jobs as short as these the starts of instances would outweigh
    what a scheduler can decide.
    """
    return JobClock(dataclasses.replace(lambda_stage(), warm=settings.actors_max), bill=make_bill(settings))


def cold_job_clock(settings: TrainSettings) -> Clock:
    """The same where no instance is warm before it is first used, and its start is billed."""
    return JobClock(bill=make_bill(settings))


@dataclass(frozen=True)
class PlayedJob:
    """How one whole job went. Seconds and dollars are the clock's."""

    rounds: tuple[RoundRecord, ...]
    ended_by: str
    """target_score, budget or rounds."""

    @property
    def reached(self) -> bool:
        """Whether the target was, whatever it cost."""
        return self.ended_by == "target_score"

    @property
    def time_s(self) -> float:
        return sum(each.round_s for each in self.rounds)

    @property
    def cost(self) -> float:
        return self.rounds[-1].cost

    @property
    def actors(self) -> list[int]:
        return [each.actors for each in self.rounds]

    @property
    def best_score(self) -> float | None:
        """The best of what was held against a target; None where no game ended."""
        return best_score(self.rounds)

    def within(self, goal: Goal) -> bool:
        """Whether the target was reached without spending more than the budget."""
        return self.reached and self.cost <= goal.budget

    def told(self) -> dict[str, Any]:
        """As a line of JSON has it."""
        return {
            "rounds": len(self.rounds),
            "ended_by": self.ended_by,
            "time_s": self.time_s,
            "cost": self.cost,
            "actors": self.actors,
            "scores": [each.score for each in self.rounds],
            "best_score": self.best_score,
        }


class Jobs:
    """Plays jobs of one kind, one after the other, on one server and one platform. Use it as `jobs` makes it."""

    def __init__(self, settings: TrainSettings, server: str, clock_of: ClockOf = job_clock) -> None:
        self.settings = dataclasses.replace(
            settings, server=server, concurrency=1, final_episodes=0, eval_every=0,
            checkpoint_every=settings.rounds + 1, prewarm=0, resume=False, keep=False,
        )  # fmt: skip
        self._clock_of = clock_of
        self._platform = InProcessPlatform()

    def play(self, scaler: Scaler, seed: int, goal: Goal | None = None) -> PlayedJob:
        """Plays a job to its target, its budget or its last round; without a goal to its last round.

        Raises what `Orchestrator.run` raises.
        """
        with tempfile.TemporaryDirectory(prefix="replay-scheduler-") as folder:
            settings = dataclasses.replace(
                self.settings,
                seed=seed,
                job=None,
                logdir=folder,
                target_score=goal.target if goal else None,
                budget=goal.budget if goal else None,
            )
            orchestrator = Orchestrator(
                settings,
                RunDirectory(Path(folder)),
                platform=self._platform,
                scaler=scaler,
                clock=self._clock_of(settings),
            )
            ended_by = orchestrator.run()
            return PlayedJob(tuple(read_rounds(Path(folder))), ended_by)


@contextlib.contextmanager
def jobs(settings: TrainSettings, clock_of: ClockOf = job_clock) -> Iterator[Jobs]:
    """Jobs with these settings, on a server that is there as long as they are."""
    with rs.Server([], host="127.0.0.1", port=0) as server:
        yield Jobs(settings, server.url, clock_of)


def timed(play: Callable[[], PlayedJob]) -> tuple[PlayedJob, dict[str, float]]:
    """A job, and what it really took: seconds on the wall, and of this process's processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    played = play()
    return played, {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}
