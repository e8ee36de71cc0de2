"""IMPALA: the policy gradient with V-trace's correction, so that actors need not wait for the learner.

Espeholt et al. 2018 (arXiv 1802.01561), section 4.2. Behaviour policy μ acted, π_θ and V_θ learn. With targets v and
truncated weights ρ = min(ρ̄, π_θ / μ) of V-trace (equation 1), both by the network as it is before each step,

    loss = mean[ −ρ_t (r_t + γ v_{t+1} − V_θ(x_t)) log π_θ(a_t | x_t) + c_v (V_θ(x_t) − v_t)² − c_e H ]

where neither ρ nor v nor the advantage carries a gradient. V-trace is a sum along a trajectory: a minibatch is of whole
fragments, and each sees the newest policy. Batches come from a table (`replay_server.learner.circular_buffer`), each
once, unless `passes` says more. Nothing here knows of servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.circular_buffer import CircularBufferSettings
from replay_server.learner.impact import outputs
from replay_server.learner.ppo import standardized
from replay_server.learner.sgd import Means, PolicyLoss, PolicyStatistics, descend, explained_variance, order_generator
from replay_server.rl.fragments import Fragments, first_seen, in_order, learning_rewards, merged_moments
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.returns import next_values, v_trace

Batch = Mapping[str, Tensor]
"""Samples, column → (B, …): observation, action, advantage (ρ is in it), value_target, behaviour_log_probability,
behaviour_parameters, parameters (π_θ's), ratio (π_θ / μ)."""


@dataclass
class ImpalaSettings(CircularBufferSettings):
    """Defaults are the profile `default`, this project's own; `paper` has Espeholt et al.'s coefficients for Atari."""

    discount: float = 0.99
    """γ."""
    entropy_coefficient: float = 0.01
    """c_e."""
    value_coefficient: float = 0.5
    """c_v; there is no ½ in front of the squared error."""
    ratio_clip: float = 1.0
    """ρ̄ of V-trace."""
    trace_clip: float = 1.0
    """c̄ of V-trace."""
    standardize_advantages: bool = True
    """To mean 0 and variance 1 over each minibatch."""
    learning_rate: float = 1e-4
    """Of Adam, constant. 5e-4 learns CartPole four times as fast; on Hopper one pass then moves the policy by tens of
    nats, from which it does not come back: nothing clips a step."""
    adam_epsilon: float = 1e-8
    """ε of Adam, added to the root of the mean squared gradient."""
    gradient_norm: float | None = 40.0
    """Global norm that gradients are scaled down to; None = not."""
    minibatch_size: int | None = 256
    """Samples of one optimiser step: as many whole fragments as they are, at least one; None = the whole batch."""


PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    # Table D.1 of the paper, without its RMSProp and its annealing; its losses are sums over a batch, these are means.
    "paper": {
        "normalize_observations": False,
        "standardize_advantages": False,
        "learning_rate": 6e-4,
        "value_coefficient": 0.25,  # 0.5 · ½
        "buffer_batches": 1,
    },
}


# ---- the equations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss(PolicyLoss):
    """The surrogate is the mean of ρ (r + γ v' − V) log π_θ(a|s), whose gradient is the policy gradient; kl is the mean
    KL(μ ‖ π_θ), which is in no loss."""

    clipped_fraction: Tensor
    """Of samples where π_θ / μ was above ρ̄. Without a gradient."""


def loss(network: ActorCritic, minibatch: Batch, settings: ImpalaSettings) -> Loss:
    """The loss of a minibatch: a function of its arguments alone, differentiable twice in the network's parameters."""
    parameters, values = network(minibatch["observation"])
    distribution = network.distribution
    log_probability = distribution.log_probability(parameters, minibatch["action"])
    objective = (minibatch["advantage"] * log_probability).mean()
    error = (values - minibatch["value_target"]).square().mean()
    entropy = distribution.entropy(parameters).mean()
    kl = distribution.kl(minibatch["behaviour_parameters"], parameters).mean()
    total = -objective + settings.value_coefficient * error - settings.entropy_coefficient * entropy
    clipped = (minibatch["ratio"] > settings.ratio_clip).float().mean()
    return Loss(total, objective, error, entropy, kl, clipped)


