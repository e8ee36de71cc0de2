"""The columns of rollouts: which are submitted with a sample, which a task adds later, and what waits for what.

A part is what is written at once: the columns of a submitted sample (part ""), or those that a task writes. A task
waits for the parts that it reads of. So the server needs to know nothing of columns: whoever writes a part names the
tasks that wait for it, and how many parts each of them waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from .checks import check_columns
from .codec import bytes_of, pack
from .errors import SchemaError
from .ragged import Ragged
from .ragged_checks import check_ragged
from .table import MAX_NAME_BYTES, Column, Table
from .tree import Leaves, shaped, tree_of

SUBMITTED = ""
"""The part of the columns that are there when a sample is submitted."""
PackedSample = tuple[bytes, tuple[int | str, ...]]
"""As a sample travels: its values, and of each column that can grow how many rows come, "-" for none at all, and how
many there may be."""
MOST_TASKS = 16
MOST_GROUP_SAMPLES = 4096
"""Of tasks with whole groups: one script stores what such a task made of a group."""


@dataclass(frozen=True)
class Task:
    """Work on samples that are there already: a reward, a reference model's log-probabilities, values, advantages.

    Args:
        reads: names of the columns that it needs, at least one. A sample is ready for it once all of them are there.
        writes: names of the columns that it adds. Nobody else writes them: they are not part of what is submitted.
        whole_groups: it gets all samples of a group at once, as advantages of GRPO need them; else single samples.
    """

    reads: Sequence[str]
    writes: Sequence[str] = ()
    whole_groups: bool = False

    def to_spec(self) -> dict[str, Any]:
        """As plain values."""
        return {"reads": sorted(self.reads), "writes": sorted(self.writes), "whole_groups": self.whole_groups}


class Dataflow:
    """Tasks over the columns of a table.

    Attributes:
        tasks: by name, with the paths of their columns.
        numbers: of the tasks, from 1 on, by which keys on the server are named.
        writers: path of a column → the part that it belongs to.
        followers: part → for each task that waits for it, the task's number, how many samples it gets at once, and how
            many parts of these there must be, one behind the other.

    Raises:
        SchemaError: a column is unknown or written twice, tasks wait for each other, or none is left to be submitted.
    """

    def __init__(self, table: Table, tasks: Mapping[str, Task], group_size: int) -> None:
        if not isinstance(tasks, Mapping) or len(tasks) > MOST_TASKS:
            got = len(tasks) if isinstance(tasks, Mapping) else type(tasks).__name__
            raise SchemaError(f"tasks must be a dict of at most {MOST_TASKS}, name → rs.Task, got {got}")
        self._table, self._group_size = table, group_size
        self.tasks = {name: self._checked(name, task) for name, task in tasks.items()}
        self.numbers = {name: number for number, name in enumerate(sorted(self.tasks), 1)}
        self.writers = dict.fromkeys(table.columns, SUBMITTED)
        for name, task in self.tasks.items():
            for path in task.writes:
                if self.writers[path] != SUBMITTED:
                    raise SchemaError(f"column {path!r} is written by two tasks, {self.writers[path]!r} and {name!r}")
                self.writers[path] = name
        if SUBMITTED not in self.writers.values():
            raise SchemaError("tasks write all columns: expected at least one that is there when a sample is submitted")
        self._check_order()
        self.followers: dict[str, tuple[int, ...]] = {
            part: tuple(
                number
                for name in sorted(self.tasks)
                if part in self._parts_for(name)
                for number in (self.numbers[name], self.unit(name), len(self._parts_for(name)) * self.unit(name))
            )
            for part in (SUBMITTED, *self.tasks)
        }
        self._tables = {part: self._table_of(part) for part in (SUBMITTED, *self.tasks)}

    def _checked(self, name: str, task: Task) -> Task:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
            raise SchemaError(f"a task's name must be a string of 1 to {MAX_NAME_BYTES} bytes, got {name!r}")
        if not isinstance(task, Task):
            raise SchemaError(f"task {name!r} must be an rs.Task, got {type(task).__name__}")
        if isinstance(task.reads, str) or isinstance(task.writes, str) or not task.reads:
            raise SchemaError(f"task {name!r} must read a list of at least one column, and write a list, got {task!r}")
        if task.whole_groups and self._group_size > MOST_GROUP_SAMPLES:
            raise SchemaError(
                f"task {name!r} has whole_groups: expected a group_size of at most {MOST_GROUP_SAMPLES}, got "
                f"{self._group_size}"
            )
        chosen = self._table.chosen
        return Task(chosen(task.reads), chosen(task.writes) if task.writes else (), bool(task.whole_groups))

    def _check_order(self) -> None:
        """A task that waits for its own columns, over others or not, would never begin."""
        done, left = {SUBMITTED}, set(self.tasks)
        while ready := {name for name in left if self._parts_for(name) <= done}:
            done |= ready
            left -= ready
        if left:
            raise SchemaError(f"the tasks {', '.join(sorted(left))} wait for columns of each other or of their own")

    def _parts_for(self, task: str) -> set[str]:
        return {self.writers[path] for path in self.tasks[task].reads}

    def _table_of(self, part: str) -> Table | None:
        columns = {path: column for path, column in self._table.columns.items() if self.writers[path] == part}
        return Table(self._table.name, 1, tree_of(columns)) if columns else None

    def unit(self, task: str) -> int:
        """How many samples a task gets at once."""
        return self._group_size if self.tasks[task].whole_groups else 1

    def columns_of(self, part: str) -> list[str]:
        """The paths of a part, as they travel: programs may have named columns in another order."""
        return sorted(path for path, writer in self.writers.items() if writer == part)

    @property
    def growing(self) -> list[str]:
        """The paths of the columns that can grow: the ragged ones that are submitted."""
        return [path for path in self.columns_of(SUBMITTED) if self._table.columns[path].ragged]

    def _lengths(self, rows: Mapping[str, np.ndarray]) -> tuple[int | str, ...]:
        """The lengths of a `PackedSample`."""
        return tuple(
            part
            for path in self.growing
            for part in (len(rows[path]) if path in rows else "-", self._table.columns[path].max_length or 0)
        )

    def packed_segment(self, rows: Mapping[str, Any]) -> tuple[bytes, tuple[int | str, ...]]:
        """Rows of columns that grow as they travel, and `_lengths`.

        Raises:
            SchemaError: they do not fit the signature.
        """
        leaves = self._table.taken_apart(rows)
        if not isinstance(rows, Mapping) or not rows or not set(leaves) <= set(self.growing):
            got = ", ".join(map(str, leaves)) if isinstance(rows, Mapping) else type(rows).__name__
            expected = ", ".join(self.growing) or "(there are none)"
            raise SchemaError(
                f"expected a dict of rows of some of the columns that grow, {expected}; got {got or '{}'}"
            )
        values = {path: check_ragged(path, self._table.columns[path], [leaves[path]]).values for path in leaves}
        return pack({path: bytes(bytes_of(value)) for path, value in values.items()}), self._lengths(values)

    def packed_sample(self, sample: Mapping[str, Any]) -> PackedSample:
        """The values of one submitted sample, as `packed_samples`.

        Raises:
            SchemaError: they do not fit the signature.
        """
        if not isinstance(sample, Mapping):
            name, got = self._table.name, type(sample).__name__
            raise SchemaError(f"expected a dict of columns for a sample of {name!r}, got {got}")
        leaves = Leaves()
        for path, value in self._table.taken_apart(sample).items():
            column = self._table.leaves.get(path)
            ragged = isinstance(column, Column) and column.ragged
            leaves[path] = value[None] if hasattr(value, "shape") and not ragged else [value]
        return self.packed_samples(leaves, 1)[0]

    def packed_samples(self, columns: Mapping[str, Any], count: int) -> list[PackedSample]:
        """The values of so many submitted samples. Columns that grow may be left out.

        Raises:
            SchemaError: they do not fit the signature, or are of another number of samples.
        """
        if not isinstance(columns, Mapping):
            raise SchemaError(f"expected a dict of columns for {self._table.name!r}, got {type(columns).__name__}")
        leaves = Leaves(self._table.taken_apart(columns))
        brought = [path for path in self.growing if path in leaves]
        for path in self.growing:
            column = self._table.columns[path]
            leaves.setdefault(path, [np.empty((0, *column.shape[1:]), column.numpy_dtype)] * count)
        rows, checked = self._checked_columns(SUBMITTED, leaves)
        if rows != count:
            raise SchemaError(f"expected the columns of {count} samples, got {rows}")
        lengths = [self._lengths({path: checked[path][at] for path in brought}) for at in range(count)]
        return list(zip(_packed_items(checked, count), lengths, strict=True))

    def packed_rows(self, task: str, columns: Mapping[str, Any], count: int) -> list[bytes]:
        """What a task writes of so many samples as it travels, one for each.

        Raises:
            SchemaError: it does not fit the signature, or is of another number of samples.
        """
        if not isinstance(columns, Mapping):
            raise SchemaError(f"expected a dict of the columns of task {task!r}, got {type(columns).__name__}")
        leaves = Leaves(self._table.taken_apart(columns))
        if not self.tasks[task].writes:
            if leaves:
                raise SchemaError(f"task {task!r} writes no columns, got {', '.join(map(str, leaves))}")
            return [pack([])] * count
        rows, checked = self._checked_columns(task, leaves)
        if rows != count:
            raise SchemaError(f"expected the columns of {count} samples for task {task!r}, got {rows}")
        return _packed_items(checked, count)

    def _checked_columns(self, part: str, leaves: Leaves) -> tuple[int, dict[str, Any]]:
        table = self._tables[part]
        assert table is not None
        count, columns = check_columns(table, leaves)
        return count, dict(zip(table.columns, columns, strict=True))

    def grown(self, row: Sequence[bytes], segments: Sequence[bytes]) -> list[bytes]:
        """The columns of a submitted sample, with its segments before what was submitted."""
        pieces = [msgpack.unpackb(segment) for segment in segments]
        return [
            b"".join([*(piece[path] for piece in pieces if path in piece), last])
            for path, last in zip(self.columns_of(SUBMITTED), row, strict=True)
        ]

    def rows_of(self, segment: bytes) -> dict[str, Any]:
        """What was appended as a segment, in the form of the signature."""
        packed = msgpack.unpackb(segment)
        columns = {path: _stacked(self._table.columns[path], [rows])[0] for path, rows in packed.items()}
        return shaped(self._table.signature, columns)

    def stacked(self, rows: Mapping[str, Sequence[Sequence[bytes]]], paths: Sequence[str]) -> dict[str, Any]:
        """Those columns of samples: part → the columns of each sample, as `columns_of` orders them."""
        columns: dict[str, Any] = {}
        for part, samples in rows.items():
            for path, parts in zip(self.columns_of(part), zip(*samples, strict=True), strict=True):
                if path in paths:
                    columns[path] = _stacked(self._table.columns[path], parts)
        return columns


def _packed_items(columns: Mapping[str, Any], count: int) -> list[bytes]:
    ordered = [columns[path] for path in sorted(columns)]
    return [pack([bytes(bytes_of(_item(column, at))) for column in ordered]) for at in range(count)]


def _item(column: np.ndarray | Ragged, at: int) -> np.ndarray:
    return column[at] if isinstance(column, Ragged) else column[at : at + 1]


def _stacked(column: Column, parts: Sequence[bytes]) -> np.ndarray | Ragged:
    """The column of a batch, of its samples' bytes."""
    memory = np.frombuffer(bytearray().join(parts) or bytearray(1), np.uint8)[: sum(map(len, parts))]
    if not column.ragged:
        return memory.view(column.numpy_dtype).reshape(len(parts), *column.shape)
    values = memory.view(column.numpy_dtype).reshape(-1, *column.shape[1:])
    row_bytes = column.numpy_dtype.itemsize * int(np.prod(column.shape[1:], dtype=object))
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) // row_bytes for part in parts], out=offsets[1:])
    return Ragged(values, offsets)
