"""Which shard has which slots: what a supervisor pushes, and what shards tell. docs/cluster.md has the rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis

from .at_once import at_once
from .cluster_address import SLOTS

MOST_SHARDS = 256

SlotRange = tuple[int, int]
"""First and last slot."""


@dataclass(frozen=True)
class ReplicaPlace:
    """A replica of a shard: its id, which is the run id of its process, and where it listens. `tls_port` 0: none."""

    id: str
    host: str
    port: int
    tls_port: int = 0


@dataclass(frozen=True)
class ShardPlace:
    """A shard: its number in ids, its id, where it listens, its slots, and its replicas that clients may read from.
    `tls_port` 0: no other than `port`."""

    number: int
    id: str
    host: str
    port: int
    unix: str = ""
    slots: tuple[SlotRange, ...] = ()
    tls_port: int = 0
    replicas: tuple[ReplicaPlace, ...] = ()


@dataclass(frozen=True)
class Move:
    """Slots of one shard that are on their way to another, by number."""

    slots: SlotRange
    source: int
    target: int


@dataclass(frozen=True)
class Topology:
    """All shards, and a version that goes up with every change.

    Attributes:
        leaving: numbers of shards that clients add nothing to any more.
        gone: numbers of shards that were taken out. Ids carry them, so no other shard ever has one of these numbers.
    """

    version: int
    shards: tuple[ShardPlace, ...]
    moves: tuple[Move, ...] = ()
    leaving: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()

    @classmethod
    def from_json(cls, text: str | bytes | None) -> Topology:
        """What CLUSTER TOPOLOGY answers.

        Raises:
            ValueError: it is something else.
        """
        try:
            told = json.loads(text or "")
            shards = tuple(
                ShardPlace(
                    shard["shard"],
                    shard["id"],
                    shard["host"],
                    shard["port"],
                    shard["unix"],
                    _pairs(shard["slots"]),
                    shard.get("tls_port", 0),
                    tuple(
                        ReplicaPlace(each["id"], each["host"], each["port"], each["tls_port"])
                        for each in shard.get("replicas", ())
                    ),
                )
                for shard in told["shards"]
            )
            moves = tuple(Move(_pairs([move["slots"]])[0], move["from"], move["to"]) for move in told["moves"])
            leaving, gone = (frozenset(map(int, told.get(key, ()))) for key in ("leaving", "gone"))
            return cls(int(told["version"]), shards, moves, leaving, gone)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"expected a topology, as CLUSTER TOPOLOGY tells it, got {text!r:.80}") from error

    def to_json(self) -> str:
        """The same."""
        shards = [
            {
                "shard": each.number, "id": each.id, "host": each.host, "port": each.port, "tls_port": each.tls_port,
                "unix": each.unix, "slots": [list(pair) for pair in each.slots],
                "replicas": [vars(replica) for replica in each.replicas],
            }
            for each in self.shards
        ]  # fmt: skip
        moves = [{"slots": list(move.slots), "from": move.source, "to": move.target} for move in self.moves]
        states = {"leaving": sorted(self.leaving), "gone": sorted(self.gone)}
        return json.dumps({"version": self.version, "shards": shards, "moves": moves, **states})

    def arguments(self, number: int) -> list[str | int]:
        """The request that tells it to the shard of this number."""
        words: list[str | int] = ["CLUSTER", "SETTOPOLOGY", self.version, number]
        for shard in self.shards:
            words += ["SHARD", shard.number, shard.id, shard.host, shard.port, shard.unix, slots_text(shard.slots)]
        for shard in self.shards:
            words += ["TLS", shard.number, shard.tls_port] if shard.tls_port else []
        for shard in self.shards:
            for each in shard.replicas:
                words += ["REPLICA", shard.number, each.id, each.host, each.port, each.tls_port]
        for move in self.moves:
            words += ["MOVE", slots_text([move.slots]), move.target]
        for kind, numbers in (("LEAVING", self.leaving), ("GONE", self.gone)):
            for each in sorted(numbers):
                words += [kind, each]
        return words

    def push_to(self, clients: Mapping[int, redis.Redis], first: int | None = None) -> None:
        """Tells it to every shard of it that there is a client of, and last to those that have gone. `first`, and then
        the one of the lowest number that answers, are told alone: so of two topologies of a version one is refused
        there, and nobody else hears of it. A shard that does not answer learns it from the supervisor that watches it.

        Args:
            clients: number of a shard → a client of it.

        Raises:
            redis.ResponseError: a shard has another topology of this version, or a newer one.
        """
        numbers = answering({shard.number: clients[shard.number] for shard in self.shards if shard.number in clients})
        numbers.sort(key=lambda each: (each != first, each))
        while numbers:
            number = numbers.pop(0)
            if self._tell(number, clients) and number != first:
                break
        at_once(lambda each: self._tell(each, clients), numbers)
        at_once(lambda each: self._tell(each, clients), sorted(self.gone.intersection(clients)))

    def _tell(self, number: int, clients: Mapping[int, redis.Redis]) -> bool:
        """Whether the shard answers."""
        return _answers(lambda: clients[number].execute_command(*self.arguments(number)))

    def shard(self, number: int) -> ShardPlace:
        """The shard of that number. Raises ValueError where there is none."""
        for shard in self.shards:
            if shard.number == number:
                return shard
        numbers = ", ".join(str(shard.number) for shard in self.shards)
        gone = "which has gone" if number in self.gone else "which there is not"
        raise ValueError(f"expected the number of a shard, one of {numbers}, got {number}, {gone}")

    def next_number(self, count: int) -> int:
        """The first number of that many new shards: above all that there are or ever were.

        Raises:
            ValueError: there are not so many numbers left.
        """
        first = max([-1, *self.gone, *(shard.number for shard in self.shards)]) + 1
        if first + count > MOST_SHARDS:
            raise ValueError(
                f"expected numbers up to {MOST_SHARDS - 1} for {count} new shards, and {first - 1} is taken: a number "
                "is in ids, and is not given again while the cluster lives; begin a new cluster"
            )
        return first

    def with_shards(self, places: Iterable[ShardPlace]) -> Topology:
        """The next version, with these shards in the place of those of the same numbers, or beside the others."""
        shards = {shard.number: shard for shard in (*self.shards, *places)}
        return replace(self, version=self.version + 1, shards=tuple(shards[number] for number in sorted(shards)))

    def leaves(self, number: int, leaving: bool = True) -> Topology:
        """The next version, in which a shard leaves, or stays after all."""
        self.shard(number)
        numbers = self.leaving | {number} if leaving else self.leaving - {number}
        return replace(self, version=self.version + 1, leaving=numbers)

    def without(self, numbers: Iterable[int]) -> Topology:
        """The next version, without shards of these numbers, which have gone. Slots that they still have go to those
        that they are moving to, the others to all shards, as many to each, but for those that leave as well."""
        gone = frozenset(numbers)
        begun = [move for move in self.moves if move.source in gone and move.target not in gone]
        now = self.arrived(_all(move.slots for move in begun))  # their keys are there, in part
        left = [shard for shard in now.shards if shard.number not in gone]
        staying = [shard for shard in left if shard.number not in self.leaving] or left
        free = [slot for slot, owner in enumerate(now.owners()) if owner in gone]
        given = {
            shard.number: free[place * len(free) // len(staying) : (place + 1) * len(free) // len(staying)]
            for place, shard in enumerate(staying)
        }
        shards = tuple(
            replace(shard, slots=slot_ranges([*_all(shard.slots), *given[shard.number]]))
            if given.get(shard.number)
            else shard
            for shard in left
        )
        moves = tuple(move for move in now.moves if not gone.intersection((move.source, move.target)))
        return Topology(self.version + 1, shards, moves, self.leaving - gone, self.gone | gone)

    def beginning(self, slots: Iterable[int], target: int) -> Topology:
        """The next version, in which these slots begin to move. Those that are there already do not."""
        self.shard(target)
        wanted = set(slots)
        owners = self.owners()
        moving = {slot: move.target for move in self.moves for slot in _all([move.slots])}
        moving.update(dict.fromkeys(wanted, target))
        moves = [
            Move(pair, source.number, goal.number)
            for source in self.shards
            for goal in self.shards
            if source is not goal
            for pair in slot_ranges(
                slot for slot, to in moving.items() if to == goal.number and owners[slot] == source.number
            )
        ]
        return replace(self, version=self.version + 1, moves=tuple(moves))

    def arrived(self, slots: Iterable[int]) -> Topology:
        """The next version, in which these slots are where they have moved to."""
        owners, come = self.owners(), set(slots)
        for move in self.moves:
            for slot in come.intersection(_all([move.slots])):
                owners[slot] = move.target
        shards = tuple(
            replace(shard, slots=slot_ranges(slot for slot, owner in enumerate(owners) if owner == shard.number))
            for shard in self.shards
        )
        moves = tuple(
            Move(pair, move.source, move.target)
            for move in self.moves
            for pair in slot_ranges(slot for slot in _all([move.slots]) if slot not in come)
        )
        return replace(self, version=self.version + 1, shards=shards, moves=moves)

    def owners(self) -> list[int]:
        """The number of each slot's shard."""
        owners = [-1] * SLOTS
        for shard in self.shards:
            for slot in _all(shard.slots):
                owners[slot] = shard.number
        return owners


