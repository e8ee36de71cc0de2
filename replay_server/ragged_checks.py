"""Ragged columns that callers hand over, as lists of arrays or as values and offsets, checked before they go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import as_array, check_column
from .errors import SchemaError
from .ragged import Ragged
from .table import Column


def check_ragged(name: str, column: Column, value: Any) -> Ragged:
    """N values of a ragged column, C-contiguous.

    Args:
        name, column: of the signature.
        value: a list of arrays (rows, *column.shape[1:]); a tuple (values, offsets) or a `Ragged`, which has all rows
            one behind the other, and where each item begins; or one array (N, rows, *column.shape[1:]).

    Raises:
        SchemaError: a dtype or a shape differs, offsets do not fit, or an item is longer than `max_length`.
    """
    row = Column(column.dtype, column.shape[1:])
    if isinstance(value, Ragged):
        ragged = _of_offsets(name, row, value.values, value.offsets)
    elif isinstance(value, tuple):
        if len(value) != 2:
            raise SchemaError(
                f"column {name!r} is ragged: expected a list of arrays, or a tuple (values, offsets), got a tuple of "
                f"{len(value)}"
            )
        ragged = _of_offsets(name, row, *value)
    elif isinstance(value, list):
        ragged = _of_items(name, row, value)
    else:
        ragged = _of_array(name, row, value)
    longest = int(ragged.lengths.max(initial=0))
    assert column.max_length is not None
    if longest > column.max_length:
        at = int(np.argmax(ragged.lengths))
        raise SchemaError(
            f"column {name!r} holds items of at most {column.max_length} rows (its max_length), got {longest} at index "
            f"{at}"
        )
    return ragged


def _of_offsets(name: str, row: Column, values: Any, offsets: Any) -> Ragged:
    rows = np.ascontiguousarray(check_column(name, row, values))
    given = as_array(f"column {name!r} expects offsets, whole numbers of shape (N + 1,)", offsets)
    if given.ndim != 1 or len(given) < 1 or given.dtype.kind not in "iu":
        raise SchemaError(
            f"column {name!r} expects offsets, whole numbers of shape (N + 1,), got {given.dtype} of shape "
            f"{given.shape}"
        )
    ascending = np.ascontiguousarray(given, np.int64)
    if ascending[0] != 0 or ascending[-1] != len(rows) or (np.diff(ascending) < 0).any():
        raise SchemaError(
            f"column {name!r} expects offsets that begin with 0, ascend, and end with the number of rows, {len(rows)}; "
            f"got {ascending!r:.200}"
        )
    return Ragged(rows, ascending)


def _of_items(name: str, row: Column, items: list[Any]) -> Ragged:
    offsets = np.zeros(len(items) + 1, np.int64)
    if not items:
        return Ragged(np.empty((0, *row.shape), row.numpy_dtype), offsets)
    arrays = [_rows(name, row, index, item) for index, item in enumerate(items)]
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return Ragged(np.ascontiguousarray(np.concatenate(arrays)), offsets)


def _rows(name: str, row: Column, index: int, item: Any) -> np.ndarray:
    try:
        return check_column(name, row, item)
    except SchemaError as error:
        raise SchemaError(f"item {index} of a ragged column: {error}") from error


def _of_array(name: str, row: Column, value: Any) -> Ragged:
    array = as_array(f"column {name!r} is ragged and expects a list of arrays, or a tuple (values, offsets)", value)
    if array.ndim < 2 or array.dtype != row.numpy_dtype:
        raise SchemaError(
            f"column {name!r} is ragged: expected a list of arrays of {row.dtype}, a tuple (values, offsets), or an "
            f"array (N, rows, …), got {array.dtype} of shape {array.shape}"
        )
    count, length = array.shape[:2]
    rows = check_column(name, row, array.reshape(count * length, *array.shape[2:]))
    return Ragged(np.ascontiguousarray(rows), np.arange(count + 1, dtype=np.int64) * length)
