"""What a learner function can measure of the policy that it has made, for scalers that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replay_server.learner.algorithms import Learner
from replay_server.learner.curvature import CurvatureOptions, measure_curvature
from replay_server.learner.gradient_noise import GradientNoiseOptions, measure_gradient_noise
from replay_server.rl.field_types import check_names, check_types
from replay_server.rl.fragments import Fragments

Probe = Callable[[Learner, Fragments, Any], dict[str, float]]
"""From the learner after its update, the fragments that it has learned from, and the options that were asked for.

It leaves the learner as it is, to the last bit, and finds the same for the same learner and fragments."""

PROBES: dict[str, tuple[type[Any], Probe]] = {
    "curvature": (CurvatureOptions, measure_curvature),
    "gradient_noise": (GradientNoiseOptions, measure_gradient_noise),
}
"""Name → kind of its options, and what measures it."""


def check_probes(asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError for a probe that there is not, and for an option that it does not take."""
    for name, options in asked.items():
        _options(name, options)


def measure(asked: Mapping[str, Mapping[str, Any]], learner: Learner, fragments: Fragments) -> dict[str, float]:
    """All that was asked for, in one map."""
    found: dict[str, float] = {}
    for name, given in asked.items():
        options = _options(name, given)
        found |= PROBES[name][1](learner, fragments, options)
    return found


def _options(name: str, given: Mapping[str, Any]) -> Any:
    if name not in PROBES:
        raise ValueError(f"unknown probe {name!r}: expected one of {', '.join(sorted(PROBES))}")
    kind = PROBES[name][0]
    check_names(kind, given, f"probe {name}")
    check_types(kind, given, f"probe {name}")
    return kind(**given)
