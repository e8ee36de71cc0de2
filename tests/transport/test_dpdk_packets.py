"""replay_server.dpdk carries packets: bursts and the lifetime of their frames, pools, rings, queues, flows; and the
example that samples a port into a table."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from eal_processes import run, run_command, shared_memory

import replay_server as rs
from replay_server import dpdk

pytestmark = [
    pytest.mark.dpdk,
    pytest.mark.skipif(not dpdk.available(), reason="built without DPDK (apt-get install libdpdk-dev)"),
]


def write_pcap(path: Path, frames: list[bytes]) -> None:
    """A recording of frames, in pcap's format."""
    records = [struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame for frame in frames]
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1) + b"".join(records))


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="replay-test-") as path:
        yield Path(path)


def test_a_burst_shows_the_frames_themselves() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port, pool = eal.port("net_ring0"), eal.mempool(511)
        port.start()
        frames = [os.urandom(length) for length in (14, 60, 1514)]
        with pool.allocate([len(frame) for frame in frames]) as burst:
            assert all(not frame.any() for frame in burst)
            for place, frame in enumerate(frames):
                burst[place][:] = np.frombuffer(frame, np.uint8)
            assert port.tx_burst(burst) == 3 and len(burst) == 0
        with port.rx_burst() as burst:
            assert len(burst) == 3 and burst.lengths.tolist() == [14, 60, 1514]
            assert [frame.tobytes() for frame in burst] == frames
            view, same = burst[1], burst[np.int64(-2)]
            assert view.dtype == np.uint8 and view.flags.writeable and not view.flags.owndata
            view[7] ^= 0xFF
            assert same[7] == frames[1][7] ^ 0xFF and np.shares_memory(view, same)
            copied = burst.copy(60)
            assert copied.shape == (3, 60) and copied.flags.owndata
            assert copied[0].tobytes() == frames[0] + bytes(46) and copied[2].tobytes() == frames[2][:60]
            assert np.array_equal(copied[1], view)
            for wrong in (3, -4):
                try:
                    burst[wrong]
                except IndexError:
                    continue
                raise AssertionError("no such frame")
        assert len(port.rx_burst()) == 0 and port.rx_burst().copy(9).shape == (0, 9)
    """)


def test_a_released_burst_is_refused_and_its_arrays_keep_their_frames() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port, pool, ring = eal.port("net_ring0"), eal.mempool(8), eal.ring("work", 8)
        port.start()
        burst = pool.allocate([100] * 4)
        kept = burst[2][10:20]
        kept[:] = 7
        burst.release()
        burst.release()
        assert len(burst) == 0 and in_use(eal, pool.name) == 1
        uses = [lambda: burst[0], lambda: burst.lengths, lambda: list(burst), lambda: burst.copy(9),
                lambda: port.tx_burst(burst), lambda: ring.enqueue(burst)]
        for use in uses:
            refused(errno.EBADF, "the burst was released", use)
        for _ in range(20): # every other frame of the pool, again and again
            with pool.allocate([100] * 7) as others:
                for place in range(7):
                    others[place][:] = 99
                assert port.tx_burst(others) == 7
            assert len(port.rx_burst()) == 7
        assert kept.tolist() == [7] * 10
        del kept
        assert in_use(eal, pool.name) == 0
    """)


def test_a_frame_that_was_sent_is_not_used_again_while_an_array_shows_it() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        port, pool = eal.port("net_null0"), eal.mempool(4)
        port.start()
        burst = pool.allocate([60] * 3)
        kept = burst[0]
        assert port.tx_burst(burst) == 3 and len(burst) == 0 and burst.lengths.size == 0
        assert in_use(eal, pool.name) == 1
        del kept
        assert in_use(eal, pool.name) == 0
    """)


def test_a_frame_is_shown_by_so_many_arrays_as_it_can_count() -> None:
    run("""
    with dpdk.Eal(*BASE) as eal:
        pool = eal.mempool(8)
        burst = pool.allocate([60])
        arrays = [burst[0] for _ in range(32_767)]
        refused(errno.EMLINK, "looking at a frame", lambda: burst[0])
        arrays.pop()
        arrays.append(burst[0])
        burst.release()
        assert in_use(eal, pool.name) == 1
        del arrays
        assert in_use(eal, pool.name) == 0
    """)


def test_frames_that_were_taken_before_an_interrupt_are_not_freed_again() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        port, pool = eal.port("net_null0"), eal.mempool(8)
        port.start()
        burst = pool.allocate([60] * 3)
        def send(lib, frames, count):
            assert lib.dpdk_port_tx_burst(port.id, 0, frames, count) == 3
            raise KeyboardInterrupt
        try:
            burst._give("sending", send)
        except KeyboardInterrupt:
            pass
        burst.release()
        refused(errno.ENOBUFS, f"allocating frames of {pool.name}", lambda: pool.allocate([60] * 9))
        assert len(pool.allocate([60] * 8)) == 8
    """)


