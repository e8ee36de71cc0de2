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


def apex_table(settings: ApexSettings, spec: EnvironmentSpec) -> rs.Table:
    """One item is one n-step transition; see `replay_server.n_step_writer` for the meaning of its columns.

    Observations are kept once: actors append frames as steps, and `obs` and `next_obs` are windows over them, whose
    stacks are those that the actor saw (`replay_server.actors.transitions`).

    With `samples_per_insert` the limiter keeps learning and acting in step. Its error buffer is four times the
    larger of a batch and a push's worth of samples, so that neither side ever waits for the other to finish half
    a batch.
    """
    steps, obs, next_obs = {}, {}, {}
    for path, leaf in leaves(spec.observation).items():
        source, stack = column(STEP_COLUMN, path), leaf.shape[0] if leaf.is_stack else None
        steps[source] = rs.Column(leaf.dtype, leaf.shape[1:] if leaf.is_stack else leaf.shape, step_only=True)
        obs[column("obs", path)] = rs.Window(source, length=stack)
        next_obs[column("next_obs", path)] = rs.Window(source, length=stack, offset=settings.n_step)
    if settings.samples_per_insert is None:
        rate_limiter = rs.MinSize(settings.min_size_to_sample)
    else:
        ratio = settings.samples_per_insert
        error_buffer = 4.0 * max(settings.batch_size, push_rows_max(settings) * ratio)
        rate_limiter = rs.SampleToInsertRatio(ratio, settings.min_size_to_sample, error_buffer)
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
        rate_limiter=rate_limiter,
        seed=settings.seed,
        compression=settings.compression,
    )
