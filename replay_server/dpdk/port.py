"""Ports of DPDK: what they are, their link, their counters, and frames in and out of them."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .library import DpdkError, binding, bounded, call, listed, text
from .packets import POOL_FRAMES_MOST, Burst, Mempool, allocate, new_burst


@dataclass(frozen=True)
class PortInfo:
    """What a port is.

    Attributes:
        name: DPDK's: the vdev's, or the PCI address.
        driver: "net_af_packet", "net_ixgbe", …
        bus: "pci", "vdev", …
        bus_information: what the bus says of it: "vendor_id=8086, device_id=10fb".
        interface: the kernel's interface that the port is on; "": none.
        node: memory node, −1: none.
        mac: "02:00:00:00:00:01".
        mtu_min, mtu_max: bytes of IP.
        receive_queues, transmit_queues: configured. With _max: what the device has.
        receive_offloads, transmit_offloads: what the device can, by DPDK's names: "TCP_CKSUM", "TCP_TSO", "MULTI_SEGS".
        rss: what it can spread frames over its queues by: "ip", "tcp", "udp".
        pool: that it receives into, as in `Eal.memory_pools`; "" before the first start.
    """

    name: str
    driver: str
    bus: str
    bus_information: str
    interface: str
    node: int
    mac: str
    mtu_min: int
    mtu_max: int
    receive_queues: int
    transmit_queues: int
    receive_queues_max: int
    transmit_queues_max: int
    receive_offloads: tuple[str, ...]
    transmit_offloads: tuple[str, ...]
    rss: tuple[str, ...]
    pool: str


@dataclass(frozen=True)
class Link:
    """The state of a link.

    Attributes:
        up: whether there is one.
        speed_mbps: megabits a second; None where the driver does not know.
        full_duplex, negotiated: as the driver says.
    """

    up: bool
    speed_mbps: int | None
    full_duplex: bool
    negotiated: bool


@dataclass(frozen=True)
class PortStatistics:
    """Counters since the start or the last reset.

    Attributes:
        frames_in, frames_out, bytes_in, bytes_out: what went well.
        missed_in: dropped by the device because nobody fetched frames in time.
        errors_in, errors_out: bad frames; frames that could not be sent.
        no_buffer: times that there was no buffer to receive into.
    """

    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int
    missed_in: int
    errors_in: int
    errors_out: int
    no_buffer: int


_UNKNOWN_SPEED = 0xFFFFFFFF
_PROTOCOLS = {"": 0, "tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}


def _receive_offload(lib: Any, bit: int) -> Any:
    return lib.dpdk_offload_name(False, bit)


def _transmit_offload(lib: Any, bit: int) -> Any:
    return lib.dpdk_offload_name(True, bit)


def _rss(lib: Any, bit: int) -> Any:
    return lib.dpdk_rss_name(bit)


def _names(bits: int, name_of: Callable[[Any, int], Any]) -> dict[str, int]:
    """The bits that are set, by their names."""
    ffi, lib = binding()
    return {ffi.string(name_of(lib, bit)).decode(): 1 << bit for bit in range(64) if bits >> bit & 1}


def _bits(wanted: Iterable[str], able: int, name_of: Callable[[Any, int], Any], no: str) -> int:
    bits, chosen = _names(able, name_of), 0
    for name in wanted:
        if name not in bits:
            raise DpdkError(f"{no} {name!r}; it has {sorted(bits)}", errno.ENOTSUP)
        chosen |= bits[name]
    return chosen


def _network(address: str) -> tuple[int, int]:
    """Address and mask, as numbers."""
    try:
        network = ipaddress.IPv4Network(address)
    except ValueError as error:
        raise DpdkError(f"expected an IPv4 address or network, got {address!r} ({error})", errno.EINVAL) from error
    return int(network.network_address), int(network.netmask)


class Port:
    """A port, of `Eal.ports`, `Eal.port` or `Eal.attach`. Usable while the EAL runs.

    Attributes:
        id: DPDK's number.
        name: DPDK's name.
    """

    def __init__(self, port_id: int) -> None:
        self.id = port_id
        self.name = f"port {port_id}"
        self.name = self.info().name

    def __repr__(self) -> str:
        return f"Port({self.id}, {self.name!r})"

    def _raw_info(self) -> Any:
        raw = binding()[0].new("struct dpdk_port_info *")
        call(f"reading {self.name}", lambda _, lib: lib.dpdk_port_info(self.id, raw))
        return raw

    def info(self) -> PortInfo:
        """What the port is."""
        raw = self._raw_info()
        return PortInfo(
            name=text(raw.name),
            driver=text(raw.driver),
            bus=text(raw.bus),
            bus_information=text(raw.bus_information),
            interface=text(raw.interface),
            node=raw.node,
            mac=":".join(f"{byte:02x}" for byte in raw.mac),
            mtu_min=raw.mtu_min,
            mtu_max=raw.mtu_max,
            receive_queues=raw.receive_queues,
            transmit_queues=raw.transmit_queues,
            receive_queues_max=raw.receive_queues_max,
            transmit_queues_max=raw.transmit_queues_max,
            receive_offloads=tuple(_names(raw.receive_offloads, _receive_offload)),
            transmit_offloads=tuple(_names(raw.transmit_offloads, _transmit_offload)),
            rss=tuple(_names(raw.rss, _rss)),
            pool=text(raw.pool),
        )

    def link(self) -> Link:
        """The link as it is now, without waiting for a negotiation."""
        raw = binding()[0].new("struct dpdk_link *")
        call(f"reading the link of {self.name}", lambda _, lib: lib.dpdk_port_link(self.id, raw))
        speed = None if raw.speed_mbps == _UNKNOWN_SPEED else raw.speed_mbps
        return Link(raw.up, speed, raw.full_duplex, raw.negotiated)

    def set_link(self, up: bool) -> None:
        """Takes the link up or down, where the driver can."""
        way = "up" if up else "down"
        call(f"taking the link of {self.name} {way}", lambda _, lib: lib.dpdk_port_set_link(self.id, up))

    @property
    def mtu(self) -> int:
        """Bytes of IP in a frame; may be set, where the driver can (some only while the port is stopped)."""
        return call(f"reading the MTU of {self.name}", lambda _, lib: lib.dpdk_port_mtu(self.id))

    @mtu.setter
    def mtu(self, mtu: int) -> None:
        if not 0 < mtu < 65536:
            raise DpdkError(f"expected an MTU of 1 to 65535 bytes for {self.name}, got {mtu}", errno.EINVAL)
        call(f"setting the MTU of {self.name} to {mtu}", lambda _, lib: lib.dpdk_port_set_mtu(self.id, mtu))

    def start(
        self,
        *,
        receive_queues: int = 1,
        transmit_queues: int = 1,
        receive_descriptors: int = 0,
        transmit_descriptors: int = 0,
        mtu: int = 0,
        buffers: int = 0,
        pool: Mempool | None = None,
        receive_offloads: Iterable[str] = (),
        transmit_offloads: Iterable[str] = (),
        rss: Iterable[str] = (),
        promiscuous: bool = False,
    ) -> None:
        """Configures the port and starts it.

        Args:
            receive_queues, transmit_queues: at least 1.
            receive_descriptors, transmit_descriptors: of each queue; 0 = 512, or what the driver allows next to it.
            mtu: bytes of IP; 0 = as it is.
            buffers: for frames, in the port's own pool; 0 = 4095.
            pool: for frames, in place of the port's own.
            receive_offloads, transmit_offloads: names out of those of `info`.
            rss: what the device spreads frames over the receive queues by, out of `info().rss`: frames between the same
                addresses ("ip") or of the same connection ("tcp", "udp") come to the same queue.
            promiscuous: takes frames that are addressed to others, too; a mirror port must.

        Raises:
            DpdkError: the driver refused, an offload or a kind of RSS is not the device's (ENOTSUP), there is no memory
                for the buffers, or the port runs, or its pool is too small and somebody holds frames of it (EBUSY).
        """
        if buffers and pool:
            raise DpdkError("expected buffers, which the port's own pool has, or a pool, got both", errno.EINVAL)
        able, transmit_offloads = self._raw_info(), tuple(transmit_offloads)
        if "MBUF_FAST_FREE" in transmit_offloads:
            raise DpdkError("MBUF_FAST_FREE frees frames that arrays still show: leave it out", errno.ENOTSUP)
        no = f"{self.name} has no"
        settings = binding()[0].new("struct dpdk_port_settings *")
        settings.receive_queues = bounded("receive_queues", receive_queues, 1, 65_535)
        settings.transmit_queues = bounded("transmit_queues", transmit_queues, 1, 65_535)
        settings.receive_descriptors = bounded("receive_descriptors", receive_descriptors, 0, 65_535)
        settings.transmit_descriptors = bounded("transmit_descriptors", transmit_descriptors, 0, 65_535)
        settings.mtu = bounded("mtu", mtu, 0, 65_535)
        settings.buffers = bounded("buffers", buffers, 0, POOL_FRAMES_MOST)
        settings.promiscuous = promiscuous
        settings.pool = pool.name.encode() if pool else b""
        settings.receive_offloads = _bits(
            receive_offloads, able.receive_offloads, _receive_offload, f"{no} receive offload"
        )
        settings.transmit_offloads = _bits(
            transmit_offloads, able.transmit_offloads, _transmit_offload, f"{no} transmit offload"
        )
        settings.rss = _bits(rss, able.rss, _rss, f"{no} RSS by")
        call(f"starting {self.name}", lambda _, lib: lib.dpdk_port_start(self.id, settings))

    def stop(self) -> None:
        """Stops the port; `start` may follow."""
        call(f"stopping {self.name}", lambda _, lib: lib.dpdk_port_stop(self.id))

    def statistics(self) -> PortStatistics:
        """The counters that every driver keeps."""
        raw = binding()[0].new("struct dpdk_statistics *")
        call(f"reading the counters of {self.name}", lambda _, lib: lib.dpdk_port_statistics(self.id, raw))
        traffic = (raw.frames_in, raw.frames_out, raw.bytes_in, raw.bytes_out)
        return PortStatistics(*traffic, raw.missed_in, raw.errors_in, raw.errors_out, raw.no_buffer)

    def extended_statistics(self) -> dict[str, int]:
        """The driver's own counters, DPDK's xstats, by name: "rx_good_packets", "rx_q0_errors", …"""
        counters = listed(
            f"reading the extended counters of {self.name}",
            "struct dpdk_counter",
            lambda lib, array, room: lib.dpdk_port_extended(self.id, array, room),
            lambda raw: (text(raw.name), raw.value),
        )
        return dict(counters)

    def reset_statistics(self) -> None:
        """Sets `statistics` to zero."""
        call(f"resetting {self.name}", lambda _, lib: lib.dpdk_port_reset_statistics(self.id))

    def reset_extended_statistics(self) -> None:
        """Sets `extended_statistics` to zero."""
        call(f"resetting {self.name}", lambda _, lib: lib.dpdk_port_reset_extended(self.id))

    def rx_burst(self, limit: int = 64, queue: int = 0) -> Burst:
        """The frames that wait in a queue, at most `limit` (1 to 1,024); an empty burst where there are none.

        Release it soon (`with port.rx_burst() as burst:`): a device whose pool is empty drops what comes.
        """
        bounded("queue", queue, 0, 65_535)
        return new_burst(limit)._fill(
            f"receiving on {self.name}",
            lambda lib, frames, lengths, room: lib.dpdk_port_rx_burst(self.id, queue, frames, lengths, room),
        )

    def tx_burst(self, burst: Burst, queue: int = 0) -> int:
        """Sends the burst's frames, the first ones, as far as the device takes them; returns how many.

        The others stay in the burst, for another try.
        """
        bounded("queue", queue, 0, 65_535)
        doing = f"sending on {self.name}"
        try:
            return burst._give(doing, lambda lib, frames, count: lib.dpdk_port_tx_burst(self.id, queue, frames, count))
        except DpdkError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            message = "a frame lies in several buffers: start the port with transmit_offloads=['MULTI_SEGS']"
            raise DpdkError(f"{doing}: {message}", errno.EMSGSIZE) from error

    def send(self, frames: Sequence[bytes], queue: int = 0) -> int:
        """Sends whole Ethernet frames, without their checksum. Returns how many the device took, the first of them.

        For trials and tests, not for speed: each frame is copied.
        """
        if not frames:
            return 0
        doing, pool = f"sending on {self.name}", self.info().pool
        if not pool:
            raise DpdkError(f"{doing}: the port has not been started", errno.ENETDOWN)
        with allocate(doing, pool, [len(frame) for frame in frames]) as burst:
            for index, frame in enumerate(frames):
                burst[index][:] = np.frombuffer(frame, np.uint8)
            return self.tx_burst(burst, queue)

    def receive(self, limit: int = 32, queue: int = 0, frame_bytes: int = 9216) -> list[bytes]:
        """The frames that wait, at most `limit`; none where there are none. Each is copied, cut at `frame_bytes`."""
        with self.rx_burst(limit, queue) as burst:
            copies = zip(burst.copy(frame_bytes), burst.lengths, strict=True)
            return [copied[:length].tobytes() for copied, length in copies]

    def add_flow(
        self,
        queue: int | None,
        *,
        ether_type: int = 0,
        source: str = "0.0.0.0/0",
        destination: str = "0.0.0.0/0",
        protocol: str = "",
        source_port: int = 0,
        destination_port: int = 0,
    ) -> None:
        """Has the device put the frames that match into a queue, or drop them, by DPDK's rte_flow.

        The port must run. Flows last until `clear_flows` or `Eal.detach`.

        Args:
            queue: that they go to; None = they are dropped.
            ether_type: 0x0806 is ARP's; 0 = any.
            source, destination: IPv4 addresses or networks: "10.0.0.0/8".
            protocol: "tcp", "udp", or "" = any.
            source_port, destination_port: of that protocol; 0 = any.

        Raises:
            DpdkError: the device cannot, and the message holds its driver's reason; or this is no flow (EINVAL).
        """
        flow = binding()[0].new("struct dpdk_flow *")
        flow.queue = -1 if queue is None else bounded("queue", queue, 0, 65_535)
        flow.ether_type = bounded("ether_type", ether_type, 0, 65_535)
        flow.source, flow.source_mask = _network(source)
        flow.destination, flow.destination_mask = _network(destination)
        if protocol not in _PROTOCOLS:
            raise DpdkError(f"expected protocol 'tcp', 'udp' or '', got {protocol!r}", errno.EINVAL)
        flow.protocol = _PROTOCOLS[protocol]
        flow.source_port = bounded("source_port", source_port, 0, 65_535)
        flow.destination_port = bounded("destination_port", destination_port, 0, 65_535)
        if (source_port or destination_port) and not protocol:
            raise DpdkError("expected protocol 'tcp' or 'udp' beside a port, got ''", errno.EINVAL)
        call(f"adding a flow to {self.name}", lambda _, lib: lib.dpdk_port_add_flow(self.id, flow))

    def clear_flows(self) -> None:
        """Takes all flows away."""
        call(f"clearing the flows of {self.name}", lambda _, lib: lib.dpdk_port_clear_flows(self.id))


def all_ports() -> list[Port]:
    """All ports that nobody else owns."""
    return listed("listing ports", "uint16_t", lambda lib, array, room: lib.dpdk_ports(array, room), Port)
