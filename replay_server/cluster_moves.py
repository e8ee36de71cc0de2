"""Slots of keys on their way from one shard to another, while clients go on.

What holds while a slot moves:
- Its owner answers for the keys that are still there, and sends clients to the target, by ASK, for those that are not.
  So a key that is made meanwhile is made at the target, and one walk over the owner's keys finds all that have to move.
- A key is read (DUMP), put down at the target (RESTORE) and removed. Meanwhile the owner holds it: requests for it wait
  (CLUSTER HOLD). So no client sees it on both sides, or on neither. The connection that holds it removes it, and a hold
  that ends before ends the connection.
- Weights are served by the owner to the last. Then they are held, copied, and the slot becomes the target's.
- What replicas have of a key they have to the end: before it is removed, those of the target have it, and those of the
  owner know that it is removed before the hold ends. With fewer of them the move is refused.
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
_COPIED_WITHIN_MS = 5_000
"""What replicas may take to have what their shard was told, while requests wait."""


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
        MoveRefused: gradients wait in one of the slots, or the target leaves, or does not take a key; or replicas do
            not keep up, or somebody else changed the topology at the same time: then the same move, asked for again,
            goes on.
        ValueError: there is no such shard.
        redis.RedisError: a shard is away for longer than half a minute.
    """
    topology.shard(target)
    if target in topology.leaving:
        raise MoveRefused(f"shard {target} leaves the cluster: move the slots to another one")
    wanted = set(slots)
    for begun in topology.moves:  # interrupted before: some of their keys are at the target of then
        first, last = begun.slots
        if begun.target != target and (there := wanted.intersection(range(first, last + 1))):
            topology = move(clients, topology, there, begun.target, told)
    owners = topology.owners()
    going = {slot for slot in wanted if owners[slot] != target}
    if not going:
        return topology
    sources = sorted({owners[slot] for slot in going})
    for source in sources:
        _refuse_gradients(clients[source], source, going)
    moving = topology.beginning(going, target)
    _tell(clients, moving, target)
    told(f"slots {slots_text(slot_ranges(going))} begin to move to shard {target}")
    for source in sources:
        replicas = len(moving.shard(source).replicas), len(moving.shard(target).replicas)
        count = _move_keys(clients[source], clients[target], going, replicas)
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


def _move_keys(source: redis.Redis, target: redis.Redis, slots: set[int], replicas: tuple[int, int]) -> int:
    """Moves all keys that the source has; how many there were. `replicas` are how many source and target have.

    A cursor is of one process alone: the walk of a shard that dies meanwhile may pass keys over when it is back. So it
    is begun again until one process was walked over."""
    count = 0
    while True:
        process = patiently(lambda: _process(source))
        count += _walk(source, target, slots, replicas)
        if patiently(lambda: _process(source)) == process:
            return count


def _process(source: redis.Redis) -> str:
    told: Any = source.info("server")
    return told["run_id"]


def _walk(source: redis.Redis, target: redis.Redis, slots: set[int], replicas: tuple[int, int]) -> int:
    count, cursor = 0, 0
    while True:
        found: Any = patiently(lambda at=cursor: source.scan(at, count=_SCANNED))
        cursor, keys = found
        leaving = [key for key in keys if slot_of(key) in slots]
        for first in range(0, len(leaving), AT_ONCE):
            put: set[bytes] = set()
            keys = leaving[first : first + AT_ONCE]
            count += patiently(lambda keys=keys, put=put: _carry(source, target, keys, put, replicas))
        if cursor == 0:
            return count


def _carry(
    source: redis.Redis, target: redis.Redis, keys: Sequence[bytes], put: set[bytes], replicas: tuple[int, int]
) -> int:
    """Carries keys over; how many there were. `put` are those that were put down, by an attempt before this one too."""
    with _holding(source, keys) as ask:
        told = ask(*(words for key in keys for words in (("DUMP", key), ("PTTL", key))))
        there = list(zip(keys, told[::2], told[1::2], strict=True))
        _put_down(target, there, put, replicas[1])
        put.clear()  # from now on a key that has gone may be one that was removed here, though the reply was lost
        ask(*(("DEL", key) for key in keys))
        if replicas[0]:
            _check_copied(ask(_wait(replicas[0]))[0], replicas[0], "the shard that it moves from")
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


def _wait(replicas: int) -> tuple[str, int, int]:
    """The request that replies when so many replicas have what its connection has written, or with fewer."""
    return "WAIT", replicas, _COPIED_WITHIN_MS


def _check_copied(copies: Any, replicas: int, shard: str) -> None:
    if isinstance(copies, Exception) or copies < replicas:
        raise MoveRefused(
            f"expected {replicas} replicas of {shard} to have a key within {_COPIED_WITHIN_MS / 1000:g} s, and got "
            f"{copies}: give the same move again when they keep up"
        )


def _put_down(target: redis.Redis, there: Sequence[tuple[bytes, Any, Any]], put: set[bytes], replicas: int) -> None:
    """Makes the target's keys what the owner's are, on its replicas as well. Those that were `put` down before, and
    have gone, go there too."""
    with target.pipeline(transaction=False) as pipe:
        for key, value, left_ms in there:
            if value is not None:
                pipe.execute_command("ASKING")
                pipe.execute_command("RESTORE", key, max(left_ms, 0), value, "REPLACE")
                put.add(key)
            elif key in put:
                pipe.execute_command("ASKING")
                pipe.execute_command("DEL", key)
        if replicas and len(pipe):
            pipe.execute_command(*_wait(replicas))
        replies = pipe.execute(raise_on_error=False)
    copies = replies.pop() if replicas and replies else replicas
    try:
        for reply in replies:
            if isinstance(reply, Exception):
                raise MoveRefused(
                    f"the target does not take a key, one of {there[0][0]!r} and those behind it: {reply}"
                )
        _check_copied(copies, replicas, "the target")
    except MoveRefused:  # a key that is deleted at the owner from now on is not to be found at the target
        with target.pipeline(transaction=False) as pipe:
            for key, value, _ in there:
                if value is not None:
                    pipe.execute_command("ASKING")
                    pipe.execute_command("DEL", key)
            pipe.execute(raise_on_error=False)
        raise


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
                ask, replicas = stack.enter_context(_holding(clients[source], names)), arrived.shard(target).replicas
                _copy_weights(ask, clients[target], names, len(replicas))
        _tell(clients, arrived, target)
    return arrived


def _copy_weights(ask: Callable[..., list[Any]], target: redis.Redis, names: Sequence[bytes], replicas: int) -> None:
    for name in names:
        found = ask(("WEIGHTS.GET", name))[0]
        with target.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command("WEIGHTS.PUBLISH", name, *found)
            if replicas:
                pipe.execute_command(*_wait(replicas))
            _, reply, *copies = pipe.execute(raise_on_error=False)
        # From an earlier attempt the target may have that version, or a later one.
        if isinstance(reply, Exception) and not str(reply).startswith("STALEVERSION"):
            raise MoveRefused(f"the target does not take the weights {name!r}: {reply}") from reply
        for each in copies:
            _check_copied(each, replicas, "the target")
