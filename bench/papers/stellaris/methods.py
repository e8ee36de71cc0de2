"""What is compared: Stellaris, each of its parts taken away, and what others do with several learners."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.bench.papers.stellaris.recorded_delays import RecordedDelays
from replay_server.rl.asynchronous_learning import AsynchronousLearning

BASELINE = "synchronous"
"""What the others are held against."""
SYNCHRONOUS: dict[str, Any] = {"flush": "count", "modulation_root": None, "truncation": None, "actors_ahead": 0}
STALE = "stale-synchronous"

METHODS: dict[str, dict[str, Any]] = {
    BASELINE: SYNCHRONOUS,
    "stellaris": {},
    "no-truncation": {"truncation": None},
    "no-staleness": {"flush": "every", "modulation_root": None},
    "soft-sync": {"flush": "count", "modulation_root": 1.0, "truncation": None},
    STALE: {"flush": "every", "modulation_root": None, "truncation": None, "slack": 2},
    "each": {"aggregation": "each"},
    "early-actors": {},
    "no-actors-ahead": {"actors_ahead": 0},
    "synchronous-ahead": SYNCHRONOUS | {"actors_ahead": 1},
    "synchronous-late": SYNCHRONOUS | {"actors_ahead": 1},
    "ahead-2": {"ahead": 2},
    "serverful": SYNCHRONOUS,
    "serverful-stellaris": {},
}
"""Name → what differs from the defaults of `AsynchronousLearning`.

synchronous: gradients of all learners are averaged, and actors wait for the new policy. no-staleness: every gradient is
applied as it comes, at the whole learning rate. soft-sync: as soon as half of the learners have sent one, at lr / s
(Zhang et al. 2016). stale-synchronous: as no-staleness, but no learner is more than two gradients ahead of the slowest
(Ho et al. 2013). each: one optimiser step a gradient, as Stellaris' published code. early-actors: as stellaris, but a
round's actors start with the learners of the round before. no-actors-ahead: as stellaris, but they start when these
have ended. synchronous-ahead: as synchronous, but they start as early-actors do. synchronous-late: as synchronous, but
they start as those of stellaris do, which is stellaris without asynchronous learners. ahead-2: as stellaris, but a
learner goes on while one of its gradients waits. serverful, serverful-stellaris:
`synchronous` and `stellaris` with learners on machines that are reserved for the whole job."""
EARLY = ("early-actors", "synchronous-ahead")
MINIONS = "minions"
"""minions:policy=DIR: one learner, synchronously, with as many actors a round as the policy of MinionsRL in DIR says,
until it has had as many samples as the others."""
RECORDED = "recorded:"
"""recorded:DIR: delays as the gradients of a job of `replay-server train --learners async` had them."""


@dataclass(frozen=True)
class Method:
    """One side of the comparison."""

    name: str
    learning: AsynchronousLearning
    machines: bool = False
    """Learners run on reserved machines: they are always there, and billed from the job's start to its end."""
    late: bool = False
    """Actors that are ahead start, as those of functions do, so late that they end as the learners should, which take
    as long as before; in the first round, when that is not known, when learning has ended. Else with the learners."""
    scheduler: Path | None = None
    """Training directory of the policy that decides how many actors a round has; None = always the same number."""
    delays: RecordedDelays | None = None
    """Of learners' policies, beside `learning.delay`."""


def method(name: str, learners: int, delay: int | str = 0) -> Method:
    """A method by its name; of several, joined by +, each changes what it says.

    Args:
        delay: versions that every learner's policy is older, on purpose; or recorded:DIR.

    ValueError for an unknown method, and for a directory without recorded gradients.
    """
    recorded = RecordedDelays.read(Path(delay.removeprefix(RECORDED))) if isinstance(delay, str) else None
    made = _method(name, learners, 0 if isinstance(delay, str) else delay)
    return dataclasses.replace(made, delays=recorded)


def _method(name: str, learners: int, delay: int) -> Method:
    kind, _, policy = name.partition(":policy=")
    if kind == MINIONS and policy:
        alone = AsynchronousLearning(learners=1, delay=delay, **SYNCHRONOUS)
        return Method(name, alone, scheduler=Path(policy))
    parts = name.split("+")
    if any(part not in METHODS for part in parts):
        raise ValueError(
            f"unknown method {name!r}: expected one of {', '.join(METHODS)}, several of them joined by +, "
            f"{MINIONS}:policy=DIR"
        )
    given: dict[str, Any] = {}
    for part in parts:
        given |= METHODS[part]
    if "soft-sync" in parts:
        given["flush_count"] = max(1, learners // 2)
    learning = AsynchronousLearning(learners=learners, delay=delay, **given)
    machines = any(part.startswith("serverful") for part in parts)
    late = learning.actors_ahead > 0 and not any(part in EARLY for part in parts)
    return Method(name, learning, machines=machines, late=late)
