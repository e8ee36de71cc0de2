"""Frames that no client would send: a stack in user space meets whatever is on the wire."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

pytestmark = pytest.mark.timeout(120)

FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16
STRANGER = "10.80.0.77"
"""Nobody has this address."""


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    total = (total >> 16) + (total & 0xFFFF)
    return ~((total >> 16) + total) & 0xFFFF


class Wire:
    """Puts frames on the client's cable, to the server's port."""

    def __init__(self, address: str) -> None:
        self.address = address
        neighbours = [row.split() for row in Path("/proc/thread-self/net/arp").read_text().splitlines()[1:]]
        server = next(row[3] for row in neighbours if row[0] == address)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind(("eth0", 0))
        self.ethernet = bytes.fromhex(server.replace(":", "")) + self.socket.getsockname()[4]
        self.source, self.target = socket.inet_aton(STRANGER), socket.inet_aton(address)

    def packet(self, protocol: int, body: bytes, options: bytes = b"", size: int | None = None, part: int = 0) -> bytes:
        """An IPv4 packet in a frame, its header's checksum right."""
        words = 5 + len(options) // 4
        size = words * 4 + len(body) if size is None else size
        header = struct.pack("!BBHHHBBH", 0x40 | words, 0, size, 7, part, 64, protocol, 0)
        header += self.source + self.target + options
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
        return self.ethernet + b"\x08\0" + header + body

    def segment(
        self, port: int, flags: int, sequence: int, data: bytes = b"", options: bytes = b"", words: int | None = None
    ) -> bytes:
        """A TCP segment, its checksum right."""
        words = 5 + len(options) // 4 if words is None else words
        header = struct.pack(
            "!HHIIBBHHH", port, 6379, sequence, sequence * 7 & 0xFFFFFFFF, words << 4, flags, 5000, 0, 0
        )
        body = header + options + data
        pseudo = self.source + self.target + struct.pack("!BBH", 0, 6, len(body))
        return body[:16] + struct.pack("!H", checksum(pseudo + body)) + body[18:]

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)


@pytest.fixture
def wire(site: Any, client: Any) -> Iterator[Wire]:
    client.redis.ping()  # so that the server's address is known
    made = Wire(site.address)
    with made.socket:
        yield made


def options(source: random.Random) -> bytes:
    """TCP options: none, sensible ones with senseless values, noise."""
    kind = source.random()
    if kind < 0.4:
        return b""
    if kind < 0.7:
        size, scale = source.choice([0, 1, 20, 536, 1460, 65535]), source.choice([0, 7, 14, 255])
        return b"\x02\x04" + struct.pack("!H", size) + b"\x03\x03" + bytes([scale]) + b"\x01"
    if kind < 0.8:
        return (b"\x05" + bytes([source.choice([0, 1, 2, 10, 18, 255])]) + source.randbytes(18))[:20]
    return source.randbytes(4 * source.randrange(11))


def noise(wire: Wire, source: random.Random) -> bytes:
    """A frame that is wrong in one way or in several."""
    data = source.randbytes(source.choice([0, 0, 1, 10, 600, 1300]))
    flags = source.choice([SYN, SYN, SYN | ACK, PUSH | ACK, RST, FIN, FIN | ACK, 0, 255, source.randrange(256)])
    sequence = source.choice([source.randrange(100), source.randrange(1 << 32)])
    port = source.choice([1000, 1001, source.randrange(1, 65536)])
    segment = wire.segment(
        port, flags, sequence, data, options(source), source.randrange(16) if source.random() < 0.1 else None
    )
    frame = wire.packet(
        6,
        segment,
        source.randbytes(4 * source.randrange(11)) if source.random() < 0.1 else b"",
        source.choice([0, 19, 20, 39, 40, 1500, 65535]) if source.random() < 0.1 else None,
        source.choice([0x2000, 0x1FFF, 100]) if source.random() < 0.1 else 0,
    )
    kind = source.random()
    if kind < 0.2:  # a bit turned over
        place = source.randrange(12, len(frame))
        return frame[:place] + bytes([frame[place] ^ 1 << source.randrange(8)]) + frame[place + 1 :]
    if kind < 0.3:  # cut short
        return frame[: source.randrange(14, len(frame))]
    if kind < 0.35:  # no IPv4
        kinds = [b"\x08\x06", b"\x86\xdd", b"\x81\0", source.randbytes(2)]
        return wire.ethernet + source.choice(kinds) + source.randbytes(source.randrange(1400))
    if kind < 0.4:  # ARP
        head = struct.pack("!HHBBH", 1, 0x800, 6, 4, source.choice([1, 2, 3]))
        return wire.ethernet + b"\x08\x06" + head + source.randbytes(source.randrange(21))
    if kind < 0.45:  # no TCP
        return wire.packet(source.choice([1, 17, 2, source.randrange(256)]), source.randbytes(source.randrange(1000)))
    return frame


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_frames_that_make_no_sense_harm_nobody(site: Any, client: Any, wire: Wire, seed: int) -> None:
    source = random.Random(seed)
    value = source.randbytes(100_000)
    for number in range(10_000 if seed == 1 else 100_000):
        wire.send(noise(wire, source))
        if number % 500 == 0:
            assert client.redis.set("sense", value)
            assert client.redis.get("sense") == value
    for _ in range(20):
        with redis.Redis(site.address, 6379) as other:
            assert other.get("sense") == value
    assert client.redis.info("clients")["connected_clients"] <= 2 + 20
    client.redis.delete("sense")


def test_half_open_connections_keep_nobody_out(site: Any, wire: Wire) -> None:
    """255 of them filled the stack's list for twenty seconds, in which it let nobody in."""
    for number in range(3000):
        wire.send(wire.packet(6, wire.segment(1024 + number, SYN, number)))
        if number % 100 == 99:
            begin = time.monotonic()
            with redis.Redis(site.address, 6379) as other:
                assert other.ping()
            assert time.monotonic() - begin < 0.9, "its SYN had to be sent again"