def answering(clients: Mapping[int, redis.Redis]) -> list[int]:
    """The numbers of those that answer, who are asked at once: several that hang cost the patience of one.

    Raises:
        redis.ResponseError: one refuses to.
    """
    if len(clients) < 2:
        return [*clients]
    told = at_once(lambda client: _answers(client.ping), clients.values())
    return [number for number, does in zip(clients, told, strict=True) if does]


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except redis.AuthenticationError:
        raise
    except (redis.ConnectionError, redis.TimeoutError):
        return False
    return True


def slot_ranges(slots: Iterable[int]) -> tuple[SlotRange, ...]:
    """Slots as ranges of those that follow each other."""
    pairs: list[list[int]] = []
    for slot in sorted(slots):
        if pairs and pairs[-1][1] == slot - 1:
            pairs[-1][1] = slot
        else:
            pairs.append([slot, slot])
    return tuple((first, last) for first, last in pairs)


def slots_text(slots: Sequence[SlotRange]) -> str:
    """As CLUSTER SETTOPOLOGY reads them: "0-99,200"."""
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in slots)


def slots_of(ranges: Iterable[SlotRange]) -> list[int]:
    """The slots of ranges."""
    return list(_all(ranges))


def parse_slots(text: str) -> list[int]:
    """The slots of such a text.

    Raises:
        ValueError: it is none.
    """
    slots: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not int(first) <= int(last or first) < SLOTS:
            raise ValueError(f"expected slots within 0-{SLOTS - 1}, such as 0-99,200, got {text!r}")
        slots.update(range(int(first), int(last or first) + 1))
    return sorted(slots)


def _pairs(slots: Any) -> tuple[SlotRange, ...]:
    return tuple((int(first), int(last)) for first, last in slots)


def _all(slots: Iterable[SlotRange]) -> Iterable[int]:
    return (slot for first, last in slots for slot in range(first, last + 1))
