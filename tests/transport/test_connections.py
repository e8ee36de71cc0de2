"""Connections over every transport: many, deep, half-closed, reset, come and gone, and read slowly."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.codec import encode_command

FRAMES = {"obs": rs.Column("uint8", (4, 84, 84))}
FRAME_BYTES = 4 * 84 * 84
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a close sends a reset and forgets what was not sent."""


def request(*arguments: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_command(arguments))


@pytest.fixture
def connect(site: Any, server: Any) -> Iterator[Callable[..., socket.socket]]:
    """Opens connections to the server, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def connect_one(receive_bytes: int | None = None) -> socket.socket:
            made = stack.enter_context(socket.socket())
            if receive_bytes is not None:  # before it is connected, so that the first window has it
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            made.settimeout(60)
            made.connect((site.address, 6379))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made

        yield connect_one


def receive(connection: socket.socket, size_bytes: int) -> bytes:
    """So many bytes; fewer where the connection ends."""
    received = bytearray(size_bytes)
    filled, view = 0, memoryview(received)
    while filled < size_bytes and (count := connection.recv_into(view[filled:])):
        filled += count
    return bytes(received[:filled])


def receive_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def exchange(sends: dict[socket.socket, bytes], expected_bytes: dict[socket.socket, int]) -> dict[socket.socket, bytes]:
    """Sends and receives on all connections at once, until each has received what it expects."""
    left = {connection: memoryview(data) for connection, data in sends.items()}
    received = {connection: bytearray() for connection in sends}
    waiting = len(sends)
    with selectors.DefaultSelector() as selector:
        for connection in sends:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        end = time.monotonic() + 60
        while waiting:
            assert time.monotonic() < end, f"{waiting} connections got no whole answer"
            for key, events in selector.select(timeout=60):
                connection: Any = key.fileobj
                if events & selectors.EVENT_WRITE:
                    left[connection] = left[connection][connection.send(left[connection]) :]
                    if not left[connection]:
                        selector.modify(connection, selectors.EVENT_READ)
                if events & selectors.EVENT_READ:
                    piece = connection.recv(1 << 18)
                    assert piece, "closed by the server"
                    received[connection] += piece
                    if len(received[connection]) >= expected_bytes[connection]:
                        selector.unregister(connection)
                        connection.settimeout(60)
                        waiting -= 1
    return {connection: bytes(data) for connection, data in received.items()}


def connected(client: rs.Client) -> int:
    """Connections beside those of `client`, which has one for tables and one for keys."""
    client.tables()
    return client.redis.info("clients")["connected_clients"] - 2


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


# ---- many, and deep --------------------------------------------------------------------------------------------------


def test_two_hundred_connections_at_once_each_get_their_own_answers(client: Any, connect: Any) -> None:
    connections = [connect() for _ in range(200)]
    assert connected(client) == 200
    for turn in range(5):
        values = {each: b"%d of %d" % (turn, i) + b"x" * (i * turn) for i, each in enumerate(connections)}
        sends = {each: request("ECHO", value) for each, value in values.items()}
        expected = {each: bulk(value) for each, value in values.items()}
        assert exchange(sends, {each: len(answer) for each, answer in expected.items()}) == expected


@pytest.mark.parametrize(("connections", "piece_bytes"), [(1, 1 << 20), (1, 1400), (20, 1 << 20)])
def test_pipelines_of_two_thousand_are_answered_in_order(connect: Any, connections: int, piece_bytes: int) -> None:
    """Also where requests are cut at places that have nothing to do with them."""
    opened = [connect() for _ in range(connections)]
    values = {each: [b"%d:%d" % (i, n) * (1 + n % 9) for n in range(2000)] for i, each in enumerate(opened)}
    sends = {each: b"".join(request("ECHO", value) for value in own) for each, own in values.items()}
    expected = {each: b"".join(bulk(value) for value in own) for each, own in values.items()}
    if piece_bytes < len(sends[opened[0]]):
        for begin in range(0, len(sends[opened[0]]), piece_bytes):
            opened[0].sendall(sends[opened[0]][begin : begin + piece_bytes])
        assert receive(opened[0], len(expected[opened[0]])) == expected[opened[0]]
    else:
        assert exchange(sends, {each: len(answer) for each, answer in expected.items()}) == expected


@pytest.mark.parametrize("size_bytes", [0, 1, 16 << 20])
def test_a_half_closed_connection_gets_its_replies(client: Any, connect: Any, size_bytes: int) -> None:
    value = np.random.default_rng(size_bytes).bytes(size_bytes)
    client.redis.set("half", value)
    connection = connect()
    connection.sendall(request("PING") + request("GET", "half") + request("ECHO", b"last"))
    connection.shutdown(socket.SHUT_WR)
    answer = receive_all(connection)
    assert answer == b"+PONG\r\n" + bulk(value) + bulk(b"last")
    client.redis.delete("half")


def test_a_burst_of_connections_is_let_in(client: Any, site: Any) -> None:
    """All at once, and each speaks as soon as it may."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        burst = [stack.enter_context(socket.socket()) for _ in range(400)]
        begin = time.monotonic()
        for connection in burst:
            connection.setblocking(False)
            assert connection.connect_ex((site.address, 6379)) == errno.EINPROGRESS
            selector.register(connection, selectors.EVENT_WRITE)
        answered = 0
        while answered < len(burst):
            assert time.monotonic() - begin < 60, f"{answered} of {len(burst)} were answered"
            for key, events in selector.select(1):
                each: Any = key.fileobj
                if events & selectors.EVENT_WRITE:
                    assert each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                    each.sendall(b"PING\r\n")
                    selector.modify(each, selectors.EVENT_READ)
                else:
                    assert each.recv(100) == b"+PONG\r\n"
                    selector.unregister(each)
                    answered += 1
        assert connected(client) == len(burst)


