"""PPO with a clipped surrogate and an adaptive KL penalty, readable from top to bottom.

Schulman et al. 2017 (arXiv 1707.06347), sections 3 and 4, in the form that the serverless systems use:

    loss = mean[ −min(A r, A clip(r, 1 ± ε)) + c_v · clamp((V − V_targ)², 0, c) − c_e H ] + k · mean KL(π_old ‖ π)

with r = π(a|s) / π_old(a|s). Advantages are GAE, standardised over the whole batch. After a round, k grows by half
where the KL divergence is above twice its target, and is halved where it is below half of it. Nothing here knows of
servers: `Ppo.update` is fed fragments (`replay_server.rl.fragments`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.sgd import (
    Means,
    PolicyLoss,
    PolicyStatistics,
    descend,
    explained_variance,
    minibatches,
    order_generator,
)
from replay_server.learner.truncation import LIMIT, truncated_log_probability
from replay_server.rl.fragments import Fragments, in_order, learning_rewards, merged_moments
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.returns import gae, next_values

Batch = Mapping[str, Tensor]
"""Samples, column → (B, …): observation, action, advantage, value_target, behaviour_log_probability and
behaviour_parameters; the behaviour policy is π_old. Where `replay_server.learner.truncation.LIMIT` is among them,
ratios are truncated by it."""


@dataclass
class PpoSettings(PolicySettings):
    """Defaults are the profile `default`; `PROFILES` has the papers'."""

    discount: float = 0.99
    """γ."""
    gae_lambda: float = 0.95
    """λ of GAE; 1 = discounted returns minus values."""
    clip: float = 0.3
    """ε: the ratio r gains nothing beyond 1 ± ε."""
    kl_coefficient: float = 0.2
    """k in the first round; 0 stays 0, so there is no penalty then."""
    kl_target: float = 0.01
    """KL(π_old ‖ π) in nats that a round is to make."""
    entropy_coefficient: float = 0.0
    """c_e."""
    value_coefficient: float = 1.0
    """c_v; there is no ½ in front of the squared error."""
    value_clip: float | None = None
    """c: squared value errors are clamped to it, so that samples beyond it teach the critic nothing; None = not."""
    standardize_advantages: Literal["batch", "minibatch", "none"] = "batch"
    """Over what advantages get mean 0 and variance 1. The papers: batch."""
    learning_rate: float = 3e-4
    """Of Adam, constant."""
    adam_epsilon: float = 1e-8
    """ε of Adam, added to the root of the mean squared gradient."""
    gradient_norm: float | None = None
    """Global norm that gradients are scaled down to; None = not."""
    iterations: int = 10
    """Passes over a round's samples."""
    minibatch_size: int | None = 256
    """Samples of one optimiser step, the last of a pass has what is left; None = the whole batch."""


PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "gae_lambda": 1.0,
        "value_clip": 10.0,
        "learning_rate": 5e-5,
        "iterations": 30,
        "normalize_observations": False,
    },
    "code": {
        "gae_lambda": 1.0,
        "value_clip": 100.0,
        "learning_rate": 5e-5,
        "iterations": 32,
        "clip": 0.2,
        "kl_coefficient": 0.0,
        "entropy_coefficient": 0.01,
        "normalize_observations": False,
    },
}
"""`paper`: what the papers print. `code`: what Stellaris' published code does. `default`: what learns best here."""


# ---- the equations ---------------------------------------------------------------------------------------------------


def surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """min(A r, A clip(r, 1 ± ε)), to be maximised (equation 7); same shape as its arguments."""
    return torch.minimum(advantages * ratio, advantages * ratio.clamp(1.0 - clip, 1.0 + clip))


def value_error(values: Tensor, targets: Tensor, limit: float | None) -> Tensor:
    """clamp((V − V_targ)², 0, limit); where the clamp is active its gradient is zero."""
    squared = (values - targets).square()
    return squared if limit is None else squared.clamp(max=limit)


def standardized(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and (population) standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)


def adapted_kl_coefficient(coefficient: float, kl: float, target: float) -> float:
    """k of the next round (section 4, with the factor 1.5 of RLlib in place of 2)."""
    if kl > 2.0 * target:
        return 1.5 * coefficient
    if kl < 0.5 * target:
        return 0.5 * coefficient
    return coefficient


@dataclass(frozen=True)
class Loss(PolicyLoss):
    """The surrogate is the mean of min(A r, A clip(r, 1 ± ε)): what boosting looks at. kl is the mean KL(π_old ‖ π)."""

    clipped_fraction: Tensor
    """Of samples whose ratio lies outside 1 ± ε. Without a gradient, as is the next one."""
    value_clipped_fraction: Tensor
    """Of samples whose value gradient the value clip zeroes."""


