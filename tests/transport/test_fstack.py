"""What is F-Stack's own: its configuration file, how it fails to start, how it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import replay_server as rs
from replay_server.bench.lab import Lab, LabError
from replay_server.bench.namespace import NamespaceError
from replay_server.server import find_executable

pytestmark = pytest.mark.dpdk

CONFIGURATION = """
[dpdk]
lcore_mask={mask}
channel=4
promiscuous=0
numa_on=0
pkt_tx_delay={delay}
no_huge=1
memory=256
port_list=0

[port0]
addr={address}
netmask={netmask}
broadcast={broadcast}
gateway={gateway}
lcore_list=0

[freebsd.boot]
hz=1000

[freebsd.sysctl]
kern.ipc.maxsockbuf=1048576
net.inet.tcp.sendspace=262144
net.inet.tcp.recvspace=262144
net.inet.tcp.delacktime=1
"""
FITTING = {
    "mask": "1",
    "delay": "0",
    "address": "10.80.0.1",
    "netmask": "255.255.255.0",
    "broadcast": "10.80.0.255",
    "gateway": "10.80.0.254",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("as an ordinary user these run in a user namespace: test_without_root.py")
    try:
        find_executable("fstack")
        with Lab("af_packet") as made:
            yield made
    except (rs.ServerError, LabError, NamespaceError) as error:
        pytest.skip(str(error))


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "config.ini"
    path.write_text(CONFIGURATION.format(**FITTING))
    return path


def test_a_server_runs_on_a_configuration_of_the_users_own(lab: Lab, configuration: Path) -> None:
    server = lab.serve("fstack", config={"fstack-config": str(configuration), "dpdk-gateway": "10.80.0.254"}, lcore=0)
    with lab.on_client(), rs.Client(server.url) as client:
        client.redis.set("key", bytes(1 << 20))
        assert client.redis.get("key") == bytes(1 << 20)
        assert client.redis.info("transport")["transport1"] == "fstack"
    assert server.stop() == 0
    assert "fstack-config" not in server.log(), "nothing in it makes it slow"


def test_settings_of_a_configuration_that_make_it_slow_are_told(lab: Lab, configuration: Path) -> None:
    configuration.write_text(CONFIGURATION.format(**{**FITTING, "delay": "100"}))
    server = lab.serve("fstack", config={"fstack-config": str(configuration)}, lcore=-1)
    assert "[dpdk] pkt_tx_delay is 100, not 0: replies wait" in server.log()
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("differs", "lcore", "message"),
    [
        ({"address": "10.80.0.7"}, -1, r"\[port0\] has addr=10.80.0.7 where dpdk-address says 10.80.0.1"),
        ({"netmask": "255.255.0.0"}, -1, r"has netmask=255.255.0.0 where dpdk-address says 255.255.255.0"),
        ({"gateway": "10.80.0.3"}, -1, r"has gateway=10.80.0.3 where dpdk-gateway says 10.80.0.254"),
        ({"mask": "2"}, 0, r"has lcore_mask=2 where dpdk-lcore says 0"),
    ],
)
def test_a_configuration_that_contradicts_the_settings_is_refused(
    lab: Lab, configuration: Path, differs: dict[str, str], lcore: int, message: str
) -> None:
    configuration.write_text(CONFIGURATION.format(**{**FITTING, **differs}))
    settings = {"fstack-config": str(configuration), "dpdk-gateway": "10.80.0.254"}
    with pytest.raises(rs.ServerError, match=message):
        lab.serve("fstack", config=settings, lcore=lcore)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fstack-config": "/nowhere/config.ini"}, "/nowhere/config.ini: No such file"),
        ({"dpdk-device": "net_af_packet0,iface=none0"}, "there is no interface none0 here"),
        ({"dpdk-device": "0000:7f:1f.7"}, "no port for 0000:7f:1f.7: a PCI device must be bound"),
        ({"dpdk-device": "eno1"}, "'eno1' is neither a PCI address"),
        ({"dpdk-eal": "--nonsense"}, "DPDK did not start: .*'command line'"),
        ({"dpdk-memory": 1 << 20}, r"no memory for \d+ frames|DPDK did not start"),
        ({"dpdk-gateway": "10.99.0.1"}, "dpdk-gateway 10.99.0.1 is not in the network"),
        ({"dpdk-mtu": 9000}, "dpdk-mtu 9000: F-Stack carries at most 1500"),
        ({"dpdk-offloads": "segmentation"}, "dpdk-offloads: the device has no segmentation; it has: none"),
        ({"dpdk-faults": "loss=0.01"}, "dpdk-faults is for the transport dpdk"),
    ],
)
def test_a_start_that_fails_ends_with_status_1_and_says_why(
    lab: Lab, settings: dict[str, str | int], message: str
) -> None:
    """F-Stack ends the process by itself where it cannot start."""
    with pytest.raises(rs.ServerError, match=rf"(?s)exit status 1\).*{message}"):
        lab.serve("fstack", config=settings)


def test_connections_that_stand_still_leave_room_for_the_others(lab: Lab) -> None:
    """What they sent and nobody reads yet took every frame: nobody was heard any more, not even the ends of those
    connections. It is kept elsewhere, and read in order when its turn comes."""
    server = lab.serve("fstack", config={"dpdk-memory": 110 << 20, "client-output-backlog": 1 << 20})
    value = os.urandom(1200 << 10)
    echoed = [os.urandom(1 << 18) for _ in range(200)]
    with lab.on_client(), rs.Client(server.url) as client, contextlib.ExitStack() as stack:
        client.redis.set("value", value)
        before = client.redis.info("transport")
        connections = [stack.enter_context(socket.socket()) for _ in echoed]
        left: dict[socket.socket, memoryview] = {}
        for connection, mine in zip(connections, echoed):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.connect((lab.address, 6379))
            connection.setblocking(False)
            # The server reads no further once a reply of this size waits to be taken.
            left[connection] = memoryview(b"GET value\r\n*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(mine), mine))
        end = time.monotonic() + 60
        while client.redis.info("transport")["transport_moved_bytes"] == 0:
            assert time.monotonic() < end, "frames did not get few"
            for connection in connections:
                with contextlib.suppress(BlockingIOError):
                    left[connection] = left[connection][connection.send(left[connection]) :]
        assert client.redis.ping()
        assert client.redis.info("transport")["transport_frames_free"] > before["transport_frames"] // 8
        for connection, mine in zip(connections, echoed):
            expected = b"$%d\r\n%s\r\n" % (len(value), value) + b"$%d\r\n%s\r\n" % (len(mine), mine)
            received = bytearray()
            while len(received) < len(expected):
                readable, writable, _ = select.select([connection], [connection] if left[connection] else [], [], 60)
                assert readable or writable, "a connection stood still for good"
                if writable:
                    left[connection] = left[connection][connection.send(left[connection]) :]
                if readable:
                    received += connection.recv(1 << 18)
            assert bytes(received) == expected
        after = client.redis.info("transport")
        assert after["transport_moved_bytes"] == 0
        assert after["transport_connections_refused"] == 0
    assert server.stop() == 0


def test_what_was_written_before_a_stop_arrives(lab: Lab) -> None:
    """The stack ends with the process, so the process waits for it: a kernel would go on by itself."""
    server = lab.serve("fstack")
    value = os.urandom(16 << 20)
    with lab.on_client(), rs.Client(server.url) as client, socket.socket() as slow:
        client.redis.set("key", value)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.settimeout(60)
        slow.connect((lab.address, 6379))
        slow.sendall(b"GET key\r\n")
        received = bytearray(slow.recv(4096))
        os.kill(server.pid, signal.SIGTERM)
        while piece := slow.recv(1 << 18):
            received += piece
        assert bytes(received) == b"$%d\r\n%s\r\n" % (len(value), value)
        with pytest.raises(OSError), socket.create_connection((lab.address, 6379), 2):
            pass
    assert server.stop() == 0


def test_a_stop_with_the_cable_out_does_not_wait_for_ever(lab: Lab) -> None:
    server = lab.serve("fstack")
    with lab.on_client(), rs.Client(server.url) as client:
        assert client.redis.ping()
    lab.set_link(False)
    assert server.stop(timeout=60) == 0
    lab.set_link(True)
