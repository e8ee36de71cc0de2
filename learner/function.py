"""The learner function: a round of PPO, or passes of IMPACT or IMPALA, from one version of the state to a later one.

Everything it needs is on the server: the learner's state (`replay_server.learner.published_state`) and the fragments.
It counts from the moment its state is published, all at once; before that nothing has been changed, and after it an
attempt that comes again only publishes the policy once more and answers what was kept. Whether one warm process does
every round or each has a new one makes no difference to any bit of the result, with the same number of threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import replay_server as rs
from replay_server.learner.algorithms import Learner, settings_from
from replay_server.learner.finite_checks import Diverged
from replay_server.learner.policy_probes import check_probes, measure
from replay_server.learner.published_state import (
    Note,
    StateError,
    fetch_state,
    new_token,
    policy_arrays,
    read_note,
    restored_learner,
    state_arrays,
    token_line,
)
from replay_server.rl.fragments import Fragments
from replay_server.rl.function_context import FunctionContext
from replay_server.rl.function_contract import ContractError, GradientRequest, LearnerRequest
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.weights import module_arrays

WARM_LEARNERS = 2
"""Jobs whose learner a warm process keeps."""
SAMPLE_WAIT_S = 60.0
"""Longest wait for a sample where the request has no deadline."""


Update = Callable[[Learner, Fragments], Mapping[str, float]]
"""Moves a learner on by one version; of what it tells, `loss`, `gradient_norm`, `kl` and `samples` are looked at."""


class FragmentsMissing(Exception):
    """Fragments that were named are no longer in the table; nothing was learned."""


@dataclass
class _Warm:
    """A learner as it was committed, and what says that it is still the newest."""

    learner: Learner
    version: int
    token: str
    spec: PolicySpec
    algorithm: str
    settings: Mapping[str, Any]


_warm: OrderedDict[tuple[str, str], _Warm] = OrderedDict()
"""(server, job) → its learner, the one used last at the end."""


def own_update(learner: Learner, fragments: Fragments) -> dict[str, float]:
    """What the learner makes of the fragments itself."""
    return dataclasses.asdict(learner.update(fragments))


def learn(request: LearnerRequest, context: FunctionContext, update: Update = own_update) -> dict[str, Any]:
    """Learns what the request says, and publishes learner and policy of version ``request.version + updates``.

    `update` may be another library's, which moves this learner's networks, optimiser and counters in its stead.
    Returns ``version``, ``statistics`` (of each update, a map of numbers) and ``samples`` (agent steps of each update,
    added up). Raises StateError where the newest state is not of ``request.version``,
    FragmentsMissing, Diverged, DeadlineOver: then nothing was changed, but that the table has handed out a sample.
    """
    with context.phase("fetch_state"):
        warm = _take(request, context)
        if not isinstance(warm, _Warm):
            return warm
    untouched = True
    try:
        _check_probes(request)
        given = named_fragments(request, context) if request.fragments else None
        learner, statistics = warm.learner, []
        fragments: Fragments = given or {}
        with threads(request.threads):
            for _ in range(request.updates):
                fragments = _sampled_fragments(request, context, learner.version) if given is None else given
                context.check_deadline()
                with context.phase("learn"):
                    untouched = False
                    statistics.append(_finite(dict(update(learner, fragments))))
            if request.probes:
                with context.phase("probe"):
                    statistics[-1] |= measure(request.probes, learner, fragments)
        context.check_deadline()
    finally:
        if untouched:
            _keep(request, warm)
    note = Note(warm.algorithm, learner.counters(), warm.spec, new_token(), request.name_in_job, tuple(statistics))
    with context.phase("publish"):
        if not _commit(request, context, learner, note):
            return _done_before(request, context, *fetch_state(context.client, request.names))
        _keep(request, dataclasses.replace(warm, version=learner.version, token=note.token))
        _publish_policy(request, context, module_arrays(learner.network), learner.version)
    return _result(learner.version, note)


# ---- state -----------------------------------------------------------------------------------------------------------


def _take(request: LearnerRequest, context: FunctionContext) -> _Warm | dict[str, Any]:
    """The learner of ``request.version``, out of the process's own keeping; or the result of a request done before."""
    client, names = context.client, request.names
    warm = _warm.pop((request.server_url, request.job), None)
    if warm is not None and warm.version == request.version and warm.algorithm == request.algorithm:
        # A job that was begun anew under its old name may have a state of the same version: the token tells.
        token = client.command("GET", names.learner_token, repeatable=True)
        same = token == token_line(warm.version, warm.token)
        if same and warm.settings == dict(request.settings):
            return warm
    version, arrays = fetch_state(client, names)
    context.bytes_in += _size(arrays)
    if version != request.version:
        return _done_before(request, context, version, arrays)
    note = read_note(arrays)
    try:
        settings = settings_from(request.algorithm, request.settings)
    except ValueError as error:
        raise ContractError(str(error)) from None
    learner = restored_learner(settings, arrays, note)
    return _Warm(learner, version, note.token, note.spec, note.algorithm, dict(request.settings))


