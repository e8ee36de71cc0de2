"""Frames that no client would send: a stack in user space meets whatever is on the wire."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

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


PEERS_PORTS = range(8192, 60000)
"""Noise and ventures come from other ports: they leave connections half open, and the kernel answers for those."""


def noise(wire: Wire, source: random.Random) -> bytes:
    """A frame that is wrong in one way or in several."""
    data = source.randbytes(source.choice([0, 0, 1, 10, 600, 1300]))
    flags = source.choice([SYN, SYN, SYN | ACK, PUSH | ACK, RST, FIN, FIN | ACK, 0, 255, source.randrange(256)])
    sequence = source.choice([source.randrange(100), source.randrange(1 << 32)])
    port = source.choice([1000, 1001, source.randrange(1, PEERS_PORTS.start)])
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


def test_half_open_connections_keep_nobody_out_for_long(site: Any, wire: Wire, sent_again: Any) -> None:
    """255 of them filled the stack's list for twenty seconds, in which it let nobody in: a SYN was sent five times."""
    for number in range(3000):
        wire.send(wire.packet(6, wire.segment(1024 + number, SYN, number)))
    again = []
    for _ in range(21):
        with socket.create_connection((site.address, 6379), 60) as other:
            again.append(sent_again(other))
            other.sendall(b"PING\r\n")
            assert other.recv(100) == b"+PONG\r\n"
    assert again[0] <= 2, "the first may have to send its SYN again, when others have had time to answer"
    assert sum(again[1:]) <= 2, again


# ---- peers that answer, but not as a kernel would --------------------------------------------------------------------


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

    def open(self, options: bytes = b"", window: int = 65535) -> None:
        self.say(SYN, options=options, window=window)
        answer = next(segment for segment in self.segments(5) if segment.flags & SYN)
        assert answer.acknowledged == self.next
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


@pytest.fixture
def peer(site: Any, client: Any) -> Iterator[Peer]:
    client.redis.ping()
    made = Peer(site.address, random.choice(PEERS_PORTS))
    yield made
    made.say(RST | ACK)
    made.close()


def test_echoes_come_back_with_right_checksums(peer: Peer) -> None:
    """Else no kernel takes them, and who looks for the server with ping finds nobody."""
    body = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"is anybody there"
    echo = None
    for _ in range(10):  # a kernel that has just learnt that this peer does not answer forgets it in a while
        peer.send(peer.packet(1, body[:2] + struct.pack("!H", checksum(body)) + body[4:]))
        if echo := next((packet for packet in peer.frames(1) if packet[9] == 1), None):
            break
    assert echo is not None
    assert checksum(echo[:20]) == 0
    assert checksum(echo[20:]) == 0
    assert echo[20:22] == b"\0\0"
    assert echo[24:] == body[4:]


@pytest.mark.parametrize("most", [88, 182, 536])
def test_a_client_that_takes_small_segments_gets_large_replies(site: Any, client: Any, most: int) -> None:
    """A segment of the stack's became more frames than it had places for."""
    value = random.Random(most).randbytes(300_000)
    client.redis.set("small", value)
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, most)
        connection.settimeout(60)
        connection.connect((site.address, 6379))
        connection.sendall(b"GET small\r\n")
        expected, got = b"$300000\r\n" + value + b"\r\n", b""
        while len(got) < len(expected) and (piece := connection.recv(1 << 16)):
            got += piece
    client.redis.delete("small")
    assert got == expected


def test_a_peer_that_takes_single_bytes_is_served(client: Any, peer: Peer) -> None:
    """Without a least size of what fits a frame each reply byte costs a frame."""
    client.redis.set("single", b"s" * 1000)
    peer.open(b"\x02\x04\0\x01")
    peer.say(PUSH | ACK, b"GET single\r\n")
    assert peer.take(1000 + 9) == b"$1000\r\n" + b"s" * 1000 + b"\r\n"
    client.redis.delete("single")


