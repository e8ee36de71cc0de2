"""A sample over shards of a table whose sampler has an order (fifo, lifo, heaps): the first items of each shard.

No shard knows where the others' items stand in the order of all, so what is kept is each shard's order. A client adds
to one shard alone of such a table, so items of one producer come out in that producer's order. Parts are taken of the
shards by how much each holds, each part whole or not at all.

A queue's items leave with the reply. So where a part could not be taken (another client was faster, a rate limiter
holds it back), what the others gave is kept: the call goes on with it, or, if its time is over, the next call begins
with it. Where items stay in the table, a part of the same size is used again, and nothing outlasts the call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .batch import Batch, check_out, new_batch
from .cluster_sample import join_ragged
from .cluster_tables import check_fits, closed_on_all, too_few, whole_of
from .cluster_wait import Wait
from .commands import ServedTable
from .driver import Operation
from .errors import ConnectionLost, TableClosed, Timeout
from .gather import together
from .options import SampleOptions
from .ragged import Ragged, items_of
from .selectors import Prioritized, Uniform
from .table import Table
from .tree import mapped

if TYPE_CHECKING:
    from .cluster_operations import ClusterOperations

Infos = Mapping[int, Mapping[str, Any]]
"""Of a table, by shard."""


def has_order(table: Table) -> bool:
    """Whether a sample gives the first items of an order."""
    return not isinstance(table.sampler, Prioritized | Uniform)


class Key(NamedTuple):
    """What was asked for: of which table, which columns, and whether with details."""

    table: str
    columns: tuple[str, ...]
    details: bool


@dataclass(frozen=True)
class Part:
    """Items that one shard gave, and which of the tables of that name they are from."""

    shard: int
    incarnation: int
    batch: Batch

    def __len__(self) -> int:
        return len(self.batch)

    def items(self, low: int, high: int) -> Part:
        """Items low to high - 1."""
        old = self.batch
        ids, probabilities, weights, *details = (head[low:high] for head in old.heads())
        data = mapped(old.data, lambda column: items_of(column, low, high))
        return replace(self, batch=Batch(data, ids, probabilities, weights, details=next(iter(details), None)))


class Held:
    """What was taken of queues, and not given to a caller yet. For any thread."""

    def __init__(self) -> None:
        self._parts: dict[Key, list[Part]] = {}
        self._lock = threading.Lock()
        self._emptied: dict[str, int] = {}
        """By table: how often what is held of it was dropped, so that a call that was on its way holds nothing more."""

    def emptied(self, name: str) -> int:
        """How often what is held of a table was dropped."""
        return self._emptied.get(name, 0)

    def tables(self) -> set[str]:
        """Of which something is held."""
        with self._lock:
            return {key.table for key in self._parts}

    def drop(self, name: str) -> None:
        """Holds nothing of a table any more."""
        with self._lock:
            self._emptied[name] = self.emptied(name) + 1
            self._parts = {key: parts for key, parts in self._parts.items() if key.table != name}

    def take(self, key: Key) -> list[Part]:
        """All that is held."""
        with self._lock:
            return self._parts.pop(key, [])

    def keep(self, key: Key, parts: Sequence[Part], emptied: int) -> None:
        """Holds parts, before others, unless the table's were dropped since there were so many drops."""
        with self._lock:
            if parts and emptied == self.emptied(key.table):
                self._parts[key] = [*parts, *self._parts.get(key, [])]


def take(
    cluster: ClusterOperations, name: str, count: int, out: Batch | None, options: SampleOptions
) -> Operation[Batch]:
    """Takes a batch, waiting as the options say."""
    wait = Wait(f"sample of {count} from {name!r}", options.timeout)
    emptied, parts, keeps, key = cluster._held.emptied(name), [], False, Key(name, (), False)
    try:
        while True:
            served, told = yield from _as_now(cluster, name)
            whole = whole_of({number: each.table for number, each in served.items()})
            check_fits(whole, count, " in order")
            if out is not None:
                check_out(out, whole, count, options.columns, options.details)
            keeps, key = whole.max_times_sampled > 0, Key(name, whole.chosen(options.columns), options.details)
            parts = [
                part
                for part in parts + cluster._held.take(key)
                if part.shard not in served or part.incarnation == served[part.shard].incarnation
            ]
            parts, others = first_of(parts, count)
            cluster._held.keep(key, others, emptied)
            shards = cluster._shards
            try:
                parts, reason = yield from _completed(cluster, whole, count, options, parts, served, told)
            except ConnectionLost:
                if cluster._options.missing != "leave_out" and not (yield from cluster._are_others(shards)):
                    raise
                continue
            if sum(map(len, parts)) == count:
                break
            if closed_on_all(told):
                raise TableClosed(f"table {name!r} is closed on all shards, and {reason}")
            yield from wait.pause(cluster, reason)
    except BaseException:
        if keeps:
            cluster._held.keep(key, parts, emptied)
        raise
    batch = new_batch(whole, count, key.columns, details=key.details) if out is None else out
    put_together(batch, [part.batch for part in parts])
    batch.missing = tuple(shard.number for shard in cluster._shards if shard.number not in told)
    return batch


