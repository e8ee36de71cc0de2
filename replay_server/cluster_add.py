"""Adding to shards: how a batch is split, which shards each part is offered to, and what becomes of a batch that one of
them refuses.

A part is whole or not at all, and so is a batch, but for one thing: a full table evicts items for a part before another
shard refuses its own. So what was stored is removed again, and the error says so.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import cluster_queue, commands
from .checks import check_columns, check_priorities, check_timeout
from .commands import ServedTable
from .driver import Operation
from .errors import ConnectionLost, SchemaError, TableClosed, Timeout, explain
from .gather import all_or_error, together
from .ragged import items_of
from .selectors import MinSize
from .table import Table

if TYPE_CHECKING:
    from .cluster_known import Shard
    from .cluster_operations import ClusterOperations

LEAST_PART = 32
"""Items of a batch that are worth a request of their own."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
"""On one shard, before another one is asked, or the same one again: what waits sends its columns anew each time."""


def add(
    cluster: ClusterOperations, name: str, data: Mapping[str, Any], priorities: Any, timeout: float | None
) -> Operation[np.ndarray]:
    """See `Operations.add`."""
    timeout = check_timeout(timeout)

    def attempt(served: ServedTable) -> Operation[np.ndarray]:
        count, columns = check_columns(served.table, data)
        checked = None if priorities is None else check_priorities(priorities, count)
        if count == 0:
            return np.empty(0, np.uint64)
        takers = yield from cluster._takers()
        additions = []
        for order, low, high in _plan(cluster, count, takers, served.table):
            part = {leaf: items_of(each, low, high) for leaf, each in zip(served.table.leaves, columns, strict=True)}
            own = None if checked is None else checked[low:high]
            additions.append(_added(cluster, order, name, part, own, timeout))
        results = yield from together(additions)
        stored = [result for result in results if not isinstance(result, Exception)]
        if stored and len(stored) < len(results):
            refusal = next(result for result in results if isinstance(result, Exception))
            yield from _take_back(cluster, name, np.concatenate(stored), refusal)
        return np.concatenate(all_or_error(results))

    return (yield from cluster._of_current(name, attempt))


def _plan(
    cluster: ClusterOperations, count: int, present: Sequence[Shard], part: Table
) -> list[tuple[Sequence[Shard], int, int]]:
    """The parts of a batch: the shards that each is offered to, in this order, and its first and last item."""
    first = next(cluster._turns)
    if cluster_queue.has_order(part):  # one shard alone, so that the order of a producer is kept
        if cluster._own not in present:
            cluster._own = present[first % len(present)]
        return [([cluster._own], 0, count)]
    in_turn = [present[(first + place) % len(present)] for place in range(len(present))]
    return [
        (in_turn[place:] + in_turn[:place], low, high)
        for place, (low, high) in enumerate(itertools.pairwise(_bounds(count, len(present), part)))
    ]


def _bounds(count: int, shards: int, part: Table) -> list[int]:
    """Where the parts of a batch begin and end: as many as are worth it; more where a shard's share of the table or
    of its rate limiter is small."""
    parts = max(count // LEAST_PART, -(-count // part.capacity), 1)
    parts = min(shards, count, parts if isinstance(part.rate_limiter, MinSize) else shards)
    return [count * part // parts for part in range(parts + 1)]


def _added(
    cluster: ClusterOperations,
    order: Sequence[Shard],
    name: str,
    columns: Mapping[str, Any],
    priorities: np.ndarray | None,
    timeout: float | None,
) -> Operation[np.ndarray]:
    """Adds a part on the first of these shards that takes it. Where a rate limiter may hold it back, all are tried
    before one is waited for, and none is waited for alone: it may be another one that goes on. What a shard refuses
    that leaves goes to the others."""
    deadline = None if timeout is None else time.monotonic() + timeout
    served = yield from order[0]._known(name)
    if isinstance(served.table.rate_limiter, MinSize):
        order = order[:1]
    # A shard that waits may be asked whether it is still there by asking it again.
    patience = math.inf if cluster._options.missing == "wait" else cluster._options.missing_after
    attempts = zip(itertools.cycle(order), _waits(len(order), patience), strict=False)
    for asked, (shard, most) in enumerate(attempts, 1):
        seconds = min(most, math.inf if deadline is None else max(0.0, deadline - time.monotonic()))
        try:
            return (yield from _on(shard, name, columns, priorities, None if seconds == math.inf else seconds))
        except Timeout as error:
            if asked >= len(order) and deadline is not None and time.monotonic() >= deadline:
                what = f"add of {len(next(iter(columns.values())))} to {name!r}"
                raise explain(what, timeout, Timeout(error.reason)) from None
        except TableClosed:
            if not (yield from cluster._has_left(shard)):
                raise
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ((others, _, _),) = _plan(cluster, 1, (yield from cluster._takers()), served.table)
            return (yield from _added(cluster, others, name, columns, priorities, left))
        except ConnectionLost:
            if cluster._options.missing == "leave_out":
                shard.leave_out()
            raise
    raise AssertionError("unreachable: it asks again until it raises")


def _waits(shards: int, patience: float) -> Iterator[float]:
    """Seconds that each attempt of an add may wait on its shard."""
    if shards == 1:
        yield from itertools.repeat(patience)
    yield from itertools.repeat(0.0, shards)
    wait_s = _FIRST_WAIT_S
    while True:
        yield min(wait_s, patience)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _on(
    shard: Shard, name: str, columns: Mapping[str, Any], priorities: np.ndarray | None, timeout: float | None
) -> Operation[np.ndarray]:
    """Adds items to one shard."""

    def attempt(served: ServedTable) -> Operation[np.ndarray]:
        if tuple(columns) != tuple(served.table.leaves):
            raise SchemaError(f"table {name!r} has other columns on another shard: drop it, and create it again")
        given = list(columns.values())
        return shard._answer(commands.add(served, len(given[0]), given, priorities, timeout))

    return shard._of_current(name, attempt)


def _take_back(cluster: ClusterOperations, name: str, stored: np.ndarray, refusal: Exception) -> Operation[None]:
    """Removes what shards have stored of a batch that another one refused, and tells the refusal."""
    removed = yield from cluster._by_shard(stored, lambda shard, ids, _: shard.delete(name, ids))
    left = sum(len(which) for which, result in removed if isinstance(result, Exception))
    told = f"the {len(stored)} items of the batch that other shards had stored were removed again"
    if left:
        told = f"{told}, except {left} on shards that answer no more"
    refusal.args = (f"{refusal}; {told}; what full shards had evicted for them is gone", *refusal.args[1:])
