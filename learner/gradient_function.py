"""The learner function of asynchronous learners: gradients of fragments, each of the newest policy that there is.

Each minibatch of its passes makes one gradient: it pulls the policy, computes the gradient of the loss at that version,
and pushes it with the version. It keeps nothing that counts: an attempt that is killed leaves the gradients that it had
pushed, and the next one goes on behind them, with the same minibatches.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import numpy as np
from torch import Tensor

import replay_server as rs
from replay_server.learner.algorithms import Learner, settings_from
from replay_server.learner.devices import learner_device
from replay_server.learner.function import Diverged, named_fragments, threads
from replay_server.learner.gradients import (
    GradientLearner,
    all_minibatches,
    gradient,
    gradients_of,
    policy_kl,
    truncated,
)
from replay_server.learner.parameter_function import packed_moments
from replay_server.learner.policy_probes import check_probes, measure
from replay_server.learner.published_state import fetch_state, read_note, restored_learner
from replay_server.learner.sgd import Means, explained_variance
from replay_server.rl.asynchronous_learning import AsynchronousLearning, asynchronous_learning
from replay_server.rl.fragments import in_order, merged_moments
from replay_server.rl.function_context import FunctionContext
from replay_server.rl.function_contract import ContractError, GradientRequest
from replay_server.rl.gradient_queue import Gradient, GradientQueue
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.weights import load_arrays

APPLIED_WAIT_S = 60.0
"""Patience with a parameter function that applies nothing."""
LOOK_S = 0.02
"""How often a learner that is ahead looks where the others are."""
POLICIES_KEPT = 8
"""Policies of others that a learner keeps from one gradient to the next."""


def compute_gradients(request: GradientRequest, context: FunctionContext) -> dict[str, Any]:
    """Computes and pushes what the request says; returns when all of it has been applied.

    Returns ``learner``; ``version``, the newest that it saw; ``gradients`` that it pushed and ``again``, those that an
    attempt before had pushed; ``samples`` (agent steps); ``kl`` of the newest policy over them, ``moments`` of their
    raw observations, for the round's end; ``statistics``, means over its gradients, as of a synchronous learner.

    Raises FragmentsMissing, Diverged, DeadlineOver, ContractError; rs.Timeout where no parameter function applies what
    it has pushed.
    """
    work = _Work(request, context)
    queue = work.queue
    queue.hold(request.learner, work.policy.version)
    try:
        with threads(request.threads):
            return work.done()
    finally:
        queue.release(request.learner)


class _Policy:
    """The policies of a learner: its own, kept up to date, and those of the others."""

    def __init__(
        self, request: GradientRequest, context: FunctionContext, learner: Learner, spec: PolicySpec, version: int
    ) -> None:
        self._request, self._context, self._learner, self._spec = request, context, learner, spec
        self.version = version
        self._newest = version
        self._others: OrderedDict[int, ActorCritic] = OrderedDict()
        self.missing = 0
        """Policies of others that could not be had any more."""

    def pull(self, delay: int) -> None:
        """Takes the newest policy, or where there are so many the one `delay` versions before it."""
        with self._context.phase("fetch_weights"):
            found = self._fetched(self._request.names.policy, newer_than=self._newest)
            if found is not None:
                self._newest = found[0]
            if delay:
                wanted = max(0, self._newest - delay)
                older = self._fetched(self._request.names.history(wanted)) if wanted != self.version else None
                found = older if older is not None and older[0] == wanted else None
            if found is not None:
                load_arrays(self._learner.network, found[1])
                self.version = found[0]

    def of_version(self, version: int) -> ActorCritic | None:
        """Another learner's policy; None where it is not kept any more."""
        if version not in self._others:
            with self._context.phase("fetch_weights"):
                found = self._fetched(self._request.names.history(version))
            if found is None or found[0] != version:
                self.missing += 1
                return None
            network = make_policy_network(self._learner.settings, self._spec).to(self._learner.device)
            load_arrays(network, found[1])
            self._others[version] = network
            while len(self._others) > POLICIES_KEPT:
                self._others.popitem(last=False)
        self._others.move_to_end(version)
        return self._others[version]

    def _fetched(self, key: str, newer_than: int | None = None) -> tuple[int, dict[str, np.ndarray]] | None:
        found = self._context.client.fetch_weights(key, newer_than=newer_than)
        if found is not None:
            self._context.bytes_in += sum(array.nbytes for array in found[1].values())
        return found


