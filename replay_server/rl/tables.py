"""The replay table of an Ape-X run."""

from __future__ import annotations

import replay_server as rs
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.settings import ApexSettings


def push_rows_max(settings: ApexSettings) -> int:
    """The most transitions that one push of an actor can hold.

    It pushes at `push_every`, and one step of its environments can then add n windows for each environment.
    """
    return settings.push_every + settings.n_step * settings.envs_per_actor


def apex_table(settings: ApexSettings, spec: EnvironmentSpec) -> rs.Table:
    """One item is one n-step transition; see `replay_server.rl.n_step` for the meaning of its columns.

    With `samples_per_insert` the limiter keeps learning and acting in step. Its error buffer is four times the
    larger of a batch and a push's worth of samples, so that neither side ever waits for the other to finish half
    a batch.
    """
    observation = rs.Column(spec.observation_dtype, spec.observation_shape)
    if settings.samples_per_insert is None:
        rate_limiter = rs.MinSize(settings.min_size_to_sample)
    else:
        ratio = settings.samples_per_insert
        error_buffer = 4.0 * max(settings.batch_size, push_rows_max(settings) * ratio)
        rate_limiter = rs.SampleToInsertRatio(ratio, settings.min_size_to_sample, error_buffer)
    return rs.Table(
        settings.table,
        capacity=settings.capacity,
        signature={
            "obs": observation,
            "action": rs.Column("int64"),
            "reward": rs.Column("float32"),
            "next_obs": observation,
            "discount": rs.Column("float32"),
        },
        sampler=rs.Prioritized(priority_exponent=settings.priority_exponent),
        remover=rs.Fifo(),
        rate_limiter=rate_limiter,
        seed=settings.seed,
    )
