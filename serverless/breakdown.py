"""Where the time of a round went, from its invocations: along the slowest actor, then the learner.

With asynchronous learners: along the last actor that ended before the first of them began, then the last learner, then
what the parameter function did after that. Actors that play ahead of the learners are on no round's way.
"""

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
    "wait for flush",
    "probe",
    "publish",
    "platform",
)
"""Of a round's time. waiting: in the queue, for attempts that were lost, for the orchestrator. wait for flush: of an
asynchronous learner, until its gradients are applied. probe: what the scaler asked the learner to measure. publish:
with asynchronous learners also what the parameter function does after the last of them. platform: handing over and
answering, and what a function did outside its phases."""
LEARNERS = ("learner", "gradient")
"""Kinds of what learns: one a round, or several."""
_PHASES = {
    "fetch_weights": "fetch weights",
    "make_environments": "environments",
    "restore": "environments",
    "act": "act",
    "push": "push",
    "fetch_state": "fetch fragments",
    "fetch_fragments": "fetch fragments",
    "learn": "learn",
    "wait": "wait for flush",
    "probe": "probe",
    "publish": "publish",
}


IN_ROUND = ("actor", *LEARNERS, "parameter")


def by_round(invocations: Iterable[Invocation]) -> dict[int, list[Invocation]]:
    """The actors' and learners' attempts of each round."""
    found: dict[int, list[Invocation]] = {}
    for each in invocations:
        if each.kind in IN_ROUND:
            found.setdefault(each.round, []).append(each)
    return dict(sorted(found.items()))


def round_breakdown(members: Sequence[Invocation]) -> dict[str, float]:
    """Part → seconds of one round; they add up to the time from its first submission to its last end.

    Followed are the actor that ended last of those that ended well, and the learner. A round with asynchronous learners
    ends with them and their parameter function, whatever its actors still do.
    """
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    now, ends = round_span(members)
    well = [each for each in members if each.outcome == "ok"]
    learners = [each for each in well if each.kind in LEARNERS]
    actors = [each for each in well if each.kind == "actor"]
    if any(each.kind == "gradient" for each in learners):
        first = min(each.started for each in learners)
        actors = [each for each in actors if each.ended <= first]
    for done in (actors, learners):
        if not done:
            continue
        last = max(done, key=lambda each: each.ended)
        begins = max(now, last.started)
        parts["waiting"] += begins - now
        _add_invocation(parts, last, max(0.0, last.ended - begins))
        now = max(now, last.ended)
    closed = max((each.ended for each in well if each.kind == "parameter"), default=now)
    parts["publish"] += max(0.0, closed - now)
    parts["waiting"] += max(0.0, ends - max(now, closed))
    return parts


def round_span(members: Sequence[Invocation]) -> tuple[float, float]:
    """When a round began, by its first submission, and when it ended; seconds since 1970."""
    asynchronous = [each for each in members if each.kind in ("gradient", "parameter")]
    return min(each.queued for each in members), max(each.ended for each in asynchronous or members)


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
