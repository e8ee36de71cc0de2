"""The clock of a simulated job: each round's real processor times, played on a platform that this machine is not.

A comparison of scalers asks what 8 or 64 functions at a time take and cost; a machine of two cores runs them one after
the other, and other work on it makes times on the wall worthless. So acting and learning are real, and their processor
times are played event by event (`simulated_round`): each instance has its share of a processor, cold ones start first,
all take their turns at the replay server. All times and dollars that come from here are simulated. Nothing is drawn:
the same processor times give the same clock.

Of asynchronous learners it knows this much: each has a processor of its own and is billed until its last gradient has
been applied; all of the parameter function's time lies on the way of the slowest of them; and actors that play ahead
do so while learners learn. It does not know when each gradient comes.

    Orchestrator(settings, run_directory, clock=JobClock())      # or, without the engine: clock.play(actors, learner)
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.cost import Bill
from replay_server.serverless.prices import load_prices
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.simulated_round import (
    ActorTimes,
    ActorWork,
    Host,
    Stage,
    cpu_share,
    play_actors,
)

CONCURRENCY = 1000
"""Invocations at a time of an AWS account that has not asked for more."""


@dataclass(frozen=True)
class PlatformTimes:
    """What a platform adds to the work of its functions, in seconds: the same in every round."""

    dispatch_s: float = 0.001
    """Between the submission of one actor and the next."""
    platform_s: float = 0.01
    """Handing an invocation over and its answer back."""
    actor_start_s: float = 0.3
    """Of a cold actor (MinionsRL, figure 8)."""
    learner_start_s: float = 1.5
    """Of a cold learner (MinionsRL, figure 8)."""
    fetch_s: float = 0.0005
    """How long the server is busy with sending one actor the weights."""
    ingest_s: float = 0.0002
    """How long the server is busy with taking in one actor's fragments."""


def lambda_stage(memory_mb: int = 1024) -> Stage:
    """AWS Lambda as Nitro uses it: actors of 1,024 MB, that is 0.58 vCPU, and a learner with a whole one; none warm."""
    return Stage(Host(CONCURRENCY, cpu_share(memory_mb)), memory_mb=memory_mb)


def reserved_stage(cores: int = 36) -> Stage:
    """One machine without functions, always there: actors share its cores (Nitro's c5.9xlarge has 36)."""
    return Stage(Host(CONCURRENCY, cores=cores), warm=CONCURRENCY)


@dataclass(frozen=True)
class ClockedRound:
    """One round as it would have been; simulated seconds, and dollars."""

    duration_s: float
    """P_k: from the first submission to the learner's answer."""
    learner_s: float
    actor_s: tuple[float, ...]
    """Of each actor, submitted to answered."""
    acting_s: float
    """From the first submission to the last actor's end; of actors that play ahead, from the round before's end."""
    cold: int
    """Actors that started cold."""
    cost: float
    """Dollars of the job so far, in the clock's column: what stands is charged up to this round's end."""
    actor_cpu_s: tuple[float, ...]
    """What it was played from, so that the round can be played again elsewhere."""
    learner_cpu_s: float
    invocations: tuple[Invocation, ...] = field(repr=False)


