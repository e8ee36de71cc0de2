"""The policy-gradient algorithms by name: their settings, their profiles and their learners."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from replay_server.learner import impact, impala, ppo
from replay_server.learner.impact import Impact, ImpactSettings
from replay_server.learner.impala import Impala, ImpalaSettings
from replay_server.learner.ppo import Ppo, PpoSettings
from replay_server.rl.field_types import check_names, check_types
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.profiles import apply_profile

Settings = PpoSettings | ImpactSettings | ImpalaSettings
Learner = Ppo | Impact | Impala

ALGORITHMS: dict[str, tuple[type[Settings], dict[str, dict[str, Any]]]] = {
    "ppo": (PpoSettings, ppo.PROFILES),
    "impact": (ImpactSettings, impact.PROFILES),
    "impala": (ImpalaSettings, impala.PROFILES),
}
"""Name → kind of its settings, and their profiles."""


def settings_kind(algorithm: str) -> type[Settings]:
    """The dataclass of an algorithm's settings. ValueError for an unknown name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm][0]


def make_settings(algorithm: str, profile: str, **given: Any) -> Settings:
    """The algorithm's settings by a profile, with those given over it. Raises ValueError for an unknown name."""
    kind = settings_kind(algorithm)
    _check_names(algorithm, kind, given)
    return apply_profile(kind(profile=profile, **given), set(given), ALGORITHMS[algorithm][1])


def settings_from(algorithm: str, values: Mapping[str, Any]) -> Settings:
    """The settings that `dataclasses.asdict` gave, taken as they are: what a profile had to say is in them already.

    Every setting must be there, so that a misspelt one, or a caller of another release, is found out and not replaced
    by a default. Raises ValueError for one that is missing, unknown, or of a wrong type.
    """
    kind = settings_kind(algorithm)
    what = f"settings of {algorithm}"
    check_names(kind, values, what)
    if missing := [each.name for each in dataclasses.fields(kind) if each.name not in values]:
        raise ValueError(f"{what} lack {', '.join(missing)}: expected dataclasses.asdict of the whole settings")
    check_types(kind, values, what)
    return kind(**values)


def algorithm_of(settings: Settings) -> str:
    """The name of the algorithm that these are the settings of."""
    for name, (kind, _) in ALGORITHMS.items():
        if isinstance(settings, kind):
            return name
    raise ValueError(f"expected {_kinds()}, got {type(settings).__name__}")


def make_learner(settings: Settings, spec: PolicySpec, device: torch.device | str = "cpu") -> Learner:
    """The learner of these settings at version 0."""
    if isinstance(settings, ImpactSettings):
        return Impact(settings, spec, device)
    if isinstance(settings, ImpalaSettings):
        return Impala(settings, spec, device)
    if isinstance(settings, PpoSettings):
        return Ppo(settings, spec, device)
    raise ValueError(f"expected {_kinds()}, got {type(settings).__name__}")


def _kinds() -> str:
    return " or ".join(kind.__name__ for kind, _ in ALGORITHMS.values())


def _check_names(algorithm: str, kind: type[Settings], given: Mapping[str, Any]) -> None:
    names = {each.name for each in dataclasses.fields(kind)}
    if unknown := sorted(set(given) - names):
        raise ValueError(f"{algorithm} has no setting {unknown[0]!r}: expected one of {', '.join(sorted(names))}")