class _Work:
    """One request's work."""

    def __init__(self, request: GradientRequest, context: FunctionContext) -> None:
        self._request, self._context = request, context
        self.queue = GradientQueue(context.client, request.names)
        try:
            check_probes(request.probes)
            self._learning: AsynchronousLearning = asynchronous_learning(request.learning)
            settings = settings_from(request.algorithm, request.settings)
            device = learner_device(request.device, request.learner)
        except ValueError as error:
            raise ContractError(str(error)) from None
        with context.phase("fetch_state"):
            version, arrays = fetch_state(context.client, request.names)
            context.bytes_in += sum(array.nbytes for array in arrays.values())
            note = read_note(arrays)
            learner = restored_learner(settings, arrays, note, device)
        if not isinstance(learner, GradientLearner):
            raise ContractError(f"{request.algorithm} has no asynchronous learners: expected ppo or impact")
        self._learner: GradientLearner = learner
        self.policy = _Policy(request, context, learner, note.spec, version)
        self._fragments = in_order(named_fragments(request, context))
        self._pushed: list[Gradient] = []

    def done(self) -> dict[str, Any]:
        """All gradients, and what there is to say when they have been applied."""
        learner, context = self._learner, self._context
        with context.phase("learn"):
            samples = learner.samples(self._fragments)
        rows = len(samples["advantage"])
        planned = [self._gradient(sequence, 0) for sequence in range(gradients_of(learner, rows))]
        again = self.queue.pushed(planned)
        means, cut = Means(), []
        self._pushed = planned[:again][-self._learning.ahead :]
        order = all_minibatches(learner, samples, self._request.round, self._request.learner)
        for sequence, minibatch in enumerate(order):
            if sequence < again:
                continue
            context.check_deadline()
            self._await_applied(self._learning.ahead - 1)
            self._await_others(sequence)
            self.policy.pull(self._learning.delay)
            self.queue.hold(self._request.learner, self.policy.version, sequence)
            with context.phase("learn"):
                minibatch, share = self._truncated(minibatch)
                cut.append(share)
                vector, logged = gradient(learner, minibatch)
                means.add(logged)
            self._push(sequence, vector)
        self._await_applied(0)
        self.policy.pull(0)
        statistics = means.floats() if means.count else {}
        with context.phase("learn"):
            kl = policy_kl(learner, self._fragments, samples)
        if self._request.probes:
            with context.phase("probe"):
                statistics |= measure(self._request.probes, learner, self._fragments)
        return {
            "learner": self._request.learner,
            "version": self.policy.version,
            "gradients": means.count,
            "again": again,
            "samples": rows,
            "kl": kl,
            "moments": packed_moments(merged_moments(self._fragments) if learner.network.normalizes else None),
            "statistics": statistics
            | {
                "explained_variance": explained_variance(samples["value_target"], samples["value"]),
                "staleness": float(self.policy.version - self._fragments["policy_version"].mean()),
                "truncated_fraction": float(np.mean(cut)) if cut else 0.0,
                "policies_missing": float(self.policy.missing),
            },
        }

    def _truncated(self, minibatch: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """The minibatch with its limits of ratios, where others have other policies; the share that they cut."""
        limit = self._learning.truncation
        if limit is None or self._learning.learners == 1:
            return minibatch, 0.0
        others = {
            version
            for learner, version in self.queue.held().items()
            if learner != self._request.learner and version != self.policy.version
        }
        networks = [each for each in map(self.policy.of_version, sorted(others)) if each is not None]
        return truncated(self._learner.network, networks, minibatch, limit)

    def _push(self, sequence: int, vector: np.ndarray) -> None:
        if not np.isfinite(vector).all():
            raise Diverged(
                f"gradient {sequence} of {self._request.request} is not finite: it was not pushed; look at rewards and "
                "observations, or lower learning_rate"
            )
        named = self._gradient(sequence, self.policy.version)
        with self._context.phase("push"):
            self.queue.push(named, vector, self._learning.gradient_dtype)
            self._context.bytes_out += vector.nbytes // (2 if self._learning.gradient_dtype == "bfloat16" else 1)
        self._pushed = [*self._pushed, named][-self._learning.ahead :]

    def _await_applied(self, at_most: int) -> None:
        with self._context.phase("wait"):
            if not self.queue.await_applied(self._pushed, at_most, APPLIED_WAIT_S):
                self._context.check_deadline()
                reason = "no parameter function took them"
                raise rs.Timeout(
                    f"gradients of {self._request.request} wait for {APPLIED_WAIT_S:g} s: {reason}", reason
                )

    def _await_others(self, pushed: int) -> None:
        """Until no learner that runs is more than `slack` gradients behind this one."""
        slack = self._learning.slack
        if slack is None:
            return
        self.queue.hold(self._request.learner, self.policy.version, pushed)
        give_up = time.monotonic() + APPLIED_WAIT_S
        with self._context.phase("wait"):
            while pushed - min(self.queue.progress().values(), default=pushed) > slack:
                self._context.check_deadline()
                if time.monotonic() > give_up:
                    reason = f"another learner is more than {slack} gradients behind"
                    raise rs.Timeout(f"{self._request.request} waited for {APPLIED_WAIT_S:g} s: {reason}", reason)
                time.sleep(LOOK_S)

    def _gradient(self, sequence: int, version: int) -> Gradient:
        return Gradient(version, self._request.round, self._request.request, sequence)
