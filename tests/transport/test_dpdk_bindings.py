"""replay_server.dpdk on virtual devices: the EAL, ports and memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from eal_processes import run, shared_memory

from replay_server import dpdk

pytestmark = [
    pytest.mark.dpdk,
    pytest.mark.skipif(not dpdk.available(), reason="built without DPDK (apt-get install libdpdk-dev)"),
]


def test_a_null_port_is_described_and_counts() -> None:
    run("""
    assert dpdk.version().startswith("DPDK ")
    with dpdk.Eal(*BASE, "--vdev", "net_null0,size=100") as eal:
        assert eal.is_primary
        [port] = eal.ports()
        info = port.info()
        assert (port.name, info.name, info.driver, info.bus) == ("net_null0", "net_null0", "net_null", "vdev"), info
        assert info.receive_queues_max >= 1 and info.interface == "" and info.mtu_max > 1500
        assert info.pool == "" and info.rss == ("ip", "tcp", "udp"), info
        assert len(info.mac.split(":")) == 6
        assert not port.link().up
        port.start(buffers=511)
        assert port.info().pool == eal.memory_pools()[0].name
        assert port.link().up and port.link().speed_mbps == 10_000 and port.link().full_duplex
        assert [len(frame) for frame in port.receive(limit=40)] == [100] * 40
        assert port.send([bytes(60), bytes(1500)]) == 2
        counted = port.statistics()
        assert (counted.frames_in, counted.frames_out) == (40, 2), counted
        extended = port.extended_statistics()
        assert extended["rx_good_packets"] == 40 and extended["tx_good_packets"] == 2, extended
        port.reset_statistics()
        assert port.statistics().frames_in == 0
        port.reset_extended_statistics()
        assert port.extended_statistics()["rx_good_packets"] == 0
        port.stop()
        assert not port.link().up
        port.start()
        assert port.receive(limit=1)
    """)


def test_a_ring_gives_back_the_frames_that_were_sent() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port = eal.port("net_ring0")
        port.start()
        frames = [os.urandom(14 + length) for length in (0, 1, 46, 1500)]
        assert port.send(frames) == 4 and port.receive() == frames and port.receive() == []
        port.send([b"a" * 100])
        assert port.receive(frame_bytes=60) == [b"a" * 60]
        refused(errno.EINVAL, "receiving on net_ring0", lambda: port.receive(queue=99))
        refused(errno.EMSGSIZE, "sending on net_ring0", lambda: port.send([bytes(3000)]))
    """)


def test_devices_come_and_go_while_the_eal_runs() -> None:
    run("""
    with dpdk.Eal(*BASE) as eal:
        assert eal.ports() == []
        first, second = eal.attach("net_null3,size=80"), eal.attach("net_ring1")
        first.start()
        assert len(first.receive(limit=1)[0]) == 80
        assert [port.name for port in eal.ports()] == ["net_null3", "net_ring1"]
        assert any(pool.name == f"replay_port_{first.id}" for pool in eal.memory_pools())
        eal.detach(first)
        assert [port.name for port in eal.ports()] == ["net_ring1"] and eal.memory_pools() == []
        refused(errno.ENODEV, "net_null3", first.info)
        refused(errno.ENODEV, "there are: net_ring1", lambda: eal.port("net_null3"))
        again = eal.attach("net_null3")
        again.start()
        assert again.receive(limit=1)
    """)


