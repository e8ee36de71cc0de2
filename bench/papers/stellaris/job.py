"""One job with several learners, in this process, on the simulated clock."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replay_server.actors.fragments import Rollout, evaluate_policy, one_thread
from replay_server.bench.papers.stellaris.crew import Crew
from replay_server.bench.papers.stellaris.methods import Method
from replay_server.bench.papers.stellaris.simulated_learners import LearnerTimes, SimulatedLearners
from replay_server.learner.algorithms import Settings, make_learner
from replay_server.learner.impact import Impact
from replay_server.learner.ppo import Ppo
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless.cost import seconds_price
from replay_server.serverless.prices import load_prices
from replay_server.serverless.record import RoundRecord


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
    machine_profile: str = "reserved-vms"
    """Whose actors' machine serverful learners and their parameter server run on: one vCPU each, as functions have."""


@dataclass(frozen=True)
class Prices:
    """Dollars a second of what a method runs on."""

    actor_s: float
    learner_s: float
    """Of a learner function, or of the parameter function; 0 where they run on machines."""
    machines_s: float = 0.0
    """Of all machines together."""
    minimum_s: float = 0.0
    """What a machine is billed for at least."""

    @classmethod
    def of(cls, clock: Clock, method: Method) -> Prices:
        prices = load_prices()
        functions = prices.profile(clock.price_profile)
        actor_s = seconds_price(functions, "actor", clock.actor_memory_mb)
        if not method.machines:
            return cls(actor_s, seconds_price(functions, "learner", clock.learner_memory_mb))
        machine = prices.profile(clock.machine_profile).machine("actor")
        count = math.ceil((method.learning.learners + 1) / machine.slots)
        return cls(actor_s, 0.0, count * float(machine.hour) / 3600, float(machine.minimum_s))

    def machines(self, elapsed_s: float) -> float:
        """Of a job that has taken so long."""
        return self.machines_s * max(elapsed_s, self.minimum_s)


@dataclass(frozen=True)
class Played:
    """One job as it went."""

    rounds: tuple[dict[str, float], ...]
    """Of each round: ``time_s`` and ``cost`` so far, ``steps`` so far, ``score`` where games ended, and its learning's
    statistics (`replay_server.bench.papers.stellaris.simulated_learners.LearnedRound.statistics`)."""
    final_scores: tuple[float, ...]
    """Of fresh games with the last policy."""

    @property
    def final(self) -> float:
        return float(np.mean(self.final_scores))

    def total(self, name: str) -> float:
        """Of all rounds together."""
        return float(sum(each[name] for each in self.rounds))

    def reward_by(self, end: float, along: str = "time_s") -> float:
        """Mean score of the last round with games that ended by then, or for that `cost`; NaN where there is none."""
        scores = [each["score"] for each in self.rounds if each[along] <= end and "score" in each]
        return scores[-1] if scores else float("nan")


