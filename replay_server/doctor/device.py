"""The device: a PCI NIC with its driver, its IOMMU group and vfio; or a virtual device on an interface."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import dpdk
from .finding import Finding, Subject, advice, fact, ok, output, problem, read

_PCI = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UIO = frozenset({"uio_pci_generic", "igb_uio"})
_BRIDGE_CLASS = "0x0604"


@dataclass(frozen=True)
class Target:
    """What a device's name stands for.

    Attributes:
        kind: "pci"; "interface": a virtual device on a kernel's interface; "virtual": another one; "none": none named.
        driver: DPDK's, of a virtual device: "net_af_xdp".
        arguments: of a virtual device.
        interface: the kernel's, under a virtual device.
        pci: a NIC's address.
        found: what the system says of that NIC; None: there is none of that address.
    """

    kind: Literal["pci", "interface", "virtual", "none"]
    driver: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    interface: str = ""
    pci: str = ""
    found: dpdk.Device | None = None

    def argument(self, name: str, missing: str = "") -> str:
        """Value of a virtual device's argument."""
        return dict(self.arguments).get(name, missing)


def find_target(subject: Subject) -> Target:
    """What the subject's device is."""
    device = subject.device
    if not device:
        return Target("none")
    devices = {found.address: found for found in dpdk.devices(subject.sysfs)}
    if _PCI.fullmatch(device):
        pci = device if device.count(":") == 2 else f"0000:{device}"
        return Target("pci", pci=pci, found=devices.get(pci))
    if re.match(r"(net|eth)_\w+", device):
        name, *options = device.split(",")
        arguments = tuple((option.partition("=")[0], option.partition("=")[2]) for option in options)
        interface = dict(arguments).get("iface", "")
        driver = name.rstrip("0123456789")
        on_interface = interface and driver in ("net_af_xdp", "net_af_packet")
        return Target("interface" if on_interface else "virtual", driver, arguments, interface)
    for found in devices.values():
        if device in found.interfaces:
            return Target("pci", pci=found.address, found=found)
    return Target("interface", interface=device)


# ---- PCI ------------------------------------------------------------------------------------------------------------


def examine_pci(subject: Subject, target: Target) -> Iterator[Finding]:
    """A NIC's driver, and whether vfio can have it."""
    device = target.found
    if device is None:
        there = ", ".join(found.address for found in dpdk.devices(subject.sysfs)) or "none at all"
        yield problem("device", f"there is no PCI network device {target.pci}; there are: {there}", "lspci -D")
        return
    if device.driver in dpdk.system.SHARED_DRIVERS:
        yield ok("driver", f"{target.pci} stays with {device.driver}, and DPDK uses it beside the kernel")
        return
    yield _examine_driver(subject, device)
    if device.driver in _UIO:
        return
    yield from _examine_iommu(subject, device)
    if device.driver == "vfio-pci":
        yield from _examine_vfio_file(subject, device)
    elif not (subject.sysfs / "bus/pci/drivers/vfio-pci").exists():
        yield problem("driver", "the kernel's driver vfio-pci is not loaded", "sudo modprobe vfio-pci")


def _examine_driver(subject: Subject, device: dpdk.Device) -> Finding:
    take = (subject.set_up_command(),)
    if device.driver == "vfio-pci":
        return ok("driver", f"{device.address} belongs to vfio-pci")
    if device.driver in _UIO:
        return advice(
            "driver",
            f"{device.address} belongs to {device.driver}: DPDK uses it as root only, and the device may write to all "
            "memory; vfio-pci is the driver to have",
            *take,
        )
    if device.driver is None:
        return problem("driver", f"{device.address} has no driver: expected vfio-pci", *take)
    if device.interfaces:
        names = ", ".join(device.interfaces)
        message = f"{device.address} is still bound to the kernel (driver {device.driver}, interface {names}): "
        return problem("driver", message + "expected vfio-pci", *take)
    return problem("driver", f"{device.address} has the wrong driver, {device.driver}: expected vfio-pci", *take)


