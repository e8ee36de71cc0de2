"""The curvature of a policy's objective: extreme eigenvalues of its Hessian (Nitro, sections 5.1 and 5.4).

    R = −λ_max / λ_min        (equation 2; `replay_server.serverless.scalers.nitro` makes scores of it)

of the Hessian of the surrogate objective, which is maximised, in the policy's parameters, at the policy that the round
has made. Neither value error nor KL penalty nor entropy are in it. The Hessian is never formed: a product with a
vector v is the gradient of gᵀv, as dear as two backward passes, and Lanczos' method needs some fifteen of them. They
are taken of a subset of the round's state-action pairs, drawn from all trajectories by the run's seed and the version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.algorithms import Learner
from replay_server.learner.lanczos import Ritz, lanczos
from replay_server.rl.fragments import Fragments, in_order


@dataclass(frozen=True)
class CurvatureOptions:
    """How curvature is measured; defaults are Nitro's, where it says."""

    steps: int = 24
    """Products of the Hessian with a vector, at most."""
    tolerance: float = 0.003
    """No more of them once the bounds of both extremes are this share of themselves: on Hopper after 11 to 17 products,
    with both extremes well within 1 %. A large one may take the second largest for the largest; 0 = always `steps`."""
    subset: float = 0.04
    """Share of the round's samples that are looked at, rounded up; 1 = all. The default keeps a score below 5 % of a
    round of PPO's default profile; what a small share finds varies much with the draw (`bench curvature`)."""
    samples: int = 128
    """At least so many of them, where there are."""
    variant: Literal["paper", "code"] = "paper"
    """code: of minus the total loss (value error, KL penalty and entropy in it), in all parameters."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.samples < 1:
            raise ValueError(f"expected at least 1 of steps and samples, got {self.steps} and {self.samples}")
        if not (0.0 < self.subset <= 1.0 and 0.0 <= self.tolerance < 1.0):
            raise ValueError(
                f"expected a subset in (0, 1] and a tolerance in [0, 1), got {self.subset} and {self.tolerance}"
            )


def measure_curvature(learner: Learner, fragments: Fragments, options: CurvatureOptions) -> dict[str, float]:
    """`curvature_max` and `curvature_min`, the largest and smallest eigenvalue, and how many `curvature_steps` it took.

    NaN where a product was not finite.
    """
    found = spectrum(learner, fragments, options)
    return {
        "curvature_max": float(found.values[-1]),
        "curvature_min": float(found.values[0]),
        "curvature_steps": float(found.steps),
    }


def spectrum(learner: Learner, fragments: Fragments, options: CurvatureOptions, with_vectors: bool = False) -> Ritz:
    """Ritz values of the objective's Hessian; vectors are of `parameters_of`, one after the other."""
    generator = _generator(learner)
    parameters = parameters_of(learner, options)
    objective = objective_of(learner, chosen_samples(learner, fragments, options, generator), options)
    start = torch.randn(sum(each.numel() for each in parameters), generator=generator).to(parameters[0])
    return lanczos(hessian_product(objective, parameters), start, options.steps, options.tolerance, with_vectors)


def hessian_product(objective: Tensor, parameters: Sequence[nn.Parameter]) -> Callable[[Tensor], Tensor]:
    """v (P,) → H v (P,), H the Hessian of a scalar in the parameters taken one after the other."""
    gradient = torch.autograd.grad(objective, parameters, create_graph=True)
    flat = torch.cat([each.reshape(-1) for each in gradient])

    def product(vector: Tensor) -> Tensor:
        if not flat.requires_grad:  # The objective is linear in them.
            return torch.zeros_like(flat)
        found = torch.autograd.grad(
            flat, parameters, vector, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([each.reshape(-1) for each in found])

    return product


def parameters_of(learner: Learner, options: CurvatureOptions) -> list[nn.Parameter]:
    """Those that the Hessian is taken in."""
    if options.variant == "code":
        return learner.parameters
    return list(learner.network.policy_parameters())


def objective_of(learner: Learner, samples: dict[str, Tensor], options: CurvatureOptions) -> Tensor:
    """The scalar that is maximised."""
    found = learner.loss(samples)
    return -found.total if options.variant == "code" else found.surrogate


def chosen_samples(
    learner: Learner, fragments: Fragments, options: CurvatureOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """The rows (M, …) that are looked at, in their order; their advantages are as standardised over all of them."""
    samples = learner.samples(in_order(fragments))
    count = len(samples["advantage"])
    taken = min(count, max(options.samples, math.ceil(options.subset * count)))
    rows = torch.randperm(count, generator=generator)[:taken].sort().values
    return {name: column[rows.to(column.device)] for name, column in samples.items()}


def _generator(learner: Learner) -> torch.Generator:
    """Random numbers of one measurement, its own: they depend on the run's seed and the policy's version alone."""
    state = np.random.SeedSequence([learner.settings.seed, learner.version, 0xC0]).generate_state(1, np.uint64)[0]
    generator = torch.Generator()
    generator.manual_seed(int(state >> np.uint64(1)))
    return generator
