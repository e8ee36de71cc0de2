"""How gradients of small batches differ from those of large ones (McCandlish et al. 2018, appendix A.1).

Mean squared norms of the total loss's gradient over batches of b samples and over one of B: from these KungFu estimates
the noise scale (`replay_server.serverless.scalers.kungfu`). At the policy that the round has made, of the samples that
it was made from; the large batch is the small ones together, so that one pass over the samples is all it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from replay_server.learner.algorithms import Learner
from replay_server.learner.sgd import minibatches, order_generator
from replay_server.rl.fragments import Fragments, in_order


@dataclass(frozen=True)
class GradientNoiseOptions:
    """How gradient noise is measured."""

    small_batch: int = 256
    """b: samples of a small batch, drawn without regard to fragments."""

    def __post_init__(self) -> None:
        if self.small_batch < 1:
            raise ValueError(f"expected a small_batch of at least 1, got {self.small_batch}")


def measure_gradient_noise(learner: Learner, fragments: Fragments, options: GradientNoiseOptions) -> dict[str, float]:
    """`noise_small_batch` (b) and `noise_big_batch` (B), samples; `noise_small_norm` and `noise_big_norm`, E‖g‖².

    B is the largest multiple of b that there are samples for: those left over are left out. With fewer than 2 b, both
    batches are the same one, of which nothing can be estimated.
    """
    samples = learner.samples(in_order(fragments))
    total = len(samples["advantage"])
    small = min(options.small_batch, total)
    generator = order_generator(learner.settings.seed, learner.version)
    together = torch.zeros(sum(each.numel() for each in learner.parameters), device=learner.device)
    norms: list[float] = []
    for batch in minibatches(samples, small, generator):
        if len(batch["advantage"]) == small:
            gradient = _gradient(learner, batch)
            norms.append(float(gradient.square().sum()))
            together += gradient
    return {
        "noise_small_batch": float(small),
        "noise_big_batch": float(small * len(norms)),
        "noise_small_norm": sum(norms) / len(norms),
        "noise_big_norm": float((together / len(norms)).square().sum()),
    }


def _gradient(learner: Learner, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of the total loss, in all parameters, (P,)."""
    found = torch.autograd.grad(
        learner.loss(batch).total, learner.parameters, allow_unused=True, materialize_grads=True
    )
    return torch.cat([each.reshape(-1) for each in found])
