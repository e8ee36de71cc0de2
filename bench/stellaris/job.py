"""One job with several learners, in this process, on the simulated clock."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replay_server.actors.fragments import FragmentCollector, evaluate_policy, one_thread
from replay_server.learner.algorithms import Settings, make_learner
from replay_server.learner.impact import Impact
from replay_server.learner.ppo import Ppo
from replay_server.rl.asynchronous_learning import AsynchronousLearning
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless.cost import seconds_price
from replay_server.serverless.prices import load_prices
from replay_server.serverless.simulated_learners import LearnerTimes, SimulatedLearners


@dataclass(frozen=True)
class Clock:
    """What a job's parts take and cost, simulated."""

    learner: LearnerTimes = field(default_factory=LearnerTimes)
    actor_start_s: float = 0.05
    """An actor function, from its submission to its first step."""
    step_s: float = 0.0005
    """One agent step."""
    actor_memory_mb: int = 1024
    learner_memory_mb: int = 1769
    """One whole vCPU of AWS Lambda; the parameter function's, too."""
    price_profile: str = "lambda"


@dataclass(frozen=True)
class Played:
    """One job as it went."""

    rounds: tuple[dict[str, float], ...]
    """Of each round: ``time_s`` and ``cost`` so far, ``steps`` so far, ``score`` where games ended, and its learning's
    statistics (`replay_server.serverless.simulated_learners.LearnedRound.statistics`)."""
    final_scores: tuple[float, ...]
    """Of fresh games with the last policy."""

    @property
    def final(self) -> float:
        return float(np.mean(self.final_scores))

    def total(self, name: str) -> float:
        """Of all rounds together."""
        return float(sum(each[name] for each in self.rounds))

    def reward_by(self, time_s: float) -> float:
        """Mean score of the last round with games that ended no later than that; NaN where there is none."""
        scores = [each["score"] for each in self.rounds if each["time_s"] <= time_s and "score" in each]
        return scores[-1] if scores else float("nan")


def play(
    settings: Settings, learning: AsynchronousLearning, *, actors: int, rounds: int, clock: Clock, episodes: int = 20
) -> Played:
    """Trains with one environment for each actor. Acting may be a batch ahead of learning, as `actors_ahead` says.

    ValueError for an algorithm that has no asynchronous learners.
    """
    spec = policy_spec(settings)
    learner = make_learner(settings, spec)
    if not isinstance(learner, Ppo | Impact):
        raise ValueError(f"expected ppo or impact, came {type(learner).__name__}: it has no asynchronous learners")
    simulated = SimulatedLearners(learner, learning, clock.learner, settings.seed)
    collector = FragmentCollector(settings, spec, actors, [settings.seed, 0])
    prices = load_prices().profile(clock.price_profile)
    actor_price = seconds_price(prices, "actor", clock.actor_memory_mb)
    learner_price = seconds_price(prices, "learner", clock.learner_memory_mb)
    acting_s = clock.actor_start_s + settings.steps * clock.step_s
    rows: list[dict[str, float]] = []
    now_s, acted_s, cost = 0.0, acting_s, 0.0
    try:
        with one_thread():
            rollout = collector.collect(learner.network, learner.version)
            for number in range(1, rounds + 1):
                began_s = max(now_s, acted_s)
                ahead = learning.actors_ahead > 0 and number < rounds
                policy = (copy.deepcopy(learner.network), learner.version) if ahead else None
                learned = simulated.learn(rollout.fragments)
                now_s = began_s + learned.learning_s
                cost += actors * acting_s * actor_price
                cost += (sum(learned.learner_s) + learned.learning_s) * learner_price
                row: dict[str, float] = {
                    "round": number, "time_s": now_s, "cost": cost, "steps": number * rollout.steps,
                    "learning_s": learned.learning_s, "busy_s": learned.busy_s, **learned.statistics,
                }  # fmt: skip
                if rollout.scores:
                    row["score"] = float(np.mean(rollout.scores))
                rows.append(row)
                if number < rounds:
                    acted_s = (began_s if ahead else now_s) + acting_s
                    rollout = collector.collect(*(policy or (learner.network, learner.version)))
    finally:
        collector.close()
    scores = evaluate_policy(learner.network, settings, spec, episodes, settings.seed)
    return Played(tuple(rows), tuple(float(each) for each in scores))


def summary(played: list[Played], baseline: list[Played]) -> dict[str, Any]:
    """What is told of one method over its seeds, beside the baseline's with the same seeds."""
    gradients = sum(each.total("gradients") for each in played)
    stale = sum(row["gradient_staleness"] * row["gradients"] for each in played for row in each.rounds)
    ends = [min(one.rounds[-1]["time_s"], other.rounds[-1]["time_s"])
            for one, other in zip(played, baseline, strict=True)]  # fmt: skip
    pairs = list(zip(played, baseline, ends, strict=True))
    return {
        "final": [each.final for each in played],
        "at_equal_time": [one.reward_by(end) for one, _, end in pairs],
        "baseline_at_equal_time": [other.reward_by(end) for _, other, end in pairs],
        "time_s": float(np.median([each.rounds[-1]["time_s"] for each in played])),
        "cost": float(np.median([each.rounds[-1]["cost"] for each in played])),
        "staleness": stale / gradients,
        "staleness_shares": [
            sum(each.total(f"staleness_{number}") for each in played) / gradients for number in range(10)
        ],
        "kl": float(np.mean([row["kl"] for each in played for row in each.rounds])),
        "truncated_fraction": float(np.mean([row["truncated_fraction"] for each in played for row in each.rounds])),
        "utilization": float(np.mean([row["learner_utilization"] for each in played for row in each.rounds])),
    }
