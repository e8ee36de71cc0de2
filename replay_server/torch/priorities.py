"""Priorities that a device of torch computes, on their way to a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorityError
from ..priority_updates import DeviceUpdates
from .host_copy import HostCopy


@dataclass(frozen=True)
class _Values:
    values: Tensor


class _Landing:
    """A tensor on its way to the host."""

    def __init__(self, values: Tensor) -> None:
        # A copy of its own: the caller may write to the tensor as soon as this returns.
        own = values if values.device.type != "cpu" else values.clone()
        self._copy = HostCopy(_Values(own), values.device)

    @property
    def is_done(self) -> bool:
        return self._copy.is_done

    def wait(self) -> np.ndarray:
        return self._copy.wait().values.to(torch.float64).numpy()


class PriorityUpdates(DeviceUpdates):
    __doc__ = DeviceUpdates.__doc__

    def _landing(self, priorities: Any) -> _Landing | None:
        if not isinstance(priorities, Tensor):
            return None
        if priorities.requires_grad:
            raise PriorityError("expected priorities without a graph, got a tensor that requires grad: .detach() it")
        return _Landing(priorities)
