"""A table over shards: what each shard's part of it is, and what the parts are together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .errors import LimitExceeded, SchemaError
from .selectors import LIMITERS, MinSize, Prioritized, Queue, RateLimiter, SampleToInsertRatio, Uniform
from .table import Table
from .table_info import part_told

_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of shards: with equal seeds their arrivals would come at the same times, and not be independent."""
_BOUNDLESS = 1e15
"""Samples that nobody draws."""
CHANGEABLE = ("sampler", "remover", "rate_limiter", "max_times_sampled", "max_bytes", "max_staleness")
"""Settings of a live table, by `configure`. A snapshot's table may have others than the one that is given."""
_OF_ONE_SHARD = ("too few items", "all priorities are zero")
"""How reasons begin for which a shard by itself cannot be sampled, and the whole may be."""
_SUMS = (
    "size", "capacity", "bytes", "steps", "step_bytes", "streams", "disk_bytes", "cold_pages", "added", "sampled",
    "unused", "removed", "stale_updates", "stale_items", "updates_applied", "waiting", "waiting_add",
    "waiting_sample", "pinned_slots", "reserved_slots", "free_slots", "retired_slots", "max_bytes", "total_priority",
    "zero_priorities",
)  # fmt: skip


def share_of_limiter(limiter: RateLimiter, place: int, shards: int) -> RateLimiter:
    """The share of a rate limiter of the shard at this place: where each keeps to its own, all together keep to the
    whole.

    Raises:
        SchemaError: a share of `error_buffer` would be too small to add or to sample anything.
    """
    if isinstance(limiter, Queue):
        return Queue(math.ceil(limiter.size / shards))
    size = _share_of_minimum(limiter.min_size_to_sample, place % shards, shards)
    if isinstance(limiter, MinSize):
        return MinSize(size)
    least = max(1.0, limiter.samples_per_insert)
    if limiter.error_buffer / shards < least:
        raise SchemaError(
            f"rate_limiter: on {shards} shards, expected error_buffer to be at least {shards} and at least {shards} * "
            f"samples_per_insert, so {shards * least:g}, got {limiter.error_buffer:g} with samples_per_insert "
            f"{limiter.samples_per_insert:g}"
        )
    return SampleToInsertRatio(limiter.samples_per_insert, size, limiter.error_buffer / shards)


def check_can_be_shared(table: Table) -> None:
    """Checks that samples of a table can be drawn over several shards.

    Raises:
        SchemaError: items that are sent in excess would be used up.
    """
    if table.max_times_sampled and isinstance(table.sampler, Prioritized | Uniform):
        raise SchemaError(
            f"table {table.name!r}: on several shards, expected max_times_sampled 0 with a sampler that is prioritized "
            f"or uniform, got {table.max_times_sampled}: the shards send more items than a batch has, which would be "
            "used up. Take a sampler with an order (Fifo, Lifo, a heap)"
        )


