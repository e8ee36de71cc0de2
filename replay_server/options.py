"""What callers choose, each choice written down once: of a client, a sample, a sampler, and a table that is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .batch import Allocate
from .checks import check_batch_size, check_count, check_exponent, check_timeout, check_version
from .selectors import RateLimiter, Selector, one_of
from .tree import names_of


@dataclass(frozen=True)
class ClientOptions:
    """How a client connects; see `replay_server.Client`."""

    connect_timeout: float = 5.0
    socket_timeout: float = 60.0
    reconnect_timeout: float = 5.0
    shared_memory: bool | None = None
    password_file: str | None = None
    pickle_password: bool = False
    missing: str = "wait"
    missing_after: float = 1.0

    def __post_init__(self) -> None:
        if self.missing not in (expected := ("wait", "leave_out", "error")):
            raise ValueError(f"missing must be one of {', '.join(expected)}, got {self.missing!r}")
        if not self.missing_after > 0:
            raise ValueError(f"missing_after must be above 0 seconds, got {self.missing_after!r}")


def exponent(importance_sampling_exponent: float | None, beta: float | None) -> float:
    """β under either of its names.

    Raises:
        ValueError: it was given under both, or is not from 0 to 100.
    """
    return check_exponent(one_of("importance_sampling_exponent", importance_sampling_exponent, "beta", beta, 0.4))


@dataclass(frozen=True)
class SampleOptions:
    """How a batch is drawn; see `replay_server.Client.sample`.

    Raises:
        SchemaError: the columns are no list of names.
    """

    importance_sampling_exponent: float = 0.4
    timeout: float | None = None
    columns: Sequence[str] | None = None
    replace: bool = True
    policy_version: int | None = None
    coded: bool | None = None
    details: bool = False

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", names_of(self.columns))


@dataclass(frozen=True)
class SamplerOptions:
    """What a sampler draws, and how far ahead; see `replay_server.Client.sampler`.

    Raises:
        ValueError: a number is out of range, or `allocate` cannot be called.
        LimitExceeded: `batch_size` is more than any table gives at once.
    """

    batch_size: int
    prefetch: int = 2
    sample: SampleOptions = field(default_factory=SampleOptions)
    writable: bool = False
    allocate: Allocate = np.empty
    workers: int = 1
    in_flight: int | None = None

    def __post_init__(self) -> None:
        check_count(self.workers, "workers", 1)
        if self.in_flight is not None:
            check_count(self.in_flight, "in_flight", self.workers, " (one request for each worker)")
        check_count(self.prefetch, "prefetch", 1, " batch")
        check_batch_size(self.batch_size)
        check_timeout(self.sample.timeout)
        if self.sample.policy_version is not None:
            check_version(self.sample.policy_version)
        if not callable(self.allocate):
            raise ValueError(f"allocate must be a function such as np.empty, got {self.allocate!r}")

    @property
    def requests(self) -> int:
        """Under way at once, at most."""
        return self.workers if self.in_flight is None else self.in_flight

    @property
    def ahead(self) -> int:
        """Batches that are asked for or wait for the caller, at most."""
        return max(self.prefetch, self.requests)

    def of_worker(self, number: int) -> int:
        """How many of the requests are that worker's."""
        return self.requests // self.workers + (number < self.requests % self.workers)


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
