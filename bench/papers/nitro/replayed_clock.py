"""The replayed clock: what rounds would take and cost with more functions at a time than this machine has cores for.

It replaces time, never data: every actor's trajectory was really sampled, by functions of this machine whose processor
times are known. They are played again, event by event (`simulated_round`), on a platform where each instance has its
share of a processor, with start-up times and the server's times as they were measured. All that comes from here is
simulated, and is to be called so. It knows synchronous rounds: actors, then the learner.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.breakdown import LEARNERS, by_round, round_span
from replay_server.serverless.cost import Bill, seconds_price
from replay_server.serverless.prices import Profile
from replay_server.serverless.simulated_round import ActorWork, Stage, play_actors


@dataclass(frozen=True)
class MeasuredRound:
    """One real round's samples, in seconds."""

    actor_cpu_s: tuple[float, ...]
    """Processor time of each actor function; of one that started cold, what a warm one took."""
    learner_s: float
    """Of the learner function: what its handler took, here. 0 where the round had none."""
    actors: int


@dataclass(frozen=True)
class Measurements:
    """What the clock plays from."""

    rounds: tuple[MeasuredRound, ...]
    platform_s: tuple[float, ...]
    """Of warm invocations: what the caller saw more than the handler took."""
    cold_cpu_s: tuple[float, ...]
    """Of cold starts: from the process's start to the handler's, and its imports."""
    gap_s: tuple[float, ...]
    """Between the last actor's end and the learner's submission."""
    between_s: tuple[float, ...]
    """Between a round's last end and the next one's first submission."""
    dispatch_s: float
    """Between the submission of one actor and the next (median)."""
    fetch_s: Mapping[int, float] = field(default_factory=dict)
    """Real connections → seconds that the server is busy with one fetch of the weights; {} = nothing."""
    ingest_s: Mapping[int, float] = field(default_factory=dict)
    """The same for one addition of an actor's fragments."""

    @classmethod
    def of(
        cls,
        invocations: Iterable[Invocation],
        fetch_s: Mapping[int, float] | None = None,
        ingest_s: Mapping[int, float] | None = None,
    ) -> Measurements:
        """From a real run's log: of attempts that ended well and measured themselves.

        ValueError where no actor function did.
        """
        found = [
            each
            for each in invocations
            if each.outcome == "ok" and each.measured is not None and each.kind != "warm"  # in no round
        ]
        by_round = {
            number: list(each)
            for number, each in itertools.groupby(sorted(found, key=lambda each: each.round), lambda each: each.round)
        }
        warm = [each for each in found if not each.cold]
        everywhere_s = _usual_cpu_s([each for each in found if each.kind == "actor"])
        rounds, gaps, dispatches, colds = [], [], [], []
        for members in by_round.values():
            actors = [each for each in members if each.kind == "actor"]
            learners = [each for each in members if each.kind in LEARNERS]
            if not actors:
                continue
            learner_s = sum(_handler_s(each) for each in learners if each.kind == "learner") or _asynchronous_s(members)
            usual_s = _usual_cpu_s(actors) or everywhere_s
            cpu_s = tuple(_warm_cpu_s(each, usual_s) for each in actors)
            colds += [_start_s(each, acted_s) for each, acted_s in zip(actors, cpu_s, strict=True) if each.cold]
            rounds.append(MeasuredRound(cpu_s, learner_s, len(actors)))
            if learners:
                gaps.append(max(0.0, min(each.queued for each in learners) - max(each.ended for each in actors)))
            queued = sorted(each.queued for each in actors if each.attempt == 1)
            if len(queued) > 1:
                dispatches.append((queued[-1] - queued[0]) / (len(queued) - 1))
        if not rounds:
            raise ValueError("expected the log of a run with at least one actor function that ended well, got none")
        return cls(
            rounds=tuple(rounds),
            platform_s=tuple(max(0.0, each.ended - each.started - _handler_s(each)) for each in warm) or (0.0,),
            cold_cpu_s=tuple(colds) or (0.0,),
            gap_s=tuple(gaps) or (0.0,),
            between_s=tuple(_between_s(by_round)) or (0.0,),
            dispatch_s=statistics.median(dispatches) if dispatches else 0.0,
            fetch_s=dict(fetch_s or {}),
            ingest_s=dict(ingest_s or {}),
        )

    def save(self, path: Path) -> None:
        """Writes them as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Measurements:
        """Those that `save` wrote. ValueError for another file."""
        try:
            values = json.loads(path.read_text())
            fetch_s, ingest_s = (
                {int(connections): float(seconds) for connections, seconds in values.pop(name).items()}
                for name in ("fetch_s", "ingest_s")
            )
            rounds = tuple(
                MeasuredRound(tuple(each["actor_cpu_s"]), each["learner_s"], each["actors"])
                for each in values.pop("rounds")
            )
            columns: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
            }
            return cls(rounds=rounds, fetch_s=fetch_s, ingest_s=ingest_s, **columns)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: expected measurements of the replayed clock: {error}") from error

    def learner_s(self, actors: int) -> float:
        """Seconds that the learner takes for the fragments of so many actors: measured, or by a line through it.

        Where rounds of one size alone were measured, in proportion to it.
        """
        sizes = sorted({each.actors for each in self.rounds})
        medians = [statistics.median(each.learner_s for each in self.rounds if each.actors == size) for size in sizes]
        if actors in sizes:
            return medians[sizes.index(actors)]
        if len(sizes) == 1:
            return medians[0] * actors / sizes[0]
        slope, start = np.polyfit(sizes, medians, 1)
        if sizes[0] < actors < sizes[-1]:
            return float(np.interp(actors, sizes, medians))
        return max(0.0, float(start + slope * actors))


def _between_s(by_round: Mapping[int, Sequence[Invocation]]) -> list[float]:
    """From each round's last end to the next one's first submission, where both rounds are there."""
    ends = {
        number: max(each.ended for each in members if each.kind != "evaluation")
        for number, members in by_round.items()
        if any(each.kind != "evaluation" for each in members)
    }
    return [
        max(0.0, min(each.queued for each in by_round[number + 1]) - end)
        for number, end in ends.items()
        if number + 1 in ends
    ]


def _handler_s(invocation: Invocation) -> float:
    assert invocation.measured is not None
    return max(0.0, invocation.measured.ended - invocation.measured.started)


def _asynchronous_s(members: Sequence[Invocation]) -> float:
    """From the first of several learners' beginning to the end of the last, and of their parameter function."""
    learning = [each for each in members if each.kind in ("gradient", "parameter")]
    if not learning:
        return 0.0
    began = min((each.started for each in learning if each.kind == "gradient"), default=learning[0].started)
    return max(0.0, max(each.ended for each in learning) - began)


