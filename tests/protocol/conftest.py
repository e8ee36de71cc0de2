"""A real server for the protocol tests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from holders import Asyncio, Driver, GivenUp, InProcess

import replay_server as rs


class Elsewhere:
    """A server that somebody else has started: its URL in the variable REPLAY_TEST_SERVER."""

    def __init__(self, url: str) -> None:
        self.url = url
        with rs.Client(url) as client:
            self.pid = client.redis.info("server")["process_id"]
            self.running = True


@pytest.fixture(scope="session")
def server() -> Iterator[rs.Server | Elsewhere]:
    if url := os.environ.get("REPLAY_TEST_SERVER"):
        yield Elsewhere(url)
        return
    with rs.Server() as running:
        yield running
        assert running.running, f"the server died: {running.log()}"
        assert running.stop() == 0, running.log()


@pytest.fixture(params=[Driver, Asyncio, InProcess], ids=lambda kind: kind.kind)
def driver(request: Any, server: rs.Server, make_table: Callable[..., str]) -> Iterator[Driver]:
    def strike(number: int, frame: object) -> None:
        raise GivenUp

    before = signal.signal(signal.SIGALRM, strike)
    made = request.param(server.url, make_table)
    yield made
    signal.signal(signal.SIGALRM, before)
    made.close()


@pytest.fixture
def counted(client: rs.Client) -> Callable[[], tuple[int, int]]:
    """How many samplers' threads there are, and how many connections the server has."""
    client.redis.ping()

    def count() -> tuple[int, int]:
        threads = sum(each.name == "replay-sampler" and each.is_alive() for each in threading.enumerate())
        return threads, len(client.redis.client_list())

    return count
