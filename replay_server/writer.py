"""Writers of steps and of items that see them through windows: what is gathered, when it is sent, and what is kept.

A writer numbers the steps of each of its streams (one for each environment), keeps the last of them, and sends them in
batches; an item is sent once the last step that its windows reach is there, or its episode has ended. Where steps and
items go is the business of a `StepSink`: a table in this process, or a server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checks import as_array, check_column, check_priorities, check_timeout
from .driver import Operation, operation
from .errors import ConnectionLost, LimitExceeded, NotPrimary, ReplayError, SchemaError, TableClosed, TableNotFound
from .spans import spans, take_slices
from .step_sink import BlockingWriter, StepSink, StepWriting
from .table import MAX_HISTORY, Column, Table
from .tree import Leaves

STEP_FIRST = 1
STEP_LAST = 2
MAX_KEPT_IDS = 1 << 20
"""Ids that a writer keeps for the next flush; of more, the newest."""

MAX_ITEMS = 1 << 16
"""Items sent at once."""
MAX_STEP_BYTES = 16 << 20
"""Of the steps sent at once, but for a single larger one: many environments together have more than a request may."""


@dataclass
class _Items:
    """Items that wait, as columns: priority NaN stands for none given."""

    streams: np.ndarray
    steps: np.ndarray
    priorities: np.ndarray
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.streams)

    def taken(self, which: np.ndarray | slice) -> _Items:
        """Some of them."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return _Items(self.streams[which], self.steps[which], self.priorities[which], columns)

    @staticmethod
    def joined(parts: list[_Items]) -> _Items:
        """All of several, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        streams, steps, priorities = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("streams", "steps", "priorities")
        )
        return _Items(streams, steps, priorities, columns)


@dataclass(frozen=True)
class _Streams:
    """How far each stream is. Replaced as a whole, so that an interrupted call has changed all of it or nothing."""

    steps: np.ndarray
    """Steps so far, int64 (n,)."""
    episode: np.ndarray
    """First step of the newest episode, int64 (n,)."""
    open: np.ndarray
    """Whether the newest episode goes on, bool (n,)."""

    def after_step(self, chosen: np.ndarray, episode: np.ndarray, last: np.ndarray) -> _Streams:
        """One more step of the chosen streams."""
        steps, episodes, still_open = self.steps.copy(), self.episode.copy(), self.open.copy()
        steps[chosen] += 1
        episodes[chosen] = episode
        still_open[chosen] = ~last
        return _Streams(steps, episodes, still_open)

    def after_end(self, chosen: np.ndarray) -> _Streams:
        """The newest steps of the chosen streams were the last of their episodes."""
        still_open = self.open.copy()
        still_open[chosen] = False
        return _Streams(self.steps, self.episode, still_open)


class VectorWriting(StepWriting):
    """Writes the steps of n environments, and items over them, to a table with windows. For one thread.

    Steps are sent when `flush_steps` calls of `append` have been gathered and another comes, and with `flush`. An item
    is sent with them once all steps that its windows show are there. A call that raises `Timeout` (the rate limiter
    holds items back) or `NotPrimary` (the server is a replica by now) has taken nothing: call it again.
    `ConnectionLost` means that the items on their way may or may not have been stored; items that still wait, and later
    ones, are not affected: the writer sends their steps again.

    An interrupt, such as Ctrl-C or the cancellation of a task, may end any call. Items that were on their way then
    count as after `ConnectionLost`: each was stored once or not at all, none is sent again, and no flush returns its
    id. An interrupted `append`, `create_items` or `end_episode` took the whole of what it was given or nothing. The
    writer goes on after it.

    A writer to a server belongs to the process that made it: after a fork the child's calls are refused when they send.

    Args:
        table: with windows.
        sink: where it all goes.
        environments: n.
        flush_steps: calls of `append` that are gathered before they are sent.
        history: items can be made at this many newest steps of a stream.
        timeout: seconds that `append` waits for the rate limiter when it sends; None: as long as it takes.

    Raises:
        SchemaError: the table has no windows, or a number is out of range.
    """

    def __init__(
        self,
        table: Table,
        sink: StepSink,
        environments: int,
        *,
        flush_steps: int = 8,
        history: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if not table.windows:
            raise SchemaError(f"table {table.name!r} has no windows, so it takes no steps: use add")
        before, after = table.reach
        beside = flush_steps + 2 * (before + after + 1)
        back = min(max(32, 2 * (before + after + 1)), MAX_HISTORY - beside) if history is None else history
        kept = back + beside
        for name, number in (("environments", environments), ("flush_steps", flush_steps), ("history", back)):
            if not isinstance(number, int | np.integer) or not 1 <= number <= MAX_HISTORY:
                raise SchemaError(f"{name} must be a whole number from 1 to {MAX_HISTORY}, got {number!r}")
        if kept > MAX_HISTORY:
            raise SchemaError(
                f"history, flush_steps and windows need {kept} steps of a stream, at most {MAX_HISTORY} are possible"
            )
        self._table = table
        self._sink = sink
        self._count = int(environments)
        self._flush_steps, self._history, self._kept, self._after = int(flush_steps), int(back), int(kept), after
        self._timeout = check_timeout(timeout)
        none = np.zeros(self._count, np.int64)
        self._streams = _Streams(none, none, np.zeros(self._count, np.bool_))
        self._sent_from = none
        """The step that is number 0 for the sink."""
        self._sent = none
        """Steps of each stream that the sink has, or had and forgot."""
        self._sink_open = np.zeros(self._count, np.bool_)
        """Whether the sink takes each stream's newest episode to go on."""
        self._ring: dict[str, np.ndarray] = {}
        """The last steps by column, (kept, n, …): step t of every stream at t modulo kept."""
        self._ring_flags = np.zeros((self._kept, self._count), np.uint8)
        self._ring_episode = np.zeros((self._kept, self._count), np.int64)
        self._ordinary: frozenset[str] | None = None
        self._since_sent = 0
        """Calls of `append` since all was sent that could be: what an item sees leaves the ring when they go on."""
        self._waiting: list[_Items] = []
        self._ids: list[np.ndarray] = []
        self._most_items = MAX_ITEMS
        self._stands = False
        self._closed = False
        self._known = {**table.item_columns, **table.step_columns}
        self._everyone = np.arange(self._count)

    # ---- steps -------------------------------------------------------------------------------------------------------

    @operation
    def append(self, step: Mapping[str, Any], *, mask: Any = None, final: Any = None) -> Operation[None]:
        """Appends one step to each environment's stream.

        Args:
            step: column name → array (n, *column.shape), in the form of the signature: columns that windows look at,
                and others of the items, to be taken by `create_items`. Fewer columns than the first append had mean a
                final observation: what is missing is zero, and the next append begins a new episode.
            mask: bool (n,), the environments that append; the rows of others are not looked at. None: all.
            final: bool or bool (n,): this step is the last of its episode. None: by the columns, as above.

        Raises:
            SchemaError: a column is unknown or missing, or its dtype or shape differs. Nothing was taken.
            Timeout: see the class. Nothing was taken.
        """
        self._check_open()
        given = self._check_step(step)
        chosen = self._chosen(mask)
        last = self._check_final(final, given)
        if self._since_sent >= self._flush_steps:
            yield from self._send(self._timeout)
        if len(chosen) == 0:
            return
        if self._ordinary is None:
            self._ring = self._new_ring(given)
            self._ordinary = frozenset(given)
        everyone = len(chosen) == self._count
        now = self._streams
        numbers = now.steps[chosen]
        # In step, one place for all: a copy of one piece.
        where = int(numbers[0]) % self._kept if everyone and _in_step(numbers) else (numbers % self._kept, chosen)
        for name, ring in self._ring.items():
            if name not in given:
                ring[where] = 0
            else:
                ring[where] = given[name] if everyone else given[name][chosen]
        last = last if everyone else last[chosen]
        begins = ~now.open[chosen]
        self._ring_episode[where] = episodes = np.where(begins, numbers, now.episode[chosen])
        self._ring_flags[where] = begins * np.uint8(STEP_FIRST) | last * np.uint8(STEP_LAST)
        self._since_sent += 1
        self._streams = now.after_step(chosen, episodes, last)  # until here, nothing was taken

    def end_episode(self, mask: Any = None) -> None:
        """The newest steps of the environments (mask: bool (n,), of some) were the last of their episodes."""
        self._check_turn()
        self._end_episode(mask)

    def _end_episode(self, mask: Any = None) -> None:
        self._check_open()
        chosen = self._chosen(mask)
        now = self._streams
        chosen = chosen[now.open[chosen]]
        self._streams = now.after_end(chosen)
        self._ring_flags[(now.steps[chosen] - 1) % self._kept, chosen] |= STEP_LAST  # saves a word of its own

    # ---- items -------------------------------------------------------------------------------------------------------

    def create_items(
        self, priorities: Any = None, at: Any = -1, columns: Mapping[str, Any] | None = None, *, mask: Any = None
    ) -> None:
        """Makes one item for each environment, to be sent once its windows' steps are there.

        Args:
            priorities: (n,), raw; None: the maximum over the table's items when they are sent.
            at: the step of offset 0: −1 is the newest, −2 the one before it, to −history; a number, or (n,).
            columns: the items' own columns, arrays (n, *column.shape); those not given are taken from step `at`. Of
                ragged windows the slices that items show, of the newest episode's steps so far as of a list: one
                `slice`, or a list of n, whatever `at` is. A window that is not given shows the newest `max_length`
                steps, or `history` if that is less.
            mask: bool (n,), the environments that make one; the rows of others are not looked at. None: all.

        Raises:
            SchemaError: `at` is out of range, a column is unknown, wrong, or neither given nor appended, or a slice
                shows more than `max_length` steps, or steps that lie further back than `history`.
            PriorityError: a priority is NaN, infinite or negative.
        """
        self._check_turn()
        self._check_open()
        chosen = self._chosen(mask)
        if len(chosen) == 0:
            return
        raw = np.full(len(chosen), np.nan)
        if priorities is not None:
            raw = check_priorities(self._per_environment("priorities", priorities, np.float64)[chosen], len(chosen))
        back = self._per_environment("at", at, np.int64)[chosen]
        steps = self._streams.steps[chosen] + back
        wrong = (back >= 0) | (back < -self._history) | (steps < 0)
        if wrong.any():
            which = int(np.argmax(wrong))
            least = min(self._history, int(self._streams.steps[chosen[which]]))
            expected = f"from -1, the newest step, to {-least}" if least else "of a step, and none was appended yet"
            raise SchemaError(f"at must be {expected}, got {back[which]} for environment {chosen[which]}")
        self._waiting.append(_Items(chosen, steps, raw, self._item_columns(columns or {}, chosen, steps)))

    def _item_columns(self, columns: Mapping[str, Any], chosen: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
        own, windows = self._table.item_columns, self._table.ragged_windows
        slices, rest = take_slices(windows, columns)
        given: dict[str, Any] = self._table.taken_apart(rest)
        slices |= {name: given.pop(name) for name in windows if name in given}
        if unknown := [name for name in given if name not in own]:
            expected = ", ".join([*own, *windows])
            raise SchemaError(f"{unknown[0]!r} is not a column of items: expected some of {expected}")
        found = {}
        for name, column in own.items():
            if name in given:
                found[name] = self._check_rows(name, column, given[name])[chosen]
            elif name in self._ring:
                found[name] = self._ring[name][steps % self._kept, chosen]
            else:
                raise SchemaError(f"column {name!r} is needed: it was not appended with the steps, so give it here")
        now = self._streams
        for name, window in windows.items():
            value = slices.get(name, slice(-min(window.steps, self._history), None))
            found[name] = spans(name, window, value, chosen, now.episode, now.steps, self._history)
        return found

    # ---- sending -----------------------------------------------------------------------------------------------------

    @operation
    def flush(self, timeout: float | None = None) -> Operation[np.ndarray]:
        """Sends all steps, and all items whose windows are complete.

        Args:
            timeout: seconds to wait for the rate limiter; None: as long as it takes.

        Returns:
            The ids of all items sent since the last flush, uint64, in the order in which they were sent.

        Raises:
            Timeout: the rate limiter held items back; they wait here for the next flush.
        """
        self._check_open()
        yield from self._send(check_timeout(timeout))
        ids = np.concatenate([np.empty(0, np.uint64), *self._ids])
        self._ids.clear()
        return ids

    @property
    def waiting(self) -> int:
        """Items that were made and not sent yet."""
        return sum(map(len, self._waiting))

    @operation
    def close(self, flush: bool = True) -> Operation[None]:
        """Ends the episodes, sends what is left (unless told not to), and gives the streams back."""
        if self._closed:
            return
        try:
            if flush:
                self._end_episode()
                yield from self._send(self._timeout)
        finally:
            self._closed = True
            self._sink.close()

    def _send(self, timeout: float | None) -> Operation[None]:
        # An interrupt in here leaves the streams in doubt: they are opened anew by the next sending.
        stood, self._stands = self._stands, False
        while not self._stands:
            if not stood or (yield from self._sink.leaves()):
                yield from self._reopen()
            try:
                yield from self._send_steps()
                yield from self._send_items(timeout)
            except (ConnectionLost, TableNotFound):
                raise
            except ReplayError as refusal:  # which changes nothing
                if isinstance(refusal, (TableClosed, NotPrimary)) and (yield from self._sink.leaves(refused=True)):
                    stood = False
                    continue
                self._stands = not isinstance(refusal, NotPrimary)
                raise
            self._stands = True
        self._since_sent = 0

    def _reopen(self) -> Operation[None]:
        """Opens the streams. What is kept of each is sent next: after a loss that is all that later items can see."""
        yield from self._sink.open(self._count, self._kept)
        # The oldest kept step may be half overwritten by one whose append was interrupted; no item sees it any more.
        self._sent_from = self._sent = np.maximum(0, self._streams.steps - self._kept + 1)
        self._sink_open = np.zeros(self._count, np.bool_)

    def _send_steps(self) -> Operation[None]:
        now = self._streams
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
        flags = self._ring_flags[where].reshape(-1)
        columns = {
            name: self._ring[name][where].reshape(len(flags), *column.shape)
            for name, column in self._table.step_columns.items()
        }
        yield from self._sink.send_steps(streams.astype(np.uint32), flags, columns)
        self._sent = self._sent + np.bincount(streams, minlength=self._count)
        self._sink_open[streams] = flags & STEP_LAST == 0  # of several steps of a stream, the newest

    def _places(self, streams: np.ndarray, steps: np.ndarray) -> Any:
        """Where steps lie in the ring: a slice where they lie in one piece, so that nothing is copied."""
        first, last = int(steps[0]), int(steps[-1])
        whole = len(steps) == (last - first + 1) * self._count
        if whole and _in_step(self._sent) and first % self._kept <= last % self._kept:
            return slice(first % self._kept, last % self._kept + 1)
        return steps % self._kept, streams

    def _send_items(self, timeout: float | None) -> Operation[None]:
        if not self._waiting:
            return
        items = _Items.joined(self._waiting)
        self._waiting = [items]
        now = self._streams
        complete = items.steps + self._after < now.steps[items.streams]
        episode = self._ring_episode[items.steps % self._kept, items.streams]
        complete |= (episode != now.episode[items.streams]) | ~now.open[items.streams]
        ready, rest = items, items.taken(slice(0))
        if not complete.all():
            ready, rest = items.taken(complete), items.taken(~complete)
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(ready):
            count = self._next_batch(ready)
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            # What is on its way does not wait: where no answer comes it may have been stored, and is not sent again.
            self._waiting = _present(ready.taken(slice(count, None)), rest)
            try:
                made = yield from self._send_batch(ready.taken(slice(count)), patience)
            except ConnectionLost:
                raise
            except ReplayError as refusal:
                self._waiting = _present(ready, rest)
                if not isinstance(refusal, LimitExceeded) or count == 1:
                    raise
                self._most_items = count // 2  # more than the table holds at once
                continue
            ready = ready.taken(slice(made, None))
            self._waiting = _present(ready, rest)

    def _next_batch(self, items: _Items) -> int:
        """How many of the items go next: those with priorities apart from those without."""
        given = ~np.isnan(items.priorities[: self._most_items])
        other = np.flatnonzero(given != given[0])
        return int(other[0]) if len(other) else len(given)

    def _send_batch(self, items: _Items, timeout: float | None) -> Operation[int]:
        """How many of the items were made: the first of them."""
        steps = (items.steps - self._sent_from[items.streams]).astype(np.uint64)
        priorities = None if np.isnan(items.priorities[0]) else items.priorities
        streams = items.streams.astype(np.uint32)
        columns = {name: self._as_sent(name, values, items.streams) for name, values in items.columns.items()}
        ids = yield from self._sink.send_items(streams, steps, priorities, columns, timeout)
        self._ids.append(ids)
        if sum(map(len, self._ids)) > MAX_KEPT_IDS:
            self._ids = [np.concatenate(self._ids)[-MAX_KEPT_IDS:]]
        return len(ids)

    def _as_sent(self, name: str, values: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Of a ragged window, the first steps as the sink counts them; other columns as they are."""
        if name not in self._table.ragged_windows:
            return values
        sent = values.copy()
        sent[:, 0] -= self._sent_from[streams].astype(np.uint64)
        return sent

    # ---- checks ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost(f"the writer to {self._table.name!r} is closed: make another one")

    def _chosen(self, mask: Any) -> np.ndarray:
        """The environments of a mask, as indices."""
        if mask is None:
            return self._everyone
        return np.flatnonzero(self._per_environment("mask", mask, np.bool_))

    def _per_environment(self, name: str, value: Any, dtype: Any) -> np.ndarray:
        if type(value) is int and dtype is np.int64:
            return np.full(self._count, value)
        array = as_array(f"{name} must be {np.dtype(dtype)}", value)
        kinds = {"b": "b", "i": "iu", "f": "iuf"}[np.dtype(dtype).kind]
        if array.dtype.kind not in kinds or array.shape not in ((), (self._count,)):
            raise SchemaError(
                f"{name} must be {np.dtype(dtype)} of shape () or ({self._count},), got {array.dtype} {array.shape}"
            )
        return array.astype(dtype) if array.ndim else np.full(self._count, array, dtype)

    def _check_rows(self, name: str, column: Column, value: Any) -> np.ndarray:
        array = check_column(name, column, value)
        if len(array) != self._count:
            raise SchemaError(f"column {name!r} has {len(array)} rows for {self._count} environments")
        return array

    def _check_step(self, step: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if not isinstance(step, Mapping):
            raise SchemaError(f"expected a dict of columns for table {self._table.name!r}, got {type(step).__name__}")
        known, step = self._known, self._table.taken_apart(step)
        if unknown := [name for name in step if name not in known]:
            raise SchemaError(f"{unknown[0]!r} is not a column of steps: expected some of {', '.join(known)}")
        return {name: self._check_rows(name, known[name], value) for name, value in step.items()}

    def _check_final(self, final: Any, given: dict[str, np.ndarray]) -> np.ndarray:
        if final is None and given.keys() == self._ordinary:
            return np.zeros(self._count, np.bool_)
        ordinary = self._ordinary or frozenset(self._table.step_columns)
        missing = [name for name in self._table.leaves if name in ordinary and name not in given]
        if missing and self._ordinary is None:
            raise SchemaError(f"the first step of a writer must have column {missing[0]!r}, which windows look at")
        if extra := [name for name in given if self._ordinary is not None and name not in ordinary]:
            raise SchemaError(f"column {extra[0]!r} was not among those of the first append: {', '.join(ordinary)}")
        last = np.full(self._count, bool(missing)) if final is None else self._per_environment("final", final, np.bool_)
        if missing and not last.all():
            raise SchemaError(f"only the final observation of an episode may lack columns: {missing[0]!r} is missing")
        return last

    def _new_ring(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.zeros((self._kept, *values.shape), values.dtype) for name, values in given.items()}


def _in_step(numbers: np.ndarray) -> bool:
    """Whether all streams are equally far."""
    return bool((numbers == numbers[0]).all())


def _present(*parts: _Items) -> list[_Items]:
    """Those that hold any."""
    return [part for part in parts if len(part)]


class SingleRows:
    """What one environment gives, with a leading dimension of 1; lists stay lists, so that numbers may be converted."""

    def __init__(self, table: Table) -> None:
        self._table = table
        columns = {**table.item_columns, **table.step_columns}
        self._dtypes = {name: column.numpy_dtype for name, column in columns.items() if not column.shape}

    def of(self, values: Any) -> Any:
        """Columns as rows by path; anything else than a dict as it is, to be refused."""
        values = self._table.taken_apart(values)
        if not isinstance(values, Mapping):
            return values
        return Leaves((name, self._row(name, value)) for name, value in values.items())

    def of_item(self, columns: Mapping[str, Any]) -> Any:
        """As `of`, of an item's columns and the slices that its ragged windows show."""
        slices, rest = take_slices(self._table.ragged_windows, columns)
        return Leaves(self.of(rest) | slices)

    def _row(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[None]
        if isinstance(value, slice):
            return [value]
        dtype = self._dtypes.get(name)
        # Numbers that surely fit go the short way; others are converted, or refused, with care.
        if dtype is not None and type(value) in _SHORT_WAYS.get(dtype.kind, ()) and -128 < value < 128:
            return np.array((value,), dtype) if value >= 0 or dtype.kind != "u" else [value]
        return (
            [value]
            if isinstance(value, bool | int | float | complex | bytes | list | tuple)
            else as_array(f"column {name!r} expects an array", value)[None]
        )


_SHORT_WAYS = {"i": (int,), "u": (int,), "f": (int, float)}


class OneEnvironment(StepWriting):
    """A writer of a single environment over one of n, `_vector`."""

    def __init__(self, table: Table, vector: Any) -> None:
        self._vector = vector
        self._rows = SingleRows(table)

    @operation
    def flush(self, timeout: float | None = None) -> Operation[np.ndarray]:
        """Sends what can be sent; the ids of all items sent since the last flush. See `VectorWriter.flush`."""
        return self._vector.flush(timeout)

    @property
    def waiting(self) -> int:
        """Items that were made and not sent yet."""
        return self._vector.waiting

    def end_episode(self) -> None:
        """The newest step was the last of its episode; the next begins a new one."""
        self._check_turn()
        self._vector.end_episode()

    @operation
    def close(self, flush: bool = True) -> Operation[None]:
        """Ends the episode, sends what is left (unless told not to), and gives the stream back."""
        return self._vector.close(flush)


class Writing(OneEnvironment):
    """Writes the steps of one environment, and items over them, to a table with windows. For one thread.

    As `VectorWriter` for a single environment, whose values come without the dimension of the environments.
    """

    def __init__(self, table: Table, sink: StepSink, **options: Any) -> None:
        super().__init__(table, VectorWriting(table, sink, 1, **options))

    @operation
    def append(self, step: Mapping[str, Any], *, final: bool | None = None) -> Operation[None]:
        """Appends one step: column name → value of the column's shape. See `VectorWriter.append`."""
        return self._vector.append(self._rows.of(step), final=final)

    def create_item(
        self, priority: float | None = None, at: int = -1, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Makes one item at step `at`, to be sent once what it sees is there. See `VectorWriter.create_items`."""
        self._check_turn()
        priorities = None if priority is None else [priority]
        self._vector.create_items(priorities, at, self._rows.of_item(columns) if columns else None)


class VectorWriter(VectorWriting, BlockingWriter):
    __doc__ = VectorWriting.__doc__


class Writer(Writing, BlockingWriter):
    __doc__ = Writing.__doc__
