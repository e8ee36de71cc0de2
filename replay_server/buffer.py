"""A table in this process: the native core without server or sockets, with the methods of the client."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._native import ffi, lib
from .batch import Batch, read_only
from .buffer_arrays import AddPlan, Landing, SamplePlan, ids_of, new_ids, priorities_of
from .buffer_files import load_table, save_table, snapshot_path, take_settings
from .buffer_streams import BufferStreams
from .checks import check_awaited, check_batch_size, check_ids, check_reason, check_timeout, check_version
from .codec import pack
from .driver import at_once
from .errors import ConnectionLost, ReplayError, SchemaError, TableClosed, Timeout, error_from_core, explain
from .n_step_writer import make_writer
from .options import SampleOptions, SamplerOptions, TableChanges, exponent
from .process_bound import Staying
from .sampler import Sampler
from .selectors import RateLimiter, Selector
from .table import Table, changes_map
from .table_info import settings_told
from .table_methods import TableMethods
from .tree import names_of
from .updater import Updater
from .writer import check_in_flight

_MAX_PLANS = 64
"""Choices of columns that are remembered."""

_INFO_FIELDS = (
    "size", "capacity", "bytes", "added", "sampled", "removed", "stale_updates", "stale_items", "updates_applied",
    "reserved_slots", "pinned_slots", "free_slots", "retired_slots", "item_bytes", "steps", "step_bytes", "streams",
    "max_priority", "total_priority", "unused", "disk_bytes", "cold_pages",
)  # fmt: skip


_buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
_held: list[Buffer] = []


def _hold_all() -> None:
    """Before a fork: no other thread is within a table, so that the child's copies are whole, and their locks free."""
    for reference in _buffers.valuerefs():
        if (buffer := reference()) is not None:
            buffer._saving.acquire()
            buffer._lock.acquire()
            _held.append(buffer)


def _let_go() -> None:
    while _held:
        buffer = _held.pop()
        buffer._lock.release()
        buffer._saving.release()


os.register_at_fork(before=_hold_all, after_in_parent=_let_go, after_in_child=_let_go)


def _free(drawing: list[Landing], core: Any) -> None:
    for landing in drawing:
        landing.let_go(core)
    lib.table_free(core)


