"""Minibatch gradient descent over a round's samples: the order, one step, and the means over all steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def minibatches(
    samples: Mapping[str, Tensor], size: int | None, generator: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """One pass over samples (column → (B, …)) in an order drawn from `generator`, `size` rows at a time (None = all).

    The last minibatch has what is left.
    """
    count = len(next(iter(samples.values())))
    order = torch.randperm(count, generator=generator)
    for rows in order.split(size or count):
        yield {name: column[rows.to(column.device)] for name, column in samples.items()}


def order_generator(seed: int, version: int, learner: int = 0) -> torch.Generator:
    """Random numbers of one round, its own: a learner resumed at a version goes on as it would have.

    Of several learners of a round the first has the order that a single one would have.
    """
    generator = torch.Generator()
    of = [seed, version, 0x5D, learner] if learner else [seed, version, 0x5D]
    state = np.random.SeedSequence(of).generate_state(1, np.uint64)[0]
    generator.manual_seed(int(state >> np.uint64(1)))
    return generator


def descend(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], total: Tensor, gradient_norm: float | None
) -> Tensor:
    """One step down the gradient of `total`, scaled down to the global norm `gradient_norm`; its norm before that."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norm = nn.utils.clip_grad_norm_(parameters, float("inf") if gradient_norm is None else gradient_norm)
    optimizer.step()
    return norm


def explained_variance(targets: Tensor, values: Tensor) -> float:
    """1 − Var(target − value) / Var(target); NaN where all targets are equal."""
    of_targets = targets.var(correction=0)
    return float(1.0 - (targets - values).var(correction=0) / of_targets) if float(of_targets) > 0 else float("nan")


class Means:
    """Means of scalars over a round's steps, added up where they are so that nothing waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, Any] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """One step's: the same names every time."""
        self._sums = {name: self._sums.get(name, 0.0) + value.detach() for name, value in values.items()}
        self.count += 1

    def floats(self) -> dict[str, float]:
        return {name: float(total) / self.count for name, total in self._sums.items()}