def _usual_cpu_s(actors: Sequence[Invocation]) -> float | None:
    """Median processor time of warm actor functions; None where there was none."""
    found = [each.measured.cpu_s for each in actors if each.measured is not None and not each.cold]
    return statistics.median(found) if found else None


def _warm_cpu_s(invocation: Invocation, usual_s: float | None) -> float:
    """Processor time without what a cold start adds: imports, and whatever is made once.

    Imports are measured in seconds on the clock, which pass faster than processor time where cores are short: what
    warm functions took is the better measure, where there were any.
    """
    measured = invocation.measured
    assert measured is not None
    if not invocation.cold:
        return measured.cpu_s
    return max(0.0, measured.cpu_s - measured.import_s) if usual_s is None else min(measured.cpu_s, usual_s)


def _start_s(invocation: Invocation, acted_s: float) -> float:
    """Of a cold start. A process that was started ahead has waited since: no more than the caller waited counts."""
    measured = invocation.measured
    assert measured is not None
    waited_s = max(0.0, invocation.ended - invocation.started - _handler_s(invocation))
    return min(measured.startup_s, waited_s) + measured.cpu_s - acted_s


# ---- playing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SimulatedRound:
    """One round as it would have been. All times simulated, in seconds."""

    round: int
    actors: int
    duration_s: float
    """P_k: from the first submission to the learner's answer."""
    learner_s: float
    actors_s: float
    """From the first submission to the last actor's end."""
    cost: float
    """C_k: dollars of the use of functions, on demand."""
    cold: int
    """Actors that began cold."""
    invocations: tuple[Invocation, ...] = field(repr=False)

    @property
    def learner_share(self) -> float:
        """Of the round's time: what no number of actors shortens."""
        return self.learner_s / self.duration_s if self.duration_s else 0.0


def replay(
    measurements: Measurements, actors: Sequence[int], stage: Stage, profile: Profile, seed: int = 1
) -> list[SimulatedRound]:
    """Plays one round for each number in `actors`, one after the other.

    Round k takes the samples of the measured round k (counted round and round) where it had that many actors; else they
    are drawn from all rounds. Start-up and platform times are always drawn, with `seed`.
    """
    generator = np.random.default_rng(seed)
    warm, now, rounds = stage.warm, 0.0, []
    for number, count in enumerate(actors, 1):
        if count < 1:
            raise ValueError(f"expected at least 1 actor in a round, got {count}")
        simulated = _play_round(measurements, number, count, stage, profile, generator, warm, now)
        rounds.append(simulated)
        now += simulated.duration_s + _draw(generator, measurements.between_s)
        if stage.keeps_instances:
            warm = max(warm, min(count, stage.host.concurrency))
    return rounds