def _examine_iommu(subject: Subject, device: dpdk.Device) -> Iterator[Finding]:
    if device.iommu_group is None:
        yield _without_iommu(subject, device)
        return
    others = [*_strangers_in_group(subject.sysfs, device)]
    for other, driver in others:
        yield problem(
            "iommu",
            f"{device.address} shares IOMMU group {device.iommu_group} with {other}, which belongs to {driver}: vfio "
            "gives out whole groups. Give it to vfio-pci too, or put the card into another slot",
            f"sudo dpdk-devbind.py -b vfio-pci {other}",
        )
    if not others:
        yield ok("iommu", f"IOMMU group {device.iommu_group}")


def _without_iommu(subject: Subject, device: dpdk.Device) -> Finding:
    message = f"there is no IOMMU for {device.address}: "
    module = subject.sysfs / "module/vfio"
    parameter = module / "parameters/enable_unsafe_noiommu_mode"
    if read(parameter) in ("Y", "1"):
        return advice("iommu", message + "vfio is told to do without, and the device may write to all memory")
    message += (
        "switch on VT-d or AMD-Vi in the firmware, put intel_iommu=on iommu=pt (AMD: iommu=pt) on the kernel's command "
        "line, and restart; where there is none (many virtual machines), "
    )
    # Without the parameter the kernel was built without CONFIG_VFIO_NOIOMMU, as Debian's is.
    if parameter.exists() or (
        not module.exists() and "enable_unsafe_noiommu_mode:" in (output("modinfo", "-p", "vfio") or "")
    ):
        message += "let vfio do without: the device may then write to all memory"
        return problem("iommu", message, subject.set_up_command() + " --no-iommu")
    message += "leave the device with the kernel's driver: this kernel's vfio cannot do without an IOMMU"
    return problem("iommu", message, subject.set_up_command() + " --via af_packet")


def _strangers_in_group(sysfs: Path, device: dpdk.Device) -> Iterator[tuple[str, str]]:
    folder = sysfs / "bus/pci/devices" / device.address / "iommu_group/devices"
    for entry in sorted(folder.glob("*")):
        driver = entry / "driver"
        if entry.name == device.address or read(entry / "class").startswith(_BRIDGE_CLASS) or not driver.exists():
            continue
        if (name := driver.resolve().name) != "vfio-pci":
            yield entry.name, name


def vfio_file(device: dpdk.Device) -> Path:
    """What a process opens to use the NIC."""
    return Path("/dev/vfio") / (str(device.iommu_group) if device.iommu_group is not None else "vfio")


def _examine_vfio_file(subject: Subject, device: dpdk.Device) -> Iterator[Finding]:
    file = vfio_file(device)
    if subject.sysfs == Path("/sys") and not file.exists():
        message = (
            f"{device.address} belongs to vfio-pci, but there is no {file}: is this a container without that device?"
        )
        yield problem("driver", message, f"ls -l /dev/vfio; docker run --device /dev/vfio/vfio --device {file} …")


# ---- an interface ---------------------------------------------------------------------------------------------------

_FSTACK_MTU_MAX = 1500
_MTU_MAX = {"net_af_xdp": 3300, "net_af_packet": 1500}
"""What DPDK's drivers carry: a page that holds what stands before a frame, too; ordinary frames."""
_FEATURES = {
    "tx": "tx-checksumming",
    "rx": "rx-checksumming",
    "sg": "scatter-gather",
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}


def interface_state(name: str) -> dict[str, Any] | None:
    """What `ip` says of an interface; None where there is none of that name."""
    text = output("ip", "-j", "-d", "address", "show", "dev", name)
    found = [entry for entry in json.loads(text or "[]") if entry.get("ifname") == name]
    return found[0] if found else None


def examine_interface(subject: Subject, target: Target) -> Iterator[Finding]:
    """An interface that a virtual device of DPDK stands on."""
    name = target.interface
    state = interface_state(name)
    if state is None:
        yield problem("device", f"there is no interface {name} here", "ip -br link")
        return
    if "UP" not in state["flags"]:
        yield problem("link", f"{name} is down", f"sudo ip link set dev {name} up")
    elif "LOWER_UP" not in state["flags"]:
        yield problem("link", f"{name} has no link: cable, switch, or the other end of the veth is down")
    else:
        yield ok("link", f"{name} is up")
    yield from _examine_addresses(name, state)
    yield from _examine_mtu(subject, target, state["mtu"])
    if state.get("linkinfo", {}).get("info_kind") == "veth":
        yield from _examine_veth(name, state)
    if target.driver == "net_af_xdp":
        yield from _examine_queues(name)


