"""Advantages and value targets over fragments: GAE and V-trace.

All arrays are (N, T): N fragments of T steps, each of one environment. An episode may end inside a fragment.
`terminated` means that nothing comes after; `truncated`, that something would have: its value is that of the true
final observation, and what the environment showed next belongs to another episode. Recursions run in float64 and
results are float32: a sum of hundreds of float32 terms would lose the digits that the advantage consists of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def next_values(values: Tensor, final_values: Tensor, final_steps: Tensor) -> Tensor:
    """V of each step's true successor: float32 (N, T).

    values (N, T): of the observations acted on. final_values (N, F): of the observations that no later step of the
    fragment acted on. final_steps (N, F) int64: the steps whose successors they are, −1 where there is none. The last
    step always has one; so has each truncated one.
    """
    successors = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    rows, slots = torch.nonzero(final_steps >= 0, as_tuple=True)
    successors[rows, final_steps[rows, slots]] = final_values[rows, slots].to(successors.dtype)
    return successors


def gae(
    rewards: Tensor,
    values: Tensor,
    successors: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and value targets A + V, float32 (N, T) each (Schulman et al. 2016, equation 16).

    δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t),  A_t = δ_t + γ λ (1 − ended_t) A_{t+1}, where `successors` are
    V(s_{t+1}) as `next_values` gives them and an episode has ended where it was terminated or truncated.
    """
    rewards, values, successors = rewards.double(), values.double(), successors.double()
    alive = 1.0 - terminated.double()
    going_on = 1.0 - (terminated | truncated).double()
    deltas = rewards + discount * alive * successors - values
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[:, 0])
    for step in range(deltas.shape[1] - 1, -1, -1):
        following = deltas[:, step] + discount * gae_lambda * going_on[:, step] * following
        advantages[:, step] = following
    return advantages.float(), (advantages + values).float()


@dataclass(frozen=True)
class VTrace:
    """float32 (N, T) each."""

    targets: Tensor
    """v_t."""
    advantages: Tensor
    """ρ_t (r_t + γ v_{t+1} − V_t), of the policy gradient."""
    ratios: Tensor
    """ρ_t = min(ρ̄, π/μ)."""


def v_trace(
    rewards: Tensor,
    values: Tensor,
    successors: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratios: Tensor,
    discount: float,
    ratio_clip: float = 1.0,
    trace_clip: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages (Espeholt et al. 2018, equation 1 and section 4.2), λ = 1.

    `log_ratios` are log π(a|s) − log μ(a|s) of target and behaviour policy; `ratio_clip` is ρ̄, `trace_clip` c̄;
    `successors` as in `gae`. With γ_t = γ (1 − terminated_t): δ_t = ρ_t (r_t + γ_t V_{t+1} − V_t) and
    v_t − V_t = δ_t + γ_t c_t (v_{t+1} − V_{t+1}); after a truncated step, and after the last, v_{t+1} is V_{t+1}.
    """
    rewards, values, successors = rewards.double(), values.double(), successors.double()
    ratio = log_ratios.double().exp()
    clipped, trace = ratio.clamp(max=ratio_clip), ratio.clamp(max=trace_clip)
    discounts = discount * (1.0 - terminated.double())
    going_on = 1.0 - (terminated | truncated).double()
    deltas = clipped * (rewards + discounts * successors - values)
    # v_t − V_t of each step, and v_{t+1} − V_{t+1} as each step sees it.
    corrections, following = torch.empty_like(deltas), torch.zeros_like(deltas)
    correction = torch.zeros_like(deltas[:, 0])
    for step in range(deltas.shape[1] - 1, -1, -1):
        following[:, step] = going_on[:, step] * correction
        correction = deltas[:, step] + discounts[:, step] * trace[:, step] * following[:, step]
        corrections[:, step] = correction
    advantages = clipped * (rewards + discounts * (successors + following) - values)
    return VTrace((values + corrections).float(), advantages.float(), clipped.float())
