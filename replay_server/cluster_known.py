"""Which shards a client of a cluster knows, and how it hears of those that come, leave and go."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from . import commands
from .cluster_address import ClusterAddress, even_slots
from .commands import Command
from .connection import Address
from .connection_pool import ConnectionPool
from .driver import Operation
from .errors import ConnectionLost, NotPrimary, ReplayError, ServerError
from .gather import all_or_error, together
from .lost_calls import AGAIN_S
from .operations import Operations
from .options import ClientOptions

T = TypeVar("T")

AWAY_S = 1.0
"""How long a shard that was left out is not asked again."""
LOOK_EVERY_S, LOOK_PATIENCE_S = 1.0, 1.0
"""How often a client asks whether shards have come or gone, and how long it waits for the answer."""
FIRST_PATIENCE_S = 0.25
"""How long it waits where another shard can be asked instead."""


class Shard(Operations):
    """One shard: its number, its slots of keys, and the operations of its server, undriven.

    Attributes:
        leaving: nothing is added to it any more.
    """

    def __init__(
        self,
        number: int,
        slots: Sequence[range],
        url: str,
        cluster: KnownShards,
        patient: bool = True,
        patience: float = LOOK_PATIENCE_S,
    ) -> None:
        self.number, self.slots, self.away_until, self.leaving = number, slots, 0.0, False
        self.silent_until = 0.0
        """Until then writers do not look at it, since it did not answer."""
        self._new_pool_of = cluster._new_pool
        self._cluster: KnownShards = weakref.proxy(cluster)
        options = asdict(cluster._options)
        if not patient:
            options["reconnect_timeout"] = 0.0
            for timeout in ("connect_timeout", "socket_timeout"):
                options[timeout] = min(options[timeout], patience)
        elif cluster._options.missing != "wait":
            options["reconnect_timeout"] = 0.0
            for timeout in ("connect_timeout", "socket_timeout"):
                options[timeout] = min(options[timeout], cluster._options.missing_after)
        super().__init__(url, **options)

    def leave_out(self) -> None:
        """Does without it for a while."""
        self.away_until = time.monotonic() + AWAY_S

    def _answer(self, command: Command[T]) -> Operation[T]:
        """What a command returns. One of a table is given to the server that has this shard's number by now, where this
        one has given its part away: then it has done nothing."""
        if not str(command.arguments[0]).startswith("REPLAY."):
            return (yield from super()._answer(command))
        successor = self._cluster._of_number(self.number) if self._pool.closed else self
        if successor is None or successor is self:
            try:
                return (yield from super()._answer(command))
            except NotPrimary:
                successor = yield from self._succeeded()
                if successor is None:
                    raise
        return (yield from successor._answer(command))

    def _succeeded(self) -> Operation[Shard | None]:
        """The server to which this one has given its part, as soon as the topology has it there. None: it has not
        within `reconnect_timeout`, or the number has gone."""
        until = time.monotonic() + self._cluster._options.reconnect_timeout
        while True:
            yield from self._cluster._asked_now()
            successor = self._cluster._of_number(self.number)
            if successor is not self:
                return successor
            if not self._cluster._version or self._cluster._is_closed or time.monotonic() > until:
                return None
            yield self._pool.pause, AGAIN_S

    def _new_pool(self, address: Address, options: ClientOptions) -> ConnectionPool[Any]:  # type: ignore[override]
        return self._new_pool_of(address, options)


class KnownShards(Operations):
    """The shards of a cluster, as far as a client of them knows."""

    _address: Any

    def _begin(self, url: str) -> None:
        self._address = ClusterAddress.of_client(url, self._options.password_file)
        self._shards: list[Shard] = []
        self._version, self._look_at, self._looks = 0, math.inf, itertools.count()
        """Of the topology, and when it is asked for again. 0 = the servers have none: those of the URL are the
        shards."""
        self._refusal_at = 0.0
        """From then on a shard that refuses a connection is a reason to ask at once."""
        self._is_closed = False

    @property
    def lost_connections(self) -> int:
        """How many connections broke so far, to any of the shards, idle ones included."""
        return sum(shard._pool.count_lost() for shard in self._shards)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"the client of {self._address} is closed")

    def _found(self) -> Operation[list[Shard]]:
        """The shards, by number, as they were told within the last second or so."""
        if not self._shards and not self._is_closed:
            self._shards = yield from self._discovered()
        elif time.monotonic() >= self._look_at:
            yield from self._notice()
        self._check_open()
        return self._shards

    def _discovered(self) -> Operation[list[Shard]]:
        """Shards as one of the servers tells of them all or, where none does, as each tells of itself. Servers of the
        URL are asked, and shards that are known: not all of the URL may be of the cluster still."""
        known = {(shard.number, shard.url) for shard in self._shards}
        urls = dict.fromkeys([*(server.url for server in self._address.servers), *(url for _, url in known)])
        seeds = [Shard(place, [], url, self, patient=not known) for place, url in enumerate(urls)]
        try:
            told = yield from self._topologies(seeds, patient=not known)
            lost = [each for each in told if isinstance(each, ConnectionLost)]
            if len(lost) == len(told):
                raise lost[0]
            newest = _newest(told)
            if newest["version"]:
                newest = yield from self._followed(newest, urls)
                if newest["version"] < self._version and lost:  # of one that was cut off, while the others are away
                    raise lost[0]
                shards = sorted(newest["shards"], key=lambda shard: shard["shard"])
                found = [self._as_told(shard, newest) for shard in shards]
                yield from self._check_numbers([shard for shard in found if (shard.number, shard.url) not in known])
                for shard in found:
                    shard._pool.still_expected = functools.partial(
                        KnownShards._still_expected, weakref.proxy(self), shard.number, shard.url
                    )
                self._version, self._look_at = newest["version"], time.monotonic() + LOOK_EVERY_S
                return found
            if self._version:
                raise ConnectionLost(f"none of the shards of {self._address} that answer knows the topology yet")
            if lost:
                raise ConnectionLost(
                    f"{lost[0]}; which shard that is can be told by a topology alone, and no server that answers has "
                    "one: all servers of the URL must answer when a client of them begins"
                )
            infos = all_or_error(
                (yield from together([seed.command("INFO", "replay", repeatable=True) for seed in seeds]))
            )
        finally:
            for seed in seeds:
                seed._pool.close()
        return self._as_listed([_number_in(info) for info in infos])

    def _check_numbers(self, shards: Sequence[Shard]) -> Operation[None]:
        """Whether the servers that answer give ids of the numbers that the topology has of them."""
        infos = yield from together([shard.command("INFO", "replay", repeatable=True) for shard in shards])
        for shard, info in zip(shards, infos, strict=True):
            if not isinstance(info, Exception) and (own := _number_in(info)) != shard.number:
                raise ReplayError(
                    f"the topology has {shard._address} as shard {shard.number}, and its ids are of shard {own}: start "
                    f"it with the setting shard {shard.number}"
                )

    def _topologies(self, shards: Sequence[Shard], patient: bool = False) -> Operation[list[Any]]:
        """What shards tell of the topology, or in its place why one does not."""
        questions = [shard.command("CLUSTER", "TOPOLOGY", repeatable=True) for shard in shards]
        return (yield from together(questions, None if patient else time.monotonic() + LOOK_PATIENCE_S))

    def _followed(self, newest: dict[str, Any], asked: Iterable[str]) -> Operation[dict[str, Any]]:
        """This topology, or a newer one of a shard that it names: who told it may have been taken out since."""
        heard = set(asked)
        while True:
            named = {self._url_of(each): each["shard"] for each in newest["shards"]}
            others = [Shard(number, [], url, self, patient=False) for url, number in named.items() if url not in heard]
            heard.update(named)
            try:
                told = yield from self._topologies(others)
            finally:
                for other in others:
                    other._pool.close()
            before, newest = newest, _newest([newest, *told])
            if newest is before:
                return newest

    def _url_of(self, told: Mapping[str, Any]) -> str:
        return self._address.url_of(told["host"], told["port"], told.get("tls_port", 0))

    def _as_told(self, told: Mapping[str, Any], topology: Mapping[str, Any]) -> Shard:
        slots = [range(first, last + 1) for first, last in told["slots"]]
        shard = Shard(told["shard"], slots, self._url_of(told), self)
        shard.leaving = shard.number in topology.get("leaving", ())
        return shard

    def _as_listed(self, numbers: list[int]) -> list[Shard]:
        """The servers of the URL as shards of the numbers that they have; slots are shared out evenly."""
        by_number: dict[int, Address] = {}
        for number, server in zip(numbers, self._address.servers, strict=True):
            if number in by_number:
                raise ReplayError(
                    f"{by_number[number]} and {server} are both shard {number}: start each server of a cluster with a "
                    "number of its own (setting shard), or ids would name items of both"
                )
            by_number[number] = server
        return [
            Shard(number, [even_slots(place, len(by_number))], by_number[number].url, self)
            for place, number in enumerate(sorted(by_number))
        ]

    def _of_number(self, number: int) -> Shard | None:
        """The shard of that number, as far as is known."""
        return next((shard for shard in self._shards if shard.number == number), None)

    def _all(self) -> Operation[list[Shard]]:
        """The shards as they are told now, for what must reach each of them."""
        yield from self._found()
        yield from self._notice()
        return (yield from self._found())

    def _present(self) -> Operation[list[Shard]]:
        """The shards, without those that were left out a moment ago."""
        shards = yield from self._found()
        now = time.monotonic()
        return [shard for shard in shards if shard.away_until <= now] or shards

    def _takers(self) -> Operation[list[Shard]]:
        """The shards that are there to be added to."""
        present = yield from self._present()
        for shards in (present, self._shards):  # one that was away stays
            if staying := [shard for shard in shards if not shard.leaving]:
                return staying
        return present

    def _notice(self) -> Operation[None]:
        """Asks a shard, another one each time, whether shards have come or gone. Nothing is connected for that, and
        without an answer all stays as it is; so where the servers have no topology. A shard that does not answer costs
        one wait: its idle connections are closed, so it is not asked again before a call has reached it."""
        if not self._version:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        first = next(self._looks) % len(self._shards)
        in_turn = self._shards[first:] + self._shards[:first]
        for place, shard in enumerate(in_turn, 1):
            if (connection := shard._pool.idle()) is None:
                continue
            can_ask_another = any(other._pool.has_idle for other in in_turn[place:])
            patience = FIRST_PATIENCE_S if can_ask_another else LOOK_PATIENCE_S
            try:
                question = connection.exchange(commands.any_command("CLUSTER", "TOPOLOGY"))
                (told,) = yield from together([question], time.monotonic() + patience)
            finally:
                shard._pool.release(connection)
            if isinstance(told, ConnectionLost):
                shard._pool.close_idle()
            if isinstance(told, Exception):
                continue
            if _topology_in(told)["version"] > self._version:
                with contextlib.suppress(ConnectionLost):
                    yield from self._look_again()
            return

    def _look_again(self) -> Operation[None]:
        """Looks for the shards anew; those that are where they were keep their connections. The list stays the same one
        while the shards do."""
        found = yield from self._discovered()
        known = {(shard.number, shard.url): shard for shard in self._shards}
        for place, shard in enumerate(found):
            if (same := known.pop((shard.number, shard.url), None)) is not None:
                same.slots, same.leaving = shard.slots, shard.leaving
                shard._pool.close()
                found[place] = same
        for gone in known.values():
            gone._pool.close()
        if found != self._shards:
            self._shards = found
        if self._is_closed:  # meanwhile, by another thread
            for shard in found:
                shard._pool.close()

    def _asked_now(self) -> Operation[None]:
        """Asks what the shards are now, for a call that one of them refused or lost."""
        if self._version and not self._is_closed:
            with contextlib.suppress(ConnectionLost):
                yield from self._look_again()

    def _still_expected(self, number: int, url: str) -> Operation[bool]:
        """Whether a shard that refuses a connection is still to be there, as the others tell, which are asked about
        once a second."""
        if time.monotonic() >= self._refusal_at:
            self._refusal_at = time.monotonic() + LOOK_EVERY_S
            yield from self._asked_now()
        return any((shard.number, shard.url) == (number, url) for shard in self._shards)

    def _are_others(self, shards: Sequence[Shard] | None) -> Operation[bool]:
        """Whether the shards are others than these, as they tell now; not where these were not known yet."""
        yield from self._asked_now()
        return shards is not None and self._shards is not shards

    def _has_left(self, shard: Shard) -> Operation[bool]:
        """Whether a shard leaves or has been taken out, as the shards tell now."""
        yield from self._asked_now()
        return shard.leaving or shard not in self._shards


def _newest(told: Sequence[Any]) -> dict[str, Any]:
    return max((_topology_in(each) for each in told), key=lambda topology: topology["version"])


def _topology_in(told: Any) -> dict[str, Any]:
    """What a server told of a topology; one of version 0 where it has none, or did not answer."""
    if isinstance(told, dict):
        return told
    return {"version": 0} if isinstance(told, Exception) or not told else json.loads(told)


def _number_in(info: bytes | str) -> int:
    """A server's number, from its INFO."""
    text = info.decode() if isinstance(info, bytes) else info
    found = [line.partition(":")[2] for line in text.splitlines() if line.startswith("shard:")]
    if not found:
        raise ServerError("expected a server that says which shard it is (INFO replay), got an older one")
    return int(found[0])
