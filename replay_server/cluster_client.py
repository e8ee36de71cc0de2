"""The blocking client of many shards, which `replay_server.Client` makes of the URL of a cluster."""

from __future__ import annotations

from typing import Any

from .client import Client
from .cluster_operations import ClusterOperations


class ClusterClient(ClusterOperations, Client):
    """`replay_server.Client` of a cluster."""

    @property
    def redis(self) -> Any:
        """A redis-py `RedisCluster` of the same servers, which must know that they are a cluster."""
        if self._redis is None:
            import redis.cluster

            first, *others = self._address.servers
            nodes = [redis.cluster.ClusterNode(other.host, other.port) for other in others]
            options = {**self._redis_options(), "startup_nodes": nodes}
            self._redis = redis.cluster.RedisCluster.from_url(first.url, **options)
        return self._redis

    def close(self) -> None:
        """Closes every connection; a command that waits in another thread raises `ConnectionLost` at once."""
        self._is_closed = True
        for shard in self._shards:
            shard._pool.close()
        if self._redis is not None:
            self._redis.close()
