"""A client's lost calls: which are repeated after their connection broke, for how long, and what the others' callers
get. Calls of serverless functions are repeated by `serverless.backends.lost_function_calls`.

A connection that breaks under a call leaves open whether the server did it. A call is repeated here, and nowhere else,
where doing it twice does no harm: `Command.repeatable`, which each function of `commands` and `gradients` decides. Some
are made safe by a name of their own that the server remembers: a gradient's name, the version of weights. A call that
may have changed something and has no such name is never repeated: `ConnectionLost` reaches its caller at once.

A server that has become a replica refuses what writes and ends calls that wait; a primary whose place another one has
taken refuses, too. It has done nothing. Where the URL names several hosts, any call is then repeated at the primary,
which is looked for as long.

Connecting, before anything was sent, is tried again for every call (`ConnectionPool.connected`). Streams are lost with
their connection; a writer opens new ones and sends what their items see again (`writer`).
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

from .commands import Command
from .connection_pool import ConnectionPool
from .driver import Operation
from .errors import ConnectionLost, NotPrimary

T = TypeVar("T")

AGAIN_S = 0.05
"""Between two hosts that refuse."""


def answered(pool: ConnectionPool[Any], command: Command[T], reconnect_timeout: float) -> Operation[T]:
    """Runs a command on a connection of its own, repeating it after a loss where that is safe.

    Args:
        pool: where connections are from.
        command: what to send.
        reconnect_timeout: seconds to go on trying, from the beginning, from the first loss, or from any under a command
            that waits.
    """
    deadline = time.monotonic() + reconnect_timeout
    lost = False
    while True:
        connection = yield from pool.connected(deadline, command.shared)
        try:
            return (yield from connection.exchange(command))
        except ConnectionLost:
            if pool.closed:
                raise ConnectionLost(f"{command.what}: the client of {pool.address} was closed") from None
            pool.lost += 1
            if not command.repeatable:
                raise
            # The time to reconnect starts with a loss: it may come long after the command was sent.
            if not lost or command.wait_s is None or command.wait_s > 0:
                deadline = max(deadline, time.monotonic() + reconnect_timeout)
            lost = True
            if time.monotonic() > deadline:
                raise
        except NotPrimary:
            if not pool.address.several:
                raise
            pool.leave_replica(connection)
            if lost:
                yield pool.pause, AGAIN_S
            else:
                deadline, lost = max(deadline, time.monotonic() + reconnect_timeout), True
            if time.monotonic() > deadline:
                raise
        finally:
            pool.release(connection)
