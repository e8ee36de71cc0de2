"""On a line that loses, doubles, reorders and cuts one frame in a hundred each, nothing is corrupted and nothing stands
still for longer than TCP's own timers make it.

The DPDK port injects the faults itself (`dpdk-faults`); for the others `bench/line.py` does, by the same code.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.lab import Lab
from replay_server.bench.line import Line
from replay_server.codec import encode_command

FAULTS = "loss=0.01,duplicate=0.01,reorder=0.01,cut=0.01,seed=1"


@contextlib.contextmanager
def line(lab: Lab) -> Iterator[None]:
    """Lays a line between the two sides, which must have done what it was told to."""
    with Line(lab.relay_command, faults=FAULTS) as laid:
        yield
        told = laid.end()
    for counts in (told["from_server"], told["from_client"]):
        for done in ("lost", "duplicated", "reordered", "cut"):
            assert 0.005 < counts[done] / counts["frames"] < 0.02, counts


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("kernel", "kernel", "relay"), id="kernel-relay"),
        pytest.param(("dpdk", "af_packet", "port"), id="dpdk-port", marks=pytest.mark.dpdk),
        pytest.param(("dpdk", "af_packet", "relay"), id="dpdk-relay", marks=[pytest.mark.dpdk, pytest.mark.slow]),
        pytest.param(("fstack", "af_packet", "relay"), id="fstack-relay", marks=pytest.mark.dpdk),
    ],
)
def built(request: pytest.FixtureRequest, open_site: Any) -> Iterator[Any]:
    """A server behind such a line."""
    transport, device, way = request.param
    faults = {"dpdk-faults": FAULTS} if way == "port" else None
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(open_site(transport, device, faults, relayed=way == "relay"))
        if way == "relay":
            stack.enter_context(line(site.lab))
        yield site


def test_large_values_arrive_whole_both_ways(site: Any, client: Any) -> None:
    for turn in range(2):
        value = np.random.default_rng(turn).bytes(8 << 20)
        client.redis.set("v", value)
        assert client.redis.get("v") == value
    if site.config:  # the relay counts what it did itself
        assert client.redis.info("transport")["transport_retransmissions"] > 0


def test_batches_are_bit_by_bit_what_was_added(client: Any, make_table: Any) -> None:
    name = make_table(300, {"k": rs.Column("int64"), "x": rs.Column("uint8", (4, 84, 84))})
    frames = np.random.default_rng(1).integers(0, 256, (300, 4, 84, 84), np.uint8)
    for begin in range(0, 300, 50):
        keys = np.arange(begin, begin + 50)
        client.add(name, {"k": keys, "x": frames[keys]}, timeout=60)
    for _ in range(4):
        batch = client.sample(name, 128, timeout=60)
        np.testing.assert_array_equal(batch.data["x"], frames[batch.data["k"]])


def test_no_more_is_sent_again_than_was_lost(site: Any, client: Any, sent_again: Any) -> None:
    before = client.redis.info("transport").get("transport_retransmissions", 0)
    with socket.create_connection((site.address, 6379), 60) as connection:
        connection.settimeout(60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(500):
            word = b"%04d" % number
            connection.sendall(b"ECHO " + word + b"\r\n")
            answer = b""
            while len(answer) < 10:
                answer += connection.recv(10)
            assert answer == b"$4\r\n" + word + b"\r\n"
        assert sent_again(connection) < 50
    assert client.redis.info("transport").get("transport_retransmissions", 0) - before < 50


def test_connections_are_made_used_and_ended(site: Any, server: Any) -> None:
    """Fifty at once, each with a pipeline, half of them left open for the server to end."""
    requests = b"".join(b"".join(bytes(part) for part in encode_command(("ECHO", b"%05d" % n))) for n in range(500))
    expected = b"".join(b"$5\r\n%05d\r\n" % n for n in range(500))
    with selectors.DefaultSelector() as selector:
        received: dict[socket.socket, bytearray] = {}
        for number in range(50):
            connection = socket.create_connection((site.address, 6379), 60)
            connection.sendall(requests + (b"QUIT\r\n" if number % 2 else b""))
            received[connection] = bytearray()
            selector.register(connection, selectors.EVENT_READ)
        end = time.monotonic() + 60
        while selector.get_map():
            assert time.monotonic() < end, f"{len(selector.get_map())} of 50 stand still"
            for key, _ in selector.select(1):
                connection: Any = key.fileobj
                piece = connection.recv(1 << 16)
                received[connection] += piece
                if not piece or received[connection] == expected:
                    selector.unregister(connection)
    for number, (connection, data) in enumerate(received.items()):
        assert data == expected + b"+OK\r\n" if number % 2 else data == expected
        connection.close()
