"""Priorities that a device computes, sent to a table while neither the device nor the host waits for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorityError
from .host_copy import HostCopy

MOST_UNDER_WAY = 4
"""Copies that have not been sent yet; one more waits for the oldest."""


@dataclass(frozen=True)
class _Priorities:
    ids: np.ndarray
    values: Tensor


class PriorityUpdates:
    """Sends priorities from tensors; a context manager, which sends the last ones.

    The copy to the host is asked for at once, behind what computes the priorities. It is sent by a later call, once it
    is there; in order, and at most `MOST_UNDER_WAY` wait. On the CPU each is sent at once.

    What an update raises (see `replay_server.Client.update_priorities`), this or a later call raises.

    Args:
        handle: a table, `client["atari"]` or a `replay_server.Buffer`.
    """

    def __init__(self, handle: Any) -> None:
        self._updater = handle.updater()
        self._under_way: deque[HostCopy[_Priorities]] = deque()

    def update_priorities(self, ids: Any, priorities: Tensor) -> None:
        """Sets priorities of items.

        Args:
            ids: uint64 (n,), those of a batch.
            priorities: a tensor (n,) of floats on any device, raw.

        Raises:
            PriorityError: the tensor requires grad: its values are constants here, so the graph behind them would be
                kept for nothing.
        """
        if priorities.requires_grad:
            raise PriorityError("expected priorities without a graph, got a tensor that requires grad: .detach() it")
        self._send(MOST_UNDER_WAY - 1)
        # A copy of its own: the caller may write to the tensor as soon as this returns.
        values = priorities if priorities.device.type != "cpu" else priorities.clone()
        self._under_way.append(HostCopy(_Priorities(np.array(ids), values), priorities.device))
        self._send(MOST_UNDER_WAY)

    def _send(self, keep: int) -> None:
        """Sends what is on the host; waits for the oldest where there are more than `keep`."""
        while self._under_way and (len(self._under_way) > keep or self._under_way[0].is_done):
            done = self._under_way.popleft().wait()
            self._updater.update_priorities(done.ids, done.values.to(torch.float64).numpy())

    def flush(self) -> None:
        """Waits until all are sent and answered."""
        self._send(0)
        self._updater.flush()

    def close(self, flush: bool = True) -> None:
        """Sends the last ones, unless told not to."""
        if flush:
            self.flush()
        self._under_way.clear()
        self._updater.close(flush)

    def __enter__(self) -> PriorityUpdates:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)
