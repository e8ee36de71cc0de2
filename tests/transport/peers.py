"""Clients without a kernel: the test writes every frame."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16
STRANGER = "10.80.0.77"
"""Nobody has this address."""
PEERS_PORTS = range(8192, 60000)
"""Noise and ventures come from other ports: they leave connections half open, and the kernel answers for those."""


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


class Segment(NamedTuple):
    """What came from the server."""

    flags: int
    sequence: int
    acknowledged: int
    data: bytes


class Peer(Wire):
    """A client without a kernel: one TCP connection whose every segment the test writes."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__(address)
        self.listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.listener.bind(("eth0", 3))
        self.port, self.next, self.expected = port, random.randrange(1 << 31), 0
        self.early: list[Segment] = []
        self.answers_arp = True

    def close(self) -> None:
        self.socket.close()
        self.listener.close()

    def _arp(self, operation: int, source: bytes, to: bytes) -> bytes:
        mine = self.ethernet[6:]
        return (
            self.ethernet
            + b"\x08\x06"
            + struct.pack("!HHBBH", 1, 0x800, 6, 4, operation)
            + mine
            + source
            + self.ethernet[:6]
            + to
        )

    def tell_address(self) -> None:
        self.send(self._arp(2, self.source, self.target))

    def ask_for_server(self, source: str) -> None:
        """As a host of that address would, which the server then remembers."""
        self.send(self._arp(1, socket.inet_aton(source), self.target))

    def frames(self, seconds: float) -> Iterator[bytes]:
        """IP packets from the server, for so long; requests for this peer's address are answered."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.listener.settimeout(left)
            try:
                frame = self.listener.recv(65536)
            except TimeoutError:
                return
            if frame[6:12] != self.ethernet[:6]:
                continue
            if frame[12:14] == b"\x08\x06" and frame[38:42] == self.source and self.answers_arp:
                self.tell_address()
            if frame[12:14] == b"\x08\0" and frame[30:34] == self.source:
                yield frame[14 : 14 + int.from_bytes(frame[16:18], "big")]

    def segments(self, seconds: float) -> Iterator[Segment]:
        for packet in self.frames(seconds):
            tcp = packet[20:]
            if packet[9] != 6 or int.from_bytes(tcp[2:4], "big") != self.port:
                continue
            sequence, acknowledged = struct.unpack("!II", tcp[4:12])
            yield Segment(tcp[13], sequence, acknowledged, tcp[(tcp[12] >> 4) * 4 :])

    def say(self, flags: int, data: bytes = b"", window: int = 65535, options: bytes = b"") -> None:
        """Sends the next segment; it acknowledges what is expected to have come."""
        header = struct.pack(
            "!HHIIBBHHH", self.port, 6379, self.next, self.expected, 5 + len(options) // 4 << 4, flags, window, 0, 0
        )
        body = header + options + data
        pseudo = self.source + self.target + struct.pack("!BBH", 0, 6, len(body))
        self.send(self.packet(6, body[:16] + struct.pack("!H", checksum(pseudo + body)) + body[18:]))
        self.next = self.next + len(data) + (flags & (SYN | FIN) != 0) & 0xFFFFFFFF

    def open(self, options: bytes = b"", window: int = 65535, pause_s: float = 0.0) -> None:
        """Asks again where no answer comes: a kernel to which many came forgets whom it could not answer at once."""
        first, answer = self.next, None
        for _ in range(5):
            self.next = first
            self.say(SYN, options=options, window=window)
            if answer := next((segment for segment in self.segments(3) if segment.flags & SYN), None):
                break
        assert answer
        assert answer.acknowledged == self.next
        time.sleep(pause_s)
        self.expected = answer.sequence + 1 & 0xFFFFFFFF
        self.early.clear()
        self.say(ACK, window=window)

    def _joined(self, segment: Segment) -> bytes:
        """What can be read now: frames overtake each other, and a kernel waits ever longer for who forgets those."""
        self.early.append(segment)
        joined = b""
        while True:
            for early in self.early:
                ahead = self.expected - early.sequence & 0xFFFFFFFF
                if ahead < len(early.data):
                    joined += early.data[ahead:]
                    self.expected = self.expected + len(early.data) - ahead & 0xFFFFFFFF
                    break
            else:
                break
        self.early = [early for early in self.early if early.sequence - self.expected & 0xFFFFFFFF < 1 << 31]
        return joined

    def take(self, size_bytes: int, seconds: float = 5, window: int = 65535) -> bytes:
        """Acknowledges everything until so many bytes are there."""
        taken = b""
        for segment in self.segments(seconds):
            if segment.data:
                taken += self._joined(segment)
                self.say(ACK, window=window)
            if len(taken) >= size_bytes:
                break
        return taken