def test_frames_that_one_thread_sends_are_not_freed_by_another() -> None:
    run("""
    import threading
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        port, pool = eal.port("net_null0"), eal.mempool(8)
        port.start()
        burst, is_in, may_send = pool.allocate([60] * 3), threading.Event(), threading.Event()
        def send(lib, frames, count):
            is_in.set()
            may_send.wait()
            return lib.dpdk_port_tx_burst(port.id, 0, frames, count)
        threads = [threading.Thread(target=burst._give, args=("sending", send)), threading.Thread(target=burst.release)]
        threads[0].start()
        is_in.wait()
        threads[1].start()
        threads[1].join(0.2)
        may_send.set()
        for thread in threads:
            thread.join()
        refused(errno.ENOBUFS, f"allocating frames of {pool.name}", lambda: pool.allocate([60] * 9))
        assert len(pool.allocate([60] * 8)) == 8
    """)


def test_arrays_outlive_the_port_and_dpdk() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0,size=80") as eal:
        port = eal.port("net_null0")
        port.start(buffers=1023)
        burst = port.rx_burst(limit=2)
        kept = burst[1]
        port.stop()
        refused(errno.EBUSY, "starting net_null0", lambda: port.start(buffers=2047))
        port.start(buffers=1023)
        eal.detach(port)
        kept[:] = 5
        assert burst[1].tolist() == [5] * 80
        [pool] = eal.memory_pools()
        assert pool.in_use == 2
        refused(errno.ENODEV, "receiving on net_null0", port.rx_burst)
    refused(errno.ESHUTDOWN, "was stopped", lambda: burst[1])
    refused(errno.ESHUTDOWN, "was stopped", lambda: burst.copy(9))
    kept[3] = 6
    assert kept.sum() == 79 * 5 + 6
    burst.release()
    del kept
    """)


def test_a_forked_child_leaves_its_parents_frames_alone() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        port = eal.port("net_null0")
        port.start()
        burst = port.rx_burst(limit=3)
        child = os.fork()
        if child == 0:
            try:
                refused(errno.ESHUTDOWN, "in the parent", lambda: burst[0])
                burst.release()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(burst) == 3 and len(burst[0]) == 64
    """)


def test_a_forked_child_is_told_so_while_another_thread_of_its_parent_is_in_a_call() -> None:
    run("""
    import signal, threading
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        port = eal.port("net_null0")
        port.start()
        burst, is_in, may_return = port.rx_burst(limit=3), threading.Event(), threading.Event()
        def call(ffi, lib):
            is_in.set()
            may_return.wait()
            return 0
        thread = threading.Thread(target=lambda: dpdk.library.call("polling", call))
        thread.start()
        is_in.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it, should it wait for ever
            try:
                assert dpdk.available()
                refused(errno.ESHUTDOWN, "in the parent", lambda: burst[0])
                burst.release()
                os._exit(0)
            finally:
                os._exit(1)
        ended = os.waitpid(child, 0)[1]
        may_return.set()
        thread.join()
        assert ended == 0 and len(burst) == 3
    """)


