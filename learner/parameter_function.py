"""The parameter function: applies queued gradients by their staleness, and publishes what becomes of the policy.

One flush takes all that waits, once the rule holds (`replay_server.learner.staleness.holds`), and makes one version.
Where it stands is the learner's state on the server: state, policy and the names of the gradients that they were made
of are published in one command. It may be killed at any moment, and the next attempt goes on from there. When the
round's learners have all answered it applies what is left, merges observation moments, adapts the KL coefficient and,
for IMPACT, renews the target policy: what a synchronous learner does after its passes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

import replay_server as rs
from replay_server.learner import aggregation, staleness
from replay_server.learner.algorithms import Learner, settings_from
from replay_server.learner.impact import Impact
from replay_server.learner.parameter_state import ParameterState
from replay_server.learner.ppo import Ppo, adapted_kl_coefficient
from replay_server.learner.published_state import (
    Note,
    StateError,
    fetch_state,
    new_token,
    read_note,
    restored_learner,
    state_arrays,
    token_line,
)
from replay_server.rl.asynchronous_learning import AsynchronousLearning, asynchronous_learning
from replay_server.rl.function_context import FunctionContext
from replay_server.rl.function_contract import ContractError, ParameterRequest
from replay_server.rl.gradient_queue import Gradient, GradientQueue
from replay_server.rl.moments import Moments
from replay_server.rl.weights import module_arrays

LOOK_S = 0.05
"""How often a wait for gradients looks whether the round is over, and how many learners run."""
DEADLINE_SHARE = 0.8
"""Of the time to its deadline, which a platform may set, that it serves for: the rest is for the last flush."""
OVERTAKEN_MOST = 20
"""How often a parameter function begins again from what another one has published."""
FAR = 2**40
"""Versions: a staleness that no threshold allows, for a wait that is for a number of gradients alone."""


class Overtaken(Exception):
    """Another parameter function has published the next version: this one begins again from that."""


def apply_gradients(request: ParameterRequest, context: FunctionContext) -> dict[str, Any]:
    """Serves a round until it is over, or for ``request.serve_s``, or until its deadline is near.

    Returns ``version`` (newest), ``over`` (whether the round is closed) and ``statistics`` (of the round when it is,
    `Tally.statistics` and ``staleness_threshold`` and ``kl`` and ``kl_coefficient``; else empty).

    Raises StateError where the state on the server is of another round, ContractError.
    """
    left_s = context.left_s()
    serve_s = request.serve_s if left_s is None else min(request.serve_s, DEADLINE_SHARE * left_s)
    give_up = time.monotonic() + serve_s
    for _ in range(OVERTAKEN_MOST):
        with context.phase("fetch_state"):
            parameters = _Parameters(request, context)
        with contextlib.suppress(Overtaken):
            return parameters.serve(give_up)
    raise StateError(
        f"{request.request}: {OVERTAKEN_MOST} times another client published a version or took gradients: "
        f"expected one parameter function on {request.names.learner!r} and {request.names.policy!r}"
    )


def report(answers: Sequence[dict[str, Any]]) -> bytes:
    """What learners answered of a round (`replay_server.learner.gradient_function.compute_gradients`), for its end."""
    taken = [{name: answer[name] for name in ("learner", "samples", "kl", "moments")} for answer in answers]
    packed = msgpack.packb(taken, use_bin_type=True)
    assert packed is not None
    return packed


class _Parameters:
    """The learner's state in this process, from one version to the next."""

    def __init__(self, request: ParameterRequest, context: FunctionContext) -> None:
        self._request, self._context = request, context
        self._queue = GradientQueue(context.client, request.names)
        try:
            self._learning: AsynchronousLearning = asynchronous_learning(request.learning)
            settings = settings_from(request.algorithm, request.settings)
        except ValueError as error:
            raise ContractError(str(error)) from None
        version, arrays = fetch_state(context.client, request.names)
        context.bytes_in += sum(array.nbytes for array in arrays.values())
        self._note = read_note(arrays)
        learner = restored_learner(settings, arrays, self._note)
        if not isinstance(learner, Ppo | Impact):
            raise ContractError(f"{request.algorithm} has no asynchronous learners: expected ppo or impact")
        self._learner: Ppo | Impact = learner
        self._state = ParameterState.from_plain(self._note.asynchronous)
        self._first_seen: dict[str, float] = {}
        assert version == learner.version
        if self._learning.keeps_history:  # The first version of a job is not there yet.
            with contextlib.suppress(rs.StaleVersion):
                context.client.publish_weights(request.names.history(version), module_arrays(learner.network), version)

    def serve(self, give_up: float) -> dict[str, Any]:
        if self._note.request == self._request.name_in_job:  # An attempt before this one closed the round.
            return self._result(over=True)
        if self._state.round != self._request.round - 1:
            raise StateError(
                f"expected job {self._request.job!r} after round {self._request.round - 1}, its state is after "
                f"{self._state.round}"
            )
        while True:
            report = self._queue.round_report(self._request.round)
            waiting = self._queue.waiting()
            fresh, spent = self._state.sorted_out(waiting, self._learner.version)
            if spent:
                self._queue.drop(spent)
            elif fresh and (report is not None or self._is_due(fresh)):
                self._flush(fresh)
            elif report is not None:
                return self._close(report)
            elif time.monotonic() > give_up:
                return {"version": self._learner.version, "over": False, "statistics": {}}
            else:
                with self._context.phase("wait"):
                    self._await_more(len(fresh))

    # -- gradients

    def _limit(self) -> float:
        """Mean staleness up to which gradients are applied before one of each learner is there."""
        return staleness.flush_limit(self._learning, self._state.bound, self._request.round)

    def _running(self) -> int:
        """Gradients that a flush need not wait beyond: one of each learner, at least one."""
        return self._learning.flush_size(len(self._queue.held()))

    def _is_due(self, fresh: Sequence[Gradient]) -> bool:
        version = self._learner.version
        if staleness.holds([version - each.version for each in fresh], self._limit(), self._running()):
            return True
        now = time.monotonic()
        self._first_seen = {each.name: self._first_seen.get(each.name, now) for each in fresh}
        if now - min(self._first_seen.values()) < self._learning.patience_s:
            return False
        self._state.tally.patience += 1
        return True

    def _await_more(self, fresh: int) -> None:
        """Until the rule may hold, or it is time to look again."""
        version, limit = self._learner.version, self._limit()
        until = (version + FAR, 0.0) if limit < 0 else (version, limit)
        self._queue.await_rule(max(self._running(), fresh + 1), until, min(LOOK_S, self._learning.patience_s))

    def _flush(self, fresh: Sequence[Gradient]) -> None:
        """Makes one version of all that is fresh, and publishes it with their names. Raises Overtaken."""
        version, tally, most = self._learner.version, self._state.tally, self._learning.max_staleness
        if old := [each for each in fresh if most is not None and version - each.version > most]:
            tally.dropped += len(old)
            self._discard(old)
            return
        with self._context.phase("aggregate"):
            factors = [staleness.factor(version - each.version, self._learning.modulation_root) for each in fresh]
            if not self._step(fresh, factors):
                return
            self._state.dispose(fresh)
            tally.stalenesses += [version - each.version for each in fresh]
            tally.rates += math.fsum(factors)
            tally.flushes += 1
        self._learner.version += 1
        self._commit(fresh, self._note.request, self._note.statistics)

    def _discard(self, gradients: Sequence[Gradient]) -> None:
        """Drops gradients for good. What was counted of it is published with the next version.

        Their names are the server's to know: to write down the newest as disposed of would dispose of those before it.
        """
        self._queue.drop(gradients)

    def _step(self, fresh: Sequence[Gradient], factors: Sequence[float]) -> bool:
        """Applies gradients to the weights in this process; False where some cannot be, and these are dropped then."""
        optimizer, parameters = self._learner.optimizer, self._learner.parameters
        each_alone = self._learning.aggregation == "each"
        try:
            if each_alone:
                vectors, rates = self._queue.vectors(fresh), list(factors)
            else:
                vectors = [self._queue.summed(fresh, aggregation.weights(factors))]
                rates = [math.fsum(factors) / len(factors)]
        except (ValueError, rs.Timeout) as error:
            raise Overtaken from error
        self._context.bytes_in += sum(vector.nbytes for vector in vectors)
        if not all(map(self._fits, vectors)):
            bad = [
                each for each, vector in zip(fresh, self._queue.vectors(fresh), strict=True) if not self._fits(vector)
            ]
            self._state.tally.refused += len(bad)
            self._discard(bad)
            return False
        for vector, rate in zip(vectors, rates, strict=True):
            aggregation.step(optimizer, parameters, vector, rate)
        return True

    def _fits(self, vector: np.ndarray) -> bool:
        """Whether it is a gradient of this network: its size, and finite."""
        size = sum(each.numel() for each in self._learner.parameters)
        return vector.shape == (size,) and bool(np.isfinite(vector).all())

    # -- the round's end

    def _close(self, packed: bytes) -> dict[str, Any]:
        """Ends the round and publishes it. Raises Overtaken."""
        limit = staleness.flush_limit(self._learning, self._state.bound, self._request.round)
        answers = sorted(msgpack.unpackb(packed, raw=False), key=lambda each: each["learner"])
        samples = sum(each["samples"] for each in answers)
        kl = math.fsum(each["kl"] * each["samples"] for each in answers) / samples if samples else 0.0
        kl_coefficient = self._learner.kl_coefficient
        statistics = {
            **self._state.close_round(self._queue.duplicates()),
            "staleness_threshold": limit if math.isfinite(limit) else -1.0,
            "kl": kl,
            "kl_coefficient": kl_coefficient,
        }
        if samples:
            end_round(self._learner, self._state.round, kl, [_moments(each["moments"]) for each in answers])
        self._learner.version += 1
        self._commit((), self._request.name_in_job, (statistics,))
        self._context.commit()
        return self._result(over=True)

    def _result(self, over: bool) -> dict[str, Any]:
        return {"version": self._learner.version, "over": over, "statistics": dict(self._note.statistics[-1])}

    # -- publishing

    def _commit(self, gradients: Sequence[Gradient], made_by: str, statistics: Sequence[Any]) -> None:
        """Publishes state, policy and the gradients that they have: from here on they count. Raises Overtaken."""
        self._note = Note(
            self._note.algorithm, self._learner.counters(), self._note.spec, new_token(), made_by, tuple(statistics),
            self._state.plain(),
        )  # fmt: skip
        version, names = self._learner.version, self._request.names
        policy = module_arrays(self._learner.network)
        weights = {names.learner: state_arrays(self._learner, self._note), names.policy: policy}
        if self._learning.keeps_history:
            weights[names.history(version)] = policy
        with self._context.phase("publish"):
            try:
                self._queue.publish(gradients, version, weights)
            except (rs.StaleVersion, rs.GradientNotWaiting) as error:
                raise Overtaken from error
            self._context.client.command("SET", names.learner_token, token_line(version, self._note.token))
        self._context.bytes_out += sum(array.nbytes for arrays in weights.values() for array in arrays.values())


