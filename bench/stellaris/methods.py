"""What is compared: Stellaris, each of its parts taken away, and what others do with several learners."""

from __future__ import annotations

from typing import Any

from replay_server.rl.asynchronous_learning import AsynchronousLearning

BASELINE = "synchronous"
"""What the others are held against."""

METHODS: dict[str, dict[str, Any]] = {
    BASELINE: {"flush": "count", "modulation_root": None, "truncation": None, "actors_ahead": 0},
    "stellaris": {},
    "no-truncation": {"truncation": None},
    "no-staleness": {"flush": "every", "modulation_root": None},
    "soft-sync": {"flush": "count", "modulation_root": 1.0, "truncation": None},
    "each": {"aggregation": "each"},
}
"""Name → what differs from the defaults of `AsynchronousLearning`.

synchronous: gradients of all learners are averaged, and actors wait for the new policy. no-staleness: every gradient is
applied as it comes, at the whole learning rate. soft-sync: as soon as half of the learners have sent one, at lr / s
(Zhang et al. 2016). each: one optimiser step a gradient, as Stellaris' published code."""


def method(name: str, learners: int, delay: int = 0) -> AsynchronousLearning:
    """The settings of a method. ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: expected one of {', '.join(METHODS)}")
    given = dict(METHODS[name])
    if name == "soft-sync":
        given["flush_count"] = max(1, learners // 2)
    return AsynchronousLearning(learners=learners, delay=delay, **given)