def test_a_pool_is_bounded_and_gives_all_frames_or_none() -> None:
    run("""
    with dpdk.Eal(*BASE) as eal:
        pool, other = eal.mempool(8, frame_bytes=256), eal.mempool(8)
        assert pool.name != other.name
        first = pool.allocate(np.full(6, 256))
        refused(errno.ENOBUFS, f"allocating frames of {pool.name}", lambda: pool.allocate([60] * 3))
        assert in_use(eal, pool.name) == 6
        refused(errno.EMSGSIZE, f"allocating frames of {pool.name}", lambda: pool.allocate([60, 257]))
        refused(errno.EMSGSIZE, f"allocating frames of {pool.name}", lambda: pool.allocate([1 << 40]))
        for lengths in ([], [60.0], [[60]], [60] * 1025):
            refused(errno.EINVAL, "expected 1 to 1024 lengths", lambda: pool.allocate(lengths))
        refused(errno.EINVAL, "at least 14 bytes, got -1", lambda: pool.allocate([60, -1]))
        assert in_use(eal, pool.name) == 6
        assert len(pool.allocate([14, 60])) == 2
        del first
        assert in_use(eal, pool.name) == 0
        refused(errno.EINVAL, "expected frames of 1 to", lambda: eal.mempool(0))
        refused(errno.EINVAL, "expected frame_bytes of 64 to", lambda: eal.mempool(8, frame_bytes=65_408))
        refused(errno.ENOMEM, "making a pool", lambda: eal.mempool(1_000_000))
    """)


def test_pools_have_no_caches_that_processes_of_the_same_lcore_would_share() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0") as eal:
        eal.port("net_null0").start()
        eal.mempool(4095)
        assert [(pool.size, pool.cache) for pool in eal.memory_pools()] == [(4095, 0), (4095, 0)]
    """)


def test_bursts_carry_many_frames_and_leave_what_has_no_room() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port, pool = eal.port("net_ring0"), eal.mempool(2047)
        port.start()
        burst = pool.allocate([60] * 1024)
        for place in range(1024):
            burst[place][:2] = divmod(place, 256)
        assert port.tx_burst(burst) == 1023 and len(burst) == 1
        assert bytes(burst[0][:2]) == bytes(divmod(1023, 256))
        numbers = []
        while received := port.rx_burst(limit=400):
            numbers += (received.copy(2) @ [256, 1]).tolist()
        assert numbers == list(range(1023))
        assert port.tx_burst(burst) == 1 and port.tx_burst(burst) == 0
        for limit in (0, 1025, -1):
            refused(errno.EINVAL, "expected limit of 1 to 1024", lambda: port.rx_burst(limit=limit))
    """)


def test_each_queue_has_frames_of_its_own() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port, pool = eal.port("net_ring0"), eal.mempool(511)
        refused(errno.ENETDOWN, "receiving on net_ring0", port.rx_burst)
        refused(errno.ENETDOWN, "not been started", lambda: port.send([bytes(60)]))
        refused(errno.EINVAL, "got both", lambda: port.start(buffers=8, pool=pool))
        wrong = {"receive_queues": 0, "transmit_queues": 65_536, "receive_descriptors": -1, "transmit_descriptors": -1,
                 "mtu": 65_536, "buffers": 1 << 32}
        for name, number in wrong.items():
            refused(errno.EINVAL, f"expected {name} of", lambda: port.start(**{name: number}))
        port.start(receive_queues=4, transmit_queues=4, pool=pool)
        assert port.info().pool == pool.name and [each.name for each in eal.memory_pools()] == [pool.name]
        for queue in range(4):
            assert port.tx_burst(pool.allocate([60 + queue]), queue) == 1
        for queue in range(4):
            assert port.rx_burst(queue=queue).lengths.tolist() == [60 + queue]
            assert len(port.rx_burst(queue=queue)) == 0
        refused(errno.EINVAL, "receiving on net_ring0", lambda: port.rx_burst(queue=4))
        burst = pool.allocate([60])
        refused(errno.EINVAL, "sending on net_ring0", lambda: port.tx_burst(burst, 4))
        refused(errno.EINVAL, "expected queue of 0 to 65535", lambda: port.rx_burst(queue=-1))
        port.stop()
        refused(errno.ENETDOWN, "sending on net_ring0", lambda: port.tx_burst(burst))
        assert len(burst) == 1
    """)


def test_a_ring_carries_frames_between_threads_in_their_order() -> None:
    run("""
    import threading
    with dpdk.Eal(*BASE) as eal:
        pool, ring = eal.mempool(511), eal.ring("work", 5)
        burst = pool.allocate([60, 61, 62, 63, 64, 65, 66])
        assert ring.enqueue(burst) == 5 and burst.lengths.tolist() == [65, 66]
        assert ring.enqueue(burst) == 0 and len(ring) == ring.capacity == 5
        found, taken = eal.ring("work"), []
        thread = threading.Thread(target=lambda: taken.append(found.dequeue(limit=3)))
        thread.start(), thread.join()
        assert found.capacity == 5 and taken[0].lengths.tolist() == [60, 61, 62]
        assert ring.dequeue().lengths.tolist() == [63, 64] and len(ring.dequeue()) == 0
        refused(errno.EEXIST, "making the ring 'work'", lambda: eal.ring("work", 5))
        refused(errno.ENOENT, "finding the ring 'absent'", lambda: eal.ring("absent"))
        refused(errno.ENAMETOOLONG, "making the ring", lambda: eal.ring("n" * 22, 5))
        assert eal.ring("n" * 21, 1).capacity == 1
        refused(errno.EINVAL, "expected size of 0 to", lambda: eal.ring("large", 1 << 21))
    """)


SECOND_PROCESS = """
from replay_server import dpdk
with dpdk.Eal("--proc-type=secondary", "--no-pci", "--file-prefix", {prefix!r}) as eal:
    with eal.ring("there").dequeue() as burst:
        assert burst.lengths.tolist() == [60, 61, 62] and burst[1].tolist() == [7] * 61
        burst[2][:] = 8
        assert eal.ring("back").enqueue(burst) == 2 and burst.lengths.tolist() == [62]
        assert eal.ring("there").enqueue(burst) == 1
