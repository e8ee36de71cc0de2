"""A round's boost by functions, which are there at once, and by a machine that has to start first.

    functions   the boosted round begins when the functions have started
    pause       the learner stops until the machine has started; then as above
    replay      until then the learner goes on with trajectories of the rounds before, then as above
    unboosted   the job goes on with its usual actors: until the boosted rounds of all others are over, at least

The first three are the sides of Nitro's Figure 5 (b), the last one is what they gain over. Acting and learning are
real; times are simulated (`replay_server.serverless.job_clock`) from the processor times of this process. All sides are
alike but for the boosted round's actors: usual ones, and the learner, have a processor each on a machine that is there.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from replay_server.bench.papers.nitro.branches import Job
from replay_server.rl.fragments import Fragments, concatenated
from replay_server.serverless.cost import Bill
from replay_server.serverless.job_clock import JobClock, PlatformTimes, lambda_stage, reserved_stage
from replay_server.serverless.prices import load_prices

WAYS = ("functions", "pause", "replay", "unboosted")
REPLAY_SEED = 0x01D
"""Mixed into the seed of what is drawn of old trajectories, with the round."""
LATER_EVERY = 10
"""Rounds between two scores of the unboosted job once the others have ended."""


@dataclass(frozen=True)
class WaitSettings:
    """Of one boost."""

    round: int = 4
    """Which one is boosted, from 1 on: at least 2, since replay needs one before it. Nitro's is its Scheme 1."""
    rounds: int = 10
    """Of the job, the boosted one included."""
    boosted: int = 16
    """Actors of the boosted round."""
    machine_start_s: float = 30.0
    """From asking for the machine until its actors act."""
    function_start_s: float = 0.3
    """Of a cold function."""
    memory_mb: int = 1024
    """Of a function."""
    replays: int = 0
    """Updates while the machine starts; 0 = as many as fit, by what the rounds before took (median)."""
    episodes: int = 20
    """Fresh games of each score, off the clock."""

    def __post_init__(self) -> None:
        if not 2 <= self.round <= self.rounds:
            raise ValueError(f"expected a boosted round from 2 to {self.rounds}, got {self.round}")
        starts = (self.machine_start_s, self.function_start_s)
        if not all(0.0 <= each < math.inf for each in starts) or self.replays < 0:
            raise ValueError(f"expected finite start times and replays of at least 0, got {starts} and {self.replays}")


@dataclass(frozen=True)
class Point:
    """A job after a round."""

    round: int
    time_s: float
    """Simulated, from the job's beginning."""
    score: float


class Clocks:
    """Simulated seconds of usual rounds, and seconds and dollars of the boosted round's acting."""

    def __init__(self, settings: WaitSettings, actors: int) -> None:
        self._settings, self._actors = settings, actors
        self._usual = JobClock(reserved_stage(actors))

    def round_s(self, acting_cpu_s: float, learning_cpu_s: float) -> float:
        """A round whose usual actors took so much processor time each."""
        return self._usual.play([acting_cpu_s] * self._actors, learning_cpu_s).duration_s

    def learning_s(self, learning_cpu_s: float) -> float:
        """An update alone."""
        return self._usual.play([], learning_cpu_s).duration_s

    def boosted_s(self, acting_cpu_s: float, by_functions: bool) -> tuple[float, float]:
        """From the first submission to the last actor's end, and dollars in the column `full`.

        The functions are all cold; the machine has started. Its start is not billed, but 60 s of it are at least.
        """
        settings, prices = self._settings, load_prices()
        if by_functions:
            times = PlatformTimes(actor_start_s=settings.function_start_s)
            clock = JobClock(lambda_stage(settings.memory_mb), times, Bill(prices, "lambda", "full"))
        else:
            clock = JobClock(reserved_stage(settings.boosted), bill=Bill(prices, "reserved-vms", "full"))
        played = clock.play([acting_cpu_s] * settings.boosted, 0.0)
        if by_functions:
            return played.duration_s, played.cost
        return played.duration_s, float(clock.bill.standing()["actor machine"])


