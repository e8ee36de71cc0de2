"""A real server for the protocol tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

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


@pytest.fixture
def client(server: rs.Server) -> Iterator[rs.Client]:
    with rs.Client(server.url) as made:
        yield made


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
