"""Gradients as vectors, and the optimiser's step along several of them.

With factors f_i of n gradients g_i (`replay_server.learner.staleness.factor`) and the learning rate lr, one step is

    along Σ f_i g_i / Σ f_i    at the learning rate lr · Σ f_i / n

which for plain gradient descent is the mean of the n steps lr · f_i · g_i (Zhang et al. 2016, equation 6). An optimiser
such as Adam divides the length of a gradient out: the factors must meet its learning rate, or they change nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn


def gradient_vector(parameters: Sequence[nn.Parameter]) -> np.ndarray:
    """The gradients of parameters one after the other, float32 (P,); zeros where one has none. A copy."""
    parts = [
        (torch.zeros_like(each) if each.grad is None else each.grad.detach()).flatten().float() for each in parameters
    ]
    return torch.cat(parts).cpu().numpy()


def set_gradients(parameters: Sequence[nn.Parameter], vector: np.ndarray) -> None:
    """Gives parameters the gradients that `gradient_vector` made. ValueError where it is of another network."""
    expected = sum(each.numel() for each in parameters)
    if vector.shape != (expected,):
        raise ValueError(f"expected a gradient of shape ({expected},), got {vector.shape}: of another network")
    source = torch.from_numpy(np.array(vector, np.float32))
    for each, part in zip(parameters, source.split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view_as(each).to(each.device, each.dtype)


def weights(factors: Sequence[float]) -> np.ndarray:
    """f_i / Σ f_i, float64 (n,): how much of the step's direction each gradient is."""
    values = np.asarray(factors, np.float64)
    if values.ndim != 1 or not len(values) or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"expected factors above 0, at least one, got {factors!r:.80}")
    return values / values.sum()


def weighted_sum(vectors: Sequence[np.ndarray], of: np.ndarray) -> np.ndarray:
    """Σ w_i g_i, float32 (P,). One vector of weight 1 comes back bit for bit."""
    if len(vectors) == 1 and of[0] == 1.0:
        return np.asarray(vectors[0], np.float32)
    total = np.zeros(vectors[0].shape, np.float64)
    for weight, vector in zip(of, vectors, strict=True):
        total += weight * vector
    return total.astype(np.float32)


def step(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], vector: np.ndarray, rate: float) -> None:
    """One step of the optimiser along `vector` at `rate` times its learning rate, which stays what it was."""
    set_gradients(parameters, vector)
    with _at_rate(optimizer, rate):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _at_rate(optimizer: torch.optim.Optimizer, rate: float) -> Iterator[None]:
    before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * rate
    try:
        yield
    finally:
        for group, learning_rate in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = learning_rate
