"""Rounds of asynchronous learners: learner functions are started by how much data waits, and released when it is used.

Actors, as many as the scaler says, may be some batches ahead of the learners. What they play ahead is of the policy
that there is when they begin, so they begin as late as will do: to have played when the learners are expected to end,
going by what both took in the round before. A round is as many fragments as its actors bring in one function each.
Whenever a learner's share of them waits and a place is free, a learner function is started with it; it pushes
gradients, and the round's parameter function applies them as their staleness says. When every share has been learned
from, the round ends: the parameter function closes it, and its answer is the round's.

A learner function that is lost is asked again and goes on behind the gradients that it had pushed. One that is lost for
good takes its share of the data with it; the round goes on as long as one of its learners succeeds.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replay_server.learner.parameter_function import report
from replay_server.rl.asynchronous_learning import AsynchronousLearning
from replay_server.rl.function_contract import Response
from replay_server.rl.gradient_queue import GradientQueue
from replay_server.serverless.rounds import (
    LEARNER_RETRIES,
    LOOK_EVERY_S,
    ActorFailures,
    Job,
    Played,
    TrainingFailed,
    answer,
    function_phases,
    refuse_late,
    told,
)

SERVE_SHARE = 0.8
"""Of the time limit of a parameter function, that it serves a round for before another one goes on."""


@dataclass(frozen=True)
class _Fragments:
    """What one actor brought."""

    ids: np.ndarray
    response: Response
    seconds: float


@dataclass
class _Learner:
    """A learner function that was started."""

    ids: np.ndarray
    submitted: float
    name: str


@dataclass
class _Round:
    """A round that is under way."""

    number: int
    version: int
    actors: int
    share: int
    """Fragments of one learner function."""
    left: int
    """Fragments that no learner function was started with yet."""
    began: float
    learning_began: float = 0.0
    running: dict[Future[bytes], _Learner] = field(default_factory=dict)
    started: int = 0
    responses: list[Response] = field(default_factory=list)
    busy_s: float = 0.0
    """Of all learner functions, submitted to answered."""
    lost: int = 0
    error: BaseException | None = None
    parameter: Future[bytes] | None = None
    parameters: int = 0
    """Parameter functions asked so far."""
    ahead_at: float = math.inf
    """When actors begin to play ahead of this round's learners."""


