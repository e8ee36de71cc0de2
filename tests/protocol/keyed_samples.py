"""Samples of rollouts in which every value follows from a key, and the settings that rollouts were made with."""

from __future__ import annotations

from typing import Any

import numpy as np

import replay_server as rs

SIGNATURE = {"tokens": rs.Column("int32", (None,), max_length=100), "reward": rs.Column("float32")}


def sample(key: int, length: int = 3) -> dict[str, Any]:
    """One in which every value follows from its key."""
    return {"tokens": np.full(length, key, np.int32), "reward": np.float32(key)}


def columns_of(keys: list[int]) -> dict[str, Any]:
    """`sample` of each key, key after key."""
    return {"tokens": [sample(key)["tokens"] for key in keys], "reward": np.array(keys, np.float32)}


def settings_of(rollouts: rs.Rollouts) -> dict[str, Any]:
    """What another object of the same rollouts is made with, beside their name."""
    numbers = ("group_size", "groups_per_batch", "max_staleness", "lease_s", "first_version", "max_delay")
    return {name: getattr(rollouts, name) for name in ("signature", *numbers, "tasks")}