class Buffer(TableMethods, Staying):
    """A table in process. Methods, results and errors are those of `replay_server.Client` without the table's name.

    Any number of threads may share it: a call locks the table while it runs, but not while it waits. A forked child has
    its own copy, as it was at the fork.

    Args:
        table: what it holds.

    Raises:
        SchemaError: the core refuses the table's spec, the table shares the steps of another one, or its storage is not
            "memory": a forked child could not
            have its own copy of a file.
        LimitExceeded: there is no memory for it.
    """

    _send_instead = "processes share a table of a server, by a Client or its handle"

    def __init__(self, table: Table) -> None:
        self._table = table
        # Reentrant, since a finalizer may run while it is held: that of a sampler tells those who wait to look again.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._saving = threading.Lock()
        """Held by whoever saves or restores; taken before the other."""
        self._waiting_add: set[object] = set()
        """Who waits, so that one who leaves twice, or was interrupted on the way in, is counted right."""
        self._waiting_sample: set[object] = set()
        self._watching: set[object] = set()
        self._error = ffi.new("struct error *")
        if table.storage != "memory":
            raise SchemaError(
                f"table {table.name!r} has storage {table.storage!r}, which needs a server: use "
                "rs.Server([table], directory=…), or storage='memory'"
            )
        if table.steps_of is not None:
            raise SchemaError(
                f"table {table.name!r} shares the steps of table {table.steps_of!r}, which needs a server: use "
                "rs.Server with both tables"
            )
        config = ffi.new("struct table_config *")
        spec = table.pack()
        if lib.table_config_parse(config, ffi.NULL, spec, len(spec), self._error) != 0:
            raise self._refusal()
        core = lib.table_new(config, self._error)
        if core == ffi.NULL:
            raise self._refusal()
        self._drawing: list[Landing] = []
        """At most one: of a draw of ragged columns that is under way, or was interrupted."""
        self._core = ffi.gc(core, functools.partial(_free, self._drawing))
        self._abandoned: list[np.ndarray] = []
        """Streams of writers that were dropped; see `BufferStreams`."""
        self._counts = ffi.new("uint64_t[2]")
        self._add_plan = AddPlan(table)
        self._plans: dict[tuple[str, ...] | None, SamplePlan] = {}
        _buffers[id(self)] = self

    def __repr__(self) -> str:
        return f"Buffer({self._table.name!r}, capacity={self._table.capacity})"

    def __len__(self) -> int:
        core = ffi.new("struct table_info *")
        with self._lock:
            lib.table_info(self._core, core)
        return core.size

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def table(self) -> Table:
        """What the buffer was made with, changes by `configure` included."""
        return self._table

    def _reason(self) -> str:
        return ffi.string(self._error.message).decode("utf-8", "replace")

    def _refusal(self) -> ReplayError:
        return error_from_core(ffi.string(lib.error_code_name(self._error.code)).decode(), self._reason())

    def _check(self, status: int) -> None:
        if status != 0:
            raise self._refusal()

    def _refusal_of(self, attempt: Callable[[], int]) -> ReplayError | None:
        """Why the table does not admit it; None: it does."""
        try:
            return self._refusal() if attempt() else None
        except Timeout as error:
            return error

    def _waited(
        self,
        waiting: set[object],
        what: str,
        timeout: float | None,
        attempt: Callable[[], int],
        cancelled: threading.Event | None = None,
    ) -> None:
        """Tries until the table admits it or time is up, counted among those that wait. The lock is held, and given up
        while waiting."""
        deadline = None if timeout is None else time.monotonic() + timeout
        token = object()
        try:
            waiting.add(token)
            while (error := self._refusal_of(attempt)) is not None:
                if not isinstance(error, Timeout):
                    raise error
                if lib.table_has_work(self._core):
                    lib.table_step(self._core, 2**64 - 1)
                    continue
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise explain(what, timeout, error)
                if cancelled is not None and cancelled.is_set():
                    raise ConnectionLost(f"{what}: the sampler was closed")
                self._wait_for_change(left)
        finally:
            waiting.discard(token)

    def _wait_for_change(self, seconds: float | None) -> None:
        """Waits without the lock, which is held again when it ends, however it ends."""
        try:
            self._changed.wait(seconds)
        except BaseException:
            if not self._lock._is_owned():  # type: ignore[attr-defined]
                self._lock.acquire()  # an interrupt came before the condition began to see to that
            raise

    def _notify(self) -> None:
        if self._waiting_add or self._waiting_sample or self._watching:
            self._changed.notify_all()

    # ---- items -------------------------------------------------------------------------------------------------------

    def add(self, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None) -> np.ndarray:
        """Adds N items, all or none; their ids, uint64 (N,). See `replay_server.Client.add`."""
        timeout = check_timeout(timeout)
        count, arrays = self._add_plan.arrays(data)
        raw = ffi.NULL if priorities is None else priorities_of(priorities, count)
        ids, ids_memory = new_ids(count)
        if count == 0:
            return ids
        pointers = self._add_plan.pointers
        with self._lock:
            for index, array in enumerate(arrays):
                pointers[index] = array
            if lib.table_add_batch(self._core, count, pointers, raw, ids_memory, self._error):
                own = ffi.new("void *[]", arrays)  # others use the plan's while this one waits
                self._waited(
                    self._waiting_add,
                    f"add of {count} to {self._table.name!r}",
                    timeout,
                    lambda: lib.table_add_batch(self._core, count, own, raw, ids_memory, self._error),
                )
            self._notify()
        return ids

    def _written(self, kinds: tuple[type, type], environments: int | None, *options: Any) -> Any:
        n_step, discount, given = options
        check_in_flight(given.get("in_flight", 0))
        if given.get("tables"):
            raise SchemaError("a Buffer is one table: tables that share steps need a server, rs.Server([…])")
        more = {name: value for name, value in given.items() if name != "in_flight"}  # nothing is under way here
        return make_writer(kinds, self._table, BufferStreams(self), environments, n_step, discount, more)

    def sample(
        self,
        batch_size: int,
        importance_sampling_exponent: float | None = None,
        timeout: float | None = None,
        out: Batch | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        policy_version: int | None = None,
        coded: bool | None = None,
        writable: bool | None = None,
        *,
        beta: float | None = None,
        details: bool = False,
    ) -> Batch:
        """Draws a batch. See `replay_server.Client.sample`; `coded` is for what travels, and without effect here."""
        check_batch_size(batch_size)
        beta = exponent(importance_sampling_exponent, beta)
        if policy_version is not None:
            self._see_version(policy_version)
        batch = self._sample(batch_size, beta, timeout, out, columns, replace, details, None)
        return read_only(batch) if writable is False else batch

    def _see_version(self, policy_version: int) -> None:
        version = check_version(policy_version)
        with self._lock:
            self._check(lib.table_see_version(self._core, version, self._error))
            self._notify()

    def _sample(
        self,
        batch_size: int,
        beta: float,
        timeout: float | None,
        out: Batch | None,
        columns: Sequence[str] | None,
        replace: bool,
        details: bool,
        cancelled: threading.Event | None,
    ) -> Batch:
        timeout = check_timeout(timeout)
        chosen = None if columns is None else names_of(columns)
        plan = self._plans.get(chosen) or self._plan(chosen)
        batch, landing = plan.landing(batch_size, out, details)

        def attempt() -> int:
            if landing.ragged:
                self._begin_drawing(landing)
            status = lib.table_sample_batch(
                self._core,
                landing.count,
                beta,
                replace,
                plan.count,
                plan.indices,
                landing.pointers,
                landing.slots,
                landing.ids,
                landing.probabilities,
                landing.weights,
                landing.details,
                self._error,
            )
            return self._with_rows(landing, status) if landing.ragged else status

        with self._lock:
            if attempt():
                what = f"sample of {landing.count} from {self._table.name!r}"
                self._waited(self._waiting_sample, what, timeout, attempt, cancelled)
            self._notify()
        return batch

    def _begin_drawing(self, landing: Landing) -> None:
        """Before items with ragged columns are drawn: those of a draw that was interrupted are let go of."""
        for interrupted in self._drawing:
            interrupted.let_go(self._core)
        self._drawing[:] = [landing]

    def _with_rows(self, landing: Landing, status: int) -> int:
        """Receives the ragged columns too; `status` is what the core returned."""
        status = landing.taken(self._core, status)
        self._drawing.clear()
        return status

    def _plan(self, chosen: tuple[str, ...] | None) -> SamplePlan:
        """What a sample of those columns needs to know, kept for the next one."""
        plan = SamplePlan(self._table, chosen)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[chosen] = plan
        return plan

    def get(self, ids: Any) -> Batch:
        """The live items of those ids. See `replay_server.Client.get`."""
        checked = check_ids(ids)
        count = len(checked)
        plan = self._plans.get(None) or self._plan(None)
        batch, landing = plan.landing(count, None, False)
        batch.ids[:] = checked
        batch.weights.fill(1.0)
        if count:
            with self._lock:
                if landing.ragged:
                    self._begin_drawing(landing)
                status = lib.table_get_batch(
                    self._core,
                    count,
                    landing.ids,
                    plan.count,
                    plan.indices,
                    landing.pointers,
                    landing.slots,
                    landing.probabilities,
                    self._error,
                )
                self._check(self._with_rows(landing, status) if landing.ragged else status)
        return batch

    def update_priorities(self, ids: Any, priorities: Any) -> tuple[int, int]:
        """Sets priorities; how many were applied, how many stale. See `replay_server.Client.update_priorities`."""
        memory = ids_of(ids)
        count = len(memory)
        raw = priorities_of(priorities, count)
        applied, stale = self._counts, self._counts + 1
        with self._lock:
            if lib.table_update(self._core, count, memory, raw, applied, stale, self._error):
                raise self._refusal()
            self._notify()
            return applied[0], stale[0]

    def updater(self) -> Updater:
        """What a client has to update priorities without waiting; here each update is done at once."""
        return Updater(at_once(self.update_priorities))

    def delete(self, ids: Any) -> int:
        """Removes items; how many of the ids were live."""
        memory = ids_of(ids)
        with self._lock:
            count = lib.table_delete(self._core, len(memory), memory)
            self._notify()
        return int(count)

    def _check_against_table(self, check: Callable[[Table], object]) -> None:
        check(self._table)

    def _sampler(self, options: SamplerOptions) -> Sampler:
        self._table.chosen(options.sample.columns)
        cancelled = threading.Event()

        def cancel() -> None:
            cancelled.set()
            with self._lock:
                self._changed.notify_all()

        def draw(sample: SampleOptions, out: Batch) -> Batch:
            if sample.policy_version is not None:
                self._see_version(sample.policy_version)
            beta, columns = sample.importance_sampling_exponent, sample.columns
            return self._sample(
                options.batch_size, beta, sample.timeout, out, columns, sample.replace, sample.details, cancelled
            )

        return Sampler(at_once(draw), lambda: self._table, cancel, options)

    # ---- the table ---------------------------------------------------------------------------------------------------

    def close_table(self, reason: str | None = None) -> None:
        """Ends the table's data; who waits in other threads is told at once. See `replay_server.Client.close_table`."""
        given = (check_reason(reason) or "").encode()
        with self._lock:
            self._check(lib.table_close(self._core, given, len(given), self._error))
            self._changed.notify_all()

    def open_table(self) -> None:
        """Opens a closed table again. See `replay_server.Client.open_table`."""
        with self._lock:
            lib.table_open(self._core)

    def configure(
        self,
        *,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        max_bytes: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        """Changes the table; None leaves a value as it is. See `replay_server.Client.configure`."""
        given = TableChanges(sampler, remover, rate_limiter, max_times_sampled, max_bytes, max_staleness)
        changes = given.given()
        packed = pack(changes_map(changes))
        with self._lock:
            self._check(lib.table_configure(self._core, packed, len(packed), self._error))
            self._table = dataclasses.replace(self._table, **changes)
            self._changed.notify_all()

    def info(self) -> dict[str, Any]:
        """Counters and state. See `replay_server.Client.info`. A server's `shard` and `incarnation` are not there."""
        core = ffi.new("struct table_info *")
        with self._lock:
            lib.table_info(self._core, core)
            fields = {**settings_told(self._table), **{name: getattr(core, name) for name in _INFO_FIELDS}}
            seen = core.newest_version
            counts = ffi.new("uint64_t[]", lib.TABLE_PRIORITY_BUCKETS)
            lib.table_priorities(self._core, counts)
            fields["zero_priorities"] = counts[0]
            least = lib.TABLE_PRIORITY_LEAST - 1
            fields["priorities"] = {least + i: counts[i] for i in range(1, len(counts)) if counts[i]}
            fields["closed"] = bool(core.closed)
            fields["closed_reason"] = ffi.string(core.closed_reason).decode("utf-8", "replace")
            fields["policy_version"] = None if seen == -(2**63) else seen
            admitted = lib.table_can_sample(self._core, 1, True, self._error)
            fields["reason"] = "" if admitted else self._reason()
            admitted = lib.table_can_add(self._core, 1, self._error)
            fields["reason_add"] = "" if admitted else self._reason()
            # An add or a sample that runs holds the lock, so whoever is counted here waits.
            fields["waiting_add"], fields["waiting_sample"] = len(self._waiting_add), len(self._waiting_sample)
            fields["waiting"] = fields["waiting_add"] + fields["waiting_sample"]
        return fields

    def await_items(
        self, *, since: int | None = None, size: int | None = None, timeout: float | None = None
    ) -> tuple[int, int]:
        """Waits for what other threads add. See `replay_server.Client.await_items`."""
        check_awaited(since, size)
        timeout = check_timeout(timeout)
        core = ffi.new("struct table_info *")

        def attempt() -> int:
            lib.table_info(self._core, core)
            if core.size >= size if size is not None else core.added != since:
                return 0
            if core.closed:
                reason = ffi.string(core.closed_reason).decode("utf-8", "replace")
                raise TableClosed(f"table '{self._table.name}' is closed{reason and ': '}{reason}")
            there = f"the table holds {core.size}" if size is not None else f"{core.added} were added"
            raise Timeout(f"{there}, waiting for {'more' if size is None else size}")

        with self._lock:
            self._waited(self._watching, f"wait for items of {self._table.name!r}", timeout, attempt)
        return core.added, core.size

    def checkpoint(self, name: str | os.PathLike[str] | None = None) -> str:
        """Saves the table as it is now, while other threads keep using it; returns when the file is on the disk.

        A server's snapshots have the same format: `restore` reads both (docs/snapshot.md).

        Args:
            name: path of the file, which is replaced if it exists; ".snapshot" is added if it does not end so. None: a
                new one in the current folder, named by the time.

        Returns:
            The file's path.

        Raises:
            ServerError: it could not be written; an older file of that name is unchanged.
            LimitExceeded: the table changed faster than the disk took the snapshot.
        """
        path = snapshot_path(name)
        folder, file = os.path.split(os.path.abspath(path))
        with self._saving:
            save_table(self, folder, file)
        return path

    def restore(self, name: str | os.PathLike[str]) -> list[str]:
        """Puts the table of a snapshot in the place of this one: items, ids, priorities, order, counters.

        All of it is read and checked first; a damaged file changes nothing. Signature and capacity must be the same;
        the settings that `configure` changes stay as they are here. Streams of writers end: a call that sends raises
        `ConnectionLost`, and after it the writer can be used again.

        Args:
            name: path of the file; ".snapshot" is added if it does not end so.

        Returns:
            Lines that say what was restored, and which settings differ from those saved.

        Raises:
            TableNotFound: the file has no table of this name.
            SchemaError: that table has another signature or capacity.
            ServerError: the file is damaged or cut short; the message names the place.
        """
        path = snapshot_path(name)
        with self._saving:
            drawing: list[Landing] = []
            core = load_table(self, path, functools.partial(_free, drawing))
            with self._lock:
                said = take_settings(self, core)
                # Streams of the old table go with it, wherever their writers are.
                self._core, self._drawing, self._abandoned = core, drawing, []
                self._changed.notify_all()
        return [f"table '{self._table.name}' of {path}: {len(self)} items", *said]

    def reset(self) -> None:
        """Removes every item and forgets the newest policy version; the rate limiter starts anew, ids stay unique."""
        with self._lock:
            lib.table_reset(self._core)
            self._notify()