def test_who_sends_behind_a_wait_is_held_back_and_loses_nothing(
    site: Any, client: Any, connect: Any, table: Any, items: Any, eventually: Any
) -> None:
    """The server does not read on while a request waits: what comes behind it stays with its sender."""
    value = np.random.default_rng(11).bytes(1 << 20)
    connection = connect()
    behind = request("REPLAY.SAMPLE", table, 1, "BLOCK", 0) + request("SET", "behind", value) * 40 + request("PING")
    sent = 0
    connection.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while sent < len(behind):
            sent += connection.send(behind[sent : sent + (1 << 18)])
    assert 0 < sent < len(behind), "the server took in what it has no use for yet"
    assert client.info(table)["waiting"] == 1
    client.add(table, items(3))
    connection.settimeout(60)
    connection.sendall(behind[sent:])
    answer = receive(connection, 40 * 5 + 7 + 1)
    while not answer.endswith(b"+OK\r\n" * 40 + b"+PONG\r\n"):
        piece = connection.recv(1 << 16)
        assert piece
        answer += piece
    assert answer.startswith(b"*")
    assert client.redis.get("behind") == value
    client.redis.delete("behind")


# ---- resets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.99])
def test_a_reset_in_mid_request_stores_nothing(
    client: Any, connect: Any, make_table: Any, eventually: Any, share: float
) -> None:
    name = make_table(128, FRAMES)
    whole = request("REPLAY.ADD", name, 64, b"", "COLUMNS", 1, "obs", bytes(64 * FRAME_BYTES))
    connections = [connect() for _ in range(2)]
    for connection in connections:
        connection.sendall(whole[: int(len(whole) * share)])
    if share == 0.3:
        eventually(lambda: client.info(name)["reserved_slots"] > 0, "the server reserves slots")
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
    eventually(lambda: client.info(name)["reserved_slots"] == 0, "the reservations are given back")
    eventually(lambda: connected(client) == 0, "the connections are forgotten")
    assert client.info(name)["size"] == 0
    assert len(client.add(name, {"obs": np.zeros((64, 4, 84, 84), np.uint8)})) == 64


def test_a_reset_in_mid_reply_gives_the_pins_back(client: Any, connect: Any, make_table: Any, eventually: Any) -> None:
    name = make_table(512, FRAMES, sampler=rs.Uniform())
    client.add(name, {"obs": np.zeros((512, 4, 84, 84), np.uint8)})
    for _ in range(3):
        connection = connect(4096)
        connection.sendall(request("REPLAY.SAMPLE", name, 512) * 2)
        assert len(receive(connection, 100_000)) == 100_000
        assert client.info(name)["pinned_slots"] > 0
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
    eventually(lambda: client.info(name)["pinned_slots"] == 0, "the pins are given back")
    assert len(client.sample(name, 512)) == 512