def test_a_probe_that_is_all_there_was_left_to_send(client: Any, peer: Peer) -> None:
    """The window takes all of a reply but its last byte, and the peer acknowledges what probes its closed window."""
    peer.open(window=6)
    peer.say(PUSH | ACK, b"PING\r\n", window=6)
    got = peer.take(7, seconds=60, window=0)  # where SYNs were many, the kernel waits 3 s before it probes
    assert got[:6] == b"+PONG\r"
    peer.say(ACK)
    assert got + (peer.take(7 - len(got)) if len(got) < 7 else b"") == b"+PONG\r\n"
    time.sleep(0.1)  # its timers run once more
    assert client.redis.ping()


def test_a_peer_that_has_shut_its_window_learns_that_its_data_arrived(client: Any, peer: Peer) -> None:
    """One that is short of memory takes nothing of a reply, and shuts the window that it had opened for it. It passes
    over acknowledgements beyond its window: it would send again for ever what has arrived."""
    client.redis.set("shut", b"s" * 20_000)
    peer.open(window=8000)
    peer.say(PUSH | ACK, b"GET shut\r\n", window=8000)
    sent = next(segment for segment in peer.segments(60) if segment.data)
    assert sent.sequence == peer.expected
    list(peer.segments(0.1))
    peer.say(PUSH | ACK, b"PING\r\n", window=0)
    seen = next(segment for segment in peer.segments(60) if segment.acknowledged == peer.next and not segment.data)
    assert seen.sequence == peer.expected, "beyond the window"
    peer.say(ACK)
    assert peer.take(20_010 + 7, seconds=60) == b"$20000\r\n" + b"s" * 20_000 + b"\r\n+PONG\r\n"
    client.redis.delete("shut")


def test_a_reply_that_waits_for_an_address_is_not_read_after_its_end(site: Any, client: Any, peer: Peer) -> None:
    """It lay where the connection had it, and went out with what was there later."""
    client.redis.set("waits", b"a" * 20_000)
    peer.open()
    for number in range(2000):  # more than the server remembers
        peer.ask_for_server(f"172.16.{number // 250}.{number % 250 + 1}")
    client.redis.ping()
    peer.answers_arp = False
    peer.say(PUSH | ACK, b"GET waits\r\n")
    list(peer.segments(0.2))
    peer.say(RST | ACK)
    client.redis.delete("waits")
    for number in range(50):
        client.redis.set(f"later{number}", b"b" * 20_000)
    peer.tell_address()
    late = b"".join(segment.data for segment in peer.segments(0.5))
    assert b"b" not in late
    client.redis.delete(*(f"later{number}" for number in range(50)))
    assert client.redis.ping()


def test_a_reply_before_a_close_arrives_however_slowly(client: Any, peer: Peer) -> None:
    """It was cut off three seconds after the close, though it was on its way: a megabyte over a slow line."""
    value = random.Random(5).randbytes(20_000)
    client.redis.set("slowly", value)
    peer.open(window=2000)
    peer.say(PUSH | ACK | FIN, b"GET slowly\r\n", window=2000)
    expected, got = b"$20000\r\n" + value + b"\r\n", b""
    while (left := len(expected) - len(got)) and (piece := peer.take(min(left, 2000), 20, window=2000)):
        got += piece
        time.sleep(0.45)
        peer.say(ACK, window=2000)
    client.redis.delete("slowly")
    assert len(got) == len(expected)
    assert got == expected


def take_after_losing(peer: Peer, size_bytes: int, lost: set[int], selective: bool) -> bytes:
    """Takes a reply, but for the frames of those numbers when they come first; says what it has as TCP does."""
    taken, seen, begin = b"", set[int](), peer.expected
    for segment in peer.segments(60):
        if not segment.data:
            continue
        number = (segment.sequence - begin & 0xFFFFFFFF) // len(segment.data)
        if number in lost and segment.sequence not in seen:
            seen.add(segment.sequence)
            continue
        taken += peer._joined(segment)
        options = b""
        if selective and peer.early:
            options = b"\x01\x01\x05\x0a" + struct.pack("!II", segment.sequence, segment.sequence + len(segment.data))
        peer.say(ACK, options=options)
        if len(taken) >= size_bytes:
            break
    return taken


