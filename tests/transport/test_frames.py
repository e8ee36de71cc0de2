"""Frames that no client would send: a stack in user space meets whatever is on the wire."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import Any

import pytest
import redis
from peers import ACK, FIN, PEERS_PORTS, PUSH, RST, SYN, Peer, Wire, checksum


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
