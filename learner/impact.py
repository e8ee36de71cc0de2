"""IMPACT: PPO's surrogate against a slowly moving target policy, so that stale fragments can be learned from.

Luo et al. 2020 (arXiv 1912.00167). Three policies: μ acted, π_tgt is a copy of π_θ that is renewed after so
many passes over a batch, π_θ learns. With

    r = clamp(μ / π_tgt, 0, ρ) · π_θ / μ        which is π_θ / π_tgt while the clamp is inactive
    loss = mean[ −min(A r, A clip(r, 1 ± ε)) + c_v (V − v)² − c_e H ] + k · mean KL(π_tgt ‖ π_θ)

where targets v and advantages A are V-trace's with π_tgt as the target policy. The circular buffer of N batches, each
traversed K times, is a table (`replay_server.learner.circular_buffer`): the learner samples a batch and gives it to
`Impact.update`, which makes one pass. Nothing here knows of servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.circular_buffer import CircularBufferSettings
from replay_server.learner.ppo import adapted_kl_coefficient, standardized, surrogate
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
from replay_server.rl.fragments import (
    Fragments,
    first_seen,
    in_order,
    learning_rewards,
    merged_moments,
)
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.returns import next_values, v_trace

Batch = Mapping[str, Tensor]
"""Samples, column → (B, …): observation, action, advantage, value_target, behaviour_log_probability,
target_log_probability, target_parameters. Where `replay_server.learner.truncation.LIMIT` is among them, π_θ / μ is
truncated by it."""


@dataclass
class ImpactSettings(CircularBufferSettings):
    """Defaults are the profile `default`; `paper` is Luo et al.'s as Stellaris lists them."""

    discount: float = 0.99
    """γ."""
    clip: float = 0.4
    """ε: the ratio r gains nothing beyond 1 ± ε."""
    behaviour_clip: float = 2.0
    """ρ: μ / π_tgt counts for no more than this."""
    kl_coefficient: float = 1.0
    """k in the beginning; 0 stays 0, so there is no penalty then."""
    kl_target: float = 0.01
    """KL(π_tgt ‖ π_θ) in nats that is to be reached between two copies."""
    entropy_coefficient: float = 0.01
    """c_e."""
    value_coefficient: float = 1.0
    """c_v; there is no ½ in front of the squared error."""
    ratio_clip: float = 1.0
    """ρ̄ of V-trace."""
    trace_clip: float = 1.0
    """c̄ of V-trace."""
    standardize_advantages: bool = True
    """To mean 0 and variance 1 over the batch."""
    learning_rate: float = 5e-4
    """Of Adam, constant."""
    adam_epsilon: float = 1e-8
    """ε of Adam, added to the root of the mean squared gradient."""
    gradient_norm: float | None = None
    """Global norm that gradients are scaled down to; None = not."""
    minibatch_size: int | None = 256
    """Samples of one optimiser step, the last of a pass has what is left; None = the whole batch."""
    target_update_every: int = 10
    """Passes over a batch between two copies of π_θ to π_tgt, and between two changes of k.

    Here K, so that each batch is learned from against one target; the papers' 1 drifts from μ and swings on CartPole.
    """
    passes: int = 10
    """K: how often each batch is traversed."""


PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"normalize_observations": False, "target_update_every": 1},
}


# ---- the equations ---------------------------------------------------------------------------------------------------


def truncated_ratio(
    log_probability: Tensor, behaviour_log_probability: Tensor, target_log_probability: Tensor, limit: float
) -> Tensor:
    """r = clamp(μ / π_tgt, 0, limit) · π_θ / μ, from the logarithms of π_θ, μ and π_tgt."""
    behaviour_over_target = (behaviour_log_probability - target_log_probability).clamp(max=math.log(limit))
    return (behaviour_over_target + log_probability - behaviour_log_probability).exp()


@dataclass(frozen=True)
class Loss(PolicyLoss):
    """The surrogate is the mean of min(A r, A clip(r, 1 ± ε)); kl is the mean KL(π_tgt ‖ π_θ)."""

    clipped_fraction: Tensor
    """Of samples whose ratio lies outside 1 ± ε. Without a gradient, as is the next one."""
    behaviour_clipped_fraction: Tensor
    """Of samples where the clamp of μ / π_tgt is active."""


def loss(network: ActorCritic, minibatch: Batch, settings: ImpactSettings, kl_coefficient: float | None = None) -> Loss:
    """The loss of one minibatch: a function of its arguments alone, differentiable twice in the network's parameters.

    `kl_coefficient` is k as it has become; None = ``settings.kl_coefficient``.
    """
    parameters, values = network(minibatch["observation"])
    distribution = network.distribution
    log_probability = distribution.log_probability(parameters, minibatch["action"])
    behaviour, target = minibatch["behaviour_log_probability"], minibatch["target_log_probability"]
    if LIMIT in minibatch:
        log_probability = truncated_log_probability(log_probability, behaviour, minibatch[LIMIT])
    ratio = truncated_ratio(log_probability, behaviour, target, settings.behaviour_clip)
    objective = surrogate(ratio, minibatch["advantage"], settings.clip).mean()
    error = (values - minibatch["value_target"]).square().mean()
    entropy = distribution.entropy(parameters).mean()
    kl = distribution.kl(minibatch["target_parameters"], parameters).mean()
    penalty = settings.kl_coefficient if kl_coefficient is None else kl_coefficient
    total = -objective + settings.value_coefficient * error - settings.entropy_coefficient * entropy
    if penalty != 0.0:
        total = total + penalty * kl
    with torch.no_grad():
        outside = ((ratio - 1.0).abs() > settings.clip).float().mean()
        clamped = (behaviour - target > math.log(settings.behaviour_clip)).float().mean()
    return Loss(total, objective, error, entropy, kl, outside, clamped)


