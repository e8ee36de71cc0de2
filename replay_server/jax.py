"""Batches as JAX arrays, and priorities from them. Needs jax, which is in no extra: `pip install jax`.

On the CPU an array of JAX lies over the memory that was received or is shared with the server, where JAX accepts its
alignment (64 bytes); else it is copied once. To another device it is copied.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

import numpy as np

from .batch import Batch, Detailed, chosen_dtypes, dtypes_of, refuse_bytes
from .errors import PriorityError, SchemaError
from .extras import needed_by
from .priority_updates import DeviceUpdates, UpdatingSampler
from .ragged import Ragged, check_fill
from .sampler import Sampler
from .table_methods import checked_handle
from .tree import leaves_of, mapped

with needed_by(__name__):
    jax: Any = importlib.import_module("jax")


@dataclass(eq=False)
class RaggedArray:
    """A `replay_server.Ragged` of JAX arrays. It is a pytree with these two as leaves.

    JAX compiles anew for each shape, and each batch has another number of rows. So `padded` and `mask` are made on the
    host, but for arrays that are traced, as within `jax.jit`.

    Attributes:
        values: (rows of all items, *column.shape[1:]).
        offsets: (N + 1,), int64 with `jax_enable_x64`, else int32: the rows of item i are
            `values[offsets[i]:offsets[i + 1]]`.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Any:
        """Rows of each item, (N,)."""
        return jax.numpy.diff(self.offsets)

    @property
    def mask(self) -> Any:
        """bool (N, longest): where `padded()` has rows of the items.

        Raises:
            SchemaError: it is used within `jax.jit`.
        """
        if isinstance(self.offsets, jax.core.Tracer):
            raise SchemaError(_UNKNOWN)
        return self._put(Ragged(np.empty(0), np.asarray(self.offsets)).mask)

    def padded(self, fill: Any = 0, length: int | None = None) -> Any:
        """The items as one array (N, length, *column.shape[1:]) on the same device, each from the first row on.

        Args:
            fill: what stands behind shorter items, a value of the column's dtype.
            length: rows; None: those of the longest item.

        Raises:
            SchemaError: an item is longer (within `jax.jit` its later rows are left out instead); a column of integers
                or bools cannot hold `fill`; or there is no length within `jax.jit`.
        """
        if not any(isinstance(array, jax.core.Tracer) for array in (self.values, self.offsets)):
            return self._put(Ragged(np.asarray(self.values), np.asarray(self.offsets)).padded(fill, length))
        check_fill(fill, self.values.dtype)
        if length is None:
            raise SchemaError(_UNKNOWN)
        places = jax.numpy.arange(length)
        mask = places < self.lengths[:, None]
        shape = (len(self), length, *self.values.shape[1:])
        padding = jax.numpy.full(shape, fill, self.values.dtype)
        if not len(self.values):
            return padding
        rows = self.values[jax.numpy.where(mask, self.offsets[:-1, None] + places, 0)]
        return jax.numpy.where(mask.reshape(shape[:2] + (1,) * (len(shape) - 2)), rows, padding)

    def _put(self, array: np.ndarray) -> Any:
        """An array where the values are."""
        # What jax.device_get returns holds NumPy arrays.
        return jax.device_put(array, self.values.sharding if getattr(self.values, "committed", False) else None)


_UNKNOWN = "the longest item's length is not known within jax.jit: give padded() a length, or call it outside"
jax.tree_util.register_dataclass(RaggedArray, ["values", "offsets"], [])


@dataclass(eq=False)
class JaxBatch(Detailed):
    """A `replay_server.Batch` of JAX arrays.

    Attributes:
        data: as in `Batch`, with JAX arrays (N, *column.shape), and a `RaggedArray` in the place of a ragged column: a
            pytree, which `jax.jit` and `jax.tree` take. The batch itself is no pytree.
        weights: float32 (N,), a JAX array.
        ids: uint64 (N,), a NumPy array, to hand back to `update_priorities`; JAX has no 64 bits unless asked for.
        probabilities: float64 (N,), a NumPy array, for the same reason.
        missing, details: as in `Batch`, and with details its `priorities`, `times_sampled`, `ages` and `table_sizes`,
            NumPy arrays.
    """

    data: dict[str, Any]
    weights: Any
    ids: np.ndarray
    probabilities: np.ndarray
    missing: tuple[int, ...] = ()
    details: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> dict[str, Any]:
        """`data` by path, such as "obs/image"."""
        return leaves_of(self.data)


