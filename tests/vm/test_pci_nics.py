"""PCI NICs go to DPDK and come back, by the commands of docs/nic-host.md.

NICs and IOMMU are emulated in a virtual machine. vfio-pci is the kernel's own, and clients are on the other end of the
cable. It takes minutes, so `make test-vm` runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import CHECKOUT, REPOSITORY, make_guest
from machine import MANAGEMENT_MAC, Machine, Nic, qemu_models

from replay_server.bench.namespace import NamespaceError

pytestmark = [pytest.mark.vm, pytest.mark.timeout(7200)]

MODELS = ("e1000e", "vmxnet3", "virtio-net-pci", "igb")
PORT = 6379
SERVE = ".venv/bin/replay-server"

CLIENT = """
import json, sys
import numpy as np
import replay_server as rs

host, password = sys.argv[1:]
table = rs.Table("t", 2000, {"obs": rs.Column("uint8", (84, 84)), "k": rs.Column("int64")}, sampler=rs.Uniform())
with rs.Client(f"redis://:{password}@{host}:6379", connect_timeout=120, reconnect_timeout=120) as client:
    if "t" not in client.tables():
        client.create_table(table)
    generator = np.random.default_rng(7)
    frames = generator.integers(0, 256, (300, 84, 84), dtype=np.uint8)
    first = client.info("t")["added"]
    ids = client.add("t", {"obs": frames, "k": np.arange(300)})
    batch = client.sample("t", 256)
    assert np.array_equal(batch.data["obs"], frames[batch.data["k"]]), "a sample has other bytes than were added"
    got = client.get("t", ids[:50])
    assert np.array_equal(got.data["obs"], frames[:50])
    applied, stale = client.update_priorities("t", ids, np.ones(300))
    assert (applied, stale) == (300, 0), (applied, stale)
    value = generator.bytes(1 << 20)
    for length in (1, 2, 1447, 1448, 1449, 65537, 1 << 20):
        client.redis.set("v", value[:length])
        assert client.redis.get("v") == value[:length], length
    info = client.redis.info("transport")
    print(json.dumps({name: info.get(f"transport_{name}") for name in
                      ("driver", "link", "offloads", "bad_checksums", "malformed", "send_errors")}))
