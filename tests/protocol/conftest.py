"""A real server for the protocol tests."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from holders import Asyncio, Driver, GivenUp, InProcess
from keyed_samples import settings_of

import replay_server as rs

_numbers = itertools.count()


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


@pytest.fixture
def make_rollouts(client: rs.Client) -> Iterator[Callable[..., rs.Rollouts]]:
    """Rollouts with those settings, of a name of their own, which are dropped after the test."""
    made: list[rs.Rollouts] = []

    def make(**settings: Any) -> rs.Rollouts:
        made.append(rs.Rollouts(client, f"rollouts-{next(_numbers)}", **settings))
        return made[-1]

    yield make
    for rollouts in made:  # by another object: the test may have dropped these and made them anew
        rs.Rollouts(client, rollouts.name, **settings_of(rollouts)).drop()
    assert not client.redis.keys("rollouts:*"), "a drop left keys behind"
