"""What the system says of hugepages and network devices, from sysfs: DPDK itself is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DPDK_DRIVERS = frozenset({"vfio-pci", "igb_uio", "uio_pci_generic"})
"""Kernel drivers that hand a device to user space."""
SHARED_DRIVERS = frozenset({"mlx4_core", "mlx5_core", "mana"})
"""Drivers beside which DPDK works: their devices stay bound to the kernel."""
_NETWORK_CLASS = 0x02


@dataclass(frozen=True)
class Hugepages:
    """The hugepages of one size on one memory node.

    Attributes:
        size_bytes: of one page.
        node: memory node; 0 where the system has no nodes.
        total: pages reserved. free: of these, in nobody's use.
    """

    size_bytes: int
    node: int
    total: int
    free: int

    @property
    def free_bytes(self) -> int:
        """Bytes in nobody's use."""
        return self.size_bytes * self.free


@dataclass(frozen=True)
class Device:
    """A PCI network device.

    Attributes:
        address: "0000:01:00.0", as DPDK wants it.
        vendor_id, device_id: of PCI.
        driver: the kernel's driver that holds it; None: unbound.
        node: memory node, −1: none.
        iommu_group: None: no IOMMU manages it, so vfio-pci takes it only in no-IOMMU mode.
        interfaces: the kernel's network interfaces on it; none once it is bound for user space.
    """

    address: str
    vendor_id: int
    device_id: int
    driver: str | None
    node: int
    iommu_group: int | None
    interfaces: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        """Whether DPDK can use it as it is: bound to a driver for user space, or to one that DPDK works beside."""
        return self.driver in DPDK_DRIVERS or self.driver in SHARED_DRIVERS


def _number(path: Path, missing: int, base: int = 10) -> int:
    try:
        return int(path.read_text().strip(), base)
    except (OSError, ValueError):
        return missing


def _sizes(folder: Path, node: int) -> Iterator[Hugepages]:
    for entry in folder.glob("hugepages-*kB"):
        size_bytes = int(entry.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        total, free = _number(entry / "nr_hugepages", 0), _number(entry / "free_hugepages", 0)
        yield Hugepages(size_bytes, node, total, free)


def hugepages(sysfs: str | Path = "/sys") -> list[Hugepages]:
    """The hugepages that the kernel knows, by size and node: also the sizes of which none are reserved."""
    found = []
    for folder in Path(sysfs).glob("devices/system/node/node[0-9]*"):
        found += _sizes(folder / "hugepages", int(folder.name.removeprefix("node")))
    if not found:
        found = list(_sizes(Path(sysfs) / "kernel/mm/hugepages", 0))
    return sorted(found, key=lambda pages: (pages.size_bytes, pages.node))


def _device(entry: Path) -> Device:
    driver, group, interfaces = entry / "driver", entry / "iommu_group", entry / "net"
    # virtio's network interface is on a device of its own below the PCI device.
    below = [*interfaces.glob("*"), *entry.glob("virtio*/net/*")]
    return Device(
        address=entry.name,
        vendor_id=_number(entry / "vendor", 0, 16),
        device_id=_number(entry / "device", 0, 16),
        driver=driver.resolve().name if driver.is_symlink() else None,
        node=_number(entry / "numa_node", -1),
        iommu_group=int(group.resolve().name) if group.is_symlink() else None,
        interfaces=tuple(sorted(path.name for path in below)),
    )


def devices(sysfs: str | Path = "/sys") -> list[Device]:
    """The PCI network devices: those that DPDK could use, whoever holds them now."""
    entries = sorted(Path(sysfs).glob("bus/pci/devices/*"))
    return [_device(entry) for entry in entries if _number(entry / "class", 0, 16) >> 16 == _NETWORK_CLASS]
