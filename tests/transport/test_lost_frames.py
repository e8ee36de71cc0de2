"""Frames that are lost, late or come twice at the end of a reply: what is sent again, and when.

Counts, not durations: who is not scheduled for a while lets a timer run out, and then the test begins again.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from peers import ACK, PUSH, RST, Peer


@pytest.fixture(autouse=True)
def own_stack(site: Any) -> None:
    if site.transport != "dpdk":
        pytest.skip("it is the stack of dpdk that counts what it sends again")


def block(left: int, right: int) -> bytes:
    """A SACK block, as an option."""
    return b"\x01\x01\x05\x0a" + struct.pack("!II", left & 0xFFFFFFFF, right & 0xFFFFFFFF)


def newest_block(peer: Peer) -> bytes:
    """Tells of the last frame that came beyond a gap, if there is one."""
    if not peer.early:
        return b""
    return block(peer.early[-1].sequence, peer.early[-1].sequence + len(peer.early[-1].data))


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
        peer.say(ACK, options=newest_block(peer) if selective else b"")
        if len(taken) >= size_bytes:
            break
    return taken


@pytest.mark.parametrize("selective", [False, True], ids=["without-sack", "with-sack"])
def test_frames_that_are_lost_are_sent_again_before_a_timer_runs_out(client: Any, peer: Peer, selective: bool) -> None:
    """A peer that says nothing of what it has beyond a gap gets one frame again a round trip."""
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


def take_after_losing_at(peer: Peer, size_bytes: int, lost: list[int], pause_s: float = 0.0) -> bytes:
    """Takes a reply, but not the frames that begin at those bytes of it, as often as they are named. What is sent again
    is answered after a pause."""
    taken, begin, furthest = b"", peer.expected, 0
    for segment in peer.segments(60):
        if not segment.data:
            continue
        offset = segment.sequence - begin & 0xFFFFFFFF
        if offset in lost:
            lost.remove(offset)
            continue
        taken += peer._joined(segment)
        if offset < furthest:
            time.sleep(pause_s)
        furthest = max(furthest, offset)
        peer.say(ACK, options=newest_block(peer))
        if len(taken) >= size_bytes:
            break
    return taken


def counted(client: Any) -> dict[str, int]:
    told = client.redis.info("transport")
    return {
        name: told[f"transport_{name}"] for name in ("tail_probes", "tail_repairs", "recoveries", "timeouts", "undone")
    }


def connections(
    client: Any, peer: Peer, found: dict[str, int], until: Callable[[dict[str, int]], Any], pause_s: float = 0.0
) -> Iterator[None]:
    """Opens one after the other, until what was counted during one, which is in `found` then, tells that this machine
    did nothing else meanwhile."""
    for _ in range(20):
        peer.open(options=b"\x04\x02\x01\x01", pause_s=pause_s)
        before = counted(client)
        yield
        found.clear()
        found.update({name: value - before[name] for name, value in counted(client).items() if value != before[name]})
        peer.say(RST | ACK)
        peer.port += 1
        if until(found):
            return


def no_timeout(found: dict[str, int]) -> bool:
    return "timeouts" not in found


FRAME_BYTES = 536
"""What a peer takes in a frame that does not say."""


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ([5 * FRAME_BYTES], {"tail_probes": 1, "tail_repairs": 1}),
        ([3 * FRAME_BYTES, 4 * FRAME_BYTES, 5 * FRAME_BYTES], {"tail_probes": 1, "recoveries": 1}),
        ([4 * FRAME_BYTES], {"recoveries": 1}),
    ],
    ids=["the-last", "the-last-three", "the-last-but-one"],
)
def test_the_end_of_a_reply_does_not_wait_for_the_timer(
    client: Any, peer: Peer, lost: list[int], expected: dict[str, int]
) -> None:
    """Nothing came after it that would have shown its loss: it stood still for 200 ms, or for a second."""
    value = random.Random(7).randbytes(5 * FRAME_BYTES)
    client.redis.set("tail", value)
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    for _ in connections(client, peer, found := {}, no_timeout):
        peer.say(PUSH | ACK, b"GET tail\r\n")
        assert take_after_losing_at(peer, len(reply), list(lost)) == reply
        peer.say(PUSH | ACK, b"PING\r\n")  # what answers this acknowledges more than the probe
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
    client.redis.delete("tail")
    assert found == expected


def test_a_reply_that_was_only_acknowledged_late_is_no_loss(client: Any, peer: Peer) -> None:
    """A peer that says that it has the probe's data twice."""
    for _ in connections(client, peer, found := {}, no_timeout):
        peer.say(PUSH | ACK, b"PING\r\n")
        first, again = islice((segment for segment in peer.segments(60) if segment.data), 2)
        assert first.data == again.data == b"+PONG\r\n"
        peer._joined(first)
        peer.say(ACK, options=block(first.sequence, first.sequence + 7))
        peer.say(PUSH | ACK, b"PING\r\n")
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
    assert found == {"tail_probes": 1}