def test_memory_is_told() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        [heap] = eal.heaps()
        assert heap.total_bytes == 64 << 20 and heap.allocations > 0
        assert heap.allocated_bytes + heap.free_bytes == heap.total_bytes >= heap.greatest_free_bytes
        port = eal.port("net_null0")
        port.start(buffers=2047)
        [pool] = eal.memory_pools()
        assert pool.size == 2047 and pool.in_use == 0 and pool.element_bytes > 2048 and pool.node in (0, -1), pool
        assert eal.heaps()[0].allocated_bytes > heap.allocated_bytes + 2047 * 2048
        zones = {zone.name: zone for zone in eal.memory_zones()}
        data = zones["rte_eth_dev_data"]
        assert data.size_bytes > 0 and data.address > 0 and data.page_bytes == 4096, data
        refused(errno.ENOMEM, "starting net_null0", lambda: (port.stop(), port.start(buffers=200_000)))
    """)


def test_frames_cross_a_veth_by_af_packet() -> None:
    run("""
    import socket
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    ip("link", "set", "here", "up"), ip("link", "set", "there", "up")
    with dpdk.Eal(*BASE, "--vdev", "net_af_packet0,iface=here") as eal:
        port = eal.port("net_af_packet0")
        info = port.info()
        assert info.driver == "net_af_packet" and info.interface == "here", info
        assert info.mac in ip("link", "show", "here")
        port.start()
        until(lambda: port.link().up)
        assert port.mtu == 1500
        port.mtu = 1400
        assert port.mtu == 1400 and "mtu 1400" in ip("link", "show", "here")
        peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        peer.bind(("there", 0x88B5))
        peer.settimeout(60)
        header = b"\\xff" * 6 + bytes.fromhex(info.mac.replace(":", "")) + b"\\x88\\xb5"
        sent = header + os.urandom(200)
        assert port.send([sent]) == 1 and peer.recv(2000) == sent
        peer.send(header + b"back" * 20)
        back = until(lambda: [frame for frame in port.receive() if frame.startswith(header)])
        assert back == [header + b"back" * 20]
        counted = port.statistics()
        assert counted.frames_out == 1 and counted.frames_in >= 1 and counted.bytes_out >= len(sent), counted
        ip("link", "set", "there", "down")
        refused(errno.EINVAL, "expected an MTU", lambda: setattr(port, "mtu", 70_000))
    """)


def test_a_tap_has_offloads_and_a_link_to_switch() -> None:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/net/tun")
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_tap0,iface=tap-here") as eal:
        port = eal.port("net_tap0")
        info = port.info()
        assert info.interface == "tap-here" and info.driver == "net_tap"
        assert {"TCP_CKSUM", "IPV4_CKSUM", "TCP_TSO", "MULTI_SEGS"} <= set(info.transmit_offloads), info
        assert "TCP_CKSUM" in info.receive_offloads
        port.start(transmit_offloads=["TCP_CKSUM", "IPV4_CKSUM"], receive_offloads=["TCP_CKSUM"])
        refused(errno.ENOTSUP, "'WIRELESS'; it has", lambda: port.start(transmit_offloads=["WIRELESS"]))
        until(lambda: port.link().up)
        port.set_link(False)
        until(lambda: not port.link().up)
        port.set_link(True)
        until(lambda: port.link().up)
        assert "tap-here" in ip("link")
    assert "tap-here" not in ip("link")
    """)


def test_the_eal_runs_once_a_process_and_leaves_the_processors_alone() -> None:
    run("""
    before = os.sched_getaffinity(0)
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        assert os.sched_getaffinity(0) == before
        refused(errno.EALREADY, "runs in this process already", lambda: dpdk.Eal(*BASE))
        port = eal.port("net_null0")
        child = os.fork()
        if child == 0:
            try:
                refused(errno.ESHUTDOWN, "in the parent", port.link)
                eal.stop()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert port.info().name == "net_null0" and "EAL:" in eal.log()
    eal.stop()
    refused(errno.ESHUTDOWN, "was stopped", port.link)
    refused(errno.EALREADY, "another process", lambda: dpdk.Eal(*BASE))
    """)


def test_what_dpdk_refuses_comes_with_its_reason() -> None:
    run("""
    refused(errno.EINVAL, "lcore 4000", lambda: dpdk.Eal(*BASE, "-l", "4000"))
    """)
    # DPDK's page of options is not for the standard output of who calls.
    assert run("""refused(errno.EINVAL, "command line", lambda: dpdk.Eal(*BASE, "--no-such-option"))""") == ""
    run("""
    with dpdk.Eal(*BASE) as eal:
        try:
            eal.attach("net_af_packet0,iface=absent")
        except dpdk.DpdkError as error:
            assert "attaching net_af_packet0" in str(error) and "No such device" in str(error), error
        else:
            raise AssertionError("attached")
    """)


SECOND_PROCESS = """
from replay_server import dpdk
with dpdk.Eal("--proc-type=secondary", "--no-pci", "--file-prefix", {prefix!r}) as eal:
    assert not eal.is_primary
    assert eal.port("net_null0").statistics().frames_in == 7
    assert eal.memory_pools()[0].size == 1023
"""


def test_a_second_process_reads_the_first_ones_ports() -> None:
    with shared_memory() as prefix:
        run(f"""
    import sys
    with dpdk.Eal("-m", "64", "--no-pci", "--file-prefix", {prefix!r}, "--vdev", "net_null0") as eal:
        port = eal.port("net_null0")
        port.start(buffers=1023)
        assert len(port.receive(limit=7)) == 7
        subprocess.run([sys.executable, "-c", {SECOND_PROCESS.format(prefix=prefix)!r}], check=True, timeout=60)
        assert port.link().up and len(port.receive(limit=1)) == 1
    """)


@pytest.mark.parametrize("place", [0, 1])
def test_the_examples_of_the_document_run(repository: Path, place: int) -> None:
    examples = re.findall(r"```python\n(.*?)```", (repository / "docs/dpdk-bindings.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    run(examples[place])
