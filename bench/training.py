"""Trains a policy in this process: acting and learning in turns, experience through the same tables as on a server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import replay_server as rs
from replay_server.actors.fragments import FragmentCollector, Rollout, evaluate_policy
from replay_server.learner import impact, ppo
from replay_server.learner.impact import Impact, ImpactSettings, circular_buffer
from replay_server.learner.ppo import Ppo, PpoSettings
from replay_server.rl.fragments import fragment_table
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec, policy_spec


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
    settings: PpoSettings | ImpactSettings,
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
    settings: PolicySettings, spec: PolicySpec, environments: int
) -> tuple[Ppo | Impact, Callable[[Rollout], ppo.Statistics | impact.Statistics]]:
    """A learner, and what it does with a round's fragments."""
    if isinstance(settings, ImpactSettings):
        off_policy = Impact(settings, spec)
        buffer = rs.Buffer(circular_buffer("impact", settings, spec, environments))

        def learn_k_times(rollout: Rollout) -> impact.Statistics:
            buffer.add(rollout.fragments, timeout=0)
            found = [off_policy.update(buffer.sample(environments, timeout=0).data) for _ in range(settings.passes)]
            return found[-1]

        return off_policy, learn_k_times
    if not isinstance(settings, PpoSettings):
        raise ValueError(f"expected PpoSettings or ImpactSettings, came {type(settings).__name__}")
    on_policy = Ppo(settings, spec)
    queue = rs.Buffer(fragment_table("ppo", settings, spec, environments))

    def learn_once(rollout: Rollout) -> ppo.Statistics:
        queue.add(rollout.fragments, timeout=0)
        return on_policy.update(queue.sample(environments, timeout=0).data)

    return on_policy, learn_once
