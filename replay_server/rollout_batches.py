"""What calls of `rs.Rollouts` return: leases, segments of samples, and batches of tasks and of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Lease:
    """The right to make one sample, or to do a task on samples that are there. It can be pickled, and used by another
    process than that which leased it.

    Attributes:
        group: number of the group, from 0 on; all samples of a group are of one prompt, which this number chooses.
        index: of the sample in its group, 0 to group_size - 1; of a whole group: 0.
        batch: version of the policy that the learner will have when it trains on it. With a max_delay it may also be
            up to max_delay higher, or lower.
        policy_version: with which the sample was leased to be made; of a whole group: the smallest.
        place: number of the sample over all groups; of a whole group: that of its first one.
        holder: by which the server knows the lease.
        task: name of the task; empty: the sample is to be made.
        segments: how many former holders of the lease appended, and left to be continued.
    """

    group: int
    index: int
    batch: int
    policy_version: int
    place: int
    holder: bytes
    task: str = ""
    segments: int = 0


@dataclass(eq=False)
class Segment:
    """Rows that a holder of a lease appended to its sample.

    Attributes:
        policy_version: that made them.
        data: column name → array (rows, *column.shape[1:]), in the form of the signature.
    """

    policy_version: int
    data: dict[str, Any]


@dataclass(eq=False)
class RolloutBatch:
    """All samples of a batch, group by group: those of its first group first. N = groups_per_batch · group_size.

    Attributes:
        policy_version: of the learner that trains on it.
        data: column name → array (N, *column.shape), or `Ragged`, in the form of the signature. A column of scalars
            has a row for each group as `.reshape(-1, group_size)`.
        groups: int64 (N,), the number of each sample's group.
        policy_versions: int64 (N,), the smallest version that made each: at least policy_version - max_staleness. It is
            that of the lease, unless segments were appended.
        newest_versions: int64 (N,), the largest.
    """

    policy_version: int
    data: dict[str, Any]
    groups: np.ndarray
    policy_versions: np.ndarray
    newest_versions: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def staleness(self) -> int:
        """How many versions the oldest sample is behind the learner's policy."""
        return self.policy_version - int(self.policy_versions.min())


@dataclass(eq=False)
class TaskBatch:
    """Samples that a task works on, in the order of their numbers. N = samples; of whole groups, all of each group.

    Attributes:
        task: its name.
        leases: of each sample, or of each group if the task has whole groups: what `renew` and `give_back` take.
        data: the columns that the task reads: name → array (N, *column.shape), or `Ragged`.
        groups: int64 (N,), the number of each sample's group.
        policy_versions: int64 (N,), the smallest version that made each.
    """

    task: str
    leases: list[Lease]
    data: dict[str, Any]
    groups: np.ndarray
    policy_versions: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)