def test_what_is_lost_when_it_is_sent_again_does_not_wait_for_the_timer(client: Any, peer: Peer) -> None:
    """Only new data told of it, and at the end of a reply there is none. Now what was sent again after it does, too."""
    value = random.Random(8).randbytes(9 * FRAME_BYTES)
    client.redis.set("again", value)
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    for _ in connections(client, peer, found := {}, no_timeout):
        peer.say(PUSH | ACK, b"GET again\r\n")
        # Quicker answers than any before would be taken for those to what was sent first.
        assert take_after_losing_at(peer, len(reply), [0, 3 * FRAME_BYTES, 0], pause_s=0.02) == reply
    client.redis.delete("again")
    assert found == {"recoveries": 1}


def test_a_recovery_from_frames_that_were_only_late_is_undone(client: Any, peer: Peer) -> None:
    """The window stayed small for seconds, although nothing was lost."""
    client.redis.set("late", b"9" * 9 * FRAME_BYTES)
    for _ in connections(client, peer, found := {}, lambda found: not found.keys() & {"timeouts", "tail_probes"}):
        peer.say(PUSH | ACK, b"GET late\r\n")
        segments = (segment for segment in peer.segments(60) if segment.data)
        came = list(islice(segments, 10))
        peer.say(ACK, options=block(came[2].sequence, came[-1].sequence + len(came[-1].data)))
        again = list(islice(segments, 2))
        assert [segment.sequence for segment in again] == [segment.sequence for segment in came[:2]]
        for segment in came:
            peer._joined(segment)
        for segment in again:
            peer.say(ACK, options=block(segment.sequence, segment.sequence + len(segment.data)))
        peer.say(PUSH | ACK, b"PING\r\n")
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
    client.redis.delete("late")
    assert found == {"recoveries": 1, "undone": 1}


def test_a_frame_that_came_twice_is_reported(peer: Peer) -> None:
    """Without the report a client cannot tell that it sent again too early, and goes on with a small window."""
    peer.open(options=b"\x04\x02\x01\x01")
    begin = peer.next
    peer.say(PUSH | ACK, b"PING\r\n")
    assert peer.take(7, seconds=60) == b"+PONG\r\n"
    peer.next = begin
    peer.say(PUSH | ACK, b"PING\r\n")
    assert any(block(begin, begin + 6)[2:] in packet for packet in peer.frames(20))
    peer.say(PUSH | ACK, b"PING\r\n")
    assert peer.take(7, seconds=60) == b"+PONG\r\n"


def test_a_timeout_is_undone_when_what_was_sent_before_it_comes(client: Any, peer: Peer) -> None:
    """What was acknowledged too late for the timer was sent again as if it had been lost. The reply is longer than what
    a timeout sends again at first, of which an acknowledgement tells nothing."""
    client.redis.set("late", b"3" * 60 * FRAME_BYTES)
    for _ in connections(client, peer, found := {}, lambda found: found.get("timeouts") == 1):
        peer.say(PUSH | ACK, b"GET late\r\n")
        begin = peer.expected
        for segment in (segment for segment in peer.segments(60) if segment.data):
            if segment.sequence == begin and peer.expected != begin:
                break
            peer._joined(segment)
        peer.say(PUSH | ACK, b"PING\r\n")
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
    client.redis.delete("late")
    assert found == {"tail_probes": 1, "timeouts": 1, "undone": 1}


def test_frames_that_overtake_many_others_are_no_loss_once_one_was_seen(client: Any, peer: Peer) -> None:
    """Three frames beyond a gap meant that it was lost, however the network was."""
    client.redis.set("two", b"2" * FRAME_BYTES)
    client.redis.set("eight", b"8" * 7 * FRAME_BYTES)
    # A frame may be late by a quarter of the pause.
    for _ in connections(client, peer, found := {}, lambda found: not found, pause_s=0.2):
        for key, frames in (("two", 2), ("eight", 8)):
            peer.say(PUSH | ACK, b"GET %b\r\n" % key.encode())
            came = list(islice((segment for segment in peer.segments(60) if segment.data), frames))
            begin = peer.expected
            for segment in came:
                peer._joined(segment)
            end, peer.expected = peer.expected, begin
            time.sleep(0.2)
            peer.say(ACK, options=block(came[1].sequence, end))
            peer.expected = end
            peer.say(ACK)
        peer.say(PUSH | ACK, b"PING\r\n")
        assert peer.take(7, seconds=60) == b"+PONG\r\n"
    client.redis.delete("two", "eight")
    assert found == {}
