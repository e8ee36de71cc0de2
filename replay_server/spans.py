"""Which steps a ragged window shows of an item: slices of an episode, as steps of a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import SchemaError
from .table import Window
from .tree import Leaves, paths_under


def take_slices(windows: Mapping[str, Window], columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of items, apart: slices by the path of each ragged window that they are for, and the rest.

    A slice for a dict or a tuple of windows is for each of them.
    """
    slices: dict[str, Any] = {}
    rest = Leaves() if type(columns) is Leaves else dict[str, Any]()
    for name, value in columns.items():
        paths = paths_under(tuple(windows), name) if _is_sliced(value) else []
        slices |= dict.fromkeys(paths, value)
        if not paths:
            rest[name] = value
    return slices, rest


def _is_sliced(value: Any) -> bool:
    return isinstance(value, slice) or (isinstance(value, list) and len(value) > 0 and isinstance(value[0], slice))


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
    slices = value if isinstance(value, list) else [value] * len(first)
    if len(slices) != len(first):
        raise SchemaError(
            f"window {name!r} expects a slice, or one for each of {len(first)} environments, got {value!r}"
        )
    found = np.empty((len(chosen), 2), np.uint64)
    for place, environment in enumerate(chosen):
        begin, end = int(first[environment]), int(steps[environment])
        start, stop = _range(name, slices[environment], end - begin)
        count = stop - start
        if count > window.steps:
            raise SchemaError(f"window {name!r} shows at most {window.steps} steps (its max_length), got {count}")
        if count and begin + start < end - history:
            raise SchemaError(
                f"window {name!r} can show the newest {history} steps, got {slices[environment]!r} of an episode of "
                f"{end - begin}: make the writer with a larger history"
            )
        found[place] = begin + start, count
    return found


def _range(name: str, value: Any, length: int) -> tuple[int, int]:
    start = stop = step = 0
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        start, stop, step = value.indices(length)
    if step != 1:
        raise SchemaError(
            f"window {name!r} expects a slice of consecutive steps, such as slice(-8, None), got {value!r}"
        )
    return start, max(start, stop)
