"""What all tests share: skips, tables of their own for each test, and a bare socket that can send anything.

The fixtures that speak to a server ask for the fixture `server` of the folder that they are used in.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import redis.asyncio
import redis.asyncio.connection
import redis.connection

import replay_server as rs
from replay_server.codec import encode_command, read_value
from replay_server.connection import Address
from replay_server.socket_buffers import ReadBuffer

REPOSITORY = Path(__file__).resolve().parent.parent

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}

# Jobs that tests run have no dashboard, unless a test asks for one.
os.environ.setdefault("REPLAY_SERVER_DASHBOARD", "off")

# No test depends on how fast the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

_numbers = itertools.count()


def _wait_for_replies(*kinds: type) -> None:
    """redis-py gives up after 5 s without a reply, which a server on a busy machine may need: 60 s in all tests."""
    for kind in kinds:
        init = inspect.unwrap(kind.__init__)
        patient = {"socket_timeout": 60, "socket_connect_timeout": 60}
        names = [each.name for each in inspect.signature(init).parameters.values() if each.default is not each.empty]
        keywords = init.__kwdefaults__ or {}
        given = dict(zip([name for name in names if name not in keywords], init.__defaults__ or (), strict=True))
        assert patient.keys() <= {**given, **keywords}.keys()
        init.__defaults__ = tuple(patient.get(name, value) for name, value in given.items())
        init.__kwdefaults__ = {name: patient.get(name, value) for name, value in keywords.items()}


_wait_for_replies(
    redis.Redis, redis.connection.AbstractConnection, redis.asyncio.Redis, redis.asyncio.connection.AbstractConnection
)

_longest_turns: list[tuple[int, str]] = []
"""Of the loop of each server that stopped, in microseconds, and the test in which it did."""


def _note_turns_of_servers_that_stop() -> None:
    stop = rs.Server.stop

    @functools.wraps(stop)
    def noted(self: rs.Server, timeout: float = 10.0) -> int | None:
        # A server that is held, full or ended tells nothing; whatever stops it must not wait for that.
        with contextlib.suppress(redis.RedisError, OSError, AttributeError, ValueError):
            if self.running:
                with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as asking:
                    longest_us = asking.info("stats")["loop_turn_us_max"]
                _longest_turns.append((longest_us, os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]))
        return stop(self, timeout)

    rs.Server.stop = noted


_note_turns_of_servers_that_stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how long a server's loop was held at most: figures of a busy machine, which no test depends on."""
    if not _longest_turns:
        return
    terminalreporter.section("longest turns of servers' loops (loop_turn_us_max)")
    for longest_us, where in sorted(_longest_turns, reverse=True)[:5]:
        terminalreporter.line(f"{longest_us} us  {where}")
    median_us = sorted(longest_us for longest_us, _ in _longest_turns)[len(_longest_turns) // 2]
    terminalreporter.line(f"{median_us} us  median of {len(_longest_turns)} servers")


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As shells start what runs in the background: every process that a test starts would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Raw:
    """A bare connection: any bytes out, replies in."""

    def __init__(self, url: str) -> None:
        self.socket = Address.parse(url).open_socket(10)
        self.socket.settimeout(60)
        self._buffer = ReadBuffer()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def command(self, *arguments: Any) -> Any:
        """Sends one command; its reply, an error reply as an exception object."""
        for buffer in encode_command(arguments):
            self.socket.sendall(buffer)
        return self.reply()

    def reply(self) -> Any:
        reading = read_value()
        wanted = next(reading)
        try:
            while True:
                if wanted is None:
                    while (line := self._buffer.line()) is None:
                        self._more()
                    wanted = reading.send(line)
                else:
                    filled = self._buffer.take(wanted)
                    while filled < len(wanted):
                        self._more()
                        filled += self._buffer.take(wanted[filled:])
                    while not self._buffer.skip_line_end():
                        self._more()
                    wanted = reading.send(b"")
        except StopIteration as stop:
            return stop.value

    def _more(self) -> None:
        count = self.socket.recv_into(self._buffer.space())
        if count == 0:
            raise ConnectionResetError("closed by the server")
        self._buffer.end += count

    def closed(self) -> bool:
        """Whether the server closes the connection, whatever it sends before."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while self.socket.recv(65536):
                pass
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need more than an ordinary user has are skipped with the reason, never passed over in silence."""
    not_root = pytest.mark.skip(reason="needs root: network namespaces can only be made by root")
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(not_root)
    on_gpu = [item for item in items if item.get_closest_marker("cuda")]
    if on_gpu and not _has_cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: torch finds no CUDA device here"))


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture
def open_raw() -> Iterator[Callable[[str], Raw]]:
    """Opens bare connections, which are closed after the test."""
    opened: list[Raw] = []

    def connect(url: str) -> Raw:
        opened.append(Raw(url))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def client(server: rs.Server) -> Iterator[rs.Client]:
    with rs.Client(server.url) as made:
        yield made


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def shim(request: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the library that the module's `SHIM` makes, for LD_PRELOAD."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    library = str(tmp_path_factory.mktemp("shim") / "shim.so")
    build = [compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", "-x", "c", "-", "-o", library]
    subprocess.run(build, input=request.module.SHIM, text=True, check=True)
    return library


@pytest.fixture
def raw(server: rs.Server, open_raw: Callable[[str], Raw]) -> Raw:
    return open_raw(server.url)


@pytest.fixture
def make_table(client: rs.Client) -> Iterator[Callable[..., str]]:
    """Creates a table of x: float32 (2,), k: int64 (or another signature), dropped after the test."""
    names = []

    def make(capacity: int = 100, signature: dict[str, rs.Column] | None = None, **parts: Any) -> str:
        name = f"table-{next(_numbers)}"
        client.create_table(rs.Table(name, capacity, signature or SIGNATURE, **parts))
        names.append(name)
        return name

    yield make
    for name in names:
        with contextlib.suppress(rs.TableNotFound):
            client.drop_table(name)


@pytest.fixture
def table(make_table: Callable[..., str]) -> str:
    return make_table()


@pytest.fixture(scope="session")
def items() -> Callable[..., dict[str, np.ndarray]]:
    """Makes a batch of SIGNATURE in which every value follows from its key."""

    def make(*keys: int) -> dict[str, np.ndarray]:
        k = np.array(keys, np.int64)
        return {"x": np.stack([k, -k], axis=1).astype(np.float32), "k": k}

    return make


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Waits for something that another process is about to do. The bound only ends a test that hangs: it is no measure
    of speed, which a loaded machine has not."""

    def wait(condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.005)

    return wait
