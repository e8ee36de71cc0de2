"""Arenas and leases on their own: nothing is read past the end, and a lease is given back once."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest

import replay_server as rs
from replay_server.shared_memory import Arena, Lease

SIZE_BYTES = 4096


@pytest.fixture
def arena() -> Arena:
    descriptor = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
    os.pwrite(descriptor, bytes(range(256)) * (SIZE_BYTES // 256), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return Arena(descriptor, SIZE_BYTES)


def test_a_lease_that_is_released_twice_is_given_back_once(arena: Arena) -> None:
    lease = Lease(arena, 7)
    lease.release()
    lease.release()
    del lease
    assert arena.take_returned() == [7]
    assert arena.take_returned() == []


@pytest.mark.parametrize("offset", [-4, SIZE_BYTES - 12, SIZE_BYTES, 1 << 62])
def test_an_array_that_would_leave_the_arena_is_refused(arena: Arena, offset: int) -> None:
    lease = Lease(arena, 1)
    with pytest.raises(rs.ServerError, match=f"the server names bytes {offset} to {offset + 16} of {SIZE_BYTES}"):
        lease.array(offset, np.dtype("float32"), (2, 2))


def test_an_array_may_end_where_the_arena_ends(arena: Arena) -> None:
    array = Lease(arena, 1).array(SIZE_BYTES - 6, np.dtype("uint8"), (2, 3))
    assert array.tolist() == [[250, 251, 252], [253, 254, 255]]
