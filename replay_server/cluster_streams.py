"""Where a writer's steps and items go when the table is on shards: streams on one of them, until that leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .client_streams import ClientStreams
from .commands import ServedTable
from .driver import Operation
from .errors import ConnectionLost

if TYPE_CHECKING:
    from .cluster_known import Shard
    from .cluster_operations import ClusterOperations


class ShardStreams(ClientStreams):
    """A `replay_server.step_sink.StepSink` over one shard of a cluster; over another one when that leaves."""

    _client: Shard

    def __init__(self, cluster: ClusterOperations, shard: Shard, served: ServedTable) -> None:
        super().__init__(shard, served)
        self._cluster = cluster

    def leaves(self, refused: bool = False) -> Operation[bool]:
        """See `StepSink`."""
        self._check_process()
        if self._cluster._is_closed:
            return False
        if refused:
            return (yield from self._cluster._has_left(self._client))
        shards = yield from self._cluster._found()
        return self._client.leaving or self._client not in shards

    def open(self, streams: int, history: int) -> Operation[None]:
        """See `StepSink`."""
        while True:
            if (yield from self.leaves()):
                takers = yield from self._cluster._takers()
                self._client = takers[next(self._cluster._turns) % len(takers)]
            try:
                return (yield from super().open(streams, history))
            except ConnectionLost:
                self._check_goes_on()
                if not (yield from self.leaves(refused=True)):
                    raise
