"""Trains a policy in this process: acting and learning in turns, experience through the same tables as on a server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import replay_server as rs
from replay_server.actors.fragments import FragmentCollector, Rollout, evaluate_policy
from replay_server.learner import impact, impala, ppo
from replay_server.learner.algorithms import Learner, Settings, make_learner
from replay_server.learner.circular_buffer import CircularBufferSettings, circular_buffer
from replay_server.rl.fragments import fragment_table
from replay_server.rl.policy_spec import PolicySpec, policy_spec

Statistics = ppo.Statistics | impact.Statistics | impala.Statistics


@dataclass
class Trained:
    """How one run went."""

    scores: list[float]
    """Of the fresh games at the end, played by the stochastic policy."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """One entry a round: steps so far, games that ended in it and their mean score, and the learner's statistics."""
    acting_cpu_s: float = 0.0
    learning_cpu_s: float = 0.0


def train(
    settings: Settings,
    environments: int,
    rounds: int,
    episodes: int = 20,
    on_round: Callable[[dict[str, float]], bool | None] = lambda row: None,
) -> Trained:
    """Acts one fragment with each environment and learns from them, `rounds` times; then plays `episodes` games.

    `on_round` is given each entry of the curve; training ends early where it returns True.
    """
    spec = policy_spec(settings)
    learner, learn = _learner(settings, spec, environments)
    collector = FragmentCollector(settings, spec, environments, [settings.seed, 0])
    trained = Trained([])
    try:
        for number in range(rounds):
            before = time.process_time()
            rollout = collector.collect(learner.network, learner.version)
            between = time.process_time()
            statistics = learn(rollout)
            trained.acting_cpu_s += between - before
            trained.learning_cpu_s += time.process_time() - between
            steps = (number + 1) * rollout.steps
            row = {"round": number + 1, "steps": steps, "games": len(rollout.scores), **dataclasses.asdict(statistics)}
            if rollout.scores:
                row["score"] = float(np.mean(rollout.scores))
            trained.curve.append(row)
            if on_round(row):
                break
    finally:
        collector.close()
    trained.scores = evaluate_policy(learner.network, settings, spec, episodes, settings.seed)
    return trained


def _learner(
    settings: Settings, spec: PolicySpec, environments: int
) -> tuple[Learner, Callable[[Rollout], Statistics]]:
    """A learner, and what it does with a round's fragments."""
    learner = make_learner(settings, spec)
    if isinstance(settings, CircularBufferSettings):
        buffer, passes = rs.Buffer(circular_buffer("fragments", settings, spec, environments)), settings.passes
    else:
        buffer, passes = rs.Buffer(fragment_table("fragments", settings, spec, environments)), 1

    def learn(rollout: Rollout) -> Statistics:
        buffer.add(rollout.fragments, timeout=0)
        return [learner.update(buffer.sample(environments, timeout=0).data) for _ in range(passes)][-1]

    return learner, learn
