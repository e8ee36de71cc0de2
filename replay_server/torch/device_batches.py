"""Batches on their way to the device that learns, while neither the device nor the host stops for it.

CUDA copies beside its kernels only from and to memory that is pinned. So batches lie in such memory at once: they
are received into pinned arrays (`host_arrays`), and memory that a server on this host shares is pinned where it lies.
Torch's streams and events of the CPU do nothing: there a copy is done when it returns, and bytes that lie on the CPU
already are not copied at all.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Detailed, dtypes_of, refuse_bytes
from ..dtypes import is_bfloat16
from ..ragged import Ragged
from ..shared_memory import Arena
from ..tree import leaves_of, mapped
from .ragged import RaggedTensor

HELD = 2
"""Batches whose arrays are held at most, for copies that may not have ended: a sampler's pool has as many to spare."""
REGISTER_PORTABLE, REGISTER_READ_ONLY = 1, 8
"""cudaHostRegisterPortable, cudaHostRegisterReadOnly: the client may not write to memory that a server shares."""


@dataclass(eq=False)
class DeviceBatch(Detailed):
    """A `replay_server.Batch` on a device.

    Attributes:
        data: as in `Batch`, with a tensor (N, *column.shape) on the device in the place of each array, and a
            `RaggedTensor` in that of a ragged column. On the CPU they lie over the batch's own arrays. Those are
            read-only unless the batch was sampled with `writable=True`, and writing to a tensor over memory shared with
            a server then ends the process (SIGSEGV).
        weights: float32 (N,), on the device.
        ids: uint64 (N,), a NumPy array, to hand back to `update_priorities`.
        probabilities: float64 (N,), a NumPy array.
        missing, details: as in `Batch`, and with details its `priorities`, `times_sampled`, `ages` and `table_sizes`,
            NumPy arrays.
    """

    data: dict[str, Any]
    weights: Tensor
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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> DeviceBatch:
        """The batch on another device; see `torch.Tensor.to`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> DeviceBatch:
        """The batch in pinned memory, as `DataLoader(pin_memory=True)` asks for."""
        return self._each(Tensor.pin_memory)

    def _each(self, function: Callable[[Tensor], Tensor]) -> DeviceBatch:
        data = mapped(self.data, lambda column: _with_tensors(column, function))
        return replace(self, data=data, weights=function(self.weights))


def _column_over(column: np.ndarray | Ragged) -> Tensor | RaggedTensor:
    if isinstance(column, Ragged):
        return RaggedTensor(tensor_over(column.values), tensor_over(column.offsets))
    return tensor_over(column)


def _with_tensors(column: Tensor | RaggedTensor, function: Callable[[Tensor], Tensor]) -> Tensor | RaggedTensor:
    return column.each(function) if isinstance(column, RaggedTensor) else function(column)


def _tensors_of(column: Tensor | RaggedTensor) -> tuple[Tensor, ...]:
    return (column.values, column.offsets) if isinstance(column, RaggedTensor) else (column,)


def on_cpu(batch: Batch) -> DeviceBatch:
    """A batch as tensors over its own arrays; nothing is copied. Raises SchemaError where a column holds bytes."""
    refuse_bytes(dtypes_of(batch), "torch")
    data, weights = mapped(batch.data, _column_over), tensor_over(batch.weights)
    return DeviceBatch(data, weights, batch.ids, batch.probabilities, batch.missing, batch.details)


class DeviceBatches:
    """The batches of a sampler on a device: an iterator, and a context manager that ends the copying.

    Copies are made in a stream of their own, beside what the caller has the device do. What the caller launches after
    `next()` waits for them there; the host does not wait. A batch's own arrays are let go when its copy is done, in
    the batches' order: then shared memory is given back, and arrays are used again. At most `HELD` are held.

    Args:
        batches: those of a `Client.sampler` or `Buffer.sampler`, best made with `allocate=host_arrays(device)`.
        device: where to.
        arenas: connections whose shared memory the batches come through in turn (a sampler's requests in flight).
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device, arenas: int = 1) -> None:
        self._batches = iter(batches)
        self._device = device
        self._streams: Any = torch.get_device_module(device)
        self._copying: Any = torch.cuda.Stream(device) if device.type == "cuda" else torch.cpu.Stream()
        self._under_way: deque[tuple[Any, Batch]] = deque()
        self._pinned = PinnedArenas(device, arenas)

    def __iter__(self) -> DeviceBatches:
        return self

    def __next__(self) -> DeviceBatch:
        self._let_go(HELD - 1)
        batch = next(self._batches)
        if batch.lease is not None and self._device.type == "cuda" and batch.lease.arena not in self._pinned:
            self._let_go(0)  # one may have to go from which copies are under way
            self._pinned.add(batch.lease.arena)
        refuse_bytes(dtypes_of(batch), "torch")
        with self._streams.stream(self._copying):
            data = mapped(batch.data, lambda column: _with_tensors(_column_over(column), self._moved))
            weights, ids, probabilities = self._copied(batch.weights), batch.ids.copy(), batch.probabilities.copy()
            copied = DeviceBatch(data, weights, ids, probabilities, batch.missing, batch.details)
            done = self._streams.Event()
            done.record(self._copying)
        self._under_way.append((done, batch))
        working = self._streams.current_stream(self._device)
        working.wait_event(done)
        if self._device.type == "cuda":
            for column in (copied.weights, *copied.columns.values()):
                for tensor in _tensors_of(column):
                    tensor.record_stream(working)  # its memory is used again only after what is launched there by then
        return copied

    def _copied(self, array: np.ndarray) -> Tensor:
        return self._moved(tensor_over(array))

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _let_go(self, keep: int) -> None:
        """Drops the batches whose copies are done; waits for the oldest where there are more than `keep`."""
        while self._under_way and (len(self._under_way) > keep or self._under_way[0][0].query()):
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def close(self) -> None:
        """Waits for the copies that are under way and lets go of all; repeatable. The sampler stays open."""
        self._let_go(0)
        self._pinned.clear()

    def __enter__(self) -> DeviceBatches:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PinnedArenas:
    """The shared memory that batches lie in at present, registered with CUDA.

    So much as there are connections, and no more: one that was lost takes its memory along, and pinned memory must not
    pile up.
    """

    def __init__(self, device: torch.device, most: int = 1) -> None:
        self._device, self._most = device, most
        self._registered: dict[Arena, bool] = {}
        """Whether CUDA took it; the oldest first."""

    def __contains__(self, arena: Arena) -> bool:
        return arena in self._registered

    def add(self, arena: Arena) -> None:
        """Registers this one. The oldest has to go where there are too many: no copy from it may be under way.

        Where CUDA refuses, it warns: copies from there take longer, and nothing else changes.
        """
        while len(self._registered) >= self._most:
            self._remove(next(iter(self._registered)))
        self._registered[arena] = False
        try:
            flags = REGISTER_PORTABLE | REGISTER_READ_ONLY
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(arena.address, arena.size_bytes, flags))  # pyright: ignore
            self._registered[arena] = True
        except RuntimeError as error:
            # CUDA keeps the error for whoever looks next: that shall be this, not the learner's next kernel.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=self._device)
            warnings.warn(
                f"CUDA cannot pin {arena.size_bytes} bytes shared with the server ({error}): batches are copied from "
                "there more slowly. Client(shared_memory=False) receives them into pinned memory instead",
                RuntimeWarning,
                stacklevel=3,
            )

    def _remove(self, arena: Arena) -> None:
        if self._registered.pop(arena):
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(arena.address))  # pyright: ignore

    def clear(self) -> None:
        """Lets go of all; no copy may be under way."""
        while self._registered:
            self._remove(next(iter(self._registered)))


def host_arrays(device: torch.device) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """What makes the arrays that batches for a device are received into (`allocate` of a sampler): pinned for CUDA."""
    return pinned_array if device.type == "cuda" else np.empty


def pinned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array in pinned memory; in plain memory where torch has no such dtype, or only as bits."""
    if is_bfloat16(np.dtype(dtype)):
        return np.empty(shape, dtype)
    try:
        like = torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return np.empty(shape, dtype)
    return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


def tensor_over(array: np.ndarray) -> Tensor:
    """A tensor over the array's memory. Writing to one over shared memory, which is read-only, ends the process
    (SIGSEGV).

    Columns of bfloat16 become torch's own.
    """
    if is_bfloat16(array.dtype):
        return tensor_over(array.view(np.int16)).view(torch.bfloat16)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
