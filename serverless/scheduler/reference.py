"""A task's target and budget, from jobs with a fixed number of actors: settled before any scheduler plays.

J is 90 % of the median score of fixed-16 after its last round, and B its median cost to J. A job that misses J
counts with what it spent in all, which is less than it would have needed.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay_server.rl.run_directory import write_json
from replay_server.serverless.scalers.fixed import Fixed
from replay_server.serverless.scheduler.decision import Goal, windowed_scores
from replay_server.serverless.scheduler.job import Jobs, PlayedJob

ACTORS = 16
SEEDS = (101, 102, 103, 104, 105)
"""Of the jobs; none of those that schedulers are trained or compared on."""
SHARE = 0.9
"""Of the median score that is the target."""


@dataclass(frozen=True)
class Reference:
    """What was found, and from what."""

    goal: Goal
    scores: tuple[float, ...]
    """After the last round of each job."""
    costs: tuple[float, ...]
    """Dollars of each job until it had the target, or in all."""
    spent: tuple[float, ...]
    """Dollars of each whole job."""
    reached: int
    """Jobs that had it."""

    def save(self, path: Path) -> None:
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Raises ValueError for another file."""
        try:
            values = json.loads(path.read_text())
            goal = Goal(**values.pop("goal"))
            scores, costs, spent = (tuple(map(float, values[name])) for name in ("scores", "costs", "spent"))
            return cls(goal, scores, costs, spent, int(values["reached"]))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: expected a reference of replay-server scheduler: {error!r}") from None


def reference(
    jobs: Jobs, actors: int = ACTORS, seeds: Sequence[int] = SEEDS, say: Callable[[str], None] = print
) -> Reference:
    """Plays a job with each seed to its last round. ValueError where not one of their games ended."""
    played = []
    for number, seed in enumerate(seeds, 1):
        say(f"reference {number}/{len(seeds)}: {actors} actors in every round, seed {seed}")
        played.append(jobs.play(Fixed(actors), seed))
    return settled(played)


def settled(played: Sequence[PlayedJob]) -> Reference:
    """J and B from jobs that were played to their last round."""
    scores = [_last(windowed_scores(job.rounds)) for job in played]
    goal_score = statistics.median(scores)
    # Of a negative score 90 % would be a harder target, not an easier one.
    target = SHARE * goal_score if goal_score >= 0 else goal_score / SHARE
    costs, reached = [], 0
    for job in played:
        hits = [
            record.cost
            for record, score in zip(job.rounds, windowed_scores(job.rounds), strict=True)
            if score is not None and score >= target
        ]
        reached += bool(hits)
        costs.append(hits[0] if hits else job.cost)
    spent = tuple(job.cost for job in played)
    return Reference(Goal(target, statistics.median(costs)), tuple(scores), tuple(costs), spent, reached)


def _last(scores: Sequence[float | None]) -> float:
    if not scores or scores[-1] is None:
        raise ValueError("no game ended in the last five rounds: give the job more rounds (five at least) or steps")
    return scores[-1]
