"""What a client of many shards can do: the operations of `operations`, done by the shards together.

Each shard has its own `Operations`, over connections of its own. What concerns all shards is asked of all at once
(`gather`) and put together here. What concerns an item goes to the shard that its id names; what concerns a key goes
to the key's home.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from . import cluster_add, cluster_queue, cluster_sample, commands, gradients
from .batch import Batch, new_batch
from .checks import check_awaited, check_ids, check_priorities, check_timeout
from .cluster_address import process_offset, slot_of
from .cluster_known import LOOK_EVERY_S, LOOK_PATIENCE_S, KnownShards, Shard
from .cluster_sample import join_ragged
from .cluster_streams import ShardStreams
from .cluster_tables import check_can_be_shared, closed_on_all, share_of, share_of_limiter, whole_info, whole_of
from .cluster_wait import Wait
from .commands import Command, ServedTable
from .driver import Operation, operation
from .errors import ConnectionLost, NotPrimary, SchemaError, ServerError, TableClosed, Timeout, explain
from .gather import all_or_error, together
from .n_step_writer import make_writer
from .operations import Operations, told_as
from .options import SampleOptions
from .ragged import Ragged
from .table import Table

P = ParamSpec("P")
T = TypeVar("T")


def _as_on_one(written: Callable[Concatenate[Any, P], Operation[T]]) -> operation[P, T]:
    """An operation with the signature and the docstring of that of one server."""
    return operation(told_as(written, getattr(Operations, written.__name__).written, lambda given: given))


SHARD_BITS = np.uint64(56)
"""An id's shard stands above them."""
SILENT_S = 30.0
"""How long a shard that did not answer a writer's look is not asked again by one."""
SLOTS_PAUSE_S = 0.05
"""The longest pause between two questions to a shard that was not told its slots yet."""


