"""Tables as data: columns, samplers, removers, rate limiters, and their msgpack spec."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgpack
import numpy as np

from .codec import pack
from .dtypes import dtype_name, numpy_dtype
from .errors import SchemaError
from .selectors import (
    LIMITERS,
    SELECTORS,
    Fifo,
    Lifo,
    MinSize,
    Prioritized,
    Queue,
    RateLimiter,
    Selector,
    check_whole,
    limiter_map,
    part_from_map,
    selector_map,
)
from .tree import Leaves, leaves_of, mapped, names_of, part_of, paths_under, shaped, taken_apart, tree_from, tree_of

COMPRESSIONS = ("none", "lz4", "zstd")
STORAGES = ("memory", "disk")
LEAST_DISK_BYTES = 64
"""Values of a column that may lie on disk."""
MAX_COLUMNS = 256
MAX_DIMENSIONS = 8
MAX_LENGTH = 1 << 30
DEFAULT_MAX_LENGTH = 65536
"""Rows of an item in a ragged column, where `max_length` says nothing else."""
MAX_NAME_BYTES = 255
MAX_WINDOW = 16384
"""Steps of a window, and how far it may lie from its item."""
MAX_HISTORY = 65536
"""Steps of a stream that stay available to later items."""


@dataclass(frozen=True, init=False)
class Column:
    """One value of every item: a NumPy dtype and the shape of a single item, () for a scalar.

    A column under a `Window` is also a value of every step. A column of shape (None, …) is ragged: each item has its
    own number of rows, and a batch has the column as a `Ragged`.

    Args:
        dtype: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, bfloat16, or "S1" to
            "S65535", bytes of a fixed number; by name, or anything that `numpy.dtype` takes. Arrays of bfloat16 have
            the dtype of the package ml_dtypes; where it is not installed they are uint16, the bits.
        shape: up to 8 dimensions. One of size 0 makes a column without bytes. The first may be None.
        step_only: True: a value of steps only. Batches show it through windows.
        max_length: of a ragged column: the most rows of an item. None: 65,536.

    Raises:
        SchemaError: the dtype or the shape is none of these.
    """

    dtype: str
    shape: tuple[Any, ...]
    step_only: bool
    max_length: int | None

    def __init__(self, dtype: Any, shape: Any = (), *, step_only: bool = False, max_length: int | None = None) -> None:
        name = dtype_name(dtype)
        sizes: tuple[Any, ...] = (shape,) if shape is None or isinstance(shape, int | np.integer) else tuple(shape)
        ragged = len(sizes) > 0 and sizes[0] is None
        fixed = sizes[1:] if ragged else sizes
        whole = all(isinstance(size, int | np.integer) and size >= int(ragged) for size in fixed)
        if len(sizes) > MAX_DIMENSIONS or not whole:
            raise SchemaError(
                f"a column's shape must be up to {MAX_DIMENSIONS} sizes of at least 0, or None and sizes of at "
                f"least 1, got {shape!r}"
            )
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "shape", (*(None,) * ragged, *(int(size) for size in fixed)))
        if not isinstance(step_only, bool):
            raise SchemaError(f"a column's step_only must be True or False, got {step_only!r}")
        object.__setattr__(self, "step_only", step_only)
        object.__setattr__(self, "max_length", self._checked_length(ragged, max_length))

    def _checked_length(self, ragged: bool, max_length: int | None) -> int | None:
        if not ragged:
            if max_length is not None:
                raise SchemaError(f"max_length is for ragged columns, of shape (None, …); got shape {self.shape}")
            return None
        if self.step_only:
            raise SchemaError("a column that is step_only has a fixed shape, since each step has one; got a ragged one")
        length = DEFAULT_MAX_LENGTH if max_length is None else max_length
        check_whole(length, "a column's max_length", 1)
        if length > MAX_LENGTH:
            raise SchemaError(f"a column's max_length is at most {MAX_LENGTH}, got {length}")
        return int(length)

    @property
    def ragged(self) -> bool:
        """Whether each item has as many rows as it likes."""
        return self.max_length is not None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of its arrays. For bfloat16 that of ml_dtypes; without ml_dtypes uint16, the bits."""
        return numpy_dtype(self.dtype)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item's value, or of one step's if the column is step_only. Ragged: of the longest value."""
        return (
            self.numpy_dtype.itemsize
            * math.prod(self.shape[1:] if self.ragged else self.shape)
            * (self.max_length or 1)
        )

    def to_spec(self) -> dict[str, Any]:
        """As in a table's spec."""
        spec: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape)}
        if self.ragged:
            return {**spec, "max_length": self.max_length}
        return {**spec, "step_only": True} if self.step_only else spec


