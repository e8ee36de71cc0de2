"""What callers hand over, checked before it goes anywhere: batches of columns, priorities, ids, timeouts, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .dtypes import bits_of_tensor
from .errors import LimitExceeded, PriorityError, ReplayError, SchemaError
from .selectors import is_whole
from .table import Column, Table


def check_columns(table: Table, data: Mapping[str, Any]) -> tuple[int, list[Any]]:
    """Checks one batch against a table's signature.

    Arrays (and tensors) must have exactly the column's dtype and the shape (N, *column.shape). Python numbers in lists
    are converted where no information but rounding of floats is lost. For ragged columns see `ragged_checks`.

    Returns:
        N, and the columns in the order of the signature's leaves, C-contiguous; ragged ones as `Ragged`.

    Raises:
        SchemaError: columns are missing or unknown, or a dtype, shape or length differs.
    """
    if not isinstance(data, Mapping):
        raise SchemaError(f"expected a dict of columns for table {table.name!r}, got {type(data).__name__}")
    if table.windows:
        raise SchemaError(
            f"table {table.name!r} has windows: its items are made from steps; use writer(…) or vector_writer(…), "
            "whose append and create_item take them, instead of add"
        )
    data = table.taken_apart(data)
    if data.keys() != table.leaves.keys():
        missing = [name for name in table.leaves if name not in data]
        unknown = [str(name) for name in data if name not in table.leaves]
        problems = "".join(f"; missing: {name}" for name in missing) + "".join(f"; unknown: {name}" for name in unknown)
        raise SchemaError(f"table {table.name!r} expects the columns {', '.join(table.leaves)}{problems}")
    count = -1
    columns: list[Any] = []
    for name, column in table.columns.items():
        if column.ragged:
            from .ragged_checks import check_ragged  # which stands on this module

            checked: Any = check_ragged(name, column, data[name])
        else:
            checked = np.ascontiguousarray(check_column(name, column, data[name]))
        if count not in (-1, len(checked)):
            raise SchemaError(f"column {name!r} has {len(checked)} items where the columns before it have {count}")
        count = len(checked)
        columns.append(checked)
    return count, columns


def check_column(name: str, column: Column, value: Any) -> np.ndarray:
    """N values of one column as an array (N, *column.shape).

    Raises:
        SchemaError: the dtype or the shape differs.
    """
    array = _column_array(name, column, value)
    if array.ndim == 0 or array.shape[1:] != column.shape:
        expected = ", ".join(["N", *map(str, column.shape)]) + ("," if not column.shape else "")
        raise SchemaError(f"column {name!r} expects shape ({expected}), got {array.shape}")
    return array


def as_array(expected: str, value: Any, refusal: type[ReplayError] = SchemaError) -> np.ndarray:
    """What NumPy makes of a value.

    Raises:
        refusal: NumPy cannot read it, such as a tensor that requires grad or lies on a GPU.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        first = value[0] if isinstance(value, list | tuple) and value else value
        way = "; pass tensor.detach().cpu().numpy()" if hasattr(first, "detach") else ""
        raise refusal(f"{expected}, got {type(value).__name__}, which NumPy cannot read: {error}{way}") from error


def _column_array(name: str, column: Column, value: Any) -> np.ndarray:
    dtype = column.numpy_dtype
    if type(value) is np.ndarray and value.dtype == dtype:
        return value  # before the words for a refusal, which take NumPy longer than the check
    if isinstance(value, bool | int | float | complex | bytes | list | tuple):
        return _from_python(name, dtype, value)
    if column.dtype == "bfloat16" and (bits := bits_of_tensor(value)) is not None:
        return bits
    array = as_array(f"column {name!r} expects an array of {dtype}", value)
    if array.dtype.kind == dtype.kind == "S" and array.dtype.itemsize < dtype.itemsize:
        return array.astype(dtype)  # shorter bytes, with zeros behind them
    if array.dtype != dtype:
        raise SchemaError(
            f"column {name!r} expects dtype {dtype}, got {array.dtype}; convert it, e.g. with .astype({dtype.name!r})"
        )
    return array


# A list may be converted to numbers of the same kind, or of a more general one.
_GENERALITY = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _kind(dtype: np.dtype) -> str:
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _from_python(name: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """Python numbers as the column's dtype: bools to anything, ints to integers that hold them and to floats, floats to
    floats."""
    try:
        natural = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"column {name!r} expects {dtype} of one shape, got a list that is not: {error}") from error
    if natural.dtype == dtype or natural.size == 0:
        return natural.astype(dtype)
    if dtype.kind == natural.dtype.kind == "S":
        if natural.dtype.itemsize > dtype.itemsize:
            raise SchemaError(f"column {name!r} expects at most {dtype.itemsize} bytes, got {natural.dtype.itemsize}")
        return natural.astype(dtype)
    if _GENERALITY.get(natural.dtype.kind, 4) > _GENERALITY.get(_kind(dtype), -1):
        raise SchemaError(f"column {name!r} expects {dtype}, got a list of {natural.dtype}: convert it first")
    with np.errstate(over="ignore"):
        converted = natural.astype(dtype)
    if natural.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = int(natural.min()) >= limits.min and int(natural.max()) <= limits.max
    else:
        fits = _kind(dtype) not in "fc" or bool((np.isfinite(converted) == np.isfinite(natural)).all())
    if not fits:
        raise SchemaError(f"column {name!r} expects {dtype}, which cannot hold {natural.min()} to {natural.max()}")
    return converted