def to_jax(batch: Batch, device: Any = None) -> JaxBatch:
    """A batch as JAX arrays.

    On the CPU they may lie over the batch's own arrays: do not write to those any more, nor sample into them (`out`).
    JAX turns columns of 64 bits into 32 unless `jax_enable_x64` is set.

    Args:
        device: one of `jax.devices()`, or a `jax.sharding.Sharding` of the first dimension; None: JAX's default.

    Raises:
        SchemaError: a column holds bytes.
        ValueError: `device` is neither a JAX device nor a sharding.
    """
    refuse_bytes(dtypes_of(batch), "JAX")
    _check_device(device)

    def column(values: np.ndarray | Ragged) -> Any:
        if isinstance(values, Ragged):
            return RaggedArray(jax.device_put(values.values, device), jax.device_put(values.offsets, device))
        return jax.device_put(values, device)

    data, weights = mapped(batch.data, column), jax.device_put(batch.weights, device)
    return JaxBatch(data, weights, batch.ids, batch.probabilities, batch.missing, batch.details)


def _check_device(device: Any) -> None:
    if device is not None and not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise ValueError(f"device must be one of jax.devices() or a jax.sharding.Sharding, got {device!r}")


class _Landing:
    """An array on its way to the host. JAX arrays are immutable, so it needs no copy of its own."""

    def __init__(self, values: Any) -> None:
        values.copy_to_host_async()
        self._values = values

    @property
    def is_done(self) -> bool:
        return self._values.is_ready()

    def wait(self) -> np.ndarray:
        return np.asarray(self._values)


class PriorityUpdates(DeviceUpdates):
    __doc__ = DeviceUpdates.__doc__

    def _landing(self, priorities: Any) -> _Landing | None:
        if isinstance(priorities, jax.core.Tracer):
            raise PriorityError("expected priorities with values, got a tracer: return them from the jitted function")
        return _Landing(priorities) if isinstance(priorities, jax.Array) else None


class JaxSampler(UpdatingSampler):
    """An iterator over `JaxBatch`es; a context manager. Made by `sampler`.

    It ends, fails and is interrupted as a `replay_server.Sampler`, which it has. For one thread.
    """

    _updates_of = PriorityUpdates

    def __init__(self, handle: Any, source: Sampler, device: Any) -> None:
        super().__init__(handle, source)
        self._device = device

    def __iter__(self) -> Iterator[JaxBatch]:
        return self

    def __next__(self) -> JaxBatch:
        # Copies: who keeps ids until priorities are sent does not keep the arrays of a whole batch in use.
        batch = to_jax(next(self._feed), self._device)
        return changed(batch, ids=batch.ids.copy(), probabilities=batch.probabilities.copy())

    def __enter__(self) -> JaxSampler:
        return self


def sampler(
    handle: Any,
    batch_size: int,
    *,
    device: Any = None,
    prefetch: int = 3,
    beta: float = 0.4,
    timeout: float | None = None,
    columns: Sequence[str] | None = None,
    replace: bool = True,
    coded: bool | None = None,
    workers: int = 1,
    in_flight: int | None = None,
    details: bool = False,
) -> JaxSampler:
    """Batches of JAX arrays, sampled ahead in the background.

    There is no `writable`, as there is for torch: JAX arrays cannot be written to.

    Args:
        handle: a table: `client["atari"]`, or a `replay_server.Buffer`.
        batch_size: items of each batch.
        device: where the arrays are to be: one of `jax.devices()`, or a `jax.sharding.Sharding` of the first dimension;
            None: JAX's default.
        beta: importance-sampling exponent of the weights.
        prefetch, timeout, columns, replace, coded, workers, in_flight, details: see `replay_server.Client.sampler`.

    Raises:
        TypeError: `handle` is neither a client's table nor a `Buffer`.
        ValueError: a number is out of range, or `device` is neither a JAX device nor a sharding.
        SchemaError: there is no such column, or one holds bytes. The table is looked up for that.
    """
    _check_device(device)
    checked_handle(handle)._check_against_table(lambda table: refuse_bytes(chosen_dtypes(table, columns), "JAX"))
    source = handle.sampler(
        batch_size,
        importance_sampling_exponent=beta,
        prefetch=prefetch,
        timeout=timeout,
        columns=columns,
        replace=replace,
        coded=coded,
        workers=workers,
        in_flight=in_flight,
        details=details,
    )
    return JaxSampler(handle, source, device)
