"""One learner's gradients of a share of a round: its minibatches in their order, and the gradient of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.learner.aggregation import gradient_vector
from replay_server.learner.impact import Impact
from replay_server.learner.ppo import Ppo
from replay_server.learner.sgd import minibatches, order_generator
from replay_server.learner.truncation import LIMIT, log_ratio_limit
from replay_server.rl.fragments import Fragments
from replay_server.rl.policy_networks import ActorCritic

GradientLearner = Ppo | Impact
"""Algorithms whose passes can be divided among several learners."""


def passes_of(learner: GradientLearner) -> int:
    """How often a round's samples are gone through."""
    return learner.settings.passes if isinstance(learner, Impact) else learner.settings.iterations


def gradients_of(learner: GradientLearner, rows: int) -> int:
    """How many gradients all passes over so many samples make."""
    return passes_of(learner) * -(-rows // (learner.settings.minibatch_size or rows))


def all_minibatches(
    learner: GradientLearner, samples: Mapping[str, Tensor], round_number: int, number: int
) -> Iterator[dict[str, Tensor]]:
    """Those of all passes. Learner 0 has the order of a synchronous one in that round, from 1 on."""
    settings, passes = learner.settings, passes_of(learner)
    if isinstance(learner, Impact):
        for version in range((round_number - 1) * passes, round_number * passes):
            yield from minibatches(samples, settings.minibatch_size, order_generator(settings.seed, version, number))
        return
    order = order_generator(settings.seed, round_number - 1, number)
    for _ in range(passes):
        yield from minibatches(samples, settings.minibatch_size, order)


def gradient(learner: GradientLearner, minibatch: Mapping[str, Tensor]) -> tuple[np.ndarray, dict[str, Tensor]]:
    """Gradient of the loss, float32 (P,), scaled down to the settings' norm; and what there is to log of it."""
    found = learner.loss(minibatch)
    learner.optimizer.zero_grad(set_to_none=True)
    found.total.backward()
    most = learner.settings.gradient_norm
    norm = nn.utils.clip_grad_norm_(learner.parameters, float("inf") if most is None else most)
    return gradient_vector(learner.parameters), {**found.logged(), "gradient_norm": norm}


def truncated(
    network: ActorCritic, others: list[ActorCritic], minibatch: dict[str, Tensor], limit: float
) -> tuple[dict[str, Tensor], float]:
    """The minibatch with the limit of its ratios by the policies of a group; the share of samples that it cuts.

    Args:
        network: this learner's policy.
        others: those of the others that differ from it; with none of them the minibatch is as it was.
        limit: ρ.
    """
    if not others:
        return minibatch, 0.0
    own = log_ratio(network, minibatch)
    bound = log_ratio_limit([own, *(log_ratio(each, minibatch) for each in others)], limit)
    return minibatch | {LIMIT: bound}, float((own > bound).float().mean())


@torch.no_grad()
def log_ratio(network: ActorCritic, minibatch: Mapping[str, Tensor]) -> Tensor:
    """log π(a|s) / μ(a|s), (B,)."""
    parameters = network.policy(minibatch["observation"])
    log_probability = network.distribution.log_probability(parameters, minibatch["action"])
    return log_probability - minibatch["behaviour_log_probability"]


def policy_kl(learner: GradientLearner, fragments: Fragments, samples: Mapping[str, Tensor]) -> float:
    """Over all samples, of the policy as it is now: what the KL coefficient adapts to."""
    return learner.kl(fragments, samples) if isinstance(learner, Impact) else learner.kl(samples)