"""


@pytest.fixture(scope="module")
def nics() -> list[Nic]:
    try:
        there = qemu_models()
    except NamespaceError as error:
        pytest.skip(str(error))
    return [Nic(model, number) for number, model in enumerate((m for m in MODELS if m in there), 1)]


@pytest.fixture(scope="module")
def machine(nics: list[Nic], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    try:
        guest = make_guest(REPOSITORY / "build/vm", MANAGEMENT_MAC)
        machine = Machine(guest, nics, tmp_path_factory.mktemp("vm"))
    except NamespaceError as error:
        pytest.skip(str(error))
    with machine:
        yield machine


@pytest.fixture(params=range(len(MODELS)), ids=MODELS)
def nic(request: pytest.FixtureRequest, nics: list[Nic]) -> Nic:
    for nic in nics:
        if nic.model == MODELS[request.param]:
            return nic
    pytest.skip(f"this QEMU has no {MODELS[request.param]}: igb is of QEMU 8.0")


def set_up_options(nic: Nic) -> list[str]:
    return ["--name", nic.name, "--admin-port", str(16379 + nic.number), "--memory", "512mb", "--lcore", "1"]


def take(machine: Machine, nic: Nic) -> None:
    device = machine.interface(nic)
    options = ["--device", device, "--address", f"{nic.server}/24", *set_up_options(nic)]
    machine.check("./setup_dpdk.sh", "--yes", *options)


def start_server(machine: Machine, nic: Nic) -> None:
    unit = f"serve-{nic.name}"
    machine.check(
        "systemd-run", f"--unit={unit}", "--collect", "--property=LimitMEMLOCK=infinity",
        f"{CHECKOUT}/{SERVE}", "serve", "--config", f"/etc/replay-server/{nic.name}.toml",
    )  # fmt: skip
    machine.wait_for("sh", "-c", f"journalctl -u {unit} -o cat | grep '^ready ' || ! systemctl is-active -q {unit}")
    assert "ready url=" in said(machine, nic)


def said(machine: Machine, nic: Nic) -> str:
    return machine.check("journalctl", "-u", f"serve-{nic.name}", "-o", "cat")


def stop_server(machine: Machine, nic: Nic) -> None:
    machine.check("systemctl", "stop", f"serve-{nic.name}")


def password(machine: Machine) -> str:
    return machine.check("cat", "/etc/replay-server/password").strip()


def work_as_client(machine: Machine, nic: Nic) -> dict[str, str]:
    """Adds, samples and compares from the other end of the cable; what INFO then says of the transport."""
    command = [*machine.client.command, sys.executable, "-c", CLIENT, nic.server, password(machine)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr + said(machine, nic)
    return json.loads(result.stdout.splitlines()[-1])


def driver_of(machine: Machine, pci: str) -> str:
    return Path(machine.check("readlink", f"/sys/bus/pci/devices/{pci}/driver").strip()).name


def test_the_guest_ran_what_set_up_built(machine: Machine) -> None:
    assert "transports: kernel dpdk" in machine.check(SERVE, "--version")


def test_the_nic_that_the_host_is_reached_by_is_refused(machine: Machine) -> None:
    result = machine.run("./setup_dpdk.sh", "--yes", "--device", "management", "--address", "10.77.9.2/24")
    assert result.returncode == 1
    assert "management carries the default route" in result.stdout
    assert not machine.check("sh", "-c", "ls /var/lib/replay-server 2>/dev/null || true")


def test_a_nic_is_taken_serves_and_is_given_back(machine: Machine, nic: Nic) -> None:
    device = machine.interface(nic)
    pci = Path(machine.check("readlink", "-f", f"/sys/class/net/{device}/device").strip())
    address = next(part for part in reversed(pci.parts) if part.count(":") == 2)
    kernel_driver = driver_of(machine, address)

    checked = machine.run("./setup_dpdk.sh", "--check", "--device", device, *set_up_options(nic))
    assert checked.returncode == 1
    assert f"{address} belongs to '{kernel_driver}': give it to vfio-pci" in checked.stdout
    assert "IOMMU: on" in checked.stdout
    take(machine, nic)
    assert driver_of(machine, address) == "vfio-pci"
    again = machine.run("./setup_dpdk.sh", "--check", "--device", address, *set_up_options(nic))
    assert "todo" not in again.stdout, again.stdout

    config = f"/etc/replay-server/{nic.name}.toml"
    doctor = json.loads(machine.check("sh", "-c", f"{SERVE} doctor --json --config {config} || true"))
    problems = [finding for finding in doctor["findings"] if finding["level"] == "problem"]
    assert not problems, problems

    start_server(machine, nic)
    seen = work_as_client(machine, nic)
    print(f"\n{nic.model}: {seen}")
    assert seen["link"] == "up"
    assert (seen["bad_checksums"], seen["malformed"], seen["send_errors"]) == (0, 0, 0)
    assert "transmit-checksums" in str(seen["offloads"])

    # While the server runs, nothing is taken from it.
    refused = machine.run("./setup_dpdk.sh", "--undo")
    assert refused.returncode == 1
    assert "is in use by process" in refused.stdout
    assert machine.run("test", "-e", config).returncode == 0

    machine.set_cable(nic, False)
    machine.wait_for("sh", "-c", f"journalctl -u serve-{nic.name} -o cat | grep -q 'link of .* is down'")
    machine.set_cable(nic, True)
    machine.wait_for("sh", "-c", f"journalctl -u serve-{nic.name} -o cat | grep -q 'link of .* is up'")
    work_as_client(machine, nic)

    stop_server(machine, nic)
    machine.check("./setup_dpdk.sh", "--undo")
    assert driver_of(machine, address) == kernel_driver
    assert machine.interface(nic) == device
    assert machine.run("test", "-e", config).returncode == 1


def test_two_nics_are_there_again_after_a_restart_and_serve_at_once(machine: Machine, nics: list[Nic]) -> None:
    both = nics[:2]
    for nic in both:
        take(machine, nic)
    pages = machine.check("cat", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    machine.restart()
    assert machine.check("cat", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages") == pages
    for nic in both:
        start_server(machine, nic)
        assert "ordinary pages serve" not in said(machine, nic)
    assert {work_as_client(machine, nic)["link"] for nic in both} == {"up"}
    for nic in both:
        stop_server(machine, nic)
    machine.check("./setup_dpdk.sh", "--undo")
    assert machine.check("cat", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").strip() == "0"


def test_an_mtu_that_a_driver_refuses_is_found_by_the_doctor(machine: Machine, nics: list[Nic]) -> None:
    nic = nics[0]
    device = machine.interface(nic)
    machine.check(
        "./setup_dpdk.sh", "--yes", "--device", device, "--address", f"{nic.server}/24", "--mtu", "9600",
        *set_up_options(nic),
    )  # fmt: skip
    try:
        result = machine.run(SERVE, "doctor", "--config", f"/etc/replay-server/{nic.name}.toml")
        assert result.returncode == 1
        assert "does not take an mtu of 9600 bytes" in result.stdout
    finally:
        machine.check("./setup_dpdk.sh", "--undo")


def test_a_machine_without_an_iommu_keeps_its_nic_and_is_told_another_way(nics: list[Nic], tmp_path: Path) -> None:
    """Debian's kernel has no CONFIG_VFIO_NOIOMMU, so that only a device that stays with its driver serves there."""
    try:
        guest = make_guest(REPOSITORY / "build/vm", MANAGEMENT_MAC)
    except NamespaceError as error:
        pytest.skip(str(error))
    nic = nics[0]
    with Machine(guest, [nic], tmp_path, iommu=False) as machine:
        device = machine.interface(nic)
        options = ["--yes", "--device", device, "--address", f"{nic.server}/24", *set_up_options(nic)]
        result = machine.run("./setup_dpdk.sh", *options, "--no-iommu")
        assert result.returncode == 1
        assert "CONFIG_VFIO_NOIOMMU" in result.stdout
        assert machine.interface(nic) == device
        machine.check("./setup_dpdk.sh", *options, "--via", "af_packet")
        start_server(machine, nic)
        work_as_client(machine, nic)
        stop_server(machine, nic)
        machine.check("./setup_dpdk.sh", "--undo")
