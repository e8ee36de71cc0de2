"""A ragged column as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import SchemaError


@dataclass(eq=False)
class RaggedTensor:
    """A `replay_server.Ragged` on a device.

    Attributes:
        values: (rows of all items, *column.shape[1:]).
        offsets: int64 (N + 1,): the rows of item i are `values[offsets[i]:offsets[i + 1]]`.
    """

    values: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Rows of each item, int64 (N,)."""
        return self.offsets.diff()

    @property
    def mask(self) -> Tensor:
        """bool (N, longest): where `padded()` has rows of the items. Waits for the device, to know the longest."""
        return self._mask(self._longest())

    def _longest(self) -> int:
        return int(self.lengths.max()) if len(self) else 0

    def _mask(self, length: int) -> Tensor:
        return torch.arange(length, device=self.offsets.device) < self.lengths[:, None]

    def padded(self, fill: Any = 0, length: int | None = None) -> Tensor:
        """The items as one tensor (N, length, *column.shape[1:]), each from the first row on. Waits for the device, to
        know the longest.

        Args:
            fill: what stands behind shorter items.
            length: rows; None: those of the longest item.

        Raises:
            SchemaError: an item is longer.
        """
        longest = self._longest()
        if length is not None and length < longest:
            raise SchemaError(f"expected a length of at least {longest} rows, the longest item's, got {length}")
        rows = longest if length is None else length
        padded = self.values.new_full((len(self), rows, *self.values.shape[1:]), fill)
        padded[self._mask(rows)] = self.values
        return padded

    def nested(self) -> Tensor:
        """The same as a nested tensor of torch, with the jagged layout."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def each(self, function: Callable[[Tensor], Tensor]) -> RaggedTensor:
        """What a function makes of both."""
        return RaggedTensor(function(self.values), function(self.offsets))
