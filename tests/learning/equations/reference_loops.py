"""The equations as loops over float64 arrays: slow, and near enough to the papers to be checked by eye.

`test_equations.py` holds the learners against every module `reference_*.py` in this folder. Such a module offers any of
the functions below, by these names and arguments; all arrays are NumPy's, (N, T) for N fragments of T steps or (B,) for
B samples. `next_values` are the values of true successors, final observations of truncated episodes included.
"""

from __future__ import annotations

import math

import numpy as np


def gae(rewards, values, next_values, terminated, truncated, discount, gae_lambda):
    """→ advantages (N, T), value targets (N, T)."""
    fragments, steps = rewards.shape
    advantages = np.zeros((fragments, steps))
    for n in range(fragments):
        for t in range(steps):
            # The sum of equation 16 itself: Σ (γλ)^l δ_{t+l}, up to the end of the episode or of the fragment.
            factor = 1.0
            for later in range(t, steps):
                bootstrap = 0.0 if terminated[n, later] else next_values[n, later]
                advantages[n, t] += factor * (rewards[n, later] + discount * bootstrap - values[n, later])
                if terminated[n, later] or truncated[n, later]:
                    break
                factor *= discount * gae_lambda
    return advantages, advantages + values


def v_trace(
    rewards, values, next_values, terminated, truncated, target_log_probabilities, behaviour_log_probabilities,
    discount, ratio_clip, trace_clip,
):  # fmt: skip
    """→ value targets v (N, T), policy-gradient advantages (N, T)."""
    fragments, steps = rewards.shape
    targets, advantages = np.zeros((fragments, steps)), np.zeros((fragments, steps))
    for n in range(fragments):
        ratios = [math.exp(target_log_probabilities[n, t] - behaviour_log_probabilities[n, t]) for t in range(steps)]
        for t in range(steps):
            # Equation 1 of Espeholt et al.: v_s = V(s) + Σ_t γ^(t−s) (Π c_i) δ_t.
            targets[n, t] = values[n, t]
            factor = 1.0
            for later in range(t, steps):
                bootstrap = 0.0 if terminated[n, later] else discount * next_values[n, later]
                delta = min(ratio_clip, ratios[later]) * (rewards[n, later] + bootstrap - values[n, later])
                targets[n, t] += factor * delta
                if terminated[n, later] or truncated[n, later]:
                    break
                factor *= discount * min(trace_clip, ratios[later])
        for t in range(steps):
            following = next_values[n, t]
            if t + 1 < steps and not truncated[n, t]:
                following = targets[n, t + 1]
            bootstrap = 0.0 if terminated[n, t] else discount * following
            advantages[n, t] = min(ratio_clip, ratios[t]) * (rewards[n, t] + bootstrap - values[n, t])
    return targets, advantages


def standardized(advantages):
    """→ (B,)."""
    mean = sum(advantages) / len(advantages)
    variance = sum((value - mean) ** 2 for value in advantages) / len(advantages)
    return np.array([(value - mean) / (math.sqrt(variance) + 1e-8) for value in advantages])


def ppo_loss(
    log_probabilities, behaviour_log_probabilities, advantages, values, value_targets, entropies, kls, *,
    clip, value_coefficient, value_clip, entropy_coefficient, kl_coefficient,
):  # fmt: skip
    """→ the loss, a number. `value_clip` None = not clamped."""
    total = 0.0
    for i in range(len(advantages)):
        ratio = math.exp(log_probabilities[i] - behaviour_log_probabilities[i])
        bounded = min(max(ratio, 1.0 - clip), 1.0 + clip)
        error = (values[i] - value_targets[i]) ** 2
        if value_clip is not None:
            error = min(error, value_clip)
        total -= min(advantages[i] * ratio, advantages[i] * bounded)
        total += value_coefficient * error - entropy_coefficient * entropies[i] + kl_coefficient * kls[i]
    return total / len(advantages)


def impact_ratio(log_probabilities, behaviour_log_probabilities, target_log_probabilities, behaviour_clip):
    """→ r (B,)."""
    ratios = []
    for pi, mu, target in zip(log_probabilities, behaviour_log_probabilities, target_log_probabilities, strict=True):
        ratios.append(min(math.exp(mu - target), behaviour_clip) * math.exp(pi - mu))
    return np.array(ratios)


def impact_loss(
    ratios, advantages, values, value_targets, entropies, kls, *,
    clip, value_coefficient, entropy_coefficient, kl_coefficient,
):  # fmt: skip
    """→ the loss, a number; `kls` are KL(π_tgt ‖ π_θ)."""
    total = 0.0
    for i in range(len(advantages)):
        bounded = min(max(ratios[i], 1.0 - clip), 1.0 + clip)
        total -= min(advantages[i] * ratios[i], advantages[i] * bounded)
        total += value_coefficient * (values[i] - value_targets[i]) ** 2
        total += kl_coefficient * kls[i] - entropy_coefficient * entropies[i]
    return total / len(advantages)


def gaussian_log_probability(means, log_stds, actions):
    """Each (B, A) → (B,)."""
    results = []
    for mean, log_std, action in zip(means, log_stds, actions, strict=True):
        total = 0.0
        for m, s, a in zip(mean, log_std, action, strict=True):
            total -= (a - m) ** 2 / (2.0 * math.exp(s) ** 2) + math.log(math.exp(s) * math.sqrt(2.0 * math.pi))
        results.append(total)
    return np.array(results)


def gaussian_entropy(log_stds):
    """(B, A) → (B,)."""
    return np.array([sum(0.5 * math.log(2.0 * math.pi * math.e * math.exp(s) ** 2) for s in row) for row in log_stds])


def gaussian_kl(means, log_stds, other_means, other_log_stds):
    """KL(first ‖ other), each (B, A) → (B,)."""
    results = []
    for row in zip(means, log_stds, other_means, other_log_stds, strict=True):
        total = 0.0
        for m, s, om, os in zip(*row, strict=True):
            total += math.log(math.exp(os) / math.exp(s))
            total += (math.exp(s) ** 2 + (m - om) ** 2) / (2.0 * math.exp(os) ** 2) - 0.5
        results.append(total)
    return np.array(results)


def _probabilities(logits):
    weights = [math.exp(value - max(logits)) for value in logits]
    return [weight / sum(weights) for weight in weights]


def categorical_log_probability(logits, actions):
    """(B, A), (B,) → (B,)."""
    return np.array([math.log(_probabilities(row)[action]) for row, action in zip(logits, actions, strict=True)])


def categorical_entropy(logits):
    """(B, A) → (B,)."""
    return np.array([-sum(p * math.log(p) for p in _probabilities(row)) for row in logits])


def categorical_kl(logits, other_logits):
    """KL(first ‖ other), (B, A) twice → (B,)."""
    results = []
    for row, other in zip(logits, other_logits, strict=True):
        pairs = zip(_probabilities(row), _probabilities(other), strict=True)
        results.append(sum(p * math.log(p / q) for p, q in pairs))
    return np.array(results)


def adapted_kl_coefficient(coefficient, kl, target):
    """→ the next round's."""
    if kl > 2.0 * target:
        return coefficient * 1.5
    if kl < target / 2.0:
        return coefficient * 0.5
    return coefficient