class ClusterOperations(KnownShards):
    """The operations of a cluster; see `replay_server.Client`."""

    def _begin(self, url: str) -> None:
        super()._begin(url)
        self._sums: dict[str, dict[int, float]] = {}
        """By table and shard, as last told: of p^α, or items."""
        self._unused: dict[tuple[str, int], int] = {}
        """By table and shard: arrivals that were left over, and that the shard's rate limiter still counts."""
        self._held = cluster_queue.Held()
        self._turns = itertools.count(process_offset(1 << 20))
        self._setting_out: set[ShardStreams] = set()
        """Writers whose shard is chosen, and has none of their streams yet."""
        self._own: Any = None
        """Where this client adds to tables that have an order."""

    # ---- shards ------------------------------------------------------------------------------------------------------

    def _gathered(
        self, make: Callable[[Shard], Operation[T]], shards: Sequence[Shard] | None = None
    ) -> Operation[dict[int, T]]:
        """What an operation gives on each shard, all at once, by number. A lost shard is an error, unless the caller
        leaves such shards out, and another one answers."""
        everywhere = shards is None
        if shards is None:
            shards = yield from self._present()
        known = self._shards
        patience = None if self._options.missing == "wait" else time.monotonic() + self._options.missing_after
        results = yield from together([make(shard) for shard in shards], patience)
        lost = [result for result in results if isinstance(result, ConnectionLost)]
        if self._options.missing != "leave_out" or len(lost) == len(results):
            if lost and everywhere and (yield from self._are_others(known)):
                return (yield from self._gathered(make))
            all_or_error(results)
        given: dict[int, T] = {}
        for shard, result in zip(shards, results, strict=True):
            if isinstance(result, ConnectionLost):
                shard.leave_out()
            elif isinstance(result, Exception):
                raise result
            else:
                given[shard.number] = result
        return given

    def _on_all(
        self, make: Callable[[Shard], Operation[T]], shards: Sequence[Shard] | None = None
    ) -> Operation[list[T]]:
        """As `_gathered`, of every shard, in their order, and of one that has just joined; a lost one is an error."""
        if shards is None:
            shards = yield from self._all()
        return all_or_error((yield from together([make(shard) for shard in shards])))

    def _next_shard(self) -> Operation[Shard]:
        """The shards in turn."""
        shards = yield from self._present()
        return shards[next(self._turns) % len(shards)]

    def _least_written(
        self, name: str, own: Shard | None = None, own_streams: int = 0, patience: float = LOOK_PATIENCE_S
    ) -> Operation[Shard]:
        """The shard on which the fewest streams of a table are open, those of its own apart that a writer has on `own`.
        Streams of this client's writers count as soon as their shard is chosen. Of several shards it is the next in
        turn, and `own` last. One that does not answer is the last choice, and is not asked again for a while."""
        takers = yield from self._takers()
        first = next(self._turns)
        takers = [takers[(first + place) % len(takers)] for place in range(len(takers))]
        if len(takers) == 1:
            return takers[0]
        began = time.monotonic()
        heard = [shard for shard in takers if shard.silent_until <= began]
        asked = [Shard(shard.number, [], shard.url, self, patient=False, patience=patience) for shard in heard]
        try:
            told = yield from together([shard.info(name) for shard in asked], began + patience)
        finally:
            for shard in asked:
                shard._pool.close()
        streams: dict[int, float] = {}
        for shard, info in zip(heard, told, strict=True):
            if not isinstance(info, Exception):
                streams[shard.number] = info["streams"] - own_streams * (shard is own)
            elif isinstance(info, ConnectionLost) and time.monotonic() >= began + patience:
                shard.silent_until = time.monotonic() + SILENT_S
        for writer in tuple(self._setting_out):
            if writer.table_name == name and writer.shard.number in streams:
                streams[writer.shard.number] += writer.streams
        return min(takers, key=lambda shard: (streams.get(shard.number, math.inf), shard is own))

    # ---- keys: weights, gradients ------------------------------------------------------------------------------------

    def _home(self, key: str) -> Operation[Shard]:
        """The shard that has the key's slot."""
        shards = yield from self._found()
        slot = slot_of(key)
        return next(
            (shard for shard in shards if any(slot in slots for slots in shard.slots)), shards[slot % len(shards)]
        )

    def _answer(self, command: Command[T]) -> Operation[T]:
        """What a command of one key returns, from the key's home. Where that has moved, the shards are looked for
        again: until they tell the same, if the home has given its part away. A shard that was started again is waited
        for until it was told its slots."""
        key = command.arguments[1] if len(command.arguments) > 1 else ""
        until, pause, looked_again = time.monotonic() + self._options.reconnect_timeout, 0.001, False
        while True:
            home = yield from self._home(key if isinstance(key, str) else "")
            try:
                return (yield from home._answer(command))
            except ConnectionLost:
                if looked_again or not command.repeatable or not (yield from self._has_left(home)):
                    raise
                looked_again = True
            except NotPrimary:
                if not looked_again:
                    until = time.monotonic() + self._options.reconnect_timeout
                elif time.monotonic() > until:
                    raise
                else:
                    yield home._pool.pause, SLOTS_PAUSE_S
                looked_again = True
                yield from self._look_again()
            except ServerError as error:
                if error.code == "ASK" and not looked_again:
                    looked_again = True
                    yield from self._look_again()
                elif error.code != "CLUSTERDOWN":
                    raise
                elif time.monotonic() + pause > until:
                    raise ConnectionLost(
                        f"{home._address} serves no keys: it was not told its slots ({error})"
                    ) from error
                else:
                    yield home._pool.pause, pause
                    pause = min(2 * pause, SLOTS_PAUSE_S)

    @_as_on_one
    def gradient_keys(self) -> Operation[list[str]]:
        keys = yield from self._on_all(lambda shard: shard._answer(gradients.keys()))
        return sorted(set(itertools.chain.from_iterable(keys)))

    @_as_on_one
    def delete_gradients(self, *keys: str) -> Operation[int]:
        by_slot: dict[int, list[str]] = {}  # one command has keys of one slot
        for key in keys:
            by_slot.setdefault(slot_of(key), []).append(key)
        removals = [self._answer(gradients.delete(*own)) for own in by_slot.values() or [()]]
        return sum(all_or_error((yield from together(removals))))

    @_as_on_one
    def command(self, *arguments: str | bytes | int, repeatable: bool = False) -> Operation[Any]:
        shards = yield from self._found()
        try:
            return (yield from shards[0].command(*arguments, repeatable=repeatable))
        except NotPrimary as error:
            key = arguments[1] if len(arguments) > 1 else None
            if not (isinstance(key, str) and str(error).startswith(f"MOVED {slot_of(key)} ")):
                raise  # such as of a command whose key is not its first argument
        return (yield from self._answer(commands.any_command(*arguments, repeatable=repeatable)))

    # ---- tables ------------------------------------------------------------------------------------------------------

    @_as_on_one
    def create_table(self, table: Table) -> Operation[None]:
        shards = yield from self._all()
        before = yield from self._on_all(lambda shard: shard.tables(), shards)
        created = yield from together(
            [
                shard.create_table(share_of(table, shard.number, len(shards), place))
                for place, shard in enumerate(shards)
            ]
        )
        if refusal := next((each for each in created if isinstance(each, Exception)), None):
            new = [
                shard
                for shard, names, result in zip(shards, before, created, strict=True)
                if table.name not in names and not isinstance(result, Exception)
            ]
            dropped = yield from together([shard.drop_table(table.name) for shard in new])
            left = [str(shard.number) for shard, each in zip(new, dropped, strict=True) if isinstance(each, Exception)]
            numbers = [str(shard.number) for shard, each in zip(shards, created, strict=True) if each is not None]
            told = f"; shard {', '.join(numbers)} refused it, the others are as they were before"
            if left:
                told += f", except {', '.join(left)}, which has it and answers no more: drop it there"
            if len(numbers) < len(shards):
                refusal.args = (f"{refusal}{told}", *refusal.args[1:])
            raise refusal

    @_as_on_one
    def table(self, name: str) -> Operation[Table]:
        shards = yield from self._all()
        tables = yield from self._on_all(lambda shard: shard.table(name), shards)
        return whole_of({shard.number: table for shard, table in zip(shards, tables, strict=True)})

    @_as_on_one
    def tables(self) -> Operation[list[str]]:
        return list(
            dict.fromkeys(itertools.chain.from_iterable((yield from self._on_all(lambda shard: shard.tables()))))
        )

    def _forget(self, name: str) -> None:
        """Drops what was noted of a table's items, and taken of a queue."""
        self._sums.pop(name, None)
        for key in [key for key in tuple(self._unused) if key[0] == name]:
            self._unused.pop(key, None)
        self._held.drop(name)

    @_as_on_one
    def drop_table(self, name: str) -> Operation[None]:
        yield from self._on_all(lambda shard: shard.drop_table(name))
        self._forget(name)

    @_as_on_one
    def reset(self, name: str) -> Operation[None]:
        yield from self._on_all(lambda shard: shard.reset(name))
        self._forget(name)

    @_as_on_one
    def close_table(self, name: str, reason: str | None = None) -> Operation[None]:
        yield from self._on_all(lambda shard: shard.close_table(name, reason))

    @_as_on_one
    def open_table(self, name: str) -> Operation[None]:
        yield from self._on_all(lambda shard: shard.open_table(name))

    @_as_on_one
    def configure(self, name: str, **changes: Any) -> Operation[None]:
        shards = yield from self._all()
        given = {key: changes[key] for key in ("sampler", "max_times_sampled") if changes.get(key) is not None}
        if given and len(shards) > 1:
            check_can_be_shared(replace((yield from shards[0]._look_up(name)).table, **given))
        limiter = changes.pop("rate_limiter", None)
        if changes.get("max_bytes"):
            changes["max_bytes"] = -(-changes["max_bytes"] // len(shards))
        places = {shard.number: place for place, shard in enumerate(shards)}

        def change(shard: Shard) -> Operation[None]:
            share = limiter and share_of_limiter(limiter, places[shard.number], len(shards))
            return shard.configure(name, rate_limiter=share, **changes)

        yield from self._on_all(change, shards)
        for shard in shards:
            shard._tables.pop(name, None)
        self._sums.pop(name, None)
        if changes.get("sampler") is not None or changes.get("max_times_sampled") is not None:
            self._held.drop(name)

    @_as_on_one
    def info(self, name: str) -> Operation[dict[str, Any]]:
        told = yield from self._gathered(lambda shard: shard.info(name))
        if len(self._shards) == 1:
            return next(iter(told.values()))
        missing = [shard.number for shard in self._shards if shard.number not in told]
        return {**whole_info(told), "missing": missing}

    @_as_on_one
    def await_items(
        self, name: str, *, since: int | None = None, size: int | None = None, timeout: float | None = None
    ) -> Operation[tuple[int, int]]:
        shards = yield from self._found()
        if len(shards) == 1 and not self._version:
            return (yield from shards[0].await_items(name, since=since, size=size, timeout=timeout))
        check_awaited(since, size)
        wait = Wait(f"wait for items of {name!r}", timeout)
        while True:
            told = yield from self._gathered(lambda shard: shard.info(name))
            infos = list(told.values())
            added, held = sum(info["added"] for info in infos), sum(info["size"] for info in infos)
            if (size is not None and held >= size) or (size is None and added != since):
                return added, held
            reason = (
                f"nothing was added since there were {added}" if size is None else f"{held} items, {size} are wanted"
            )
            if closed_on_all(told):
                why = next((f": {info['closed_reason']}" for info in infos if info["closed_reason"]), "")
                raise TableClosed(f"table {name!r} is closed{why}; nothing is added to it until it is opened")
            yield from wait.pause(self, reason)

    @_as_on_one
    def checkpoint(self, name: str | os.PathLike[str] | None = None) -> Operation[str]:
        return "\n".join((yield from self._on_all(lambda shard: shard.checkpoint(name))))

    @_as_on_one
    def restore(self, name: str | os.PathLike[str]) -> Operation[list[str]]:
        restored = list(itertools.chain.from_iterable((yield from self._on_all(lambda shard: shard.restore(name)))))
        for table in {*restored, *self._sums, *self._held.tables()}:
            self._forget(table)
        return restored

    # ---- items -------------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> Operation[ServedTable]:
        """The table as one shard has it: what its items look like is the same on all."""
        present = yield from self._present()
        shard = next((shard for shard in present if name in shard._tables), present[0])
        return (yield from shard._known(name))

    def _look_up(self, name: str) -> Operation[ServedTable]:
        shard = yield from self._next_shard()
        return (yield from shard._look_up(name))

    @_as_on_one
    def add(
        self, name: str, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None
    ) -> Operation[np.ndarray]:
        shards = yield from self._found()
        if len(shards) == 1:
            began = time.monotonic()
            try:
                return (yield from shards[0].add(name, data, priorities, timeout))
            except TableClosed:
                if not (yield from self._has_left(shards[0])):
                    raise
            timeout = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        return (yield from cluster_add.add(self, name, data, priorities, timeout))

    def _found_with(self, ids: np.ndarray) -> Operation[list[Shard]]:
        """The shards; looked for again where an id is of none of them, since that shard may have come just now."""
        shards = yield from self._found()
        if not np.isin(ids >> SHARD_BITS, [shard.number for shard in shards]).all():
            yield from self._notice()
            shards = yield from self._found()
        return shards

    def _by_shard(
        self, ids: np.ndarray, make: Callable[[Shard, np.ndarray, np.ndarray], Operation[T]], repeatable: bool = False
    ) -> Operation[list[tuple[np.ndarray, T | Exception]]]:
        """Does something with the ids of each shard, all at once: places among `ids`, and what was returned or raised.
        Ids of no shard, or of one that has been taken out, are with none. A shard that is elsewhere by now is asked
        there, where that is safe."""
        shards = yield from self._found_with(ids)
        numbers = ids >> SHARD_BITS
        places = [(shard, np.flatnonzero(numbers == shard.number)) for shard in shards]
        places = [(shard, which) for shard, which in places if len(which)]
        results = yield from together([make(shard, ids[which], which) for shard, which in places])
        given = []
        for (shard, which), result in zip(places, results, strict=True):
            if isinstance(result, ConnectionLost):
                yield from self._asked_now()
                now = self._of_number(shard.number)
                if now is None:
                    continue
                if now is not shard and repeatable:
                    (result,) = yield from together([make(now, ids[which], which)])
            given.append((which, result))
        return given

    @_as_on_one
    def update_priorities(self, name: str, ids: Any, priorities: Any) -> Operation[tuple[int, int]]:
        checked = check_ids(ids)
        raw = check_priorities(priorities, len(checked))

        def update(shard: Shard, own: np.ndarray, which: np.ndarray) -> Operation[tuple[int, int]]:
            return shard._answer(commands.update(name, own, raw[which]))

        results = [result for _, result in (yield from self._by_shard(checked, update, repeatable=True))]
        if self._options.missing == "leave_out":
            results = [result for result in results if not isinstance(result, ConnectionLost)]
        applied = sum(applied for applied, _ in all_or_error(results))
        return applied, len(checked) - applied

    @_as_on_one
    def delete(self, name: str, ids: Any) -> Operation[int]:
        results = yield from self._by_shard(check_ids(ids), lambda shard, own, _: shard.delete(name, own))
        return sum(all_or_error([result for _, result in results]))

    @_as_on_one
    def get(self, name: str, ids: Any) -> Operation[Batch]:
        checked = check_ids(ids)
        shards = yield from self._found_with(checked)
        if len(shards) == 1:
            return (yield from shards[0].get(name, checked))
        results = yield from self._by_shard(checked, lambda shard, own, _: shard.get(name, own), repeatable=True)
        parts = all_or_error([result for _, result in results])
        if sum(map(len, parts)) < len(checked):
            numbers = {shard.number for shard in self._shards}
            stray = next(each for each in checked.tolist() if each >> 56 not in numbers)
            raise ServerError(f"item {stray} is not in table {name!r}: no shard of {self._address} has its number")
        served = yield from self._known(name)
        batch = _merged(served.table, len(checked), [which for which, _ in results], parts)
        if cluster_queue.has_order(served.table):
            return batch
        totals = yield from self._totals(name, served)
        shares = np.array([totals.get(number, 0.0) for number in (checked >> SHARD_BITS).tolist()])
        batch.probabilities *= shares / (sum(totals.values()) or 1.0)
        return batch

    def _totals(self, name: str, served: ServedTable) -> Operation[dict[int, float]]:
        """Each shard's share of the sum that probabilities are of."""
        infos = yield from self._gathered(lambda shard: shard.info(name))
        key = "size" if not hasattr(served.table.sampler, "priority_exponent") else "total_priority"
        return {number: float(info[key]) for number, info in infos.items()}

    def _sample(
        self, name: str, batch_size: int, out: Batch | None, shared: bool, options: SampleOptions
    ) -> Operation[Batch]:
        shards = yield from self._found()
        if len(shards) == 1:
            if self._version:
                return (yield from self._sampled_of_one(name, batch_size, out, shared, options))
            return (yield from shards[0]._sample(name, batch_size, out, shared, options))
        batch_size = int(batch_size)
        known = [shard._tables[name] for shard in shards if name in shard._tables]
        served = (
            known[0] if known else next(iter((yield from self._gathered(lambda shard: shard._known(name))).values()))
        )
        if cluster_queue.has_order(served.table):
            return (yield from cluster_queue.take(self, name, batch_size, out, options))
        return (yield from cluster_sample.sample(self, name, batch_size, out, shared, options))

    def _sampled_of_one(
        self, name: str, batch_size: int, out: Batch | None, shared: bool, options: SampleOptions
    ) -> Operation[Batch]:
        """Waits on the only shard a second at a time, and goes on with all when others have joined."""
        timeout = check_timeout(options.timeout)
        left, deadline = timeout, None if timeout is None else time.monotonic() + timeout
        while len(shards := (yield from self._found())) == 1:
            now = replace(options, timeout=LOOK_EVERY_S if left is None else min(LOOK_EVERY_S, left))
            try:
                return (yield from shards[0]._sample(name, batch_size, out, shared, now))
            except Timeout as error:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if left == 0:
                    raise explain(f"sample of {batch_size} from {name!r}", timeout, Timeout(error.reason)) from None
            except (TableClosed, ConnectionLost):
                if not (yield from self._are_others(shards)):
                    raise
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return (yield from self._sample(name, batch_size, out, shared, replace(options, timeout=left)))

    def _written(
        self,
        kinds: tuple[type, type],
        name: str,
        environments: int | None,
        n_step: int | None,
        discount: float | None,
        options: Mapping[str, Any],
    ) -> Operation[Any]:
        """A writer on one shard: that of the place that was asked for, or that with the fewest streams. This is chosen
        again when it first sends: other writers may have begun since."""
        place = options.get("place")
        if place is None:
            shard = yield from self._least_written(name)
        else:
            takers = yield from self._takers()
            shard = takers[place % len(takers)]
        options = {key: value for key, value in options.items() if key != "place"}
        if options.get("tables"):
            raise SchemaError("on a cluster no table shares the steps of another: make a writer to each table")
        served = yield from shard._look_up(name)
        sink = ShardStreams(self, shard, served, is_placed=place is not None)
        return make_writer(kinds, served.table, sink, environments, n_step, discount, options)


def _merged(table: Table, count: int, places: Sequence[np.ndarray], parts: Sequence[Batch]) -> Batch:
    """Parts of a batch as one: item i of a part at places[i]."""
    batch = new_batch(table, count)
    order = np.argsort(np.concatenate([*places, np.empty(0, np.int64)]), kind="stable")
    for name, column in batch.columns.items():
        pieces = [part.columns[name] for part in parts]
        if isinstance(column, Ragged):
            rows = list(itertools.chain.from_iterable(pieces))
            join_ragged([Ragged(rows[at], np.array([0, len(rows[at])])) for at in order], column)
        else:
            for which, piece in zip(places, pieces, strict=True):
                column[which] = piece
    for which, part in zip(places, parts, strict=True):
        batch.ids[which], batch.probabilities[which] = part.ids, part.probabilities
    batch.weights[:] = 1
    return batch