def replay(job: Job, old: Sequence[Fragments], updates: int) -> None:
    """Updates of the job's learner with trajectories of rounds before, as many at a time as a usual round has.

    They are drawn evenly from all of `old`. No round passes: version and KL coefficient are as before, and observation
    moments, which have these trajectories in them already, too.
    """
    learner, pool = job.learner, concatenated(old)
    before = learner.counters()
    moments = learner.network.moments if learner.network.normalizes else None
    generator = np.random.default_rng([job.settings.seed, job.round, REPLAY_SEED])
    for _ in range(updates):
        rows = generator.choice(len(pool["reward"]), job.actors, replace=False)
        job.learn({name: column[rows] for name, column in pool.items()})
        learner.kl_coefficient = before["kl_coefficient"]
        if moments is not None:
            learner.network.set_moments(moments)
    learner.set_counters(before)


def run(job: Job, settings: WaitSettings, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Every way from one job at its start: points by way, and what the boost took and cost. The job is used up."""
    clocks = Clocks(settings, job.actors)
    now_s, acting, learning = 0.0, [], []
    before: list[Point] = []
    old: list[Fragments] = []
    for _ in range(settings.round - 1):
        fragments, acting_cpu_s, learning_cpu_s = _played(job)
        old.append(fragments)
        acting.append(acting_cpu_s)
        learning.append(learning_cpu_s)
        now_s += clocks.round_s(acting_cpu_s, learning_cpu_s)
        before.append(Point(job.round, now_s, job.score(settings.episodes)))

    each_s = statistics.median(acting)
    (functions_s, functions_dollars), (machine_s, machine_dollars) = (
        clocks.boosted_s(each_s, by_functions) for by_functions in (True, False)
    )
    branch = job.copy()
    functions = _boosted(branch, settings, clocks, now_s + functions_s)
    later_s = settings.machine_start_s + machine_s - functions_s
    pause = [replace(point, time_s=point.time_s + later_s) for point in functions]

    replays = settings.replays or int(settings.machine_start_s / clocks.learning_s(statistics.median(learning)))
    say(f"seed {job.settings.seed}: {replays} updates while the machine starts")
    branch = job.copy()
    replay(branch, old, replays)
    waited = branch.score(settings.episodes)
    replayed = _boosted(branch, settings, clocks, now_s + settings.machine_start_s + machine_s)

    unboosted = _usual(job, settings, clocks, now_s, until_s=max(pause[0].time_s, replayed[0].time_s))
    found = {"functions": functions, "pause": pause, "replay": replayed, "unboosted": unboosted}
    idle_dollars = (
        settings.machine_start_s * float(load_prices().profile("reserved-vms").machine("learner").hour) / 3600
    )
    return {
        "points": {way: [asdict(point) for point in (*before, *found[way])] for way in WAYS},
        "replays": replays,
        "score_before": before[-1].score,
        "score_after_replays": waited,
        "boost_s": {"functions": functions_s, "machine": settings.machine_start_s + machine_s},
        "boost_dollars": {"functions": functions_dollars, "machine": machine_dollars},
        "idle_learner_dollars": idle_dollars,
        "acting_cpu_s": each_s,
        "learning_cpu_s": statistics.median(learning),
    }


def _played(job: Job, actors: int | None = None) -> tuple[Fragments, float, float]:
    """A round; what it learned from, and processor seconds of one actor and of the learner."""
    begun = time.thread_time()
    fragments = job.act(actors)
    acted = time.thread_time()
    job.learn(fragments)
    return fragments, (acted - begun) / len(fragments["reward"]), time.thread_time() - acted


def _boosted(job: Job, settings: WaitSettings, clocks: Clocks, acted_s: float) -> list[Point]:
    """The boosted round, whose actors end at `acted_s`, and the usual ones after it."""
    _, _, learning_cpu_s = _played(job, settings.boosted)
    now_s = acted_s + clocks.learning_s(learning_cpu_s)
    boosted = Point(job.round, now_s, job.score(settings.episodes))
    return [boosted, *_usual(job, settings, clocks, now_s)]


def _usual(job: Job, settings: WaitSettings, clocks: Clocks, now_s: float, until_s: float = 0.0) -> list[Point]:
    """Usual rounds up to the job's last one and, though they are more, until `until_s`."""
    points = []
    while job.round < settings.rounds or now_s < until_s:
        _, acting_cpu_s, learning_cpu_s = _played(job)
        now_s += clocks.round_s(acting_cpu_s, learning_cpu_s)
        if job.round <= settings.rounds or job.round % LATER_EVERY == 0 or now_s >= until_s:
            points.append(Point(job.round, now_s, job.score(settings.episodes)))
    return points
