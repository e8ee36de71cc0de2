"""A shard's way to another process as a whole: items with their ids, keys, weights, gradients, and all counters.

What holds:
- The new process has the shard's number, which is in ids, and an id of its own in the topology.
- Until `change_places`, the shard serves as ever, and the new process is a replica of it. A failure changes nothing.
- FAILOVER holds writes until the new process has all that was acknowledged. Only one of the two takes writes at any
  time. So no item is lost, and none is there twice.
- From then on the former shard sends clients to the new one, before the topology says so. What is not repeatable and
  was refused has not been done.
- The former shard keeps what it had until its supervisor hears of the topology.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgpack
import redis

from .cluster_shards import tables_of
from .errors import ReplayError
from .table import Table
from .topology import Topology

FAILOVER_S = 10.0
"""For which writes wait at most, until the new process has all changes."""
_LOOK_S = 0.02


class TakeOverRefused(ReplayError):
    """A shard stays where it is; the message says what is in the way."""


def follow(
    old: redis.Redis, new: redis.Redis, topology: Topology, number: int, password: str | None, patience_s: float
) -> None:
    """Makes the new process a replica of a shard; returns when it has all that the shard had a moment ago.

    Args:
        old: a client of the shard.
        new: of the new process, which has the shard's number.
        topology: as the shards have it.
        number: the shard's.
        password: of the cluster.
        patience_s: seconds in which the copy must begin, and in which what came meanwhile must follow.

    Raises:
        TakeOverRefused: the shard leaves, has replicas, has a table of which no copy is made, sends no copy, or changes
            faster than that follows.
    """
    shard = topology.shard(number)
    if number in topology.leaving:
        raise TakeOverRefused(f"shard {number} leaves the cluster, so it is not taken over")
    if shard.replicas:
        raise TakeOverRefused(
            f"shard {number} has replicas, and its supervisor would promote one: start that without --replicas first"
        )
    _refuse_undurable(old, number)
    if password:
        for client in (old, new):  # the former shard follows the new one afterwards
            client.config_set("masterauth", password)
    new.execute_command(*topology.arguments(number))
    new.execute_command("REPLICAOF", shard.host, shard.port)
    until, state = time.monotonic() + patience_s, dict[str, Any]()
    while state.get("master_link_status") != "up":
        if time.monotonic() > until:
            raise TakeOverRefused(
                f"shard {number} at {shard.host}:{shard.port} did not begin to send a copy within {patience_s:g} s: "
                "the new server's log says why"
            )
        time.sleep(_LOOK_S)
        state = new.info("replication")
        if state["master_sync_in_progress"]:
            until = time.monotonic() + patience_s
    until, wanted = time.monotonic() + patience_s, old.info("replication")["master_repl_offset"]
    while new.info("replication")["slave_repl_offset"] < wanted:
        if time.monotonic() > until:
            raise TakeOverRefused(
                f"shard {number} is further than its copy, which has not caught up within {patience_s:g} s: try again "
                "when fewer changes come"
            )
        time.sleep(_LOOK_S)


def change_places(old: redis.Redis, new: redis.Redis, number: int, host: str, port: int) -> None:
    """Makes the new process, which the shard knows by this address, the primary, and the former one its replica.

    Raises:
        TakeOverRefused: it could not have all changes in time. The shard is what it was.
        redis.RedisError: one of them was lost before that was settled.
    """
    _refuse_undurable(old, number)
    until = time.monotonic() + 2 * FAILOVER_S
    old.execute_command("FAILOVER", "TO", host, port, "TIMEOUT", round(FAILOVER_S * 1000))
    try:
        while True:
            state = old.info("replication")
            is_settled = state["master_failover_state"] == "no-failover"  # and whoever waited has been answered
            if is_settled and state["role"] == "slave" and _is_primary(new):
                return
            if is_settled and state["role"] == "master":
                raise TakeOverRefused(
                    f"shard {number} keeps its part: the new server did not have all changes within {FAILOVER_S:g} s, "
                    "or refused them; the servers' logs say why"
                )
            if time.monotonic() > until:
                raise redis.TimeoutError(f"shard {number} cannot reach the new server at {host}:{port}")
            time.sleep(_LOOK_S)
    except redis.RedisError:
        with contextlib.suppress(redis.RedisError):
            if _is_primary(new):  # the former one was lost just then
                return
        with contextlib.suppress(redis.RedisError):  # writes wait for nobody there
            old.execute_command("FAILOVER", "ABORT")
        raise


def _is_primary(server: redis.Redis) -> bool:
    return server.info("replication")["role"] == "master"


def _refuse_undurable(old: redis.Redis, number: int) -> None:
    for name in tables_of(old):
        spec: Any = old.execute_command("REPLAY.SPEC", name)
        if not Table.from_spec(msgpack.unpackb(spec), name).durable:
            raise TakeOverRefused(
                f"shard {number} has table {name!r} with durable=False, which no replica is sent: drop it, or create "
                "it again without that"
            )
