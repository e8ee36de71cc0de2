"""Samplers, removers and rate limiters: which items are drawn, which leave, and when callers wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .errors import SchemaError


def one_of(name: str, value: float | None, short: str, other: float | None, default: float) -> float:
    """A number that may be given under either of two names.

    Raises:
        ValueError: it was given under both.
    """
    if value is not None and other is not None:
        raise ValueError(f"{name} and {short} are names of the same number: expected one of them, got both")
    return default if value is None and other is None else value if other is None else other  # type: ignore[return-value]


@dataclass(frozen=True, init=False)
class Prioritized:
    """As a sampler, draws item i with probability p_i^α / Σ p^α, and never an item of priority zero. As a remover,
    removes item i with that probability, and the oldest item if all priorities are zero.

    Args:
        priority_exponent: α ≥ 0; 0.6 unless it is given.
        alpha: the same under its short name; give one of them.
        stratified: True: for a batch of N items, one draw from each of N equal parts of Σ p^α, which spreads the batch
            (Schaul et al. 2016). False: independent draws.
    """

    priority_exponent: float
    stratified: bool

    def __init__(
        self, priority_exponent: float | None = None, stratified: bool = True, *, alpha: float | None = None
    ) -> None:
        object.__setattr__(
            self, "priority_exponent", one_of("priority_exponent", priority_exponent, "alpha", alpha, 0.6)
        )
        object.__setattr__(self, "stratified", stratified)


@dataclass(frozen=True)
class Uniform:
    """Every item is drawn, or leaves, with the same probability; a sampler draws with replacement."""


@dataclass(frozen=True)
class Fifo:
    """The oldest items first. A batch holds the oldest items in order, each once."""


@dataclass(frozen=True)
class Lifo:
    """The newest items first. A batch holds the newest items, the newest first, each once."""


@dataclass(frozen=True)
class MaxHeap:
    """The items of the highest raw priority first; among equal priorities the oldest. A batch holds the first items in
    that order, each once."""


@dataclass(frozen=True)
class MinHeap:
    """The items of the lowest raw priority first; among equal priorities the oldest. A batch holds the first items in
    that order, each once."""


@dataclass(frozen=True)
class MinSize:
    """Rate limiter: sampling waits until the table holds `min_size_to_sample` items."""

    min_size_to_sample: int = 1


@dataclass(frozen=True)
class SampleToInsertRatio:
    """Rate limiter, as Reverb's: keeps sampled / inserted items near `samples_per_insert`. Either side may wait.

    Args:
        samples_per_insert: how often an item is sampled on average, > 0.
        min_size_to_sample: items needed before the first sample.
        error_buffer: how far, in samples, either side may run ahead. Use at least a few times the larger of two
            numbers: the sampled batch, and the added batch times `samples_per_insert`. Otherwise a batch could never
            be admitted.
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float


@dataclass(frozen=True)
class Queue:
    """Rate limiter: the table holds at most `size` items, and adding waits while it is full. Use it with the `Fifo`
    sampler and `max_times_sampled=1`."""

    size: int


Selector: TypeAlias = Prioritized | Uniform | Fifo | Lifo | MaxHeap | MinHeap
RateLimiter: TypeAlias = MinSize | SampleToInsertRatio | Queue

SELECTORS: dict[str, type[Any]] = {
    "prioritized": Prioritized,
    "uniform": Uniform,
    "fifo": Fifo,
    "lifo": Lifo,
    "max_heap": MaxHeap,
    "min_heap": MinHeap,
}
LIMITERS: dict[str, type[Any]] = {
    "min_size": MinSize,
    "sample_to_insert_ratio": SampleToInsertRatio,
    "queue": Queue,
}


def _to_map(part: Any, kinds: dict[str, type[Any]], what: str) -> dict[str, Any]:
    """{"kind": …} and the fields of a sampler, remover or rate limiter."""
    for kind, part_type in kinds.items():
        if type(part) is part_type:
            return {"kind": kind, **vars(part)}
    expected = ", ".join(part_type.__name__ for part_type in kinds.values())
    raise SchemaError(f"{what} must be one of {expected}, got {part!r}")


def part_from_map(value: Any, kinds: dict[str, type[Any]], what: str) -> Any:
    fields = {"kind": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    kind = fields.pop("kind", None)
    if kind not in kinds:
        raise SchemaError(f'{what} must be one of {", ".join(kinds)}, or a map with such a "kind", got {value!r}')
    try:
        return kinds[kind](**fields)
    except TypeError as error:
        names = ", ".join(getattr(kinds[kind], "__dataclass_fields__", {})) or "no others"
        raise SchemaError(f"{what} {kind!r} takes {names}; got {', '.join(fields) or 'none'}") from error


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(value: Any, name: str, least: int) -> None:
    if not is_whole(value) or value < least:
        raise SchemaError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_real(value: Any, name: str, least: float) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least:
        raise SchemaError(f"{name} must be a finite number of at least {least:g}, got {value!r}")


def selector_map(selector: Selector, what: str) -> dict[str, Any]:
    """A sampler or remover as in a table's spec, after checking its numbers."""
    fields = _to_map(selector, SELECTORS, what)
    if "priority_exponent" in fields:
        _check_real(fields["priority_exponent"], "priority_exponent", 0)
        fields["priority_exponent"] = float(fields["priority_exponent"])
        if not isinstance(fields["stratified"], bool):
            raise SchemaError(f"stratified must be True or False, got {fields['stratified']!r}")
        if what == "remover":
            del fields["stratified"]  # items leave one by one
    return fields


def limiter_map(limiter: RateLimiter) -> dict[str, Any]:
    """A rate limiter as in a table's spec, after checking its numbers."""
    fields = _to_map(limiter, LIMITERS, "rate_limiter")
    for name in ("min_size_to_sample", "size"):
        if name in fields:
            check_whole(fields[name], name, 1)
            fields[name] = int(fields[name])
    for name in ("samples_per_insert", "error_buffer"):
        if name in fields:
            _check_real(fields[name], name, 0)
            fields[name] = float(fields[name])
            if fields[name] == 0:
                raise SchemaError(f"{name} must be above 0, got 0")
    return fields
