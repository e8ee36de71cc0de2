"""A sampler whose batches are tensors on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..sampler import Annealed, Sampler
from .device_batches import DeviceBatch, DeviceBatches, host_arrays, on_cpu
from .priorities import PriorityUpdates


class TensorSampler(Annealed):
    """An iterator over `DeviceBatch`es; a context manager. Made by `sampler`.

    It ends, fails and is interrupted as a `replay_server.Sampler`, which it has. For one thread.
    """

    def __init__(self, handle: Any, source: Sampler, device: torch.device, in_flight: int) -> None:
        self._handle, self._feed = handle, source
        self._on_device = None if device.type == "cpu" else DeviceBatches(source, device, in_flight)
        self._priorities: PriorityUpdates | None = None

    def __iter__(self) -> TensorSampler:
        return self

    def __next__(self) -> DeviceBatch:
        if self._on_device is not None:
            return next(self._on_device)
        # Copies: who keeps ids until priorities are sent does not keep the arrays of a whole batch in use.
        batch = on_cpu(next(self._feed))
        return replace(batch, ids=batch.ids.copy(), probabilities=batch.probabilities.copy())

    def update_priorities(self, ids: Any, priorities: torch.Tensor) -> None:
        """Sets priorities from a tensor on any device, without waiting for the device or for the server; see
        `PriorityUpdates.update_priorities`. Those of the last batches are sent by `flush`, and at the end of `with`."""
        if self._priorities is None:
            self._priorities = PriorityUpdates(self._handle)
        self._priorities.update_priorities(ids, priorities)

    def flush(self) -> None:
        """Waits until all priorities are sent and answered."""
        if self._priorities is not None:
            self._priorities.flush()

    def close(self, flush: bool = True) -> None:
        """Ends the sampling, waits for the copies that are under way, and sends the last priorities, unless told not
        to."""
        with contextlib.ExitStack() as stack:
            if self._on_device is not None:
                stack.callback(self._on_device.close)
            stack.callback(self._feed.close)
            if self._priorities is not None:
                self._priorities.close(flush)

    def __enter__(self) -> TensorSampler:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)


def sampler(
    handle: Any,
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    prefetch: int = 3,
    beta: float = 0.4,
    timeout: float | None = None,
    columns: Sequence[str] | None = None,
    replace: bool = True,
    coded: bool | None = None,
    writable: bool = False,
    workers: int = 1,
    in_flight: int | None = None,
) -> TensorSampler:
    """Batches of tensors on a device, sampled ahead in the background.

    On the CPU a tensor lies over the array that was received, or over memory shared with the server: nothing is copied.
    For CUDA, batches are received into pinned arrays, which are used again, or lie in shared memory that is registered
    with CUDA. They are copied in a stream of their own; memory goes back when the copy has ended.

    Args:
        handle: a table: `client["atari"]`, or a `replay_server.Buffer`.
        batch_size: items of each batch.
        device: where the tensors are to be.
        beta: importance-sampling exponent of the weights.
        prefetch, timeout, columns, replace, coded, writable, workers, in_flight: see `replay_server.Client.sampler`.
            Without `writable`, tensors on the CPU must not be written to: torch knows no tensors that are read-only.

    Raises:
        ValueError: a number is out of range.
    """
    chosen = torch.device(device)
    source = handle.sampler(
        batch_size,
        importance_sampling_exponent=beta,
        prefetch=prefetch,
        timeout=timeout,
        columns=columns,
        replace=replace,
        coded=coded,
        writable=writable,
        allocate=host_arrays(chosen),
        workers=workers,
        in_flight=in_flight,
    )
    return TensorSampler(handle, source, chosen, workers if in_flight is None else in_flight)
