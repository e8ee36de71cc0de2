"""What goes to the device that learns, and what returns from it, while neither the device nor the host stops for it.

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
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from replay_server.batch import Batch
from replay_server.rl.observations import map_tree
from replay_server.shared_memory import Arena

T = TypeVar("T")

HELD = 2
"""Batches whose arrays are held at most, for copies that may not have ended: a sampler's pool has as many to spare."""
REGISTER_PORTABLE, REGISTER_READ_ONLY = 1, 8
"""cudaHostRegisterPortable, cudaHostRegisterReadOnly: the client may not write to memory that a server shares."""


@dataclass(eq=False)
class DeviceBatch:
    """A `replay_server.Batch` on a device.

    Attributes:
        data: path of a column → tensor (N, *column.shape) on the device. On the CPU they lie over the batch's own
            arrays, which may be read-only: they must not be written to.
        weights: float32 (N,), on the device.
        ids: uint64 (N,), a NumPy array, to hand back to `update_priorities`.
        probabilities: float64 (N,), a NumPy array.
    """

    data: dict[str, Tensor]
    weights: Tensor
    ids: np.ndarray
    probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> dict[str, Tensor]:
        """`data`, under the name that `replay_server.Batch` has for columns by path."""
        return self.data


class DeviceBatches:
    """The batches of a sampler on a device: an iterator, and a context manager that ends the copying.

    Copies are made in a stream of their own, beside what the caller has the device do. What the caller launches after
    `next()` waits for them there; the host does not wait. A batch's own arrays are let go when its copy is done, in
    the batches' order: then shared memory is given back, and arrays are used again. At most `HELD` are held.

    Args:
        batches: those of a `Client.sampler` or `Buffer.sampler`, best made with `allocate=host_arrays(device)`.
        device: where to.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._batches = iter(batches)
        self._device = device
        self._streams: Any = torch.get_device_module(device)
        self._copying: Any = torch.cuda.Stream(device) if device.type == "cuda" else torch.cpu.Stream()
        self._under_way: deque[tuple[Any, Batch]] = deque()
        self._pinned = PinnedArena(device)

    def __iter__(self) -> DeviceBatches:
        return self

    def __next__(self) -> DeviceBatch:
        self._let_go(HELD - 1)
        batch = next(self._batches)
        if batch.lease is not None and self._device.type == "cuda" and batch.lease.arena is not self._pinned.arena:
            self._let_go(0)
            self._pinned.become(batch.lease.arena)
        with self._streams.stream(self._copying):
            data = {name: self._copied(array) for name, array in batch.columns.items()}
            copied = DeviceBatch(data, self._copied(batch.weights), batch.ids.copy(), batch.probabilities.copy())
            done = self._streams.Event()
            done.record(self._copying)
        self._under_way.append((done, batch))
        working = self._streams.current_stream(self._device)
        working.wait_event(done)
        if self._device.type == "cuda":
            for tensor in (copied.weights, *data.values()):
                tensor.record_stream(working)  # its memory is used again only after what is launched there by then
        return copied

    def _copied(self, array: np.ndarray) -> Tensor:
        return tensor_over(array).to(self._device, non_blocking=True)

    def _let_go(self, keep: int) -> None:
        """Drops the batches whose copies are done; waits for the oldest where there are more than `keep`."""
        while self._under_way and (len(self._under_way) > keep or self._under_way[0][0].query()):
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def close(self) -> None:
        """Waits for the copies that are under way and lets go of all; repeatable. The sampler stays open."""
        self._let_go(0)
        self._pinned.become(None)

    def __enter__(self) -> DeviceBatches:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PinnedArena:
    """The shared memory that batches lie in at present, registered with CUDA.

    Only one is: a connection that was lost takes its memory along, and pinned memory must not pile up.
    """

    def __init__(self, device: torch.device) -> None:
        self.arena: Arena | None = None
        self._device = device
        self._registered = False

    def become(self, arena: Arena | None) -> None:
        """Registers this one in the place of the one before, from which no copy may be under way.

        Where CUDA refuses, it warns: copies from there take longer, and nothing else changes.
        """
        if self.arena is not None and self._registered:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.arena.address))  # pyright: ignore
        self.arena, self._registered = arena, False
        if arena is None:
            return
        try:
            flags = REGISTER_PORTABLE | REGISTER_READ_ONLY
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(arena.address, arena.size_bytes, flags))  # pyright: ignore
            self._registered = True
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


def host_arrays(device: torch.device) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """What makes the arrays that batches for a device are received into (`allocate` of a sampler): pinned for CUDA."""
    return pinned_array if device.type == "cuda" else np.empty


def pinned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array in pinned memory; in plain memory where torch has no such dtype."""
    try:
        like = torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return np.empty(shape, dtype)
    return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


def tensor_over(array: np.ndarray) -> Tensor:
    """A tensor over the array's memory; over shared memory, which is read-only, one that must not be written to."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


class HostCopy(Generic[T]):
    """What the device has computed, on its way to the host: a dataclass, some of whose fields are tensors or maps of
    tensors.

    The copy is asked for at once, behind what computes it; the device goes on with what is launched after.
    """

    def __init__(self, value: T, device: torch.device) -> None:
        assert is_dataclass(value)
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        # Torch puts what is copied to the host without waiting into pinned memory.
        copied: dict[str, Any] = {
            name: map_tree(lambda tensor: tensor.to("cpu", non_blocking=True), each)
            for name, each in held.items()
            if isinstance(each, Tensor | dict)
        }
        self._value: T = replace(cast(Any, value), **copied)
        streams: Any = torch.get_device_module(device)
        self._done = streams.Event()
        self._done.record(streams.current_stream(device))

    def wait(self) -> T:
        """The same dataclass with its tensors on the CPU. Waits for them, and for nothing that was launched later."""
        self._done.synchronize()
        return self._value
