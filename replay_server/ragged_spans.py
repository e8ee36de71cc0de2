"""Which steps a ragged window shows of an item: slices of an episode, as steps of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import SchemaError
from .table import Window
from .tree import Leaves, paths_under


def take_slices(windows: Mapping[str, Window], columns: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of items, apart: slices by the path of each ragged window that they are for, and the rest.

    A slice for a dict or a tuple of windows is for each of them.

    Raises:
        SchemaError: that is no dict.
    """
    if not isinstance(columns, Mapping):
        raise SchemaError(f"expected a dict of columns, got {type(columns).__name__}")
    slices: dict[str, Any] = {}
    rest = Leaves() if type(columns) is Leaves else dict[str, Any]()
    for name, value in columns.items():
        paths = paths_under(tuple(windows), name) if _is_sliced(value) else []
        slices |= dict.fromkeys(paths, value)
        if not paths:
            rest[name] = value
    return slices, rest


def _is_sliced(value: Any) -> bool:
    return isinstance(value, slice) or (isinstance(value, list) and any(isinstance(each, slice) for each in value))


def spans(
    name: str, window: Window, value: Any, chosen: np.ndarray, first: np.ndarray, steps: np.ndarray, history: int
) -> np.ndarray:
    """Steps of the streams of the chosen environments, of k: uint64 (k, 2), the first of each item and how many.

    Args:
        name, window: a ragged window.
        value: a slice, of each environment's newest episode so far, or a list of one for each environment.
        chosen: environments, (k,).
        first, steps: of all n environments, (n,): the first step of the newest episode; steps so far.
        history: of so many newest steps.

    Raises:
        SchemaError: it is no slice, or shows too many steps, or steps that are no longer there.
    """
    length = (steps - first)[chosen]
    if isinstance(value, list):
        if len(value) != len(first):
            raise SchemaError(
                f"window {name!r} expects a slice, or one for each of {len(first)} environments, got {value!r}"
            )
        given = [slice(*_ends(name, value[environment])) for environment in chosen]
        start, stop, _ = np.array([each.indices(n) for each, n in zip(given, length, strict=True)], np.int64).T
    else:
        begin, end = _ends(name, value)
        start, stop = _place(begin, length, 0), _place(end, length, length)
    count = np.maximum(stop - start, 0)
    if (count > window.steps).any():
        raise SchemaError(f"window {name!r} shows at most {window.steps} steps (its max_length), got {count.max()}")
    late = (count > 0) & (start < length - history)
    if late.any():
        place = int(np.argmax(late))
        raise SchemaError(
            f"window {name!r} can show the newest {history} steps, got a slice of {count[place]} from step "
            f"{start[place]} on of an episode of {length[place]}: make the writer with a larger history"
        )
    return np.stack([first[chosen] + start, count], axis=1).astype(np.uint64)


def _ends(name: str, value: Any) -> tuple[int | None, int | None]:
    """Where a slice starts and stops."""
    if isinstance(value, slice) and value.step in (None, 1):
        ends = value.start, value.stop
        if all(end is None or isinstance(end, int | np.integer) for end in ends):
            return ends
    raise SchemaError(f"window {name!r} expects a slice of consecutive steps, such as slice(-8, None), got {value!r}")


def _place(end: int | None, length: Any, default: Any) -> Any:
    """An end of a slice in lists of so many elements, as `slice.indices` has it."""
    if end is None:
        return np.zeros_like(length) + default
    return np.maximum(length + end, 0) if end < 0 else np.minimum(length, end)
