"""Trains a scheduler: every episode is a whole training job, and then one round of PPO on its decisions.

What has been done stays: after each episode a checkpoint, and a line in episodes.jsonl. A training that was
interrupted, or killed, goes on after its newest checkpoint; the episode that was on its way is played again, with the
same seeds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.serverless.scalers.minions import Minions
from replay_server.serverless.scheduler.decision import Goal, rewards
from replay_server.serverless.scheduler.job import Jobs, PlayedJob, timed
from replay_server.serverless.scheduler.policy import CHECKPOINTS, SchedulerPolicy
from replay_server.whole_file import write_whole

EPISODES = "episodes.jsonl"
"""A training directory's log."""
JOB_SEEDS = 0x5C4ED
"""Mixed into the seeds of episodes, so that none is another purpose's."""


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an episode's job, and of its decisions."""
    return int(np.random.SeedSequence([seed, JOB_SEEDS, episode]).generate_state(1)[0])


def train_scheduler(
    policy: SchedulerPolicy,
    jobs: Jobs,
    goal: Goal,
    episodes: int,
    folder: Path,
    on_episode: Callable[[dict[str, Any]], None] = lambda line: None,
) -> None:
    """Trains `policy` until it has learned from `episodes` jobs in all; goes on after those that it has already.

    `on_episode` is given each line of the log. Raises what a job raises; `policy` is then as it was last saved, unless
    the error came out of its own learning, as the ValueError does for a policy that is no longer finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / EPISODES
    cut(log, policy.episodes)
    for episode in range(policy.episodes + 1, episodes + 1):
        seed = episode_seed(policy.settings.scheduler_seed, episode)
        scaler = Minions(policy, goal, jobs.settings.actors_max, seed)
        played, took = timed(lambda scaler=scaler, seed=seed: jobs.play(scaler, seed, goal))
        found = rewards(played.rounds, goal, played.reached, policy.settings.time_weight)
        statistics = policy.learn(scaler.decisions, found)
        if not math.isfinite(statistics.entropy):  # Before it is saved: what was saved last can be gone on with.
            raise ValueError(f"the scheduler's learning has diverged in episode {episode}: lower its --learning-rate")
        line = {
            "episode": episode,
            "env": jobs.settings.env,
            "seed": seed,
            "return": sum(found),
            "reached": played.within(goal),
            **played.told(),
            "scheduler": {
                name: value if math.isfinite(value) else None for name, value in dataclasses.asdict(statistics).items()
            },
            **took,
        }
        append(log, line)
        policy.save(folder / CHECKPOINTS, {"env": jobs.settings.env, "goal": dataclasses.asdict(goal)})
        on_episode(line)


def told(line: dict[str, Any], episodes: int) -> str:
    """A line of the log, for people."""
    actors = line["actors"]
    outcome = "reached" if line["reached"] else line["ended_by"]
    return (
        f"episode {line['episode']}/{episodes}: return {line['return']:.2f}, {outcome} after {line['rounds']} rounds, "
        f"{line['time_s']:.1f} s and ${line['cost']:.6f} (simulated), {np.mean(actors):.1f} actors a round "
        f"({min(actors)} to {max(actors)}), entropy {line['scheduler']['entropy']:.2f}; took {line['wall_s']:.1f} s"
    )


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    """The log of a training directory. FileNotFoundError where there is none."""
    return [json.loads(line) for line in (folder / EPISODES).read_text().splitlines()]


def append(log: Path, line: dict[str, Any]) -> None:
    """Adds one line, whole, and on the disk when this returns."""
    with open(log, "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def cut(log: Path, episodes: int) -> None:
    """Takes out of the log what is of later episodes, or was not written to its end."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text().splitlines(keepends=True):
        if line.endswith("\n") and json.loads(line)["episode"] <= episodes:
            kept.append(line)
    write_whole(log, "".join(kept))


def played_return(played: PlayedJob, goal: Goal, time_weight: float) -> float:
    """The sum of a job's rewards: what schedulers are compared by, learned or not."""
    return sum(rewards(played.rounds, goal, played.reached, time_weight))