"""


def test_rings_carry_frames_between_processes() -> None:
    with shared_memory() as prefix:
        run(f"""
    import sys
    with dpdk.Eal("-m", "64", "--no-pci", "--file-prefix", {prefix!r}) as eal:
        pool, there, back = eal.mempool(511), eal.ring("there", 8), eal.ring("back", 2)
        burst = pool.allocate([60, 61, 62])
        burst[1][:] = 7
        assert there.enqueue(burst) == 3
        subprocess.run([sys.executable, "-c", {SECOND_PROCESS.format(prefix=prefix)!r}], check=True, timeout=60)
        assert back.dequeue().lengths.tolist() == [60, 61]
        assert there.dequeue()[0].tolist() == [8] * 62
        assert in_use(eal, pool.name) == 0
    """)


def test_frames_of_several_buffers_are_copied_but_not_shown(folder: Path) -> None:
    frame = os.urandom(5000)
    write_pcap(folder / "long.pcap", [frame])
    run(f"""
    frame = {frame!r}
    with dpdk.Eal(*BASE, "--vdev", "net_pcap0,rx_pcap={folder}/long.pcap", "--vdev", "net_ring0") as eal:
        port, ring = eal.port("net_pcap0"), eal.port("net_ring0")
        port.start()
        ring.start()
        burst = port.rx_burst()
        assert burst.lengths.tolist() == [5000]
        refused(errno.EMSGSIZE, "use copy()", lambda: burst[0])
        assert burst.copy(6000)[0].tobytes() == frame + bytes(1000)
        refused(errno.EMSGSIZE, "MULTI_SEGS", lambda: ring.tx_burst(burst))
        assert burst.copy(5000)[0].tobytes() == frame
    """)


def test_rss_and_offloads_that_a_device_lacks_are_refused() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_null0", "--vdev", "net_ring0") as eal:
        null, ring = eal.port("net_null0"), eal.port("net_ring0")
        null.start(receive_queues=1, rss=["ip", "tcp"])
        assert ring.info().rss == ()
        refused(errno.ENOTSUP, "net_ring0 has no RSS by 'tcp'; it has []", lambda: ring.start(rss=["tcp"]))
        fast = lambda: ring.start(transmit_offloads=["MBUF_FAST_FREE"])
        refused(errno.ENOTSUP, "MBUF_FAST_FREE frees frames", fast)
    """)


