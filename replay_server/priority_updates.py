"""Priorities that a device computes, sent to a table while neither the device nor the host waits for them.

This is the same for every library of arrays. The library's own module says how an array comes to the host.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np

from .sampler import Annealed, Sampler

MOST_UNDER_WAY = 4
"""Copies that have not been sent yet; one more waits for the oldest."""


class Landing(Protocol):
    """Priorities on their way to the host."""

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> np.ndarray:
        """The priorities on the host, (n,)."""
        ...


class DeviceUpdates:
    """Sends priorities from arrays of a device; a context manager, which sends the last ones.

    The copy to the host is asked for at once, behind what computes the priorities. It is sent by a later call, once it
    has arrived. Copies are sent in order, and at most `MOST_UNDER_WAY` wait. Arrays on the CPU are
    sent once they are computed.

    What an update raises (see `replay_server.Client.update_priorities`), this or a later call raises.

    Args:
        handle: a table, `client["atari"]` or a `replay_server.Buffer`.
    """

    def __init__(self, handle: Any) -> None:
        self._updater = handle.updater()
        self._under_way: deque[tuple[np.ndarray, Landing]] = deque()

    def _landing(self, priorities: Any) -> Landing | None:
        """Asks for the copy to the host; None where they are no array of the library. Raises PriorityError."""
        raise NotImplementedError

    def update_priorities(self, ids: Any, priorities: Any) -> None:
        """Sets priorities of items.

        Args:
            ids: uint64 (n,), those of a batch.
            priorities: the library's array (n,) of floats on any device, raw, or what `Client.update_priorities`
                takes, such as a NumPy array; that is sent at once, after those before it.

        Raises:
            PriorityError: the array has no values that can be copied: a tensor that requires grad, since the graph
                behind it would be kept for nothing, or a tracer of `jax.jit`.
        """
        landing = self._landing(priorities)
        if landing is None:
            self._send(0)
            self._updater.update_priorities(ids, priorities)
            return
        self._send(MOST_UNDER_WAY - 1)
        self._under_way.append((np.array(ids), landing))
        self._send(MOST_UNDER_WAY)

    def _send(self, keep: int) -> None:
        """Sends what is on the host; waits for the oldest where there are more than `keep`."""
        while self._under_way and (len(self._under_way) > keep or self._under_way[0][1].is_done):
            ids, landing = self._under_way.popleft()
            self._updater.update_priorities(ids, landing.wait())

    def flush(self) -> None:
        """Waits until all are sent and answered."""
        self._send(0)
        self._updater.flush()

    def close(self, flush: bool = True) -> None:
        """Sends the last ones, unless told not to."""
        if flush:
            self.flush()
        self._under_way.clear()
        self._updater.close(flush)

    def __enter__(self) -> DeviceUpdates:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)


class UpdatingSampler(Annealed):
    """A sampler of a library's arrays that also sends priorities back.

    It ends, fails and is interrupted as a `replay_server.Sampler`, which it has. For one thread.
    """

    _updates_of: type[DeviceUpdates]

    def __init__(self, handle: Any, source: Sampler) -> None:
        self._handle, self._feed = handle, source
        self._priorities: DeviceUpdates | None = None

    def update_priorities(self, ids: Any, priorities: Any) -> None:
        """Sets priorities from an array on any device, without waiting for the device or for the server; see
        `DeviceUpdates.update_priorities`. Those of the last batches are sent by `flush`, and at the end of `with`."""
        if self._priorities is None:
            self._priorities = self._updates_of(self._handle)
        self._priorities.update_priorities(ids, priorities)

    def flush(self) -> None:
        """Waits until all priorities are sent and answered."""
        if self._priorities is not None:
            self._priorities.flush()

    def close(self, flush: bool = True) -> None:
        """Ends the sampling, waits for the copies that are under way, and sends the last priorities, unless told not
        to."""
        try:
            if self._priorities is not None:
                self._priorities.close(flush)
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the sampling."""
        self._feed.close()

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)
