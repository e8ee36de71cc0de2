"""Ports of DPDK: what they are, their link, their counters, and frames in and out of them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .library import DpdkError, binding, call, listed, text


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


def _offload_names(bits: int, transmit: bool) -> tuple[str, ...]:
    ffi, lib = binding()
    set_bits = [bit for bit in range(64) if bits >> bit & 1]
    return tuple(ffi.string(lib.dpdk_offload_name(transmit, bit)).decode() for bit in set_bits)


def _offload_bits(names: Iterable[str], able: int, transmit: bool, port: str) -> int:
    ffi, lib = binding()
    bits = {ffi.string(lib.dpdk_offload_name(transmit, bit)).decode(): bit for bit in range(64) if able >> bit & 1}
    wanted = 0
    for name in names:
        if name not in bits:
            kind = "transmit" if transmit else "receive"
            raise DpdkError(f"{port} has no {kind} offload {name!r}; it has {sorted(bits)}", errno.ENOTSUP)
        wanted |= 1 << bits[name]
    return wanted


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
            receive_offloads=_offload_names(raw.receive_offloads, transmit=False),
            transmit_offloads=_offload_names(raw.transmit_offloads, transmit=True),
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
        receive_offloads: Iterable[str] = (),
        transmit_offloads: Iterable[str] = (),
    ) -> None:
        """Configures the port and starts it.

        Args:
            receive_queues, transmit_queues: at least 1.
            receive_descriptors, transmit_descriptors: of each queue; 0 = 512, or what the driver allows next to it.
            mtu: bytes of IP; 0 = as it is.
            buffers: for frames, in the port's own pool; 0 = 4095.
            receive_offloads, transmit_offloads: names out of those of `info`.

        Raises:
            DpdkError: the driver refused, an offload is not the device's, or there is no memory for the buffers.
        """
        able = self._raw_info()
        settings = binding()[0].new("struct dpdk_port_settings *")
        settings.receive_queues, settings.transmit_queues = receive_queues, transmit_queues
        settings.receive_descriptors, settings.transmit_descriptors = receive_descriptors, transmit_descriptors
        settings.mtu, settings.buffers = mtu, buffers
        settings.receive_offloads = _offload_bits(receive_offloads, able.receive_offloads, False, self.name)
        settings.transmit_offloads = _offload_bits(transmit_offloads, able.transmit_offloads, True, self.name)
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

    def send(self, frames: Sequence[bytes], queue: int = 0) -> int:
        """Sends whole Ethernet frames, without their checksum. Returns how many the device took, the first of them.

        For trials and tests, not for speed: each frame is copied.
        """
        ffi, _ = binding()
        data, lengths = b"".join(frames), ffi.new("uint32_t[]", [len(frame) for frame in frames])
        return call(
            f"sending on {self.name}",
            lambda ffi, lib: lib.dpdk_port_send(self.id, queue, ffi.from_buffer(data), lengths, len(frames)),
        )

    def receive(self, limit: int = 32, queue: int = 0, frame_bytes: int = 9216) -> list[bytes]:
        """The frames that wait, at most `limit`; none where there are none. Each is copied, cut at `frame_bytes`."""
        ffi, _ = binding()
        frames, lengths = ffi.new("uint8_t[]", max(1, limit * frame_bytes)), ffi.new("uint32_t[]", max(1, limit))
        count = call(
            f"receiving on {self.name}",
            lambda _, lib: lib.dpdk_port_receive(self.id, queue, frames, frame_bytes, lengths, limit),
        )
        return [bytes(ffi.buffer(frames + at * frame_bytes, lengths[at])) for at in range(count)]


def all_ports() -> list[Port]:
    """All ports that nobody else owns."""
    return listed("listing ports", "uint16_t", lambda lib, array, room: lib.dpdk_ports(array, room), Port)
