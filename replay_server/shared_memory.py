"""Batches that lie in memory shared with a server on the same host: the client's read-only mapping, and its leases."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
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
                raise ServerError("the server's shared memory is not sealed against being cut off")
            self._memory = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise ServerError(f"cannot map the server's shared memory: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
        self.size_bytes = size_bytes
        self.address: int = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self._returned: deque[int] = deque()

    def give_back(self, number: int) -> None:
        """From any thread, also from a destructor: the lease is told to the server with the next command."""
        self._returned.append(number)

    def take_returned(self) -> list[int]:
        """The leases given back since the last call."""
        numbers = []
        while self._returned:
            numbers.append(self._returned.popleft())
        return numbers


class Lease:
    """A region of an arena, the client's until `release`, which the last array over it calls when it goes."""

    def __init__(self, arena: Arena, number: int) -> None:
        self._arena, self.number, self._held = arena, number, True

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # NumPy makes an array over this memory that holds a reference to this object, as do all views of it.
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (self._arena.size_bytes,),
            "data": (self._arena.address, True),
        }

    def array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """A read-only array at `offset` of the arena.

        Raises:
            ServerError: it would not lie within the arena.
        """
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if offset < 0 or offset + size_bytes > self._arena.size_bytes:
            raise ServerError(
                f"the server names bytes {offset} to {offset + size_bytes} of {self._arena.size_bytes} shared ones"
            )
        return np.asarray(self)[offset : offset + size_bytes].view(dtype).reshape(shape)

    def release(self) -> None:
        """Gives the region back; once only."""
        if self._held:
            self._held = False
            self._arena.give_back(self.number)

    def __del__(self) -> None:
        self.release()