class AsynchronousLearnerRounds:
    """Plays rounds of a job with several learner functions at a time. Between two rounds its actors go on."""

    def __init__(self, job: Job, learning: AsynchronousLearning) -> None:
        self._job = job
        self._learning = learning
        self._queue = GradientQueue(job.client, job.requests.names)
        self._actors: dict[Future[bytes], tuple[int, float]] = {}
        """→ actor, when it was submitted."""
        self._attempts: dict[tuple[int, int], int] = {}
        self._failures = ActorFailures(job)
        self._waiting: list[_Fragments] = []
        self._used: list[_Fragments] = []
        """Whose fragments this round's learners were given, the last of them perhaps in part."""
        self._lead_s: float | None = None
        """From the first learner's start to when actors would have had to begin, to have played when the last learner
        ended, in the round before; None = there was none."""

    def play(self, number: int, actors: int, version: int) -> Played:
        """One round; see `replay_server.serverless.rounds.Rounds`."""
        batch = actors * self._job.settings.environments
        share = -(-batch // self._learning.learners)
        current = _Round(number, version, actors, share, batch, time.perf_counter())
        self._used = []
        while current.left or current.running:
            self._top_up(current, batch)
            self._start_learners(current)
            self._keep_serving(current)
            coming = [*self._actors, *current.running]
            if current.parameter is not None:
                coming.append(current.parameter)
            wait_s = min(LOOK_EVERY_S, max(0.0, current.ahead_at - time.perf_counter()) or LOOK_EVERY_S)
            done = self._job.await_some(coming, time.time() + wait_s)
            self._take_actors(done)
            self._take_learners(current, done)
        slowest_s = max((each.seconds for each in self._used), default=0.0)
        self._lead_s = max(0.0, time.perf_counter() - current.learning_began - slowest_s)
        result, parameter = self._close(current)
        return self._played(current, result, parameter)

    def close(self) -> None:
        """Takes back what arrived after the last round."""
        refuse_late(self._job, self._actors)
        self._actors = {}

    # -- actors

    def _top_up(self, current: _Round, batch: int) -> None:
        """Asks actors that are not in flight, as long as there is room for what they bring; those behind first.

        There is room for what this round lacks, and once it is time for what may be ahead of it.
        """
        job, flying = self._job, {actor for actor, _ in self._actors.values()}
        each = job.settings.environments
        ahead = self._learning.actors_ahead * batch if time.perf_counter() >= current.ahead_at else 0
        room = current.left + ahead - self._fragments() - len(flying) * each
        for actor in sorted(range(current.actors), key=lambda actor: (job.place(actor).sequence, actor)):
            if actor in flying:
                continue
            if room < each:
                return
            room -= each
            place = job.place(actor)
            asked = self._attempts[actor, place.sequence] = self._attempts.get((actor, place.sequence), 0) + 1
            request = f"a{actor}-s{place.sequence}" + (f"-{asked}" if asked > 1 else "")
            payload = job.requests.actor(request, current.number, current.version, actor, place, 0.0, exact=False)
            self._actors[job.backend.submit(payload)] = (actor, time.perf_counter())

    def _take_actors(self, done: set[Future[bytes]]) -> None:
        for future in done & self._actors.keys():
            actor, submitted = self._actors.pop(future)
            response, error = answer(future)
            if response is None or response.result is None:
                self._failures.failed(actor, error)
                continue
            self._failures.none()
            self._attempts.pop((actor, self._job.place(actor).sequence), None)
            self._job.accept(actor, response.result)
            ids = np.frombuffer(response.result["fragments"], "<u8")
            self._waiting.append(_Fragments(ids, response, time.perf_counter() - submitted))

    def _fragments(self) -> int:
        """That wait for a learner."""
        return sum(len(each.ids) for each in self._waiting)

    # -- learners

    def _start_learners(self, current: _Round) -> None:
        """As many as there are places for, as long as a share waits for each."""
        while current.left and len(current.running) < self._learning.learners:
            size = min(current.share, current.left)
            if self._fragments() < size:
                return
            ids = self._taken(size)
            job, settings = self._job, self._job.settings
            name = f"r{current.number}-learner-{current.started}"
            payload = job.requests.gradient(
                name, current.number, current.version, ids.astype("<u8").tobytes(), current.started, self._options(),
                threads=settings.learner_threads, probes=job.probes if current.started == 0 else {},
                device=settings.learner_device,
            )  # fmt: skip
            retries = max(settings.retries, LEARNER_RETRIES)
            future = job.backend.submit(payload, timeout_s=settings.learner_timeout_s, retries=retries)
            now = time.perf_counter()
            if not current.learning_began:
                current.learning_began = now
                current.ahead_at = math.inf if self._lead_s is None else now + self._lead_s
            current.running[future] = _Learner(ids, now, name)
            current.started += 1
            current.left -= size

    def _taken(self, size: int) -> np.ndarray:
        """Ids of the oldest fragments that wait."""
        parts: list[np.ndarray] = []
        while size:
            first = self._waiting[0]
            parts.append(first.ids[:size])
            size -= len(parts[-1])
            if len(first.ids) == len(parts[-1]):
                self._used.append(self._waiting.pop(0))
            else:
                self._waiting[0] = dataclasses.replace(first, ids=first.ids[len(parts[-1]) :])
        return np.concatenate(parts)

    def _take_learners(self, current: _Round, done: set[Future[bytes]]) -> None:
        for future in done & current.running.keys():
            learner = current.running.pop(future)
            current.busy_s += time.perf_counter() - learner.submitted
            response, error = answer(future)
            if response is None or response.result is None:
                if error is not None:
                    self._job.check_reachable(error)
                current.lost += 1
                current.error = error
                # It may have been killed while it held a policy.
                self._queue.release(int(learner.name.rpartition("-")[2]))
            else:
                current.responses.append(response)
            self._job.delete_fragments(learner.ids)

    # -- the parameter function

    def _keep_serving(self, current: _Round) -> None:
        """A parameter function, from the first learner on; another one where its time was over.

        TrainingFailed where it failed for good.
        """
        if not current.started:
            return
        if current.parameter is not None:
            if not current.parameter.done():
                return
            response = self._job.learned(current.parameter)
            assert response.result is not None
            if response.result["over"]:
                return
        current.parameters += 1
        suffix = f"-{current.parameters}" if current.parameters > 1 else ""
        settings = self._job.settings
        payload = self._job.requests.parameter(
            f"r{current.number}-parameter{suffix}", current.number, current.version, self._options(),
            serve_s=min(SERVE_SHARE * settings.learner_timeout_s, 3600.0),
        )  # fmt: skip
        retries = max(settings.retries, LEARNER_RETRIES)
        current.parameter = self._job.backend.submit(payload, timeout_s=settings.learner_timeout_s, retries=retries)

    def _close(self, current: _Round) -> tuple[Mapping[str, Any], Response]:
        """The result of the round's last parameter function, and its response."""
        if not current.responses:
            wrong = current.error
            message = f"round {current.number}: none of {current.started} learner functions succeeded"
            raise TrainingFailed(f"{message}: {told(wrong)}" if wrong is not None else message) from wrong
        self._queue.end_round(current.number, report([dict(each.result or {}) for each in current.responses]))
        while True:
            assert current.parameter is not None
            self._job.await_some([current.parameter])
            self._keep_serving(current)
            if current.parameter.done():
                response = self._job.learned(current.parameter)
                if response.result is not None and response.result["over"]:
                    return response.result, response

    def _options(self) -> dict[str, Any]:
        return dataclasses.asdict(self._learning)

    # -- what it was

    def _played(self, current: _Round, result: Mapping[str, Any], parameter: Response) -> Played:
        ended = time.perf_counter()
        learner_s = ended - current.learning_began
        acted = [each.response for each in self._used]
        results = [each.result or {} for each in acted]
        statistics = {
            **_means(current.responses),
            **{name: float(value) for name, value in result["statistics"].items()},
            "learners": float(current.started),
            "learners_lost": float(current.lost),
            "learner_utilization": current.busy_s / (self._learning.learners * learner_s),
        }
        phases = {
            "acting": current.learning_began - current.began,
            "learning": learner_s,
            **function_phases(acted, "actor"),
            **function_phases(current.responses, "learner"),
            **function_phases([parameter], "parameter"),
        }
        return Played(
            version=int(result["version"]),
            arrived=len(acted),
            steps=sum(int((each.result or {})["samples"]) for each in current.responses),
            scores=tuple(float(score) for found in results for score in found["scores"]),
            statistics=statistics,
            round_s=ended - current.began,
            learner_s=learner_s,
            actor_s=tuple(each.seconds for each in self._used),
            phases=phases,
        )


def _means(responses: Sequence[Response]) -> dict[str, float]:
    """Learners' statistics, each weighted by the gradients that it computed; `samples` and `optimizer_steps` are sums.

    What one learner alone has (what probes found) is taken as it is.
    """
    results = [response.result for response in responses if response.result is not None]
    found: dict[str, float] = {
        "samples": float(sum(each["samples"] for each in results)),
        "optimizer_steps": float(sum(each["gradients"] + each["again"] for each in results)),
    }
    for name in sorted({name for each in results for name in each["statistics"]}):
        having = [each for each in results if name in each["statistics"]]
        weights = [max(1, each["gradients"]) for each in having]
        found[name] = float(np.average([each["statistics"][name] for each in having], weights=weights))
    return found