def loss(network: ActorCritic, minibatch: Batch, settings: PpoSettings, kl_coefficient: float | None = None) -> Loss:
    """The loss of one minibatch: a function of its arguments alone, differentiable twice in the network's parameters.

    `kl_coefficient` is k as it has become; None = ``settings.kl_coefficient``.
    """
    parameters, values = network(minibatch["observation"])
    distribution = network.distribution
    log_probability = distribution.log_probability(parameters, minibatch["action"])
    behaviour = minibatch["behaviour_log_probability"]
    if LIMIT in minibatch:
        log_probability = truncated_log_probability(log_probability, behaviour, minibatch[LIMIT])
    ratio = (log_probability - behaviour).exp()
    objective = surrogate(ratio, minibatch["advantage"], settings.clip).mean()
    error = value_error(values, minibatch["value_target"], settings.value_clip)
    entropy = distribution.entropy(parameters).mean()
    kl = distribution.kl(minibatch["behaviour_parameters"], parameters).mean()
    penalty = settings.kl_coefficient if kl_coefficient is None else kl_coefficient
    total = -objective + settings.value_coefficient * error.mean() - settings.entropy_coefficient * entropy
    if penalty != 0.0:
        total = total + penalty * kl
    with torch.no_grad():
        outside = ((ratio - 1.0).abs() > settings.clip).float().mean()
        cut = torch.zeros(()) if settings.value_clip is None else (error >= settings.value_clip).float().mean()
    return Loss(total, objective, error.mean(), entropy, kl, outside, cut)


def prepare(fragments: Fragments, settings: PpoSettings, device: torch.device | None = None) -> dict[str, Tensor]:
    """The samples of N fragments of T steps, one row each (N·T, …), with advantages and value targets.

    Values are those of the critic that acted, so that no pass of the network is needed. Advantages are standardised
    here where the settings say `batch`.
    """
    columns = {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in fragments.items()}
    successors = next_values(columns["value"], columns["final_value"], columns["final_step"])
    advantages, targets = gae(
        torch.from_numpy(learning_rewards(fragments, settings)),
        columns["value"],
        successors,
        columns["terminated"],
        columns["truncated"],
        settings.discount,
        settings.gae_lambda,
    )
    if settings.standardize_advantages == "batch":
        advantages = standardized(advantages)
    taken = ("observation", "action", "value", "behaviour_log_probability", "behaviour_parameters")
    samples = {name: columns[name] for name in taken} | {"advantage": advantages, "value_target": targets}
    return {name: column.flatten(0, 1).to(device) for name, column in samples.items()}


# ---- the learner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Statistics(PolicyStatistics):
    """What one round's update did. KL(π_old ‖ π) is what k adapts to; the critic is the one that acted."""

    clipped_fraction: float
    value_clipped_fraction: float
    """Share of value gradients that the value clip zeroed."""
    kl_coefficient: float
    """k of this round."""


class Ppo:
    """Network and optimiser, and the round that trains them.

    `version` counts rounds; the weights published after a round carry it, and fragments name it as the one that acted.
    """

    def __init__(self, settings: PpoSettings, spec: PolicySpec, device: torch.device | str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.network = make_policy_network(settings, spec).to(self.device)
        self.parameters = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
        )
        self.kl_coefficient = settings.kl_coefficient
        self.version = 0

    def update(self, fragments: Fragments) -> Statistics:
        """One round: `iterations` passes over the fragments, then the KL coefficient and the observation moments.

        Moments are merged after the passes: the numbers that a fragment was normalised by are in it already, and the
        next round's go out with the weights of its version. The order of the fragments does not matter.
        """
        settings = self.settings
        fragments = in_order(fragments)
        samples = self.samples(fragments)
        generator = order_generator(settings.seed, self.version)
        means = Means()
        for _ in range(settings.iterations):
            for minibatch in minibatches(samples, settings.minibatch_size, generator):
                found = self.loss(minibatch)
                norm = descend(self.optimizer, self.parameters, found.total, settings.gradient_norm)
                means.add({**found.logged(), "gradient_norm": norm})
        kl, used = self.kl(samples), self.kl_coefficient
        self.kl_coefficient = adapted_kl_coefficient(used, kl, settings.kl_target)
        if self.network.normalizes:
            self.network.set_moments(self.network.moments.merged(merged_moments(fragments)))
        staleness = float(self.version - fragments["policy_version"].mean())
        self.version += 1
        return Statistics(
            **means.floats(),
            kl=kl,
            explained_variance=explained_variance(samples["value_target"], samples["value"]),
            kl_coefficient=used,
            samples=len(samples["advantage"]),
            optimizer_steps=means.count,
            staleness=staleness,
        )

    def samples(self, fragments: Fragments) -> dict[str, Tensor]:
        """What `loss` is taken of, a row for each step (N·T, …), fragment after fragment."""
        return prepare(fragments, self.settings, self.device)

    def loss(self, minibatch: Batch) -> Loss:
        """The loss of some rows of `samples` for the network and the KL coefficient as they are now."""
        if self.settings.standardize_advantages == "minibatch":
            minibatch = {**minibatch, "advantage": standardized(minibatch["advantage"])}
        return loss(self.network, minibatch, self.settings, self.kl_coefficient)

    def networks(self) -> dict[str, nn.Module]:
        """What a checkpoint holds."""
        return {"network": self.network}

    def counters(self) -> dict[str, Any]:
        """The rest of what a checkpoint holds."""
        return {"version": self.version, "kl_coefficient": self.kl_coefficient}

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Takes what `counters` gave."""
        self.version, self.kl_coefficient = int(counters["version"]), float(counters["kl_coefficient"])

    @torch.no_grad()
    def kl(self, samples: Batch) -> float:
        """Mean KL(π_old ‖ π) over samples, of the policy as it is now: what the coefficient adapts to."""
        parts = []
        for rows in torch.arange(len(samples["advantage"]), device=self.device).split(2048):
            parameters, _ = self.network(samples["observation"][rows])
            parts.append(self.network.distribution.kl(samples["behaviour_parameters"][rows], parameters))
        return float(torch.cat(parts).mean())
