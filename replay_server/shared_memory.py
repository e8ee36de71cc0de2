"""Batches that lie in memory shared with a server on the same host: the client's read-only mapping, and its leases.

A forked child sees the batches that its parent held at the fork, and the server knows nothing of it. Their memory must
not be written again while the child may look, and nobody can tell how long that is. So an arena under such batches is
retired: none of its leases is given back any more, and its connection is not used again. The server lets go of the
arena with the connection and writes it no more; the memory itself lives on under the arrays of parent and child.
What keeps this true: leases given back while a fork is under way are told to the server after it (`_forks`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from .errors import ServerError

# What the fcntl module has only from some version of Python on.
_F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)
_F_SEAL_SHRINK = getattr(fcntl, "F_SEAL_SHRINK", 0x0002)


class Arena:
    """The memory that a server shares with one connection, mapped read-only.

    The mapping outlives the connection, and the server: it goes when the last array over it has gone.

    Args:
        descriptor: what the server sent; it is closed.
        size_bytes: how large the memory is, as the server says.

    Raises:
        ServerError: it is not that large, or could be cut off under the arrays that lie in it.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        try:
            if size_bytes < 1 or os.fstat(descriptor).st_size < size_bytes:
                raise ServerError(f"expected {size_bytes} bytes of shared memory, got {os.fstat(descriptor).st_size}")
            if not fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK:
                raise ServerError("the server's shared memory is not sealed against truncation")
            self._memory = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise ServerError(f"cannot map the server's shared memory: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
        self.size_bytes = size_bytes
        self.address: int = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self.retired = False
        """Whether a forked child sees some of it."""
        self._returned: deque[int] = deque()
        self._lent = 0
        _arenas[id(self)] = self

    def lend(self) -> None:
        """A lease begins: it counts until `take_returned` has returned it."""
        self._lent += 1

    def give_back(self, numbers: Iterator[int]) -> None:
        """From any thread, also from a destructor: the leases are told to the server with the next command."""
        self._returned.extend(numbers)  # one operation: what the iterator yields is given back once

    def take_returned(self) -> list[int]:
        """The leases given back since the last call, by the one thread that has the connection."""
        numbers: list[int] = []
        while self._returned and not _forks and not self.retired:
            numbers.append(self._returned.popleft())
        self._lent -= len(numbers)
        return numbers

    def retire_if_lent(self) -> None:
        """After a fork; see the module."""
        self.retired = self.retired or self._lent > 0


_arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()
_forks: list[None] = []
"""One entry for each fork that is under way."""


def _retire_arenas() -> None:
    try:
        for reference in _arenas.valuerefs():
            if (arena := reference()) is not None:
                arena.retire_if_lent()
    finally:
        _forks.pop()


os.register_at_fork(before=lambda: _forks.append(None), after_in_parent=_retire_arenas, after_in_child=_forks.clear)


class Lease:
    """A region of an arena, the client's until `release`, which the last array over it calls when it goes."""

    def __init__(self, arena: Arena, number: int) -> None:
        arena.lend()
        self.arena = arena
        self._numbers = iter((number,))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # NumPy makes an array over this memory that holds a reference to this object, as do all views of it.
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.arena.size_bytes,),
            "data": (self.arena.address, True),
        }

    def array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """A read-only array at `offset` of the arena.

        Raises:
            ServerError: it would not lie within the arena.
        """
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if offset < 0 or offset + size_bytes > self.arena.size_bytes:
            raise ServerError(
                f"the server names bytes {offset} to {offset + size_bytes} of {self.arena.size_bytes} shared ones"
            )
        return np.asarray(self)[offset : offset + size_bytes].view(dtype).reshape(shape)

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array lies in the arena."""
        at: int = array.__array_interface__["data"][0]
        return self.arena.address <= at < self.arena.address + self.arena.size_bytes

    def release(self) -> None:
        """Gives the region back; once only."""
        self.arena.give_back(self._numbers)

    def __del__(self) -> None:
        self.release()
