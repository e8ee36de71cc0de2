"""The server's address: well formed, nobody else's."""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator

from .finding import Finding, Subject, output, problem

_BROADCAST = b"\xff" * 6
_ARP_TYPE = 0x0806
_WAIT_SECONDS = 1.0
_TRIES = 3


def examine_address(subject: Subject) -> Iterator[Finding]:
    """Its form, the gateway, and whether this host's kernel has the address."""
    if not subject.address:
        return
    text, _, bits = subject.address.partition("/")
    try:
        interface = ipaddress.IPv4Interface(subject.address)
    except ValueError:
        message = f"'{subject.address}': expected an IPv4 address and its mask, such as 10.0.0.2/24"
        yield problem("address", message)
        return
    if not bits:
        yield problem("address", f"{text} has no mask: expected such as {text}/24")
    elif interface.network.prefixlen < 31 and interface.ip in (interface.network[0], interface.network[-1]):
        yield problem("address", f"{subject.address} is the network's own address, or its broadcast address")
    if subject.gateway:
        yield from _examine_gateway(subject.gateway, interface)
    for entry in json.loads(output("ip", "-j", "-4", "address", "show") or "[]"):
        for given in entry.get("addr_info", ()):
            if given.get("local") == text:
                name = entry["ifname"]
                message = f"this host's kernel has {text} already, on {name}: both would answer. Take another address"
                yield problem("address", message)


def _examine_gateway(gateway: str, interface: ipaddress.IPv4Interface) -> Iterator[Finding]:
    try:
        inside = ipaddress.IPv4Address(gateway) in interface.network
    except ValueError:
        yield problem("gateway", f"'{gateway}': expected an IPv4 address")
        return
    if not inside:
        yield problem("gateway", f"the gateway {gateway} is not in the server's network {interface.network}")


# ---- asking the network ---------------------------------------------------------------------------------------------


def arp_probe(address: str, mac: bytes) -> bytes:
    """The frame that asks who has an address, from nobody's address (RFC 5227), so that no table is touched."""
    header = _BROADCAST + mac + struct.pack("!H", _ARP_TYPE)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + bytes(4) + bytes(6) + socket.inet_aton(address)
    return (header + body).ljust(60, b"\0")


def arp_answer(frame: bytes, address: str) -> bytes | None:
    """The hardware address that a frame says an address has; None: it says no such thing."""
    if len(frame) < 42 or frame[12:14] != struct.pack("!H", _ARP_TYPE):
        return None
    is_reply = frame[20:22] == b"\0\2"
    return frame[22:28] if is_reply and frame[28:32] == socket.inet_aton(address) else None


def who_has(
    address: str, mac: bytes, send: Callable[[bytes], object], receive: Callable[[float], list[bytes]]
) -> bytes | None:
    """Asks on a network who has an address: the hardware address of who answers, other than `mac`; None: nobody."""
    for _ in range(_TRIES):
        send(arp_probe(address, mac))
        end = time.monotonic() + _WAIT_SECONDS / _TRIES
        while (left := end - time.monotonic()) > 0:
            for frame in receive(left):
                answer = arp_answer(frame, address)
                if answer is not None and answer != mac:
                    return answer
    return None


def who_has_on_interface(address: str, interface: str) -> bytes | None:
    """As `who_has`, through the kernel's interface.

    Raises:
        OSError: packet sockets are not allowed, or the interface is down.
    """
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP_TYPE)) as raw:
        raw.bind((interface, _ARP_TYPE))
        mac = raw.getsockname()[4]

        def receive(seconds: float) -> list[bytes]:
            raw.settimeout(seconds)
            try:
                return [raw.recv(2048)]
            except TimeoutError:
                return []

        return who_has(address, mac, lambda frame: raw.sendall(frame), receive)


def conflict(address: str, mac: bytes) -> Finding:
    """What an answer means."""
    return problem(
        "address",
        f"another host has {address}: {':'.join(f'{byte:02x}' for byte in mac)} answers for it. Take another --address",
    )
