"""The asyncio client of many shards, which `replay_server.aio.Client` makes of the URL of a cluster."""

from __future__ import annotations

from typing import Any

from .aio import Client
from .cluster_operations import ClusterOperations


class AsyncClusterClient(ClusterOperations, Client):
    """`replay_server.aio.Client` of a cluster."""

    @property
    def redis(self) -> Any:
        """A redis-py asyncio `RedisCluster` of the same servers, which must know that they are a cluster."""
        if self._redis is None:
            import redis.asyncio.cluster

            first, *others = self._address.servers
            nodes = [redis.asyncio.cluster.ClusterNode(other.host, other.port) for other in others]
            options = {**self._redis_options(), "startup_nodes": nodes}
            self._redis = redis.asyncio.cluster.RedisCluster.from_url(first.url, **options)
        return self._redis

    async def close(self) -> None:
        """Closes every connection; a command that waits in another task raises `ConnectionLost`."""
        self._is_closed = True
        for shard in self._shards:
            shard._pool.close()
        if self._redis is not None:
            await self._redis.aclose()
