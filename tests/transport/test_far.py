"""Clients a long way off: a round trip of 50 ms on a line of 1 Gb/s, with and without faults, the kernel's TCP at the
other end. What arrives is compared byte by byte; how fast it arrives is no matter here."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from replay_server.bench.line import Line

pytestmark = pytest.mark.dpdk
DELAY_US, RATE_MBIT = 25_000, 1_000  # each way
FIRST_WINDOW = 256 << 10  # of what a client may send ahead
FIRST_BUFFER = 2 << 20


class Far:
    """A server over DPDK at the far end, and a way to it that is not over the line."""

    def __init__(self, site: Any) -> None:
        self.site = site
        site.serve(unix=site.lab.folder / "s")
        self.redis = redis.Redis(unix_socket_path=str(site.lab.folder / "s"))

    def line(self, **options: Any) -> Line:
        return Line(self.site.lab.relay_command, delay_us=DELAY_US, rate_mbit=RATE_MBIT, **options)

    def told(self, field: str) -> int:
        return self.redis.info("transport")[f"transport_{field}"]

    def connect(self) -> socket.socket:
        connection = socket.create_connection((self.site.address, 6379), 120)
        # The machine's own choice may be one that takes no notice of losses.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        return connection


@pytest.fixture(scope="module")
def built(open_site: Any) -> Iterator[Any]:
    with open_site("dpdk", "af_packet", relayed=True) as site:
        yield site


@pytest.fixture(scope="module")
def far_server(built: Any) -> Far:
    return Far(built)


@pytest.fixture
def far(far_server: Far, site: Any) -> Iterator[Far]:
    del site  # this thread stands on the client's side
    yield far_server
    far_server.redis.flushall()


def take(connection: socket.socket, size_bytes: int) -> bytes:
    got = bytearray()
    while len(got) < size_bytes and (piece := connection.recv(1 << 20)):
        got += piece
    return bytes(got)


def fetch(connection: socket.socket, key: str, value: bytes) -> None:
    """GETs a value, which must be that."""
    connection.sendall(f"GET {key}\r\n".encode())
    head = b"$%d\r\n" % len(value)
    got = take(connection, len(head) + len(value) + 2)
    assert len(got) == len(head) + len(value) + 2
    assert got == head + value + b"\r\n"


def store(connection: socket.socket, key: str, value: bytes) -> None:
    connection.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key.encode(), len(value)))
    connection.sendall(value + b"\r\n")
    assert take(connection, 5) == b"+OK\r\n"


@pytest.mark.parametrize(
    ("faults", "seen"),
    [
        (None, []),
        ("loss=0.001,seed=11", ["lost"]),
        ("loss=0.01,seed=12", ["lost"]),
        ("reorder=0.01,seed=13", ["reordered"]),
        ("duplicate=0.01,seed=14", ["duplicated"]),
        ("loss=0.005,duplicate=0.01,reorder=0.01,seed=15", ["lost", "duplicated", "reordered"]),
    ],
    ids=["clean", "loss-0.1", "loss-1", "reordering", "duplication", "all"],
)
def test_what_arrives_is_what_was_sent(far: Far, faults: str | None, seen: list[str]) -> None:
    value, back = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(3_000_000)
    far.redis.set("there", value)
    recoveries = far.told("recoveries")
    with far.line(faults=faults) as line, far.connect() as connection:
        fetch(connection, "there", value)
        store(connection, "back", back)
        connection.close()
        counted = line.end()
    assert far.redis.get("back") == back
    for side in ("from_server", "from_client"):
        for what in seen:
            assert counted[side][what] > 0
    if "lost" in seen:
        assert far.told("recoveries") > recoveries


def test_a_line_with_a_short_queue_drops_what_is_sent_again(far: Far) -> None:
    value = random.Random(3).randbytes(4_000_000)
    far.redis.set("there", value)
    before = far.told("retransmissions")
    with far.line(queue_bytes=200_000) as line, far.connect() as connection:
        fetch(connection, "there", value)
        connection.close()
        dropped = line.end()["from_server"]["dropped_queue"]
    assert far.told("retransmissions") - before >= dropped


def test_windows_open_as_they_are_used(far: Far) -> None:
    """2 MB each way was the most there was: 40 MB/s at 50 ms."""
    value = random.Random(4).randbytes(16_000_000)
    far.redis.set("there", value)
    with far.line() as line, far.connect() as connection:
        for _ in range(10):
            fetch(connection, "there", value)
            store(connection, "back", value)
            assert far.redis.get("back") == value
            sent, received = far.told("send_window_bytes_most"), far.told("receive_window_bytes_most")
            if sent > FIRST_BUFFER and received > FIRST_BUFFER:
                break
        connection.close()
        line.end()
    assert sent > FIRST_BUFFER
    assert received > FIRST_BUFFER


def test_windows_are_given_back_with_their_connections(far: Far) -> None:
    values = [random.Random(number).randbytes(4_000_000) for number in range(4)]
    with far.line(faults="loss=0.001,seed=16"), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(far.connect()) for _ in values]

        def upload(number: int) -> None:
            store(connections[number], f"from{number}", values[number])

        threads = [threading.Thread(target=upload, args=(number,)) for number in range(len(values))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wide = far.told("receive_windows_bytes")
        stack.close()
        with far.connect() as another:  # its answers come after the others' ends
            while far.told("connections") > 1:
                another.sendall(b"PING\r\n")
                assert take(another, 7) == b"+PONG\r\n"
            assert far.told("receive_windows_bytes") == 0
    assert 0 < wide <= 64 << 20
    for number, value in enumerate(values):
        assert far.redis.get(f"from{number}") == value
