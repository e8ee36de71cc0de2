"""The circular buffer of off-policy learners: N batches of fragments, each traversed K times, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass

import replay_server as rs
from replay_server.rl.fragments import fragment_table
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec


@dataclass
class CircularBufferSettings(PolicySettings):
    """Settings of a learner whose actors go on while it learns."""

    buffer_batches: int = 4
    """N: batches that the circular buffer holds."""
    passes: int = 1
    """K: how often each is traversed."""


def circular_buffer(name: str, settings: CircularBufferSettings, spec: PolicySpec, batch_fragments: int) -> rs.Table:
    """The table of N batches of `batch_fragments` fragments, each of which is sampled K times, the oldest first."""
    return fragment_table(name, settings, spec, settings.buffer_batches * batch_fragments, passes=settings.passes)
