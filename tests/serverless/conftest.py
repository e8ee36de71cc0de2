"""What tests of functions share: a replay server, and servers at which functions wait."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lent import Lent

import replay_server as rs
from replay_server.serverless.backends.process import ProcessPlatform


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    """A replay server that the module's tests share; it must outlive them."""
    with rs.Server() as running:
        yield running
        assert running.running, f"the server died: {running.log()}"


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and never answers: a function waits there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def meeting() -> Iterator[Callable[[int], str]]:
    """``meeting(count)``: URL of a server that answers, with an error, only once `count` connections wait there."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            barrier = threading.Barrier(count)
            stack.callback(barrier.abort)
            threading.Thread(target=_accept, args=(listener, barrier), daemon=True).start()
            return f"redis://127.0.0.1:{listener.getsockname()[1]}"

        yield make


def _accept(listener: socket.socket, barrier: threading.Barrier) -> None:
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_answer, args=(listener.accept()[0], barrier), daemon=True).start()


def _answer(connection: socket.socket, barrier: threading.Barrier) -> None:
    with connection, contextlib.suppress(OSError, threading.BrokenBarrierError):
        if connection.recv(65536):
            barrier.wait(timeout=60)
            connection.sendall(b"-ERR all are here\r\n" * 20)
        while connection.recv(65536):
            pass


@pytest.fixture
def job(client: rs.Client, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes a `learner_job.Job`, as often as needed: settings of its algorithm, options of its learners."""
    from learner_job import PPO, Job  # with torch, which not every test here needs

    made: list[Job] = []

    def make(settings: Any = PPO, **learning: Any) -> Job:
        name = f"{request.node.name}-{len(made)}".replace("[", "-").replace("]", "")
        made.append(Job(client, name, settings, **learning))
        return made[-1]

    yield make
    for each in made:
        each.collector.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers that a job sets are taken back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPlatform]:
    with ProcessPlatform() as platform:
        yield platform


@pytest.fixture
def platform(workers: ProcessPlatform) -> Lent:
    return Lent(workers)