def check_priorities(priorities: Any, count: int) -> np.ndarray:
    """Priorities as float64 (count,), C-contiguous.

    Raises:
        PriorityError: not `count` numbers, or one is NaN, infinite or negative.
    """
    given = as_array(f"expected {count} priorities, numbers of at least 0", priorities, PriorityError)
    try:
        array = np.ascontiguousarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PriorityError(f"expected {count} priorities, numbers of at least 0, got {priorities!r:.200}") from error
    if given.shape != (count,):
        raise PriorityError(f"expected {count} priorities, shape ({count},), got shape {given.shape}")
    valid = np.isfinite(array) & (array >= 0)
    if not valid.all():
        at = int(np.argmin(valid))
        raise PriorityError(f"a priority must be finite and at least 0, got {array[at]} at index {at}")
    return array


_FOR_EVER_S = 1e8  # three years; clocks and the protocol can count to it


def check_timeout(timeout: float | None) -> float | None:
    """Seconds to wait as every clock can count them; None = for ever, which infinity and three years are too.

    Raises:
        ValueError: it is negative, NaN, or no number.
    """
    if timeout is None:
        return None
    try:
        valid = timeout >= 0
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout!r}")
    return None if timeout >= _FOR_EVER_S else timeout


MOST_SAMPLED = 1 << 20
"""Items of a sample."""


def check_batch_size(batch_size: int) -> None:
    """Checks how many items a sample is of.

    Raises:
        ValueError: fewer than 1.
        LimitExceeded: more than any table gives at once.
    """
    check_count(batch_size, "batch_size", 1)
    if batch_size > MOST_SAMPLED:
        raise LimitExceeded(f"expected at most {MOST_SAMPLED} items at once, got {batch_size}")


def check_reason(reason: str | None) -> str | None:
    """Raises ValueError unless it is a text or None."""
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"reason must be a line of text or None, got {reason!r}")
    return reason


def check_awaited(since: int | None, size: int | None) -> None:
    """Raises ValueError unless one of both says what is waited for."""
    if (since is None) == (size is None):
        raise ValueError("expected either since or size, got " + ("neither" if since is None else "both"))


def check_count(value: Any, name: str, least: int, of: str = "") -> None:
    """Raises ValueError unless it is a whole number of at least `least`; `of`: what it counts."""
    if not is_whole(value):
        raise ValueError(f"{name} must be a whole number of at least {least}{of}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}{of}, got {value!r}")


def check_exponent(exponent: Any) -> float:
    """An importance-sampling exponent β.

    Raises:
        ValueError: it is no number from 0 to 100.
    """
    try:
        number = -1.0 if isinstance(exponent, str | bytes) else float(exponent)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: torch's, of a tensor with several
        number = -1.0
    if not 0 <= number <= 100:
        raise ValueError(f"importance_sampling_exponent (beta) must be a number from 0 to 100, got {exponent!r}")
    return number


def check_version(policy_version: int) -> int:
    """A policy's version, a whole number of 64 bits.

    Raises:
        ValueError: it is none.
    """
    if isinstance(policy_version, bool) or not isinstance(policy_version, int | np.integer):
        raise ValueError(f"policy_version must be a whole number, got {policy_version!r}")
    if not -(2**63) <= policy_version < 2**63:
        raise ValueError(f"policy_version must fit 64 bits, got {policy_version!r}")
    return int(policy_version)


def check_ids(ids: Any) -> np.ndarray:
    """Item ids as uint64 (n,), C-contiguous.

    Raises:
        SchemaError: they are not ids.
    """
    if isinstance(ids, list | tuple):
        # NumPy would make floats of a list that holds ids below and above 2^63.
        if not all(isinstance(item, int | np.integer) and 0 <= item < 2**64 for item in ids):
            raise SchemaError(f"expected item ids, whole numbers from 0 to 2^64 - 1, got {ids!r:.200}")
        return np.array(ids, np.uint64)
    array = as_array("expected item ids, uint64 of shape (n,)", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.dtype.kind == "i" and (array < 0).any()):
        raise SchemaError(f"expected item ids, uint64 of shape (n,), got {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, dtype=np.uint64)
