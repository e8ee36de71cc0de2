"""Global importance-sampling truncation: no learner's ratio runs away from those of the others.

With r_j = π_j(a|s) / μ(a|s) of each learner's policy, this one's i among them, Stellaris learns with

    r′ = min(r_i, max(ρ, min_j r_j))

in place of r_i. The group's minimum is a number, without gradient; where it cuts, the sample's ratio is a constant and
the policy learns nothing from it. With one learner r′ = r_i. (With ρ = 1 the bound that the slides print is 0: nothing
is guaranteed by it.) Ratios are kept as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LIMIT = "log_ratio_limit"
"""Column of a minibatch (B,), float32: log max(ρ, min_j r_j) of each sample. A loss that finds it truncates by it."""


@torch.no_grad()
def log_ratio_limit(log_ratios: Sequence[Tensor], limit: float = 1.0) -> Tensor:
    """log max(ρ, min_j r_j) of each sample, without gradient, from log r_j of every policy of the group, (B,) each."""
    if not limit > 0:
        raise ValueError(f"expected a limit above 0, got {limit}")
    return torch.stack([each.detach() for each in log_ratios]).amin(dim=0).clamp(min=math.log(limit))


def truncated_log_probability(log_probability: Tensor, behaviour: Tensor, log_limit: Tensor) -> Tensor:
    """log π′(a|s) such that π′/μ = r′: the same as `log_probability`, bit for bit, where nothing is cut.

    Where the limit is met exactly the gradient goes through: that is what it is for the learner that has the minimum.
    """
    cut = log_probability.detach() - behaviour > log_limit
    return torch.where(cut, behaviour + log_limit, log_probability)