# ---- coming and going ------------------------------------------------------------------------------------------------


def leave(connection: socket.socket, number: int) -> None:
    """In turns: the client closes, the server closes, the client resets."""
    if number % 3 == 1:
        connection.sendall(b"QUIT\r\n")
        assert receive_all(connection) == b"+OK\r\n"
    if number % 3 == 2:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def resident_bytes(pid: int) -> int:
    rows = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(rows["VmRSS"].split()[0]) * 1024


def connect_from(connection: socket.socket, place: Any, to: Any) -> None:
    """From a place whose last connection may still wait for the acknowledgement of its end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.settimeout(60)
    connection.bind(place)
    end = time.monotonic() + 60
    while True:
        try:
            return connection.connect(to)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() > end:
                raise


def test_a_client_comes_back_from_the_same_port_at_once(site: Any, server: Any, sent_again: Any) -> None:
    """A stack that remembers a connection which it closed first refused the next one from there, or answered it with an
    ACK, over and over: the client waited for four seconds."""
    place, again = ("", 0), 0
    for _ in range(50):
        with socket.socket() as connection:
            connect_from(connection, place, (site.address, 6379))
            again += sent_again(connection)
            assert again <= 2, "its SYN had to be sent again"
            place = connection.getsockname()
            connection.sendall(b"QUIT\r\n")
            assert receive_all(connection) == b"+OK\r\n"


def test_ten_thousand_connects_and_disconnects_leave_nothing(
    site: Any, server: Any, client: Any, eventually: Any
) -> None:
    before_bytes = 0
    began = client.redis.info("stats")["total_connections_received"]
    for number in range(10_000):
        connection = socket.create_connection((site.address, 6379), 60)
        if number % 10 == 0:
            connection.sendall(b"PING\r\n")
            assert receive(connection, 7) == b"+PONG\r\n"
        leave(connection, number)
        if number == 2_000:
            before_bytes = resident_bytes(server.pid)
    eventually(lambda: connected(client) == 0, "all connections are forgotten")
    assert client.redis.info("stats")["total_connections_received"] >= began + 10_000 * 2 / 3
    assert resident_bytes(server.pid) - before_bytes < 2 << 20


# ---- slow readers ----------------------------------------------------------------------------------------------------


def test_a_slow_reader_holds_nobody_up_and_gets_everything(client: Any, connect: Any) -> None:
    value = np.random.default_rng(5).bytes(8 << 20)
    client.redis.set("slow", value)
    slow = connect(16384)
    slow.sendall(request("GET", "slow") * 4)
    time.sleep(0.3)  # until its window is full
    for _ in range(300):
        assert client.redis.ping()
    assert client.redis.get("slow") == value
    for _ in range(4):
        assert receive(slow, len(bulk(value))) == bulk(value)
    client.redis.delete("slow")


def test_a_reader_that_pauses_goes_on(client: Any, connect: Any) -> None:
    """Its window was shut for seconds: what opens it again must be noticed."""
    value = np.random.default_rng(6).bytes(16 << 20)
    client.redis.set("paused", value)
    pausing = connect(65536)
    pausing.sendall(request("GET", "paused"))
    expected, got = bulk(value), b""
    for pause in (0.1, 1.8):
        got += receive(pausing, 1 << 20)
        time.sleep(pause)
    got += receive(pausing, len(expected) - len(got))
    assert got == expected
    client.redis.delete("paused")


def test_who_never_reads_is_closed_after_the_documented_time(client: Any, connect: Any, eventually: Any) -> None:
    value = bytes(8 << 20)
    client.redis.set("never", value)
    before = client.redis.info("stats")["client_stall_closes"]
    normal = client.redis.config_get("client-stall-timeout")["client-stall-timeout"]
    client.redis.config_set("client-stall-timeout", 1)
    try:
        never = connect(16384)
        never.sendall(request("GET", "never") * 4)
        begin = time.monotonic()
        eventually(lambda: client.redis.info("stats")["client_stall_closes"] == before + 1, "it is closed")
        assert time.monotonic() - begin > 0.9
        eventually(lambda: client.redis.info("memory")["used_memory_replies"] == 0, "its replies are given back")
    finally:
        client.redis.config_set("client-stall-timeout", normal)
        client.redis.delete("never")
