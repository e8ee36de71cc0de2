"""Where a writer's steps and items go when the table is a server's: streams of a connection of the writer's own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import commands
from .commands import Command, ServedTable
from .driver import Operation
from .errors import ConnectionLost, NotPrimary, ReplayError, SchemaError, ServerError, TableNotFound
from .exchanges import Exchanges
from .lost_calls import AGAIN_S
from .process_bound import check_process
from .step_codec import encoder_for

if TYPE_CHECKING:
    from .operations import Operations

T = TypeVar("T")

_LOOK_S = 0.5
"""How often one that connects looks whether it still shall."""


class ClientStreams:
    """A `replay_server.step_sink.StepSink` over a client's server.

    Steps of a compressed table are sent as blocks, where this installation can make them.

    The server closes streams with their connection, so one that is lost leaves nothing behind. A table that was dropped
    and made anew counts as a loss: its streams are gone.
    """

    def __init__(self, client: Operations, served: ServedTable, sharing: Sequence[ServedTable] = ()) -> None:
        self._client = client
        self._served = served
        self._sharing = {each.table.name: each for each in sharing}
        """Other tables that items are made in."""
        self._connection: Exchanges | None = None
        self._process = os.getpid()
        self._history = 1
        self._encoder = encoder_for(served.table)
        self._aborted = False
        self._look_until: float | None = None  # for a primary, since one has refused

    def open(self, streams: int, history: int) -> Operation[None]:
        """See `StepSink`. Connecting is tried for the client's `reconnect_timeout`."""
        self._check_process()
        self.close()
        self._history = history
        connection = yield from self._connected()
        try:
            served = yield from self._current(self._served)
            sharing: dict[str, ServedTable] = {}
            for name, each in self._sharing.items():
                sharing[name] = yield from self._current(each)
        except BaseException:
            connection.close()
            raise
        self._served, self._sharing, self._connection = served, sharing, connection

    def _current(self, known: ServedTable) -> Operation[ServedTable]:
        served = yield from self._client._look_up(known.table.name)
        if (served.table.signature, served.table.steps_of) != (known.table.signature, known.table.steps_of):
            raise SchemaError(
                f"table {served.table.name!r} was created again with another signature: make another writer"
            )
        return served

    def _connected(self) -> Operation[Exchanges]:
        deadline = time.monotonic() + self._client._options.reconnect_timeout
        while True:
            self._check_goes_on()
            try:
                return (yield from self._client._pool.connected(min(deadline, time.monotonic() + _LOOK_S)))
            except ConnectionLost:
                if self._client._pool.closed or time.monotonic() > deadline:
                    raise

    def _check_goes_on(self) -> None:
        if self._aborted:
            raise ConnectionLost(f"the writer to {self._served.table.name!r} is closed: make another one")

    def leaves(self, refused: bool = False) -> Operation[bool]:
        """See `StepSink`. Of several hosts another one may be the primary by now, which is looked for as long as
        connecting is tried."""
        pool = self._client._pool
        if not refused or self._connection is not None or not pool.address.several:
            return False
        if self._look_until is None:
            self._look_until = time.monotonic() + self._client._options.reconnect_timeout
            return True
        if time.monotonic() > self._look_until:
            self._look_until = None
            return False
        yield pool.pause, AGAIN_S
        return True

    def close(self) -> None:
        """See `StepSink`. The connection is not used for anything else, since its streams end with it."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def abort(self) -> None:
        """See `StepSink`."""
        self._aborted = True
        if (connection := self._connection) is not None:
            connection.abort()

    def end_episodes(self, streams: np.ndarray) -> Operation[None]:
        """See `StepSink`."""
        yield from self._answer(commands.end_episodes(self._served.table.name, streams))

    def send_steps(self, streams: np.ndarray, flags: np.ndarray, columns: dict[str, np.ndarray]) -> Operation[None]:
        """See `StepSink`."""
        given: dict[str, Any] = dict(columns)
        if self._encoder is not None:
            given = {name: self._encoder.encode(values) for name, values in columns.items()}
        coded = self._encoder is not None
        yield from self._answer(commands.append(self._served, streams, flags, given, self._history, coded))

    def send_items(
        self,
        streams: np.ndarray,
        steps: np.ndarray,
        priorities: np.ndarray | None,
        columns: dict[str, np.ndarray],
        timeout: float | None,
        table: str | None = None,
    ) -> Operation[np.ndarray]:
        """See `StepSink`."""
        served = self._served if table is None else self._sharing[table]
        return self._answer(commands.items(served, streams, steps, priorities, columns, timeout), served)

    def _answer(self, command: Command[T], of: ServedTable | None = None) -> Operation[T]:
        served = of or self._served
        self._check_process()
        self._check_goes_on()
        if (connection := self._connection) is None:
            raise ConnectionLost(f"{command.what}: the connection of this writer is lost")
        try:
            answer = yield from connection.exchange(command)
            self._look_until = None
            return answer
        except TableNotFound as error:
            self.close()
            raise (yield from self._client._with_known_tables(error, served.table.name)) from None
        except ReplayError as error:
            if _may_be_of_another_table(error) and (yield from self._was_made_anew(served)):
                self.close()
                gone = f"{command.what}: the table was created again, and its streams are gone"
                if self._client._pool.address.several:  # perhaps by a change of places and back
                    raise NotPrimary(gone) from error
                raise ConnectionLost(gone) from error
            if isinstance(error, NotPrimary):
                self.close()
                self._client._pool.leave_replica(connection)
                raise
            if connection.usable or isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(
                f"{command.what}: this writer's connection was closed after the reply: {error}"
            ) from error

    def _check_process(self) -> None:
        check_process(self._process, f"this writer to {self._served.table.name!r}", "writer")

    def _was_made_anew(self, served: ServedTable) -> Operation[bool]:
        current = yield from self._client._look_up(served.table.name)
        return current.incarnation != served.incarnation


def _may_be_of_another_table(error: ReplayError) -> bool:
    """Whether a table that was created again would refuse so, too: a column, or a stream that is not open."""
    return isinstance(error, SchemaError) or (isinstance(error, ServerError) and error.code == "ERR")
