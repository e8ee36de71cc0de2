"""Servers as the shards of a cluster, and fixtures of theirs, for test files to import."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs

K = {"k": rs.Column("int64")}
"""A signature that tells items apart."""


SHARD = np.uint64(56)
"""Bits of an id below the number of its shard."""


def shards_of(ids: np.ndarray) -> set[int]:
    """The numbers of the shards that ids are of."""
    return set((ids >> SHARD).tolist())


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it should have come true within a minute"
        time.sleep(0.02)


def keys(low: int, high: int) -> dict[str, np.ndarray]:
    return {"k": np.arange(low, high)}


def url_of(*servers: rs.Server) -> str:
    """The URL of the cluster that they are."""
    return "redis+cluster://" + ",".join(server.url.removeprefix("redis://") for server in servers)


def start(stack: contextlib.ExitStack, count: int, **options: Any) -> list[rs.Server]:
    """Servers of the numbers 0 to count - 1."""
    return [stack.enter_context(rs.Server(config={"shard": number}, **options)) for number in range(count)]


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[list[rs.Server]]:
    """`SHARDS` of the module, or two."""
    with contextlib.ExitStack() as stack:
        yield start(stack, getattr(request.module, "SHARDS", 2))


@pytest.fixture
def cluster(servers: list[rs.Server]) -> Iterator[rs.Client]:
    with rs.Client(url_of(*servers)) as client:
        yield client
        for name in client.tables():
            client.drop_table(name)


@pytest.fixture
def shards(servers: list[rs.Server]) -> Iterator[list[rs.Client]]:
    """A client of each."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(rs.Client(server.url)) for server in servers]
