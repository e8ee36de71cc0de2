"""Input that the server does not read yet, over DPDK: it holds frames, of which there are few here, and must neither
keep others from being served nor get lost."""

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
from replay_server.codec import encode_command

pytestmark = pytest.mark.dpdk

MEMORY_BYTES = 64 << 20
VALUE = np.random.default_rng(1).bytes(1 << 20)
GETS = 4
"""More replies than the server keeps for a client: it reads no more from one that does not take them."""
CLIENTS = 240
"""A connection begins with a window of 256 kB, which does not grow unless it is read: 60 MB in all."""


def request(*arguments: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_command(arguments))


@pytest.fixture(scope="module")
def small_site(open_site: Any) -> Iterator[Any]:
    config = {"dpdk-memory": MEMORY_BYTES, "client-output-backlog": 1 << 20}
    # On a loaded machine it takes minutes until all is full: who takes no replies meanwhile is not to be closed for it.
    config["client-stall-timeout"] = 3600
    with open_site("dpdk", "af_packet", config) as site:
        yield site


@pytest.fixture
def client(small_site: Any) -> Iterator[rs.Client]:
    with small_site.entered():
        server = small_site.shared
        with rs.Client(server.url) as client:
            client.redis.set("value", VALUE)
            yield client
        assert server.running, f"the server died: {server.log()}"


COPIES_LEFT = 29 << 20
"""Of 50 MB; the less is left, the longer clients wait before they try again."""


def send_all_it_takes(outputs: dict[socket.socket, memoryview], client: rs.Client) -> None:
    """Sends on all connections in turn until the server has copied much. Meanwhile another client is answered."""
    end, copied = time.monotonic() + 250, False
    with selectors.DefaultSelector() as selector:
        for connection in outputs:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE)
        while time.monotonic() < end and selector.get_map() and not copied:
            for key, _ in selector.select(timeout=0.05):
                connection: Any = key.fileobj
                with contextlib.suppress(BlockingIOError):
                    outputs[connection] = outputs[connection][connection.send(outputs[connection][:65536]) :]
                if not outputs[connection]:
                    selector.unregister(connection)
            copied = transport_info(client)["transport_copies_free_bytes"] < COPIES_LEFT
    for connection in outputs:
        connection.settimeout(60)


def transport_info(client: rs.Client) -> dict[str, int]:
    return {name: value for name, value in client.redis.info("transport").items() if isinstance(value, int)}


def finish(connection: socket.socket, rest: memoryview) -> None:
    """Takes the replies while the rest is sent."""
    expected = GETS * (len(VALUE) + len(b"$1048576\r\n\r\n")) + len(b"+OK\r\n")
    received = bytearray()
    connection.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0))
        end = time.monotonic() + 60
        while len(received) < expected:
            assert time.monotonic() < end, f"{len(received)} of {expected} bytes of replies came"
            for _, events in selector.select(timeout=60):
                if events & selectors.EVENT_READ:
                    piece = connection.recv(1 << 20)
                    assert piece, "closed by the server"
                    received += piece
                if events & selectors.EVENT_WRITE and rest:
                    rest = rest[connection.send(rest[:65536]) :]
                    if not rest:
                        selector.modify(connection, selectors.EVENT_READ)
    assert bytes(received) == (b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)) * GETS + b"+OK\r\n"


def test_frames_that_slow_clients_hold_are_copied_and_then_refused(small_site: Any, client: rs.Client) -> None:
    """Many clients take no replies and send on, a first window each: more than there are frames."""
    frames = transport_info(client)["transport_frames"]
    values = [np.random.default_rng(number).bytes(3 << 20) for number in range(2)]
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((small_site.address, 6379), timeout=60))
            for _ in range(CLIENTS)
        ]
        outputs = {
            connection: memoryview(
                request("GET", "value") * GETS + request("SET", f"held:{number % 2}", values[number % 2])
            )
            for number, connection in enumerate(connections)
        }
        send_all_it_takes(outputs, client)
        held = transport_info(client)
        assert held["transport_frames_held"] < frames
        assert held["transport_copies_free_bytes"] < 30 << 20, "too little input was copied"
        assert client.redis.get("value") == VALUE
        for connection in connections[4:]:
            connection.close()
        for connection in connections[:4]:
            finish(connection, outputs[connection])
    assert client.redis.get("held:0") == values[0]
    assert client.redis.get("held:1") == values[1]
    after = transport_info(client)
    assert after["transport_frames_held"] < 100
    assert after["transport_copies_free_bytes"] > 50 << 20


def test_a_byte_a_frame_holds_no_more_than_its_share(small_site: Any, client: rs.Client) -> None:
    """The window counts bytes, but each of these holds a frame."""
    with socket.create_connection((small_site.address, 6379), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request("GET", "value") * GETS)
        time.sleep(0.3)
        value = bytes(range(48, 58)) * 4000
        sent = request("SET", "bytes", value)
        for at in range(len(sent)):
            connection.send(sent[at : at + 1])
            if at % 5000 == 0:
                assert client.redis.ping()
        info = transport_info(client)
        assert info["transport_frames_held"] <= info["transport_frames"] // 2 + 1000
        finish(connection, memoryview(b""))
    assert client.redis.get("bytes") == value
