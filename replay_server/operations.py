"""What a client of a server can do: each operation written once, for blocking callers and for asyncio.

`client.Client` and `aio.Client` are these with a driver (`driver`), and a pool of connections of its kind. Commands are
made in `commands` and `gradients`; `lost_calls` sends them, again where that is safe.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from . import commands, gradients
from .batch import Batch, check_out, is_writable, new_batch, read_only
from .batch_replies import codes
from .checks import check_batch_size, check_columns, check_ids, check_priorities
from .client_streams import ClientStreams
from .commands import Command, ServedTable
from .connection import PASSWORD_VARIABLE, Address, url_without_password
from .connection_pool import ConnectionPool
from .driver import Operation, Written, operation
from .errors import ConnectionLost, ReplayError, SchemaError, TableNotFound
from .lost_calls import answered
from .n_step_writer import make_writer
from .options import ClientOptions, SampleOptions, exponent
from .table import Table
from .writer import checked_tables

P = ParamSpec("P")
T = TypeVar("T")


def sent(command: Callable[P, Command[T]]) -> operation[P, T]:
    """The operation that sends one command and returns its result, with the arguments and the docstring of what makes
    the command."""

    def written(self: Operations, *arguments: P.args, **named: P.kwargs) -> Operation[T]:
        return self._answer(command(*arguments, **named))

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return operation(told_as(written, command, lambda given: [own, *given]))


def told_as(written: Any, other: Any, parameters: Callable[[list[inspect.Parameter]], list[inspect.Parameter]]) -> Any:
    """A function with the docstring and the signature of another one, its parameters changed."""
    signature = inspect.signature(other)
    written.__doc__ = other.__doc__
    written.__signature__ = signature.replace(parameters=parameters(list(signature.parameters.values())))
    return written


def _unpickled(kind: Callable[..., T], url: str, options: dict[str, Any]) -> T:
    """A client whose pickle left the password of its URL out."""
    if not os.environ.get(PASSWORD_VARIABLE):
        raise ValueError(
            f"a client of {url} was pickled without the password of its URL, and this process has no other: set the "
            f"variable {PASSWORD_VARIABLE} here, which processes that are spawned inherit; or pickle a client with "
            "password_file=… or pickle_password=True"
        )
    return kind(url, **options)


class Operations(Written):
    """The operations of a server, over a pool of connections; see `replay_server.Client`."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = 5.0,
        socket_timeout: float = 60.0,
        reconnect_timeout: float = 5.0,
        shared_memory: bool | None = None,
        password_file: str | os.PathLike[str] | None = None,
        pickle_password: bool = False,
        missing: str = "wait",
        missing_after: float = 1.0,
    ) -> None:
        file = None if password_file is None else os.fspath(password_file)
        timeouts = connect_timeout, socket_timeout, reconnect_timeout
        self._options = ClientOptions(*timeouts, shared_memory, file, pickle_password, missing, missing_after)
        self._tables: dict[str, ServedTable] = {}
        self._redis: Any = None
        self._redis_of: Address | None = None
        self._begin(url)

    def _begin(self, url: str) -> None:
        """Says where the server is; connecting happens with the first command."""
        self._address = Address.of_client(url, self._options.password_file)
        self._pool = self._new_pool(self._address, self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        options = asdict(self._options)
        if self._address.has_password_in_url and not self._options.pickle_password:
            return _unpickled, (type(self), url_without_password(self.url), options)
        return functools.partial(type(self), self.url, **options), ()

    def __copy__(self) -> Any:
        return type(self)(self.url, **asdict(self._options))

    def __deepcopy__(self, memory: Any) -> Any:
        return self.__copy__()

    @property
    def url(self) -> str:
        """The URL that the client was made with."""
        return self._address.url

    @property
    def lost_connections(self) -> int:
        """How many connections broke so far, under a call or while they were idle. Since then the server may have
        started anew, without what was set up there before. A writer's own connection is not among them."""
        return self._pool.count_lost()

    @staticmethod
    def _new_pool(address: Address, options: ClientOptions) -> ConnectionPool[Any]:
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raises ConnectionLost where the client is closed."""
        if self._pool.closed:
            raise ConnectionLost(f"the client of {self._address} is closed")

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
        """Does what follows from a table's spec: again, where the table was made anew since that was read, or another
        host has it now. The refusal changed nothing."""
        served = yield from self._known(name)
        while True:
            try:
                return (yield from attempt(served))
            except SchemaError:
                before, served = served, (yield from self._look_up(name))
                if served.incarnation == before.incarnation:
                    raise

    # ---- of one command, documented where that is made ---------------------------------------------------------------

    command = sent(commands.any_command)
    create_table = sent(commands.create)
    tables = sent(commands.tables)
    drop_table = sent(commands.drop)
    close_table = sent(commands.close_table)
    open_table = sent(commands.open_table)
    configure = sent(commands.configure)
    info = sent(commands.info)
    await_items = sent(commands.await_items)
    reset = sent(commands.reset)
    checkpoint = sent(commands.checkpoint)
    restore = sent(commands.restore)
    update_priorities = sent(commands.update)
    delete = sent(commands.delete)
    publish_weights = sent(commands.publish_weights)
    fetch_weights = sent(commands.fetch_weights)
    push_gradient = sent(gradients.push)
    take_gradients = sent(gradients.take)
    gradient_headers = sent(gradients.take_headers)
    await_gradients = sent(gradients.await_taken)
    publish_applied = sent(gradients.publish)
    drop_gradients = sent(gradients.drop)
    gradient_states = sent(gradients.states)
    gradient_info = sent(gradients.info)
    gradient_keys = sent(gradients.keys)
    delete_gradients = sent(gradients.delete)

    # ---- that follow from a table's spec -----------------------------------------------------------------------------

    @operation
    def table(self, name: str) -> Operation[Table]:
        """The server's table of that name: its signature and settings.

        Raises:
            TableNotFound: there is none.
        """
        return (yield from self._look_up(name)).table

    @operation
    def add(
        self, name: str, data: Mapping[str, Any], priorities: Any = None, timeout: float | None = None
    ) -> Operation[np.ndarray]:
        """Adds N items, all or none.

        Args:
            name: the table.
            data: column name → array (N, *column.shape) of exactly the column's dtype, in the form of the signature;
                lists of Python numbers are converted where that loses nothing but a float's last digits.
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
    ) -> Operation[Batch]:
        """Draws a batch, received straight into its arrays.

        Args:
            name: the table.
            batch_size: items.
            importance_sampling_exponent, beta: β of the weights, under either name; 0.4 unless it is given.
            timeout: seconds to wait for the rate limiter; None = for ever, 0 = not at all.
            out: a batch of the same size whose arrays are reused. It is received over the socket even if the client
                shares memory with its server.
            columns: only these, by name or path ("obs/image"), or all of a dict or tuple ("obs"); None = all.
            replace: whether an item may come more than once. Without, it waits until there are `batch_size` that may be
                drawn; `probabilities` stay those of a draw with replacement. `Fifo`, `Lifo` and heaps never repeat.
            policy_version: the version of the caller's policy, for tables with a column of that name: items more than
                the table's `max_staleness` behind it leave before the draw.
            coded: whether windows are received as the distinct steps of the batch, compressed where the table is, and
                expanded here. None: if the server is on another host, or the table is compressed. No effect if there
                are no windows, or if they show so many steps that it would not pay.
            writable: whether the columns can be written to, which keeps them out of shared memory. None: yes, unless
                the client was made with `shared_memory=True`. False with `out`: the batch returned has read-only
                columns over the arrays of `out`, which stays as it is, to be given again.
            details: also tell each item's raw priority, how often it was sampled, its age, and the table's size:
                `batch.priorities`, `.times_sampled`, `.ages`, `.table_sizes`, 32 bytes an item.

        Raises:
            ValueError: `batch_size` is below 1, or β is not from 0 to 100.
            Timeout: sampling was not possible in time; `.reason` says why.
            TableClosed: the table is closed and has too few items for this batch.
            SchemaError: `out` or `columns` do not fit the table.
            LimitExceeded: no wait could admit the batch.
        """
        check_batch_size(batch_size)
        options = SampleOptions(
            exponent(importance_sampling_exponent, beta), timeout, columns, replace, policy_version, coded, details
        )
        keeps = is_writable(writable, out, self._options.shared_memory)
        shared = bool(self._options.shared_memory) and not keeps and not coded and out is None
        batch = yield from self._sample(name, batch_size, out, shared, options)
        return batch if keeps else read_only(batch)

    def _sample(
        self, name: str, batch_size: int, out: Batch | None, shared: bool, options: SampleOptions
    ) -> Operation[Batch]:
        """A batch; `shared`: into shared memory where there is some, else into `out`."""

        def attempt(served: ServedTable) -> Operation[Batch]:
            columns, wanted, local = served.table.chosen(options.columns), options.coded, self._address.is_local
            if out is not None:
                check_out(out, served.table, batch_size, columns, options.details)
            batch = new_batch(served.table, batch_size, columns, details=options.details) if out is None else out
            wanted = False if shared and wanted is None and local else wanted
            coded = codes(served.table, batch_size, columns, wanted, local)
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

    def _written(
        self,
        kinds: tuple[type, type],
        name: str,
        environments: int | None,
        n_step: int | None,
        discount: float | None,
        options: Mapping[str, Any],
    ) -> Operation[Any]:
        """A writer of the first kind, or, with n_step, of the second. Of one server, `place` says nothing."""
        tables = checked_tables(options.get("tables", ()))
        options = {name: value for name, value in options.items() if name != "place"} | {"tables": tables}
        served = yield from self._look_up(name)
        sharing: list[ServedTable] = []
        for other in tables:
            sharing.append((yield from self._look_up(other)))
            if sharing[-1].table.steps_of != name:
                raise SchemaError(
                    f"table {other!r} does not share the steps of table {name!r}: create it with steps_of={name!r}"
                )
        sink = ClientStreams(self, served, sharing)
        return make_writer(kinds, served.table, sink, environments, n_step, discount, options)