@pytest.mark.parametrize("selective", [False, True], ids=["without-sack", "with-sack"])
def test_frames_that_are_lost_are_sent_again_before_a_timer_runs_out(
    site: Any, client: Any, peer: Peer, selective: bool
) -> None:
    """A peer that says nothing of what it has beyond a gap gets one frame again a round trip."""
    if site.transport != "dpdk":
        pytest.skip("it is the stack of dpdk that counts recoveries")
    value = random.Random(6).randbytes(40_000)
    client.redis.set("again", value)
    before = client.redis.info("transport")
    peer.open(options=b"\x04\x02\x01\x01" if selective else b"")
    peer.say(PUSH | ACK, b"GET again\r\n")
    expected = b"$40000\r\n" + value + b"\r\n"
    got = take_after_losing(peer, len(expected), {2, 9}, selective)
    after = client.redis.info("transport")
    client.redis.delete("again")
    assert got == expected
    assert after["transport_recoveries"] > before["transport_recoveries"]
    assert after["transport_retransmissions"] >= before["transport_retransmissions"] + 2


def block(left: int, right: int) -> bytes:
    """A SACK block, as an option."""
    return b"\x01\x01\x05\x0a" + struct.pack("!II", left & 0xFFFFFFFF, right & 0xFFFFFFFF)


def take_after_losing_the_end(peer: Peer, size_bytes: int, lost: set[int]) -> bytes:
    """Takes a reply, but for the frames that begin at those bytes of it when they come first."""
    taken, begin = b"", peer.expected
    for segment in peer.segments(60):
        if not segment.data:
            continue
        offset = segment.sequence - begin & 0xFFFFFFFF
        if offset in lost:
            lost.remove(offset)
            continue
        taken += peer._joined(segment)
        peer.say(ACK, options=block(segment.sequence, segment.sequence + len(segment.data)) if peer.early else b"")
        if len(taken) >= size_bytes:
            break
    return taken


def counted(client: Any) -> dict[str, int]:
    told = client.redis.info("transport")
    return {name: told[f"transport_{name}"] for name in ("tail_probes", "tail_repairs", "recoveries", "timeouts")}


def gained(client: Any, before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in counted(client).items() if value != before[name]}


FRAME_BYTES = 536
"""What a peer takes in a frame that does not say."""


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({5 * FRAME_BYTES}, {"tail_probes": 1, "tail_repairs": 1}),
        ({3 * FRAME_BYTES, 4 * FRAME_BYTES, 5 * FRAME_BYTES}, {"tail_probes": 1, "recoveries": 1}),
        ({4 * FRAME_BYTES}, {"recoveries": 1}),
    ],
    ids=["the-last", "the-last-three", "the-last-but-one"],
)
def test_the_end_of_a_reply_does_not_wait_for_the_timer(
    site: Any, client: Any, peer: Peer, lost: set[int], expected: dict[str, int]
) -> None:
    """Nothing came after it that would have shown its loss: it stood still for 200 ms, or for a second."""
    if site.transport != "dpdk":
        pytest.skip("it is the stack of dpdk that counts probes")
    value = random.Random(7).randbytes(5 * FRAME_BYTES)
    client.redis.set("tail", value)
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    for _ in range(20):
        before = counted(client)
        peer.open(options=b"\x04\x02\x01\x01")
        peer.say(PUSH | ACK, b"GET tail\r\n")
        assert take_after_losing_the_end(peer, len(reply), set(lost)) == reply
        peer.say(PUSH | ACK, b"PING\r\n")  # what answers this acknowledges more than the probe
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
        found = gained(client, before)
        peer.say(RST | ACK)
        peer.port += 1
        if "timeouts" not in found:  # this machine did nothing else meanwhile
            break
    client.redis.delete("tail")
    assert found == expected


