"""How a call over shards waits: it asks them again, at growing intervals, until its time is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .checks import check_timeout
from .driver import Operation
from .errors import Timeout, explain

if TYPE_CHECKING:
    from .cluster_operations import ClusterOperations

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.001, 0.05


class Wait:
    """The wait of one call.

    Args:
        what: the call does, for the error.
        timeout: seconds from now; None = for ever, 0 = it does not wait.
    """

    def __init__(self, what: str, timeout: float | None) -> None:
        self._what, self._timeout = what, check_timeout(timeout)
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self._delay_s = _FIRST_DELAY_S

    def pause(self, cluster: ClusterOperations, reason: str) -> Operation[None]:
        """Lets a while go by. Raises `Timeout` with the reason where too little time is left."""
        if self._deadline is not None and time.monotonic() + self._delay_s > self._deadline:
            raise explain(self._what, self._timeout, Timeout(reason))
        yield cluster._shards[0]._pool.pause, self._delay_s
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