def _examine_addresses(name: str, state: dict[str, Any]) -> Iterator[Finding]:
    for entry in state.get("addr_info", ()):
        if entry.get("scope") == "global":
            address = f"{entry['local']}/{entry['prefixlen']}"
            message = (
                f"{name} has the address {address}: the kernel would answer (and refuse) what comes for the server"
            )
            yield problem("address", message, f"sudo ip address del {address} dev {name}")


def examine_mtu_of_stack(subject: Subject) -> Iterator[Finding]:
    """Whether F-Stack carries what the server is told; lwIP carries whatever the device does."""
    if subject.transport == "fstack" and subject.mtu > _FSTACK_MTU_MAX:
        message = f"F-Stack carries at most {_FSTACK_MTU_MAX} bytes, and the server is told {subject.mtu}: "
        yield problem("mtu", message + f"say dpdk-mtu = {_FSTACK_MTU_MAX} in its file")


def _examine_mtu(subject: Subject, target: Target, mtu: int) -> Iterator[Finding]:
    name, wanted = target.interface, subject.mtu or mtu
    if wanted > mtu:
        message = f"{name} has an mtu of {mtu} bytes, the server is told {wanted}: larger packets would be lost"
        yield problem("mtu", message, f"sudo ip link set dev {name} mtu {wanted}")
    most = _MTU_MAX.get(target.driver, wanted)
    if max(wanted, mtu) > most:
        told = "" if wanted <= most else f"; and say dpdk-mtu = {most}, or less, where it says {wanted}"
        message = f"{name} has an mtu of {max(wanted, mtu)} bytes, and {target.driver} carries at most {most}{told}"
        yield problem("mtu", message, f"sudo ip link set dev {name} mtu 1500")
    frame_bytes = int(target.argument("framesz", "0"))
    if target.driver == "net_af_packet" and 0 < frame_bytes < min(wanted, most) + 98:
        message = (
            f"an mtu of {wanted} bytes does not fit into framesz={frame_bytes} of {subject.device}: framesz=2048 does"
        )
        yield problem("mtu", message)


def _examine_veth(name: str, state: dict[str, Any]) -> Iterator[Finding]:
    ends = [name]
    if "link" in state and "link_netnsid" not in state:
        ends.append(state["link"])
    for end in ends:
        features = output("ethtool", "-k", end)
        if features is None:
            yield advice("offloads", "offloads cannot be read: ethtool is not there", "sudo apt-get install ethtool")
            return
        on = [short for short, long in _FEATURES.items() if re.search(rf"^{long}: on$", features, re.MULTILINE)]
        if on:
            off = " ".join(f"{short} off" for short in on)
            message = (
                f"{end} is a veth with offloads on ({', '.join(on)}): it passes checksums that nobody has computed "
            )
            message += "and frames of 64 kB; TCP never connects, or large transfers hang"
            yield problem("offloads", message, f"sudo ethtool -K {end} {off}")
        else:
            yield ok("offloads", f"{end} is a veth without offloads")
    if len(ends) == 1:
        message = f"the other end of {name} is in another namespace: its offloads must be off as well"
        yield fact("offloads", message)


def _examine_queues(name: str) -> Iterator[Finding]:
    _, _, now = (output("ethtool", "-l", name) or "").partition("Current hardware settings:")
    for kind in ("RX", "Combined"):
        count = re.search(rf"^{kind}:\s*(\d+)", now, re.MULTILINE)
        if count is not None and int(count[1]) > 1:
            message = f"{name} spreads frames over {count[1]} queues, and the server reads one"
            yield problem("queues", message, f"sudo ethtool -L {name} {kind.lower()} 1")
