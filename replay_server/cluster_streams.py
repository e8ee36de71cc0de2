"""Where a writer's steps and items go when the table is on shards: streams on one of them, until that leaves, or
until others have fewer streams.

A lone writer would otherwise fill its shard alone, and what the other shards hold would never grow old and leave. So a
writer that names no shard goes, now and then, where the fewest streams are beside its own: where there are as many
streams on every shard all stay, and where there are fewer or more they take turns. It sends the steps again that its
next items can show, as when a shard leaves. Two kinds of tables keep it where it is: those that are sampled in order,
for the order of what it adds, and those whose rate limiter may hold it back, since a shard without a producer would
hold samples back.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np

from .client_streams import ClientStreams
from .cluster_queue import has_order
from .commands import ServedTable
from .driver import Operation
from .errors import ConnectionLost
from .exchanges import Exchanges
from .selectors import MinSize

if TYPE_CHECKING:
    from .cluster_known import Shard
    from .cluster_operations import ClusterOperations


MOVE_EVERY_S = 30.0
"""About how often a writer looks whether other shards have fewer streams: a move sends some steps twice."""
MOVE_PATIENCE_S = 0.25
"""How long it waits for their answers. Its call waits as long, and without an answer it stays where it is."""


class ShardStreams(ClientStreams):
    """A `replay_server.step_sink.StepSink` over one shard of a cluster; over another one when that leaves."""

    _client: Shard

    def __init__(self, cluster: ClusterOperations, shard: Shard, served: ServedTable, is_placed: bool) -> None:
        super().__init__(shard, served)
        self._cluster = cluster
        table = served.table
        self._stays = is_placed or has_order(table) or not isinstance(table.rate_limiter, MinSize)
        self._is_chosen = is_placed
        self.streams = 0
        self._next: Shard | None = None
        """Where it is on its way to."""
        self._wait()

    def _wait(self) -> None:
        """Not all writers of a job look at the same time."""
        self._look_at = time.monotonic() + MOVE_EVERY_S * random.uniform(0.5, 1.5)

    @property
    def table_name(self) -> str:
        return self._served.table.name

    @property
    def shard(self) -> Shard:
        """Where its streams are, or will be."""
        return self._client

    def leaves(self, refused: bool = False) -> Operation[bool]:
        """See `StepSink`."""
        self._check_process()
        if self._cluster._is_closed:
            return False
        if refused:
            if self._connection is None:  # it has given its part away
                self._next = yield from self._client._succeeded()
            return self._next is not None or (yield from self._cluster._has_left(self._client))
        shards = yield from self._cluster._found()
        if self._client not in shards:
            self._next = self._cluster._of_number(self._client.number)  # it is elsewhere by now
            return True
        if self._client.leaving:
            return True
        return (yield from self._moves())

    def _moves(self) -> Operation[bool]:
        """Whether it goes to a shard with fewer streams."""
        if self._stays or self._connection is None or time.monotonic() < self._look_at:
            return False
        self._wait()
        found = yield from self._cluster._least_written(self.table_name, self._client, self.streams, MOVE_PATIENCE_S)
        self._next = None if found is self._client else found
        return self._next is not None

    def open(self, streams: int, history: int) -> Operation[None]:
        """See `StepSink`."""
        self._check_process()
        self.streams = streams
        while True:
            if self._next is not None:
                self._client, self._next = self._next, None
            elif not self._is_chosen or (yield from self.leaves()):
                self._client = yield from self._cluster._least_written(self.table_name)
            self._is_chosen = True
            try:
                return (yield from super().open(streams, history))
            except ConnectionLost:
                self._check_goes_on()
                if not (yield from self.leaves(refused=True)):
                    raise
            finally:
                if self._connection is None:
                    self._cluster._setting_out.discard(self)

    def _connected(self) -> Operation[Exchanges]:
        self._cluster._setting_out.add(self)
        return (yield from super()._connected())

    def send_steps(self, streams: np.ndarray, flags: np.ndarray, columns: dict[str, np.ndarray]) -> Operation[None]:
        """See `StepSink`."""
        yield from super().send_steps(streams, flags, columns)
        self._cluster._setting_out.discard(self)

    def close(self) -> None:
        """See `StepSink`."""
        super().close()
        self._cluster._setting_out.discard(self)
