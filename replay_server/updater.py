"""Priorities that are sent while nobody waits for the reply, which is read before the next ones are sent.

The updater begins an update, and finishes it at the next call (`pending_call`). An interrupt, a lost connection or an
error reply does to it what it does to an update whose caller waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .driver import Operation
from .pending_call import Begun
from .process_bound import Staying, check_process

Update = Callable[[Any, Any], Operation[tuple[int, int]]]


class Updater(Staying):
    """Updates priorities of one table without waiting for the replies; a context manager. Made by `Client.updater`
    and `Buffer.updater`, which does them at once.

    Every call first reads the reply to the update before it, so updates are done in order and at most one is under way.
    Other calls of the client go over other connections and may overtake the newest update: call `flush` before them
    where that matters. What is sent is a copy: the caller's arrays may change at once.

    What that update raises (see `Client.update_priorities`), the next call raises, `flush` and `close` included. That
    call itself has then sent nothing: make it again.

    For one thread. An interrupt, such as Ctrl-C, may end any call. Whether the newest update was done is then not
    known, as when the updater is dropped without `close`. A forked child cannot use its parent's updater.

    Attributes:
        applied: how many priorities were set, over all updates whose replies were read.
        stale: how many were not, because their item has left.
    """

    _send_instead = "send the client or its handle, and make an updater there"

    def __init__(self, update: Update) -> None:
        self.applied = self.stale = 0
        self._update = update
        self._sent: Begun[tuple[int, int]] | None = None
        self._process = os.getpid()

    def update_priorities(self, ids: Any, priorities: Any) -> None:
        """Sends priorities, float64 (n,), raw, of items, uint64 (n,). See `Client.update_priorities`.

        Raises:
            PriorityError: a priority is NaN, infinite or negative; nothing was sent.
            ReplayError: the update before this one failed; nothing of this one was sent.
        """
        self.flush()
        self._sent = Begun(self._update(_own(ids), _own(priorities)))

    def flush(self) -> tuple[int, int]:
        """Reads the reply that is still due, and returns `applied` and `stale`, which count all updates so far.

        Raises what `Client.update_priorities` raises, for the newest update.
        """
        check_process(self._process, "this updater", "updater")
        if self._sent is not None:
            sent, self._sent = self._sent, None
            applied, stale = sent.finish()
            self.applied += applied
            self.stale += stale
        return self.applied, self.stale

    def close(self, flush: bool = True) -> None:
        """Reads the reply that is still due, and gives the connection back; without `flush` it closes the connection
        instead."""
        if flush:
            self.flush()
        self._sent = None

    def __enter__(self) -> Updater:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)


def _own(values: Any) -> Any:
    """A copy of an array: an update whose connection is lost is sent again, from what was given first."""
    return np.array(values) if hasattr(values, "__array__") else values