def _as_now(cluster: ClusterOperations, name: str) -> Operation[tuple[dict[int, ServedTable], Infos]]:
    """The table as the shards have it, and what they tell of it."""
    served = yield from cluster._gathered(lambda shard: shard._known(name))
    told = yield from cluster._gathered(lambda shard: shard.info(name))
    if any(number not in served or served[number].incarnation != info["incarnation"] for number, info in told.items()):
        served = yield from cluster._gathered(lambda shard: shard._look_up(name))
    return served, {number: info for number, info in told.items() if number in served}


def _completed(
    cluster: ClusterOperations,
    whole: Table,
    count: int,
    options: SampleOptions,
    parts: list[Part],
    served: Mapping[int, ServedTable],
    told: Infos,
) -> Operation[tuple[list[Part], str]]:
    """Parts, and what there is of what they lack, if there is enough; and why they lack something still."""
    keeps = whole.max_times_sampled > 0
    wanted = count - (sum(map(len, parts)) if keeps else 0)
    if wanted == 0:
        return parts, ""
    if reason := too_few(whole.rate_limiter, {number: served[number].table.rate_limiter for number in told}, told):
        return parts, reason
    sizes = {number: int(info["size"]) for number, info in told.items()}
    leaving = {shard.number for shard in cluster._shards if shard.leaving}
    ready = {
        number: size
        if number in leaving or size >= getattr(served[number].table.rate_limiter, "min_size_to_sample", 0)
        else 0
        for number, size in sizes.items()
    }
    if sum(ready.values()) < wanted:
        low = [number for number, size in sizes.items() if size > ready[number]]
        below = f", shards {', '.join(map(str, low))} below their share of min_size_to_sample" if low else ""
        held = f"the table holds {sum(sizes.values())} on {len(told)} shards{below}"
        return parts, f"too few items: {wanted} are wanted, {held}"
    # Of shards that leave first: in proportion to the others, their last items might never come.
    last = {number: size for number, size in ready.items() if size and number in leaving}
    of_last = min(wanted, sum(last.values()))
    others = {number: size for number, size in ready.items() if number not in last}
    asked = {**shares(last, of_last), **(shares(others, wanted - of_last) if wanted > of_last else {})}
    if not keeps:
        parts = [part for part in parts if len(part) == asked.get(part.shard)]
        asked = {number: size for number, size in asked.items() if all(number != part.shard for part in parts)}
    shards = [shard for shard in cluster._shards if asked.get(shard.number)]
    at_once = replace(options, timeout=0)
    results = yield from together(
        [shard._sample(whole.name, asked[shard.number], None, False, at_once) for shard in shards]
    )
    reasons = []
    for shard, result in zip(shards, results, strict=True):
        if isinstance(result, Batch):
            parts.append(Part(shard.number, shard._tables[whole.name].incarnation, result))
        elif isinstance(result, Timeout):
            reasons.append(result.reason)
        elif isinstance(result, ConnectionLost) and cluster._options.missing == "leave_out":
            shard.leave_out()
        elif isinstance(result, TableClosed):  # on a shard that leaves, perhaps
            reasons.append(str(result))
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, Timeout | TableClosed):
            raise result
    return parts, next(iter(reasons), "")


def shares(sizes: Mapping[int, int], wanted: int) -> dict[int, int]:
    """Parts of `wanted` in proportion to sizes, none larger than its size; wanted <= their sum."""
    total = sum(sizes.values())
    parts = {number: wanted * size // total for number, size in sizes.items()}
    left = wanted - sum(parts.values())
    for number in sorted(sizes, key=lambda number: parts[number] - wanted * sizes[number] / total):
        more = min(left, 1, sizes[number] - parts[number])
        parts[number] += more
        left -= more
    return parts


def first_of(parts: Sequence[Part], count: int) -> tuple[list[Part], list[Part]]:
    """The first `count` items, and the others."""
    first, others, left = [], [], count
    for part in parts:
        used = min(left, len(part))
        left -= used
        if used:
            first.append(part.items(0, used))
        if used < len(part):
            others.append(part.items(used, len(part)))
    return first, others


def put_together(batch: Batch, parts: list[Batch]) -> None:
    """Fills a batch with the items of parts, which are as many, one part after another."""
    for name, column in batch.columns.items():
        pieces: list[Any] = [part.columns[name] for part in parts]
        if isinstance(column, Ragged):
            join_ragged(pieces, column)
        else:
            np.concatenate(pieces, out=column)
    for target, given in zip(batch.heads(), zip(*(part.heads() for part in parts), strict=True), strict=True):
        np.concatenate(given, out=target)
