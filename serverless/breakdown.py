"""Where the time of a round went, from its invocations: along the slowest actor, then the learner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replay_server.serverless.backends.backend import Invocation

PARTS = (
    "waiting",
    "cold start",
    "fetch weights",
    "environments",
    "act",
    "push",
    "fetch fragments",
    "learn",
    "probe",
    "publish",
    "platform",
)
"""Of a round's time. waiting: in the queue, for attempts that were lost, for the orchestrator. probe: what the scaler
asked the learner to measure. platform: handing over and answering, and what a function did outside its phases."""
_PHASES = {
    "fetch_weights": "fetch weights",
    "make_environments": "environments",
    "restore": "environments",
    "act": "act",
    "push": "push",
    "fetch_state": "fetch fragments",
    "fetch_fragments": "fetch fragments",
    "learn": "learn",
    "probe": "probe",
    "publish": "publish",
}


def by_round(invocations: Iterable[Invocation]) -> dict[int, list[Invocation]]:
    """The actors' and learners' attempts of each round."""
    found: dict[int, list[Invocation]] = {}
    for each in invocations:
        if each.kind in ("actor", "learner"):
            found.setdefault(each.round, []).append(each)
    return dict(sorted(found.items()))


def round_breakdown(members: Sequence[Invocation]) -> dict[str, float]:
    """Part → seconds of one synchronous round; they add up to the time from its first submission to its last end.

    Followed are the actor that ended last of those that ended well, and the learner.
    """
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    now = min(each.queued for each in members)
    ends = max(each.ended for each in members)
    for kind in ("actor", "learner"):
        done = [each for each in members if each.kind == kind and each.outcome == "ok"]
        if not done:
            continue
        last = max(done, key=lambda each: each.ended)
        begins = max(now, last.started)
        parts["waiting"] += begins - now
        _add_invocation(parts, last, max(0.0, last.ended - begins))
        now = max(now, last.ended)
    parts["waiting"] += max(0.0, ends - now)
    return parts


def _add_invocation(parts: dict[str, float], invocation: Invocation, seen_s: float) -> None:
    """Divides the time that the caller saw; phases that were measured in other seconds never make it longer."""
    left_s = seen_s
    measured = invocation.measured
    if measured is not None:
        pieces = [("cold start", cold_start_s(invocation))]
        pieces += [(_PHASES.get(phase, "platform"), seconds) for phase, seconds in measured.phases.items()]
        for part, seconds in pieces:
            taken_s = min(left_s, max(0.0, seconds))
            parts[part] += taken_s
            left_s -= taken_s
    parts["platform"] += left_s


def cold_start_s(invocation: Invocation) -> float:
    """From handing over to the handler's beginning, and imports; 0 of a warm start."""
    measured = invocation.measured
    if measured is None or not invocation.cold:
        return 0.0
    before_s = invocation.ended - invocation.started - (measured.ended - measured.started)
    return max(0.0, before_s) + measured.import_s
