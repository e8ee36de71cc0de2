"""A shard's way out of a cluster that runs, and what becomes of what it holds.

What holds:
- Its number stays in the topology, as gone. Ids carry it, so no other shard has it later, and an id of an item that has
  left with a shard never names another item.
- Slots of keys move to the others, with what is in them (`cluster_moves`).
- Items stay where they are. First the topology says that the shard leaves: clients notice within about a second, add to
  the others, and take their writers there. Then the shard's tables are closed. What a client sends there that has not
  noticed is refused, and it takes that elsewhere. So what is counted after that is all that was acknowledged there.
  Rate limiters there hold samples back no more: nothing would let them go on.
- The tables are looked at twice, with a pause: what was being stored when they were closed is there by then. The shard
  goes when they are empty, or when the caller gives up what they hold.
- Until it has gone, a failure undoes: tables are opened again, and then the shard stays. Slots that have moved stay
  moved.
- If the one who does this dies, or its tables cannot be opened, the topology says that the shard leaves. The same again
  goes on. What rate limiters were before is then what those of another shard are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .cluster_moves import move, patiently
from .cluster_shards import PATIENCE_S, newest_of, place_of, tables_of
from .cluster_tables import is_boundless, leaving_limiter
from .codec import pack
from .errors import ReplayError
from .selectors import RateLimiter
from .table import Table, changes_map
from .topology import Topology, slots_of

NOTICED_S = 1.5
"""After which clients know of a change: they ask once a second."""
_LOOK_S = 0.1
_ATTEMPTS = 20
"""To change a topology that others change at the same time."""


class LeaveRefused(ReplayError):
    """A shard does not leave; the message says what is in the way."""


class Forgotten(NamedTuple):
    """What is left when a shard has been taken out.

    Attributes:
        topology: without it.
        items: how many went with it, by table; None: not known, since it did not answer.
    """

    topology: Topology
    items: dict[str, int] | None


def number_of(topology: Topology, shard: int | str) -> int:
    """The number of a shard that is named by it, or by its address: host:port, redis://host:port.

    Raises:
        ValueError: there is no such shard.
    """
    if isinstance(shard, int) or shard.isdigit():
        return topology.shard(int(shard)).number
    place = shard.rpartition("://")[2].rpartition("@")[2].rstrip("/")
    for each in topology.shards:
        if place_of(each) == place:
            return each.number
    places = ", ".join(map(place_of, topology.shards))
    raise ValueError(f"expected the number or the address of a shard, one of {places}, got {place!r}")


def forget(
    clients: Mapping[int, redis.Redis],
    topology: Topology,
    number: int,
    *,
    timeout: float = 60.0,
    lose_items: bool = False,
    dead: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> Forgotten:
    """Takes a shard out for good. The process itself goes on, for who runs it to stop.

    Args:
        clients: of every shard, by number.
        topology: as the shards have it.
        number: the shard's.
        timeout: seconds in which its items must have left.
        lose_items: items that it holds are given up, and not waited for.
        dead: it does not answer, and what it holds is lost: items, keys, weights, gradients.
        told: hears how far it is.

    Raises:
        LeaveRefused: it is the last shard, holds items, answers though it is said to be dead, or the other way around;
            or somebody else changes the topology all the time.
        MoveRefused: a slot of keys does not move.
        ValueError: there is no such shard.
        redis.RedisError: a shard is away for longer than half a minute.
    """
    topology.shard(number)
    others = [shard.number for shard in topology.shards if shard.number not in (number, *topology.leaving)]
    if not others:
        raise LeaveRefused(f"shard {number} is the last one that stays: stop the cluster instead")
    there = {each: client for each, client in clients.items() if _answers(client)}
    targets = [each for each in others if each in there]
    if not targets:
        raise LeaveRefused(f"no other shard answers, so none can take the slots of shard {number}: start them again")

    def leave(now: Topology) -> Topology:
        for each in now.moves:
            if each.target == number or (each.source == number and each.target not in there):
                raise LeaveRefused(
                    f"slots move from shard {each.source} to shard {each.target}: finish that move first"
                )
        return now.leaves(number)

    def gone(now: Topology) -> Topology:
        slots, moves = now.shard(number).slots, any(number in (each.source, each.target) for each in now.moves)
        if not dead and (slots or moves):
            raise LeaveRefused(f"slots of keys came to shard {number} meanwhile, so it stays: give the command again")
        return now.without([number])

    if dead:
        if number in there:
            raise LeaveRefused(f"shard {number} answers, so it is not dead: without that word its keys are moved")
        return Forgotten(_changed(there, topology, gone), None)
    if number not in there:
        raise LeaveRefused(
            f"shard {number} does not answer: start it again; or say that it is dead (--dead, dead=True), and what it "
            "holds is lost"
        )
    leave(topology)  # a refusal changes nothing
    tables = _Tables(there[number], number, there[targets[0]])
    try:
        topology = _changed(there, topology, leave)
        told(f"topology {topology.version}: clients add nothing to shard {number} any more")
        topology = _slots_moved(there, topology, number, targets, told)
        items = tables.left(timeout, lose_items)
        topology = _changed(there, topology, gone)
    except BaseException:
        with contextlib.suppress(redis.RedisError, ReplayError, ValueError):
            _undo(there, topology, number, tables)
        raise
    with contextlib.suppress(redis.RedisError):
        items = tables.sizes()
    if not lose_items and any(items.values()):
        raise LeaveRefused(
            f"shard {number} has left, and {_counted(items)} were lost with it: somebody opened a table, or made one, "
            "in the last moment"
        )
    return Forgotten(topology, items)


def leaving_reason(number: int) -> str:
    """Why a table of a shard that leaves is closed."""
    return f"shard {number} leaves the cluster"


def _undo(clients: Mapping[int, redis.Redis], topology: Topology, number: int, tables: _Tables) -> None:
    """The shard stays, unless it has gone by now: clients add there again when its tables are open."""
    topology = newest_of(clients.values(), topology)
    if number not in topology.gone:
        tables.open()
        _changed(clients, topology, lambda now: now.leaves(number, leaving=False))


def _answers(client: redis.Redis) -> bool:
    patience = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S, "retry": Retry(NoBackoff(), 0)}
    connection = redis.Connection(**{**client.get_connection_kwargs(), **patience})
    try:
        connection.connect()
        connection.send_command("PING")
        connection.read_response()
        return True
    except redis.AuthenticationError:
        raise
    except (redis.ConnectionError, redis.TimeoutError):
        return False
    finally:
        connection.disconnect()


def _changed(
    clients: Mapping[int, redis.Redis], topology: Topology, change: Callable[[Topology], Topology]
) -> Topology:
    """Tells the shards what a change makes of the topology, and of the newest one if somebody else has changed it. If
    that was at the same time, the shard that is told first decides."""
    after = change(topology)
    for left in reversed(range(_ATTEMPTS)):
        try:
            after.push_to(clients)
            return after
        except redis.ResponseError as error:
            if not left:
                raise LeaveRefused(f"the topology is changed by others all the time ({error}): try again") from error
            time.sleep(_LOOK_S)
            topology = newest_of(clients.values(), topology)
            decided = replace(topology, moves=()) == replace(after, moves=())
            after = replace(topology, version=topology.version + 1) if decided else change(topology)
    raise AssertionError("unreachable: the last attempt raises")


def _slots_moved(
    clients: Mapping[int, redis.Redis],
    topology: Topology,
    number: int,
    targets: list[int],
    told: Callable[[str], None],
) -> Topology:
    """Moves the shard's slots of keys to the others, as many to each; first those that a move before has begun with."""
    for begun in [each for each in topology.moves if each.source == number]:
        topology = move(clients, topology, slots_of([begun.slots]), begun.target, told)
    slots = slots_of(topology.shard(number).slots)
    for place, target in enumerate(targets):
        part = slots[place * len(slots) // len(targets) : (place + 1) * len(slots) // len(targets)]
        if part:
            topology = move(clients, topology, part, target, told)
    return topology


# ---- items -----------------------------------------------------------------------------------------------------------


def _counted(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{size:,} items of table {name!r}" for name, size in sizes.items() if size)


class _Tables:
    """The tables of a shard that leaves."""

    def __init__(self, client: redis.Redis, number: int, beside: redis.Redis) -> None:
        self._client, self._number, self._beside = client, number, beside
        self._reason = leaving_reason(number)
        self._limiters: dict[str, RateLimiter] = {}
        """Of those that were closed, as they were before."""

    def sizes(self) -> dict[str, int]:
        return {name: int(about[b"size"]) for name, about in tables_of(self._client).items()}

    def left(self, timeout: float, lose_items: bool) -> dict[str, int]:
        """Closes them when clients have noticed that the shard leaves, and waits until they are empty, or may be lost;
        how many items are left, by table."""
        deadline = time.monotonic() + timeout
        time.sleep(NOTICED_S)
        while True:
            patiently(self._close)
            sizes = patiently(self.sizes)
            if lose_items or not any(sizes.values()):
                time.sleep(NOTICED_S)  # what was being stored is there by then
                if not patiently(self._close) and (lose_items or not any((sizes := patiently(self.sizes)).values())):
                    return sizes
            if time.monotonic() >= deadline:
                held = _counted(sizes) or "tables that somebody opens again"
                raise LeaveRefused(
                    f"shard {self._number} holds {held} after {timeout:g} s, and stays: sample them away or delete "
                    "them, give it more time, or give them up (--lose-items, lose_items=True)"
                )
            time.sleep(_LOOK_S)

    def _close(self) -> bool:
        """Closes those that are open; whether there were any."""
        names = [name for name, about in tables_of(self._client).items() if not about[b"closed"]]
        for name in names:
            limiter = _limiter_of(self._client, name)
            if not is_boundless(limiter):  # as one who was killed amid this has left it
                self._limiters.setdefault(name, limiter)
            self._configure(name, leaving_limiter(limiter))
            self._client.execute_command("REPLAY.CLOSETABLE", name, self._reason)
        return bool(names)

    def _configure(self, name: str, limiter: RateLimiter) -> None:
        self._client.execute_command("REPLAY.CONFIG", name, pack(changes_map({"rate_limiter": limiter})))

    def open(self) -> None:
        """Opens again those that were closed for this."""
        for name, about in tables_of(self._client).items():
            if about[b"closed"] and about[b"closed_reason"].decode() == self._reason:
                self._configure(name, self._limiters.get(name) or _limiter_of(self._beside, name))
                self._client.execute_command("REPLAY.OPENTABLE", name)


def _limiter_of(client: redis.Redis, name: str) -> RateLimiter:
    """The rate limiter of a shard's part of a table."""
    spec: Any = client.execute_command("REPLAY.SPEC", name)
    return Table.from_spec(msgpack.unpackb(spec), name).rate_limiter
