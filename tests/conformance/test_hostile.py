"""Clients that mean harm, or know no better: nobody else notices, and what they can make the server hold is bounded."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import replay_server as rs

IDLE = 10_000
SLOW = 300
PIPELINE = 1_000_000
VALUE = b"v" * 1_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[rs.Server]:
    config = {"maxclients": IDLE + 100, "client-stall-timeout": 2}
    with rs.Server([], unix=str(tmp_path / "s"), config=config) as running:
        yield running
        assert running.running, running.log()


@pytest.fixture
def client(server: rs.Server, tmp_path: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(tmp_path / "s"), socket_timeout=30) as connected:
        yield connected


def connect(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    deadline = time.monotonic() + 60
    while True:
        try:
            made.connect(str(path))
            return made
        except BlockingIOError:  # the server has not accepted those before yet
            assert time.monotonic() < deadline
            time.sleep(0.001)


def received(connection: socket.socket, size: int) -> int:
    """Reads so many bytes, or to the end; returns how many there were."""
    got = 0
    while got < size and (piece := connection.recv(1 << 20)):
        got += len(piece)
    return got


def send_for_ever(connection: socket.socket, requests: bytes) -> None:
    while True:
        connection.sendall(requests)


def test_ten_thousand_idle_connections(client: redis.Redis, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 500:
        pytest.skip(f"needs {IDLE + 500} open files, {hard} are allowed: ulimit -n")
    before = client.info("memory")["used_memory"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 500), hard))
    idle: list[socket.socket] = []
    try:
        for _ in range(IDLE):
            idle.append(connect(tmp_path / "s"))
        deadline = time.monotonic() + 60
        while client.info("clients")["connected_clients"] < IDLE + 1:
            assert time.monotonic() < deadline
        each = (client.info("memory")["used_memory"] - before) / IDLE
        assert each < 4096, f"{each:.0f} bytes for an idle connection"
        idle[0].sendall(b"PING\r\n")
        idle[-1].sendall(b"PING\r\n")
        assert received(idle[0], 7) == received(idle[-1], 7) == 7
        assert client.set("k", "v")
        assert client.get("k") == b"v"
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    deadline = time.monotonic() + 60
    while client.info("clients")["connected_clients"] > 1:
        assert time.monotonic() < deadline


def test_requests_that_stop_in_the_middle_are_given_up(client: redis.Redis, tmp_path: Path) -> None:
    """Slow loris: each holds a place for a large argument that does not come."""
    slow = [connect(tmp_path / "s") for _ in range(SLOW)]
    for connection in slow:
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nvvv")
    assert client.set("other", "v")
    for connection in slow:
        assert received(connection, 1) == 0, "closed, without a reply"
        connection.close()
    assert client.info("clients")["connected_clients"] == 1
    assert client.get("k") is None
    assert client.get("other") == b"v"


def test_one_client_with_a_million_commands_at_once(client: redis.Redis, tmp_path: Path) -> None:
    greedy = connect(tmp_path / "s")
    request = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n"
    sender = threading.Thread(target=greedy.sendall, args=(request * PIPELINE,))
    sender.start()
    got, between = 0, 0
    expected = sum(9 * 10**digits * (digits + 4) for digits in range(6)) + len(":1000000\r\n")
    while got < expected:
        between += 0 < int(client.get("n") or 0) < PIPELINE
        piece = greedy.recv(1 << 20)
        assert piece, "the server closed"
        got += len(piece)
    sender.join(60)
    assert client.get("n") == b"1000000"
    assert between > 2, "others wait for a slice of it, not for all"
    greedy.close()


def test_a_reader_that_never_reads(client: redis.Redis, tmp_path: Path) -> None:
    client.set("large", VALUE)
    deaf = connect(tmp_path / "s")
    deaf.settimeout(1)
    request = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n"
    with pytest.raises((TimeoutError, BrokenPipeError, ConnectionResetError)):
        send_for_ever(deaf, request * 1000)
    assert client.info("memory")["used_memory"] < 100 * len(VALUE)
    assert client.get("large") == VALUE
    deadline = time.monotonic() + 60
    while client.info("clients")["connected_clients"] > 1:
        assert time.monotonic() < deadline, "it should have been closed for its stall"
        time.sleep(0.05)
    deaf.close()
