"""Families of action distributions, as functions of the numbers that a network puts out.

A distribution travels as its parameters, float32 (…, P): the learner needs the behaviour policy's whole distribution
for a KL divergence, not only the probability of what was done. Everything here can be differentiated twice.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from replay_server.rl.policy_spec import PolicySpec


class Distribution(Protocol):
    """A family of distributions over actions."""

    parameters_size: int
    """P: how many numbers describe one distribution."""

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """(B, P) → actions, int64 (B,) or float32 (B, A)."""
        ...

    def log_probability(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """(…, P) and actions (…) or (…, A) → log probability or log density, (…)."""
        ...

    def entropy(self, parameters: Tensor) -> Tensor:
        """(…, P) → entropy in nats, (…)."""
        ...

    def kl(self, of: Tensor, against: Tensor) -> Tensor:
        """KL(of ‖ against) in nats: (…, P) twice → (…)."""
        ...


class Categorical:
    """Over `num_actions` discrete actions; parameters are logits, not necessarily normalised."""

    def __init__(self, num_actions: int) -> None:
        self.parameters_size = num_actions

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        return torch.multinomial(parameters.softmax(dim=-1), 1, generator=generator).squeeze(-1)

    def log_probability(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return parameters.log_softmax(dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_probabilities = parameters.log_softmax(dim=-1)
        return -(log_probabilities.exp() * log_probabilities).sum(dim=-1)

    def kl(self, of: Tensor, against: Tensor) -> Tensor:
        of, against = of.log_softmax(dim=-1), against.log_softmax(dim=-1)
        return (of.exp() * (of - against)).sum(dim=-1)


class DiagonalGaussian:
    """Over vectors of `size` independent components; parameters are their means, then the logs of their deviations.

    Actions are what was drawn, also where an environment clips them to its bounds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.parameters_size = 2 * size

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        mean, log_std = parameters.split(self.size, dim=-1)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=generator.device)
        return mean + log_std.exp() * noise.to(mean.device)

    def log_probability(self, parameters: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = parameters.split(self.size, dim=-1)
        distance = (actions - mean) * (-log_std).exp()
        return -(0.5 * distance.square() + log_std + 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_std = parameters[..., self.size :]
        return (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(dim=-1)

    def kl(self, of: Tensor, against: Tensor) -> Tensor:
        mean, log_std = of.split(self.size, dim=-1)
        other_mean, other_log_std = against.split(self.size, dim=-1)
        spread = (2.0 * log_std).exp() + (mean - other_mean).square()
        return (other_log_std - log_std + 0.5 * spread * (-2.0 * other_log_std).exp() - 0.5).sum(dim=-1)


class SquashedGaussian:
    """The tanh of a diagonal Gaussian: over vectors of `size` components, each between −1 and 1.

    Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), appendix C. Parameters are
    the Gaussian's.
    """

    def __init__(self, size: int) -> None:
        self.parameters_size = 2 * size
        self._gaussian = DiagonalGaussian(size)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(B, P) → actions (B, size) and the logs of their densities (B,); both carry the parameters' gradient."""
        drawn = self._gaussian.sample(parameters, generator)
        # log(1 − tanh²x) = 2·(log 2 − x − softplus(−2x)), which does not lose the small ones.
        shrinking = 2.0 * (math.log(2.0) - drawn - torch.nn.functional.softplus(-2.0 * drawn))
        return drawn.tanh(), self._gaussian.log_probability(parameters, drawn) - shrinking.sum(dim=-1)


def make_distribution(spec: PolicySpec) -> Distribution:
    """The family for an environment's actions."""
    return Categorical(spec.num_actions) if spec.is_discrete else DiagonalGaussian(spec.action_size)
