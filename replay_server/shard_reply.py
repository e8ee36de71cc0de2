"""One shard's answer to `REPLAY.SAMPLE … TIMED`, received in two parts.

First come the heads: ids, powers, times, and up to when they are complete. Once those of all shards are there it is
known which arrivals are used: of each shard the first few. So the columns, which come last, are received straight into
their places in the batch; what is left over lies behind them, where the next shard's columns are received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import DETAIL
from .batch_replies import SHARED, coded_columns_into, coded_count, column_into, copied_from, misfit, place_of
from .codec import (
    Argument,
    Reading,
    bulk_after,
    bulk_into,
    encode_command,
    length_of,
    not_resp,
    read_value,
    value_after,
)
from .commands import ServedTable, release_returned
from .driver import Operation
from .errors import ConnectionLost, ReplayError, error_of_own_request, explain
from .exchanges import Exchanges, how_lost
from .options import SampleOptions
from .shared_memory import Lease

if TYPE_CHECKING:
    from .operations import Operations


@dataclass
class Arrivals:
    """The heads of an answer.

    Attributes:
        ids: uint64 (m,).
        powers: float64 (m,), p^α, or 1 where the sampler is uniform.
        times: float64 (m,), ascending.
        until: up to when they are complete.
        sum: of p^α over the shard's live items, or their number where the sampler is uniform.
        size: live items.
        reason: why its rate limiter let no more through; "" if it did.
        details: `Batch.details`, if they were asked for.
    """

    ids: np.ndarray
    powers: np.ndarray
    times: np.ndarray
    until: float
    sum: float
    size: int
    reason: str
    details: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)


def _array(dtype: Any) -> Reading[np.ndarray]:
    header = yield None
    array = np.empty(max(0, length_of(header)) // np.dtype(dtype).itemsize, dtype)
    if not (yield from bulk_into(header, array)):
        raise not_resp(header)
    return array


class Question:
    """`TIMED` to one shard: asked and answered by `heads`, done by `columns`, given up by `close`.

    Args:
        shard: its client.
        served: the table as it has it.
        most: arrivals that may come.
        between: t0 and t1.
        names: of the columns, in order.
        options: of the sample.
        coded: whether windows come as steps.
        unused: arrivals of earlier answers that were left over, for the shard's rate limiter.
        shared: whether columns may come through shared memory, if the shard is on this host.
    """

    def __init__(
        self,
        shard: Operations,
        served: ServedTable,
        most: int,
        between: tuple[float, float],
        names: tuple[str, ...],
        options: SampleOptions,
        coded: bool,
        unused: int = 0,
        shared: bool = False,
    ) -> None:
        self._shard, self._served, self._coded, self._details = shard, served, coded, options.details
        self._names, self._shared, self.unused = names, shared and not coded, unused
        self.what = f"sample of {served.table.name!r} from the shard at {shard._address}"
        self._connection: Exchanges | None = None
        head: tuple[Argument, ...] = ("REPLAY.SAMPLE", served.table.name, most)
        head += () if options.replace else ("REPLACE", 0)
        head += ("INCARNATION", served.incarnation, *(("CODED",) if coded else ()))
        head += () if options.policy_version is None else ("POLICY_VERSION", options.policy_version)
        head += ("DETAILS",) if options.details else ()
        head += ("TIMED", *map(float, between), *(("UNUSED", unused) if unused else ()))
        self._head, self._columns = head, ("COLUMNS", len(names), *names)

    def heads(self, deadline: float) -> Operation[Arrivals]:
        """Asks, connecting until the deadline, and receives the heads.

        Raises:
            ConnectionLost: the connection broke.
            ReplayError: the error reply.
        """
        pool = self._shard._pool
        self._connection = connection = yield from pool.connected(deadline, self._shared)
        arena = yield from connection.shared(self._shared)
        released = release_returned(arena)
        nearer = ("SHARED",) if self._shared and arena is not None else ()
        buffers = encode_command((*self._head, *nearer, *self._columns))
        if released is not None:
            buffers = encode_command(released.arguments) + buffers
        connection.begin(self.what)
        try:
            yield connection.send, buffers
            reading = self._heads_reading(released is not None)
            answer: Any = yield connection.receive, reading, self._shard._options.socket_timeout
        except BaseException as error:
            self._lose(error)
            raise
        if isinstance(answer, ReplayError):
            self._complete()
            raise error_of_own_request(answer)
        return answer

    def columns(self, columns: Mapping[str, Any], count: int) -> Operation[None]:
        """Receives the columns of the `count` items that have arrived.

        Raises:
            ConnectionLost: the connection broke.
        """
        assert self._connection is not None
        error: Any = None
        try:
            if columns:
                reading = self._columns_reading(columns, count)
                error = yield self._connection.receive, reading, self._shard._options.socket_timeout
        except BaseException as lost:
            self._lose(lost)
            raise
        self._complete()
        if error is not None:
            raise error

    def close(self) -> None:
        """Gives up what was not received."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _complete(self) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        connection.completed()
        self._shard._pool.release(connection)

    def _lose(self, error: BaseException) -> None:
        self.close()
        if isinstance(error, OSError) and not isinstance(error, ReplayError):
            raise ConnectionLost(f"{self.what}: lost it: {how_lost(error)}") from error

    def _heads_reading(self, after_release: bool) -> Reading[Any]:
        if after_release:
            yield from read_value()
        line = yield None
        if line[:1] == b"-":
            return explain(self.what, 0, (yield from value_after(line)))
        columns = coded_count(self._served.table, dict.fromkeys(self._names)) if self._coded else len(self._names)
        if line[:1] != b"*" or length_of(line) != 5 + self._details + 2 * columns:
            raise not_resp(line)
        ids = yield from _array(np.uint64)
        powers = yield from _array(np.float64)
        times = yield from _array(np.float64)
        state = yield from _array(np.float64)
        reason = yield from bulk_after((yield None))
        details = (yield from _array(DETAIL)) if self._details else None
        until, total, size = map(float, state)
        said = bytes(reason or b"").decode("utf-8", "replace")
        return Arrivals(ids, powers, times, until, total, int(size), said, details)

    def _columns_reading(self, columns: Mapping[str, Any], count: int) -> Reading[ReplayError | None]:
        if self._coded:
            return (yield from coded_columns_into(self.what, self._served.table, columns, count, True))
        fits, places = True, dict[str, tuple[int, int, int]]()
        for name, column in columns.items():
            fits = (yield from bulk_after((yield None))) == name.encode() and fits
            if (header := (yield None)) == SHARED:
                places[name] = yield from place_of()
            else:
                fits = (yield from column_into(header, column, count)) and fits
        if places:
            assert self._connection is not None
            arena = self._connection.arena
            if arena is None:
                return misfit(self.what)
            lease = Lease(arena, next(iter(places.values()))[0])
            for name, (_, offset, size_bytes) in places.items():
                memory = lease.array(offset, np.dtype(np.uint8), (size_bytes,))
                fits = copied_from(memory, columns[name], count) and fits
        return None if fits else misfit(self.what)
