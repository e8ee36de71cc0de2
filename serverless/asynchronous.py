"""Off-policy rounds: actors are always in flight, and a learner goes on with what is in the circular buffer.

Each actor function takes the newest policy and adds to the buffer (a table, oldest first, each fragment handed out K
times). A round is one learner request: K passes over one batch, where a batch is what the round's number of actors
brings in one function each. An actor that is lost is asked again from where it stood. One that was killed between
adding and answering leaves fragments behind that are learned from like any others; they count as no actor's.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from replay_server.rl.function_contract import Response
from replay_server.serverless.rounds import (
    LOOK_EVERY_S,
    ActorFailures,
    Job,
    Played,
    answer,
    function_phases,
    refuse_late,
)


@dataclass
class _Flight:
    actor: int
    submitted: float


@dataclass
class _Gathered:
    """What arrived during a round."""

    responses: list[Response] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class AsynchronousRounds:
    """Plays off-policy rounds of a job. Between two rounds its actors go on.

    Args:
        buffer_batches: N, batches that actors may be ahead of the learner.
        passes: K, of the learner over each batch.
    """

    def __init__(self, job: Job, buffer_batches: int, passes: int) -> None:
        self._job = job
        self._buffer_batches = buffer_batches
        self._passes = passes
        self._flights: dict[Future[bytes], _Flight] = {}
        self._attempts: dict[tuple[int, int], int] = {}
        """(actor, sequence) → how often it was asked for."""
        self._failures = ActorFailures(job)
        self._gathered = _Gathered()

    def play(self, number: int, actors: int, version: int) -> Played:
        """One round; see `replay_server.serverless.rounds.Rounds`."""
        job = self._job
        began = time.perf_counter()
        batch = actors * job.settings.environments
        while self._size() < batch:
            self._top_up(number, actors, version, batch)
            self._take(job.await_some(self._flights, time.time() + LOOK_EVERY_S))
        filled = time.perf_counter()
        future = job.submit_learner(number, version, sample=batch, updates=self._passes)
        while not future.done():
            self._top_up(number, actors, version, batch)
            # It looks again though nothing came: a learner may wait for fragments.
            self._take(job.await_some([future, *self._flights], time.time() + LOOK_EVERY_S) - {future})
        response = job.learned(future)
        assert response.result is not None
        gathered, self._gathered = self._gathered, _Gathered()
        ended = time.perf_counter()
        results = [each.result or {} for each in gathered.responses]
        phases = {
            "acting": filled - began,
            "learning": ended - filled,
            **function_phases(gathered.responses, "actor"),
            **function_phases([response], "learner"),
        }
        return Played(
            version=int(response.result["version"]),
            arrived=len(results),
            steps=batch * job.settings.steps,
            scores=tuple(float(score) for result in results for score in result["scores"]),
            statistics=response.result["statistics"][-1],
            round_s=ended - began,
            learner_s=ended - filled,
            actor_s=tuple(gathered.seconds),
            phases=phases,
        )

    def close(self) -> None:
        """Takes back what arrived after the last round."""
        refuse_late(self._job, self._flights)
        self._flights = {}

    def _size(self) -> int:
        """Fragments in the buffer, as the server counts them: a learner that was lost has used up what it sampled."""
        return int(self._job.client.info(self._job.requests.names.fragments)["size"])

    def _top_up(self, number: int, actors: int, version: int, batch: int) -> None:
        """Asks actors that are not in flight, as long as the buffer has room for what they bring."""
        job = self._job
        flying = {flight.actor for flight in self._flights.values()}
        room = max(2, self._buffer_batches) * batch - self._size() - len(flying) * job.settings.environments
        for actor in range(actors):
            if actor in flying:
                continue
            if room < job.settings.environments:
                return
            room -= job.settings.environments
            place = job.place(actor)
            # A name of its own for each time that it is asked: the time before may still be under way somewhere.
            asked = self._attempts[actor, place.sequence] = self._attempts.get((actor, place.sequence), 0) + 1
            request = f"a{actor}-s{place.sequence}" + (f"-{asked}" if asked > 1 else "")
            payload = job.requests.actor(request, number, version, actor, place, 0.0, exact=False)
            self._flights[job.backend.submit(payload)] = _Flight(actor, time.perf_counter())

    def _take(self, done: set[Future[bytes]]) -> None:
        for future in done:
            flight = self._flights.pop(future)
            response, error = answer(future)
            if response is None or response.result is None:
                self._failures.failed(flight.actor, error)
                continue
            self._failures.none()
            self._attempts.pop((flight.actor, self._job.place(flight.actor).sequence), None)
            self._job.accept(flight.actor, response.result)
            self._gathered.responses.append(response)
            self._gathered.seconds.append(time.perf_counter() - flight.submitted)
