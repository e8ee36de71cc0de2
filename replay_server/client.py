"""The blocking client: one object for any number of threads; each running command has a connection of its own."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from .batch import Allocate, Batch
from .cluster_address import is_cluster_url
from .connection import Address
from .connection_pool import BlockingPool
from .driver import Blocking, Operation, run
from .errors import SchemaError
from .n_step_writer import NStepWriter, VectorNStepWriter
from .operations import Operations, TableOperations, written_of
from .options import ClientOptions, SampleOptions, SamplerOptions, exponent
from .sampler import Sampler
from .table import Table
from .table_methods import TableMethods
from .updater import Updater
from .writer import VectorWriter, Writer

if TYPE_CHECKING:
    import redis

C = TypeVar("C", bound="Client")


class Client(Operations, Blocking):
    """A client of a replay server; a context manager, which closes it.

    The client tries to connect for `reconnect_timeout` seconds. If a connection breaks, a command that is safe to
    repeat (reads, samples, priority updates, `publish_weights` of a version) is repeated for as long. A command that
    may have changed something (`add`, `delete`, `publish_weights` without a version) raises `ConnectionLost` at once,
    and the next command connects anew.

    Args:
        url: `redis://[[user]:password@]host:port` or `unix:///path`; `redis://host:port,host:port…` for a server and
            its replicas: the client uses the primary, and finds it anew after a failover; or
            `redis+cluster://host:port[,host:port…]` for servers that hold one replay together
            (docs/how-to/many-shards.md). If it has no password, that of the variable REPLAY_SERVER_PASSWORD is used.
        connect_timeout: seconds for one attempt to connect.
        socket_timeout: seconds without progress, beyond a command's own `timeout`, until the server counts as lost.
        reconnect_timeout: seconds to go on trying.
        shared_memory: where the server is on this host, whether large columns are returned as read-only arrays over
            memory shared with it, without copying them; elsewhere nothing changes. True: by `sample` (without `out`)
            and `sampler`; None: by `sampler` alone; False: never. A loopback TCP client switches to the server's unix
            socket by itself. The memory is given back when the last array over it has gone; a client that holds on to
            more than the server shares with it (CONFIG shared-memory-client-limit) gets further batches over the
            socket. See `Batch.release`.
        password_file: file whose first line is the password, in place of the variable.
        pickle_password: whether a password in the URL may stand in a pickle of the client.
        missing: of a cluster: what is done without a shard that is lost. "wait": it is waited for, as one server is.
            "error": `ConnectionLost` at once. "leave_out": samples are of the other shards, and say so in
            `Batch.missing`; `info` too; priorities for its items count as stale.
        missing_after: of a cluster: seconds without a reply after which a shard counts as lost, unless it is waited
            for.

    A client can be pickled, and so can its handles (`client["atari"]`), for processes that were spawned, Ray's tasks
    and the workers of a `DataLoader`. The pickle has the URL and the settings. The process that unpickles the client
    reads the password from its own variable or file. A password in the URL, such as that of
    `rs.Server(password=…).url`, is left out of the pickle unless `pickle_password=True`: unpickling takes that of the
    variable, and raises ValueError where the variable is not set. A forked child may keep using its parent's client:
    it connects anew. A client without references closes its connections.

    Raises:
        ValueError: the URL is malformed, or the file cannot be read. (Connecting happens with the first command.)
    """

    def __new__(cls: type[C], *arguments: Any, **options: Any) -> C:
        if cls is Client and is_cluster_url(arguments[0] if arguments else options.get("url")):
            from .cluster_client import ClusterClient  # which stands on this module

            made: Any = object.__new__(ClusterClient)
            return made
        return object.__new__(cls)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._address)!r})"

    def __getitem__(self, name: str) -> TableHandle:
        return TableHandle(self, name)

    @staticmethod
    def _new_pool(address: Address, options: ClientOptions) -> BlockingPool:
        return BlockingPool(address, options)

    @property
    def redis(self) -> redis.Redis:
        """A redis-py client of the same server with the same timeouts, for all but REPLAY.*, WEIGHTS.* and GRAD.*.

        Where the URL names several hosts, it is of the one that is the primary now, which is asked each time. Keep no
        reference to it then: it does not follow a failover, and writes of a host that is a replica by now are refused
        (redis.exceptions.ReadOnlyError).

        Raises:
            ConnectionLost: no host of several is a primary.
        """
        primary = self._pool.primary
        if self._pool.address.several:
            primary = run(self._pool.found_primary(time.monotonic() + self._options.reconnect_timeout))
        if self._redis is None or self._redis_of is not primary:
            import redis

            self._redis_of = primary
            self._redis = redis.Redis.from_url(self._redis_of.url, **self._redis_options())
        return self._redis

    def close(self) -> None:
        """Closes every connection; a command that waits in another thread raises `ConnectionLost` at once."""
        self._pool.close()
        if self._redis is not None:
            self._redis.close()

    def updater(self, name: str) -> Updater:
        """Updates priorities of a table without waiting for the replies, as the loop of a learner wants. With asyncio,
        make a task of `update_priorities`, and await it before the next."""
        update = written_of(self, Operations.update_priorities)
        return Updater(lambda ids, priorities: update(self, name, ids, priorities))

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
            options: those of `replay_server.writer.VectorWriter` (flush_steps, history, timeout, in_flight), and with
                n_step those of `replay_server.n_step_writer.VectorNStepWriter` too. And place, of a cluster: a number,
                which says which shard the streams are on, modulo how many there are; without it, that with the fewest
                streams, which may be another one later.

        Raises:
            SchemaError: the table has no windows, or they do not fit n_step.
        """
        return run(self._written((Writer, NStepWriter), name, None, n_step, discount, options))

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
        return run(self._written((VectorWriter, VectorNStepWriter), name, environments, n_step, discount, options))

    def sampler(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float | None = None,
        prefetch: int = 2,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        coded: bool | None = None,
        writable: bool = False,
        allocate: Allocate = np.empty,
        workers: int = 1,
        in_flight: int | None = None,
        *,
        beta: float | None = None,
        details: bool = False,
    ) -> Sampler:
        """An iterator over batches that background threads sample ahead on connections of their own.

        It ends where the table is closed (`close_table`) and has no further batch to give.

        Args:
            name: the table.
            batch_size: items of each batch.
            importance_sampling_exponent, beta: β, under either name, 0.4 unless it is given; may be set later through
                the sampler's attributes of these names.
            prefetch: batches sampled ahead: those requested, and those received. At least `in_flight` are.
            timeout: seconds that one sample may wait for the rate limiter before the iterator raises `Timeout`.
            columns: only these; None = all.
            replace, coded, details: as in `sample`.
            writable: as in `sample`, but None means no.
            allocate: a function, called as np.empty is, that makes the arrays that batches are received into: for other
                memory, such as pinned memory. Each must be a new array, not a view of another one.
            workers: threads that receive. One gives the batches in the order in which it asked for them; several give
                theirs in the order in which they have arrived.
            in_flight: requests under way at once, over all workers, each on a connection of its own; None: one for each
                worker. More than one fill a link with a long round trip; the server may then draw them in another
                order.

        Raises:
            ValueError: a number is out of range.
            SchemaError: the table has no such column; where `columns` are given, it is looked up.
            ConnectionLost: the client is closed.
        """
        sample = SampleOptions(
            exponent(importance_sampling_exponent, beta), timeout, columns, replace, None, coded, details
        )
        return self._sampler(name, SamplerOptions(batch_size, prefetch, sample, writable, allocate, workers, in_flight))

    def _check_against_table(self, name: str, check: Callable[[Table], object]) -> None:
        """Checks something against a table as it is known, and again where it was made anew since."""
        try:
            check(run(self._known(name)).table)
        except SchemaError:
            check(run(self._look_up(name)).table)

    def _sampler(self, name: str, options: SamplerOptions) -> Sampler:
        self._check_open()
        if (columns := options.sample.columns) is not None:
            self._check_against_table(name, lambda table: table.chosen(columns))
        shares = self._options.shared_memory is not False
        source = Client(self.url, **{**asdict(self._options), "shared_memory": shares})
        shared = shares and not options.sample.coded and not options.writable

        def draw(wanted: SampleOptions, out: Batch) -> Operation[Batch]:
            return source._sample(name, options.batch_size, out, shared, wanted)

        return Sampler(draw, lambda: run(source._known(name)).table, source.close, options)


Client.__new__.__signature__ = inspect.signature(Operations.__init__)  # type: ignore[attr-defined]


class TableHandle(TableOperations, TableMethods, Blocking):
    """One table of a server, `client["atari"]`: the methods of `replay_server.Buffer`, and of the client without the
    table's name. It has no connection of its own, and lasts as long as its client."""

    _client: Client

    def __repr__(self) -> str:
        return f"{self._client!r}[{self.name!r}]"

    def __len__(self) -> int:
        return self.info()["size"]

    @property
    def table(self) -> Table:
        """What the server's table is now. Raises `TableNotFound` where there is none."""
        return self._client.table(self.name)

    def updater(self) -> Updater:
        """What updates priorities without waiting for the replies. See `replay_server.Client.updater`."""
        return self._client.updater(self.name)

    def _written(self, kinds: tuple[type, type], environments: int | None, *options: Any) -> Any:
        return run(self._client._written(kinds, self.name, environments, *options))

    def _check_against_table(self, check: Callable[[Table], object]) -> None:
        self._client._check_against_table(self.name, check)

    def _sampler(self, options: SamplerOptions) -> Sampler:
        return self._client._sampler(self.name, options)
