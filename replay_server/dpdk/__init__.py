"""DPDK from Python: the EAL, its ports, packets and memory; and what the system says of hugepages and devices.

    from replay_server import dpdk

    with dpdk.Eal("--no-huge", "-m", "64", "--no-pci", "--vdev", "net_null0") as eal:
        for port in eal.ports():
            print(port.name, port.info().driver, port.link().speed_mbps)

The module can be imported everywhere. `hugepages` and `devices` read sysfs and need nothing else; the rest needs the
extension that is built where DPDK (22.11 or later) is installed, and raises `DpdkError` saying so where it was not.
docs/dpdk-bindings.md tells more.
"""

from .eal import Eal
from .library import DpdkError, available, version
from .memory import Heap, MemoryPool, MemoryZone
from .packets import Burst, Mempool, Ring
from .port import Link, Port, PortInfo, PortStatistics
from .system import Device, Hugepages, devices, hugepages

__all__ = [
    "Burst",
    "Device",
    "DpdkError",
    "Eal",
    "Heap",
    "Hugepages",
    "Link",
    "MemoryPool",
    "MemoryZone",
    "Mempool",
    "Port",
    "PortInfo",
    "PortStatistics",
    "Ring",
    "available",
    "devices",
    "hugepages",
    "version",
]
