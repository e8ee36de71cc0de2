"""A real server for the protocol tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import replay_server as rs


@pytest.fixture(scope="session")
def server() -> Iterator[rs.Server]:
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
