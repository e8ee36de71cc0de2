"""A replay server for distributed reinforcement learning.

`Buffer` in process, `Server` in a child process, `Client` by URL: one set of tables, one set of methods.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from .batch import Batch
from .client import Client
from .errors import (
    BatchNotTaken,
    ConnectionLost,
    GradientNotWaiting,
    LeaseExpired,
    LimitExceeded,
    NotPrimary,
    PriorityError,
    ReplayError,
    SchemaError,
    ServerError,
    StaleVersion,
    TableClosed,
    TableNotFound,
    Timeout,
)
from .gradients import Gradients
from .ragged import Ragged
from .rollout_batches import Lease, RolloutBatch, Segment, TaskBatch
from .rollout_tasks import Task
from .rollouts import Rollouts
from .sampler import Sampler
from .selectors import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Uniform,
)
from .server import Server
from .spaces import signature_of
from .table import Column, Table, Window
from .updater import Updater

if TYPE_CHECKING:
    from . import aio
    from .buffer import Buffer
    from .cluster import Cluster
    from .sum_tree import SumTree

try:
    __version__ = importlib.metadata.version("replay-server")
except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Batch",
    "BatchNotTaken",
    "Buffer",
    "Client",
    "Cluster",
    "Column",
    "ConnectionLost",
    "Fifo",
    "GradientNotWaiting",
    "Gradients",
    "Lease",
    "LeaseExpired",
    "Lifo",
    "LimitExceeded",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "NotPrimary",
    "Prioritized",
    "PriorityError",
    "Queue",
    "Ragged",
    "ReplayError",
    "RolloutBatch",
    "Rollouts",
    "SampleToInsertRatio",
    "Sampler",
    "SchemaError",
    "Segment",
    "Server",
    "ServerError",
    "StaleVersion",
    "SumTree",
    "Table",
    "TableClosed",
    "TableNotFound",
    "Task",
    "TaskBatch",
    "Timeout",
    "Uniform",
    "Updater",
    "Window",
    "aio",
    "signature_of",
]


def __getattr__(name: str) -> Any:
    """What needs the native core, redis-py or asyncio is imported when first asked for: a client does without."""
    if name == "Buffer":
        value = importlib.import_module(".buffer", __name__).Buffer
    elif name == "SumTree":
        value = importlib.import_module(".sum_tree", __name__).SumTree
    elif name == "Cluster":
        value = importlib.import_module(".cluster", __name__).Cluster
    elif name == "aio":
        value = importlib.import_module(".aio", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