@torch.no_grad()
def prepare(
    fragments: Fragments, network: ActorCritic, settings: ImpalaSettings, device: torch.device | None = None
) -> dict[str, Tensor]:
    """The samples of N fragments of T steps, one row each (N·T, …), by the network as it is."""
    columns = {name: torch.from_numpy(np.ascontiguousarray(column)).to(device) for name, column in fragments.items()}
    parameters, values = outputs(network, columns["observation"])
    _, final_values = outputs(network, columns["final_observation"])
    log_probability = network.distribution.log_probability(parameters, columns["action"])
    log_ratios = log_probability - columns["behaviour_log_probability"]
    trace = v_trace(
        torch.from_numpy(learning_rewards(fragments, settings)).to(device),
        values,
        next_values(values, final_values, columns["final_step"]),
        columns["terminated"],
        columns["truncated"],
        log_ratios,
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
        "behaviour_parameters": columns["behaviour_parameters"],
        "parameters": parameters,
        "ratio": log_ratios.exp(),
    }
    return {name: column.flatten(0, 1) for name, column in samples.items()}


def minibatches(fragments: Fragments, samples: int | None, generator: torch.Generator) -> Iterator[Fragments]:
    """One pass over N fragments of T steps in an order drawn from `generator`: ⌊samples / T⌋ at a time, at least one.

    The last minibatch has what is left; None = all at once.
    """
    count, steps = fragments["reward"].shape
    together = count if samples is None else max(1, samples // steps)
    for rows in torch.randperm(count, generator=generator).split(together):
        yield {name: np.asarray(column)[rows.numpy()] for name, column in fragments.items()}


# ---- the learner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Statistics(PolicyStatistics):
    """What one pass did. The KL divergence is KL(μ ‖ π_θ); the critic is as it is after the pass."""

    clipped_fraction: float
    """Of samples where π_θ / μ was above ρ̄."""


class Impala:
    """Network and optimiser, and the pass that trains them.

    `version` counts passes; the weights published after a pass carry it, and fragments name it as the one that acted.
    """

    def __init__(self, settings: ImpalaSettings, spec: PolicySpec, device: torch.device | str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.network = make_policy_network(settings, spec).to(self.device)
        self.parameters = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
        )
        self.version = 0
        self.newest: dict[int, int] = {}
        """Environment → sequence of its newest fragment whose moments were merged."""

    def update(self, fragments: Fragments) -> Statistics:
        """One full pass over a batch of fragments, then the observation moments.

        The order of the fragments does not matter. Moments of a fragment count once, however often it comes.
        """
        settings = self.settings
        fragments = in_order(fragments)
        means = Means()
        for part in minibatches(fragments, settings.minibatch_size, order_generator(settings.seed, self.version)):
            found = self.loss(self.samples(part))
            norm = descend(self.optimizer, self.parameters, found.total, settings.gradient_norm)
            means.add({**found.logged(), "gradient_norm": norm})
        samples = self.samples(fragments)
        kl = self.network.distribution.kl(samples["behaviour_parameters"], samples["parameters"]).mean()
        if self.network.normalizes:
            fresh = merged_moments(first_seen(fragments, self.newest))
            self.network.set_moments(self.network.moments.merged(fresh))
        staleness = float(self.version - fragments["policy_version"].mean())
        self.version += 1
        return Statistics(
            **means.floats(),
            kl=float(kl),
            explained_variance=explained_variance(samples["value_target"], samples["value"]),
            samples=len(samples["advantage"]),
            optimizer_steps=means.count,
            staleness=staleness,
        )

    def samples(self, fragments: Fragments) -> dict[str, Tensor]:
        """What `loss` is taken of, a row for each step (N·T, …), fragment after fragment; by the network as it is."""
        return prepare(fragments, self.network, self.settings, self.device)

    def loss(self, minibatch: Batch) -> Loss:
        """The loss of some rows of `samples` for the network as it is now."""
        return loss(self.network, minibatch, self.settings)

    def networks(self) -> dict[str, nn.Module]:
        """What a checkpoint holds."""
        return {"network": self.network}

    def counters(self) -> dict[str, Any]:
        """The rest of what a checkpoint holds."""
        return {"version": self.version, "newest": sorted(self.newest.items())}

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Takes what `counters` gave."""
        self.version = int(counters["version"])
        self.newest = {int(environment): int(sequence) for environment, sequence in counters["newest"]}
