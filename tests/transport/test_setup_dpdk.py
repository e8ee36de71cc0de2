"""setup_dpdk.sh: on real interfaces in a network namespace, with real hugepages; what needs a PCI NIC, on a stand-in.

The stand-in is a folder like /sys with one NIC, and a thread that moves it between drivers as the kernel would. It
shows that the right things are written in the right order, not that a NIC works.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replay_server.bench.namespace import Namespace
from replay_server.config import load_config, read_password
from replay_server.errors import ServerError
from replay_server.server import find_executable

pytestmark = pytest.mark.root

IP = shutil.which("ip") or "/usr/sbin/ip"
ETHTOOL = shutil.which("ethtool") or "/usr/sbin/ethtool"
PCI = "0000:41:00.0"
MAP_HUGETLB = 0x40000  # of Linux; the page's size stands in the flags above it
ADDRESS = ("--address", "10.9.0.2/24")


class Host:
    """A network namespace with an interface `nic`, its cable's other end in `far`, and folders of its own for what is
    written."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository, self.folder = repository, folder
        self.name = f"setup{os.getpid()}"
        (folder / "etc").mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"},
            "ETC": str(folder / "etc"),
            "STATE": str(folder / "state"),
        }
        subprocess.run([IP, "netns", "add", self.name], check=True, timeout=60)
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "nic", "type", "veth", "peer", "name", "far")
        self.ip("link", "set", "far", "up")

    def ip(self, *arguments: str) -> str:
        command = [IP, "-n", self.name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [IP, "netns", "exec", self.name, *map(str, command)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    def set_up(self, *arguments: object, device: str | None = "nic") -> subprocess.CompletedProcess[str]:
        given = ["--device", device] if device else []
        return self.run(self.repository / "setup_dpdk.sh", "--no-build", *given, *arguments)

    def apply(self, *arguments: object, device: str = "nic") -> str:
        result = self.set_up("--yes", *ADDRESS, *arguments, device=device)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def undo(self) -> str:
        result = self.set_up("--undo", device=None)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def state(self) -> tuple[object, ...]:
        """All that the script may change on a veth."""
        link = json.loads(self.ip("-j", "link", "show", "nic"))[0]
        shown = json.loads(self.ip("-j", "address", "show", "dev", "nic", "scope", "global"))
        addresses = [entry["local"] for interface in shown for entry in interface.get("addr_info", ()) if entry]
        written = [
            (str(path.relative_to(self.folder)), path.read_text() if path.is_file() else "")
            for folder in ("etc", "state")
            for path in sorted((self.folder / folder).rglob("*"))
        ]
        return "UP" in link["flags"], link["mtu"], addresses, self.run(ETHTOOL, "-k", "nic").stdout, written

    def close(self) -> None:
        subprocess.run([IP, "netns", "delete", self.name], check=False, timeout=60)


@pytest.fixture
def host(repository: Path, tmp_path: Path) -> Iterator[Host]:
    made = Host(repository, tmp_path)
    yield made
    made.close()


# ---- an interface, for real -----------------------------------------------------------------------------------------


def test_what_is_set_up_is_undone(host: Host) -> None:
    before = host.state()
    host.apply()
    assert host.state() != before
    assert host.set_up("--check", *ADDRESS).returncode == 0
    host.undo()
    assert host.state() == before


def test_the_interface_is_made_ready_for_frames_that_nobody_finishes(host: Host) -> None:
    host.apply()
    features = host.run(ETHTOOL, "-k", "nic").stdout
    for feature in ("tx-checksumming", "tcp-segmentation-offload", "generic-receive-offload"):
        assert f"{feature}: off" in features
    assert "UP" in host.ip("link", "show", "nic")


def test_one_queue_is_left_for_af_xdp(host: Host) -> None:
    host.ip("link", "delete", "nic")
    host.ip("link", "add", "name", "nic", "numrxqueues", "3", "numtxqueues", "3", "type", "veth", "peer", "name", "far")
    before = host.run(ETHTOOL, "-l", "nic").stdout
    host.apply()
    assert re.findall(r"^RX:\s*(\d+)", host.run(ETHTOOL, "-l", "nic").stdout, re.MULTILINE) == ["3", "1"]  # of, now
    host.undo()
    assert host.run(ETHTOOL, "-l", "nic").stdout == before


def test_a_second_set_up_has_nothing_to_do(host: Host) -> None:
    host.apply()
    before = host.state()
    again = host.apply()
    assert "todo" not in again
    assert host.state() == before


def test_check_says_what_is_to_do_and_changes_nothing(host: Host) -> None:
    before = host.state()
    result = host.set_up("--check", *ADDRESS)
    assert result.returncode == 1
    assert "todo  nic: switch off tx" in result.stdout
    assert "todo  nic is down" in result.stdout
    assert host.state() == before


def test_a_dry_run_prints_the_commands_and_files_of_the_run_and_changes_nothing(host: Host) -> None:
    before = host.state()
    planned = host.set_up("--dry-run", *ADDRESS)
    assert planned.returncode == 0, planned.stderr
    assert host.state() == before
    ran = re.findall(r"^      ((?:ip|ethtool|echo|mkdir|mount) .*)$", host.apply(), re.MULTILINE)
    said = re.findall(r"would run: (.*)$", planned.stdout, re.MULTILINE)
    assert ran
    assert list(dict.fromkeys(said)) == list(dict.fromkeys(ran))  # a folder for two files is announced for each
    assert f"would write {host.folder}/etc/replay-server/replay-server.toml" in planned.stdout
    assert 'dpdk-address = "10.9.0.2/24"' in planned.stdout


def test_a_dry_run_of_undo_changes_nothing(host: Host) -> None:
    host.apply()
    before = host.state()
    result = host.set_up("--undo", "--dry-run", device=None)
    assert result.returncode == 0
    assert "would run: ethtool -K nic tx on" in result.stdout
    assert host.state() == before


def test_a_set_up_that_was_broken_off_is_undone(host: Host) -> None:
    host.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    before = host.state()
    (host.folder / "bin").mkdir()
    failing = host.folder / "bin" / "ethtool"  # the second change fails
    failing.write_text(f'#!/bin/sh\ncase $1 in -K) exit 1 ;; esac\nexec {ETHTOOL} "$@"\n')
    failing.chmod(0o755)
    path = host.environment["PATH"]
    host.environment["PATH"] = f"{host.folder}/bin:{path}"
    result = host.set_up("--yes", "--take-address", *ADDRESS)
    assert result.returncode == 1
    assert "this failed: ethtool -K" in result.stderr
    shutil.rmtree(host.folder / "bin")
    host.environment["PATH"] = path
    assert "10.7.0.1" not in host.ip("address", "show", "nic")
    host.undo()
    assert host.state() == before


def test_a_file_that_was_changed_survives_undo(host: Host) -> None:
    host.apply()
    file = host.folder / "etc/replay-server/replay-server.toml"
    file.write_text(file.read_text() + "\n[[tables]]\n")
    assert "was changed since: it stays" in host.undo()
    assert "[[tables]]" in file.read_text()


def test_a_file_of_somebody_else_is_not_overwritten(host: Host) -> None:
    file = host.folder / "etc/replay-server/replay-server.toml"
    file.parent.mkdir(parents=True)
    file.write_text("port = 1\n")
    result = host.set_up("--yes", *ADDRESS)
    assert result.returncode == 1
    assert "not as this script wrote it" in result.stderr
    assert file.read_text() == "port = 1\n"
    assert "UP" not in host.ip("link", "show", "nic").split(">")[0]  # refused before the first change


def test_what_the_script_wrote_is_written_anew_with_other_options(host: Host) -> None:
    host.apply()
    host.apply("--port", 7000)
    assert load_config(host.folder / "etc/replay-server/replay-server.toml").port == 7000
    host.undo()
    assert list((host.folder / "etc").iterdir()) == []


def test_nothing_to_undo_is_no_failure(host: Host) -> None:
    assert "nothing to undo" in host.undo()


# ---- what is refused, for real --------------------------------------------------------------------------------------


def refused(host: Host, *arguments: object, device: str = "nic") -> str:
    """What it says; it must refuse the run, the dry run and the check, and change nothing."""
    before = host.state()
    for mode in ("--yes", "--dry-run"):
        result = host.set_up(mode, *ADDRESS, *arguments, device=device)
        assert result.returncode == 1, result.stdout
    check = host.set_up("--check", *ADDRESS, *arguments, device=device)
    assert check.returncode == 1
    assert host.state() == before
    message = result.stderr.removeprefix("setup_dpdk.sh: ").strip()
    assert f"fail  {message}" in check.stdout
    return message


def give_default_route(host: Host, interface: str) -> None:
    host.ip("link", "set", "nic", "up")
    host.ip("link", "set", interface, "up")
    host.ip("address", "add", "10.8.0.1/24", "dev", interface)
    host.ip("route", "add", "default", "via", "10.8.0.254", "dev", interface)


def test_the_interface_of_the_default_route_is_refused(host: Host) -> None:
    give_default_route(host, "nic")
    assert "nic carries the default route" in refused(host, "--take-address", "--take-login")


def test_an_interface_under_the_bridge_of_the_default_route_is_refused(host: Host) -> None:
    host.ip("link", "add", "bridge", "type", "bridge")
    host.ip("link", "set", "nic", "master", "bridge")
    give_default_route(host, "bridge")
    assert "bridge carries the default route" in refused(host, "--take-address")


def test_the_default_route_of_ipv6_counts_as_well(host: Host) -> None:
    host.ip("link", "set", "nic", "up")
    host.ip("address", "add", "fd00:7::1/64", "dev", "nic", "nodad")
    host.ip("-6", "route", "add", "default", "via", "fd00:7::2", "dev", "nic")
    assert "nic carries the default route" in refused(host, "--take-address")


def test_an_interface_with_an_address_is_refused(host: Host) -> None:
    host.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    assert "nic has an address (10.7.0.1/24)" in refused(host)


@pytest.mark.parametrize("here", ["10.7.0.1", "10.7.0.99"])
def test_the_interface_of_a_login_is_refused(host: Host, here: str) -> None:
    """By the address that was logged in to, or by the way back to the client."""
    host.ip("link", "set", "nic", "up")
    host.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    host.environment["SSH_CONNECTION"] = f"10.7.0.50 50000 {here} 22"
    assert "logged in through nic" in refused(host, "--take-address")


def test_a_login_is_found_in_the_processes_above_where_sudo_took_the_variable_away(host: Host) -> None:
    host.ip("link", "set", "nic", "up")
    host.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    host.environment["SSH_CONNECTION"] = "10.7.0.50 50000 10.7.0.1 22"
    script = host.repository / "setup_dpdk.sh"
    inner = f"env -u SSH_CONNECTION {script} --no-build --device nic --take-address --dry-run {' '.join(ADDRESS)}"
    result = host.run("bash", "-c", f"{inner}; exit $?")
    assert result.returncode == 1
    assert "logged in through nic" in result.stderr


def test_an_address_that_the_kernel_has_elsewhere_is_refused(host: Host) -> None:
    host.ip("address", "add", "10.9.0.2/24", "dev", "far")
    assert "kernel has 10.9.0.2 already, on far" in refused(host)


def test_told_to_it_takes_the_interface_and_gives_its_address_back(host: Host) -> None:
    host.ip("link", "set", "nic", "up")
    host.ip("address", "add", "10.7.0.1/24", "dev", "nic")
    before = host.state()
    host.apply("--take-address")
    assert "10.7.0.1" not in host.ip("address", "show", "nic")
    host.undo()
    assert host.state() == before


def test_an_mtu_that_f_stack_does_not_carry_is_refused(host: Host) -> None:
    host.ip("link", "set", "nic", "mtu", "3000")
    assert "F-Stack carries an mtu of at most 1500 bytes" in refused(host, "--transport", "fstack")
    assert "at least 576" in refused(host, "--mtu", 100)


@pytest.mark.parametrize(("via", "most"), [("af_xdp", 3300), ("af_packet", 1500)])
def test_an_mtu_that_the_driver_does_not_carry_is_refused(host: Host, via: str, most: int) -> None:
    """Servers on such a device did not start."""
    host.ip("link", "set", "nic", "mtu", "9000")
    assert f"{via} carries an mtu of at most {most} bytes" in refused(host, "--via", via)
    host.apply("--via", via, "--mtu", most)
    config = load_config(host.folder / "etc/replay-server/replay-server.toml").config
    assert config["dpdk-mtu"] == most
    assert config["dpdk-device"].startswith(f"net_{via}0,iface=nic")


def test_the_loopback_is_refused(host: Host) -> None:
    result = host.set_up("--dry-run", *ADDRESS, "--via", "af_packet", device="lo")
    assert result.returncode == 1
    assert "lo is the loopback, which nobody reaches" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--address", "10.9.0.2"), "10.0.0.2/24"),
        (("--address", "10.9.0.256/24"), "10.0.0.2/24"),
        (("--address", "10.9.0.2/33"), "10.0.0.2/24"),
        ((*ADDRESS, "--gateway", "here"), "--gateway"),
        ((*ADDRESS, "--memory", "much"), "512mb"),
        ((*ADDRESS, "--memory", "1mb"), "256mb or more"),
        ((*ADDRESS, "--via", "pigeon"), "--via"),
        ((*ADDRESS, "--page-size", "4k"), "--page-size"),
        ((*ADDRESS, "--name", "../x"), "--name"),
        ((*ADDRESS, "--port"), "needs a value"),
        ((*ADDRESS, "--what"), "--what"),
        ((), "are needed"),
    ],
)
def test_wrong_options_are_usage_errors(host: Host, arguments: tuple[str, ...], said: str) -> None:
    result = host.set_up("--dry-run", *arguments)
    assert result.returncode == 2
    assert said in result.stderr


