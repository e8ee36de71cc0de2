"""What must be finite before it is kept or published: one NaN in a network is in all of its answers for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

ADVICE = "look at rewards and observations, or lower the learning rate"


class Diverged(ArithmeticError):
    """A loss, a gradient or a weight is not finite; nothing of it was kept or published."""


def first_not_finite(tensors: Mapping[str, Any]) -> str | None:
    """The name of the first tensor or array that holds a NaN or an infinity, None where all are finite."""
    for name, values in tensors.items():
        if isinstance(values, torch.Tensor):
            finite = not values.is_floating_point() or bool(torch.isfinite(values).all())
        else:
            finite = not np.issubdtype(values.dtype, np.floating) or bool(np.isfinite(values).all())
        if not finite:
            return name
    return None


def check_finite(tensors: Mapping[str, Any], what: str) -> None:
    """Raises Diverged, which says that `what` was not done, where a tensor or array is not finite."""
    if (name := first_not_finite(tensors)) is not None:
        raise Diverged(f"{name} is not finite: {what}; {ADVICE}")
