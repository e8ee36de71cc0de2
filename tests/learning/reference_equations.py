"""Written from the equations alone, by somebody who had not seen the learners' code.

Schulman et al. 2016 (GAE) and 2017 (PPO), Espeholt et al. 2018 (V-trace), Luo et al. 2020 (IMPACT's ratio): each sum
as it is printed, forwards from its step, where an implementation would recur backwards. Float64, one number at a time.
A step that terminated has no successor: its γ is 0. One that was only truncated has one, of value `next_values`, but
the sum ends with it, as it does at the fragment's last step.
"""

from __future__ import annotations

import math

import numpy as np

# ---- returns ---------------------------------------------------------------------------------------------------------


def _last_of_sum(t, terminated, truncated):
    """→ the last step of the sums that begin at step t."""
    while t < len(terminated) - 1 and not terminated[t] and not truncated[t]:
        t += 1
    return t


def _discounts(terminated, discount):
    """→ γ of each step's successor."""
    return [0.0 if end else discount for end in terminated]


def discounted_returns(rewards, next_values, terminated, truncated, discount):
    """→ R_t = Σ_l γ^l r_{t+l}, and γ^(l+1) V of the last step's successor (N, T)."""
    returns = np.zeros(rewards.shape)
    for n in range(rewards.shape[0]):
        discounts = _discounts(terminated[n], discount)
        for t in range(rewards.shape[1]):
            last = _last_of_sum(t, terminated[n], truncated[n])
            for k in range(t, last + 1):
                returns[n, t] += discount ** (k - t) * rewards[n, k]
            returns[n, t] += discount ** (last - t) * discounts[last] * next_values[n, last]
    return returns


def gae(rewards, values, next_values, terminated, truncated, discount, gae_lambda):
    """→ A_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) − V(s_t), value targets A_t + V(s_t); each (N, T)."""
    advantages, targets = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for n in range(rewards.shape[0]):
        discounts = _discounts(terminated[n], discount)
        for t in range(rewards.shape[1]):
            for k in range(t, _last_of_sum(t, terminated[n], truncated[n]) + 1):
                delta = rewards[n, k] + discounts[k] * next_values[n, k] - values[n, k]
                advantages[n, t] += (discount * gae_lambda) ** (k - t) * delta
            targets[n, t] = advantages[n, t] + values[n, t]
    return advantages, targets


def v_trace(
    rewards, values, next_values, terminated, truncated, target_log_probabilities, behaviour_log_probabilities,
    discount, ratio_clip, trace_clip,
):  # fmt: skip
    """→ v_s = V(x_s) + Σ_t γ^(t−s) (Π_{i<t} c_i) δ_t V, advantages ρ_s (r_s + γ v_{s+1} − V(x_s)); each (N, T)."""
    targets, advantages = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for n in range(rewards.shape[0]):
        steps = rewards.shape[1]
        discounts = _discounts(terminated[n], discount)
        rho, c, delta = [], [], []
        for t in range(steps):
            ratio = math.exp(target_log_probabilities[n, t] - behaviour_log_probabilities[n, t])
            rho.append(min(ratio_clip, ratio))
            c.append(min(trace_clip, ratio))
            delta.append(rho[t] * (rewards[n, t] + discounts[t] * next_values[n, t] - values[n, t]))
        for s in range(steps):
            targets[n, s] = values[n, s]
            for t in range(s, _last_of_sum(s, terminated[n], truncated[n]) + 1):
                traces = 1.0
                for i in range(s, t):
                    traces *= c[i]
                targets[n, s] += discount ** (t - s) * traces * delta[t]
        for s in range(steps):
            goes_on = s < steps - 1 and not terminated[n, s] and not truncated[n, s]
            successor = targets[n, s + 1] if goes_on else next_values[n, s]
            advantages[n, s] = rho[s] * (rewards[n, s] + discounts[s] * successor - values[n, s])
    return targets, advantages


def standardized(advantages):
    """→ (A − mean) / standard deviation, both of the batch at hand (B,)."""
    mean = sum(advantages) / len(advantages)
    variance = sum((advantage - mean) ** 2 for advantage in advantages) / len(advantages)
    return np.array([(advantage - mean) / math.sqrt(variance) for advantage in advantages])


# ---- losses ----------------------------------------------------------------------------------------------------------


def surrogate(ratio, advantage, clip):
    """→ L^CLIP of one sample, to be maximised."""
    return min(ratio * advantage, min(max(ratio, 1.0 - clip), 1.0 + clip) * advantage)


def clipped_value_error(value, target, value_clip):
    """→ (V − V_targ)² of one sample, at most `value_clip`."""
    error = (value - target) ** 2
    return error if value_clip is None else min(error, value_clip)


