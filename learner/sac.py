"""The Ape-X learner of continuous actions: one soft actor-critic update, readable from top to bottom.

Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), whose equations are named below:
two critics, a squashed Gaussian policy, and a temperature that is learned. As in Ape-X, replay is prioritized by |δ|,
the mean of both critics', and importance-sampling weights correct for it in all losses. Returns may be of n steps; the
entropy of the steps between is left out of them, since it would be that of policies long replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.replay_learner import Loss, ReplayLearner, td_losses
from replay_server.rl.distributions import SquashedGaussian
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.networks import make_critics, make_network
from replay_server.rl.observations import Observations, from_columns
from replay_server.rl.settings import ApexSettings

TARGETS, POLICY = 0, 1
"""Streams of random numbers."""


class Temperature(nn.Module):
    """α, what a nat of entropy is worth in rewards: positive, as the exponential of a parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """α, without gradient."""
        return self.log.detach().exp()


def soft_targets(batch: Mapping[str, Tensor], next_q: Tensor, log_probability: Tensor, temperature: Tensor) -> Tensor:
    """Returns what Q(s, a) is to become (equations 3 and 5): float32 (batch,).

    `next_q` float32 (batch, 2), of both target critics, and `log_probability` float32 (batch,) are of an action that
    the policy draws in the next state. Reward and discount are those of `replay_server.learner.replay_learner`.
    """
    return batch["reward"] + batch["discount"] * (next_q.min(dim=1).values - temperature * log_probability)


def critics_loss(q: Tensor, targets: Tensor, weights: Tensor, kind: str = "squared") -> Loss:
    """Returns the weighted loss of both critics, added up (equation 5); `q` float32 (batch, 2), the others (batch,)."""
    targets = targets.unsqueeze(1)
    rows = weights * td_losses(q, targets, kind).sum(dim=1)
    td_error = (targets - q).detach().abs().mean(dim=1)
    return Loss(total=rows.mean(), td_error=td_error, q=q.detach().mean(dim=1), rows=rows.detach())


def policy_loss(q: Tensor, log_probability: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted mean of α·log π(a|s) − min Q(s, a), of actions that the policy draws (equation 9)."""
    return (weights * (temperature * log_probability - q.min(dim=1).values)).mean()


def temperature_loss(
    log_temperature: Tensor, log_probability: Tensor, target_entropy: float, weights: Tensor
) -> Tensor:
    """Returns −log α·(log π(a|s) + H), its weighted mean: it raises α where the entropy is below the target H.

    Equation 18 has α in the place of log α. The authors' code has the logarithm: α then moves as fast when it is small.
    """
    return -(weights * log_temperature * (log_probability.detach() + target_entropy)).mean()


class Sac(ReplayLearner):
    """Policy, two critics with their targets, and temperature.

    Random numbers follow from the seed and the step, so that a resumed learner draws what an uninterrupted one would.
    """

    def __init__(
        self, settings: ApexSettings, spec: EnvironmentSpec, device: torch.device, precision: str = "float32"
    ) -> None:
        if spec.bounds is None:
            raise ValueError("SAC learns continuous actions: expected an environment with bounds of actions, got none")
        self.policy = make_network(settings, spec).to(device)
        self.critics = make_critics(settings, spec).to(device)
        self.temperature = Temperature(settings.initial_temperature).to(device)
        self.target_entropy = -float(spec.bounds.size) if settings.target_entropy is None else settings.target_entropy
        self._distribution = SquashedGaussian(spec.bounds.size)
        self._centre = torch.tensor(spec.bounds.centre, dtype=torch.float32, device=device)
        # A number that can only have one value is 0 to the networks.
        widths = [width or 1.0 for width in spec.bounds.half_width]
        self._half_width = torch.tensor(widths, dtype=torch.float32, device=device)
        self._generators = [torch.Generator(device) for _ in (TARGETS, POLICY)]
        modules = {
            "network": self.policy,
            "critics": self.critics,
            "target": make_critics(settings, spec).to(device),
            "temperature": self.temperature,
        }
        groups = [self.critics.parameters(), self.policy.parameters(), self.temperature.parameters()]
        super().__init__(settings, device, precision, modules, self.critics, groups)

    @torch.no_grad()
    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        next_obs = from_columns("next_obs", batch)
        actions, log_probability = self._draw(next_obs, TARGETS)
        return soft_targets(batch, self.target(next_obs, actions).float(), log_probability, self.temperature())

    def loss(self, batch: Mapping[str, Tensor], weights: Tensor, targets: Tensor) -> Loss:
        obs, temperature = from_columns("obs", batch), self.temperature()
        taken = (batch["action"].reshape(len(weights), -1) - self._centre) / self._half_width
        loss = critics_loss(self.critics(obs, taken).float(), targets, weights, self.settings.loss)
        actions, log_probability = self._draw(obs, POLICY)
        loss.others = [
            policy_loss(self.critics(obs, actions).float(), log_probability, temperature, weights),
            temperature_loss(self.temperature.log, log_probability, self.target_entropy, weights),
        ]
        loss.told = {
            "policy_loss": loss.others[0].detach(),
            "temperature": temperature,
            "entropy": -log_probability.detach().mean(),
        }
        return loss

    def _draw(self, observations: Observations, stream: int) -> tuple[Tensor, Tensor]:
        """Actions of the policy, float32 (batch, size) from −1 to 1, and logs of their densities, float32 (batch,)."""
        seed = np.random.SeedSequence([self.settings.seed, stream, self.step]).generate_state(1)[0]
        generator = self._generators[stream].manual_seed(int(seed))
        return self._distribution.sample(self.policy(observations).float(), generator)