def _share_of_minimum(size: int, place: int, shards: int) -> int:
    """Shares add up to what was asked for: a closed table that holds just that can be sampled. Since 1 is no share (see
    `_whole_limiter`), a small minimum is shared by fewer shards."""
    sharing = max(1, min(shards, size // 2))
    return size // sharing + (place < size % sharing) if place < sharing else min(1, size)


def share_of(table: Table, number: int, shards: int, place: int | None = None) -> Table:
    """The part of a table on shard `number`: equal shares of its capacity, bytes and limits, rounded up; those of
    `min_size_to_sample` add up to it. `place`: of the shard among all; by default its number.

    Raises:
        SchemaError: the table shares the steps of another one, or cannot be sampled over several shards.
    """
    if table.steps_of is not None:
        raise SchemaError(
            f"table {table.name!r} shares the steps of table {table.steps_of!r}, which tables of one server can: on "
            "shards each has steps of its own"
        )
    if shards == 1:
        return table
    check_can_be_shared(table)
    capacity = math.ceil(table.capacity / shards)
    limiter = share_of_limiter(table.rate_limiter, number if place is None else place, shards)
    if _minimum(limiter) > capacity:
        limiter = replace(limiter, min_size_to_sample=capacity)
    return replace(
        table,
        capacity=capacity,
        max_bytes=math.ceil(table.max_bytes / shards),
        rate_limiter=limiter,
        seed=_moved(table.seed, number),
    )


def part_like(part: Table, beside: int, number: int) -> Table:
    """The part of a table on a shard that comes later, as large as that of shard `beside`. It adds nothing to what
    samples wait for: they may go on already, and the first items there must not hold them up."""
    limiter = part.rate_limiter
    if _minimum(limiter) > 1:
        limiter = replace(limiter, min_size_to_sample=1)
    return replace(part, rate_limiter=limiter, seed=_moved(part.seed, number - beside))


def changes_like(part: Table, like: Table, began: Table | None) -> dict[str, Any]:
    """What `configure` has to change in the part of a shard that was started again: the settings of a live table that
    another shard's part, `like`, has. That one began as `began`, where it is known. A share of `min_size_to_sample` is
    taken over only if it was changed since: shares differ, and that of a part that came later is 1."""
    limiter, least = like.rate_limiter, _minimum(part.rate_limiter)
    is_own = began is None or _minimum(limiter) in (1, _minimum(began.rate_limiter))
    if is_own and least and _minimum(limiter):
        limiter = replace(limiter, min_size_to_sample=least)
    wanted = replace(like, rate_limiter=limiter)
    changed = [name for name in CHANGEABLE if getattr(wanted, name) != getattr(part, name)]
    return {name: -1 if (value := getattr(wanted, name)) is None else value for name in changed}


def leaving_limiter(limiter: RateLimiter) -> RateLimiter:
    """The rate limiter of a part whose shard leaves: nothing is added there any more, so nothing holds samples back."""
    if isinstance(limiter, MinSize):
        return MinSize(1)
    if isinstance(limiter, SampleToInsertRatio):
        return replace(limiter, min_size_to_sample=1, error_buffer=_BOUNDLESS)
    return limiter


def is_boundless(limiter: RateLimiter) -> bool:
    """Whether it is one of `leaving_limiter` that holds back nothing, whatever the ratio."""
    return isinstance(limiter, SampleToInsertRatio) and limiter.error_buffer >= _BOUNDLESS


def whole_of(parts: Mapping[int, Table]) -> Table:
    """The table that parts by shard number are together."""
    number, first = next(iter(parts.items()))
    if len(parts) == 1:
        return first
    return replace(
        first,
        capacity=sum(part.capacity for part in parts.values()),
        max_bytes=sum(part.max_bytes for part in parts.values()),
        rate_limiter=_whole_limiter([part.rate_limiter for part in parts.values()]),
        seed=_moved(first.seed, -number),
    )


def _moved(seed: int, number: int) -> int:
    return seed and ((seed + number * _STRIDE) % 2**64 or 1)


def _whole_limiter(parts: Sequence[RateLimiter]) -> RateLimiter:
    first = parts[0]
    if isinstance(first, Queue):
        return Queue(sum(part.size for part in parts if isinstance(part, Queue)))
    sizes = [_minimum(part) for part in parts]
    size = sum(size for size in sizes if size > 1) or min(1, *sizes)  # 1 is no share: of a whole of 1, or `part_like`
    if isinstance(first, MinSize):
        return MinSize(size)
    buffer = sum(part.error_buffer for part in parts if isinstance(part, SampleToInsertRatio))
    return SampleToInsertRatio(first.samples_per_insert, size, buffer)


def too_few(limiter: RateLimiter, parts: Mapping[int, RateLimiter], infos: Mapping[int, Mapping[str, Any]]) -> str:
    """Why a sample has to wait for items, "" if it does not: the minimum is that of the whole.

    A shard that holds its own share of it and holds an add back waits for samples. If these waited for items, neither
    would ever come: all items of a lone writer are on one shard. So then what is there is enough.
    """
    least, size = _minimum(limiter), sum(int(info["size"]) for info in infos.values())
    full = any(info["waiting_add"] and info["size"] >= _minimum(parts[number]) for number, info in infos.items())
    if size >= least or (size and full):
        return ""
    held = f"the table holds {size} on {len(infos)} shards"
    return f"too few items: {held}, sampling waits for min_size_to_sample = {least}"


def _minimum(limiter: RateLimiter) -> int:
    return getattr(limiter, "min_size_to_sample", 0)


def check_fits(table: Table, count: int, how: str) -> None:
    """Checks that a sample may be had at some time.

    Args:
        table: the whole.
        count: items.
        how: the sample is drawn, where no item may come twice; "" where it may.

    Raises:
        LimitExceeded: it never can.
    """
    if how and count > table.capacity:
        raise LimitExceeded(
            f"a sample of {count}{how} is more than a table of {table.capacity} can hold; sample fewer at once"
        )
    if isinstance(table.rate_limiter, Queue) and count > table.rate_limiter.size:
        raise LimitExceeded(
            f"rate limiter: a sample of {count} is more than a queue of {table.rate_limiter.size} can hold; sample "
            "fewer at once"
        )


def closed_on_all(infos: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether nothing will be added to a table any more."""
    return all(info["closed"] for info in infos.values())


def limiter_told(text: str) -> RateLimiter:
    """The rate limiter that an info describes."""
    kind, _, arguments = text.rstrip(")").partition("(")
    given = dict(each.split("=") for each in arguments.split(","))
    if kind == "queue":
        return Queue(int(given["size"]))
    least = int(given["min_size_to_sample"])
    if kind == "min_size":
        return MinSize(least)
    return SampleToInsertRatio(float(given["samples_per_insert"]), least, float(given["error_buffer"]))


def _described(limiter: RateLimiter) -> str:
    """As an info has it. Its numbers are not checked: a minimum of 0 may come from a client in another language."""
    kind = next(kind for kind, limiter_type in LIMITERS.items() if type(limiter) is limiter_type)
    return part_told({"kind": kind, **vars(limiter)})


def _reason(parts: Mapping[int, Mapping[str, Any]], limiters: Mapping[int, RateLimiter]) -> str:
    """Why a sample of one item would wait now, "" if it would not."""
    if reason := too_few(_whole_limiter(list(limiters.values())), limiters, parts):
        return reason
    infos = list(parts.values())
    size, over = sum(info["size"] for info in infos), f"on {len(infos)} shards"
    if not size:
        return f"too few items: the table is empty {over}"
    if infos[0]["sampler"].startswith("prioritized") and not sum(info["total_priority"] for info in infos) > 0:
        return f"all priorities are zero: the table holds {size} items {over}, none may be drawn"
    # Others may have what a shard lacks. Whatever else holds it back holds up a sample of the whole.
    held_back = (info["reason"] for info in infos if info["size"] and not info["reason"].startswith(_OF_ONE_SHARD))
    return next(filter(None, held_back), "")


def whole_info(parts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What infos by shard number are together. Counts add up; whether a sample or an add would wait, and the rate
    limiter, are of the whole; `shards` has each shard's own."""
    infos = list(parts.values())
    limiters = {number: limiter_told(info["rate_limiter"]) for number, info in parts.items()}
    is_open = {number: info for number, info in parts.items() if not info["closed"]} or parts
    whole = dict(infos[0])
    whole.update({key: sum(info[key] for info in infos) for key in _SUMS if key in whole})
    whole["max_priority"] = max(info["max_priority"] for info in infos)
    whole["closed"] = all(info["closed"] for info in infos)
    reasons = [info["closed_reason"] for info in infos if info["closed_reason"]]
    whole["closed_reason"] = reasons[0] if whole["closed"] and reasons else ""
    whole["rate_limiter"] = _described(_whole_limiter([limiters[number] for number in is_open]))
    whole["reason"] = _reason(parts, limiters)
    full = [info["reason_add"] for info in is_open.values()]
    whole["reason_add"] = full[0] if all(full) else ""  # an add goes to a shard that has room
    versions = [info["policy_version"] for info in infos if info["policy_version"] is not None]
    whole["policy_version"] = max(versions, default=None)
    counts: dict[int, int] = {}
    for info in infos:
        for exponent, count in info["priorities"].items():
            counts[exponent] = counts.get(exponent, 0) + count
    whole["priorities"] = dict(sorted(counts.items()))
    del whole["shard"], whole["incarnation"]
    whole["shards"] = {number: dict(info) for number, info in parts.items()}
    return whole
