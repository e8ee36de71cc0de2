"""Updates in a row, of which each may be computed beside the targets of the next, or replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import replay_server as rs
from replay_server.learner.graph import GraphedLearner
from replay_server.learner.replay_learner import Prepared, ReplayLearner, Update
from replay_server.torch import DeviceBatch

AnyBatch = TypeVar("AnyBatch", rs.Batch, DeviceBatch)


def updates(
    learner: ReplayLearner, batches: Iterable[AnyBatch], ahead: bool = False, graph: bool = False
) -> Generator[tuple[AnyBatch, Update]]:
    """One learner step for each batch, in order.

    With `ahead` a second thread computes the targets of the next batch while this one's gradient is computed, and ends
    before a weight changes. So results do not depend on which thread is faster; targets are those of networks one step
    older, and a step is done when the next batch is there.

    With `graph`, and not `ahead`, an update is overwritten by the next one: see `GraphedLearner`.
    """
    if not ahead:
        replayed = GraphedLearner(learner) if graph else learner
        for batch in batches:
            yield batch, replayed.update(batch.columns, batch.weights)
        return
    waiting: tuple[AnyBatch, Prepared] | None = None
    with ThreadPoolExecutor(1, "targets") as beside:
        for batch in batches:
            prepared = beside.submit(learner.prepare, batch.columns, batch.weights)
            if waiting is not None:
                yield waiting[0], learner.step_on(waiting[1], before_change=prepared.exception)
            waiting = batch, prepared.result()
        if waiting is not None:
            yield waiting[0], learner.step_on(waiting[1])