def test_an_ordinary_user_is_told_to_be_root(host: Host) -> None:
    host.folder.chmod(0o755)
    script = host.repository / "setup_dpdk.sh"
    for option, status in (("--yes", 1), ("--dry-run", 0)):
        result = host.run(
            "setpriv", "--reuid=nobody", "--clear-groups", script, "--no-build", "--device", "nic", *ADDRESS, option
        )
        assert result.returncode == status, result.stderr
    assert "sudo" not in result.stderr


def test_nobody_to_ask_is_no_yes(host: Host) -> None:
    before = host.state()
    result = host.set_up(*ADDRESS)
    assert result.returncode == 1
    assert "--yes" in result.stderr
    assert host.state() == before


# ---- what is written ------------------------------------------------------------------------------------------------


def test_the_configuration_is_what_serve_reads(host: Host) -> None:
    host.apply("--gateway", "10.9.0.1", "--port", 7000, "--lcore", 1, "--memory", "512mb", "--name", "first")
    config = load_config(host.folder / "etc/replay-server/first.toml")
    assert (config.transport, config.port, config.allow_remote) == ("dpdk", 7000, False)
    assert config.config == {
        "dpdk-device": "net_af_xdp0,iface=nic,start_queue=0,queue_count=1",
        "dpdk-address": "10.9.0.2/24",
        "dpdk-gateway": "10.9.0.1",
        "dpdk-mtu": 1500,
        "dpdk-lcore": 1,
        "dpdk-memory": (512 - 128) << 20,
        "admin-port": 17000,
    }
    assert config.password_file is not None
    assert len(read_password(config.password_file)) == 32
    assert Path(config.password_file).stat().st_mode & 0o077 == 0


