"""``python -m replay_server.dpdk [EAL ARGUMENTS]``: starts DPDK, tells as JSON what is there, and stops it.

Without arguments DPDK is not started: what the system says is told alone. A process of its own may be run anywhere: in
another network namespace, or beside a program that has DPDK itself (--file-prefix).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from replay_server import dpdk


def examine(*arguments: str) -> dict[str, Any]:
    """Hugepages and PCI devices; with EAL arguments also ports (info, link, MTU, counters), heaps and memory zones.

    Raises:
        DpdkError: DPDK is not there, or refused.
    """
    found: dict[str, Any] = {
        "version": dpdk.version() if dpdk.available() else None,
        "hugepages": [dataclasses.asdict(size) for size in dpdk.hugepages()],
        "devices": [dataclasses.asdict(device) for device in dpdk.devices()],
    }
    if not arguments:
        return found
    with dpdk.Eal(*arguments) as eal:
        found["ports"] = [
            {
                **dataclasses.asdict(port.info()),
                "mtu": port.mtu,
                "link": dataclasses.asdict(port.link()),
                "statistics": dataclasses.asdict(port.statistics()),
                "extended_statistics": port.extended_statistics(),
            }
            for port in eal.ports()
        ]
        found["heaps"] = [dataclasses.asdict(heap) for heap in eal.heaps()]
        found["memory_zones"] = [dataclasses.asdict(zone) for zone in eal.memory_zones()]
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(examine(*sys.argv[1:]), indent=2))
    except dpdk.DpdkError as error:
        sys.exit(f"replay_server.dpdk: {error}")
