"""What a client of a server can do: each operation written once, for blocking callers and for asyncio.

`client.Client` and `aio.Client` are these with a driver (`driver`), and a pool of connections of its kind. Commands are
made in `commands` and `gradients`; `lost_calls` sends them.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from . import commands
from .batch import Batch, check_out, is_writable, new_batch, read_only
from .checks import check_columns, check_ids, check_priorities
from .client_gradients import GradientOperations
from .client_streams import ClientStreams
from .commands import Command, ServedTable
from .connection import Address
from .connection_pool import ConnectionPool
from .driver import Operation, Written, operation
from .errors import ReplayError, SchemaError, TableNotFound
from .lost_calls import answered
from .n_step_writer import make_writer
from .options import ClientOptions, SampleOptions, TableChanges
from .table import RateLimiter, Selector, Table

P = ParamSpec("P")
T = TypeVar("T")


class Operations(GradientOperations):
    """The operations of a server, over a pool of connections; see `replay_server.Client`."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = 5.0,
        socket_timeout: float = 60.0,
        reconnect_timeout: float = 5.0,
        shared_memory: bool | None = None,
    ) -> None:
        self._address = Address.of_client(url)
        self._options = ClientOptions(connect_timeout, socket_timeout, reconnect_timeout, shared_memory)
        self._pool = self._new_pool(self._address, self._options)
        self._tables: dict[str, ServedTable] = {}
        self._redis: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (type(self), self.url, asdict(self._options))

    @property
    def url(self) -> str:
        """The URL that the client was made with."""
        return self._address.url

    @staticmethod
    def _new_pool(address: Address, options: ClientOptions) -> ConnectionPool[Any]:
        raise NotImplementedError

    def _redis_options(self) -> dict[str, Any]:
        """What a redis-py client of the same server is made with, beside the URL."""
        timeouts = {
            "socket_connect_timeout": self._options.connect_timeout,
            "socket_timeout": self._options.socket_timeout,
        }
        return {**timeouts, **self._address.redis_options()}

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _answer(self, command: Command[T]) -> Operation[T]:
        """What a command returns. Where its table is missing, the error names the one that may have been meant."""
        try:
            return (yield from answered(self._pool, command, self._options.reconnect_timeout))
        except TableNotFound as error:
            raise (yield from self._with_known_tables(error, str(command.arguments[1]))) from None

    def _with_known_tables(self, error: TableNotFound, name: str) -> Operation[TableNotFound]:
        known: list[str] = []
        with contextlib.suppress(ReplayError):
            known = yield from answered(self._pool, commands.tables(), self._options.reconnect_timeout)
        return commands.with_known_tables(error, name, known)

    def _look_up(self, name: str) -> Operation[ServedTable]:
        """The table of that name as the server has it now."""
        self._tables.pop(name, None)
        served = yield from self._answer(commands.spec(name))
        self._tables[name] = served
        return served

    def _known(self, name: str) -> Operation[ServedTable]:
        """The table as it was when last looked up; what follows from it is sent with its incarnation."""
        served = self._tables.get(name)
        return (yield from self._look_up(name)) if served is None else served

    def _of_current(self, name: str, attempt: Callable[[ServedTable], Operation[T]]) -> Operation[T]:
        """Does what follows from a table's spec: again, once, where the table was made anew since that was read. The
        refusal changed nothing."""
        served = yield from self._known(name)
        try:
            return (yield from attempt(served))
        except SchemaError:
            if (current := (yield from self._look_up(name))).incarnation == served.incarnation:
                raise
        return (yield from attempt(current))

    @operation
    def command(self, *arguments: str | bytes | int, repeatable: bool = False) -> Operation[Any]:
        """Any command that answers at once, over this client's own connections: for programs that do without redis-py.

        Args:
            arguments: the command's name and what follows it.
            repeatable: whether doing it twice does no harm: then it is sent again where the connection was lost.

        Returns: the reply: bytes for what was stored, str for a status such as "OK", int, None, a list, a dict.

        Raises:
            ReplayError: the error reply.
            ConnectionLost: the connection broke; whether the command was done is not known.
        """
        return self._answer(commands.any_command(arguments, repeatable))

    # ---- tables ------------------------------------------------------------------------------------------------------

    @operation
    def create_table(self, table: Table) -> Operation[None]:
        """Creates a table; creating it again with the same spec is fine.

        Raises:
            SchemaError: a table of that name has another spec.
            LimitExceeded: the server has no room for it.
        """
        yield from self._answer(commands.create(table))
        self._tables.pop(table.name, None)

    @operation
    def tables(self) -> Operation[list[str]]:
        """The names of the server's tables."""
        return self._answer(commands.tables())

    @operation
    def table(self, name: str) -> Operation[Table]:
        """What the server's table of that name is.

        Raises:
            TableNotFound: there is none.
        """
        return (yield from self._look_up(name)).table

    @operation
    def drop_table(self, name: str) -> Operation[None]:
        """Removes a table with all its items; whoever waits on it gets `TableNotFound`."""
        yield from self._answer(commands.drop(name))
        self._tables.pop(name, None)

    @operation
    def close_table(self, name: str, reason: str | None = None) -> Operation[None]:
        """Ends a table's data: nothing enters it until `open_table`, and whoever waits is told at once.

        An `add`, an append or an item of a writer raises `TableClosed`, waiting or not. Samples go on with what is
        there; one that would wait for more items raises `TableClosed`, and the iteration of a `sampler` ends. Updates,
        reads and deletions go on. A snapshot keeps a table closed, `reset` does too. Closing a closed table replaces
        the reason.

        Args:
            name: the table.
            reason: one line of at most 127 bytes for those who are told.

        Raises:
            TableNotFound: there is none.
        """
        return self._answer(commands.close_table(name, reason))

    @operation
    def open_table(self, name: str) -> Operation[None]:
        """Opens a closed table again; one that is open stays so.

        Raises:
            TableNotFound: there is none.
        """
        return self._answer(commands.open_table(name))

    @operation
    def configure(
        self,
        name: str,
        *,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        max_bytes: int | None = None,
        max_staleness: int | None = None,
    ) -> Operation[None]:
        """Changes a live table; None leaves a value as it is, `max_staleness=-1` lifts that limit.

        Items beyond new limits leave, as the remover chooses. The server works through a large table in slices while
        it serves others; adding and sampling wait until it is done, and so does this call.

        Raises:
            SchemaError: a value is outside what its field allows.
        """
        changes = TableChanges(sampler, remover, rate_limiter, max_times_sampled, max_bytes, max_staleness)
        yield from self._answer(commands.configure(name, changes.given()))
        self._tables.pop(name, None)

    @operation
    def info(self, name: str) -> Operation[dict[str, Any]]:
        """Counters and state of a table: at least size, capacity, bytes, added, sampled, removed, stale_updates,
        max_priority, priorities (exponent e: items with 2^e <= priority < 2^(e + 1)), zero_priorities, waiting (blocked
        clients), reason (why a sample would wait now, "" if it would not), closed (bool) and closed_reason."""
        return self._answer(commands.info(name))

    @operation
    def await_items(
        self, name: str, *, since: int | None = None, size: int | None = None, timeout: float | None = None
    ) -> Operation[tuple[int, int]]:
        """Waits for what others add, instead of asking `info` again and again. Nothing is sampled by it.

        Args:
            name: the table.
            since: waits until `added` is not this any more: begin with 0, go on with what the last call returned. A
                table that was made anew counts from 0 again, and answers at once.
            size: or: waits until at least so many items are there.
            timeout: seconds; None = for ever, 0 = not at all.

        Returns:
            (added, size): items that were ever added, and those that are there.

        Raises:
            Timeout: nothing was added, or too little is there.
            TableClosed: neither will come: the table is closed.
            TableNotFound: there is no such table, or it was dropped meanwhile.
        """
        return self._answer(commands.await_items(name, since, size, timeout))

    @operation
    def reset(self, name: str) -> Operation[None]:
        """Removes every item of a table and forgets its newest policy version; its rate limiter starts anew."""
        return self._answer(commands.reset(name))

    @operation
    def checkpoint(self, name: str | None = None) -> Operation[str]:
        """Saves all tables as they are now, while everyone else is served; returns when the file is on the disk.

        Args:
            name: of the file in the server's directory, replaced if it is there; gets ".snapshot" at its end where it
                has not. None: a new one named by the time; of those the server keeps the newest few (setting
                snapshot-keep).

        Returns:
            The path of the file on the server's machine.

        Raises:
            ServerError: it could not be written; no file of that name is there, or the one that was.
            LimitExceeded: the tables changed faster than the disk took the snapshot, or there are as many files of
                given names as there may be (setting snapshot-named-limit).
        """
        return self._answer(commands.checkpoint(name))

    @operation
    def restore(self, name: str) -> Operation[list[str]]:
        """Puts the tables of a snapshot in the places of those of the same names; other tables stay.

        All of it is read and checked first, while everyone is served; a damaged file changes nothing. A table here
        must be the same as the one saved but for what `configure` changes, and that goes on as it is. Ids of the
        snapshot are valid again. Who waits at a table that is replaced is served by the new one.

        Args:
            name: of the file in the server's directory; gets ".snapshot" at its end where it has not.

        Returns:
            What was restored, and which limits were not those saved; a line each.

        Raises:
            ServerError: the file is damaged or cut short; the message names the place.
        """
        return self._answer(commands.restore(name))

    # ---- items -------------------------------------------------------------------------------------------------------

    @operation
    def add(
        self, name: str, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None
    ) -> Operation[np.ndarray]:
        """Adds N items, all or none.

        Args:
            name: the table.
            data: column name → array (N, *column.shape) of exactly the column's dtype; lists of Python numbers are
                converted where that loses nothing but a float's last digits.
            priorities: float64 (N,), raw (before α), at least 0, 0 = never sampled; None = the maximum over the live
                items, 1.0 if there are none.
            timeout: seconds to wait for the rate limiter; None = for ever, 0 = not at all.

        Returns:
            The items' ids, uint64 (N,).

        Raises:
            SchemaError, PriorityError: nothing was stored.
            Timeout: the rate limiter did not admit them in time; nothing was stored.
            TableClosed: the table is closed, or was closed meanwhile; nothing was stored.
            LimitExceeded: they could never be admitted.
            ConnectionLost: whether they were stored is not known.
        """

        def attempt(served: ServedTable) -> Operation[np.ndarray]:
            count, columns = check_columns(served.table, data)
            checked = None if priorities is None else check_priorities(priorities, count)
            if count == 0:
                return np.empty(0, np.uint64)
            return (yield from self._answer(commands.add(served, count, columns, checked, timeout)))

        return self._of_current(name, attempt)

    @operation
    def sample(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float = 0.4,
        timeout: float | None = None,
        out: Batch | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        policy_version: int | None = None,
        coded: bool | None = None,
        writable: bool | None = None,
    ) -> Operation[Batch]:
        """Draws a batch, received straight into its arrays.

        Args:
            name: the table.
            batch_size: items.
            importance_sampling_exponent: β of the weights.
            timeout: seconds to wait for the rate limiter; None = for ever, 0 = not at all.
            out: a batch of the same size whose arrays are used again; received over the socket also by a client that
                shares memory with its server.
            columns: only these; None = all.
            replace: whether an item may come more than once. Without, it waits until there are `batch_size` that may be
                drawn; `probabilities` stay those of a draw with replacement. `Fifo`, `Lifo` and heaps never repeat.
            policy_version: the version of the caller's policy, for tables with a column of that name: items more than
                the table's `max_staleness` behind it leave before the draw.
            coded: whether windows are received as the distinct steps of the batch, compressed where the table is, and
                expanded here. None: where the server is on another host, or the table is compressed. Without effect
                where there are no windows, or they show more steps than that is good for.
            writable: whether the columns can be written to, which keeps them out of shared memory. None: unless the
                client was made with `shared_memory=True`.

        Raises:
            Timeout: sampling was not possible in time; `.reason` says why.
            TableClosed: the table is closed and has too few items for this batch.
            SchemaError: `out` or `columns` do not fit the table.
            LimitExceeded: no wait could admit the batch.
        """
        options = SampleOptions(importance_sampling_exponent, timeout, columns, replace, policy_version, coded)
        keeps = is_writable(writable, out, self._options.shared_memory)
        shared = bool(self._options.shared_memory) and not keeps and not coded
        batch = yield from self._sample(name, batch_size, out, shared, options)
        return batch if keeps else read_only(batch)

    def _sample(
        self, name: str, batch_size: int, out: Batch | None, shared: bool, options: SampleOptions
    ) -> Operation[Batch]:
        """A batch; `shared`: into shared memory where there is some, else into `out`."""

        def attempt(served: ServedTable) -> Operation[Batch]:
            columns, wanted, local = options.columns, options.coded, self._address.is_local
            if out is not None:
                check_out(out, served.table, batch_size, columns)
            batch = new_batch(served.table, batch_size, columns) if out is None else out
            wanted = False if shared and wanted is None and local else wanted
            coded = commands.codes(served.table, batch_size, columns, wanted, local)
            return self._answer(commands.sample(served, batch_size, batch, options, shared, coded))

        return self._of_current(name, attempt)

    @operation
    def get(self, name: str, ids: Any) -> Operation[Batch]:
        """The live items of those ids, probabilities as of now, all weights 1.

        Raises:
            ServerError: one of them has left the table.
        """
        checked = check_ids(ids)

        def attempt(served: ServedTable) -> Operation[Batch]:
            return self._answer(commands.get(served, checked, new_batch(served.table, len(checked))))

        return self._of_current(name, attempt)

    @operation
    def update_priorities(self, name: str, ids: Any, priorities: Any) -> Operation[tuple[int, int]]:
        """Sets the priorities of items that are still there.

        Args:
            name: the table.
            ids: uint64 (n,), as `add` and `sample` gave them; where an id comes twice the last one counts.
            priorities: float64 (n,), raw, at least 0.

        Returns:
            How many were applied, and how many were stale because their item has left.

        Raises:
            PriorityError: a priority is NaN, infinite or negative; nothing was changed.
        """
        checked = check_ids(ids)
        return self._answer(commands.update(name, checked, check_priorities(priorities, len(checked))))

    @operation
    def delete(self, name: str, ids: Any) -> Operation[int]:
        """Removes items; how many of the ids were live."""
        return self._answer(commands.delete(name, check_ids(ids)))

    def _written(
        self,
        kinds: tuple[type, type],
        name: str,
        environments: int | None,
        n_step: int | None,
        discount: float | None,
        options: Mapping[str, Any],
    ) -> Operation[Any]:
        """A writer of the first kind, or, with n_step, of the second."""
        served = yield from self._known(name)
        return make_writer(kinds, served.table, ClientStreams(self, served), environments, n_step, discount, options)

    # ---- weights -----------------------------------------------------------------------------------------------------

    @operation
    def publish_weights(self, key: str, arrays: Mapping[str, Any], version: int | None = None) -> Operation[int]:
        """Publishes named arrays or tensors; readers see the whole set or the one before.

        Args:
            key: whose weights.
            arrays: name → array or tensor (bfloat16 is refused).
            version: above the published one; None = one more than that. Publishing the same arrays as the same
                version again is fine.

        Returns:
            The version.

        Raises:
            StaleVersion: a newer version is published, or other arrays as that version.
        """
        return self._answer(commands.publish_weights(key, arrays, version))

    @operation
    def fetch_weights(
        self, key: str, newer_than: int | None = None
    ) -> Operation[tuple[int, dict[str, np.ndarray]] | None]:
        """The newest published weights: version and arrays; None when there are none newer than `newer_than`."""
        return self._answer(commands.fetch_weights(key, newer_than))


