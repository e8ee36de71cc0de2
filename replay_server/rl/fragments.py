"""Fragments of trajectories as items of a replay table.

One item is T successive steps of one environment, acted by one version of the policy:

    observation (T, …)              as the network saw it: normalised vectors float32, stacked screens uint8
    action (T,) or (T, A)           as it was drawn, before the environment's bounds
    reward (T,)                     unclipped
    terminated, truncated (T,)      an episode may end inside a fragment; the next row then begins another
    behaviour_log_probability (T,)  of the action under the policy that drew it
    behaviour_parameters (T, P)     of that policy's distribution
    value (T,)                      of the observation, by the critic that was fetched with the policy
    final_observation (F, …)        successors that no row of the fragment is: of truncated steps and of the last one
    final_step (F,)                 the steps whose successors they are; −1 where a slot is empty
    final_value (F,)                their values
    policy_version                  that acted
    environment, sequence           which environment of the run it is of, and its how many-th fragment
    observation_count, _mean, _squared_deviations   moments of the raw observations acted on (normalised runs only)

A fragment holds what the network saw, so a learner needs no moments to train from it: whatever they have become since,
the numbers are those that the actor used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import replay_server as rs
from replay_server.rl.distributions import make_distribution
from replay_server.rl.environment_spec import is_atari
from replay_server.rl.moments import Moments
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.preprocessing import clip_rewards

Fragments = Mapping[str, np.ndarray]
"""N fragments: column → array (N, …)."""


def final_slots(settings: PolicySettings, spec: PolicySpec) -> int:
    """F: how many successors of one fragment can lie outside it.

    Episodes of at most L steps are truncated at most ⌈T / L⌉ times in T steps; where L is not known, in every step.
    """
    if spec.max_episode_steps is None:
        return settings.steps
    return min(settings.steps, -(-settings.steps // spec.max_episode_steps) + 1)


def fragment_signature(settings: PolicySettings, spec: PolicySpec) -> dict[str, rs.Column]:
    """The columns of a fragment."""
    steps, slots = settings.steps, final_slots(settings, spec)
    observation = rs.Column(spec.observation_dtype, (steps, *spec.observation_shape))
    action = rs.Column("int64", (steps,)) if spec.is_discrete else rs.Column("float32", (steps, spec.action_size))
    signature = {
        "observation": observation,
        "action": action,
        "reward": rs.Column("float32", (steps,)),
        "terminated": rs.Column("bool", (steps,)),
        "truncated": rs.Column("bool", (steps,)),
        "behaviour_log_probability": rs.Column("float32", (steps,)),
        "behaviour_parameters": rs.Column("float32", (steps, make_distribution(spec).parameters_size)),
        "value": rs.Column("float32", (steps,)),
        "final_observation": rs.Column(spec.observation_dtype, (slots, *spec.observation_shape)),
        "final_step": rs.Column("int64", (slots,)),
        "final_value": rs.Column("float32", (slots,)),
        "policy_version": rs.Column("int64"),
        "environment": rs.Column("int64"),
        "sequence": rs.Column("int64"),
    }
    if settings.normalize_observations and not spec.is_image:
        signature["observation_count"] = rs.Column("float64")
        signature["observation_mean"] = rs.Column("float64", spec.observation_shape)
        signature["observation_squared_deviations"] = rs.Column("float64", spec.observation_shape)
    return signature


def fragment_table(
    name: str,
    settings: PolicySettings,
    spec: PolicySpec,
    fragments: int,
    *,
    passes: int = 1,
    max_staleness: int | None = None,
) -> rs.Table:
    """A queue of at most `fragments` fragments, oldest first, each handed out `passes` times; adding waits while full.

    With passes = 1 it feeds an on-policy learner. With batches of B, fragments = N·B and passes = K it is IMPACT's
    circular buffer (`replay_server.learner.circular_buffer`): the oldest batch is sampled K times, then leaves.
    """
    return rs.Table(
        name,
        capacity=fragments,
        signature=fragment_signature(settings, spec),
        sampler=rs.Fifo(),
        remover=rs.Fifo(),
        rate_limiter=rs.Queue(fragments),
        max_times_sampled=passes,
        max_staleness=max_staleness,
        seed=settings.seed,
    )


def in_order(fragments: Fragments) -> dict[str, np.ndarray]:
    """The same fragments by version, sequence and environment: what is computed must not depend on who came first."""
    order = np.lexsort((fragments["environment"], fragments["sequence"], fragments["policy_version"]))
    return {name: np.asarray(column)[order] for name, column in fragments.items()}


def concatenated(parts: Sequence[Fragments]) -> dict[str, np.ndarray]:
    """The fragments of several actors as one batch."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def merged_moments(fragments: Fragments) -> Moments:
    """Those of all raw observations that the fragments were acted on."""
    columns = ("observation_count", "observation_mean", "observation_squared_deviations")
    parts = zip(*(fragments[name] for name in columns), strict=True)
    features = fragments["observation_mean"].shape[1]
    return Moments.merge((Moments(float(count), mean, squares) for count, mean, squares in parts), features)


def learning_rewards(fragments: Fragments, settings: PolicySettings) -> np.ndarray:
    """Rewards as the learner sees them, float32 (N, T): on Atari clipped to ±``settings.reward_clip``."""
    return clip_rewards(fragments["reward"], settings.reward_clip if is_atari(settings.env) else None)


def first_seen(fragments: Fragments, newest: dict[int, int]) -> dict[str, np.ndarray]:
    """The fragments that are newer than `newest` (environment → sequence) says of their environment; it is moved on.

    What is sampled several times, or comes twice, is so counted once.
    """
    names = zip(fragments["environment"].tolist(), fragments["sequence"].tolist(), strict=True)
    fresh = np.zeros(len(fragments["sequence"]), bool)
    for row, (environment, sequence) in enumerate(names):
        if sequence > newest.get(environment, -1):
            newest[environment] = sequence
            fresh[row] = True
    return {name: column[fresh] for name, column in fragments.items()}
