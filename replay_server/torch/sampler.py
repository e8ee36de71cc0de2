"""A sampler whose batches are tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..batch import chosen_dtypes, refuse_bytes
from ..priority_updates import UpdatingSampler
from ..sampler import Sampler
from ..table_methods import checked_handle
from .device_batches import DeviceBatch, DeviceBatches, host_arrays, on_cpu
from .priorities import PriorityUpdates


class TensorSampler(UpdatingSampler):
    """An iterator over `DeviceBatch`es; a context manager. Made by `sampler`.

    It ends, fails and is interrupted as a `replay_server.Sampler`, which it has. For one thread.
    """

    _updates_of = PriorityUpdates

    def __init__(self, handle: Any, source: Sampler, device: torch.device, in_flight: int) -> None:
        super().__init__(handle, source)
        self._on_device = None if device.type == "cpu" else DeviceBatches(source, device, in_flight)

    def __iter__(self) -> TensorSampler:
        return self

    def __next__(self) -> DeviceBatch:
        if self._on_device is not None:
            return next(self._on_device)
        # Copies: who keeps ids until priorities are sent does not keep the arrays of a whole batch in use.
        batch = on_cpu(next(self._feed))
        return replace(batch, ids=batch.ids.copy(), probabilities=batch.probabilities.copy())

    def _end(self) -> None:
        try:
            super()._end()
        finally:
            if self._on_device is not None:
                self._on_device.close()

    def __enter__(self) -> TensorSampler:
        return self


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
    details: bool = False,
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
        prefetch, timeout, columns, replace, coded, writable, workers, in_flight, details: see
            `replay_server.Client.sampler`.
            Without `writable`, tensors on the CPU must not be written to. Torch knows no tensors that are read-only, so
            writing to memory that is shared with the server ends the process (SIGSEGV).

    Raises:
        TypeError: `handle` is neither a client's table nor a `Buffer`.
        ValueError: a number is out of range, or batches cannot be copied to that device.
        SchemaError: there is no such column, or one holds bytes. The table is looked up for that.
    """
    chosen = _checked_device(device)
    checked_handle(handle)._check_against_table(lambda table: refuse_bytes(chosen_dtypes(table, columns), "torch"))
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
        details=details,
    )
    return TensorSampler(handle, source, chosen, workers if in_flight is None else in_flight)


def _checked_device(given: torch.device | str) -> torch.device:
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"device must be cpu or cuda, got {given!r}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {given!r}: sample on the CPU and use batch.to({given!r})")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {given!r} is not there: torch finds {torch.cuda.device_count()} CUDA devices")
    return device
