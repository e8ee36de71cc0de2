"""The work of actor functions: fragments of trajectories, and evaluations, with a policy from the replay server.

An instance keeps what it made, for its next invocation: networks by version, and environments. Neither can change a
result. Environments go on from the state that the request names, wherever it was left; where an instance happens to
hold just that state it need not be restored. Nothing of a learner is imported here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.actors.fragments import FragmentCollector, Rollout, evaluate_policy, one_thread
from replay_server.rl.function_context import FunctionContext, StalePolicy
from replay_server.rl.function_contract import ActorRequest, ContractError, EvaluationRequest, Request
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec, policy_spec
from replay_server.rl.weights import load_arrays

STATE_S = 3600
"""How long the state of environments is kept, in seconds; the caller may delete those that it has no more use for."""
POLICY_WAIT_S = 5.0
"""Patience for a version of the policy that is about to be published."""
POLICY_POLL_S = 0.02
ADD_WAIT_S = 30.0
"""Patience with a table that lets no fragments in, where the deadline allows more."""
WARM_COLLECTORS = 4
"""Sets of environments that one instance keeps."""


class StateLost(Exception):
    """The state that environments were to go on from is not on the server: it has expired, or was never written."""


# ---- what a warm instance keeps --------------------------------------------------------------------------------------

Kind = tuple[Any, ...]
"""Settings as a key: what is kept serves only requests with the same."""


@dataclass
class _WarmCollector:
    kind: Kind
    collector: FragmentCollector
    holds: tuple[str, str] | None
    """(server, key) of the state that it is in exactly; None while it is in none that is known."""


@dataclass
class _WarmPolicy:
    where: Kind
    """Server, job, run, settings."""
    version: int
    network: ActorCritic


class _Warm:
    """Networks and environments from one invocation to the next; the ones used last stay."""

    def __init__(self) -> None:
        self.specs: dict[Kind, PolicySpec] = {}
        self.policy: _WarmPolicy | None = None
        self.collectors: list[_WarmCollector] = []

    def spec(self, settings: PolicySettings) -> PolicySpec:
        kind = _kind(settings)
        if kind not in self.specs:
            self.specs[kind] = policy_spec(settings)
        return self.specs[kind]

    def take(self, kind: Kind, holds: tuple[str, str]) -> _WarmCollector | None:
        """A collector of this kind, if possible in that very state; it is no more kept."""
        fitting = [each for each in self.collectors if each.kind == kind]
        if not fitting:
            return None
        warm = next((each for each in fitting if each.holds == holds), fitting[0])
        self.collectors.remove(warm)
        return warm

    def keep(self, warm: _WarmCollector) -> None:
        self.collectors.append(warm)
        while len(self.collectors) > WARM_COLLECTORS:
            self.collectors.pop(0).collector.close()


_warm = _Warm()


# ---- the work --------------------------------------------------------------------------------------------------------


def act(request: ActorRequest, context: FunctionContext) -> dict[str, Any]:
    """Plays one fragment with each of the request's environments and adds them to the job's table.

    Returns fragments (ids), version, scores, steps and state (key), as `Response.result` says.

    Raises:
        ContractError: settings of an actor are missing.
        DeadlineOver: nothing was added, or what was is taken back.
        StalePolicy: the policy is to be of exactly the request's version, and the server has a newer one.
        StateLost: there is no state under the request's key.
        rs.Timeout: the policy was not published, or the table let nothing in, in time.
    """
    settings = actor_settings(request.settings)
    with context.phase("make_environments"):
        spec = _warm.spec(settings)
    version, network = _policy(request, context, settings, spec, exact=request.exact)
    context.check_deadline()
    warm = _collector(request, context, settings, spec)
    context.check_deadline()
    try:
        with context.phase("act"):
            rollout = warm.collector.collect(network, version, context.check_deadline)
        result = _push(request, context, rollout, warm)
    except BaseException:
        warm.collector.close()
        raise
    _warm.keep(warm)
    return {**result, "version": version, "scores": rollout.scores, "steps": rollout.steps}


def evaluate(request: EvaluationRequest, context: FunctionContext) -> dict[str, Any]:
    """Plays whole fresh games with the policy of exactly the request's version. Returns scores and version."""
    settings = actor_settings(request.settings)
    with context.phase("make_environments"):
        spec = _warm.spec(settings)
    version, network = _policy(request, context, settings, spec, exact=True)
    context.check_deadline()
    with context.phase("act"):
        scores = evaluate_policy(
            network, settings, spec, request.episodes, request.seed, request.greedy, context.check_deadline
        )
    return {"scores": scores, "version": version}


def actor_settings(values: Mapping[str, Any]) -> PolicySettings:
    """An actor's settings out of an algorithm's.

    The algorithm's own settings are passed over: an actor does not know their names. Every one of its own must be
    there, so that a misspelt one, or a caller of another release, is found out and not replaced by a default.

    Raises ContractError naming what is missing.
    """
    names = [each.name for each in dataclasses.fields(PolicySettings)]
    missing = [name for name in names if name not in values]
    if missing:
        raise ContractError(
            f"expected all settings of an actor (dataclasses.asdict of the algorithm's), missing: {', '.join(missing)}"
        )
    return PolicySettings(**{name: values[name] for name in names})


