"""Which arguments of `Cluster` go together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .cluster_replicas import MOST_REPLICAS
from .errors import ServerError
from .table import Table
from .topology import MOST_SHARDS

SHARD_TRANSPORTS = ("kernel", "dpdk")


def check_arguments(
    tables: Sequence[Table],
    shards: int,
    host: str,
    port: int,
    announced: str,
    restore: str | os.PathLike[str] | None,
    pin: bool | None,
    shard_of: str | None,
    take_over: int | None,
    replicas: int,
    transport: str,
    has_members: bool,
    begin: bool,
) -> None:
    """Raises ServerError where arguments of `Cluster` are out of bounds, or do not go together."""
    if transport not in SHARD_TRANSPORTS:
        raise ServerError(f"expected transport to be one of {', '.join(SHARD_TRANSPORTS)}, got {transport!r}")
    apart = host != "127.0.0.1" or pin is not None or replicas or shard_of is not None or has_members
    if transport == "dpdk" and apart:
        raise ServerError(
            'expected transport "dpdk" without host, pin, replicas, shard_of and members: each shard has a queue '
            'of the device and a processor, and clients are told the device\'s address, the setting "dpdk-address"'
        )
    if take_over is not None and (shard_of is None or shards != 1):
        raise ServerError("expected take_over with shard_of and shards=1: the number of a shard of that cluster")
    if not 1 <= shards <= MOST_SHARDS:
        raise ServerError(f"expected 1 to {MOST_SHARDS} shards, got {shards}")
    if restore not in (None, "latest", "checkpoint") and not Path(restore).is_file():
        raise ServerError(
            f'expected restore to be "latest", "checkpoint", the file of a checkpoint or None, got {restore!r}'
        )
    if not 0 <= replicas <= MOST_REPLICAS:
        raise ServerError(f"expected 0 to {MOST_REPLICAS} replicas, got {replicas}")
    if replicas and shard_of is not None:
        raise ServerError("expected replicas without shard_of: shards that join a cluster have none")
    if replicas and (fleeting := [table.name for table in tables if not table.durable]):
        raise ServerError(
            f"expected durable tables with replicas, and {fleeting[0]!r} has durable=False: no replica is sent it"
        )
    if announced in ("0.0.0.0", "::"):
        raise ServerError(f"expected announce, since clients cannot connect to {announced}: a name of this host")
    if shard_of is not None and (tables or restore not in (None, "latest")):
        raise ServerError("expected shard_of without tables and checkpoint: these are of the cluster joined")
    if begin and not has_members:
        raise ServerError("expected begin with members: without them a cluster is begun anyway, or joined")
    if has_members and (shard_of is not None or replicas or not port or restore not in (None, "latest")):
        raise ServerError("expected members with a port, and without shard_of, replicas and a checkpoint")
