"""What synchronous and asynchronous rounds have in common: the job that they are of, its actors, and its learner.

A round is one learner request and the acting that it learned from.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

import replay_server as rs
from replay_server.rl.function_contract import Response, decode_response
from replay_server.serverless.backends.backend import Backend, FunctionError, FunctionFailed
from replay_server.serverless.requests import ActorPlace, Requests
from replay_server.serverless.settings import TrainSettings

LOOK_EVERY_S = 0.5
"""How often a wait looks whether the server still lives."""
LEARNER_RETRIES = 8
"""Attempts at a round's learning after the first, at least: without it the job cannot go on."""
FAILURES = 20
"""Actor functions that may fail in succession."""


class TrainingFailed(Exception):
    """The job cannot go on: a function failed for good, or too few answered."""


@dataclass(frozen=True)
class Played:
    """What one round brought. Times are seconds."""

    version: int
    arrived: int
    steps: int
    scores: tuple[float, ...]
    statistics: Mapping[str, float]
    round_s: float
    learner_s: float
    actor_s: tuple[float, ...]
    """Of each actor function that was learned from, submitted to answered."""
    phases: Mapping[str, float]


class Rounds(Protocol):
    """One way of playing rounds."""

    def play(self, number: int, actors: int, version: int) -> Played:
        """Plays round `number` with so many actors, from the policy of `version`.

        Raises TrainingFailed, and rs.ConnectionLost where the server is gone.
        """
        ...

    def close(self) -> None:
        """Takes back what came too late to be learned from. Nothing runs any more."""
        ...


@dataclass
class Job:
    """A running job, as its rounds need it."""

    settings: TrainSettings
    algorithm: Any
    """The algorithm's settings."""
    requests: Requests
    client: rs.Client
    backend: Backend
    check_server: Callable[[], None]
    """Raises rs.ConnectionLost where the server is gone."""
    places: dict[int, ActorPlace] = field(default_factory=dict)
    """Actor number → where it stands."""
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the scaler wants learner functions to measure."""
    _watched: set[Future[bytes]] = field(default_factory=set)
    """Futures whose end sets `_some_done`."""
    _some_done: threading.Event = field(default_factory=threading.Event)

    def place(self, actor: int) -> ActorPlace:
        """Where an actor stands; new environments for one that has not played yet."""
        return self.places.setdefault(actor, ActorPlace())

    def accept(self, actor: int, result: Mapping[str, Any]) -> None:
        """An actor's fragments count: it goes on from the state after them, and the one before is of no more use."""
        place = self.place(actor)
        if place.state is not None:
            self.client.command("DEL", place.state, repeatable=True)
        self.places[actor] = ActorPlace(place.sequence + 1, result["state"])

    def refuse(self, result: Mapping[str, Any]) -> None:
        """Takes back what an actor wrote that does not count."""
        self.delete_fragments(np.frombuffer(result["fragments"], "<u8"))
        self.client.command("DEL", result["state"], repeatable=True)

    def delete_fragments(self, ids: np.ndarray) -> None:
        """Removes fragments from the table; those that are there no more are no error."""
        if len(ids):
            self.client.delete(self.requests.names.fragments, ids)

    def begin_anew_if_lost(self, actor: int, error: BaseException | None) -> None:
        """An actor whose state has expired gets new environments; its fragments go on to be numbered."""
        if isinstance(error, FunctionFailed) and error.failure.type == "StateLost":
            self.places[actor] = ActorPlace(self.place(actor).sequence, None)

    def await_some(self, futures: Collection[Future[bytes]], until: float | None = None) -> set[Future[bytes]]:
        """Those that are done, at least one of them, or none where `until` (time.time) is over before."""
        # `concurrent.futures.wait` locks and unlocks all of them at each call, which a thousand actors make a thousand
        # times in a round. Here each is watched once.
        for future in futures:
            if future not in self._watched:
                self._watched.add(future)
                future.add_done_callback(self._tell_done)
        while True:
            self._some_done.clear()
            done = {future for future in futures if future.done()}
            if done or (until is not None and time.time() >= until):
                return done
            left_s = LOOK_EVERY_S if until is None else min(LOOK_EVERY_S, max(0.0, until - time.time()))
            if not self._some_done.wait(left_s):
                self.check_server()

    def _tell_done(self, future: Future[bytes]) -> None:
        self._watched.discard(future)
        self._some_done.set()

    def submit_learner(self, number: int, version: int, **what: Any) -> Future[bytes]:
        """Asks for a round's learning; fragments or a sample, as `Requests.learner` has them."""
        settings = self.settings
        payload = self.requests.learner(
            f"r{number}-learner", number, version, threads=settings.learner_threads, probes=self.probes, **what
        )  # fmt: skip
        retries = max(settings.retries, LEARNER_RETRIES)
        return self.backend.submit(payload, timeout_s=settings.learner_timeout_s, retries=retries)

    def learned(self, future: Future[bytes]) -> Response:
        """The response of a learner that is done. TrainingFailed where it is an error."""
        try:
            return decode_response(future.result())
        except (FunctionError, CancelledError) as error:
            self.check_reachable(error)
            raise TrainingFailed(f"no learner function succeeded: {told(error)}") from error

    def check_reachable(self, error: BaseException) -> None:
        """Raises rs.ConnectionLost where the server does not answer here either."""
        self.check_server()
        try:
            self.client.tables()  # of every shard
        except (rs.ReplayError, OSError):
            raise rs.ConnectionLost(f"the server does not answer, and a function says: {error}") from error


def told(error: BaseException) -> str:
    """An error with what the function says of it."""
    if isinstance(error, FunctionFailed):
        return f"{error}\n{error.failure.traceback}".rstrip()
    return f"{type(error).__name__}: {error}"


def answer(future: Future[bytes]) -> tuple[Response | None, BaseException | None]:
    """What became of a future that is done."""
    try:
        return decode_response(future.result()), None
    except (FunctionError, CancelledError) as error:
        return None, error


def function_phases(responses: Iterable[Response], prefix: str) -> dict[str, float]:
    """Mean seconds of each phase that functions tell of, as ``prefix.phase``."""
    sums: dict[str, list[float]] = {}
    for response in responses:
        for name, seconds in response.measured.phases.items():
            sums.setdefault(f"{prefix}.{name}", []).append(seconds)
    return {name: float(np.mean(each)) for name, each in sorted(sums.items())}


def refuse_late(job: Job, late: Iterable[Future[bytes]]) -> list[Future[bytes]]:
    """Takes back what answers brought that came too late; returns those that are still to come."""
    coming = []
    for future in late:
        if not future.done():
            coming.append(future)
            continue
        response, _ = answer(future)
        if response is not None and response.result is not None:
            with contextlib.suppress(rs.TableNotFound):
                job.refuse(response.result)
    return coming


class ActorFailures:
    """Of actor functions in succession, where actors are always in flight and a single one matters little."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._count = 0

    def none(self) -> None:
        """An actor function has answered."""
        self._count = 0

    def failed(self, actor: int, error: BaseException | None) -> None:
        """One has failed, or did not answer in time (None).

        Raises TrainingFailed where too many have; rs.ConnectionLost where the server does not answer here either.
        """
        self._count += 1
        self._job.begin_anew_if_lost(actor, error)
        if error is not None and self._count % 5 == 0:
            self._job.check_reachable(error)
        if self._count >= FAILURES:
            raise TrainingFailed(
                f"expected actor functions to answer, {self._count} in succession did not; the last: "
                f"{told(error) if error is not None else 'no answer'}"
            )