def _check_probes(request: LearnerRequest) -> None:
    try:
        check_probes(request.probes)
    except ValueError as error:
        raise ContractError(str(error)) from None


def _keep(request: LearnerRequest, warm: _Warm) -> None:
    key = (request.server_url, request.job)
    _warm[key] = warm
    _warm.move_to_end(key)
    while len(_warm) > WARM_LEARNERS:
        _warm.popitem(last=False)


def _commit(request: LearnerRequest, context: FunctionContext, learner: Learner, note: Note) -> bool:
    """Publishes the state: from here on the work is done. False where another attempt was faster."""
    arrays = state_arrays(learner, note)
    try:
        context.client.publish_weights(request.names.learner, arrays, learner.version)
    except rs.StaleVersion:
        return False
    context.commit()
    context.bytes_out += _size(arrays)
    token = token_line(learner.version, note.token)
    context.client.command("SET", request.names.learner_token, token, repeatable=True)
    return True


def _done_before(
    request: LearnerRequest, context: FunctionContext, version: int, arrays: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The result of the attempt that was committed; its policy may be missing still, if it was killed just then."""
    note = read_note(arrays)
    if note.request != request.name_in_job:
        raise StateError(
            f"expected job {request.job!r} at version {request.version} for {request.request!r}, and its learner is at "
            f"version {version}, made by {note.request or 'its start'!r}: ask for a request of that version"
        )
    context.commit()
    _publish_policy(request, context, policy_arrays(arrays), version)
    return _result(version, note)


def _publish_policy(
    request: LearnerRequest, context: FunctionContext, arrays: Mapping[str, np.ndarray], version: int
) -> None:
    with contextlib.suppress(rs.StaleVersion):  # Another attempt has published it.
        context.client.publish_weights(request.names.policy, arrays, version)
        context.bytes_out += _size(arrays)


def _result(version: int, note: Note) -> dict[str, Any]:
    statistics = [dict(each) for each in note.statistics]
    samples = int(sum(each["samples"] for each in statistics))
    return {"version": version, "statistics": statistics, "samples": samples}


# ---- fragments -------------------------------------------------------------------------------------------------------


def named_fragments(request: LearnerRequest | GradientRequest, context: FunctionContext) -> dict[str, np.ndarray]:
    """The fragments whose ids the request has. Raises ContractError, FragmentsMissing."""
    ids = np.frombuffer(request.fragments, "<u8")
    if len(np.unique(ids)) != len(ids):
        raise ContractError(f"expected each fragment once, got {len(ids)} ids of {len(np.unique(ids))}")
    with context.phase("fetch_fragments"):
        try:
            batch = context.client.get(request.names.fragments, ids)
        except (rs.TableNotFound, rs.ServerError) as error:
            raise FragmentsMissing(
                f"{request.request}: of {len(ids)} fragments not all are in {request.names.fragments!r}: {error}; "
                "make its capacity larger, or delete fragments only when they have been learned from"
            ) from error
        context.bytes_in += _size(batch.data)
        return batch.data


def _sampled_fragments(request: LearnerRequest, context: FunctionContext, version: int) -> dict[str, np.ndarray]:
    left_s = context.left_s()
    with context.phase("fetch_fragments"):
        try:
            batch = context.client.sample(
                request.names.fragments,
                request.sample,
                timeout=SAMPLE_WAIT_S if left_s is None else left_s,
                policy_version=version,
            )
        except rs.Timeout:
            context.check_deadline()
            raise
        context.bytes_in += _size(batch.data)
        return batch.data


def _finite(statistics: dict[str, float]) -> dict[str, float]:
    wrong = [name for name in ("loss", "gradient_norm", "kl") if not math.isfinite(statistics[name])]
    if wrong:
        raise Diverged(
            f"{wrong[0]} is {statistics[wrong[0]]}: nothing was kept; look at rewards and observations, or lower "
            "learning_rate"
        )
    return statistics


def _size(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


@contextlib.contextmanager
def threads(wanted: int) -> Iterator[None]:
    """Torch with so many threads; 0 = as OMP_NUM_THREADS says, and one where it says nothing."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or (int(given) if given.isdigit() and int(given) else 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