def test_a_reply_that_was_only_acknowledged_late_is_no_loss(site: Any, client: Any, peer: Peer) -> None:
    """A peer that says that it has the probe's data twice."""
    if site.transport != "dpdk":
        pytest.skip("it is the stack of dpdk that counts probes")
    for _ in range(20):
        before = counted(client)
        peer.open(options=b"\x04\x02\x01\x01")
        peer.say(PUSH | ACK, b"PING\r\n")
        first, again = islice((segment for segment in peer.segments(60) if segment.data), 2)
        assert first.data == again.data == b"+PONG\r\n"
        peer._joined(first)
        peer.say(ACK, options=block(first.sequence, first.sequence + 7))
        peer.say(PUSH | ACK, b"PING\r\n")
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
        found = gained(client, before)
        peer.say(RST | ACK)
        peer.port += 1
        if "timeouts" not in found:
            break
    assert found == {"tail_probes": 1}


def venture(peer: Peer, source: random.Random) -> None:
    """A connection that begins as it should and goes on as nobody's does."""
    peer.port, peer.next = source.randrange(1024, PEERS_PORTS.start), source.randrange(1 << 32)
    most = struct.pack("!H", source.choice([0, 1, 47, 48, 100, 536, 1460, 9000, 65535]))
    options = source.choice([b"", b"\x02\x04" + most, b"\x02\x04" + most + b"\x01\x03\x03\x0e\x04\x02\x01\x01"])
    window = source.choice([0, 1, 6, 100, 5000, 65535])
    peer.say(SYN, options=options, window=window)
    answer = next((segment for segment in peer.segments(0.3) if segment.flags & SYN), None)
    if answer is None:
        return
    peer.expected = answer.sequence + 1 & 0xFFFFFFFF
    peer.say(ACK, window=window)
    for _ in range(source.randrange(1, 12)):
        peer.say(
            source.choice([ACK, ACK, PUSH | ACK, PUSH | ACK, ACK | FIN, ACK | SYN, ACK | RST, 0]),
            source.choice([b"", b"PING\r\n", b"GET venture\r\n" * 20, b"*1\r\n$", source.randbytes(900), b"QUIT\r\n"]),
            source.choice([0, 0, 1, 2, 100, 1000, 65535]),
            source.choice([b"", b"", b"\x01\x01\x05\x0a" + source.randbytes(8)]),
        )
        for segment in peer.segments(source.choice([0.0, 0.001, 0.03])):
            if segment.flags & RST:
                return
            ahead = peer.expected - segment.sequence & 0xFFFFFFFF
            if ahead < len(segment.data):
                peer.expected += source.choice([0, 1, len(segment.data) - ahead, source.randrange(len(segment.data))])
                peer.expected &= 0xFFFFFFFF
        if source.random() < 0.2:  # again, before, or ahead of what was said
            peer.next = peer.next + source.choice([-1, 1, -6, 500, source.randrange(1 << 32)]) & 0xFFFFFFFF
        if source.random() < 0.1:
            peer.expected = peer.expected + source.choice([-1, 1, 1 << 20]) & 0xFFFFFFFF


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_peers_that_make_no_sense_harm_nobody(site: Any, client: Any, peer: Peer, seed: int) -> None:
    source = random.Random(seed)
    client.redis.set("venture", source.randbytes(30_000))
    end = time.monotonic() + (2 if seed == 1 else 30)
    while time.monotonic() < end:
        venture(peer, source)
        if source.random() < 0.1:
            peer.say(RST | ACK)
        if source.random() < 0.02:
            assert client.redis.ping()
    client.redis.delete("venture")
    with redis.Redis(site.address, 6379) as other:
        assert other.ping()
