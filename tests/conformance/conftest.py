"""The real Redis 7.0 and our server, side by side, for tests that compare them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import COMPARED, Pair
from compatibility import RECORD, documented

import replay_server

REDIS_VERSION = "7.0"  # the version whose behaviour the store follows
REPLY_TIMEOUT_S = 100.0


class RawConnection:
    """A client that shows replies as they came: ("+", text), (":", number), ("*", [replies]), … with RESP's own type
    bytes, so that nothing that differs between two servers is smoothed over by a client library."""

    def __init__(self, path: Path, protocol: int = 2) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(REPLY_TIMEOUT_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._input = self.socket.makefile("rb")
        if protocol != 2:
            kind, _ = self.run(b"HELLO", str(protocol).encode())
            assert kind == "%", f"HELLO {protocol} should be answered by a map"

    def send(self, *commands: tuple[bytes, ...]) -> None:
        """Sends commands in one write."""
        parts: list[bytes] = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in command]
        self.socket.sendall(b"".join(parts))

    def read(self) -> tuple[str, Any]:
        """The next reply. Raises ConnectionError when the server has closed."""
        line = self._input.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"the server closed the connection in the middle of a reply: {line!r}")
        kind, rest = chr(line[0]), line[1:-2]
        if kind in "+-,#_(":
            return kind, rest
        size = int(rest)
        if kind == ":" or size < 0:
            return kind, size if kind == ":" else None
        if kind in "$=":
            data = self._input.read(size + 2)
            if len(data) != size + 2:
                raise ConnectionError("the server closed the connection in the middle of a bulk string")
            return kind, data[:-2]
        if kind == "|":  # attributes, and the reply that they are of
            return kind, [self.read() for _ in range(size * 2 + 1)]
        return kind, [self.read() for _ in range(size * 2 if kind == "%" else size)]

    def run(self, *command: bytes) -> tuple[str, Any]:
        self.send(command)
        return self.read()

    def close(self) -> None:
        self._input.close()
        self.socket.close()


@dataclasses.dataclass(frozen=True)
class Peer:
    """One of the two servers."""

    name: str
    unix_path: Path

    def connect(self, protocol: int = 2) -> RawConnection:
        return RawConnection(self.unix_path, protocol)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{path.name}: the server ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            RawConnection(path).close()
            return
        time.sleep(0.02)
    raise RuntimeError(f"{path}: the server did not listen within 60 s")


@pytest.fixture(scope="session")
def redis_program() -> str:
    """Path of redis-server 7.0; skips where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server 7.0 to compare with: apt-get install redis-server")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"v=(\S+)", version)
    if found is None or not found[1].startswith(REDIS_VERSION + "."):
        pytest.skip(f"needs redis-server {REDIS_VERSION} to compare with; found {version.strip()!r}")
    return program


@pytest.fixture(scope="session")
def peer_at() -> Callable[[Path, subprocess.Popen[bytes]], Peer]:
    """For servers that a test starts by itself: waits until one listens at its socket."""

    def wait(path: Path, process: subprocess.Popen[bytes]) -> Peer:
        _wait_for(path, process)
        return Peer(path.stem, path)

    return wait


@pytest.fixture(scope="session")
def redis_peer(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    directory = tmp_path_factory.mktemp("redis")
    path = directory / "redis.sock"
    command = [redis_program, "--port", "0", "--unixsocket", str(path), "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "LC_ALL": "C"}
        )
    try:
        _wait_for(path, process)
        yield Peer("redis", path)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="session")
def our_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    path = tmp_path_factory.mktemp("ours") / "replay.sock"
    with replay_server.Server([], unix=str(path), config={"enable-debug-command": "yes"}):
        yield Peer("ours", path)


@pytest.fixture
def client(our_peer: Peer) -> Iterator[redis.Redis]:
    """Of ours alone, which is empty."""
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as connected:
        connected.flushall()
        yield connected


@pytest.fixture(scope="session")
def peers(redis_peer: Peer, our_peer: Peer) -> tuple[Peer, Peer]:
    """(redis, ours)"""
    return redis_peer, our_peer


@pytest.fixture(scope="module", params=[2, 3], ids=["resp2", "resp3"])
def pair(request: pytest.FixtureRequest, peers: Any) -> Iterator[Pair]:
    """A connection to each server, over RESP2 and then RESP3, with no key that tests of ours alone have left."""
    connected = Pair(peers, request.param)
    connected.words("FLUSHALL")
    yield connected
    connected.close()


@pytest.fixture(scope="session", autouse=True)
def record(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves what was compared in the file that compatibility.py asks for."""
    file = os.environ.get(RECORD)
    if not file:
        yield
        return
    peers = [request.getfixturevalue(name) for name in ("redis_peer", "our_peer")]
    yield
    theirs: dict[str, str] = {}
    ours: dict[str, str] = {}
    for peer, told in zip(peers, (theirs, ours), strict=True):
        with redis.Redis(unix_socket_path=str(peer.unix_path)) as client:
            told.update(documented(client))
    compared = sorted(name for name in {**theirs, **ours} if name.encode() in COMPARED)
    Path(file).write_text(json.dumps({"theirs": theirs, "ours": ours, "compared": compared}))
