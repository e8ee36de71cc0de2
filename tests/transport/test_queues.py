"""Several servers on one DPDK device, each with a queue pair: net_tap, whose kernel's side can be told which queue gets
the frames."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.lab import Lab, LabError, LabServer
from replay_server.bench.namespace import NamespaceError
from replay_server.server import find_executable

pytestmark = pytest.mark.dpdk

MEMORY = "48mb"  # of a queue's frames: about the least that the servers take
BPF = {"x86_64": 321, "aarch64": 280}  # the system call's number
SIGNATURE = {"obs": rs.Column("uint8", (4, 84, 84)), "number": rs.Column("int64")}
Serve = Callable[..., LabServer]


@pytest.fixture
def serve(lab: Lab, pages: Path) -> Serve:
    """Starts a server on a queue of the device."""

    def start(queue: int, queues: int = 2, **options: Any) -> LabServer:
        config = {
            "dpdk-queues": queues,
            "dpdk-queue": queue,
            "dpdk-eal": f"--huge-dir {pages}",
            "dpdk-memory": MEMORY,
            **options.pop("config", {}),
        }
        processors = sorted(os.sched_getaffinity(0))
        lcore = processors[queue % len(processors)]
        return lab.serve("dpdk", config=config, lcore=lcore, **{"port": 6379 + queue, **options})

    return start


def steer(lab: Lab, queue: int) -> None:
    """Has the kernel put every frame into one queue, instead of those that its flows were seen on."""
    if platform.machine() not in BPF:
        pytest.skip(f"the number of the system call bpf on {platform.machine()} is not known here")
    program_bytes = struct.pack("<BBhi", 0xB7, 0, 0, queue) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = queue; exit
    code, licence = ctypes.create_string_buffer(program_bytes), ctypes.create_string_buffer(b"GPL")
    load = struct.pack("<IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(licence)) + bytes(104)
    libc = ctypes.CDLL(None, use_errno=True)
    loaded = libc.syscall(BPF[platform.machine()], 5, ctypes.create_string_buffer(load), len(load))
    if loaded < 0:
        pytest.skip(f"the kernel takes no BPF program: {os.strerror(ctypes.get_errno())}")
    with lab.on_server():
        device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x0002 | 0x1000 | 0x0100))  # TUNSETIFF
        fcntl.ioctl(device, 0x800454E0, struct.pack("i", loaded))  # TUNSETSTEERINGEBPF
        os.close(device)
        os.close(loaded)


def told(client: rs.Client, name: str) -> int:
    counters: Any = client.redis.info("transport")
    return counters[f"transport_{name}"]


def exchange(client: rs.Client, seed: int) -> None:
    value = np.random.default_rng(seed).bytes(3_000_000)
    client.redis.set("value", value)
    assert client.redis.get("value") == value


def answers_echo(address: str) -> bool:
    """ICMP's, as of ping."""
    request = bytes([8, 0, 0, 0, 0, 7, 0, 1])
    total = sum(struct.unpack("!4H", request))
    request = request[:2] + struct.pack("!H", 0xFFFF - total) + request[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(30)
        raw.connect((address, 0))
        raw.send(request)
        answer = raw.recv(100)[20:]
    return answer[:2] == b"\0\0" and answer[4:8] == request[4:8]


@pytest.mark.parametrize("queue", [None, 0, 1])
def test_each_server_gets_what_its_clients_send_whatever_queue_it_comes_to(
    lab: Lab, serve: Serve, queue: int | None
) -> None:
    if queue is not None:
        steer(lab, queue)
    table = rs.Table("atari", capacity=200, signature=SIGNATURE)
    with ThreadPoolExecutor() as pool:  # at the same time: the second waits for the first
        servers = list(pool.map(lambda number: serve(number, tables=[table]), [0, 1]))
    with lab.on_client():
        clients = [rs.Client(server.url) for server in servers]
        pushed = []
        for number, client in enumerate(clients):
            exchange(client, number)
            observations = np.random.default_rng(number).integers(0, 256, (200, 4, 84, 84), np.uint8)
            client.add("atari", {"obs": observations, "number": np.arange(200)})
            pushed.append(observations)
        for client, observations in zip(clients, pushed, strict=True):
            batch = client.sample("atari", 512)
            assert np.array_equal(batch.data["obs"], observations[batch.data["number"]])
        for number, client in enumerate(clients):
            assert (told(client, "queue"), told(client, "queues")) == (number, 2)
            assert told(client, "bad_checksums") == told(client, "malformed") == 0
        if queue is None:
            return
        here, there = clients[queue], clients[1 - queue]
        assert told(here, "frames_handed_over") > 1000
        assert told(here, "frames_taken_over") == 0
        assert told(there, "frames_taken_over") > 1000
        assert told(there, "frames_handed_over") == 0


@pytest.mark.parametrize("queue", [0, 1])
def test_servers_on_one_device_may_have_an_address_each(lab: Lab, serve: Serve, queue: int) -> None:
    steer(lab, queue)
    first = serve(0)
    with lab.on_client():
        mac: Any = rs.Client(first.url).redis.info("transport")["transport_mac"]
    # The clients' host asks nobody for this address, so that the server must ask for the host's.
    known = ["ip", "neighbour", "add", "10.80.0.3", "lladdr", mac, "dev", "tap0", "nud", "permanent"]
    subprocess.run([*lab.client_command, *known], check=True)
    second = serve(1, port=6379, config={"dpdk-address": "10.80.0.3/24"})
    assert second.url == "redis://10.80.0.3:6379"
    with lab.on_client():
        for number, server in enumerate([first, second]):
            client = rs.Client(server.url)
            exchange(client, number)
            assert told(client, "queue") == number
        assert answers_echo(lab.address)
        assert answers_echo("10.80.0.3")


def test_the_first_server_takes_in_what_comes_to_a_queue_that_nobody_serves(lab: Lab, serve: Serve) -> None:
    steer(lab, 1)
    first = serve(0)
    with lab.on_client():
        client = rs.Client(first.url)
        exchange(client, 0)
        adopted = told(client, "frames_adopted")
        assert adopted > 1000
        for number in range(3):
            with serve(1) as second:
                adopted = told(client, "frames_adopted")
                exchange(rs.Client(second.url), number)
                exchange(client, number)
                assert told(client, "frames_adopted") == adopted
        exchange(client, 3)
        assert told(client, "frames_adopted") > adopted
        assert told(client, "frames") - told(client, "frames_free") < 2000  # in rings and at hand: none is lost


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_others_save_and_end_when_the_first_server_goes(
    lab: Lab, serve: Serve, end: signal.Signals, tmp_path: Path, eventually: Any
) -> None:
    first = serve(0)
    options: Any = {"directory": tmp_path, "config": {"save": "3600 1000000"}}
    second = serve(1, **options)
    with lab.on_client():
        rs.Client(second.url).redis.set("kept", "value")
    os.kill(second.pid, signal.SIGSTOP)
    os.kill(first.pid, end)
    if end == signal.SIGKILL:  # the next one leaves memory and device alone while another uses them
        with pytest.raises(rs.ServerError, match="the server with dpdk-queue 1 is still ending"):
            serve(0)
    os.kill(second.pid, signal.SIGCONT)
    eventually(lambda: not second.running, "the second server ends")
    assert second.stop() == 1
    assert "the server with dpdk-queue 0, which owns net_tap0, has gone or is going" in second.log()
    assert first.stop() == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    first, second = serve(0), serve(1, restore="latest", **options)
    with lab.on_client():
        assert rs.Client(second.url).redis.get("kept") == b"value"
        exchange(rs.Client(first.url), 0)


def test_a_killed_servers_queue_is_not_served_again_before_the_device_is(
    lab: Lab, serve: Serve, eventually: Any
) -> None:
    steer(lab, 0)
    first, second = serve(0), serve(1)
    with lab.on_client():
        client = rs.Client(first.url)
        exchange(rs.Client(second.url), 1)
        os.kill(second.pid, signal.SIGKILL)
        eventually(lambda: f"process {second.pid}, which had dpdk-queue 1, died" in first.log(), "the death is told of")
        with pytest.raises(rs.ServerError, match=f"was that of process {second.pid}, which died"):
            serve(1)
        exchange(client, 0)
    assert first.stop() == 0
    first, second = serve(0), serve(1)
    with lab.on_client():
        exchange(rs.Client(second.url), 1)


def test_what_does_not_fit_the_others_is_refused(lab: Lab, serve: Serve, pages: Path) -> None:
    with pytest.raises(rs.ServerError, match="dpdk-queue 2: expected less than dpdk-queues, which is 2"):
        serve(2)
    with pytest.raises(rs.ServerError, match="dpdk-queue 1: expected less than dpdk-queues, which is 1"):
        serve(1, queues=1)
    with pytest.raises(rs.ServerError, match="dpdk-queues 5: net_tap0 can have 4"):
        serve(0, queues=5)
    for argument in ("--no-huge", "--in-memory", "-l 0"):
        with pytest.raises(rs.ServerError, match=f"{argument[:2]}.* does not go with dpdk-queues 2"):
            serve(0, config={"dpdk-eal": argument})
    with pytest.raises(rs.ServerError, match="are some reserved, and is a hugetlbfs mounted"):
        serve(0, config={"dpdk-eal": "--huge-dir /nowhere"})
    first, second = serve(0), serve(1)
    with pytest.raises(rs.ServerError, match="dpdk-queue 0: another process owns the device"):
        serve(0)
    with pytest.raises(rs.ServerError, match=f"dpdk-queue 1 is process {second.pid}'s"):
        serve(1)
    with pytest.raises(rs.ServerError, match="was started with dpdk-queues 2"):
        serve(1, queues=3)
    with pytest.raises(rs.ServerError, match=r"no server with dpdk-queue 0 runs .*/other/config"):
        serve(1, config={"dpdk-eal": f"--huge-dir {pages} --file-prefix=other"})
    assert second.stop() == 0
    with pytest.raises(rs.ServerError, match="the server with dpdk-queue 0 has this port of this address"):
        serve(1, port=6379)
    with pytest.raises(rs.ServerError, match="dpdk-mtu 1400: the server with dpdk-queue 0 set the device's to 1500"):
        serve(1, config={"dpdk-mtu": 1400})
    second = serve(1)
    with lab.on_client():
        for number, server in enumerate([first, second]):
            exchange(rs.Client(server.url), number)


@pytest.mark.parametrize("device", ["af_packet", "af_xdp"])
def test_drivers_that_carry_frames_in_one_process_alone_are_refused(pages: Path, device: str) -> None:
    try:
        find_executable("dpdk")
        lab = Lab(device)
    except (rs.ServerError, LabError, NamespaceError) as error:
        pytest.skip(str(error))
    config = {"dpdk-queues": 2, "dpdk-eal": f"--huge-dir {pages}", "dpdk-memory": MEMORY}
    with lab, pytest.raises(rs.ServerError, match="its driver carries frames in one process alone"):
        lab.serve("dpdk", config=config)
