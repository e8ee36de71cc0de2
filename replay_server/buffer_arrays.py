"""A buffer's view of its callers' arrays: checked once, addresses kept, so that a call costs little beside its work."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._native import ffi, lib
from .batch import Batch, check_out, new_batch
from .checks import check_columns, check_ids, check_priorities
from .ragged import Ragged
from .table import Table
from .tree import Leaves

_BYTES = ffi.typeof("uint8_t[]")
_IDS = ffi.typeof("uint64_t[]")
_DOUBLES = ffi.typeof("double[]")
_FLOATS = ffi.typeof("float[]")
_DETAILS = ffi.typeof("struct table_detail[]")
_UINT64, _FLOAT64 = np.dtype(np.uint64), np.dtype(np.float64)


def _plain(array: np.ndarray) -> np.ndarray:
    """The array, or its bytes where it has a dtype that buffers cannot have."""
    return array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array


class Landing:
    """Where a batch's arrays lie. It holds them as buffers: NumPy lets nobody resize them meanwhile."""

    __slots__ = ("arrays", "columns", "count", "details", "ids", "plan", "pointers", "probabilities", "ragged", "rooms",
                 "slots", "weights")  # fmt: skip

    def __init__(self, plan: SamplePlan, batch: Batch) -> None:
        self.plan = plan
        self.arrays = [*batch.arrays(), batch.details]
        self.count = len(batch)
        self.ids = ffi.from_buffer(_IDS, batch.ids, True)
        self.probabilities = ffi.from_buffer(_DOUBLES, batch.probabilities, True)
        self.weights = ffi.from_buffer(_FLOATS, batch.weights, True)
        details = batch.details
        self.details = ffi.NULL if details is None else ffi.from_buffer(_DETAILS, details.view(np.uint8), True)
        self.ragged = [(column, ffi.new("struct table_rows *")) for column in batch.ragged()]
        rows = iter(self.ragged)
        self.columns = [
            next(rows)[1] if isinstance(column, Ragged) else ffi.from_buffer(_BYTES, _plain(column), True)
            for column in batch.columns.values()
        ]
        self.pointers = ffi.new("void *[]", self.columns or 1)
        self.slots = ffi.new("uint32_t[]", self.count + 1)
        self.give_room()

    def give_room(self) -> None:
        """Tells the core where ragged columns may be written to, and makes room for as much as it says it needs."""
        head = 8 * (self.count + 1)
        self.rooms = []
        for column, rows in self.ragged:
            assert column.room is not None
            column.room.grow(head + rows.length)
            memory = ffi.from_buffer(_BYTES, column.room.memory, True)
            self.rooms.append(memory)
            rows.offsets, rows.rows = ffi.cast("int64_t *", memory), memory + head
            rows.length = max(rows.length, len(memory) - head)

    def taken(self, core: Any, status: int) -> int:
        """Receives the ragged columns of items that the core has drawn, which are still pinned where `status` is 1; an
        error is passed on."""
        if status == 1:
            needed = [rows.length for _, rows in self.ragged]
            self.give_room()
            lib.table_take_rows(core, self.count, self.slots, self.plan.count, self.plan.indices, self.pointers)
            for (_, rows), size_bytes in zip(self.ragged, needed, strict=True):
                rows.length = size_bytes
        if status >= 0:
            self.settle()
        return min(status, 0)

    def let_go(self, core: Any) -> None:
        """The call was interrupted: its items are unpinned, if they are pinned."""
        lib.table_let_go(core, self.count, self.slots)

    def settle(self) -> None:
        """Ragged columns have been written."""
        for column, rows in self.ragged:
            column.settle(self.count, 8 * (self.count + 1) + rows.length)

    def fits(self, plan: SamplePlan, count: int, batch: Batch, details: bool) -> bool:
        """Whether the batch still has the arrays that were checked, for that many items of those columns."""
        if self.plan is not plan or self.count != count or tuple(batch.columns) != plan.names or self.ragged:
            return False
        if batch.details is not self.arrays[-1] or (batch.details is not None) != details:
            return False
        pairs = zip(batch.arrays(), self.arrays)
        return all([array is known and array.flags.writeable for array, known in pairs])  # noqa: C419 (lists are faster)