class JobClock:
    """The clock of one job. One job, one clock: it keeps which instances are warm, what time it is, and the bill.

    Args:
        stage: where rounds are played; None = `lambda_stage()`.
        times: what the platform adds.
        bill: prices, profile and column, empty; None = profile `lambda`, column `full`.
        actors_ahead: actors play while the learners of the round before learn.
    """

    def __init__(
        self,
        stage: Stage | None = None,
        times: PlatformTimes | None = None,
        bill: Bill | None = None,
        actors_ahead: bool = False,
    ) -> None:
        self.stage = stage or lambda_stage()
        self.times = times or PlatformTimes()
        self.bill = bill or Bill(load_prices(), "lambda", "full")
        self.now_s = 0.0
        """Simulated seconds since the job's beginning."""
        self.rounds: list[ClockedRound] = []
        profile = self.bill.prices.profile(self.bill.profile)
        self._by_use = profile.actor == "function" and profile.learner == "function"
        self._dollars = 0.0
        self._warm = self.stage.warm
        self._learners_warm = CONCURRENCY if self.stage.warm > 0 else 0
        """Instances of what learns: learners and their parameter function."""
        self._ahead = actors_ahead
        self._usual_cpu_s: float | None = None

    def __call__(self, record: RoundRecord, invocations: Sequence[Invocation]) -> RoundRecord:
        """The record with simulated times, phases and cost; `invocations` are the round's, as they really were.

        An attempt that failed or was lost is none of the platform's that is simulated: only what ended well is played.
        """
        actors = _ended_well(invocations, "actor")
        learner_s, parameter_s = (sum(map(_cpu_s, _ended_well(invocations, kind))) for kind in ("learner", "parameter"))
        gradients_s = [_cpu_s(each) for each in _ended_well(invocations, "gradient")]
        played = self.play(self._warm_cpu_s(actors), learner_s, gradients_s, parameter_s)
        return dataclasses.replace(
            record,
            round_s=played.duration_s,
            learner_s=played.learner_s,
            actor_s_mean=statistics.fmean(played.actor_s) if played.actor_s else 0.0,
            actor_s_max=max(played.actor_s, default=0.0),
            cost=played.cost,
            phases={"acting": played.acting_s, "learning": played.duration_s - played.acting_s},
        )

    def play(
        self,
        actor_cpu_s: Sequence[float],
        learner_cpu_s: float,
        gradient_cpu_s: Sequence[float] = (),
        parameter_cpu_s: float = 0.0,
    ) -> ClockedRound:
        """The next round, from the processor seconds of each actor function and of the learner function.

        A learner of 0 s is none.

        Args:
            gradient_cpu_s: of each asynchronous learner; where there are some there is no other.
            parameter_cpu_s: of their parameter function.
        """
        times = self._play_actors(actor_cpu_s)
        # What actors that play ahead did until the learners before them had ended takes no time of this round.
        before_s = self.rounds[-1].learner_s if self._ahead and self.rounds else 0.0
        acted_s = max((each.ended for each in times), default=0.0)
        acting_s = max(0.0, acted_s - before_s)
        number, now = len(self.rounds) + 1, self.now_s
        invocations = [
            self.stage.invocation(
                "actor",
                number,
                index,
                now,
                one.queued - before_s,
                one.started - before_s,
                one.ended - before_s,
                one.cold,
            )
            for index, one in enumerate(times)
        ]
        if gradient_cpu_s:
            works = [("gradient", each + parameter_cpu_s) for each in gradient_cpu_s]
            works.append(("parameter", max(gradient_cpu_s) + parameter_cpu_s))
        else:
            works = [("learner", learner_cpu_s)] if learner_cpu_s else []
        took_s = []
        for index, (kind, cpu_s) in enumerate(works):
            cold = index >= self._learners_warm
            took_s.append(cpu_s / self.stage.learner_speed + self.times.platform_s)
            took_s[-1] += self.times.learner_start_s if cold else 0.0
            invocations.append(
                self.stage.invocation(kind, number, index, now, acting_s, acting_s, acting_s + took_s[-1], cold)
            )
        if works and (self.stage.keeps_instances or self.stage.warm > 0):
            self._learners_warm = max(self._learners_warm, len(works))
        learner_s = max(took_s, default=0.0)
        duration_s = acting_s + learner_s
        played = ClockedRound(
            duration_s=duration_s,
            learner_s=learner_s,
            actor_s=tuple(each.ended - each.queued for each in times),
            acting_s=acting_s,
            cold=sum(each.cold for each in times),
            cost=self._billed(invocations),
            actor_cpu_s=tuple(actor_cpu_s),
            learner_cpu_s=learner_cpu_s or sum(gradient_cpu_s) + parameter_cpu_s,
            invocations=tuple(invocations),
        )
        self.now_s += duration_s
        self.rounds.append(played)
        return played

    def _play_actors(self, cpu_s: Sequence[float]) -> list[ActorTimes]:
        times, stage = self.times, self.stage
        works = [
            ActorWork(
                act_cpu_s=each,
                platform_s=times.platform_s,
                cold_wait_s=stage.cold_wait_s + times.actor_start_s,
                fetch_s=times.fetch_s,
                ingest_s=times.ingest_s,
            )
            for each in cpu_s
        ]
        if not works:
            return []
        played = play_actors(works, stage.host, warm=self._warm, dispatch_s=times.dispatch_s)
        if stage.keeps_instances:
            self._warm += sum(each.cold for each in played)
        return played

    def _billed(self, invocations: Sequence[Invocation]) -> float:
        if not self._by_use:
            self.bill.add(*invocations)
            return self.bill.dollars
        # Nothing stands: a round's bill does not depend on those before, and a long job is not added up each time.
        round_bill = Bill(self.bill.prices, self.bill.profile, self.bill.column)
        round_bill.add(*invocations)
        self.bill.add(*invocations)
        self._dollars += round_bill.dollars
        return self._dollars

    def _warm_cpu_s(self, actors: Sequence[Invocation]) -> list[float]:
        """Processor times without what this machine's own cold starts added: the clock has its own for those.

        Of one that really started cold no more counts than warm ones took, in this round or else before it.
        """
        warm = [_cpu_s(each) for each in actors if not each.cold]
        if warm:
            self._usual_cpu_s = statistics.median(warm)
        usual = self._usual_cpu_s
        return [min(_cpu_s(each), usual) if each.cold and usual is not None else _cpu_s(each) for each in actors]


def _ended_well(invocations: Iterable[Invocation], kind: str) -> list[Invocation]:
    """Of each request the attempt that ended well, in the order in which they were submitted."""
    found = {
        each.request: each
        for each in invocations
        if each.kind == kind and each.outcome == "ok" and each.measured is not None
    }
    return sorted(found.values(), key=lambda each: (each.queued, each.request))


def _cpu_s(invocation: Invocation) -> float:
    """Processor time of the work: no more than passed in its phases, which leave out a process's first imports."""
    measured = invocation.measured
    assert measured is not None
    return min(measured.cpu_s, sum(measured.phases.values()))