@dataclass(frozen=True)
class Window:
    """The steps of a column that an item shows: `length` steps, of which the last lies `offset` after the item's own.

    With `max_length` instead it is ragged: each item shows the steps that it is made with, a slice of its episode, and
    a batch has the window as a `Ragged`.

    A window of a `length` stays within its episode. One that would go beyond the last step ends at the last step
    instead. Before the first step it repeats the first, as `gymnasium.wrappers.FrameStackObservation` does. In a batch
    it has the source's dtype and the shape (length, *source's shape).

    Args:
        source: name of the `Column`: its path in a nested signature.
        length: steps, up to 16,384; None: a single step, without the length dimension.
        offset: of its last step from the item's own: 0 for the observation, n for the observation n steps later.
        max_length: of a ragged window: the most steps of an item, up to 16,384.

    Raises:
        SchemaError: length, offset or max_length is out of range, or max_length comes with one of the others.
    """

    source: str
    length: int | None = None
    offset: int = 0
    max_length: int | None = None

    def __post_init__(self) -> None:
        _check_name(self.source, "a window's source")
        if self.max_length is not None:
            self._check_ragged()
        if self.length is not None:
            check_whole(self.length, "a window's length", 1)
        check_whole(self.offset, "a window's offset", -MAX_WINDOW)
        if self.steps > MAX_WINDOW or self.offset > MAX_WINDOW:
            raise SchemaError(
                f"a window's length and offset are at most {MAX_WINDOW}, got {self.length} and {self.offset}"
            )

    def _check_ragged(self) -> None:
        check_whole(self.max_length, "a window's max_length", 1)
        if self.length is not None or self.offset != 0:
            raise SchemaError(
                "a window has either a max_length, or a length and an offset: items of a ragged one say which steps "
                f"they show; got max_length {self.max_length}, length {self.length} and offset {self.offset}"
            )
        if int(self.max_length or 0) > MAX_WINDOW:
            raise SchemaError(f"a window's max_length is at most {MAX_WINDOW}, got {self.max_length}")

    @property
    def ragged(self) -> bool:
        """Whether each item shows as many steps as it is made with."""
        return self.max_length is not None

    @property
    def steps(self) -> int:
        """How many steps it shows; ragged: at most."""
        return int(self.length or self.max_length or 1)

    def over(self, source: Column) -> Column:
        """The column that it makes of its source, as in a batch."""
        if self.max_length is not None:
            return Column(source.dtype, (None, *source.shape), max_length=int(self.max_length))
        return Column(source.dtype, source.shape if self.length is None else (self.length, *source.shape))

    def to_spec(self) -> dict[str, Any]:
        """As in a table's spec."""
        if self.max_length is not None:
            return {"window": self.source, "max_length": int(self.max_length)}
        return {"window": self.source, "length": int(self.length or 0), "offset": int(self.offset)}


def _check_name(name: Any, what: str) -> None:
    valid = isinstance(name, str) and 1 <= len(name.encode()) <= MAX_NAME_BYTES
    if not valid or any(letter <= " " or letter == "\x7f" for letter in name):
        raise SchemaError(
            f"{what} must be 1 to {MAX_NAME_BYTES} bytes without blanks or control characters, got {name!r}"
        )


