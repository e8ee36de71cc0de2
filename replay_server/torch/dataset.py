"""A table as a data set of batches, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data

from ..checks import check_count
from ..options import SampleOptions, SamplerOptions, exponent
from ..process_bound import Staying
from ..table_methods import checked_handle
from .device_batches import DeviceBatch
from .sampler import sampler


class IterableDataset(torch.utils.data.IterableDataset[DeviceBatch]):
    """Batches of a table, for `DataLoader(dataset, batch_size=None, num_workers=2)`.

    Each worker makes a sampler of its own, whichever way it was started: `fork`, `spawn` or `forkserver`. Batches are
    `DeviceBatch`es on the CPU. `DataLoader(pin_memory=True)` pins them; then `batch.to("cuda", non_blocking=True)`.

    Without workers, `replay_server.torch.sampler` does as much and copies less: what a worker hands over is copied
    once.

    Args:
        handle: a table of a server, `client["atari"]`. With workers it cannot be a `Buffer`: a forked worker would
            sample from a copy.
        batch_size: items of each batch.
        batches: how many there are in all, over all workers; None = without end.
        options: those of `replay_server.torch.sampler`, but for `device`. A worker that writes to tensors, such as for
            augmentation, needs `writable=True`: without it, writing may end the worker (SIGSEGV).

    Raises:
        TypeError: `handle` is neither a client's table nor a `Buffer`, or there is no such option.
        ValueError: a number is out of range.
    """

    def __init__(self, handle: Any, batch_size: int, batches: int | None = None, **options: Any) -> None:
        if "device" in options:
            raise TypeError("a data set gives its batches on the CPU: move each by batch.to(device)")
        inspect.signature(sampler).bind(handle, batch_size, **options)  # as each worker will call it
        checked_handle(handle)
        if batches is not None:
            check_count(batches, "batches", 0)
        sample = SampleOptions(exponent(None, options.get("beta")), options.get("timeout"), options.get("columns"))
        more = {name: options[name] for name in ("prefetch", "workers", "in_flight") if name in options}
        SamplerOptions(batch_size, sample=sample, **more)
        self._handle, self._batch_size, self._batches, self._options = handle, batch_size, batches, options

    def __iter__(self) -> Iterator[DeviceBatch]:
        left = self._batches
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            if isinstance(self._handle, Staying):
                raise TypeError(
                    "a DataLoader's workers are processes of their own, and would sample from a copy of this Buffer: "
                    "use a server, rs.Server([table]) and rs.Client(server.url)[name], or num_workers=0"
                )
            if left is not None:
                left = left // worker.num_workers + (worker.id < left % worker.num_workers)
        with sampler(self._handle, self._batch_size, **self._options) as batches:
            while left is None or left > 0:
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                left = None if left is None else left - 1
