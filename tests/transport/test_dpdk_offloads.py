"""What a device does of a frame's work changes nothing of what arrives, and INFO tells of it what the other end saw.

Of the devices that anyone can make, net_tap has checksums and segmentation, which its driver does.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.lab import Lab, LabError
from replay_server.bench.namespace import NamespaceError
from replay_server.server import find_executable

pytestmark = pytest.mark.dpdk

EVERYTHING = "receive-checksums,transmit-checksums,segmentation"


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Makes a lab on whose client's side the test then stands."""
    if os.geteuid() != 0:
        pytest.skip("as an ordinary user these run in a user namespace: test_without_root.py")
    contexts: list[Any] = []

    def make(device: str) -> Lab:
        try:
            find_executable("dpdk")
            lab = Lab(device)
        except (rs.ServerError, LabError, NamespaceError) as error:
            pytest.skip(str(error))
        contexts.append(lab)
        contexts.append(lab.on_client())
        contexts[-1].__enter__()
        return lab

    yield make
    for context in reversed(contexts):
        context.__exit__(None, None, None)


def joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def transfer(client: rs.Client, size_bytes: int) -> None:
    """Sends values of awkward lengths and gets them back, bit by bit the same."""
    value = np.random.default_rng(0).bytes(size_bytes)
    for length in (1, 2, 1447, 1448, 1449, 65_537, size_bytes - 1, size_bytes):
        client.redis.set("v", value[:length])
        assert client.redis.get("v") == value[:length]
    # Replies in pieces that are odd in length and place, copied and gathered.
    lengths = [1, 3, 511, 513, 1461, 2921, 30_001]
    for length in lengths:
        client.redis.set(f"v{length}", value[7 : 7 + length])
    order = list(itertools.permutations(lengths, 3))
    with client.redis.pipeline(transaction=False) as pipeline:
        for names in order:
            pipeline.mget(*(f"v{length}" for length in names))
        for names, replies in zip(order, pipeline.execute(), strict=True):
            assert replies == [value[7 : 7 + length] for length in names]


def counters_of(lab: Lab) -> dict[str, dict[str, int]]:
    """What the kernel's end of a tap counted: what it received is what the server sent."""
    [link] = json.loads(lab._clients[0].ip("-json", "-statistics", "link", "show", "dev", "tap0"))
    return link["stats64"]


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        ("none", "none"),
        ("receive-checksums", "receive-checksums"),
        ("transmit-checksums", "transmit-checksums"),
        ("segmentation", "transmit-checksums,segmentation"),
        ("auto", EVERYTHING),
    ],
)
def test_a_tap_carries_the_same_bytes_whatever_its_driver_does(
    make_lab: Callable[..., Lab], wanted: str, used: str
) -> None:
    lab = make_lab("tap")
    server = lab.serve("dpdk", config={"dpdk-offloads": wanted}, lcore=-1)
    with rs.Client(server.url) as client:
        looks = []
        for size_bytes in (0, 6 << 20):
            if size_bytes:
                transfer(client, size_bytes)
            # Between two looks at INFO the kernel's end is looked at: what is sent meanwhile is little.
            looks.append((client.redis.info("transport"), counters_of(lab), client.redis.info("transport")))
    (before, seen_before, begun), (ended, seen, after) = looks
    assert joined(after["transport_offloads"]) == used
    assert after["transport_driver"] == "net_tap"
    for told, counted in (("frames", "packets"), ("bytes", "bytes")):
        name, count = f"transport_{told}_out", seen["rx"][counted] - seen_before["rx"][counted]
        assert ended[name] - begun[name] <= count <= after[name] - before[name], told
        name, count = f"transport_{told}_in", seen["tx"][counted] - seen_before["tx"][counted]
        assert ended[name] - begun[name] <= count <= after[name] - before[name], told
    assert after["transport_frames_in"] > 1000
    for fault in ("bad_checksums", "malformed", "send_errors", "send_no_memory", "receive_no_memory"):
        assert after[f"transport_{fault}"] == 0, fault
    assert server.stop() == 0


def test_the_peer_acknowledges_nothing_with_a_wrong_checksum(make_lab: Callable[..., Lab]) -> None:
    """The kernel would drop it and wait for it to come again: then there would be retransmissions."""
    lab = make_lab("tap")
    server = lab.serve("dpdk", config={"dpdk-offloads": "auto"}, lcore=-1)
    with rs.Client(server.url) as client:
        client.redis.set("v", bytes(range(256)) * 40_000)
        for _ in range(3):
            client.redis.get("v")
        told = client.redis.info("transport")
    # A peer that is silent for a while, as on a loaded machine, is probed.
    assert told["transport_retransmissions"] <= told["transport_tail_probes"]
    assert told["transport_tail_repairs"] == 0
    with open("/proc/thread-self/net/snmp") as file:
        names, values = [line.split()[1:] for line in file if line.startswith("Tcp:")]
    assert dict(zip(names, values, strict=True))["InCsumErrors"] == "0"


def test_an_offload_that_the_device_has_not_is_refused(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab("af_packet")
    with pytest.raises(rs.ServerError, match="has no segmentation; it has: none"):
        lab.serve("dpdk", config={"dpdk-offloads": "segmentation"}, lcore=-1)
    with pytest.raises(rs.ServerError, match=r"expected auto, none, or some of .*; got 'tso'"):
        lab.serve("dpdk", config={"dpdk-offloads": "tso"}, lcore=-1)
    server = lab.serve("dpdk", lcore=-1)
    with rs.Client(server.url) as client:
        assert joined(client.redis.info("transport")["transport_offloads"]) == "none"
        assert client.redis.config_get("dpdk-offloads") == {"dpdk-offloads": "auto"}


def test_64_mb_each_way_through_faults_are_sent_again_few_times(make_lab: Callable[..., Lab]) -> None:
    """What is lost is noticed by what follows it: a timer would send all that is under way again."""
    lab = make_lab("af_packet")
    faults = "loss=0.01,duplicate=0.01,reorder=0.01,seed=5"
    server = lab.serve("dpdk", config={"dpdk-faults": faults}, lcore=-1)
    value = np.random.default_rng(2).bytes(8 << 20)
    with rs.Client(server.url) as client:
        for number in range(8):
            client.redis.set(f"v{number}", value[number:] + value[:number])
        with socket.create_connection((lab.address, 6379), 60) as reader:
            reader.settimeout(60)
            reader.sendall(b"".join(b"GET v%d\r\n" % number for number in range(8)))
            expected = b"".join(b"$%d\r\n%b%b\r\n" % (len(value), value[n:], value[:n]) for n in range(8))
            received = bytearray()
            while len(received) < len(expected):
                piece = reader.recv(1 << 20)
                assert piece, f"ended after {len(received)} bytes"
                received += piece
            assert received == expected
        told = client.redis.info("transport")
    for way, frames in (("in", "transport_frames_in"), ("out", "transport_frames_out")):
        counted = told[f"transport_faults_{way}"]
        assert counted["frames"] > 40_000
        for fault in ("lost", "duplicated", "reordered"):
            assert 0.007 < counted[fault] / counted["frames"] < 0.013, counted
        assert told[frames] > counted["frames"] * 0.97
    assert told["transport_retransmissions"] < 4 * told["transport_faults_out"]["lost"]
