"""What a learner function can measure of the policy that it has made, for scalers that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replay_server.learner.algorithms import Learner
from replay_server.rl.fragments import Fragments

Probe = Callable[[Learner, Fragments, Mapping[str, Any]], dict[str, float]]
"""From the learner after its update, the fragments that it has learned from, and the options that were asked for.

It leaves the learner as it is, to the last bit. ValueError for options that it does not take."""

PROBES: dict[str, Probe] = {}


def check_probes(asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError for a probe that there is not."""
    if unknown := sorted(set(asked) - set(PROBES)):
        raise ValueError(f"unknown probe {unknown[0]!r}: expected one of {', '.join(sorted(PROBES))}")


def measure(asked: Mapping[str, Mapping[str, Any]], learner: Learner, fragments: Fragments) -> dict[str, float]:
    """All that was asked for, in one map."""
    check_probes(asked)
    return {name: value for probe in asked for name, value in PROBES[probe](learner, fragments, asked[probe]).items()}
