"""Actors of a simulated job: always as many, or as many as a scheduler of MinionsRL says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from replay_server.actors.fragments import FragmentCollector, Rollout
from replay_server.bench.papers.stellaris.methods import Method
from replay_server.learner.algorithms import Settings
from replay_server.rl.policy_networks import ActorCritic
from replay_server.rl.policy_spec import PolicySpec
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.minions import Minions
from replay_server.serverless.scheduler.decision import Goal
from replay_server.serverless.scheduler.policy import load_policy


class Crew:
    """The actors of one job, with one environment each.

    Args:
        actors: that a round has where no scheduler decides.
    """

    def __init__(self, settings: Settings, spec: PolicySpec, method: Method, actors: int) -> None:
        self._settings, self._spec = settings, spec
        self._scheduler = None if method.scheduler is None else scheduler(method.scheduler, settings.seed)
        self._collectors: list[FragmentCollector] = []
        if self._scheduler is None:
            self._collectors = [FragmentCollector(settings, spec, actors, [settings.seed, 0])]

    def collect(self, network: ActorCritic, version: int, most_steps: int, before: RoundRecord | None) -> Rollout:
        """One round's fragments: of no more agent steps than `most_steps`, rounded up to a whole fragment."""
        if self._scheduler is None:
            return self._collectors[0].collect(network, version)
        count = min(self._scheduler.actors(before), -(-most_steps // self._settings.steps))
        while len(self._collectors) < count:
            number = len(self._collectors)
            self._collectors.append(
                FragmentCollector(
                    self._settings, self._spec, 1, [self._settings.seed, number], first_environment=number
                )
            )
        played = [each.collect(network, version) for each in self._collectors[:count]]
        return Rollout(
            {name: np.concatenate([each.fragments[name] for each in played]) for name in played[0].fragments},
            [score for each in played for score in each.scores],
            sum(each.steps for each in played),
        )

    def close(self) -> None:
        for each in self._collectors:
            each.close()


def scheduler(training: Path, seed: int) -> Minions:
    """The policy of `replay-server scheduler train --logdir`, and the goal that it was trained for.

    FileNotFoundError where there is none.
    """
    policy, _ = load_policy(training)
    goal = json.loads((training / "config.json").read_text())["goal"]
    if goal is None:
        goal = json.loads((training / "reference.json").read_text())["goal"]
    return Minions(policy, Goal(**goal), policy.settings.actors_most, seed)


def scheduler_name(training: Path) -> str:
    """One that has learned more has another name."""
    return f"{training}:{load_policy(training)[0].episodes}"
