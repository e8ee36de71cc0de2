"""On-policy rounds: actors play with one version, then a learner learns from exactly what was accepted of them.

A round that is short of actors at its deadline learns from those that arrived, if they are a quorum. What comes later
is taken back and counts for nothing; its actor goes on from where it stood before. The learner is given the ids of the
fragments that count, and these are deleted when it has learned: a learner that is killed loses nothing, and nothing is
learned from twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

import replay_server as rs
from replay_server.rl.function_contract import Response, decode_response
from replay_server.serverless.rounds import Job, Played, TrainingFailed, answer, function_phases, refuse_late, told

TRIES = 3
"""How often a round asks for actors until it has a quorum."""


@dataclass(frozen=True)
class _Arrived:
    response: Response
    seconds: float
    """Submitted to answered."""


class SynchronousRounds:
    """Plays on-policy rounds of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._late: list[Future[bytes]] = []

    def play(self, number: int, actors: int, version: int) -> Played:
        """One round; see `replay_server.serverless.rounds.Rounds`."""
        job = self._job
        began = time.perf_counter()
        arrived, dispatch_s = self._act(number, actors, version)
        acted = time.perf_counter()
        results = [(actor, arrived[actor].response.result or {}) for actor in sorted(arrived)]
        ids = np.concatenate([np.frombuffer(result["fragments"], "<u8") for _, result in results])
        future = job.submit_learner(number, version, fragments=ids.astype("<u8").tobytes())
        job.await_some([future])
        response = job.learned(future)
        learned = time.perf_counter()
        for actor, result in results:
            job.accept(actor, result)
        job.delete_fragments(ids)
        self._sweep()
        ended = time.perf_counter()
        assert response.result is not None
        seconds = tuple(each.seconds for each in arrived.values())
        phases = {
            "dispatch": dispatch_s,
            "acting": acted - began - dispatch_s,
            "learning": learned - acted,
            "clean_up": ended - learned,
            **function_phases((each.response for each in arrived.values()), "actor"),
            **function_phases([response], "learner"),
        }
        return Played(
            version=int(response.result["version"]),
            arrived=len(arrived),
            steps=sum(int(result["steps"]) for _, result in results),
            scores=tuple(float(score) for _, result in results for score in result["scores"]),
            statistics=response.result["statistics"][-1],
            round_s=ended - began,
            learner_s=learned - acted,
            actor_s=seconds,
            phases=phases,
        )

    def close(self) -> None:
        """Takes back what came late."""
        self._late = refuse_late(self._job, self._late)

    def _act(self, number: int, actors: int, version: int) -> tuple[dict[int, _Arrived], float]:
        """The actors that arrived, by their number, and how long it took to ask for them."""
        settings = self._job.settings
        needed = settings.quorum_of(actors)
        arrived: dict[int, _Arrived] = {}
        dispatch_s, error = 0.0, None
        for attempt in range(1, TRIES + 1):
            missing = [actor for actor in range(actors) if actor not in arrived]
            deadline = time.time() + settings.deadline_s if settings.deadline_s is not None else 0.0
            began = time.perf_counter()
            suffix = f"-{attempt}" if attempt > 1 else ""
            calls = {self._submit(f"r{number}-a{actor}{suffix}", number, version, actor, deadline): actor
                     for actor in missing}  # fmt: skip
            dispatch_s += time.perf_counter() - began
            error = self._collect(calls, arrived, deadline) or error
            self._refuse_unheard(f"r{number}-a{actor}{suffix}" for actor in missing if actor not in arrived)
            if len(arrived) >= needed:
                return arrived, dispatch_s
        if error is not None:
            self._job.check_reachable(error)
        raise TrainingFailed(
            f"round {number}: expected answers of at least {needed} of {actors} actors, {len(arrived)} arrived after "
            f"asking {TRIES} times: give them more --timeout-s, --deadline-s or --retries"
            + (f"; the last error was {told(error)}" if error is not None else "")
        )

    def _submit(self, request: str, number: int, version: int, actor: int, deadline: float) -> Future[bytes]:
        job = self._job
        payload = job.requests.actor(request, number, version, actor, job.place(actor), deadline, exact=True)
        return job.backend.submit(payload)

    def _collect(
        self, calls: dict[Future[bytes], int], arrived: dict[int, _Arrived], deadline: float
    ) -> BaseException | None:
        """Takes what arrives until all have answered or the deadline is over; the last error."""
        submitted, error = time.perf_counter(), None
        coming = set(calls)
        while coming:
            done = self._job.await_some(coming, deadline or None)
            if not done:
                break
            for future in done:
                response, wrong = answer(future)
                if response is not None:
                    arrived[calls[future]] = _Arrived(response, time.perf_counter() - submitted)
                else:
                    error = wrong or error
                    self._job.begin_anew_if_lost(calls[future], wrong)
            coming -= done
        for future in coming:
            future.cancel()
        self._late += coming
        return error

    def _refuse_unheard(self, requests: Iterable[str]) -> None:
        """Takes back work that was done and whose answer was lost on the way."""
        job = self._job
        for request in requests:
            kept = job.client.command("GET", job.requests.names.done(request), repeatable=True)
            if isinstance(kept, bytes) and (result := decode_response(kept).result) is not None:
                job.refuse(result)

    def _sweep(self) -> None:
        """Removes what is left in the table of attempts that were lost before they could answer.

        An attempt that is running still may add more: it goes with a later sweep, or by the table's bounds.
        """
        job = self._job
        self._late = refuse_late(job, self._late)
        name = job.requests.names.fragments
        with contextlib.suppress(rs.TableNotFound):
            if job.client.info(name)["size"]:
                job.client.reset(name)
