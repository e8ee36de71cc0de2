"""A sum tree over NumPy arrays: draws indices with probability proportional to their values."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ._native import ffi, lib
from .checks import as_array
from .errors import LimitExceeded, ReplayError, SchemaError, error_from_core

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_INDICES, _VALUES = ffi.typeof("int64_t[]"), ffi.typeof("double[]")


class SumTree:
    """Values of at least 0, by index; draws indices in proportion to them. Prioritized tables sample with it.

    Sums are 64-bit and recomputed from their children, so they do not drift. Any number of threads may share a tree.

    Args:
        capacity: indices are 0 … capacity − 1; all values begin as 0.
        seed: of the random numbers; 0 = taken from the operating system.

    Raises:
        LimitExceeded: capacity is not 1 to 2^31, or memory is exhausted.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._error = ffi.new("struct error *")
        if capacity < 1:
            raise LimitExceeded(f"expected a capacity of at least 1, got {capacity}")
        core = lib.sum_tree_array_new(capacity, seed, self._error)
        if core == ffi.NULL:
            raise self._refusal()
        self._core = ffi.gc(core, lib.sum_tree_array_free)
        self._capacity = int(capacity)

    def __repr__(self) -> str:
        return f"SumTree({self._capacity}, total={self.total:g})"

    def __len__(self) -> int:
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of all values."""
        with self._lock:
            return lib.sum_tree_array_total(self._core)

    def _refusal(self) -> ReplayError:
        message = ffi.string(self._error.message).decode("utf-8", "replace")
        return error_from_core(ffi.string(lib.error_code_name(self._error.code)).decode(), message)

    def update(self, indices: Any, values: Any) -> None:
        """Sets the values at indices. If an index occurs twice, its last value counts.

        Args:
            indices: integers (n,).
            values: numbers (n,), finite and at least 0.

        Raises:
            SchemaError: the shapes differ, or an index is outside the tree. Nothing was changed.
            PriorityError: a value is NaN, infinite or negative. Nothing was changed.
        """
        indices = _checked(indices, _INT64, "indices")
        values = _checked(values, _FLOAT64, "values")
        count = len(indices)
        if len(values) != count:
            raise SchemaError(f"expected as many values as indices, got {len(values)} for {count}")
        with self._lock:
            status = lib.sum_tree_array_update(
                self._core, count, ffi.from_buffer(_INDICES, indices), ffi.from_buffer(_VALUES, values), self._error
            )
            if status:
                raise self._refusal()

    def get(self, indices: Any) -> np.ndarray:
        """The values at indices, float64 (n,).

        Raises:
            SchemaError: an index is outside the tree.
        """
        indices = _checked(indices, _INT64, "indices")
        values = np.empty(len(indices))
        with self._lock:
            status = lib.sum_tree_array_get(
                self._core,
                len(indices),
                ffi.from_buffer(_INDICES, indices),
                ffi.from_buffer(_VALUES, values),
                self._error,
            )
            if status:
                raise self._refusal()
        return values

    def sample(
        self, n: int, stratified: bool = True, out: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws n indices with replacement.

        Args:
            n: how many.
            stratified: one from each of n equal parts of the total (Schaul et al. 2016); otherwise independent draws.
            out: arrays to receive them in, as an earlier call returned them.

        Returns:
            The indices, int64 (n,), and the probability of each, value / total, float64 (n,).

        Raises:
            PriorityError: all values are 0.
            SchemaError: `out` does not fit.
            LimitExceeded: n is above 2^20.
        """
        if out is None:
            indices, probabilities = np.empty(n, _INT64), np.empty(n, _FLOAT64)
        else:
            indices, probabilities = out
            _check_out(indices, _INT64, n)
            _check_out(probabilities, _FLOAT64, n)
        with self._lock:
            status = lib.sum_tree_array_sample(
                self._core,
                n,
                stratified,
                ffi.from_buffer(_INDICES, indices, True),
                ffi.from_buffer(_VALUES, probabilities, True),
                self._error,
            )
            if status:
                raise self._refusal()
        return indices, probabilities


def _checked(given: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """A C-contiguous array (n,) of that dtype; integers are not made of anything else."""
    if isinstance(given, np.ndarray) and given.dtype is dtype and given.ndim == 1 and given.flags.c_contiguous:
        return given
    array = as_array(f"expected {what} of shape (n,) as {dtype}", given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in ("iu" if dtype is _INT64 else "iufb")):
        raise SchemaError(f"expected {what} of shape (n,) as {dtype}, got {array.dtype} of shape {array.shape}")
    if dtype is _INT64 and array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise SchemaError(f"expected {what} within the tree, got {array.max()}")
    return np.ascontiguousarray(array, dtype)


def _check_out(array: np.ndarray, dtype: np.dtype, count: int) -> None:
    fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == (count,)
    if not fits or not array.flags.c_contiguous or not array.flags.writeable:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise SchemaError(f"out must be writable, C-contiguous {dtype} of shape ({count},), got {got}")
