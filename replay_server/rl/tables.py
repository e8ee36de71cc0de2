"""The replay table of an Ape-X run."""

from __future__ import annotations

import replay_server as rs
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import column, leaves
from replay_server.rl.settings import ApexSettings
from replay_server.tree import tree_of

STEP_COLUMN = "step_obs"
"""What a step has: the newest frame of a stack, or the whole of any other observation. Of an observation of several
leaves, each has a column of its own: step_obs/path, obs/path, next_obs/path."""


def push_rows_max(settings: ApexSettings) -> int:
    """The most transitions that one push of an actor can hold.

    It pushes at `push_every`, and one step of its environments can then add n windows for each environment.
    """
    return settings.push_every + settings.n_step * settings.envs_per_actor


def samples_per_insert_at(step: int, settings: ApexSettings) -> float | None:
    """How often a transition is sampled at learner step `step` (the first is 0); None = not limited."""
    if settings.samples_per_insert_end is None or step < settings.samples_per_insert_end_updates:
        return settings.samples_per_insert
    return settings.samples_per_insert_end


def apex_rate_limiter(settings: ApexSettings, samples_per_insert: float | None) -> rs.RateLimiter:
    """Keeps learning and acting in step.

    The error buffer is four times the larger of a batch and a push's worth of samples, so that neither side ever waits
    for the other to finish half a batch.
    """
    if samples_per_insert is None:
        return rs.MinSize(settings.min_size_to_sample)
    error_buffer = 4.0 * max(settings.batch_size, push_rows_max(settings) * samples_per_insert)
    return rs.SampleToInsertRatio(samples_per_insert, settings.min_size_to_sample, error_buffer)


def apex_table(settings: ApexSettings, spec: EnvironmentSpec) -> rs.Table:
    """One item is one n-step transition; see `replay_server.n_step_writer` for the meaning of its columns.

    Observations are kept once: actors append frames as steps, and `obs` and `next_obs` are windows over them, whose
    stacks are those that the actor saw (`replay_server.actors.transitions`).

    Its rate limiter is the one that a run begins with; see `apex_rate_limiter`.
    """
    steps, obs, next_obs = {}, {}, {}
    for path, leaf in leaves(spec.observation).items():
        source, stack = column(STEP_COLUMN, path), leaf.shape[0] if leaf.is_stack else None
        steps[source] = rs.Column(leaf.dtype, leaf.shape[1:] if leaf.is_stack else leaf.shape, step_only=True)
        obs[column("obs", path)] = rs.Window(source, length=stack)
        next_obs[column("next_obs", path)] = rs.Window(source, length=stack, offset=settings.n_step)
    return rs.Table(
        settings.table,
        capacity=settings.capacity,
        signature=tree_of(
            {
                **steps,
                **obs,
                "action": rs.Column(spec.action_dtype, spec.action_shape),
                "reward": rs.Column("float32"),
                **next_obs,
                "discount": rs.Column("float32"),
            }
        ),
        sampler=rs.Prioritized(priority_exponent=settings.priority_exponent),
        remover=rs.Fifo(),
        rate_limiter=apex_rate_limiter(settings, settings.samples_per_insert),
        seed=settings.seed,
        compression=settings.compression,
    )
