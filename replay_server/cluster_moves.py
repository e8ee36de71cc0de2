"""Slots of keys on their way from one shard to another, while clients go on.

What holds while a slot moves:
- Its owner answers for the keys that are still there, and sends clients to the target, by ASK, for those that are not.
  So a key that is made meanwhile is made at the target, and one walk over the owner's keys finds all that have to move.
- A key is read (DUMP), put down at the target (RESTORE) and removed. Meanwhile the owner holds it: requests for it wait
  (CLUSTER HOLD). So no client sees it on both sides, or on neither. The connection that holds it removes it, and a hold
  that ends before ends the connection.
- Weights are served by the owner to the last. Then they are held, copied, and the slot becomes the target's.
- Nothing is lost if the one that moves dies: the topology still says what moves, holds end with its connection, and
  the same move, asked for again, goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import redis

from .cluster_address import slot_of
from .errors import ReplayError
from .topology import Topology, slot_ranges, slots_text

T = TypeVar("T")

AT_ONCE = 100
"""Keys that are held together: requests for them wait for some milliseconds."""
_SCANNED = 1000
_PATIENCE_S = 30.0


class MoveRefused(ReplayError):
    """The slots cannot move; the message says what is in the way."""


def move(
    clients: Mapping[int, redis.Redis],
    topology: Topology,
    slots: Iterable[int],
    target: int,
    told: Callable[[str], None] = lambda _: None,
) -> Topology:
    """Moves slots, with the keys and weights in them, to a shard; the topology in which they are there.

    Args:
        clients: of every shard, by number.
        topology: as the shards have it.
        slots: those of them that are at the target already stay there.
        target: a shard's number.
        told: hears how far it is.

    Raises:
        MoveRefused: gradients wait in one of the slots, or the target leaves, or does not take a key; or somebody else
            changed the topology at the same time: then the same move, asked for again, goes on.
        ValueError: there is no such shard.
        redis.RedisError: a shard is away for longer than half a minute.
    """
    owners = topology.owners()
    topology.shard(target)
    if target in topology.leaving:
        raise MoveRefused(f"shard {target} leaves the cluster: move the slots to another one")
    going = {slot for slot in slots if owners[slot] != target}
    if not going:
        return topology
    sources = sorted({owners[slot] for slot in going})
    for source in sources:
        _refuse_gradients(clients[source], source, going)
    moving = topology.beginning(going, target)
    _tell(clients, moving, target)
    told(f"slots {slots_text(slot_ranges(going))} begin to move to shard {target}")
    for source in sources:
        count = _move_keys(clients[source], clients[target], going)
        told(f"shard {source}: {count:,} keys have moved")
    return _hand_over(clients, moving, going, sources, target)


def _tell(clients: Mapping[int, redis.Redis], topology: Topology, first: int) -> None:
    try:
        topology.push_to(clients, first)
    except redis.ResponseError as error:
        raise MoveRefused(f"the topology was changed at the same time ({error}): give the same move again") from error


def _named(client: redis.Redis, listing: str, slots: set[int]) -> list[bytes]:
    names: Any = client.execute_command(listing)
    return [name for name in names if slot_of(name) in slots]


def _refuse_gradients(source: redis.Redis, number: int, slots: set[int]) -> None:
    for name in _named(source, "GRAD.LIST", slots):
        raise MoveRefused(
            f"gradients have waited as {name.decode(errors='replace')!r} on shard {number}, and gradients do not move: "
            "GRAD.DEL them, or leave their slot where it is"
        )


def patiently(step: Callable[[], T]) -> T:
    """Does it again where a shard dies meanwhile, until that is back."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return step()
        except redis.ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


# ---- keys ------------------------------------------------------------------------------------------------------------


def _move_keys(source: redis.Redis, target: redis.Redis, slots: set[int]) -> int:
    count, cursor = 0, 0
    while True:
        found: Any = patiently(lambda at=cursor: source.scan(at, count=_SCANNED))
        cursor, keys = found
        leaving = [key for key in keys if slot_of(key) in slots]
        for first in range(0, len(leaving), AT_ONCE):
            put: set[bytes] = set()
            count += patiently(lambda keys=leaving[first : first + AT_ONCE], put=put: _carry(source, target, keys, put))
        if cursor == 0:
            return count


def _carry(source: redis.Redis, target: redis.Redis, keys: Sequence[bytes], put: set[bytes]) -> int:
    """Carries keys over; how many there were. `put` are those that were put down, by an attempt before this one too."""
    with _holding(source, keys) as ask:
        told = ask(*(words for key in keys for words in (("DUMP", key), ("PTTL", key))))
        there = list(zip(keys, told[::2], told[1::2], strict=True))
        _put_down(target, there, put)
        ask(*(("DEL", key) for key in keys))
    return sum(value is not None for _, value, _ in there)


@contextmanager
def _holding(source: redis.Redis, names: Sequence[bytes]) -> Iterator[Callable[..., list[Any]]]:
    """Holds keys: a function that sends requests over the connection that holds them, and returns the replies.

    That is no client of redis-py, which would send a request again over another connection.
    """
    connection = redis.Connection(**source.get_connection_kwargs())

    def ask(*requests: Sequence[Any]) -> list[Any]:
        connection.send_packed_command(connection.pack_commands(requests))
        return [connection.read_response() for _ in requests]

    try:
        connection.connect()
        ask(("CLUSTER", "HOLD", *names))
        yield ask
        ask(("CLUSTER", "RELEASE"))
    finally:
        connection.disconnect()


def _put_down(target: redis.Redis, there: Sequence[tuple[bytes, Any, Any]], put: set[bytes]) -> None:
    """Makes the target's keys what the owner's are. Those that were `put` down before, and have gone, go there too."""
    with target.pipeline(transaction=False) as pipe:
        for key, value, left_ms in there:
            if value is not None:
                pipe.execute_command("ASKING")
                pipe.execute_command("RESTORE", key, max(left_ms, 0), value, "REPLACE")
                put.add(key)
            elif key in put:
                pipe.execute_command("ASKING")
                pipe.execute_command("DEL", key)
        replies = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise MoveRefused(f"the target does not take a key, one of {there[0][0]!r} and those behind it: {reply}")


# ---- the end ---------------------------------------------------------------------------------------------------------


def _hand_over(
    clients: Mapping[int, redis.Redis], moving: Topology, slots: set[int], sources: Sequence[int], target: int
) -> Topology:
    """The slots become the target's, with their weights, which nobody publishes meanwhile."""
    arrived = moving.arrived(slots)
    with ExitStack() as stack:
        for source in sources:
            _refuse_gradients(clients[source], source, slots)
            if names := _named(clients[source], "WEIGHTS.LIST", slots):
                _copy_weights(stack.enter_context(_holding(clients[source], names)), clients[target], names)
        _tell(clients, arrived, target)
    return arrived


def _copy_weights(ask: Callable[..., list[Any]], target: redis.Redis, names: Sequence[bytes]) -> None:
    for name in names:
        found = ask(("WEIGHTS.GET", name))[0]
        with target.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command("WEIGHTS.PUBLISH", name, *found)
            reply = pipe.execute(raise_on_error=False)[1]
        # From an earlier attempt the target may have that version, or a later one.
        if isinstance(reply, Exception) and not str(reply).startswith("STALEVERSION"):
            raise MoveRefused(f"the target does not take the weights {name!r}: {reply}") from reply