def _client(kind: type[Operations], url: str, options: dict[str, Any]) -> Operations:
    """What a pickled client becomes."""
    return kind(url, **options)


# ---- of one table ----------------------------------------------------------------------------------------------------


def _of_table(named: operation[Concatenate[str, P], T]) -> operation[P, T]:
    """An operation of a client as one of a handle, which knows the table's name."""
    signature = inspect.signature(named.written)

    def written(self: TableOperations, *arguments: Any, **options: Any) -> Operation[Any]:
        return named.written(self._client, self.name, *arguments, **options)

    written.__name__ = named.written.__name__
    written.__qualname__ = f"TableOperations.{written.__name__}"
    written.__doc__ = re.sub(r"\n +name: the table\.(?=\n)", "", named.__doc__ or "")
    kept = [each for each in signature.parameters.values() if each.name != "name"]
    written.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return operation(written)


class TableOperations(Written):
    """The operations of one table of a server: those of its client, without the table's name."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self.name = client, name

    add = _of_table(Operations.add)
    sample = _of_table(Operations.sample)
    get = _of_table(Operations.get)
    update_priorities = _of_table(Operations.update_priorities)
    delete = _of_table(Operations.delete)
    close_table = _of_table(Operations.close_table)
    open_table = _of_table(Operations.open_table)
    configure = _of_table(Operations.configure)
    info = _of_table(Operations.info)
    await_items = _of_table(Operations.await_items)
    reset = _of_table(Operations.reset)
