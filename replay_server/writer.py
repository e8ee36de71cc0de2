"""Writers of steps and of items that see them through windows: what is gathered, when it is sent, and what is kept.

A writer numbers the steps of each of its streams (one for each environment), keeps the last of them, and sends them in
batches; an item is sent once the last step that its windows reach is there, or its episode has ended. Where steps and
items go is the business of a `StepSink`: a table in this process, or a server.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .background_sending import BackgroundSending
from .checks import as_array, check_column, check_priorities, check_timeout
from .driver import Operation, operation
from .errors import ConnectionLost, ReplayError, SchemaError, Timeout
from .ragged_spans import spans, take_slices
from .step_sender import STEP_FIRST, STEP_LAST, Items, StepRing, StepSender, Streams, in_step
from .step_sink import BlockingWriter, StepSink, StepWriting
from .table import MAX_HISTORY, Column, Table
from .tree import Leaves


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

    With `in_flight` the writer sends in a thread of its own, and `append` returns at once unless so many sends are due.
    What a send raises, the next call that sends raises, which has then taken nothing. Until a send has succeeded again,
    `append` waits for each. `flush(wait=False)` sends at once, and waits as `append` does; `flush` and `close` wait
    until all was sent. A writer that is dropped without `close`, or whose process ends, loses what is due.

    A writer to a server belongs to the process that made it: after a fork the child's calls are refused when they send.

    Args:
        table: with windows.
        sink: where it all goes.
        environments: n.
        flush_steps: calls of `append` that are gathered before they are sent.
        history: items can be made at this many newest steps of a stream.
        timeout: seconds that `append` waits for the rate limiter when it sends; None: as long as it takes.
        in_flight: sends that may be due while `append` goes on; 0: none. Of a table in this process it says nothing.
        tables: names of tables that share the table's steps (`steps_of`), which `create_items` can make items in, too.

    Raises:
        SchemaError: the table has no windows, or shares the steps of another one; a number is out of range; or one of
            `tables` does not share its steps, or comes twice.
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
        in_flight: int = 0,
        tables: Sequence[str] = (),
    ) -> None:
        if not table.windows:
            raise SchemaError(f"table {table.name!r} has no windows, so it takes no steps: use add")
        if table.steps_of is not None:
            raise SchemaError(
                f"table {table.name!r} shares the steps of table {table.steps_of!r}: make a writer to that one, with "
                f"tables=[{table.name!r}]"
            )
        check_in_flight(in_flight)
        flush, due = _whole("flush_steps", flush_steps), int(in_flight)
        before, after = table.reach
        # What is due, and as much that failed to be sent, lies in the ring besides.
        ahead = (due + 1) * flush if due else 0
        beside = flush + 2 * (before + after + 1 + ahead)
        default = max(1, min(max(32, 2 * (before + after + 1)), MAX_HISTORY - beside))
        back = default if history is None else _whole("history", history)
        kept = back + beside
        if kept > MAX_HISTORY:
            raise SchemaError(
                f"history, flush_steps, in_flight and windows need {kept} steps of a stream, "
                f"at most {MAX_HISTORY} are possible"
            )
        self._table = table
        self._tables = (table.name, *checked_tables(tables))
        self._count = _whole("environments", environments)
        self._flush_steps, self._history = flush, back
        self._timeout = check_timeout(timeout)
        none = np.zeros(self._count, np.int64)
        self._streams = Streams(none, none, np.zeros(self._count, np.bool_))
        self._ring = StepRing(self._count, kept)
        self._ordinary: frozenset[str] | None = None
        self._since_sent = 0
        """Calls of `append` since all was sent that could be: what an item sees leaves the ring when they go on."""
        self._made: list[Items] = []
        """Items for the sender to take."""
        self._numbers = itertools.count()
        self._sender = StepSender(table, sink, self._ring, kept - ahead, self._tables[1:])
        self._background: BackgroundSending | None = None
        if due:
            self._background = BackgroundSending(self._sender, due, f"the writer to {table.name!r}")
            weakref.finalize(self, self._background.end).atexit = False
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
                final observation: what is missing is zero, and the next append begins a new episode. It has at least
                one column that windows look at.
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
            self._ring.columns = self._new_columns(given)
            self._ordinary = frozenset(given)
        everyone = len(chosen) == self._count
        now = self._streams
        numbers = now.steps[chosen]
        kept = self._ring.kept
        # In step, one place for all: a copy of one piece.
        where = int(numbers[0]) % kept if everyone and in_step(numbers) else (numbers % kept, chosen)
        for name, ring in self._ring.columns.items():
            if name not in given:
                ring[where] = 0
            else:
                ring[where] = given[name] if everyone else given[name][chosen]
        last = last if everyone else last[chosen]
        begins = ~now.open[chosen]
        self._ring.episode[where] = episodes = np.where(begins, numbers, now.episode[chosen])
        self._ring.flags[where] = begins * np.uint8(STEP_FIRST) | last * np.uint8(STEP_LAST)
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
        self._ring.flags[(now.steps[chosen] - 1) % self._ring.kept, chosen] |= STEP_LAST  # saves a word of its own

    # ---- items -------------------------------------------------------------------------------------------------------

    def create_items(
        self,
        priorities: Any = None,
        at: Any = -1,
        columns: Mapping[str, Any] | None = None,
        *,
        mask: Any = None,
        table: str | None = None,
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
            table: where the items go: one of the writer's `tables`. None: the table that the steps go to.

        Raises:
            SchemaError: the writer has no such table, `at` is out of range, a column is unknown, wrong, or neither
                given nor appended, or a slice shows more than `max_length` steps, or steps that lie further back than
                `history`.
            PriorityError: a priority is NaN, infinite or negative.
        """
        self._check_turn()
        self._check_open()
        place = self._place_of(table)
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
        found = self._item_columns(columns or {}, chosen, steps)
        tables = np.full(len(chosen), place)
        self._made.append(Items(next(self._numbers), chosen, steps, raw, tables, found))

    def _place_of(self, table: str | None) -> int:
        if table is None or table in self._tables:
            return 0 if table is None else self._tables.index(table)
        raise SchemaError(
            f"this writer makes items in {', '.join(self._tables)}, got {table!r}: name it in tables=[…] when you make "
            "the writer"
        )

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
            elif name in self._ring.columns:
                found[name] = self._ring.columns[name][steps % self._ring.kept, chosen]
            else:
                raise SchemaError(f"column {name!r} is needed: it was not appended with the steps, so give it here")
        now = self._streams
        for name, window in windows.items():
            value = slices.get(name, slice(-min(window.steps, self._history), None))
            found[name] = spans(name, window, value, chosen, now.episode, now.steps, self._history)
        return found

    # ---- sending -----------------------------------------------------------------------------------------------------

    @operation
    def flush(self, timeout: float | None = None, wait: bool = True) -> Operation[np.ndarray]:
        """Sends all steps, and all items whose windows are complete.

        Args:
            timeout: seconds to wait for the rate limiter; None: as long as it takes.
            wait: whether to return only when all was sent. If not, a writer with `in_flight` waits only while so many
                sends are due. Other writers wait in any case.

        Returns:
            The ids of all items known to be stored since the last flush, uint64, in the order in which they were sent.
            Those that are still due are told by a later flush, those of other `tables` by none.

        Raises:
            Timeout: the rate limiter held items back. They wait here for the next flush; sends that are due go on.
            ReplayError: with `in_flight`, what an earlier send raised.
        """
        self._check_open()
        patience = check_timeout(timeout)
        yield from self._send_all(patience) if wait else self._send(patience)
        return self._sender.take_ids()

    @property
    def waiting(self) -> int:
        """Items that were made and not sent yet."""
        made = sum(len(items) for items in self._made if items.number > self._sender.newest)
        return made + (self._sender if self._background is None else self._background).waiting

    @operation
    def close(self, flush: bool = True) -> Operation[None]:
        """Ends the episodes, sends what is left (unless told not to), and gives the streams back."""
        if self._closed:
            return
        try:
            if flush:
                self._end_episode()
                yield from self._send_rest()
        finally:
            self._closed = True
            if self._background is None:
                self._sender.close()
            else:
                self._background.close()

    def _send_rest(self) -> Operation[None]:
        """What failed earlier, and nobody was told of, does not keep the rest from being sent."""
        try:
            yield from self._send_all(self._timeout)
        except ReplayError as failure:
            if self._background is not None and not isinstance(failure, Timeout):
                yield from self._send_all(self._timeout)
            raise

    def _send_all(self, timeout: float | None) -> Operation[None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        yield from self._send(timeout)
        if self._background is not None:
            self._background.settle(None if deadline is None else deadline - time.monotonic())

    def _send(self, timeout: float | None) -> Operation[None]:
        if self._background is None:
            self._sender.take(self._made)
            self._made.clear()
            yield from self._sender.send(self._streams, timeout)
        else:
            self._background.hand_over(self._streams, self._made, timeout)
        self._since_sent = 0

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
        # The words for a refusal take NumPy longer than the check.
        array = value if type(value) is np.ndarray else as_array(f"{name} must be {np.dtype(dtype)}", value)
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
        if missing and not any(name in given for name in self._table.step_columns):
            expected = ", ".join(self._table.step_columns)
            raise SchemaError(
                f"the final observation of an episode must have a column that windows look at: expected some of "
                f"{expected}, got {', '.join(given) or 'no columns'}; end_episode() ends an episode without one"
            )
        return last

    def _new_columns(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.zeros((self._ring.kept, *values.shape), values.dtype) for name, values in given.items()}


def checked_tables(names: Any) -> tuple[str, ...]:
    """The names of tables that a writer makes items in beside its own."""
    found = None if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if found is None or not all(isinstance(each, str) for each in found):
        raise SchemaError(f"tables must be a list of names of tables, got {names if found is None else found!r}")
    if twice := [name for place, name in enumerate(found) if name in found[:place]]:
        raise SchemaError(f"tables must name each table once, got {twice[0]!r} twice")
    return found


def check_in_flight(value: Any) -> None:
    """Raises SchemaError unless it is a number of sends that may be due."""
    if not isinstance(value, int | np.integer) or not 0 <= value <= MAX_HISTORY:
        raise SchemaError(f"in_flight must be a whole number from 0 to {MAX_HISTORY}, got {value!r}")


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or not 1 <= value <= MAX_HISTORY:
        raise SchemaError(f"{name} must be a whole number from 1 to {MAX_HISTORY}, got {value!r}")
    return int(value)


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
    def flush(self, timeout: float | None = None, wait: bool = True) -> Operation[np.ndarray]:
        """Sends what can be sent; the ids of all items sent since the last flush. See `VectorWriter.flush`."""
        return self._vector.flush(timeout, wait)

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
        self,
        priority: float | None = None,
        at: int = -1,
        columns: Mapping[str, Any] | None = None,
        table: str | None = None,
    ) -> None:
        """Makes one item at step `at`, to be sent once what it sees is there. See `VectorWriter.create_items`."""
        self._check_turn()
        priorities = None if priority is None else [priority]
        self._vector.create_items(priorities, at, self._rows.of_item(columns) if columns else None, table=table)


class VectorWriter(VectorWriting, BlockingWriter):
    __doc__ = VectorWriting.__doc__


class Writer(Writing, BlockingWriter):
    __doc__ = Writing.__doc__
