"""`replay-server doctor`: each finding made for real where that can be (veths in namespaces, processes with less
rights); a PCI NIC is a stand-in, a folder like /sys."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replay_server import dpdk
from replay_server.bench.namespace import Namespace, NamespaceError, connect, program
from replay_server.errors import ServerError
from replay_server.server import find_executable

ADDRESS = ("--address", "10.9.0.2/24")
PACKET = ("--device", "net_af_packet0,iface=nic")
XDP = ("--device", "net_af_xdp0,iface=nic")
PCI = "0000:41:00.0"

needs_dpdk = pytest.mark.skipif(not dpdk.available(), reason="needs DPDK (apt-get install libdpdk-dev)")
needs_root = pytest.mark.root


def transport_is_built() -> bool:
    try:
        return find_executable("dpdk").is_file()
    except ServerError:
        return False


class Report:
    """What the doctor said, from --json."""

    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        assert result.returncode in (0, 1), result.stderr
        self.status = result.returncode
        self.said: dict[str, Any] = json.loads(result.stdout)
        self.findings: list[dict[str, Any]] = self.said["findings"]

    def messages(self, check: str, level: str = "problem") -> list[str]:
        return [f["message"] for f in self.findings if (f["check"], f["level"]) == (check, level)]

    def problem(self, check: str) -> tuple[str, list[str]]:
        """The one problem of a check: its message, what to type."""
        (found,) = (f for f in self.findings if (f["check"], f["level"]) == (check, "problem"))
        assert self.status == 1
        return found["message"], found["type"]


def doctor(*arguments: object, before: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> Report:
    result = subprocess.run(
        [*before, sys.executable, "-m", "replay_server", "doctor", "--json", *map(str, arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=90,
    )
    return Report(result)


class Pair:
    """Two hosts and a cable: `nic` on this one, `far`, with 10.9.0.3, on the other."""

    def __init__(self, as_user: bool | None = None) -> None:
        self.here = Namespace("here", as_user=as_user)
        self.there = Namespace("there", self.here)
        connect(self.here, "nic", self.there, "far")
        self.here.set_up("nic", offloads=False)
        self.there.set_up("far", "10.9.0.3/24", offloads=False)

    def doctor(self, *arguments: object, before: tuple[str, ...] = (), **environment: str) -> Report:
        return doctor(*arguments, before=(*self.here.command_with_sysfs, *before), environment=environment)

    def type(self, *commands: str) -> None:
        """Does what the doctor says."""
        for command in commands:
            name, *arguments = command.removeprefix("sudo ").split()
            self.here.run(program(name, name), *arguments)

    def close(self) -> None:
        self.there.close()
        self.here.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        made = Pair()
    except NamespaceError as error:
        pytest.skip(str(error))
    yield made
    made.close()


# ---- an interface, for real -----------------------------------------------------------------------------------------


@pytest.mark.dpdk
@needs_dpdk
@needs_root
@pytest.mark.skipif(not transport_is_built(), reason="needs the transport over DPDK (make lwip)")
@pytest.mark.parametrize("device", [PACKET, XDP])
def test_a_host_in_order_has_nothing_wrong(pair: Pair, device: tuple[str, str]) -> None:
    report = pair.doctor(*device, *ADDRESS, "--transport", "dpdk")
    assert (report.status, report.said["ok"]) == (0, True), report.findings
    assert report.messages("trial", "ok")
    assert report.messages("address", "ok") == ["no other host has 10.9.0.2"]


def test_an_interface_that_is_not_there(pair: Pair) -> None:
    message, _ = pair.doctor("--device", "net_af_packet0,iface=eth7").problem("device")
    assert "no interface eth7" in message


def test_a_port_that_is_down_and_what_to_type(pair: Pair) -> None:
    pair.here.ip("link", "set", "nic", "down")
    message, typed = pair.doctor(*PACKET, *ADDRESS).problem("link")
    assert message == "nic is down"
    pair.type(*typed)
    assert not pair.doctor(*PACKET, *ADDRESS, "--no-trial").messages("link")


def test_a_cable_that_is_out(pair: Pair) -> None:
    pair.there.ip("link", "set", "far", "down")
    message, typed = pair.doctor(*PACKET, *ADDRESS).problem("link")
    assert "no link" in message
    assert typed == []


def test_an_address_on_the_interface_and_what_to_type(pair: Pair) -> None:
    pair.here.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    message, typed = pair.doctor(*PACKET, *ADDRESS).problem("address")
    assert "nic has the address 10.7.0.1/24" in message
    pair.type(*typed)
    assert not pair.doctor(*PACKET, *ADDRESS, "--no-trial").messages("address")


def test_an_address_that_the_kernel_has_elsewhere(pair: Pair) -> None:
    pair.here.ip("link", "add", "other", "type", "bridge")
    pair.here.ip("address", "add", "10.9.0.2/24", "dev", "other")
    message, _ = pair.doctor(*PACKET, *ADDRESS, "--no-trial").problem("address")
    assert "kernel has 10.9.0.2 already, on other" in message


@pytest.mark.parametrize("trial", [pytest.param(True, marks=[pytest.mark.dpdk, needs_dpdk]), False])
def test_an_address_that_another_host_answers_for(pair: Pair, trial: bool) -> None:
    """Asked through DPDK, and where that is not there through the kernel."""
    small = ",framesz=2048,blocksz=65536,framecnt=512"  # what an ordinary user may lock
    report = pair.doctor(PACKET[0], PACKET[1] + small, "--address", "10.9.0.3/24", *([] if trial else ["--no-trial"]))
    message, _ = report.problem("address")
    mac = json.loads(pair.there.ip("-j", "link", "show", "far"))[0]["address"]
    assert f"another host has 10.9.0.3: {mac} answers" in message
    assert bool(report.messages("trial", "ok")) == trial


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.9.0.2", "no mask"),
        ("10.9.0/24", "expected an IPv4 address"),
        ("10.9.0.0/24", "the network's own"),
        ("10.9.0.255/24", "broadcast"),
    ],
)
def test_an_address_that_is_none(pair: Pair, address: str, said: str) -> None:
    assert any(said in message for message in pair.doctor("--address", address, "--no-trial").messages("address"))


def test_a_gateway_that_cannot_be_reached(pair: Pair) -> None:
    message, _ = pair.doctor(*PACKET, *ADDRESS, "--gateway", "10.8.0.1", "--no-trial").problem("gateway")
    assert "not in the server's network 10.9.0.0/24" in message


def test_offloads_of_a_veth_and_what_to_type(pair: Pair) -> None:
    pair.here.run(program("ethtool", "ethtool"), "-K", "nic", "tx", "on", "gro", "on")
    message, typed = pair.doctor(*PACKET, *ADDRESS).problem("offloads")
    assert "checksums that nobody has computed" in message
    pair.type(*typed)
    assert not pair.doctor(*PACKET, *ADDRESS, "--no-trial").messages("offloads")


def test_both_ends_of_a_veth_are_looked_at_where_both_are_here(pair: Pair) -> None:
    pair.here.ip("link", "add", "one", "type", "veth", "peer", "name", "two")
    pair.here.disable_offloads("one")
    message, _ = pair.doctor("--device", "net_af_packet0,iface=one", *ADDRESS, "--no-trial").problem("offloads")
    assert message.startswith("two is a veth with offloads on")


def test_an_mtu_that_the_interface_does_not_carry_and_what_to_type(pair: Pair) -> None:
    message, typed = pair.doctor(*XDP, *ADDRESS, "--mtu", 3000).problem("mtu")
    assert "an mtu of 1500 bytes, the server is told 3000" in message
    pair.type(*typed)
    assert not pair.doctor(*XDP, *ADDRESS, "--mtu", 3000, "--no-trial").messages("mtu")


def test_an_mtu_that_f_stack_does_not_carry(pair: Pair) -> None:
    arguments = (*XDP, *ADDRESS, "--mtu", 1501, "--transport", "fstack", "--no-trial")
    assert any("F-Stack carries at most 1500" in message for message in pair.doctor(*arguments).messages("mtu"))


@pytest.mark.parametrize(("device", "most"), [(XDP, 3300), (PACKET, 1500)], ids=["af_xdp", "af_packet"])
def test_an_mtu_that_the_driver_does_not_carry(pair: Pair, device: tuple[str, ...], most: int) -> None:
    pair.here.ip("link", "set", "nic", "mtu", "9000")
    message, typed = pair.doctor(*device, *ADDRESS, "--mtu", 9000, "--no-trial").problem("mtu")
    assert f"at most {most}" in message
    assert f"dpdk-mtu = {most}, or less" in message
    pair.type(*typed)
    assert not pair.doctor(*device, *ADDRESS, "--no-trial").messages("mtu")


def test_an_mtu_that_frames_of_the_ring_do_not_hold(pair: Pair) -> None:
    device = "net_af_packet0,iface=nic,framesz=1024"
    message, _ = pair.doctor("--device", device, *ADDRESS, "--no-trial").problem("mtu")
    assert "framesz=1024" in message


def test_more_queues_than_af_xdp_reads_and_what_to_type(pair: Pair) -> None:
    pair.here.ip("link", "add", "name", "wide", "numrxqueues", "3", "type", "veth", "peer", "name", "end")
    pair.here.disable_offloads("wide")
    device = ("--device", "net_af_xdp0,iface=wide")
    message, typed = pair.doctor(*device, *ADDRESS, "--no-trial").problem("queues")
    assert "over 3 queues" in message
    pair.type(*typed)
    assert not pair.doctor(*device, *ADDRESS, "--no-trial").messages("queues")


@pytest.mark.dpdk
@needs_dpdk
def test_what_dpdk_says_of_a_device_that_it_cannot_use(pair: Pair) -> None:
    message, _ = pair.doctor("--device", "net_nothing0", *ADDRESS).problem("trial")
    assert "DPDK cannot use net_nothing0" in message
    assert "net_nothing0" in message.partition("DPDK says: ")[2]


@pytest.mark.dpdk
@needs_dpdk
@needs_root
@pytest.mark.skipif(not transport_is_built(), reason="needs the transport over DPDK (make lwip)")
def test_a_server_that_runs_is_not_disturbed_and_not_taken_for_another_host() -> None:
    from replay_server.bench.lab import Lab

    with Lab(device="af_xdp") as lab, lab.serve("dpdk") as server:
        device = ("--device", lab.dpdk_device, "--address", f"{lab.address}/24")
        report = doctor(*device, before=tuple(lab.server_command))
        assert any("XDP program is on eth0" in message for message in report.messages("trial", "fact"))
        assert report.messages("address", "ok") == [f"no other host has {lab.address}"]
        assert not report.messages("address")
        assert server.admin_url is not None
        ping = [sys.executable, "-c", f"import redis; assert redis.Redis(host='{lab.address}').ping()"]
        subprocess.run([*lab.client_command, *ping], check=True, timeout=60)


# ---- rights, for real -----------------------------------------------------------------------------------------------

WITHOUT = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@needs_root
@pytest.mark.parametrize(("device", "named"), [(PACKET, "CAP_NET_RAW"), (XDP, "CAP_BPF")])
def test_missing_capabilities(pair: Pair, device: tuple[str, str], named: str) -> None:
    message, typed = pair.doctor(*device, *ADDRESS, before=WITHOUT).problem("privileges")
    assert named in message
    assert "sudo " in typed[0]


@needs_root
def test_capabilities_that_the_executable_gives_count(pair: Pair, tmp_path: Path) -> None:
    executable = tmp_path / "replay-server-dpdk"
    shutil.copy(sys.executable, executable)
    bits = 1 << 12 | 1 << 13 | 1 << 14
    os.setxattr(executable, "security.capability", struct.pack("<5I", 0x02000001, bits, 0, 0, 0))
    given = {"REPLAY_SERVER_EXECUTABLE": str(executable)}
    report = pair.doctor(*PACKET, *ADDRESS, "--no-trial", before=WITHOUT, **given)
    assert not report.messages("privileges")
    assert report.messages("privileges", "ok")


def test_root_of_a_user_namespace_has_no_af_xdp() -> None:
    try:
        user = Pair(as_user=True)
    except NamespaceError as error:
        pytest.skip(str(error))
    try:
        message, _ = user.doctor(*XDP, *ADDRESS).problem("privileges")
        assert "net_af_packet works there" in message
    finally:
        user.close()


@needs_root
def test_less_memory_than_will_be_locked(pair: Pair) -> None:
    limited = ("prlimit", f"--memlock={8 << 20}:{8 << 20}")
    message, typed = pair.doctor(*PACKET, *ADDRESS, "--no-trial", before=(*limited, *WITHOUT)).problem("memlock")
    assert "at most 8192 kB" in message
    assert "limits.d" in typed[0]


# ---- what was built -------------------------------------------------------------------------------------------------


def test_a_transport_that_was_built_for_another_dpdk(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "eal.c").write_text("int eal(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int eal(void);\nint main(void) { return eal(); }\n")
    library, executable = tmp_path / "librte_eal.so.21", tmp_path / "replay-server-dpdk"
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, tmp_path / "eal.c"]
    subprocess.run([compiler, *shared], check=True, timeout=60)
    subprocess.run([compiler, "-o", executable, tmp_path / "main.c", library], check=True, timeout=60)
    report = doctor("--transport", "dpdk", environment={"REPLAY_SERVER_EXECUTABLE": str(executable)})
    assert report.status == 1
    messages = report.messages("version")
    assert "built against librte_eal.so.21 (DPDK 20.11), which is not here" in messages[0]


@pytest.fixture
def not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[str]]]:
    """The doctor in this process, of an installation without transports over DPDK: what it would have one type."""
    from replay_server import doctor as package

    monkeypatch.setattr("replay_server.server._folders", lambda: [tmp_path])

    def run(**subject: Any) -> dict[str, list[str]]:
        found = package.examine(package.Subject(**subject), trial=False)
        return {f.message: list(f.type) for f in found if f.level == "problem" and f.check in ("transport", "version")}

    return run


def test_a_transport_that_was_not_built(not_built: Callable[..., dict[str, list[str]]], monkeypatch) -> None:
    monkeypatch.setattr("replay_server.doctor.build._development_version", lambda: None)
    assert not_built() == {
        "transport dpdk is not built: DPDK's development files are not there": [
            "sudo apt-get install libdpdk-dev pkg-config",
            "make lwip",
        ]
    }


def test_a_dpdk_that_is_too_old(not_built: Callable[..., dict[str, list[str]]], monkeypatch) -> None:
    monkeypatch.setattr("replay_server.doctor.build._development_version", lambda: "21.11.2")
    (message,) = not_built(transport="dpdk")
    assert message == "transport dpdk is not built: expected DPDK 22.11 or later, this is 21.11.2"


def test_an_f_stack_that_is_not_there(not_built: Callable[..., dict[str, list[str]]], tmp_path: Path) -> None:
    (message,) = not_built(transport="fstack", environment={})
    assert "FF_PATH" in message
    ((message, typed),) = not_built(transport="fstack", environment={"FF_PATH": str(tmp_path)}).items()
    assert f"{tmp_path}/lib/libfstack.a is not there" in message
    assert typed == [f"make -C {tmp_path}/lib"]


@pytest.mark.parametrize(("stack", "release", "wrong"), [("1.24", "22.11.5", False), ("1.25", "22.11.5", True)])
def test_an_f_stack_for_another_dpdk(
    not_built: Callable[..., dict[str, list[str]]], tmp_path: Path, monkeypatch, stack: str, release: str, wrong: bool
) -> None:
    monkeypatch.setattr("replay_server.doctor.build._development_version", lambda: release)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libfstack.a").touch()
    (tmp_path / "VERSION").write_text(f"{stack}\n")
    said = not_built(transport="fstack", environment={"FF_PATH": str(tmp_path)})
    assert any("F-Stack 1.25 wants DPDK 23.11, here is 22.11.5" in message for message in said) == wrong


# ---- a PCI NIC, on a stand-in ---------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """A folder like /sys with one NIC, as the environment that points the doctor to it."""

    def make(
        driver: str | None = "vfio-pci",
        group: int | None = 7,
        interface: str | None = None,
        pages: int = 512,
        online: str = "0-3",
        isolated: str = "",
        beside: str | None = None,
        vfio: bool = True,
        without_iommu: bool = False,
    ) -> dict[str, str]:
        sysfs = tmp_path / "sys"

        def device(pci: str, bound_to: str | None) -> Path:
            folder = sysfs / "devices" / pci
            folder.mkdir(parents=True)
            for name, value in (("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10fb"), ("numa_node", "1")):
                (folder / name).write_text(f"{value}\n")
            (sysfs / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
            (sysfs / "bus/pci/devices" / pci).symlink_to(folder)
            if bound_to:
                (sysfs / "bus/pci/drivers" / bound_to).mkdir(parents=True, exist_ok=True)
                (folder / "driver").symlink_to(sysfs / "bus/pci/drivers" / bound_to)
            if group is not None:
                members = sysfs / "kernel/iommu_groups" / str(group) / "devices"
                members.mkdir(parents=True, exist_ok=True)
                (members / pci).symlink_to(folder)
                (folder / "iommu_group").symlink_to(members.parent)
            return folder

        nic = device(PCI, driver)
        if interface:
            (nic / "net" / interface).mkdir(parents=True)
        if beside:
            device("0000:41:00.1", beside)
        if vfio:
            (sysfs / "bus/pci/drivers/vfio-pci").mkdir(parents=True, exist_ok=True)
        if without_iommu:
            (sysfs / "module/vfio/parameters").mkdir(parents=True)
            (sysfs / "module/vfio/parameters/enable_unsafe_noiommu_mode").write_text("Y\n")
        for node, there in ((0, 64), (1, pages)):
            folder = sysfs / f"devices/system/node/node{node}/hugepages/hugepages-2048kB"
            folder.mkdir(parents=True)
            (folder / "nr_hugepages").write_text(f"{there}\n")
            (folder / "free_hugepages").write_text(f"{there}\n")
            (folder.parents[1] / "cpulist").write_text(f"{2 * node}-{2 * node + 1}\n")
        (sysfs / "devices/system/cpu").mkdir(parents=True)
        (sysfs / "devices/system/cpu/online").write_text(f"{online}\n")
        (sysfs / "devices/system/cpu/isolated").write_text(f"{isolated}\n")
        return {"SYSFS": str(sysfs)}

    return make


MakeSysfs = Callable[..., dict[str, str]]
NIC = ("--device", PCI, *ADDRESS, "--no-trial")


def test_a_stand_in_nic_in_order_has_no_problem_of_its_own(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, environment=stand_in())
    assert {finding["check"] for finding in report.findings if finding["level"] == "problem"} <= {
        "transport",
        "memlock",
    }
    for check in ("driver", "iommu", "hugepages"):
        assert report.messages(check, "ok"), check


@pytest.mark.parametrize("name", [PCI, PCI.removeprefix("0000:"), "eth9"])
def test_a_stand_in_nic_that_the_kernel_has(stand_in: MakeSysfs, name: str) -> None:
    report = doctor("--device", name, *ADDRESS, "--no-trial", environment=stand_in("ixgbe", interface="eth9"))
    message, typed = report.problem("driver")
    assert message == f"{PCI} is still bound to the kernel (driver ixgbe, interface eth9): expected vfio-pci"
    assert typed == [f"sudo ./setup_dpdk.sh --device {name} --address 10.9.0.2/24"]


@pytest.mark.parametrize(("driver", "said"), [(None, "has no driver"), ("pci-stub", "wrong driver, pci-stub")])
def test_a_stand_in_nic_with_a_wrong_driver(stand_in: MakeSysfs, driver: str | None, said: str) -> None:
    message, typed = doctor(*NIC, environment=stand_in(driver)).problem("driver")
    assert said in message
    assert "setup_dpdk.sh" in typed[0]


def test_a_stand_in_nic_of_a_driver_that_works_but_is_not_the_one(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, environment=stand_in("uio_pci_generic"))
    assert not report.messages("driver")
    assert "vfio-pci is the driver to have" in report.messages("driver", "advice")[0]


def test_a_stand_in_nic_of_a_driver_that_is_shared_is_in_order(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, environment=stand_in("mlx5_core", group=None, vfio=False, interface="eth9"))
    assert not report.messages("driver")
    assert not report.messages("iommu")


def test_a_stand_in_without_vfio(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, environment=stand_in("ixgbe", interface="eth9", vfio=False))
    assert "the kernel's driver vfio-pci is not loaded" in report.messages("driver")


@pytest.mark.parametrize(("mode", "typed_last"), [("N\n", "--no-iommu"), (None, "--via af_packet")])
def test_a_stand_in_without_an_iommu_and_what_its_kernel_can_do(
    stand_in: MakeSysfs, mode: str | None, typed_last: str
) -> None:
    environment = stand_in("ixgbe", group=None, interface="eth9")
    parameters = Path(environment["SYSFS"]) / "module/vfio/parameters"
    parameters.mkdir(parents=True)
    if mode is not None:
        (parameters / "enable_unsafe_noiommu_mode").write_text(mode)
    message, typed = doctor(*NIC, environment=environment).problem("iommu")
    assert "intel_iommu=on" in message
    assert typed[0].endswith(typed_last)


def test_a_stand_in_that_is_told_to_do_without_an_iommu(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, environment=stand_in(group=None, without_iommu=True))
    assert not report.messages("iommu")
    assert "may write to all memory" in report.messages("iommu", "advice")[0]


def test_a_stand_in_nic_that_shares_its_group(stand_in: MakeSysfs) -> None:
    message, typed = doctor(*NIC, environment=stand_in(beside="ixgbe")).problem("iommu")
    assert "shares IOMMU group 7 with 0000:41:00.1, which belongs to ixgbe" in message
    assert typed == ["sudo dpdk-devbind.py -b vfio-pci 0000:41:00.1"]


def test_a_stand_in_nic_that_is_not_there(stand_in: MakeSysfs) -> None:
    message, _ = doctor("--device", "0000:05:00.0", *ADDRESS, environment=stand_in()).problem("device")
    assert message == f"there is no PCI network device 0000:05:00.0; there are: {PCI}"


@pytest.mark.parametrize(("pages", "said"), [(0, "none are reserved"), (100, "200 of 200 MB are free")])
def test_too_few_hugepages_on_the_node_of_a_stand_in_nic(stand_in: MakeSysfs, pages: int, said: str) -> None:
    message, typed = doctor(*NIC, environment=stand_in(pages=pages)).problem("hugepages")
    assert f"{said} on memory node 1, 1024 MB are wanted" in message
    assert typed == [
        "echo 512 | sudo tee /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
    ]


@needs_root
def test_pages_that_the_server_on_a_stand_in_nic_uses_are_not_missing(stand_in: MakeSysfs) -> None:
    group = 1_000_000_000 + os.getpid()
    folder = Path("/dev/vfio")
    ours = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with open(folder / str(group), "w"):
            report = doctor("--device", PCI, *ADDRESS, environment=stand_in(group=group, pages=100))
    finally:
        (folder / str(group)).unlink()
        if ours:
            folder.rmdir()
    assert not report.messages("hugepages")
    in_use = f"process {os.getpid()} uses /dev/vfio/{group}"
    assert in_use in report.messages("hugepages", "fact")[0]


def test_a_virtual_device_needs_no_hugepages(stand_in: MakeSysfs) -> None:
    report = doctor("--device", "net_null0", "--no-trial", environment=stand_in(pages=0))
    assert not report.messages("hugepages")


def test_too_few_processors_on_a_stand_in(stand_in: MakeSysfs) -> None:
    message, _ = doctor(*NIC, environment=stand_in(online="0")).problem("processors")
    assert "two are needed" in message


def test_a_processor_that_a_stand_in_does_not_have(stand_in: MakeSysfs) -> None:
    message, _ = doctor(*NIC, "--lcore", 9, environment=stand_in()).problem("processors")
    assert "expected one of 0-3" in message


def test_a_processor_that_is_not_isolated_is_advice(stand_in: MakeSysfs) -> None:
    (message,) = doctor(*NIC, "--lcore", 3, environment=stand_in(isolated="2")).messages("processors", "advice")
    assert "isolcpus=managed_irq,domain,3 nohz_full=3 rcu_nocbs=3 irqaffinity=0,1,2" in message


def test_a_processor_far_from_a_stand_in_nic_is_advice(stand_in: MakeSysfs) -> None:
    report = doctor(*NIC, "--lcore", 0, environment=stand_in(isolated="0"))
    assert "not on the NIC's memory node 1" in report.messages("processors", "advice")[0]


def test_without_a_device_a_stand_in_nic_is_named(stand_in: MakeSysfs) -> None:
    environment = stand_in("ixgbe", interface="eth9")
    message, typed = doctor(environment=environment).problem("device")
    assert f"{PCI} (eth9)" in message
    assert "setup_dpdk.sh" in typed[0]


def test_without_a_device_a_stand_in_nic_that_is_ready_is_named(stand_in: MakeSysfs) -> None:
    report = doctor(environment=stand_in())
    assert not report.messages("device")
    assert PCI in report.messages("device", "fact")[0]


# ---- the command ----------------------------------------------------------------------------------------------------


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replay_server", "doctor", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_findings_are_told_in_words_with_what_to_type(stand_in: MakeSysfs) -> None:
    result = command(*NIC, **stand_in("ixgbe", interface="eth9"))
    assert result.returncode == 1
    assert f"problem  driver      {PCI} is still bound to the kernel" in result.stdout
    assert "type: sudo ./setup_dpdk.sh" in result.stdout
    assert "\033" not in result.stdout
    problems = sum(line.startswith("problem ") for line in result.stdout.splitlines())
    assert result.stdout.splitlines()[-1] == ("1 problem." if problems == 1 else f"{problems} problems.")


def test_the_file_of_serve_says_what_to_look_at(stand_in: MakeSysfs, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        f'transport = "fstack"\n[config]\ndpdk-device = "{PCI}"\ndpdk-address = "10.9.0.2/24"\n'
        'dpdk-memory = "2gb"\ndpdk-lcore = 9\n'
    )
    report = doctor("--config", file, "--no-trial", environment=stand_in())
    said = report.said
    assert (said["device"], said["address"], said["transport"]) == (PCI, "10.9.0.2/24", "fstack")
    assert "2176 MB are wanted" in report.problem("hugepages")[0]
    assert "lcore 9" in report.problem("processors")[0]


def test_options_win_over_the_file_of_serve(stand_in: MakeSysfs, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f'[config]\ndpdk-device = "{PCI}"\ndpdk-lcore = 9\n')
    report = doctor("--config", file, "--lcore", 3, "--address", "10.9.0.7/24", "--no-trial", environment=stand_in())
    assert not report.messages("processors")
    assert report.said["address"] == "10.9.0.7/24"


@pytest.mark.parametrize("arguments", [("--what",), ("--config", "/nonexistent"), ("--transport", "kernel")])
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = command(*arguments)
    assert result.returncode == 2
    assert result.stderr


@pytest.mark.parametrize(
    ("line", "said"), [("dpdk-device = 5", "dpdk-device must be str"), ('dpdk-mtu = "big"', "must be a whole number")]
)
def test_a_wrong_value_in_the_file_is_a_usage_error(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f"[config]\n{line}\n")
    result = command("--config", file)
    assert result.returncode == 2
    assert said in result.stderr
    assert str(file) in result.stderr


def test_the_set_up_and_the_doctor_agree_on_the_tested_lwip(repository: Path) -> None:
    from replay_server.doctor.build import LWIP_TESTED

    assert f"\ntested={LWIP_TESTED}\n" in (repository / "native/net/lwip/fetch").read_text()
