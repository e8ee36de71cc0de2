"""Profiles: named sets of defaults of a run's settings, which fields that the user gave win over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar


class Profiled(Protocol):
    """A dataclass of settings, which names its profile."""

    profile: str


Settings = TypeVar("Settings", bound=Profiled)


def apply_profile(settings: Settings, explicit: set[str], profiles: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Returns settings with the profile's values in every field that is not in `explicit` (fields the user gave).

    Raises ValueError for an unknown profile.
    """
    if settings.profile not in profiles:
        raise ValueError(f"unknown profile {settings.profile!r}: expected one of {', '.join(profiles)}")
    values = {name: value for name, value in profiles[settings.profile].items() if name not in explicit}
    return dataclasses.replace(settings, **values)  # pyright: ignore[reportArgumentType]
