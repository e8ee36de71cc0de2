"""The blocking client: one object for any number of threads; each running command has a connection of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from . import commands
from .batch import Allocate, Batch, check_out, is_writable, new_batch, read_only
from .checks import check_columns, check_ids, check_priorities
from .client_gradients import GradientMethods
from .client_streams import ClientStreams
from .commands import Command, ServedTable
from .connection import Address
from .connection_pool import ConnectionPool
from .errors import ConnectionLost, ReplayError, SchemaError, TableNotFound
from .n_step_writer import NStepWriter, VectorNStepWriter, make_vector_writer, make_writer
from .sampler import Sampler
from .table import RateLimiter, Selector, Table
from .writer import VectorWriter, Writer

if TYPE_CHECKING:
    import redis

T = TypeVar("T")


class Client(GradientMethods):
    """A client of a replay server; a context manager, which closes it.

    Connecting is tried again for `reconnect_timeout` seconds. Where a connection breaks under a command that is safe to
    repeat (reads, samples, priority updates, `publish_weights` of a version), the command is repeated as long; where
    it may have changed something (`add`, `delete`, `publish_weights` without a version), `ConnectionLost` is raised at
    once and the next command connects anew.

    Args:
        url: `redis://[[user]:password@]host:port` or `unix:///path`. Where it carries no password, that of the
            variable REPLAY_SERVER_PASSWORD is given.
        connect_timeout: seconds for one attempt to connect.
        socket_timeout: seconds without progress, beyond a command's own `timeout`, until the server counts as lost.
        reconnect_timeout: seconds to go on trying.
        shared_memory: where the server is on this host, whether large columns are returned as read-only arrays over
            memory shared with it, without copying them; elsewhere nothing changes. True: by `sample` (without `out`)
            and `sampler`; None: by `sampler` alone; False: never. A loopback TCP client switches to the server's unix
            socket by itself. The memory is given back when the last array over it has gone; a client that holds on to
            more than the server shares with it (CONFIG shared-memory-client-limit) gets further batches over the
            socket. See `Batch.release`.

    A client can be pickled, for processes that were spawned: what is sent is the URL as it was given, a password in it
    included, and the settings. A forked child may go on with its parent's client: it connects anew.

    Raises:
        ValueError: the URL is malformed. (Connecting happens with the first command.)
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = 5.0,
        socket_timeout: float = 60.0,
        reconnect_timeout: float = 5.0,
        shared_memory: bool | None = None,
    ) -> None:
        self._shared_memory = shared_memory
        self._address = Address.of_client(url)
        self._timeouts = (connect_timeout, socket_timeout, reconnect_timeout)
        self._pool = ConnectionPool(self._address, connect_timeout, socket_timeout, bool(shared_memory))
        self._tables: dict[str, ServedTable] = {}
        self._redis: redis.Redis | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._address)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, (type(self), self.url, self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """What makes a client like this one, beside the URL."""
        connect, sock, reconnect = self._timeouts
        timeouts = {"connect_timeout": connect, "socket_timeout": sock, "reconnect_timeout": reconnect}
        return {**timeouts, "shared_memory": self._shared_memory}

    @property
    def url(self) -> str:
        """The URL that the client was made with."""
        return self._address.url

    @property
    def redis(self) -> redis.Redis:
        """A redis-py client of the same server with the same timeouts, for all but REPLAY.*, WEIGHTS.* and GRAD.*."""
        if self._redis is None:
            import redis

            connect, sock, _ = self._timeouts
            self._redis = redis.Redis.from_url(
                self._address.url,
                socket_connect_timeout=connect,
                socket_timeout=sock,
                **self._address.redis_options(),
            )
        return self._redis

    def command(self, *arguments: str | bytes | int, repeatable: bool = False) -> Any:
        """Any command that answers at once, over this client's own connections: for programs that do without redis-py.

        Args:
            arguments: the command's name and what follows it.
            repeatable: whether doing it twice does no harm: then it is sent again where the connection was lost.

        Returns: the reply: bytes for what was stored, str for a status such as "OK", int, None, a list, a dict.

        Raises:
            ReplayError: the error reply.
            ConnectionLost: the connection broke; whether the command was done is not known.
        """
        return self._run(commands.any_command(arguments, repeatable))

    def close(self) -> None:
        """Closes every connection; a command that waits in another thread raises `ConnectionLost` at once."""
        self._pool.close()
        if self._redis is not None:
            self._redis.close()

    # ---- connections -------------------------------------------------------------------------------------------------

    def _run(self, command: Command[T]) -> T:
        """Runs a command on a connection of its own, repeating it after a loss where that is safe."""
        try:
            return self._attempts(command)
        except TableNotFound as error:
            raise self._with_known_tables(error, str(command.arguments[1])) from None

    def _with_known_tables(self, error: TableNotFound, name: str) -> TableNotFound:
        known: list[str] = []
        with contextlib.suppress(ReplayError):
            known = self._attempts(commands.tables())
        return commands.with_known_tables(error, name, known)

    def _attempts(self, command: Command[T]) -> T:
        deadline = time.monotonic() + self._timeouts[2]
        while True:
            connection = self._pool.acquire(deadline, command.shared)
            try:
                return connection.execute(command)
            except ConnectionLost:
                if self._pool.closed:
                    raise ConnectionLost(f"{command.what}: the client of {self._address} was closed") from None
                if not command.repeatable:
                    raise
                # A wait may have lasted longer than the time to reconnect: that time starts with the loss.
                if command.wait_s is None or command.wait_s > 0:
                    deadline = max(deadline, time.monotonic() + self._timeouts[2])
                if time.monotonic() > deadline:
                    raise
            finally:
                self._pool.release(connection)

    def _look_up(self, name: str) -> ServedTable:
        """The table of that name as the server has it now."""
        self._tables.pop(name, None)
        served = self._run(commands.spec(name))
        self._tables[name] = served
        return served

    def _known(self, name: str) -> ServedTable:
        """The table as it was when last looked up; what follows from it is sent with its incarnation."""
        served = self._tables.get(name)
        return self._look_up(name) if served is None else served

    # ---- tables ------------------------------------------------------------------------------------------------------

    def create_table(self, table: Table) -> None:
        """Creates a table; creating it again with the same spec is fine.

        Raises:
            SchemaError: a table of that name has another spec.
            LimitExceeded: the server has no room for it.
        """
        self._run(commands.create(table))
        self._tables.pop(table.name, None)

    def tables(self) -> list[str]:
        """The names of the server's tables."""
        return self._run(commands.tables())

    def table(self, name: str) -> Table:
        """What the server's table of that name is.

        Raises:
            TableNotFound: there is none.
        """
        return self._look_up(name).table

    def drop_table(self, name: str) -> None:
        """Removes a table with all its items; whoever waits on it gets `TableNotFound`."""
        self._run(commands.drop(name))
        self._tables.pop(name, None)

    def close_table(self, name: str, reason: str | None = None) -> None:
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
        self._run(commands.close_table(name, reason))

    def open_table(self, name: str) -> None:
        """Opens a closed table again; one that is open stays so.

        Raises:
            TableNotFound: there is none.
        """
        self._run(commands.open_table(name))

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
    ) -> None:
        """Changes a live table; None leaves a value as it is, `max_staleness=-1` lifts that limit.

        Items beyond new limits leave, as the remover chooses. The server works through a large table in slices while
        it serves others; adding and sampling wait until it is done, and so does this call.

        Raises:
            SchemaError: a value is outside what its field allows.
        """
        changes = {
            "sampler": sampler,
            "remover": remover,
            "rate_limiter": rate_limiter,
            "max_times_sampled": max_times_sampled,
            "max_bytes": max_bytes,
            "max_staleness": max_staleness,
        }
        self._run(commands.configure(name, changes))
        self._tables.pop(name, None)

    def info(self, name: str) -> dict[str, Any]:
        """Counters and state of a table: at least size, capacity, bytes, added, sampled, removed, stale_updates,
        max_priority, priorities (exponent e: items with 2^e <= priority < 2^(e + 1)), zero_priorities, waiting (blocked
        clients), reason (why a sample would wait now, "" if it would not), closed (bool) and closed_reason."""
        return self._run(commands.info(name))

    def await_items(
        self, name: str, *, since: int | None = None, size: int | None = None, timeout: float | None = None
    ) -> tuple[int, int]:
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
        return self._run(commands.await_items(name, since, size, timeout))

    def reset(self, name: str) -> None:
        """Removes every item of a table and forgets its newest policy version; its rate limiter starts anew."""
        self._run(commands.reset(name))

    def checkpoint(self, name: str | None = None) -> str:
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
        return self._run(commands.checkpoint(name))

    def restore(self, name: str) -> list[str]:
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
        return self._run(commands.restore(name))

    # ---- items -------------------------------------------------------------------------------------------------------

    def add(
        self, name: str, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None
    ) -> np.ndarray:
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
        served = self._known(name)
        try:
            return self._add(served, data, priorities, timeout)
        except SchemaError:
            # The table may have been made anew since its spec was read. Nothing was stored: trying again is safe.
            if (current := self._look_up(name)).incarnation == served.incarnation:
                raise
        return self._add(current, data, priorities, timeout)

    def _add(self, served: ServedTable, data: Mapping[str, Any], priorities: Any, timeout: float | None) -> np.ndarray:
        count, columns = check_columns(served.table, data)
        checked = None if priorities is None else check_priorities(priorities, count)
        if count == 0:
            return np.empty(0, np.uint64)
        return self._run(commands.add(served, count, columns, checked, timeout))

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
    ) -> Batch:
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
        options = {
            "beta": importance_sampling_exponent,
            "timeout": timeout,
            "columns": columns,
            "replace": replace,
            "policy_version": policy_version,
        }
        keeps = is_writable(writable, out, self._shared_memory)
        shared = bool(self._shared_memory) and not keeps and not coded
        batch = self._sample(name, batch_size, out, shared, coded, options)
        return batch if keeps else read_only(batch)

    def _sample(
        self,
        name: str,
        batch_size: int,
        out: Batch | None,
        shared: bool,
        coded: bool | None,
        options: Mapping[str, Any],
    ) -> Batch:
        """`sample` with the options of `commands.sample`; `shared`: into shared memory, else into `out`."""
        columns = options["columns"]
        for attempt in (0, 1):
            served = self._known(name)
            try:
                if out is not None:
                    check_out(out, served.table, batch_size, columns)
                batch = new_batch(served.table, batch_size, columns) if out is None else out
                wanted = False if shared and coded is None and self._address.is_local else coded
                codes = commands.codes(served.table, batch_size, columns, wanted, local=self._address.is_local)
                command = commands.sample(served, batch_size, out=batch, shared=shared, coded=codes, **options)
                return self._run(command)
            except SchemaError:
                if attempt or self._look_up(name).incarnation == served.incarnation:
                    raise
        raise AssertionError("unreachable")

    def get(self, name: str, ids: Any) -> Batch:
        """The live items of those ids, probabilities as of now, all weights 1.

        Raises:
            ServerError: one of them has left the table.
        """
        checked = check_ids(ids)
        for attempt in (0, 1):
            served = self._known(name)
            try:
                batch = new_batch(served.table, len(checked))
                return self._run(commands.get(served, checked, batch))
            except SchemaError:
                if attempt or self._look_up(name).incarnation == served.incarnation:
                    raise
        raise AssertionError("unreachable")

    def update_priorities(self, name: str, ids: Any, priorities: Any) -> tuple[int, int]:
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
        return self._run(commands.update(name, checked, check_priorities(priorities, len(checked))))

    def delete(self, name: str, ids: Any) -> int:
        """Removes items; how many of the ids were live."""
        return self._run(commands.delete(name, check_ids(ids)))

    @overload
    def writer(self, name: str, *, n_step: None = None, discount: None = None, **options: Any) -> Writer: ...

    @overload
    def writer(self, name: str, *, n_step: int, discount: float, **options: Any) -> NStepWriter: ...

    def writer(
        self, name: str, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> Writer | NStepWriter:
        """A writer of one environment's steps to a table with windows.

        Args:
            n_step, discount: make it a `replay_server.n_step_writer.NStepWriter`, which computes n-step returns and
                makes the items itself. Without them, a `replay_server.writer.Writer`, whose caller makes the items.
            options: those of `replay_server.writer.VectorWriter` (flush_steps, history, timeout); with n_step those of
                `replay_server.n_step_writer.VectorNStepWriter` too.

        Raises:
            SchemaError: the table has no windows, or they do not fit n_step.
        """
        served = self._known(name)
        return make_writer(served.table, ClientStreams(self, served), n_step, discount, options)

    @overload
    def vector_writer(
        self, name: str, environments: int, *, n_step: None = None, discount: None = None, **options: Any
    ) -> VectorWriter: ...

    @overload
    def vector_writer(
        self, name: str, environments: int, *, n_step: int, discount: float, **options: Any
    ) -> VectorNStepWriter: ...

    def vector_writer(
        self, name: str, environments: int, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> VectorWriter | VectorNStepWriter:
        """A writer of the steps of n environments to a table with windows; its arguments are those of `writer`.

        It has a connection of its own, which carries the steps of all environments in one command, and their items in
        another.
        """
        served = self._known(name)
        return make_vector_writer(served.table, ClientStreams(self, served), environments, n_step, discount, options)

    def sampler(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float = 0.4,
        prefetch: int = 2,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        coded: bool | None = None,
        writable: bool = False,
        allocate: Allocate = np.empty,
    ) -> Sampler:
        """An iterator over batches that a background thread samples ahead on a connection of its own.

        It ends where the table is closed (`close_table`) and has no further batch to give.

        Args:
            name: the table.
            batch_size: items of each batch.
            importance_sampling_exponent: β; may be set later through the sampler's attribute of that name.
            prefetch: batches sampled ahead.
            timeout: seconds that one sample may wait for the rate limiter before the iterator raises `Timeout`.
            columns: only these; None = all.
            replace: as in `sample`.
            coded: as in `sample`.
            writable: as in `sample`; not, unless asked for.
            allocate: makes the arrays that batches are received into, called as np.empty is: for memory of another
                kind, such as pinned memory. Each must be an array of its own, not a view of another one.
        """
        source = Client(self.url, **{**self._options, "shared_memory": self._shared_memory is not False})

        shared = not coded and not writable

        def draw(beta: float, policy_version: int | None, out: Batch) -> Batch:
            options = {"beta": beta, "timeout": timeout, "columns": columns, "replace": replace}
            options["policy_version"] = policy_version
            return source._sample(name, batch_size, out, shared and bool(source._shared_memory), coded, options)

        return Sampler(
            draw,
            lambda: source._known(name).table,
            source.close,
            batch_size,
            importance_sampling_exponent,
            prefetch,
            columns,
            writable,
            allocate,
        )

    # ---- weights -----------------------------------------------------------------------------------------------------

    def publish_weights(self, key: str, arrays: Mapping[str, Any], version: int | None = None) -> int:
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
        return self._run(commands.publish_weights(key, arrays, version))

    def fetch_weights(self, key: str, newer_than: int | None = None) -> tuple[int, dict[str, np.ndarray]] | None:
        """The newest published weights: version and arrays; None when there are none newer than `newer_than`."""
        return self._run(commands.fetch_weights(key, newer_than))


def _client(kind: type[Client], url: str, options: dict[str, Any]) -> Client:
    """What a pickled client becomes."""
    return kind(url, **options)
