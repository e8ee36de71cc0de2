"""Minibatch gradient descent over a round's samples: the order, one step, and what a learner tells of all steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class PolicyLoss:
    """One minibatch's loss and its parts: scalars that carry gradients."""

    total: Tensor
    surrogate: Tensor
    """The objective of the policy alone."""
    value_error: Tensor
    entropy: Tensor
    kl: Tensor
    """Mean KL divergence of the policy from the one that it is held against."""

    def logged(self) -> dict[str, Tensor]:
        """What `PolicyStatistics` has means of."""
        return {"loss" if name == "total" else name: part for name, part in vars(self).items() if name != "kl"}


@dataclass(frozen=True, kw_only=True)
class PolicyStatistics:
    """What an update did; means are over all its minibatches."""

    loss: float
    surrogate: float
    value_error: float
    entropy: float
    kl: float
    """Of `PolicyLoss`, over the whole batch, after the last pass."""
    gradient_norm: float
    """Before it was clipped."""
    explained_variance: float
    """1 − Var(v − V) / Var(v) of value targets v and the critic's values V."""
    samples: int
    optimizer_steps: int
    staleness: float
    """Mean of this learner's version minus the version that acted; 0 where all is on-policy."""
