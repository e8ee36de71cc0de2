"""A sample over shards of a table whose sampler has an order (fifo, lifo, heaps): the first items of each shard.

No shard knows where the others' items stand in the order of all, so what is kept is each shard's order. A client adds
to one shard alone of such a table, so items of one producer come out in that producer's order. Parts are taken of the
shards by how much each holds, each part whole or not at all.

A queue's items leave with the reply. So where another client was faster, and a part could not be taken, what the others
gave is kept: the call goes on with it, or, if its time is over, the next call begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrivals import deadline_after
from .batch import Batch, check_out, new_batch
from .checks import check_timeout
from .cluster_sample import join_ragged
from .driver import Operation
from .errors import LimitExceeded, TableClosed, Timeout
from .options import SampleOptions
from .ragged import Ragged
from .selectors import Prioritized, Uniform
from .table import Table
from .together import together

if TYPE_CHECKING:
    from .cluster_operations import ClusterOperations

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.001, 0.05


def has_order(table: Table) -> bool:
    """Whether a sample gives the first items of an order."""
    return not isinstance(table.sampler, Prioritized | Uniform)


def take(
    cluster: ClusterOperations, table: Table, count: int, out: Batch | None, options: SampleOptions
) -> Operation[Batch]:
    """Takes a batch, waiting as the options say; `table` is one shard's."""
    if count < 1:
        raise LimitExceeded(f"expected a sample of at least 1 item, got {count}")
    timeout, delay = check_timeout(options.timeout), _FIRST_DELAY_S
    deadline, names = deadline_after(timeout), table.chosen(options.columns)
    if out is not None:
        check_out(out, table, count, options.columns, options.details)
    key = (table.name, names, options.details)
    emptied = cluster._emptied.get(table.name, 0)
    with cluster._held_lock:
        held, kept = first_of(cluster._held.pop(key, []), count)
        if kept:
            cluster._held[key] = kept
    try:
        while (wanted := count - sum(map(len, held))) > 0:
            reason, closed = yield from _take_parts(cluster, table.name, wanted, options, held)
            if sum(map(len, held)) >= count:
                break
            if closed:
                raise TableClosed(f"table {table.name!r} is closed on all shards, and {reason}")
            if deadline is not None and time.monotonic() + delay > deadline:
                waited = "would have to wait" if timeout == 0 else f"timed out after {timeout:g} s"
                raise Timeout(f"sample of {count} from {table.name!r} {waited}: {reason}", reason)
            yield cluster._shards[0]._pool.pause, delay
            delay = min(2 * delay, _LONGEST_DELAY_S)
    except BaseException:
        with cluster._held_lock:
            if emptied == cluster._emptied.get(table.name, 0):
                cluster._held[key] = held + cluster._held.get(key, [])
        raise
    batch = new_batch(table, count, names, details=options.details) if out is None else out
    put_together(batch, held)
    batch.missing = tuple(shard.number for shard in cluster._shards if shard.away_until > time.monotonic())
    return batch


def _take_parts(
    cluster: ClusterOperations, name: str, wanted: int, options: SampleOptions, held: list[Batch]
) -> Operation[tuple[str, bool]]:
    """Takes what there is of what is wanted, if there is enough: why not else, and whether nothing will come."""
    told = yield from cluster._gathered(lambda shard: shard.info(name))
    sizes = {number: int(info["size"]) for number, info in told.items()}
    total = sum(sizes.values())
    if total < wanted:
        closed = all(info["closed"] for info in told.values())
        return f"too few items: {wanted} are wanted, the table holds {total} on {len(told)} shards", closed
    parts = shares(sizes, wanted)
    at_once = replace(options, timeout=0)
    shards = [shard for shard in cluster._shards if parts.get(shard.number)]
    results = yield from together([shard._sample(name, parts[shard.number], None, False, at_once) for shard in shards])
    held += [result for result in results if isinstance(result, Batch)]
    reason = ""
    for result in results:
        if isinstance(result, Timeout):
            reason = result.reason
        elif isinstance(result, Exception):
            raise result
    return reason, False


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


def first_of(parts: list[Batch], count: int) -> tuple[list[Batch], list[Batch]]:
    """Whole parts of at most `count` items together, and the others."""
    sums = np.cumsum([len(part) for part in parts])
    whole = int(np.searchsorted(sums, count, side="right"))
    return parts[:whole], parts[whole:]


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
