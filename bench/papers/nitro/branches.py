"""A PPO job in one process that can be copied between rounds, so that a round can be played in more than one way.

"We checkpointed and replayed the same learner policy at each boosting round" (Nitro, section 2.2). Its first actors go
on with their episodes from round to round; those that boost a round begin new ones, and end with it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.actors.fragments import FragmentCollector, evaluate_policy, one_thread
from replay_server.bench.learning import given_settings
from replay_server.bench.papers.option_types import at_least, share
from replay_server.learner.algorithms import make_settings
from replay_server.learner.curvature import CurvatureOptions, measure_curvature
from replay_server.learner.ppo import Ppo, PpoSettings
from replay_server.rl.fragments import Fragments, concatenated
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless.scalers.nitro import convexity_ratio

BOOST_SEED = 0xB0057
"""Mixed into the seed of actors that boost, with the round."""


class Job:
    """A job between two rounds."""

    def __init__(self, settings: PpoSettings, actors: int = 1) -> None:
        self.settings = settings
        self.spec = policy_spec(settings)
        self.learner = Ppo(settings, self.spec)
        self.actors = actors
        self._state: bytes | None = None

    @property
    def round(self) -> int:
        """How many have been played."""
        return self.learner.version

    def copy(self) -> Job:
        """The same job, which goes on by itself: the same rounds, bit by bit, unless it is boosted otherwise."""
        other = Job.__new__(Job)
        other.__dict__.update(self.__dict__)
        other.learner = copy.deepcopy(self.learner)
        return other

    def play(self, actors: int | None = None) -> Fragments:
        """One round with so many actors, no fewer than the job has; what was learned from."""
        fragments = self.act(actors)
        self.learn(fragments)
        return fragments

    def learn(self, fragments: Fragments) -> None:
        """The second half of `play`; on one thread, as more only wait for each other where others are at work, too."""
        with one_thread():
            self.learner.update(fragments)

    def act(self, actors: int | None = None) -> Fragments:
        """The first half of `play`: what its actors bring."""
        more = (self.actors if actors is None else actors) - self.actors
        if more < 0:
            raise ValueError(f"expected at least the job's {self.actors} actors, got {actors}")
        parts = [self._own()]
        if more:
            seed = [self.settings.seed, self.round, BOOST_SEED]
            collector = FragmentCollector(self.settings, self.spec, more, seed, self.actors, self.round)
            try:
                parts.append(collector.collect(self.learner.network, self.learner.version).fragments)
            finally:
                collector.close()
        return concatenated(parts)

    def ratio(self, fragments: Fragments, options: CurvatureOptions) -> float | None:
        """R of the policy as it is; None where it is not defined."""
        with one_thread():
            found = measure_curvature(self.learner, fragments, options)
        return convexity_ratio(found["curvature_max"], found["curvature_min"])

    def score(self, episodes: int) -> float:
        """Mean of `scores`."""
        return float(np.mean(self.scores(episodes)))

    def scores(self, episodes: int) -> list[float]:
        """Of so many fresh episodes, the same games for all copies of a job after as many rounds."""
        seed = int(np.random.SeedSequence([self.settings.seed, self.round]).generate_state(1)[0])
        return evaluate_policy(self.learner.network, self.settings, self.spec, episodes, seed)

    def _own(self) -> Fragments:
        seed = [self.settings.seed, 0]
        collector = FragmentCollector(self.settings, self.spec, self.actors, seed, state=self._state, stateful=True)
        try:
            fragments = collector.collect(self.learner.network, self.learner.version).fragments
            self._state = collector.state()
        finally:
            collector.close()
        return fragments


@dataclass(frozen=True)
class Played:
    """A job after a round, what it learned from in it, and R as it then was."""

    job: Job
    fragments: Fragments
    ratio: float | None


def rounds_of(job: Job, rounds: int, options: CurvatureOptions) -> list[Played]:
    """The job after each of so many rounds, copies that stay as they were."""
    found = []
    for _ in range(rounds):
        fragments = job.play()
        found.append(Played(job.copy(), fragments, job.ratio(fragments, options)))
    return found


def lowest_median_highest(played: list[Played]) -> dict[str, Played]:
    """Three rounds by their R. RuntimeError where fewer than three have one."""
    ranked = sorted((each for each in played if each.ratio is not None), key=lambda each: each.ratio or 0.0)
    if len(ranked) < 3:
        raise RuntimeError(f"expected at least 3 rounds with a ratio R, got {len(ranked)}: play more rounds")
    return {"lowest": ranked[0], "median": ranked[len(ranked) // 2], "highest": ranked[-1]}


# ---- what the figures' commands share --------------------------------------------------------------------------------


def job_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Those of a job in this process, and where its cells are kept."""
    parser.add_argument("--folder", required=True, metavar="DIR", help="finished cells are kept there and never rerun")
    parser.add_argument("--env", default="Hopper-v5", help="gymnasium id (Hopper-v5)")
    parser.add_argument("--profile", default="default", help="of PPO's settings (default)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    parser.add_argument("--steps", type=at_least(1), default=256, help="of one actor in a round (256)")
    parser.add_argument("--rounds", type=at_least(1), default=rounds, help=f"of the job that is boosted ({rounds})")
    parser.add_argument("--actors", type=at_least(1), default=1, help="of a round that is not (1)")
    parser.add_argument("--subset", type=share, default=1.0, help="share of the samples that R is taken of (1)")
    parser.add_argument("--json", metavar="FILE", help="write what was found there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw it")


def check_boosts(options: argparse.Namespace, *boosts: int) -> None:
    """ValueError for a boosted round of fewer actors than the job has: those that it has go on with their episodes."""
    if min(boosts) < options.actors:
        raise ValueError(f"expected boosts of at least the job's {options.actors} actors, got {min(boosts)}")


def job_of(options: argparse.Namespace, seed: int) -> Job:
    """The job of these options, at its start. RuntimeError for settings that there are not."""
    try:
        given = given_settings(options.set)
        settings = make_settings("ppo", options.profile, env=options.env, steps=options.steps, seed=seed, **given)
    except (ValueError, TypeError) as error:  # TypeError: a setting that has an option of its own
        raise RuntimeError(f"--profile, --set: {error}") from None
    assert isinstance(settings, PpoSettings)
    return Job(settings, options.actors)


def curvature_of(options: argparse.Namespace) -> CurvatureOptions:
    """How R is measured."""
    return CurvatureOptions(subset=options.subset)


def kept(path: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a finished cell holds, or what `make` returns, which is then kept: whole, or not at all.

    RuntimeError where the file is of other settings.
    """
    if path.exists():
        try:
            cell = json.loads(path.read_text())
            _ = cell["settings"]
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"{path} is damaged ({error!r}): delete it to play it again") from None
        if cell["settings"] != json.loads(json.dumps(settings)):
            raise RuntimeError(f"{path} is of other settings ({cell['settings']}): take another --folder")
        return cell
    cell = {"settings": settings, **make()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(cell) + "\n")
    partial.replace(path)
    return cell


def settings_of(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Of a cell: the job's options and these."""
    always = ("env", "profile", "set", "steps", "rounds", "actors", "subset")
    return {name: getattr(options, name) for name in (*always, *names)}