def ppo_loss(
    log_probabilities, behaviour_log_probabilities, advantages, values, value_targets, entropies, kls, *,
    clip, value_coefficient, value_clip, entropy_coefficient, kl_coefficient,
):  # fmt: skip
    """→ the loss, a number."""
    total = 0.0
    for j in range(len(advantages)):
        ratio = math.exp(log_probabilities[j]) / math.exp(behaviour_log_probabilities[j])
        total -= surrogate(ratio, advantages[j], clip)
        total += value_coefficient * clipped_value_error(values[j], value_targets[j], value_clip)
        total -= entropy_coefficient * entropies[j]
        total += kl_coefficient * kls[j]
    return total / len(advantages)


def impact_ratio(log_probabilities, behaviour_log_probabilities, target_log_probabilities, behaviour_clip):
    """→ clamp(μ / π_tgt, 0, ρ) π_θ / μ (B,)."""
    ratios = []
    for j in range(len(log_probabilities)):
        mu, pi = math.exp(behaviour_log_probabilities[j]), math.exp(log_probabilities[j])
        correction = mu / math.exp(target_log_probabilities[j])
        ratios.append(min(max(correction, 0.0), behaviour_clip) * pi / mu)
    return np.array(ratios)


def impact_loss(
    ratios, advantages, values, value_targets, entropies, kls, *,
    clip, value_coefficient, entropy_coefficient, kl_coefficient,
):  # fmt: skip
    """→ the loss, a number; `kls` are KL(π_tgt ‖ π_θ)."""
    total = 0.0
    for j in range(len(advantages)):
        total -= surrogate(ratios[j], advantages[j], clip)
        total += value_coefficient * clipped_value_error(values[j], value_targets[j], None)
        total -= entropy_coefficient * entropies[j]
        total += kl_coefficient * kls[j]
    return total / len(advantages)


def impala_loss(
    log_probabilities, advantages, values, value_targets, entropies, *, value_coefficient, entropy_coefficient,
):  # fmt: skip
    """→ minus the sum of the three terms of section 4.2 over the batch size; advantages are ρ_s (r_s + γ v' − V)."""
    policy = sum(advantage * logarithm for advantage, logarithm in zip(advantages, log_probabilities, strict=True))
    baseline = sum((target - value) ** 2 for target, value in zip(value_targets, values, strict=True))
    return (-policy + value_coefficient * baseline - entropy_coefficient * sum(entropies)) / len(advantages)


def adapted_kl_coefficient(coefficient, kl, target):
    """→ the next round's: half again above twice the target, half below half of it."""
    if kl > 2.0 * target:
        return coefficient * 1.5
    if kl < target / 2.0:
        return coefficient * 0.5
    return coefficient


# ---- distributions ---------------------------------------------------------------------------------------------------


def gaussian_log_probability(means, log_stds, actions):
    """log Π_a exp(−(x − μ)² / 2σ²) / (σ √2π); each (B, A) → (B,)."""
    out = np.zeros(len(means))
    for j in range(len(means)):
        for a in range(means.shape[1]):
            sigma = math.exp(log_stds[j, a])
            out[j] -= (actions[j, a] - means[j, a]) ** 2 / (2.0 * sigma**2) + math.log(sigma * math.sqrt(2.0 * math.pi))
    return out


def gaussian_entropy(log_stds):
    """Σ_a ½ log 2πeσ²; (B, A) → (B,)."""
    out = np.zeros(len(log_stds))
    for j in range(len(log_stds)):
        for a in range(log_stds.shape[1]):
            out[j] += 0.5 * math.log(2.0 * math.pi * math.e * math.exp(log_stds[j, a]) ** 2)
    return out


def gaussian_kl(means, log_stds, other_means, other_log_stds):
    """KL(first ‖ other) = Σ_a log σ₂/σ₁ + (σ₁² + (μ₁ − μ₂)²) / 2σ₂² − ½, each (B, A) → (B,)."""
    out = np.zeros(len(means))
    for j in range(len(means)):
        for a in range(means.shape[1]):
            first, other = math.exp(log_stds[j, a]), math.exp(other_log_stds[j, a])
            apart = (means[j, a] - other_means[j, a]) ** 2
            out[j] += math.log(other / first) + (first**2 + apart) / (2.0 * other**2) - 0.5
    return out


def _softmax(logits):
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def categorical_log_probability(logits, actions):
    """(B, A), (B,) → (B,)."""
    return np.array([math.log(_softmax(logits[j])[int(actions[j])]) for j in range(len(logits))])


def categorical_entropy(logits):
    """−Σ_a p log p; (B, A) → (B,)."""
    out = np.zeros(len(logits))
    for j in range(len(logits)):
        for p in _softmax(logits[j]):
            out[j] -= p * math.log(p)
    return out


def categorical_kl(logits, other_logits):
    """KL(first ‖ other) = Σ_a p log p/q, (B, A) twice → (B,)."""
    out = np.zeros(len(logits))
    for j in range(len(logits)):
        for p, q in zip(_softmax(logits[j]), _softmax(other_logits[j]), strict=True):
            out[j] += p * math.log(p / q)
    return out