def play(settings: Settings, method: Method, *, actors: int, rounds: int, clock: Clock, episodes: int = 20) -> Played:
    """Trains with one environment for each actor. Acting may be a batch ahead of learning, as `actors_ahead` says.

    A method with a scheduler plays as many rounds as it takes to have the samples of `rounds` with `actors`.

    ValueError for an algorithm that has no asynchronous learners; FileNotFoundError where there is no such scheduler.
    """
    spec = policy_spec(settings)
    learner = make_learner(settings, spec)
    if not isinstance(learner, Ppo | Impact):
        raise ValueError(f"expected ppo or impact, got {type(learner).__name__}: it has no asynchronous learners")
    learning, times = method.learning, clock.learner
    simulated = SimulatedLearners(
        learner, learning, dataclasses.replace(times, start_s=0.0) if method.machines else times, settings.seed,
        method.delays,
    )  # fmt: skip
    prices = Prices.of(clock, method)
    wanted, total = rounds * actors * settings.steps, 0
    acting_s = clock.actor_start_s + settings.steps * clock.step_s
    rows: list[dict[str, float]] = []
    now_s, acted_s, cost = 0.0, acting_s, 0.0
    learning_s: float | None = None  # of the round before
    crew = Crew(settings, spec, method, actors)
    try:
        with one_thread():
            rollout = crew.collect(learner.network, learner.version, wanted, None)
            while True:
                began_s = max(now_s, acted_s)
                taken, total = rollout, total + rollout.steps
                start_s = _actors_start_s(method, acting_s, learning_s) if total < wanted else None
                learned = simulated.learn(taken.fragments, start_s)
                policy, learning_s = learned.seen, learned.learning_s
                before_s, now_s = now_s, began_s + learning_s
                playing = taken.steps // settings.steps
                cost += playing * acting_s * prices.actor_s
                cost += (sum(learned.learner_s) + learned.learning_s) * prices.learner_s
                row: dict[str, float] = {
                    "round": len(rows) + 1, "time_s": now_s, "cost": cost + prices.machines(now_s),
                    "steps": total, "actors": playing, "learning_s": learned.learning_s,
                    "busy_s": learned.busy_s, **learned.statistics,
                }  # fmt: skip
                if taken.scores:
                    row["score"] = float(np.mean(taken.scores))
                rows.append(row)
                if total >= wanted:
                    break
                acted_s = (now_s if policy is None or start_s is None else began_s + start_s) + acting_s
                record = _record(row, taken, now_s - before_s, acting_s, learner.version)
                rollout = crew.collect(*(policy or (learner.network, learner.version)), wanted - total, record)
    finally:
        crew.close()
    scores = evaluate_policy(learner.network, settings, spec, episodes, settings.seed)
    return Played(tuple(rows), tuple(float(each) for each in scores))


def _actors_start_s(method: Method, acting_s: float, learning_s: float | None) -> float | None:
    """When the next round's actors start, in seconds of this round's learning; None = when it has ended.

    Args:
        learning_s: what learning took in the round before; None = there was none.
    """
    if not method.learning.actors_ahead:
        return None
    if not method.late:
        return 0.0
    return None if learning_s is None else max(0.0, learning_s - acting_s)


def _record(row: dict[str, float], rollout: Rollout, round_s: float, acting_s: float, version: int) -> RoundRecord:
    """A round as a scheduler sees it."""
    actors = int(row["actors"])
    return RoundRecord(
        round=int(row["round"]), version=version, actors=actors, arrived=actors, environments=1, steps=rollout.steps,
        total_steps=int(row["steps"]), scores=tuple(rollout.scores), statistics=row, round_s=round_s,
        learner_s=row["learning_s"], actor_s_mean=acting_s, actor_s_max=acting_s, cost=row["cost"],
    )  # fmt: skip


def summary(played: list[Played], baseline: list[Played]) -> dict[str, Any]:
    """What is told of one method over its seeds, beside the baseline's with the same seeds."""
    gradients = sum(each.total("gradients") for each in played)
    stale = sum(row["gradient_staleness"] * row["gradients"] for each in played for row in each.rounds)
    pairs = [(one, other, min(one.rounds[-1]["time_s"], other.rounds[-1]["time_s"]))
             for one, other in zip(played, baseline, strict=True)]  # fmt: skip
    costs = [(one, other, min(one.rounds[-1]["cost"], other.rounds[-1]["cost"])) for one, other, _ in pairs]
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
        "at_equal_cost": [one.reward_by(least, "cost") for one, _, least in costs],
        "baseline_at_equal_cost": [other.reward_by(least, "cost") for _, other, least in costs],
        "time_ratios": [one.rounds[-1]["time_s"] / other.rounds[-1]["time_s"] for one, other, _ in pairs],
        "cost_ratios": [one.rounds[-1]["cost"] / other.rounds[-1]["cost"] for one, other, _ in pairs],
        "kl": float(np.mean([row["kl"] for each in played for row in each.rounds])),
        "kl_of_round": float(np.mean([row.get("kl_of_round", np.nan) for each in played for row in each.rounds])),
        "truncated_fraction": float(np.mean([row["truncated_fraction"] for each in played for row in each.rounds])),
        "utilization": float(np.mean([row["learner_utilization"] for each in played for row in each.rounds])),
    }
