"""What a writer has gathered, and how it gets to a `StepSink`: which steps go, which items, and what is kept for later.

A `StepSender` runs in the caller's thread, or in one of its own (`background_sending`). It is given how far the streams
are, and reads the steps before that from a ring that is long enough: whoever appends meanwhile overwrites none of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .driver import Operation
from .errors import ConnectionLost, LimitExceeded, NotPrimary, ReplayError, TableClosed, TableNotFound, Timeout
from .step_sink import StepSink
from .table import Table

STEP_FIRST = 1
STEP_LAST = 2
MAX_KEPT_IDS = 1 << 20
"""Ids that a writer keeps for the next flush; of more, the newest."""

MAX_ITEMS = 1 << 16
"""Items sent at once."""
MAX_STEP_BYTES = 16 << 20
"""Of the steps sent at once, but for a single larger one: many environments together have more than a request may."""
_TURN_S = 0.1
"""How long one of several tables is waited for before the next one is asked."""


@dataclass(frozen=True)
class Items:
    """Items that wait, as columns: priority NaN stands for none given."""

    number: int
    """Of the call that made them, or of the newest of several; each call has a larger one."""
    streams: np.ndarray
    steps: np.ndarray
    priorities: np.ndarray
    tables: np.ndarray
    """Which of the writer's tables each goes to."""
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.streams)

    def taken(self, which: np.ndarray | slice) -> Items:
        """Some of them."""
        columns = {name: values[which] for name, values in self.columns.items()}
        rows = (self.streams[which], self.steps[which], self.priorities[which], self.tables[which])
        return Items(self.number, *rows, columns)

    @staticmethod
    def joined(parts: Sequence[Items]) -> Items:
        """All of several, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        streams, steps, priorities, tables = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("streams", "steps", "priorities", "tables")
        )
        return Items(parts[-1].number, streams, steps, priorities, tables, columns)


@dataclass(frozen=True)
class Streams:
    """How far each stream is. Replaced as a whole, so that an interrupted call has changed all of it or nothing."""

    steps: np.ndarray
    """Steps so far, int64 (n,)."""
    episode: np.ndarray
    """First step of the newest episode, int64 (n,)."""
    open: np.ndarray
    """Whether the newest episode goes on, bool (n,)."""

    def after_step(self, chosen: np.ndarray, episode: np.ndarray, last: np.ndarray) -> Streams:
        """One more step of the chosen streams."""
        steps, episodes, still_open = self.steps.copy(), self.episode.copy(), self.open.copy()
        steps[chosen] += 1
        episodes[chosen] = episode
        still_open[chosen] = ~last
        return Streams(steps, episodes, still_open)

    def after_end(self, chosen: np.ndarray) -> Streams:
        """The newest steps of the chosen streams were the last of their episodes."""
        still_open = self.open.copy()
        still_open[chosen] = False
        return Streams(self.steps, self.episode, still_open)


class StepRing:
    """The last `kept` steps of n streams: step t of every stream lies at t modulo kept.

    Attributes:
        columns: by name, (kept, n, …); empty before the first step.
        flags: STEP_FIRST and STEP_LAST, uint8 (kept, n).
        episode: the first step of a step's episode, int64 (kept, n).
    """

    def __init__(self, streams: int, kept: int) -> None:
        self.streams, self.kept = streams, kept
        self.columns: dict[str, np.ndarray] = {}
        self.flags = np.zeros((kept, streams), np.uint8)
        self.episode = np.zeros((kept, streams), np.int64)


@dataclass(frozen=True)
class _Held:
    """Items that were taken and not sent yet. Replaced as a whole: an interrupt neither loses nor doubles any."""

    newest: int = -1
    """The number of the newest that were taken."""
    waiting: list[Items] = field(default_factory=list[Items])


class StepSender:
    """Sends what a writer has gathered.

    Args:
        table: with windows.
        sink: where it all goes.
        ring: where the steps lie.
        resent: how many of a stream's last steps are sent again after its connection was lost.
        sharing: names of other tables that items go to: `Items.tables` counts them from 1, and 0 is `table`.
    """

    def __init__(self, table: Table, sink: StepSink, ring: StepRing, resent: int, sharing: Sequence[str] = ()) -> None:
        self._sharing = tuple(sharing)
        self._table, self._sink, self._ring, self._resent = table, sink, ring, resent
        self._after = table.reach[1]
        none = np.zeros(ring.streams, np.int64)
        self._sent_from = none
        """The step that is number 0 for the sink."""
        self._sent = none
        """Steps of each stream that the sink has, or had and forgot."""
        self._sink_open = np.zeros(ring.streams, np.bool_)
        """Whether the sink takes each stream's newest episode to go on."""
        self._held = _Held()
        self._ids: deque[int] = deque(maxlen=MAX_KEPT_IDS)
        """Of items that were sent: the sending thread appends, the caller takes."""
        self._most_items = [MAX_ITEMS] * (1 + len(sharing))
        self._stands = False

    @property
    def has_several_tables(self) -> bool:
        """Whether items go to other tables, too."""
        return bool(self._sharing)

    @property
    def waiting(self) -> int:
        """Items that were taken and not sent yet."""
        return sum(map(len, self._held.waiting))

    @property
    def newest(self) -> int:
        """The number of the newest items that were taken."""
        return self._held.newest

    def take(self, made: Sequence[Items]) -> None:
        """Takes items, to be sent with the next steps. Those that it has taken before are not taken twice."""
        held = self._held
        if fresh := [items for items in made if items.number > held.newest]:
            self._held = _Held(fresh[-1].number, [*held.waiting, *fresh])

    def take_ids(self) -> np.ndarray:
        """The ids of all items sent to the table since the last call, uint64, in the order in which they were sent."""
        return np.array([self._ids.popleft() for _ in range(len(self._ids))], np.uint64)

    def close(self) -> None:
        """Gives the streams back."""
        self._sink.close()

    def abort(self) -> None:
        """From another thread: ends what is being sent, as if the connection were lost."""
        self._sink.abort()

    def send(self, now: Streams, timeout: float | None) -> Operation[None]:
        """Sends all steps until `now`, and the items that were taken and whose windows are complete then.

        Raises what writers say that their calls raise: see `VectorWriter`.
        """
        # An interrupt in here leaves the streams in doubt: they are opened anew by the next sending.
        stood, self._stands = self._stands, False
        while not self._stands:
            if not stood or (yield from self._sink.leaves()):
                yield from self._reopen(now)
            try:
                yield from self._send_steps(now)
                yield from self._send_items(now, timeout)
            except (ConnectionLost, TableNotFound):
                raise
            except ReplayError as refusal:  # which changes nothing
                if isinstance(refusal, (TableClosed, NotPrimary)) and (yield from self._sink.leaves(refused=True)):
                    stood = False
                    continue
                self._stands = not isinstance(refusal, NotPrimary)
                raise
            self._stands = True

    def _reopen(self, now: Streams) -> Operation[None]:
        """Opens the streams. What is kept of each is sent next: after a loss that is all that later items can see."""
        yield from self._sink.open(self._ring.streams, self._ring.kept)
        # The oldest kept step may be half overwritten by one whose append was interrupted; no item sees it any more.
        self._sent_from = self._sent = np.maximum(0, now.steps - self._resent + 1)
        self._sink_open = np.zeros(self._ring.streams, np.bool_)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _send_steps(self, now: Streams) -> Operation[None]:
        times, streams = np.nonzero(np.arange((now.steps - self._sent).max())[:, None] < now.steps - self._sent)
        steps = self._sent[streams] + times
        step_bytes = sum(column.item_bytes for column in self._table.step_columns.values())
        most = max(1, MAX_STEP_BYTES // max(1, step_bytes))
        for first in range(0, len(streams), most):
            part = slice(first, first + most)
            yield from self._send_some_steps(streams[part], steps[part])
        ended = np.flatnonzero(self._sink_open & ~now.open)
        if len(ended):
            yield from self._sink.end_episodes(ended.astype(np.uint32))
            self._sink_open[ended] = False

    def _send_some_steps(self, streams: np.ndarray, steps: np.ndarray) -> Operation[None]:
        where = self._places(streams, steps)
        flags = self._ring.flags[where].reshape(-1).copy()  # an end may be noted meanwhile
        columns = {
            name: self._ring.columns[name][where].reshape(len(flags), *column.shape)
            for name, column in self._table.step_columns.items()
        }
        last = flags & STEP_LAST != 0
        yield from self._sink.send_steps(streams.astype(np.uint32), flags, columns)
        self._sent = self._sent + np.bincount(streams, minlength=self._ring.streams)
        self._sink_open[streams] = ~last  # of several steps of a stream, the newest

    def _places(self, streams: np.ndarray, steps: np.ndarray) -> Any:
        """Where steps lie in the ring: a slice where they lie in one piece, so that nothing is copied."""
        first, last, kept = int(steps[0]), int(steps[-1]), self._ring.kept
        whole = len(steps) == (last - first + 1) * self._ring.streams
        if whole and in_step(self._sent) and first % kept <= last % kept:
            return slice(first % kept, last % kept + 1)
        return steps % kept, streams

    # ---- items -------------------------------------------------------------------------------------------------------

    def _wait(self, *parts: Items) -> None:
        """These wait, and no others that were taken."""
        self._held = replace(self._held, waiting=[part for part in parts if len(part)])

    def _send_items(self, now: Streams, timeout: float | None) -> Operation[None]:
        if not self._held.waiting:
            return
        items = Items.joined(self._held.waiting)
        self._wait(items)
        complete = items.steps + self._after < now.steps[items.streams]
        episode = self._ring.episode[items.steps % self._ring.kept, items.streams]
        complete |= (episode != now.episode[items.streams]) | ~now.open[items.streams]
        ready, rest = items, items.taken(slice(0))
        if not complete.all():
            ready, rest = items.taken(complete), items.taken(~complete)
        tables = range(1 + len(self._sharing))
        parts = [ready.taken(ready.tables == place) for place in tables] if self._sharing else [ready]
        yield from self._send_ready(parts, rest, None if timeout is None else time.monotonic() + timeout)

    def _send_ready(self, parts: list[Items], rest: Items, deadline: float | None) -> Operation[None]:
        """Sends the items of each table. One whose rate limiter holds items back holds no other back: each is tried at
        once, and then those that are held back are waited for in turn, so that none waits for another one."""
        turn = 0.0
        while waiting := [place for place, part in enumerate(parts) if len(part)]:
            held: Timeout | None = None
            for place in waiting:
                until = deadline if len(waiting) == 1 else _sooner(deadline, time.monotonic() + turn)
                try:
                    yield from self._send_to(place, parts, rest, until)
                except Timeout as refusal:
                    held = refusal
            if held is not None and (len(waiting) == 1 or _sooner(deadline, time.monotonic()) == deadline):
                raise held
            turn = _TURN_S

    def _send_to(self, place: int, parts: list[Items], rest: Items, deadline: float | None) -> Operation[None]:
        """Sends a table's part, while the others, and the rest, wait. If it raises, what was not sent waits as well."""
        while len(ready := parts[place]):
            count = self._next_batch(ready, self._most_items[place])
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            # What is on its way does not wait: where no answer comes it may have been stored, and is not sent again.
            self._wait(*parts[:place], ready.taken(slice(count, None)), *parts[place + 1 :], rest)
            try:
                made = yield from self._send_batch(place, ready.taken(slice(count)), patience)
            except ConnectionLost:
                raise
            except ReplayError as refusal:
                self._wait(*parts, rest)
                if not isinstance(refusal, LimitExceeded) or count == 1:
                    raise
                self._most_items[place] = count // 2  # more than the table holds at once
                continue
            parts[place] = ready.taken(slice(made, None))
            self._wait(*parts, rest)

    @staticmethod
    def _next_batch(items: Items, most: int) -> int:
        """How many of the items go next: those with priorities apart from those without."""
        given = ~np.isnan(items.priorities[:most])
        other = np.flatnonzero(given != given[0])
        return int(other[0]) if len(other) else len(given)

    def _send_batch(self, place: int, items: Items, timeout: float | None) -> Operation[int]:
        """How many of the items were made: the first of them."""
        steps = (items.steps - self._sent_from[items.streams]).astype(np.uint64)
        priorities = None if np.isnan(items.priorities[0]) else items.priorities
        streams = items.streams.astype(np.uint32)
        columns = {name: self._as_sent(name, values, items.streams) for name, values in items.columns.items()}
        named = (self._sharing[place - 1],) if place else ()
        ids = yield from self._sink.send_items(streams, steps, priorities, columns, timeout, *named)
        if not place:
            self._ids.extend(ids.tolist())
        return len(ids)

    def _as_sent(self, name: str, values: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Of a ragged window, the first steps as the sink counts them; other columns as they are."""
        if name not in self._table.ragged_windows:
            return values
        sent = values.copy()
        sent[:, 0] -= self._sent_from[streams].astype(np.uint64)
        return sent


def _sooner(deadline: float | None, other: float) -> float:
    return other if deadline is None else min(deadline, other)


def in_step(numbers: np.ndarray) -> bool:
    """Whether all streams are equally far."""
    return bool((numbers == numbers[0]).all())
