"""Batches as they are received: into the caller's arrays, by way of shared memory, or as distinct steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .batch import Batch
from .codec import Reading, bulk_after, bulk_into, length_of, not_resp, read_value, value_after
from .errors import ReplayError, SchemaError, ServerError, explain
from .expand import MOST_PLACES, expand_windows
from .ragged import Ragged
from .shared_memory import Arena, Lease
from .table import Table
from .tree import shaped

_NO_COLUMN = np.empty(0)
SHARED = b"*3"
"""What the place of a column in shared memory begins with."""


@dataclass
class SharedBatch:
    """A batch some of whose columns lie in shared memory, before the connection has put arrays over them.

    Attributes:
        what: for error messages.
        batch: its other arrays are filled.
        places: column name → where it lies in the connection's arena, and its bytes.
        lease: of all of them.
        fits: whether the reply fits the arrays of `batch`.
    """

    what: str
    batch: Batch
    places: dict[str, tuple[int, int]]
    lease: int
    fits: bool


def over_shared_memory(shared: SharedBatch, arena: Arena | None) -> Batch | ReplayError:
    """The batch with read-only arrays over the arena; what does not fit the table gives its lease back at once."""
    if arena is None:
        return ServerError(f"{shared.what}: the reply is in shared memory that this connection does not have")
    lease = Lease(arena, shared.lease)
    if not shared.fits:
        return misfit(shared.what)
    batch = shared.batch
    columns = dict(batch.columns)
    for name, (offset, size_bytes) in shared.places.items():
        column: Any = columns[name]
        if not isinstance(column, Ragged):
            columns[name] = lease.array(offset, column.dtype, column.shape)
            continue
        memory = lease.array(offset, np.dtype(np.uint8), (size_bytes,))
        try:
            columns[name] = Ragged.over(memory, len(batch), column.values.dtype, column.values.shape[1:])
        except SchemaError as error:
            return ServerError(f"{shared.what}: {error}")
    return replace(batch, data=shaped(batch.data, columns), lease=lease)


def misfit(what: str) -> ServerError:
    """The error for a reply whose columns are others."""
    return ServerError(f"{what}: the reply does not fit the table's signature")


def batch_reading(what: str, timeout: float | None, out: Batch) -> Reading[Any]:
    """Reads [ids, probabilities, weights, name, blob, …] straight into the arrays of `out`; details follow the weights.

    [lease, offset, bytes] in the place of a blob says where in shared memory a column lies.
    """
    line = yield None
    if line[:1] == b"-":
        return explain(what, timeout, (yield from value_after(line)))
    columns, heads = out.columns, out.heads()
    named = length_of(line) - len(heads)
    if line[:1] != b"*" or named < 0 or named % 2:
        raise not_resp(line)
    fits = named == 2 * len(columns)
    for array in heads:
        fits = (yield from bulk_into((yield None), array)) and fits
    places: dict[str, tuple[int, int]] = {}
    lease = 0
    for _ in range(named // 2):
        name = bytes((yield from bulk_after((yield None))) or b"").decode("utf-8", "replace")
        column = columns.get(name, _NO_COLUMN)
        header = yield None
        if header == SHARED:
            lease, at, size_bytes = yield from place_of()
            places[name] = at, size_bytes
            fits = (isinstance(column, Ragged) or size_bytes == column.nbytes) and name in columns and fits
        else:
            fits = (yield from column_into(header, column, len(out))) and fits
    if places:
        return SharedBatch(what, out, places, lease, fits)
    return out if fits else misfit(what)


def place_of() -> Reading[tuple[int, int, int]]:
    """Reads where in shared memory a column lies: the lease, the offset, and how many bytes."""
    return (yield from read_value()), (yield from read_value()), (yield from read_value())


def copied_from(memory: np.ndarray, column: Any, count: int) -> bool:
    """Copies a column of `count` items out of shared memory, uint8 (n,); False: it is not what was expected."""
    if not isinstance(column, Ragged):
        if column.nbytes != len(memory):
            return False
        column[...] = memory.view(column.dtype).reshape(column.shape)
        return True
    assert column.room is not None
    column.room.grow(len(memory))
    column.room.memory[: len(memory)] = memory
    return _settled(column, count, len(memory))


def _settled(column: Ragged, count: int, size_bytes: int) -> bool:
    try:
        column.settle(count, size_bytes)
    except SchemaError:
        return False
    return True


def column_into(header: bytes, column: Any, count: int) -> Reading[bool]:
    """Receives a column; False: it is not what was expected."""
    if not isinstance(column, Ragged):
        return (yield from bulk_into(header, column))
    size_bytes = length_of(header)
    assert column.room is not None
    column.room.grow(size_bytes)
    if not (yield from bulk_into(header, column.room.memory[: max(0, size_bytes)])):
        return False
    return _settled(column, count, size_bytes)


def coded_reading(what: str, timeout: float | None, table: Table, out: Batch) -> Reading[Any]:
    """Reads [ids, probabilities, weights, name, blob, …] in which windows, but for ragged ones, come as coded columns
    of steps."""
    line = yield None
    if line[:1] == b"-":
        return explain(what, timeout, (yield from value_after(line)))
    columns, heads = out.columns, out.heads()
    if line[:1] != b"*" or length_of(line) != len(heads) + 2 * coded_count(table, columns):
        raise not_resp(line)
    fits = True
    for array in heads:
        fits = (yield from bulk_into((yield None), array)) and fits
    return (yield from coded_columns_into(what, table, columns, len(out), fits)) or out


def _by_source(table: Table, columns: Iterable[str]) -> dict[str, list[str]]:
    """The windows among columns, by the column of steps that they look at."""
    windows: dict[str, list[str]] = {}
    for name in columns:
        if name in table.fixed_windows:
            windows.setdefault(table.fixed_windows[name].source, []).append(name)
    return windows


def coded_count(table: Table, columns: Mapping[str, Any]) -> int:
    """How many columns come where windows are coded."""
    return sum(name not in table.fixed_windows for name in columns) + len(_by_source(table, columns))


def coded_columns_into(
    what: str, table: Table, columns: Mapping[str, Any], count: int, fits: bool
) -> Reading[ReplayError | None]:
    """Receives columns of `count` items whose windows are coded; the error where something does not fit."""
    for name in (name for name in columns if name not in table.fixed_windows):
        fits = (yield from bulk_after((yield None))) == name.encode() and fits
        fits = (yield from column_into((yield None), columns[name], count)) and fits
    for source, names in _by_source(table, columns).items():
        fits = (yield from bulk_after((yield None))) == source.encode() and fits
        header = yield None
        coded = np.empty(max(0, length_of(header)), np.uint8)
        if not (yield from bulk_into(header, coded)) or not fits:
            fits = False
            continue
        steps = [table.fixed_windows[name].steps for name in names]
        try:
            expand_windows(coded, [columns[name] for name in names], steps, table.step_columns[source].item_bytes)
        except ServerError as error:
            return ServerError(f"{what}: {error}")
    return None if fits else misfit(what)


def codes(table: Table, count: int, columns: Sequence[str] | None, wanted: bool | None, local: bool) -> bool:
    """Whether a batch is to come as distinct steps: as wanted, or, where that is None, where the table is compressed or
    the server not local; never where there are no windows, or they show too many steps."""
    if wanted is None:
        wanted = not local or getattr(table, "compression", "none") != "none"
    places: dict[str, int] = {}
    for name, window in table.fixed_windows.items():
        if columns is None or name in columns:
            places[window.source] = places.get(window.source, 0) + window.steps * count
    return bool(wanted and places) and max(places.values()) <= MOST_PLACES