@dataclass(frozen=True)
class Table:
    """A table: what it holds, how it samples and removes items, and when callers wait.

    Args:
        name: 1 to 255 bytes.
        capacity: the most items. When the table is full, the remover makes room.
        signature: the columns by name, `Column` or `Window`, or dicts and tuples of them to any depth (a list counts as
            a tuple); their order is kept. Data that is added or sampled has the same form. A nested column's name, in
            errors and for other clients, is its path: "obs/image", and "obs/0" in a tuple. A window over a dict or a
            tuple of columns stands for windows over each of them.
        sampler: the rule that draws items: `Prioritized`, `Uniform`, `Fifo`, `Lifo`, `MaxHeap` or `MinHeap`.
        remover: the rule that chooses the item that leaves a full table: one of the same.
        rate_limiter: `MinSize`, `SampleToInsertRatio` or `Queue`.
        max_times_sampled: an item leaves after so many samples; 0 = no limit.
        max_bytes: limit of the payload bytes of live items and steps; of ragged columns, the memory of their rows
            counts; 0 = no limit.
        max_staleness: an item leaves when its `policy_version` is more than this many versions behind the newest one
            seen, in adds or in `sample(policy_version=)`. The signature then needs an int64 column `policy_version`.
            None = no limit.
        compression: of steps: "none", "lz4" or "zstd". Each step is a separate block.
        storage: "memory", or "disk": columns of at least 64 bytes, ragged columns and compressed steps lie in a file in
            the server's data folder, so the table can be larger than memory. Of a server alone, not of a `Buffer`.
        seed: of the sampler's random numbers; 0 = from the operating system.
        durable: a server with an append-only file (`appendonly yes`) writes what happens to the table there, so that it
            survives a kill. False: the table is in snapshots alone.
        log_priorities: updates of priorities are written there, too. False spares 16 bytes an update; after a restart
            items have the priorities that they were added with, or had when the file was last rewritten.
        steps_of: name of a table whose steps this one shares: its items show steps that were appended to that table,
            which are stored once. Both have the same signature, compression and durable, and lie in memory. Of one
            server alone, not of a `Buffer` or a `Cluster`. None: it has steps of its own, or none.

    Raises:
        SchemaError: a value is outside what its field allows.
    """

    name: str
    capacity: int
    signature: Mapping[str, Any]
    sampler: Selector = Prioritized()  # noqa: RUF009 (it is frozen)
    remover: Selector = Fifo()  # noqa: RUF009 (it is frozen)
    rate_limiter: RateLimiter = MinSize(1)  # noqa: RUF009 (it is frozen)
    max_times_sampled: int = 0
    max_bytes: int = 0
    max_staleness: int | None = None
    seed: int = 0
    compression: str = "none"
    storage: str = "memory"
    durable: bool = True
    log_priorities: bool = True
    steps_of: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name, "a table's name")
        check_whole(self.capacity, "capacity", 1)
        check_whole(self.max_times_sampled, "max_times_sampled", 0)
        check_whole(self.max_bytes, "max_bytes", 0)
        check_whole(self.seed, "seed", 0)
        self._check_signature()
        self._check_windows()
        self._check_parts()

    def _check_signature(self) -> None:
        if not isinstance(self.signature, Mapping) or not self.signature:
            raise SchemaError(f"signature must be a dict of 1 to {MAX_COLUMNS} columns, got {self.signature!r}")
        tree = tree_from(self.signature)
        object.__setattr__(self, "signature", mapped(tree, lambda leaf: _over_subtree(leaf, tree)))
        if len(self.leaves) > MAX_COLUMNS:
            raise SchemaError(f"signature must be a dict of 1 to {MAX_COLUMNS} columns, got {len(self.leaves)}")
        for name, column in self.leaves.items():
            _check_name(name, "a column's name")
            if not isinstance(column, Column | Window):
                raise SchemaError(
                    f"column {name!r} must be an rs.Column or an rs.Window, or a dict or tuple of them, got {column!r}"
                )

    def _check_windows(self) -> None:
        for name, window in self.windows.items():
            source = self.leaves.get(window.source)
            if not isinstance(source, Column) or source.ragged:
                raise SchemaError(
                    f"window {name!r} looks at {window.source!r}: expected the name of an rs.Column of a fixed shape"
                )
            window.over(source)
        for name, column in self.leaves.items():
            if isinstance(column, Column) and column.step_only and name not in self.step_columns:
                raise SchemaError(
                    f"column {name!r} is step_only and no window looks at it, so nobody could read it; add an "
                    f"rs.Window({name!r}, …), or drop step_only"
                )
        ragged = [name for name, column in self.leaves.items() if isinstance(column, Column) and column.ragged]
        if ragged and self.windows:
            raise SchemaError(
                f"table {self.name!r} has windows and the ragged column {ragged[0]!r}: put ragged columns into a table "
                "of their own"
            )

    def _check_parts(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise SchemaError(f"compression must be one of {', '.join(COMPRESSIONS)}, got {self.compression!r}")
        if self.storage not in STORAGES:
            raise SchemaError(f"storage must be one of {', '.join(STORAGES)}, got {self.storage!r}")
        if self.storage == "disk" and not self._has_large_columns:
            raise SchemaError(
                f"storage 'disk' is for columns of at least {LEAST_DISK_BYTES} bytes and for ragged ones, and table "
                f"{self.name!r} has none; smaller columns lie in memory in any case"
            )
        for flag in ("durable", "log_priorities"):
            if not isinstance(getattr(self, flag), bool):
                raise SchemaError(f"{flag} must be true or false, got {getattr(self, flag)!r}")
        if self.compression != "none" and not self.windows:
            raise SchemaError(f"compression applies to steps, and table {self.name!r} has no windows and so no steps")
        if self.steps_of is not None:
            self._check_steps_of(self.steps_of)
        selector_map(self.sampler, "sampler")
        selector_map(self.remover, "remover")
        limiter_map(self.rate_limiter)
        if staleness_number(self.max_staleness) < 0:
            object.__setattr__(self, "max_staleness", None)

    def _check_steps_of(self, owner: str) -> None:
        _check_name(owner, "steps_of")
        if owner == self.name:
            raise SchemaError(f"steps_of is the name of another table, got that of table {self.name!r} itself")
        if not self.windows:
            raise SchemaError(f"steps_of is for tables with windows, and table {self.name!r} has none")
        if self.storage != "memory":
            raise SchemaError(
                f"only tables in memory share steps, and table {self.name!r} has storage {self.storage!r}"
            )

    @property
    def _has_large_columns(self) -> bool:
        columns = [column for column in self.leaves.values() if isinstance(column, Column)]
        return any(column.ragged or column.item_bytes >= LEAST_DISK_BYTES for column in columns)

    @classmethod
    def queue(cls, name: str, signature: Mapping[str, Any], size: int, **settings: Any) -> Table:
        """A table that gives out every item once, in the order of adding; adding waits while it holds `size` items.

        Args:
            name, signature: as of `Table`.
            size: items.
            settings: other arguments of `Table`; they override those of a queue.
        """
        return cls._once(name, signature, size, Fifo(), settings)

    @classmethod
    def stack(cls, name: str, signature: Mapping[str, Any], size: int, **settings: Any) -> Table:
        """Like `queue`, but the newest item first."""
        return cls._once(name, signature, size, Lifo(), settings)

    @classmethod
    def _once(
        cls,
        name: str,
        signature: Mapping[str, Any],
        size: int,
        order: Fifo | Lifo,
        settings: dict[str, Any],
    ) -> Table:
        check_whole(size, "size", 1)
        parts = {"sampler": order, "remover": order, "rate_limiter": Queue(int(size)), "max_times_sampled": 1}
        return cls(**{"name": name, "capacity": int(size), "signature": signature, **parts, **settings})

    @cached_property
    def leaves(self) -> dict[str, Column | Window]:
        """The signature by path, such as "obs/image"; without nested dicts, the signature."""
        return leaves_of(self.signature)

    def taken_apart(self, data: Any) -> Any:
        """Data in the signature's form, as values by path.

        Raises:
            SchemaError: it has another form.
        """
        if self.leaves is self.signature or not isinstance(data, Mapping) or type(data) is Leaves:
            return data
        return taken_apart(self.signature, data)

    def chosen(self, columns: Iterable[str] | None) -> tuple[str, ...]:
        """The paths of a batch's columns that are meant by paths and by dicts of columns; None: all.

        Raises:
            SchemaError: there is no such column, one comes twice, or the names are no list of strings.
        """
        if columns is None:
            return tuple(self.columns)
        given = names_of(columns)
        under = {name: paths_under(tuple(self.columns), name) for name in given}
        if unknown := [name for name in given if not under[name]]:
            raise SchemaError(
                f"table {self.name!r} has no column {unknown[0]!r}: expected some of {', '.join(self.columns)}"
            )
        names = [path for name in given for path in under[name]]
        if len(set(names)) != len(names):
            raise SchemaError(f"expected each column once, got {', '.join(given)}")
        return tuple(names if self.leaves is self.signature else filter(set(names).__contains__, self.columns))

    @cached_property
    def windows(self) -> dict[str, Window]:
        """The windows of the signature, by path."""
        return {name: column for name, column in self.leaves.items() if isinstance(column, Window)}

    @cached_property
    def ragged_windows(self) -> dict[str, Window]:
        """Those of the windows whose items say which steps they show."""
        return {name: window for name, window in self.windows.items() if window.ragged}

    @cached_property
    def fixed_windows(self) -> dict[str, Window]:
        """The others."""
        return {name: window for name, window in self.windows.items() if not window.ragged}

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of a batch by path: each column that is not step_only, and each window as the column that it
        makes."""
        shown: dict[str, Column] = {}
        for name, column in self.leaves.items():
            if isinstance(column, Window):
                shown[name] = column.over(self.step_columns[column.source])
            elif not column.step_only:
                shown[name] = column
        return shown

    @cached_property
    def item_columns(self) -> dict[str, Column]:
        """What an item has of its own: the columns that are neither step_only nor windows."""
        return {
            name: column for name, column in self.leaves.items() if isinstance(column, Column) and not column.step_only
        }

    @cached_property
    def step_columns(self) -> dict[str, Column]:
        """What a step has: the columns that windows look at."""
        seen = {window.source for window in self.windows.values()}
        return {name: column for name, column in self.leaves.items() if name in seen and isinstance(column, Column)}

    @cached_property
    def reach(self) -> tuple[int, int]:
        """How many steps before and after its own an item can see."""
        ends = [window.offset for window in self.windows.values()]
        begins = [window.offset - window.steps + 1 for window in self.windows.values()]
        return -min([0, *begins]), max([0, *ends])

    @property
    def item_bytes(self) -> int:
        """Payload bytes of one item as a batch has it, windows in full, ragged columns at their longest."""
        return sum(column.item_bytes for column in self.columns.values())

    def to_spec(self) -> dict[str, Any]:
        """The map of REPLAY.CREATE, of plain types (docs/protocol.md)."""
        return {
            "name": self.name,
            "capacity": int(self.capacity),
            "signature": {path: column.to_spec() for path, column in self.leaves.items()},
            "sampler": selector_map(self.sampler, "sampler"),
            "remover": selector_map(self.remover, "remover"),
            "rate_limiter": limiter_map(self.rate_limiter),
            "max_times_sampled": int(self.max_times_sampled),
            "max_bytes": int(self.max_bytes),
            "max_staleness": staleness_number(self.max_staleness),
            "seed": int(self.seed),
            **({} if self.compression == "none" else {"compression": self.compression}),
            **({} if self.storage == "memory" else {"storage": self.storage}),
            **{flag: False for flag in ("durable", "log_priorities") if not getattr(self, flag)},
            **({} if self.steps_of is None else {"steps_of": self.steps_of}),
        }

    def pack(self) -> bytes:
        """`to_spec` as msgpack."""
        return pack(self.to_spec())

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], name: str | None = None) -> Table:
        """The table that a spec describes; `name` supplies or overrides its name.

        Raises:
            SchemaError: a key is missing or unknown, or a value is outside what its field allows.
        """
        fields = dict(spec)
        fields.pop("incarnation", None)  # of the server's table that the spec came from
        if name is not None:
            fields["name"] = name
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(fields) - known):
            raise SchemaError(f"unknown key {unknown[0]!r} in a table's spec: expected {', '.join(sorted(known))}")
        if missing := [key for key in ("name", "capacity", "signature") if key not in fields]:
            raise SchemaError(f"a table's spec needs {missing[0]!r}")
        if not isinstance(fields["signature"], Mapping):
            raise SchemaError(f"signature must be a map of columns, got {fields['signature']!r}")
        leaves: dict[str, Column | Window] = {}
        for key, value in fields["signature"].items():
            _columns_from(key, value, leaves)
        fields["signature"] = tree_of(leaves)
        parts = (("sampler", SELECTORS), ("remover", SELECTORS), ("rate_limiter", LIMITERS))
        for key, kinds in parts:
            if key in fields:
                fields[key] = part_from_map(fields[key], kinds, key)
        return cls(**fields)

    @classmethod
    def unpack(cls, spec: bytes, name: str | None = None) -> Table:
        """`from_spec` of msgpack bytes."""
        return cls.from_spec(msgpack.unpackb(spec), name)


def staleness_number(max_staleness: int | None) -> int:
    """max_staleness as in a table's spec: -1 = no limit."""
    if max_staleness is None:
        return -1
    check_whole(max_staleness, "max_staleness", -1)
    return int(max_staleness)


def changes_map(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The map of REPLAY.CONFIG, of plain types, of those changes that are not None."""
    fields = {key: value for key, value in changes.items() if value is not None}
    for key in ("sampler", "remover"):
        if key in fields:
            fields[key] = selector_map(fields[key], key)
    if "rate_limiter" in fields:
        fields["rate_limiter"] = limiter_map(fields["rate_limiter"])
    for key, least in (("max_times_sampled", 0), ("max_bytes", 0), ("max_staleness", -1)):
        if key in fields:
            check_whole(fields[key], key, least)
            fields[key] = int(fields[key])
    return fields


def _over_subtree(leaf: Any, signature: Any) -> Any:
    """A window over a dict or a tuple of columns as a window over each of them; everything else as it is."""
    source = part_of(signature, leaf.source) if isinstance(leaf, Window) else None
    if not isinstance(source, dict | tuple):
        return leaf
    return shaped(source, {path: replace(leaf, source=f"{leaf.source}/{path}") for path in leaves_of(source)})


def _columns_from(path: str, value: Any, leaves: dict[str, Column | Window]) -> None:
    """Adds a spec's columns at a path and below it: names may be paths, or values maps and lists of others."""
    if isinstance(value, Mapping) and all(isinstance(part, Mapping | list) for part in value.values()) and value:
        for key, part in value.items():
            _columns_from(f"{path}/{key}", part, leaves)
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], str):
        for place, part in enumerate(value):
            _columns_from(f"{path}/{place}", part, leaves)
    else:
        leaves[path] = _column_from(path, value)


def _column_from(name: str, value: Any) -> Column | Window:
    if (
        isinstance(value, Mapping)
        and "dtype" in value
        and not set(value) - {"dtype", "shape", "step_only", "max_length"}
    ):
        more = {"step_only": value.get("step_only", False), "max_length": value.get("max_length")}
        return Column(value["dtype"], value.get("shape", ()), **more)
    if isinstance(value, Mapping) and "window" in value and not set(value) - {"window", *_WINDOW_KEYS}:
        return Window(value["window"], value.get("length") or None, value.get("offset", 0), value.get("max_length"))
    if isinstance(value, list | tuple) and len(value) == 2:
        return Column(value[0], value[1])
    raise SchemaError(
        f'column {name!r} must be {{"dtype": …, "shape": […], "step_only": …, "max_length": …}}, [dtype, shape] or '
        f'{{"window": …, "length": …, "offset": …}} or {{"window": …, "max_length": …}}, got {value!r}'
    )


_WINDOW_KEYS = ("length", "offset", "max_length")
