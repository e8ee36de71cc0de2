"""A sample of a table over shards, exact and usually in one round trip, by superposition of Poisson processes.

Every shard is asked at once what arrives up to a horizon (`REPLAY.SAMPLE … TIMED`; native/replay/table_timed.c has the
argument why the first B arrivals of all, by time, are B independent draws by p^α over all shards). What this side adds:

- The horizon is (B + c·√B) / Σ sums, with the sums of the last answers. If they are out of date, too many or too few
  arrivals come. If too few, the shards are asked again for what follows, from where each is complete.
- Only arrivals up to the least of these times are used: none before it is missing. How far to ask next is chosen from
  answers about the past, of which what follows is independent.
- An arrival's probability is its power over the sum of all shards' at its time: each shard's sum is that of the answer
  which covers that time. So it stays right if priorities change between two questions.
- A shard that is left out is left out whole, with what it has answered before: the sample is exact of the others.
- Without replacement, an item counts when it first arrives. A later question can bring it again; it is passed over. So
  the third question is the last: without a horizon, and for as many as are missing beside those that the shard has
  given before. Of two heavy items and a light one it would otherwise bring the heavy ones again and again.

Of each shard, the arrivals that are used of the first answers are its first ones. So its columns are received straight
into the batch, at their place, and what is left over lies where the next shard's columns are received after it. Items
of a batch are in the order of shards, and of time within a shard.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import Batch, check_out, new_batch
from .batch_replies import codes
from .checks import check_version
from .cluster_tables import check_fits, closed_on_all, is_boundless, limiter_told, too_few, whole_of
from .cluster_wait import Wait
from .commands import ServedTable
from .driver import Operation
from .errors import ConnectionLost, LimitExceeded, NotPrimary, SchemaError, ServerError, TableClosed, Timeout
from .gather import together
from .lost_calls import AGAIN_S
from .options import SampleOptions
from .ragged import Ragged, Room, items_of
from .selectors import Prioritized, SampleToInsertRatio
from .shard_reply import Arrivals, Question
from .table import Table

if TYPE_CHECKING:
    from .cluster_known import Shard
    from .cluster_operations import ClusterOperations

MOST_ARRIVALS = 8192
"""Of one answer, as the server has it."""
SURPLUS = 1.0
"""Standard deviations of the number of arrivals that are asked for beyond those wanted: about 4 % of a batch of 512,
and a second question for one batch of six."""

_MOST_DOUBLINGS = 50
"""Of how far is asked: a sample that waits for long asks hundreds of times."""
_FAR = 1e300
"""A horizon beyond which no arrival is."""
_AT_ONCE = 3
"""That often a sample begins anew at once, because what the shards hold has changed; then it pauses."""


class _Waits(Exception):
    """The sample has to wait, for this reason."""


class _Unknown(Exception):
    """What the shards hold is not what was known of it: they have to be asked again."""


@dataclass
class _Piece:
    """Arrivals of one answer, and their columns where they were received aside."""

    shard: Shard
    arrivals: Arrivals
    columns: dict[str, Any] = field(default_factory=dict)


def sample(
    cluster: ClusterOperations, name: str, count: int, out: Batch | None, shared: bool, options: SampleOptions
) -> Operation[Batch]:
    """Draws a batch over all shards, waiting as the options say; `shared`: by way of the shared memory of those that
    are on this host."""
    wait = Wait(f"sample of {count} from {name!r}", options.timeout)
    if options.policy_version is not None:
        check_version(options.policy_version)
    lost_until, looked_up, unknown = 0.0, False, 0
    draw = _Draw(cluster, name, count, out, shared, options)
    try:
        while True:
            reason = ""
            try:
                return (yield from draw.go_on())
            except _Unknown:  # the next try begins with the question, and finds the reason if it has to wait
                unknown += 1
                reason = "items leave while they are drawn" if unknown > _AT_ONCE else ""
            except _Waits as waits:
                reason = str(waits)
            except SchemaError:
                if looked_up or not (yield from _was_made_anew(cluster, name)):
                    raise
                looked_up, draw = True, _Draw(cluster, name, count, out, shared, options)
            except (ConnectionLost, NotPrimary) as error:
                lost_until = lost_until or time.monotonic() + cluster._options.reconnect_timeout
                others = yield from cluster._are_others(draw.known)
                lost = isinstance(error, ConnectionLost)
                given_up = (lost and cluster._options.missing == "error") or time.monotonic() > lost_until
                if cluster._is_closed or (given_up and not others):
                    raise
                if not lost and not others:  # the topology is about to follow
                    yield cluster._shards[0]._pool.pause, AGAIN_S
                draw.drop()
                draw = _Draw(cluster, name, count, out, shared, options)
            if reason:
                yield from wait.pause(cluster, reason)
                if (yield from cluster._found()) is not draw.known:  # shards have come or gone
                    draw.drop()
                    draw = _Draw(cluster, name, count, out, shared, options)
    except BaseException:
        draw.drop()
        raise


def _was_made_anew(cluster: ClusterOperations, name: str) -> Operation[bool]:
    """Looks a table up on every shard; whether one has another than was known."""
    known = {shard.number: shard._tables.get(name) for shard in cluster._shards}
    served = yield from cluster._gathered(lambda shard: shard._look_up(name))
    return any(getattr(known[number], "incarnation", None) != each.incarnation for number, each in served.items())


class _Draw:
    """One sample as it is put together. `go_on` may be called again after `_Waits`: what was drawn is kept."""

    def __init__(
        self,
        cluster: ClusterOperations,
        name: str,
        count: int,
        out: Batch | None,
        shared: bool,
        options: SampleOptions,
    ) -> None:
        self.cluster, self.name, self.count, self.out, self.options = cluster, name, count, out, options
        self.shared = shared
        self.shards: list[Shard] = []
        self.known: list[Shard] | None = None
        """All of the cluster, when it began."""
        self.pieces: list[_Piece] = []
        self.covered: dict[int, list[tuple[float, float, int]]] = {}
        """Of each shard, by number: up to when, with which sum and size, for each of its answers."""
        self.left_out: set[int] = set()
        self.table: Table
        self.rounds = self.least = 0

    def go_on(self) -> Operation[Batch]:
        if not self.shards:
            yield from self._begin()
        if self.cluster._sums.get(self.name) is None or (self.rounds > 1 and not self.options.replace):
            yield from self._look()
        while True:
            questions = self._questions()
            try:
                held_back = yield from self._answers(questions)
                chosen = self._chosen()
                if chosen is not None and self.rounds == 1:
                    return (yield from self._received_in_place(questions, chosen))
                yield from self._received_aside(questions)
            finally:
                for question in questions.values():
                    question.close()
            if chosen is not None:
                return self._copied(chosen)
            if held_back:
                self.rounds = 1  # the same is asked again, and no more
                raise _Waits(held_back)
            if refused := [piece for piece in self.pieces[-len(questions) :] if piece.arrivals.reason]:
                # The others are not asked further meanwhile: what they send counts as sampled, and lets in adds there.
                self.rounds = 1
                yield from self._held_back(refused)
            if self.rounds > 1 and not self.options.replace:
                yield from self._look()

    # ---- before ------------------------------------------------------------------------------------------------------

    def _begin(self) -> Operation[None]:
        self.served = yield from self._of_one_sampler()
        self.known = self.cluster._shards
        self.shards = [shard for shard in self.known if shard.number in self.served]
        self.left_out = {shard.number for shard in self.known if shard not in self.shards}
        self.table = whole_of({number: each.table for number, each in self.served.items()})
        self.names = self.table.chosen(self.options.columns)
        if self.out is not None:
            check_out(self.out, self.table, self.count, self.options.columns, self.options.details)
        check_fits(self.table, self.count, "" if self.options.replace else " without replacement")
        self.least = getattr(self.table.rate_limiter, "min_size_to_sample", 0)

    def _of_one_sampler(self) -> Operation[dict[int, ServedTable]]:
        """The table as the shards have it. Where samplers differ, it is being changed, or a shard that was started
        again has yet to be told a change: that takes a moment."""
        served = yield from self.cluster._gathered(lambda shard: shard._known(self.name))
        until = time.monotonic() + self.cluster._options.reconnect_timeout
        while len({each.table.sampler for each in served.values()}) > 1:
            if time.monotonic() > until:
                told = ", ".join(f"{each.table.sampler} on shard {number}" for number, each in sorted(served.items()))
                raise ServerError(
                    f"table {self.name!r}: expected the same sampler on all shards, got {told}: configure it again"
                )
            yield self.cluster._shards[0]._pool.pause, AGAIN_S
            served = yield from self.cluster._gathered(lambda shard: shard._look_up(self.name))
        return served

    def _told(self) -> Operation[dict[int, dict[str, Any]]]:
        """What the shards tell of the table."""
        told = yield from self.cluster._gathered(lambda shard: shard.info(self.name), self.shards)
        for shard in [shard for shard in self.shards if shard.number not in told]:
            self._leave_out(shard)
        return told

    def _held_back(self, refused: Sequence[_Piece]) -> Operation[None]:
        """Shards' rate limiters let no more through: raises `_Waits`, or why waiting is of no use."""
        limiter, reason = self.table.rate_limiter, refused[0].arrivals.reason
        if isinstance(limiter, SampleToInsertRatio) and self.count > 2 * limiter.error_buffer:
            raise LimitExceeded(
                f"rate limiter: a sample of {self.count} is more than twice error_buffer = {limiter.error_buffer:g} "
                "and can never pass; sample fewer at once or enlarge error_buffer"
            )
        told = yield from self._told()
        poor = [piece.shard.number for piece in refused]
        rich = [shard for shard in self.shards if shard.number not in poor]
        # One that leaves lets through whatever it is asked for, and nothing is added for that.
        rich = [shard for shard in rich if not is_boundless(limiter_told(told[shard.number]["rate_limiter"]))]
        moved = 0
        if rich and isinstance(limiter, SampleToInsertRatio):
            moved = yield from self._even_out(rich, poor)
        if not moved and closed_on_all(told):
            raise TableClosed(f"table {self.name!r} is closed on all shards, and {reason}")
        raise _Waits(reason)

    def _even_out(self, rich: Sequence[Shard], poor: Sequence[int]) -> Operation[int]:
        """Some shards hold this sample back until more is added there, which may never be: a lone writer's items are on
        one shard, which may itself hold adds back until more is sampled. So as many samples as the others let through,
        count and nobody uses are given back to those, and the whole's ratio stays what it was. Returns how many."""
        options, most = replace(self.options, replace=True, details=False), min(self.count, MOST_ARRIVALS)
        questions = [
            Question(shard, self.served[shard.number], most, (0.0, _FAR), (), options, False) for shard in rich
        ]
        moved = 0
        try:
            answers = yield from together([question.heads(time.monotonic()) for question in questions])
            for question, answer in zip(questions, answers, strict=True):
                if isinstance(answer, Arrivals):
                    yield from question.columns({}, len(answer))
                    moved += len(answer)
        finally:
            for question in questions:
                question.close()
        for place, number in enumerate(poor):
            self._credit(number, moved // len(poor) + (place < moved % len(poor)))
        return moved

    def _look(self) -> Operation[None]:
        """Asks what the shards hold, and raises `_Waits` where the sample could not be drawn of it."""
        told = yield from self._told()
        infos = list(told.values())
        prioritized = isinstance(self.table.sampler, Prioritized)
        sums = [info["total_priority"] if prioritized else float(info["size"]) for info in infos]
        size = sum(info["size"] for info in infos)
        drawable = size - (sum(info["zero_priorities"] for info in infos) if prioritized else 0)
        over, shares = f"on {len(infos)} shards", {number: self.served[number].table.rate_limiter for number in told}
        reason = too_few(self.table.rate_limiter, shares, told)
        if not size:
            reason = reason or f"too few items: the table is empty {over}"
        elif not self.options.replace and drawable < self.count:
            few = f"{drawable} may be drawn {over}, a sample of {self.count} without replacement waits"
            reason = reason or f"too few items: {few}"
        elif not sum(sums) > 0:
            reason = reason or f"all priorities are zero: the table holds {size} items {over}, none may be drawn"
        if reason:
            self.cluster._sums.pop(self.name, None)
            if closed_on_all(told) and drawable == size:
                raise TableClosed(f"table {self.name!r} is closed on all shards, and {reason}")
            raise _Waits(reason)
        self.least = min(self.least, size)
        self.cluster._sums[self.name] = dict(zip((shard.number for shard in self.shards), sums, strict=True))

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _until(self, shard: Shard) -> float:
        """Up to when the shard's arrivals are known."""
        covered = self.covered.get(shard.number)
        return covered[-1][0] if covered else 0.0

    def _horizon(self) -> float:
        """How far to ask, so that probably enough arrive."""
        sums = self.cluster._sums.get(self.name, {})  # a reset by another thread may just have dropped them
        total = sum(sums.get(shard.number, 0.0) for shard in self.shards)
        if not total > 0:
            self.cluster._sums.pop(self.name, None)
            raise _Unknown
        complete = min(map(self._until, self.shards))
        order = self._first_by_time(complete)
        wanted = max(1, self.count - len(order))
        if not self.options.replace and len(order):
            powers = np.concatenate([piece.arrivals.powers for piece in self.pieces])
            total = max(total - powers[order].sum(), 1e-9 * total)
        doublings = min(max(0, self.rounds - 2), _MOST_DOUBLINGS)
        return complete + 2.0**doublings * (wanted + SURPLUS * math.sqrt(wanted)) / total

    def _questions(self) -> dict[int, Question]:
        most = {shard.number: min(self.count, MOST_ARRIVALS) for shard in self.shards}
        if self.options.replace or self.rounds < 2:
            horizon = self._horizon()
        else:
            complete = min(map(self._until, self.shards))
            if complete >= _FAR:  # all items have come, and were too few: some have left since, so it begins anew
                self.drop()
                self.cluster._sums.pop(self.name, None)
                raise _Unknown
            horizon, missing = _FAR, self.count - len(self._first_by_time(complete))
            for number in most:
                given = [piece.arrivals.ids for piece in self.pieces if piece.shard.number == number]
                seen = len(np.unique(np.concatenate(given))) if given else 0
                most[number] = min(missing + seen, MOST_ARRIVALS)
        self.rounds += 1
        unused = self.cluster._unused
        return {
            shard.number: Question(
                shard,
                self.served[shard.number],
                most[shard.number],
                (self._until(shard), horizon),
                self.names,
                self.options,
                self._codes(shard),
                unused.pop((self.name, shard.number), 0),
                self.shared,
            )
            for shard in self.shards
            if self._until(shard) < horizon
        }

    def _codes(self, shard: Shard) -> bool:
        """Whether the shard's windows come as steps: as of one server."""
        wanted, local = self.options.coded, shard._address.is_local
        wanted = False if self.shared and wanted is None and local else wanted
        return codes(self.table, self.count, self.names, wanted, local)

    def give_back(self, used: Sequence[int]) -> None:
        """Notes what is left over of each piece."""
        for piece, count in zip(self.pieces, used, strict=True):
            self._credit(piece.shard.number, len(piece.arrivals) - count)

    def _credit(self, number: int, unused: int) -> None:
        """Notes what a shard's rate limiter counts and nobody uses, to be told with the next question."""
        if unused and isinstance(self.table.rate_limiter, SampleToInsertRatio):
            key = self.name, number
            self.cluster._unused[key] = self.cluster._unused.get(key, 0) + unused

    def drop(self) -> None:
        """Uses nothing of what has arrived."""
        self.give_back([0] * len(self.pieces))
        self.pieces, self.covered, self.rounds = [], {}, 0

    def _answers(self, questions: dict[int, Question]) -> Operation[str]:
        """Asks them all at once; what they answer becomes pieces, whose columns are still to come. Returns why some
        cannot answer now (the table is being changed there, or too many items are in replies), or ""."""
        options = self.cluster._options
        waits = options.missing == "wait"
        connecting = time.monotonic() + (options.reconnect_timeout if waits else 0)
        patience = None if waits else time.monotonic() + options.missing_after
        answers = yield from together([question.heads(connecting) for question in questions.values()], patience)
        by_number = {shard.number: shard for shard in self.shards}
        held_back, error = "", None
        for (number, question), answer in zip(list(questions.items()), answers, strict=True):
            if isinstance(answer, Arrivals):
                self.pieces.append(_Piece(by_number[number], answer))
                self.covered.setdefault(number, []).append((answer.until, answer.sum, answer.size))
                continue
            del questions[number]
            if isinstance(answer, Timeout | NotPrimary):  # one that was lost may have heard what was unused
                self._credit(number, question.unused)
            if isinstance(answer, Timeout):
                held_back = answer.reason
            elif isinstance(answer, ConnectionLost) and options.missing == "leave_out" and not self.cluster._is_closed:
                self._leave_out(by_number[number])
            else:
                error = error or answer
        if error is not None:
            raise error
        if not self.shards:
            raise ConnectionLost(
                f"sample of {self.count} from {self.name!r}: no shard of {self.cluster._address} answers"
            )
        if not held_back:
            self._check_state()
        return held_back

    def _leave_out(self, shard: Shard) -> None:
        shard.leave_out()
        self.left_out.add(shard.number)
        self.shards.remove(shard)
        self.pieces = [piece for piece in self.pieces if piece.shard is not shard]
        self.covered.pop(shard.number, None)

    def _check_state(self) -> None:
        """Keeps the sums for the next sample; raises `_Unknown` where the shards no longer hold what a sample needs."""
        newest = [self.covered[shard.number][-1] for shard in self.shards]
        sums = {shard.number: each[1] for shard, each in zip(self.shards, newest, strict=True)}
        if sum(each[2] for each in newest) < self.least or not sum(sums.values()) > 0:
            self.cluster._sums.pop(self.name, None)
            self.drop()
            raise _Unknown
        self.cluster._sums[self.name] = sums

    # ---- merging -----------------------------------------------------------------------------------------------------

    def _first_by_time(self, until: float) -> np.ndarray:
        """Places of the first `count` arrivals up to that time, among those of all pieces one behind the other; each
        item once where it must be."""
        times = np.concatenate([piece.arrivals.times for piece in self.pieces] or [np.empty(0)])
        order = np.argsort(times, kind="stable")
        order = order[: np.searchsorted(times[order], until, side="right")]
        if not self.options.replace and len(order):
            ids = np.concatenate([piece.arrivals.ids for piece in self.pieces])
            order = order[np.sort(np.unique(ids[order], return_index=True)[1])]
        return order[: self.count]

    def _chosen(self) -> list[np.ndarray] | None:
        """Of each piece, which arrivals make the batch, ascending; None: too few have arrived."""
        order = np.sort(self._first_by_time(min(map(self._until, self.shards))))
        if len(order) < self.count:
            return None
        ends = np.cumsum([len(piece.arrivals) for piece in self.pieces])
        starts, bounds = np.concatenate([[0], ends[:-1]]), np.searchsorted(order, ends)
        return [each - start for each, start in zip(np.split(order, bounds[:-1]), starts, strict=True)]

    # ---- columns -----------------------------------------------------------------------------------------------------

    def _place_of_batch(self) -> Batch:
        if self.out is not None:
            return self.out
        return new_batch(self.table, self.count, self.names, details=self.options.details)

    def _aside(self, name: str, count: int) -> Any:
        """Where a column of that many items is received that has no place of its own."""
        column = self.table.columns[name]
        if column.ragged:
            return Ragged.into(Room(column.numpy_dtype, column.shape[1:], np.empty), count)
        return np.empty((count, *column.shape), column.numpy_dtype)

    def _received_aside(self, questions: dict[int, Question]) -> Operation[None]:
        for piece, question in zip(self.pieces[len(self.pieces) - len(questions) :], questions.values(), strict=True):
            count = len(piece.arrivals)
            piece.columns = {name: self._aside(name, count) for name in self.names}
            yield from question.columns(piece.columns, count)

    def _received_in_place(self, questions: dict[int, Question], chosen: list[np.ndarray]) -> Operation[Batch]:
        batch = self._place_of_batch()
        columns, at = batch.columns, 0
        parts: dict[str, list[Ragged]] = {}
        for piece, used, question in zip(self.pieces, map(len, chosen), questions.values(), strict=True):
            count, targets = len(piece.arrivals), {}
            for name, column in columns.items():
                aside = isinstance(column, Ragged) or at + count > self.count
                targets[name] = self._aside(name, count) if aside else _place(column, at, count)
            yield from question.columns(targets, count)
            for name, target in targets.items():
                if isinstance(target, Ragged):
                    parts.setdefault(name, []).append(items_of(target, 0, used))
                elif at + count > self.count:
                    columns[name][at : at + used] = target[:used]
            at += used
        for name, ragged in parts.items():
            join_ragged(ragged, columns[name])
        return self._with_heads(batch, chosen)

    def _copied(self, chosen: list[np.ndarray]) -> Batch:
        batch = self._place_of_batch()
        for name, column in batch.columns.items():
            pairs = [(piece.columns[name], used) for piece, used in zip(self.pieces, chosen, strict=True)]
            if isinstance(column, Ragged):
                join_ragged([_some_of(part, used) for part, used in pairs], column)
            else:
                np.concatenate([part[used] for part, used in pairs], out=column)
        return self._with_heads(batch, chosen)

    def _with_heads(self, batch: Batch, chosen: list[np.ndarray]) -> Batch:
        """Fills ids, probabilities and weights: (N P)^−β over the batch's maximum."""
        self.give_back([len(used) for used in chosen])
        pairs = list(zip((piece.arrivals for piece in self.pieces), chosen, strict=True))
        np.concatenate([each.ids[used] for each, used in pairs], out=batch.ids)
        powers = np.concatenate([each.powers[used] for each, used in pairs])
        times = np.concatenate([each.times[used] for each, used in pairs])
        totals, sizes = np.zeros(self.count), np.zeros(self.count)
        for covered in self.covered.values():
            at = np.searchsorted([each[0] for each in covered], times)
            totals += np.array([each[1] for each in covered])[at]
            sizes += np.array([each[2] for each in covered])[at]
        np.divide(powers, totals, out=batch.probabilities)
        relative = sizes * batch.probabilities
        ratios = np.maximum(relative.min() / relative, np.finfo(np.float64).smallest_subnormal)
        batch.weights[:] = ratios**self.options.importance_sampling_exponent
        if batch.details is not None:
            np.concatenate([each.details[used] for each, used in pairs if each.details is not None], out=batch.details)
            batch.details["table_sizes"] = sizes
        batch.missing = tuple(sorted(self.left_out))
        return batch


def _place(column: Any, at: int, count: int) -> np.ndarray:
    return column[at : at + count]


# ---- ragged columns --------------------------------------------------------------------------------------------------


def _some_of(column: Ragged, which: np.ndarray) -> Ragged:
    rows = [column[at] for at in which]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in rows], dtype=np.int64)])
    return Ragged(np.concatenate([column.values[:0], *rows]), offsets)


def join_ragged(parts: Sequence[Ragged], out: Ragged) -> None:
    """Writes parts one after another into `out`, which has room or gets it."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
    joined, room = np.cumsum(lengths), out.room
    assert room is not None
    head, size_bytes = joined.nbytes, int(joined[-1]) * room.row_bytes
    room.grow(head + size_bytes)
    room.memory[:head].view(np.int64)[:] = joined
    values = np.concatenate([part.values for part in parts] or [out.values[:0]])
    room.memory[head : head + size_bytes] = values.reshape(-1).view(np.uint8)
    out.settle(len(joined) - 1, head + size_bytes)