@torch.no_grad()
def prepare(
    fragments: Fragments, target: ActorCritic, settings: ImpactSettings, device: torch.device | None = None
) -> dict[str, Tensor]:
    """The samples of N fragments of T steps, one row each (N·T, …), with what the target network says of them.

    `target` gives π_tgt and, for V-trace, the values of observations and of successors outside the fragments.
    """
    columns = {name: torch.from_numpy(np.ascontiguousarray(column)).to(device) for name, column in fragments.items()}
    parameters, values = outputs(target, columns["observation"])
    _, final_values = outputs(target, columns["final_observation"])
    log_probability = target.distribution.log_probability(parameters, columns["action"])
    trace = v_trace(
        torch.from_numpy(learning_rewards(fragments, settings)).to(device),
        values,
        next_values(values, final_values, columns["final_step"]),
        columns["terminated"],
        columns["truncated"],
        log_probability - columns["behaviour_log_probability"],
        settings.discount,
        settings.ratio_clip,
        settings.trace_clip,
    )
    samples = {
        "observation": columns["observation"],
        "action": columns["action"],
        "value": values,
        "advantage": standardized(trace.advantages) if settings.standardize_advantages else trace.advantages,
        "value_target": trace.targets,
        "behaviour_log_probability": columns["behaviour_log_probability"],
        "target_log_probability": log_probability,
        "target_parameters": parameters,
    }
    return {name: column.flatten(0, 1) for name, column in samples.items()}


def outputs(network: ActorCritic, observations: Tensor, at_once: int = 2048) -> tuple[Tensor, Tensor]:
    """The network of observations (N, T, …): parameters (N, T, P), values (N, T)."""
    parts = [network(part) for part in observations.flatten(0, 1).split(at_once)]
    parameters, values = (torch.cat(column) for column in zip(*parts, strict=True))
    shape = observations.shape[:2]
    return parameters.reshape(*shape, -1), values.reshape(shape)


# ---- the learner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Statistics(PolicyStatistics):
    """What one pass did. KL(π_tgt ‖ π_θ) is what k adapts to when the target is renewed; the critic is the target
    network's."""

    clipped_fraction: float
    behaviour_clipped_fraction: float
    kl_coefficient: float
    """k of this pass."""


class Impact:
    """Network, target network and optimiser, and the pass that trains them.

    `version` counts passes; the weights published after a pass carry it, and fragments name it as the one that acted.
    """

    def __init__(self, settings: ImpactSettings, spec: PolicySpec, device: torch.device | str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.network = make_policy_network(settings, spec).to(self.device)
        self.target = make_policy_network(settings, spec).to(self.device).requires_grad_(False)
        self.parameters = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
        )
        self.kl_coefficient = settings.kl_coefficient
        self.version = 0
        self.newest: dict[int, int] = {}
        """Environment → sequence of its newest fragment whose moments were merged."""

    def update(self, fragments: Fragments) -> Statistics:
        """One full pass over a batch of fragments; then the moments and, where they are due, target network and k.

        The order of the fragments does not matter. Moments of a fragment count once, however often it comes.
        """
        settings = self.settings
        fragments = in_order(fragments)
        samples = self.samples(fragments)
        means = Means()
        for minibatch in minibatches(samples, settings.minibatch_size, order_generator(settings.seed, self.version)):
            found = self.loss(minibatch)
            norm = descend(self.optimizer, self.parameters, found.total, settings.gradient_norm)
            means.add({**found.logged(), "gradient_norm": norm})
        kl, used = self.kl(fragments, samples), self.kl_coefficient
        if self.network.normalizes:
            fresh = merged_moments(first_seen(fragments, self.newest))
            self.network.set_moments(self.network.moments.merged(fresh))
        staleness = float(self.version - fragments["policy_version"].mean())
        self.version += 1
        if self.version % settings.target_update_every == 0:
            self.kl_coefficient = adapted_kl_coefficient(used, kl, settings.kl_target)
            self.target.load_state_dict(self.network.state_dict())
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
        """What `loss` is taken of, a row for each step (N·T, …), fragment after fragment; by the target network."""
        return prepare(fragments, self.target, self.settings, self.device)

    def loss(self, minibatch: Batch) -> Loss:
        """The loss of some rows of `samples` for the network and the KL coefficient as they are now."""
        return loss(self.network, minibatch, self.settings, self.kl_coefficient)

    def networks(self) -> dict[str, nn.Module]:
        """What a checkpoint holds."""
        return {"network": self.network, "target": self.target}

    def counters(self) -> dict[str, Any]:
        """The rest of what a checkpoint holds."""
        return {"version": self.version, "kl_coefficient": self.kl_coefficient, "newest": sorted(self.newest.items())}

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Takes what `counters` gave."""
        self.version, self.kl_coefficient = int(counters["version"]), float(counters["kl_coefficient"])
        self.newest = {int(environment): int(sequence) for environment, sequence in counters["newest"]}

    @torch.no_grad()
    def kl(self, fragments: Fragments, samples: Batch) -> float:
        """Mean KL(π_tgt ‖ π_θ) over fragments and what `samples` made of them, of the policy as it is now."""
        observations = torch.from_numpy(fragments["observation"]).to(self.device)
        parameters, _ = outputs(self.network, observations)
        return float(self.network.distribution.kl(samples["target_parameters"], parameters.flatten(0, 1)).mean())