class SamplePlan:
    """Some columns of a table, in the order asked for."""

    __slots__ = ("chosen", "count", "indices", "names", "table")

    def __init__(self, table: Table, columns: Sequence[str] | None) -> None:
        self.table, self.chosen = table, columns
        self.names = table.chosen(columns)
        order = {name: index for index, name in enumerate(table.leaves)}
        self.indices = ffi.new("uint32_t[]", [order[name] for name in self.names] or 1)
        self.count = len(self.names)

    def landing(self, count: int, out: Batch | None, details: bool) -> tuple[Batch, Landing]:
        """A batch to sample into, `out` where it is given, and where it lies.

        Raises:
            SchemaError: `out` does not fit, or there is no such column.
        """
        if out is None:
            batch = new_batch(self.table, count, self.chosen, details=details)
        else:
            batch, known = out, getattr(out, "landing", None)
            if known is not None and known.fits(self, count, out, details):
                return out, known
            check_out(out, self.table, count, self.chosen, details)
        batch.landing = Landing(self, batch)
        return batch, batch.landing


class AddPlan:
    """What `add` takes: arrays of the right kind as they are, everything else by way of `check_columns`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns = [
            (name, column.numpy_dtype, column.shape, 1 + len(column.shape))
            for name, column in table.item_columns.items()
        ]
        self.pointers = ffi.new("void *[]", max(1, len(self._columns)))

    def arrays(self, data: Mapping[str, Any]) -> tuple[int, list[Any]]:
        """How many items, and each column's memory, which is kept alive by what is returned.

        Raises:
            SchemaError: they do not fit the table.
        """
        known = self._known(self._table.taken_apart(data))
        if known is not None:
            return known
        count, columns = check_columns(self._table, data)
        return count, [_memory_of(column) for column in columns]

    def _known(self, data: Mapping[str, Any]) -> tuple[int, list[Any]] | None:
        if type(data) not in (dict, Leaves) or len(data) != len(self._columns) or self._table.windows:
            return None
        count, found = -1, []
        for name, dtype, shape, dimensions in self._columns:
            array = data.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype:
                return None
            size = array.shape
            if len(size) != dimensions or size[1:] != shape or (size[0] != count and count >= 0):
                return None
            count = size[0]
            try:
                found.append(ffi.from_buffer(_BYTES, array))
            except (ValueError, BufferError):  # not C-contiguous
                return None
        return count, found


_kept: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
"""The memory of ragged columns that are being added, for as long as the structs that point to it live."""


def _memory_of(column: Any) -> Any:
    """What the core reads a checked column from."""
    if not isinstance(column, Ragged):
        return ffi.from_buffer(_BYTES, column.reshape(-1).view(np.uint8))
    values = ffi.from_buffer(_BYTES, column.values.reshape(-1).view(np.uint8))
    offsets = ffi.from_buffer("int64_t[]", column.offsets)
    rows = ffi.new("struct table_rows *", {"offsets": offsets, "rows": values, "length": len(values)})
    _kept[rows] = (values, offsets)
    return rows


def priorities_of(given: Any, count: int) -> Any:
    """`count` priorities as memory that the core reads; the core checks their values.

    Raises:
        PriorityError: they are not so many numbers.
    """
    if type(given) is np.ndarray and given.dtype is _FLOAT64 and given.shape == (count,):
        try:
            return ffi.from_buffer(_DOUBLES, given)
        except (ValueError, BufferError):  # not C-contiguous
            pass
    return ffi.from_buffer(_DOUBLES, check_priorities(given, count))


def ids_of(given: Any) -> Any:
    """Item ids as memory that the core reads.

    Raises:
        SchemaError: they are not ids.
    """
    if type(given) is np.ndarray and given.dtype is _UINT64 and given.ndim == 1:
        try:
            return ffi.from_buffer(_IDS, given)
        except (ValueError, BufferError):  # not C-contiguous
            pass
    return ffi.from_buffer(_IDS, check_ids(given))


def new_ids(count: int) -> tuple[np.ndarray, Any]:
    """An array for ids, and its memory."""
    ids = np.empty(count, _UINT64)
    return ids, ffi.from_buffer(_IDS, ids, True)
