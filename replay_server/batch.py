"""A sampled batch, and the pool that lets a background sampler reuse batches that the caller has dropped."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .errors import SchemaError
from .ragged import Ragged, Room
from .shared_memory import Lease
from .table import Column, Table
from .tree import leaves_of, mapped, shaped

if TYPE_CHECKING:
    from .torch import DeviceBatch


DETAIL = np.dtype([("priorities", "<f8"), ("times_sampled", "<u8"), ("ages", "<u8"), ("table_sizes", "<u8")])
"""What `sample(…, details=True)` tells of an item, as a server sends it."""


def _detail(name: str, told: str) -> Any:
    def read(batch: Detailed) -> np.ndarray:
        if batch.details is None:
            raise AttributeError(f"this batch has no {name}: ask for them with sample(…, details=True)", name=name)
        return batch.details[name]

    return property(read, doc=told)


class Detailed:
    """What a batch tells of each item where it was asked for `details`: NumPy arrays, as the ids are."""

    details: np.ndarray | None

    priorities: ClassVar[np.ndarray] = _detail("priorities", "float64 (N,), raw, before the priority exponent.")
    times_sampled: ClassVar[np.ndarray] = _detail("times_sampled", "uint64 (N,), this draw included.")
    ages: ClassVar[np.ndarray] = _detail("ages", "uint64 (N,): items that entered the item's server after it.")
    table_sizes: ClassVar[np.ndarray] = _detail("table_sizes", "uint64 (N,): items that the table held at the draw.")


@dataclass(eq=False)
class Batch(Detailed):
    """N sampled items. The arrays belong to the caller.

    Columns of a `sampler`, and of a `Client(shared_memory=True)`, are read-only unless you ask for `writable=True`. On
    the server's host, large ones lie in memory that is shared with the server. It is given back when the last array
    over it is gone.

    A child of `os.fork` keeps the batches that existed at the fork: their memory is not reused. (Their connection is
    replaced by another one, so a process that forks often and samples should copy the batches, or turn shared memory
    off. A fork by a C library, which Python does not see, is not covered.)

    Attributes:
        data: column name → array (N, *column.shape) of the column's dtype, or `Ragged`, in the form of the table's
            signature: nested dicts and tuples where that has them. Columns that were not asked for are not there; in a
            tuple they are None, so that the others keep their places.
        ids: uint64 (N,), for `update_priorities`.
        probabilities: float64 (N,), of drawing each item.
        weights: float32 (N,), (size · P)^−β divided by the batch's maximum.
        missing: numbers of the shards that a sample of a cluster left out, as `missing="leave_out"` allows.
        details: what the table knew of each item at its draw: records with `priorities`, `times_sampled`, `ages` and
            `table_sizes`, which the batch has by these names too. None, and AttributeErrors, without
            `sample(…, details=True)`.
    """

    data: dict[str, Any]
    ids: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray
    lease: Lease | None = field(default=None, repr=False)
    landing: Any = field(default=None, repr=False)
    """Where a `Buffer` that filled the arrays found them, for the next time."""
    missing: tuple[int, ...] = ()
    details: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copied or sent to another process, it is arrays: shared memory, and where a buffer found them, stay here.
        return Batch, (self.data, self.ids, self.probabilities, self.weights, None, None, self.missing, self.details)

    def release(self) -> None:
        """Gives shared memory back at once. Call it only when nothing reads the columns any more.

        The columns in shared memory are removed from `data`; other references to them would see the next batch's bytes.
        Without shared memory it does nothing.
        """
        if self.lease is not None:
            kept = {path: column for path, column in self.columns.items() if not self.lease.holds(_memory_of(column))}
            self.data = shaped(self.data, kept)
            self.lease.release()
            self.lease = None

    @property
    def columns(self) -> dict[str, Any]:
        """`data` by path, such as "obs/image"; without nested dicts, `data`."""
        return leaves_of(self.data)

    def torch(self) -> DeviceBatch:
        """The batch as tensors over the same memory, on the CPU. Needs torch.

        Torch knows no tensors that are read-only. Writing to one over columns in memory shared with a server ends the
        process (SIGSEGV): sample with `writable=True` to write, or clone the tensor.

        Raises:
            SchemaError: a column holds bytes.
        """
        return importlib.import_module(".torch", __package__).on_cpu(self)

    def to(self, device: Any) -> DeviceBatch:
        """The batch as tensors on a device of torch; on the CPU nothing is copied. Needs torch."""
        return self.torch().to(device)

    def arrays(self) -> list[np.ndarray]:
        """ids, probabilities, weights, then the columns but for ragged ones."""
        fixed = [column for column in self.columns.values() if not isinstance(column, Ragged)]
        return [self.ids, self.probabilities, self.weights, *fixed]

    def heads(self) -> list[np.ndarray]:
        """What a reply begins with: ids, probabilities, weights, and details if they were asked for."""
        details = [] if self.details is None else [self.details]
        return [self.ids, self.probabilities, self.weights, *details]

    def ragged(self) -> list[Ragged]:
        """The ragged columns."""
        return [column for column in self.columns.values() if isinstance(column, Ragged)]


def refuse_bytes(dtypes: Mapping[str, np.dtype[Any]], library: str) -> None:
    """Raises SchemaError where a column, given by its path and dtype, holds bytes, which tensors cannot."""
    for name, dtype in dtypes.items():
        if dtype.kind == "S":
            others = [other for other, kind in dtypes.items() if kind.kind != "S"]
            raise SchemaError(
                f"column {name!r} holds bytes ({dtype.str[1:]}), which {library} has no dtype for: leave it out with "
                f"columns={others}"
            )


def dtypes_of(batch: Batch) -> dict[str, np.dtype[Any]]:
    """The dtypes of a batch's columns, by path."""
    return {
        name: (column.values if isinstance(column, Ragged) else column).dtype for name, column in batch.columns.items()
    }