def test_flows_that_are_none_or_that_a_device_cannot_carry_are_refused() -> None:
    run("""
    with dpdk.Eal(*BASE, "--vdev", "net_ring0") as eal:
        port = eal.port("net_ring0")
        refused(errno.ENETDOWN, "adding a flow to net_ring0", lambda: port.add_flow(0))
        port.start()
        refused(errno.ENOSYS, "adding a flow to net_ring0", lambda: port.add_flow(0, protocol="udp"))
        refused(errno.EINVAL, "adding a flow to net_ring0", lambda: port.add_flow(1))
        refused(errno.EINVAL, "got 'icmp'", lambda: port.add_flow(0, protocol="icmp"))
        refused(errno.EINVAL, "beside a port", lambda: port.add_flow(0, destination_port=80))
        refused(errno.EINVAL, "got '10.0.0.1/8'", lambda: port.add_flow(0, source="10.0.0.1/8"))
        refused(errno.EINVAL, "expected source_port", lambda: port.add_flow(0, protocol="udp", source_port=65_536))
    """)


def test_a_tap_drops_a_flow_or_says_why_it_cannot() -> None:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/net/tun")
    run("""
    import socket
    def udp(port):
        header = bytes.fromhex("0200000000020200000000010800")  # Ethernet: to, from, IPv4
        ip_header = bytes.fromhex("450000200000000040110000") + bytes([10, 0, 0, 1, 10, 0, 0, 2])
        udp_header = (1000).to_bytes(2, "big") + port.to_bytes(2, "big") + bytes.fromhex("000c0000")
        return header + ip_header + udp_header + b"data"

    with dpdk.Eal(*BASE, "--vdev", "net_tap0,iface=tap-here") as eal:
        port = eal.port("net_tap0")
        port.start()
        until(lambda: port.link().up)
        may_come = [udp(4000)]
        try:
            port.add_flow(None, source="10.0.0.0/24", protocol="udp", destination_port=4001)
        except dpdk.DpdkError as error:  # a kernel without multiq or flower
            assert "adding a flow to net_tap0" in str(error) and "rte_flow: " in str(error), error
            may_come.insert(0, udp(4001))
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sender.bind(("tap-here", 0))
        sender.send(udp(4001)), sender.send(udp(4000))
        came = []
        until(lambda: came.extend(frame for frame in port.receive() if frame[:6] == udp(0)[:6]) or udp(4000) in came)
        assert came == may_come
        port.clear_flows()
    """)


def test_the_thread_that_polls_is_pinned_and_set_free() -> None:
    run("""
    with dpdk.Eal(*BASE) as eal:
        before = os.sched_getaffinity(0)
        with eal.pinned(max(before)):
            assert os.sched_getaffinity(0) == {max(before)}
        assert os.sched_getaffinity(0) == before
        for processors in ([], [100_000], [max(before), 100_000], [-1]):
            refused(errno.EINVAL, "expected some of the processors", lambda: eal.pinned(*processors).__enter__())
            assert os.sched_getaffinity(0) == before
    """)


def mirror(repository: Path, recording: Path, *options: str) -> list[str]:
    """The lines that the example prints."""
    program = str(repository / "examples/mirror_port.py")
    ends = ["--frames", "300", "--seconds", "50"]
    return run_command(program, "--device", f"net_pcap0,rx_pcap={recording}", *ends, *options).splitlines()


def test_the_example_samples_a_mirror_port_into_a_table_on_a_server(repository: Path, folder: Path) -> None:
    frames = [os.urandom(60 + 4 * number) for number in range(300)]
    write_pcap(folder / "mirror.pcap", frames)
    url = f"unix://{folder}/server"
    with rs.Server(unix=str(folder / "server")):
        options = ["--server", url, "--share", "1", "--frame-bytes", "64"]
        said = mirror(repository, folder / "mirror.pcap", *options)
        assert said[0] == "300 frames came, 0 were missed, 300 were drawn"
        with rs.Client(url) as client:
            assert client.info("frames")["size"] == 300
            data = client.sample("frames", 1000).data
    known = {(len(frame), frame[:64].ljust(64, b"\0")) for frame in frames}
    assert {(int(length), head.tobytes()) for length, head in zip(data["length"], data["bytes"], strict=True)} <= known


def test_the_example_draws_a_share_of_the_frames(repository: Path, folder: Path) -> None:
    write_pcap(folder / "mirror.pcap", [bytes(60)] * 300)
    drawn = int((np.random.default_rng(3).random(300) < 0.25).sum())
    said = mirror(repository, folder / "mirror.pcap", "--share", "0.25", "--seed", "3")
    assert said == [f"300 frames came, 0 were missed, {drawn} were drawn", "32 of them have 60 bytes on average"]