def _play_round(
    measurements: Measurements,
    number: int,
    count: int,
    stage: Stage,
    profile: Profile,
    generator: np.random.Generator,
    warm: int,
    now: float,
) -> SimulatedRound:
    measured = measurements.rounds[(number - 1) % len(measurements.rounds)]
    if len(measured.actor_cpu_s) == count:
        act_cpu_s = list(measured.actor_cpu_s)
        learner_s = measured.learner_s
    else:
        everything = [each for one in measurements.rounds for each in one.actor_cpu_s]
        act_cpu_s = list(generator.choice(everything, count))
        learner_s = measurements.learner_s(count)
    fetch_s, ingest_s = (server_busy_s(table, count) for table in (measurements.fetch_s, measurements.ingest_s))
    works = [
        ActorWork(
            act_cpu_s=float(cpu_s),
            platform_s=_draw(generator, measurements.platform_s),
            cold_wait_s=stage.cold_wait_s,
            cold_cpu_s=_draw(generator, measurements.cold_cpu_s),
            fetch_s=fetch_s,
            ingest_s=ingest_s,
        )
        for cpu_s in act_cpu_s
    ]
    times = play_actors(works, stage.host, warm=warm, dispatch_s=measurements.dispatch_s)
    last = max(each.ended for each in times)
    invocations = [
        stage.invocation("actor", number, index, now, each.queued, each.started, each.ended, each.cold)
        for index, each in enumerate(times)
    ]
    duration_s, learned_s = last, 0.0
    if learner_s:
        learned_s = learner_s / stage.learner_speed + _draw(generator, measurements.platform_s)
        begins = last + _draw(generator, measurements.gap_s)
        duration_s = begins + learned_s
        invocations.append(stage.invocation("learner", number, 0, now, begins, begins, duration_s, False))
    cost = round_cost(
        learned_s,
        [each.ended - each.started for each in times],
        seconds_price(profile, "learner", stage.learner_memory_mb),
        seconds_price(profile, "actor", stage.memory_mb),
    )
    cold = sum(each.cold for each in times)
    return SimulatedRound(number, count, duration_s, learned_s, last, cost, cold, tuple(invocations))


def round_cost(
    learner_s: float, actors_s: Sequence[float], learner_price_s: float, actor_price_s: float | None = None
) -> float:
    """C_k = c·(P_k^l·d^l + Σ_i P_k,i^a·d^a) (MinionsRL, equation 2), in dollars.

    The prices are c·d: dollars for a second of the learner's resources, and of one actor's (None = the learner's). Of a
    price profile, `seconds_price` gives them.
    """
    actor_price_s = learner_price_s if actor_price_s is None else actor_price_s
    return learner_price_s * learner_s + actor_price_s * sum(actors_s)


def _draw(generator: np.random.Generator, samples: Sequence[float]) -> float:
    return float(samples[int(generator.integers(len(samples)))])


def server_busy_s(table: Mapping[int, float], connections: int) -> float:
    """Of one request, by a table of `Measurements`, at so many connections.

    Between two measured numbers by a line; beyond them the nearest's.
    """
    if not table:
        return 0.0
    counts = sorted(table)
    return float(np.interp(connections, counts, [table[count] for count in counts]))


# ---- many times ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Of simulated values: median, 5th and 95th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(*(float(each) for each in np.percentile(values, [50, 5, 95])))


@dataclass(frozen=True)
class Estimate:
    """Rounds of one number of actors, simulated many times."""

    actors: int
    duration_s: Spread
    cost: Spread
    """C_k, dollars of use."""
    learner_share: Spread
    cold: Spread


def estimate(
    measurements: Measurements,
    actors: int,
    stage: Stage,
    bill: Bill,
    rounds: int = 20,
    repetitions: int = 20,
    seed: int = 1,
) -> Estimate:
    """Plays `rounds` rounds `repetitions` times, each with its own seed.

    `bill` tells prices, profile and warm instances; it is left as it is.
    """
    played = []
    for repetition in range(repetitions):
        one = replay(measurements, [actors] * rounds, stage, bill.prices.profile(bill.profile), seed + repetition)
        played += one
    return Estimate(
        actors,
        Spread.of([each.duration_s for each in played]),
        Spread.of([each.cost for each in played]),
        Spread.of([each.learner_share for each in played]),
        Spread.of([each.cold for each in played]),
    )


# ---- validation ----------------------------------------------------------------------------------------------------


def real_durations_s(invocations: Iterable[Invocation]) -> dict[int, float]:
    """Round → seconds from its first submission to its last end, of actors and learner, as they really were."""
    spans = {number: round_span(members) for number, members in by_round(invocations).items()}
    return {number: ended - began for number, (began, ended) in spans.items()}


def relative_errors(real_s: Sequence[float], simulated_s: Sequence[float]) -> list[float]:
    """|simulated − real| / real of each round."""
    return [abs(simulated - real) / real for real, simulated in zip(real_s, simulated_s, strict=True)]