def chosen_dtypes(table: Table, columns: Iterable[str] | None) -> dict[str, np.dtype[Any]]:
    """The dtypes of those columns of a table, by path. Raises SchemaError where there is no such column."""
    return {name: table.columns[name].numpy_dtype for name in table.chosen(columns)}


def _memory_of(column: Any) -> np.ndarray:
    return column.offsets if isinstance(column, Ragged) else column


Allocate = Callable[[tuple[int, ...], Any], np.ndarray]
"""Makes an uninitialised C-contiguous array of a shape and dtype, as np.empty does."""


def new_batch(
    table: Table,
    count: int,
    columns: Iterable[str] | None = None,
    allocate: Allocate = np.empty,
    details: bool = False,
) -> Batch:
    """An uninitialised batch of `count` items of a table, of the named columns (None: all).

    Raises:
        SchemaError: the table has no such column.
    """
    names = table.chosen(columns)
    shown = table.columns
    arrays = {name: _new_column(shown[name], count, allocate) for name in names}
    return Batch(
        in_form(table, arrays),
        allocate((count,), np.uint64),
        allocate((count,), np.float64),
        allocate((count,), np.float32),
        details=np.empty(count, DETAIL) if details else None,
    )


def in_form(table: Table, arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays by path in the form of a table's signature."""
    return arrays if table.leaves is table.signature else shaped(table.signature, arrays)


def _new_column(column: Column, count: int, allocate: Allocate) -> Any:
    if column.ragged:
        return Ragged.into(Room(column.numpy_dtype, column.shape[1:], allocate), count)
    return allocate((count, *column.shape), column.numpy_dtype)


def is_writable(wish: bool | None, out: Batch | None, shared_memory: bool | None) -> bool:
    """Whether `sample` gives columns that can be written to: as the caller chose, wherever the server is."""
    return wish if wish is not None else out is not None or shared_memory is not True


def read_only(batch: Batch) -> Batch:
    """The batch with columns that cannot be written to, over the same memory."""
    return replace(batch, data=mapped(batch.data, _read_only_column))


def _read_only_column(column: Any) -> Any:
    if isinstance(column, Ragged):
        return column.read_only()
    view = column.view()
    view.flags.writeable = False
    return view


def check_out(
    out: Batch, table: Table, count: int, columns: Iterable[str] | None = None, details: bool = False
) -> None:
    """Checks that a sample of `count` items can be received into `out`, which gets room for `details`, or loses them.

    Raises:
        SchemaError: it is no batch, or an array is missing, read-only, not C-contiguous, or of another dtype or shape.
    """
    if not isinstance(out, Batch):
        raise SchemaError(f"out must be a batch to receive into, such as sample returned, got {out!r:.200}")
    names, given = table.chosen(columns), out.columns
    if tuple(given) != names:
        raise SchemaError(f"out has the columns {', '.join(given)}; expected {', '.join(names)}")
    expected: list[tuple[str, np.ndarray, Any, tuple[int, ...]]] = [
        ("ids", out.ids, "uint64", (count,)),
        ("probabilities", out.probabilities, "float64", (count,)),
        ("weights", out.weights, "float32", (count,)),
    ]
    for name in names:
        column = table.columns[name]
        if column.ragged:
            _check_room(name, given[name], column)
        else:
            expected.append((name, given[name], column.numpy_dtype, (count, *column.shape)))
    for name, array, dtype, shape in expected:
        if not isinstance(array, np.ndarray):
            raise SchemaError(f"out's {name!r} must be an array, got {type(array).__name__}")
        if array.dtype != np.dtype(dtype) or array.shape != shape or not array.flags.c_contiguous:
            raise SchemaError(
                f"out's {name!r} must be a C-contiguous {dtype} of shape {shape}, got {array.dtype} of {array.shape}"
            )
        if not array.flags.writeable:
            raise SchemaError(f"out's {name!r} is read-only: samples are received into it")
    if not details or out.details is None or len(out.details) != count:
        out.details = np.empty(count, DETAIL) if details else None


def _check_room(name: str, given: Any, column: Column) -> None:
    """Checks that a ragged column can be received into `given`, and gives it room where it has none."""
    if not isinstance(given, Ragged):
        raise SchemaError(f"out's {name!r} must be an rs.Ragged, such as a batch has, got {type(given).__name__}")
    room = given.room or Room(column.numpy_dtype, column.shape[1:], np.empty)
    if room.dtype != column.numpy_dtype or room.shape != column.shape[1:]:
        raise SchemaError(
            f"out's {name!r} must have rows of {column.dtype} of shape {column.shape[1:]}, got {room.dtype} of "
            f"{room.shape}"
        )
    if not (given.values.flags.writeable and given.offsets.flags.writeable):
        raise SchemaError(f"out's {name!r} is read-only: samples are received into it")
    given.room = room


class BatchPool:
    """Arrays of batches, used again once nobody outside refers to any of them.

    A batch, a view, a memoryview or a tensor made from an array each hold a reference to it, so arrays are reused only
    when nothing can see their bytes any more: the caller need neither copy nor give back.

    Args:
        size: batches whose arrays are kept.
        allocate: makes the arrays. None of them may be a view of another one: NumPy has a view of a view refer to the
            one that has the memory, and the pool would not see that it is in use.
    """

    def __init__(self, size: int, allocate: Allocate = np.empty) -> None:
        self._size = size
        self._allocate = allocate
        self._sets: list[tuple[list[np.ndarray], dict[str, Room | None]]] = []
        """ids, probabilities, weights and fixed columns; column name → room of a ragged one."""
        lone = [np.empty(0)]
        self._lone_references = sys.getrefcount(lone[0])

    def take(self, table: Table, count: int, columns: Iterable[str] | None = None, details: bool = False) -> Batch:
        """A batch whose arrays nobody else refers to; new arrays where all of the pool's are in use."""
        for arrays, rooms in self._sets:
            free = all(sys.getrefcount(arrays[i]) == self._lone_references for i in range(len(arrays)))
            if free and all(room is None or self._is_lone(room) for room in rooms.values()):
                batch = self._again(table, arrays, rooms)
                try:
                    check_out(batch, table, count, columns, details)
                except SchemaError:  # the table was made anew with other columns
                    self._sets.clear()
                    break
                return batch
        batch = new_batch(table, count, columns, self._allocate, details)
        rooms = {name: column.room if isinstance(column, Ragged) else None for name, column in batch.columns.items()}
        memories = [room.memory for room in rooms.values() if room is not None]
        if any(isinstance(array.base, np.ndarray) for array in (*batch.arrays(), *memories)):
            raise ValueError("allocate: expected a new array for each column, got a view of another array")
        if len(self._sets) < self._size:
            self._sets.append((batch.arrays(), rooms))
        return batch

    def _is_lone(self, room: Room) -> bool:
        """Whether nobody but the room refers to its memory."""
        return sys.getrefcount(room.memory) == self._lone_references

    @staticmethod
    def _again(table: Table, arrays: list[np.ndarray], rooms: dict[str, Room | None]) -> Batch:
        fixed = iter(arrays[3:])
        data = {
            name: next(fixed) if room is None else Ragged.into(room, len(arrays[0])) for name, room in rooms.items()
        }
        return Batch(in_form(table, data), arrays[0], arrays[1], arrays[2])