# ---- of one table ----------------------------------------------------------------------------------------------------


def written_of(client: Any, named: operation[Any, Any]) -> Callable[..., Operation[Any]]:
    """An operation of that name as the client's class has it, undriven."""
    return getattr(type(client), named.written.__name__).written


def _of_table(named: operation[Concatenate[str, P], T]) -> operation[P, T]:
    """An operation of a client as one of a handle, which knows the table's name."""

    def written(self: TableOperations, *arguments: Any, **options: Any) -> Operation[Any]:
        return written_of(self._client, named)(self._client, self.name, *arguments, **options)

    told = told_as(written, named.written, lambda given: [each for each in given if each.name != "name"])
    told.__doc__ = re.sub(r"\n +name: the table\.(?=\n)", "", told.__doc__ or "")
    return operation(told)


class TableOperations(Written):
    """The operations of one table of a server: those of its client, without the table's name."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

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

    @operation
    def checkpoint(self, name: str | os.PathLike[str] | None = None) -> Operation[str]:
        """Saves all tables of the server, where a `Buffer` saves its one; the path of the file on the server's machine.

        `name` is of a file in the server's directory, where a `Buffer` takes any path. See `Client.checkpoint`.
        """
        return written_of(self._client, Operations.checkpoint)(self._client, name)

    @operation
    def restore(self, name: str | os.PathLike[str]) -> Operation[list[str]]:
        """Restores all tables of a snapshot, where a `Buffer` restores its one: the other tables of the server that are
        in the snapshot lose what came after it, too.

        `name` is of a file in the server's directory, where a `Buffer` takes any path. See `Client.restore`.
        """
        return written_of(self._client, Operations.restore)(self._client, name)