def _kind(settings: PolicySettings) -> Kind:
    return dataclasses.astuple(settings)


# ---- its parts -------------------------------------------------------------------------------------------------------


def _policy(
    request: Request, context: FunctionContext, settings: PolicySettings, spec: PolicySpec, exact: bool
) -> tuple[int, ActorCritic]:
    """The policy of the request's version, or, where it need not be exact, the newest one if that is not older."""
    where = (request.server_url, request.job, request.run, *_kind(settings))
    warm = _warm.policy if _warm.policy is not None and _warm.policy.where == where else None
    if warm is not None and exact and warm.version == request.version:
        return warm.version, warm.network
    with context.phase("fetch_weights"):
        enough = warm is not None and not exact and warm.version >= request.version
        known = warm.version if warm is not None and enough else request.version - 1
        fetched = _fetched(request, context, known, wait=not enough)
        if fetched is None:
            assert warm is not None
            return warm.version, warm.network
        version, arrays = fetched
        context.bytes_in += sum(array.nbytes for array in arrays.values())
        if exact and version != request.version:
            raise StalePolicy(
                f"{request.request}: expected the policy of version {request.version}, the server has {version}: "
                "its round is over"
            )
        with one_thread():
            network = warm.network if warm is not None else make_policy_network(settings, spec)
            _warm.policy = None  # While it is written to it is of no version.
            load_arrays(network, arrays)
        _warm.policy = _WarmPolicy(where, version, network)
        return version, network


def _fetched(
    request: Request, context: FunctionContext, known: int, wait: bool
) -> tuple[int, dict[str, np.ndarray]] | None:
    """The newest policy if it is newer than `known`; with `wait`, it is waited for."""
    began = time.monotonic()
    while True:
        fetched = context.client.fetch_weights(request.names.policy, newer_than=known if known >= 0 else None)
        if fetched is not None or not wait:
            return fetched
        context.check_deadline()
        if time.monotonic() - began > POLICY_WAIT_S:
            reason = f"the server has none newer than {known}; was it published under {request.names.policy!r}?"
            raise rs.Timeout(
                f"policy of version {request.version} not there after {POLICY_WAIT_S:g} s: {reason}", reason
            )
        time.sleep(POLICY_POLL_S)


def _collector(
    request: ActorRequest, context: FunctionContext, settings: PolicySettings, spec: PolicySpec
) -> _WarmCollector:
    """Environments in the state that the request names, or new ones."""
    kind = (*_kind(settings), request.environments)
    first = request.actor * request.environments
    if request.state is None:
        with context.phase("make_environments"):
            # Made anew later in a job (resumed, or their state lost), they play other games than at first.
            seed = [settings.seed, request.actor, request.sequence]
            collector = FragmentCollector(
                settings, spec, request.environments, seed, first, request.sequence, stateful=True
            )
            collector.state()  # Refuses environments that cannot give one before they are played.
        return _WarmCollector(kind, collector, None)
    held = (request.server_url, request.state)
    warm = _warm.take(kind, held)
    if warm is None or warm.holds != held:
        with context.phase("restore"):
            state = context.client.command("GET", request.state, repeatable=True)
        if state is None:
            raise StateLost(
                f"{request.request}: no state under {request.state!r}: it has expired (after {STATE_S} s), was "
                "deleted, or its attempt never ended; begin with new environments (state=None)"
            )
        context.bytes_in += len(state)
        if warm is None:
            with context.phase("make_environments"):
                collector = FragmentCollector(
                    settings, spec, request.environments, [settings.seed, request.actor], first, state=state
                )
            warm = _WarmCollector(kind, collector, None)
        else:
            with context.phase("restore"):
                warm.collector.restore(state)
    warm.holds = None
    warm.collector.first_environment = first
    if warm.collector.sequence != request.sequence:
        raise ContractError(
            f"{request.request}: expected the state after {request.sequence} fragments, the one under "
            f"{request.state!r} is after {warm.collector.sequence}"
        )
    return warm


def _push(request: ActorRequest, context: FunctionContext, rollout: Rollout, warm: _WarmCollector) -> dict[str, Any]:
    """Writes the state, then the fragments: what comes first is found only by the answer, or expires."""
    client, names = context.client, request.names
    with context.phase("push"):
        key, state = names.state(context.attempt), warm.collector.state()
        context.check_deadline()
        context.undo(lambda: client.command("DEL", key))
        client.command("SET", key, state, "EX", STATE_S, repeatable=True)
        left = context.left_s()
        timeout = ADD_WAIT_S if left is None else min(left, ADD_WAIT_S)
        ids = client.add(names.fragments, rollout.fragments, timeout=timeout)
        context.undo(lambda: client.delete(names.fragments, ids))
        context.bytes_out += len(state) + sum(column.nbytes for column in rollout.fragments.values())
    warm.holds = (request.server_url, key)
    return {"fragments": ids.astype("<u8").tobytes(), "state": key}
