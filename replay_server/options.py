"""What callers choose, each choice written down once: of a client, a sample, a sampler, and a table that is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .batch import Allocate
from .table import RateLimiter, Selector


@dataclass(frozen=True)
class ClientOptions:
    """How a client connects; see `replay_server.Client`."""

    connect_timeout: float = 5.0
    socket_timeout: float = 60.0
    reconnect_timeout: float = 5.0
    shared_memory: bool | None = None


@dataclass(frozen=True)
class SampleOptions:
    """How a batch is drawn; see `replay_server.Client.sample`."""

    importance_sampling_exponent: float = 0.4
    timeout: float | None = None
    columns: Sequence[str] | None = None
    replace: bool = True
    policy_version: int | None = None
    coded: bool | None = None


@dataclass(frozen=True)
class SamplerOptions:
    """What a sampler draws, and how far ahead; see `replay_server.Client.sampler`.

    Raises:
        ValueError: a number is below 1.
    """

    batch_size: int
    prefetch: int = 2
    sample: SampleOptions = field(default_factory=SampleOptions)
    writable: bool = False
    allocate: Allocate = np.empty

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise ValueError(f"prefetch must be at least 1 batch, got {self.prefetch}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


@dataclass(frozen=True)
class TableChanges:
    """What `configure` changes of a live table; None leaves a value as it is."""

    sampler: Selector | None = None
    remover: Selector | None = None
    rate_limiter: RateLimiter | None = None
    max_times_sampled: int | None = None
    max_bytes: int | None = None
    max_staleness: int | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
