"""Batches as tensors on a device, for loops that train with PyTorch. Needs torch: `pip install 'replay-server[rl]'`.

`sampler` for one process, `IterableDataset` for the workers of a `torch.utils.data.DataLoader`. Importing
`replay_server` alone imports no torch.
"""

from __future__ import annotations

from ..extras import needed_by

with needed_by(__name__):
    from .dataset import IterableDataset
    from .device_batches import DeviceBatch, DeviceBatches, host_arrays, on_cpu, tensor_over
    from .host_copy import HostCopy
    from .priorities import PriorityUpdates
    from .ragged import RaggedTensor
    from .sampler import TensorSampler, sampler

__all__ = [
    "DeviceBatch",
    "DeviceBatches",
    "HostCopy",
    "IterableDataset",
    "PriorityUpdates",
    "RaggedTensor",
    "TensorSampler",
    "host_arrays",
    "on_cpu",
    "sampler",
    "tensor_over",
]
