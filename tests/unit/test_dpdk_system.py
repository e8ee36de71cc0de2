"""What replay_server.dpdk reads of sysfs, and what it says where DPDK was not built in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from replay_server import dpdk
from replay_server.dpdk import Device, Hugepages


def add_pages(folder: Path, size_kb: int, total: int, free: int) -> None:
    pages = folder / f"hugepages-{size_kb}kB"
    pages.mkdir(parents=True)
    (pages / "nr_hugepages").write_text(f"{total}\n")
    (pages / "free_hugepages").write_text(f"{free}\n")


def test_hugepages_are_told_by_size_and_node(tmp_path: Path) -> None:
    nodes = tmp_path / "devices/system/node"
    add_pages(nodes / "node0/hugepages", 2048, 512, 500)
    add_pages(nodes / "node1/hugepages", 2048, 0, 0)
    add_pages(nodes / "node0/hugepages", 1048576, 2, 1)
    (nodes / "online").write_text("0-1\n")
    found = dpdk.hugepages(tmp_path)
    assert found == [
        Hugepages(2 << 20, node=0, total=512, free=500),
        Hugepages(2 << 20, node=1, total=0, free=0),
        Hugepages(1 << 30, node=0, total=2, free=1),
    ]
    assert found[0].free_bytes == 500 << 21


def test_hugepages_of_a_system_without_nodes(tmp_path: Path) -> None:
    add_pages(tmp_path / "kernel/mm/hugepages", 2048, 8, 3)
    assert dpdk.hugepages(tmp_path) == [Hugepages(2 << 20, node=0, total=8, free=3)]
    assert dpdk.hugepages(tmp_path / "nowhere") == []


def add_device(sysfs: Path, address: str, code: str, driver: str | None, **files: str) -> Path:
    entry = sysfs / "devices/pci0000:00" / address
    entry.mkdir(parents=True)
    for name, text in {"class": code, "vendor": "0x8086", "device": "0x10fb", **files}.items():
        (entry / name).write_text(text + "\n")
    links = sysfs / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / address).symlink_to(entry)
    if driver:
        (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (entry / "driver").symlink_to(sysfs / "bus/pci/drivers" / driver)
    return entry


def test_network_devices_are_told_with_who_holds_them(tmp_path: Path) -> None:
    kernel = add_device(tmp_path, "0000:01:00.0", "0x020000", "ixgbe", numa_node="1")
    (kernel / "net/eth1").mkdir(parents=True)
    group = tmp_path / "kernel/iommu_groups/17"
    group.mkdir(parents=True)
    (kernel / "iommu_group").symlink_to(group)
    add_device(tmp_path, "0000:01:00.1", "0x020000", "vfio-pci", numa_node="-1")
    add_device(tmp_path, "0000:02:00.0", "0x020000", None)
    add_device(tmp_path, "0000:03:00.0", "0x010802", "nvme")
    virtio = add_device(tmp_path, "0000:04:00.0", "0x020000", "virtio-pci")
    (virtio / "virtio1/net/eth0").mkdir(parents=True)
    add_device(tmp_path, "0000:05:00.0", "0x020700", "mlx5_core")
    found = dpdk.devices(tmp_path)
    assert found[:3] == [
        Device("0000:01:00.0", 0x8086, 0x10FB, "ixgbe", 1, 17, ("eth1",)),
        Device("0000:01:00.1", 0x8086, 0x10FB, "vfio-pci", -1, None, ()),
        Device("0000:02:00.0", 0x8086, 0x10FB, None, -1, None, ()),
    ]
    assert [device.address for device in found[3:]] == ["0000:04:00.0", "0000:05:00.0"]
    assert found[3].interfaces == ("eth0",)
    assert [device.is_ready for device in found] == [False, True, False, False, True]


def test_this_system_can_be_read() -> None:
    assert all(pages.total >= pages.free >= 0 and pages.size_bytes % 4096 == 0 for pages in dpdk.hugepages())
    assert all(device.address.count(":") == 2 for device in dpdk.devices())


def test_without_the_extension_only_its_use_fails_and_says_what_to_install() -> None:
    code = """
import errno, sys
sys.modules["replay_server._dpdk"] = None
from replay_server import dpdk
from replay_server.errors import ReplayError
dpdk.hugepages(), dpdk.devices()
assert dpdk.available() is False
for use in (dpdk.version, lambda: dpdk.Eal("--no-huge")):
    try:
        use()
    except dpdk.DpdkError as error:
        assert isinstance(error, ReplayError) and error.errno == errno.ENOSYS, error.errno
        assert "apt-get install libdpdk-dev" in str(error), error
    else:
        raise AssertionError("no error")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_an_extension_whose_libraries_went_away_is_told_from_none(tmp_path: Path) -> None:
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == "replay_server._dpdk":
            raise ImportError("librte_eal.so.23: cannot open shared object file")
sys.meta_path.insert(0, Gone())
from replay_server import dpdk
try:
    dpdk.version()
except dpdk.DpdkError as error:
    assert "librte_eal.so.23" in str(error) and "apt-get install dpdk" in str(error), error
else:
    raise AssertionError("no error")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