def end_round(learner: Learner, rounds: int, kl: float, moments: Sequence[Moments | None]) -> None:
    """What follows a synchronous learner's passes: `Ppo.update`, and `Impact.update` where its target is due.

    IMPACT's passes are counted by whole rounds here, so its target is renewed at most once a round.
    """
    if learner.network.normalizes:
        found = [each for each in moments if each is not None]
        fresh = Moments.merge(found, len(learner.network.moments.mean))
        learner.network.set_moments(learner.network.moments.merged(fresh))
    if isinstance(learner, Impact):
        passes, every = learner.settings.passes, learner.settings.target_update_every
        if rounds * passes // every > (rounds - 1) * passes // every:
            learner.kl_coefficient = adapted_kl_coefficient(learner.kl_coefficient, kl, learner.settings.kl_target)
            learner.target.load_state_dict(learner.network.state_dict())
    elif isinstance(learner, Ppo):
        learner.kl_coefficient = adapted_kl_coefficient(learner.kl_coefficient, kl, learner.settings.kl_target)


def packed_moments(moments: Moments | None) -> list[Any] | None:
    """Moments as a message has them: count, float64 bytes, float64 bytes."""
    if moments is None:
        return None
    return [moments.count, moments.mean.astype("<f8").tobytes(), moments.squared_deviations.astype("<f8").tobytes()]


def _moments(values: Sequence[Any] | None) -> Moments | None:
    if values is None:
        return None
    count, mean, squares = values
    return Moments(count, np.frombuffer(mean, "<f8"), np.frombuffer(squares, "<f8"))