@pytest.mark.dpdk
@pytest.mark.parametrize("transport", ["dpdk", "fstack"])
def test_what_was_set_up_serves(host: Host, transport: str) -> None:
    """From the bare interface to an answer with a password, and the doctor has nothing to say."""
    try:
        find_executable(transport)
    except ServerError as error:
        pytest.skip(str(error))
    file = host.folder / "etc/replay-server/replay-server.toml"
    command = [sys.executable, "-m", "replay_server"]
    with Namespace("client") as client:
        host.ip("link", "set", "far", "netns", str(client.pid))
        client.set_up("far", "10.9.0.3/24", offloads=False)
        host.apply("--transport", transport, "--lcore", 0)
        doctor = host.run(*command, "doctor", "--config", file)
        assert doctor.returncode == 0, doctor.stdout
        server = subprocess.Popen(
            [IP, "netns", "exec", host.name, *command, "serve", "--config", file, "--dir", host.folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            assert ready.startswith("ready url=redis://10.9.0.2:6379"), server.stderr.read()
            assert "admin=redis://127.0.0.1:16379" in ready
            password = read_password(host.folder / "etc/replay-server/password")
            ping = f"import redis; print(redis.Redis('10.9.0.2', password='{password}', socket_timeout=5).ping())"
            assert client.run(sys.executable, "-c", ping) == "True\n"
        finally:
            server.terminate()
            _, errors = server.communicate(timeout=60)
        assert server.returncode == 0, errors


def test_a_password_that_is_there_stays(host: Host) -> None:
    file = host.folder / "etc/replay-server/password"
    file.parent.mkdir(parents=True)
    file.write_text("mine\n")
    host.apply()
    host.undo()
    assert file.read_text() == "mine\n"


def test_f_stack_has_a_file_for_this_host(host: Host) -> None:
    host.apply("--transport", "fstack", "--gateway", "10.9.0.1", "--lcore", 5, "--address", "10.9.1.2/20")
    folder = host.folder / "etc/replay-server"
    assert load_config(folder / "replay-server.toml").config["fstack-config"] == f"{folder}/replay-server.fstack.ini"
    text = (folder / "replay-server.fstack.ini").read_text()
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert (lines["addr"], lines["netmask"]) == ("10.9.1.2", "255.255.240.0")
    assert (lines["broadcast"], lines["gateway"]) == ("10.9.15.255", "10.9.0.1")
    assert (lines["lcore_mask"], lines["pkt_tx_delay"]) == ("20", "0")
    assert int(lines["net.inet.tcp.recvbuf_max"]) >= 256 << 10
    assert int(lines["net.inet.tcp.sendbuf_max"]) >= 256 << 10


# ---- hugepages, for real; the NIC is a stand-in ---------------------------------------------------------------------


class StandInKernel(threading.Thread):
    """A folder like /sys with one NIC (0000:41:00.0, interface eth9, driver ixgbe), and what the kernel does in it."""

    def __init__(self, folder: Path, driver: str = "ixgbe", iommu: bool = True) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.default = driver
        self.refuses = ""
        self.device = folder / "devices" / "pci0000:40" / PCI
        self.device.mkdir(parents=True)
        (self.device / "class").write_text("0x020000\n")
        (self.device / "numa_node").write_text("-1\n")
        (self.device / "driver_override").write_text("(null)\n")
        for name in (driver, "vfio-pci"):
            (folder / "bus/pci/drivers" / name).mkdir(parents=True)
            (folder / "bus/pci/drivers" / name / "unbind").write_text("")
        (folder / "bus/pci/drivers_probe").write_text("")
        (folder / "bus/pci/devices").mkdir()
        (folder / "bus/pci/devices" / PCI).symlink_to(self.device)
        (folder / "class/net").mkdir(parents=True)
        (folder / "kernel/mm").mkdir(parents=True)
        (folder / "kernel/mm/hugepages").symlink_to("/sys/kernel/mm/hugepages")
        (folder / "devices/system").symlink_to("/sys/devices/system")
        if iommu:
            group = folder / "kernel/iommu_groups/7"
            (group / "devices").mkdir(parents=True)
            (group / "devices" / PCI).symlink_to(self.device)
            (self.device / "iommu_group").symlink_to(group)
        self.bind(driver)
        self.ended = threading.Event()
        self.start()

    def add_to_group(self, pci: str, kind: str, driver: str) -> None:
        other = self.folder / "devices/pci0000:40" / pci
        other.mkdir()
        (other / "class").write_text(f"{kind}\n")
        (self.folder / "bus/pci/drivers" / driver).mkdir(exist_ok=True)
        (other / "driver").symlink_to(self.folder / "bus/pci/drivers" / driver)
        (self.folder / "bus/pci/devices" / pci).symlink_to(other)
        (self.folder / "kernel/iommu_groups/7/devices" / pci).symlink_to(other)

    def bind(self, driver: str) -> None:
        (self.device / "driver").symlink_to(self.folder / "bus/pci/drivers" / driver)
        if driver == self.default:
            (self.device / "net/eth9").mkdir(parents=True)
            (self.device / "net/eth9/mtu").write_text("9000\n")
            (self.device / "net/eth9/device").symlink_to(self.device)
            (self.folder / "class/net/eth9").symlink_to(self.device / "net/eth9")

    def unbind(self) -> None:
        (self.device / "driver").unlink(missing_ok=True)
        (self.folder / "class/net/eth9").unlink(missing_ok=True)
        shutil.rmtree(self.device / "net", ignore_errors=True)

    def driver(self) -> str:
        return (self.device / "driver").resolve().name

    def run(self) -> None:
        probe = self.folder / "bus/pci/drivers_probe"
        while not self.ended.wait(0.005):
            for order in self.folder.glob("bus/pci/drivers/*/unbind"):
                if order.read_text().strip() == PCI:
                    order.write_text("")
                    self.unbind()
            if probe.read_text().strip() == PCI and not (self.device / "driver").exists():
                probe.write_text("")
                override = (self.device / "driver_override").read_text().strip()
                driver = override if override not in ("", "(null)") else self.default
                if driver != self.refuses:
                    self.bind(driver)

    def close(self) -> None:
        self.ended.set()
        self.join(60)


MakeKernel = Callable[..., StandInKernel]


@pytest.fixture
def stand_in(host: Host, tmp_path: Path) -> Iterator[MakeKernel]:
    made: list[StandInKernel] = []

    def make(**options: object) -> StandInKernel:
        made.append(StandInKernel(tmp_path / "sys", **options))  # type: ignore[arg-type]
        host.environment["SYSFS"] = str(tmp_path / "sys")
        return made[0]

    yield make
    for kernel in made:
        kernel.close()


def more_can_be_had(folder: Path, before: int, count: int = 1) -> bool:
    """Whether the kernel finds more pages now: after days of use a host may have no GiB in one piece left."""
    pages = folder / "nr_hugepages"
    pages.write_text(str(before + count))
    found = int(pages.read_text())
    pages.write_text(str(before))
    return found == before + count


@pytest.mark.parametrize(("size", "kilobytes"), [("2M", 2048), ("1G", 1048576)])
def test_hugepages_are_reserved_and_given_back_for_real(
    host: Host, stand_in: MakeKernel, size: str, kilobytes: int
) -> None:
    stand_in(driver="mlx5_core")  # stays with its driver, so that only pages are left to do
    folder = Path(f"/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB")
    if not folder.exists():
        pytest.skip(f"needs a kernel with pages of {size}")
    size_flag = {2048: 21, 1048576: 30}[kilobytes] << 26
    before = int((folder / "nr_hugepages").read_text())
    wanted = int((folder / "free_hugepages").read_text()) + 1
    if not more_can_be_had(folder, before):
        pytest.skip(f"needs memory for another page of {size} in one piece, which this host has not left")
    try:
        host.apply("--hugepages", wanted, "--page-size", size, device="eth9")
        if (after := int((folder / "nr_hugepages").read_text())) != before + 1:
            pytest.fail(f"expected {before + 1} pages, got {after}")
        # Again, while a server uses them: that one has what it needs.
        with mmap.mmap(-1, kilobytes << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB | size_flag):
            again = host.apply("--hugepages", wanted, "--page-size", size, device="eth9")
        assert "todo  hugepages" not in again
        assert int((folder / "nr_hugepages").read_text()) == before + 1
        kept = (host.folder / "etc/tmpfiles.d/replay-server-hugepages.conf").read_text()
        assert kept.splitlines()[-1].endswith(f"/hugepages-{kilobytes}kB/nr_hugepages - - - - {before + 1}")
    finally:
        host.undo()
    assert int((folder / "nr_hugepages").read_text()) == before
    assert list((host.folder / "etc").iterdir()) == []


def test_a_second_server_has_hugepages_of_its_own(host: Host, stand_in: MakeKernel) -> None:
    """Also while the first one is stopped, and its pages are free."""
    stand_in(driver="mlx5_core")
    folder = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
    before = int((folder / "nr_hugepages").read_text())
    if not more_can_be_had(folder, before, 2):
        pytest.skip("needs memory for two more pages of 2M in one piece, which this host has not left")
    wanted = int((folder / "free_hugepages").read_text()) + 1
    try:
        host.apply("--hugepages", wanted, device="eth9")
        assert int((folder / "nr_hugepages").read_text()) == before + 1
        second = ("--hugepages", 1, "--name", "second", "--port", 6380)
        host.apply(*second, device="eth9")
        assert int((folder / "nr_hugepages").read_text()) == before + 2
        assert "todo  hugepages" not in host.apply(*second, device="eth9")
        assert "todo  hugepages" not in host.apply("--hugepages", wanted, device="eth9")
    finally:
        host.undo()
    assert int((folder / "nr_hugepages").read_text()) == before


def test_more_hugepages_than_there_is_memory_are_refused_and_none_is_kept(host: Host, stand_in: MakeKernel) -> None:
    stand_in(driver="mlx5_core")
    pages = Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")
    if not pages.exists():
        pytest.skip("needs a kernel with pages of 1G")
    before = pages.read_text()
    result = host.set_up("--yes", *ADDRESS, "--hugepages", 4000, "--page-size", "1G", device="eth9")
    assert result.returncode == 1
    assert "hugepagesz=1G hugepages=" in result.stderr
    assert pages.read_text() == before
    host.undo()
    assert pages.read_text() == before


# ---- a PCI NIC, on the stand-in -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["eth9", PCI, PCI.removeprefix("0000:")])
def test_a_stand_in_nic_goes_to_vfio_and_back(host: Host, stand_in: MakeKernel, device: str) -> None:
    kernel = stand_in()
    (host.folder / "etc/dpdk").mkdir()
    (host.folder / "etc/dpdk/interfaces").write_text("# bus id driver\n")
    host.apply("--hugepages", 0, device=device)
    assert kernel.driver() == "vfio-pci"
    config = load_config(host.folder / "etc/replay-server/replay-server.toml").config
    assert (config["dpdk-device"], config["dpdk-mtu"]) == (PCI, 9000)
    assert f"pci {PCI} vfio-pci" in (host.folder / "etc/dpdk/interfaces").read_text()
    assert "todo" not in host.apply("--hugepages", 0, "--mtu", 9000, device=PCI)
    host.undo()
    assert kernel.driver() == "ixgbe"
    assert (kernel.device / "driver_override").read_text().strip() == ""
    assert (host.folder / "etc/dpdk/interfaces").read_text() == "# bus id driver\n"


def test_a_stand_in_nic_that_a_process_uses_is_not_taken_from_it(host: Host, stand_in: MakeKernel) -> None:
    """Unbinding would wait for the process, inside the kernel."""
    kernel = stand_in()
    group = kernel.folder / "kernel/iommu_groups" / f"test{os.getpid()}"
    (kernel.folder / "kernel/iommu_groups/7").rename(group)
    (kernel.device / "iommu_group").unlink()
    (kernel.device / "iommu_group").symlink_to(group)
    host.apply("--hugepages", 0, device="eth9")
    folder = Path("/dev/vfio")
    ours = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with open(folder / group.name, "w"):
            result = host.set_up("--undo", device=None)
            assert result.returncode == 1
            assert f"in use by process {os.getpid()}" in result.stderr
            assert kernel.driver() == "vfio-pci"
            # And the server keeps its file and its password.
            assert {path.name for path in (host.folder / "etc/replay-server").iterdir()} == {
                "password",
                "replay-server.toml",
            }
    finally:
        (folder / group.name).unlink()
        if ours:
            folder.rmdir()
    host.undo()  # what was left
    assert kernel.driver() == "ixgbe"


def test_without_an_iommu_a_stand_in_nic_is_refused_unless_told(host: Host, stand_in: MakeKernel) -> None:
    kernel = stand_in(iommu=False)
    parameter = kernel.folder / "module/vfio/parameters/enable_unsafe_noiommu_mode"
    parameter.parent.mkdir(parents=True)
    parameter.write_text("N\n")
    assert "intel_iommu=on" in refused(host, "--hugepages", 0, device="eth9")
    host.apply("--hugepages", 0, "--no-iommu", device="eth9")
    assert parameter.read_text() == "Y\n"
    assert kernel.driver() == "vfio-pci"
    host.undo()
    assert parameter.read_text() == "N\n"
    assert kernel.driver() == "ixgbe"


def test_a_kernel_that_cannot_do_without_an_iommu_is_told_before_anything_is_changed(
    host: Host, stand_in: MakeKernel
) -> None:
    """Debian's is one: modprobe passes over the parameter there."""
    kernel = stand_in(iommu=False)
    (kernel.folder / "module/vfio/parameters").mkdir(parents=True)
    message = refused(host, "--hugepages", 0, "--no-iommu", device="eth9")
    assert "CONFIG_VFIO_NOIOMMU" in message
    assert "--via af_packet" in message
    assert kernel.driver() == "ixgbe"


def test_a_stand_in_nic_that_shares_its_group_is_refused(host: Host, stand_in: MakeKernel) -> None:
    kernel = stand_in()
    kernel.add_to_group("0000:40:01.0", "0x060400", "pcieport")  # a bridge does not count
    host.apply("--hugepages", 0, device="eth9")
    host.undo()
    kernel.add_to_group("0000:41:00.1", "0x020000", "ixgbe")
    assert "shares its IOMMU group with 0000:41:00.1 (ixgbe)" in refused(host, "--hugepages", 0, device="eth9")


def test_a_stand_in_nic_that_no_driver_takes_is_said_and_given_back(host: Host, stand_in: MakeKernel) -> None:
    kernel = stand_in()
    kernel.refuses = "vfio-pci"
    result = host.set_up("--yes", *ADDRESS, "--hugepages", 0, device="eth9")
    assert result.returncode == 1
    assert "did not take" in result.stderr
    assert not (kernel.device / "driver").exists()
    host.undo()
    assert kernel.driver() == "ixgbe"


def test_a_stand_in_nic_of_a_bifurcated_driver_stays_with_it(host: Host, stand_in: MakeKernel) -> None:
    kernel = stand_in(driver="mlx5_core", iommu=False)
    host.apply("--hugepages", 0, device="eth9")
    assert kernel.driver() == "mlx5_core"
    assert load_config(host.folder / "etc/replay-server/replay-server.toml").config["dpdk-device"] == PCI


def test_a_stand_in_device_that_is_no_nic_is_refused(host: Host, stand_in: MakeKernel) -> None:
    kernel = stand_in()
    (kernel.device / "class").write_text("0x010802\n")
    result = host.set_up("--dry-run", *ADDRESS, device=PCI)
    assert result.returncode == 1
    assert "no network device" in result.stderr
