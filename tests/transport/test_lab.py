"""The virtual lab: what it makes, how it is used as a command, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import replay_server as rs
from replay_server import dpdk
from replay_server.bench.lab import Lab, LabError, main
from replay_server.bench.namespace import Namespace, NamespaceError, program

COMMAND = [sys.executable, "-m", "replay_server", "bench", "lab"]
PING = "import os, replay_server as rs; print(rs.Client(os.environ['REPLAY_SERVER_URL']).redis.ping())"


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        Namespace("probe").close()
    except NamespaceError as error:
        pytest.skip(str(error))


def namespaces(root: int | None = None) -> set[str]:
    """The network namespaces that have a process; with `root`, one of that process's descendants."""
    parents, networks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                networks[int(entry.name)] = os.readlink(entry / "ns" / "net")
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    if root is None:
        return set(networks.values())
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {networks[pid] for pid in below if pid in networks}


def interfaces() -> str:
    return subprocess.run([program("ip", "iproute2"), "-brief", "link"], capture_output=True, text=True).stdout


def wait_until_gone(namespace: str) -> None:
    end = time.monotonic() + 60
    while namespace in namespaces():
        assert time.monotonic() < end, "a process is left in the lab's network"
        time.sleep(0.02)


@pytest.mark.parametrize("as_user", [None, True], ids=["as-it-is", "in-a-user-namespace"])
@pytest.mark.parametrize("clients", [1, 3])
def test_every_client_reaches_the_server(clients: int, as_user: bool | None) -> None:
    with Lab("kernel", clients=clients, as_user=as_user) as lab:
        server = lab.serve(password="secret")
        environment = {**os.environ, "REPLAY_SERVER_URL": server.url}
        for command in lab.client_commands:
            asked = subprocess.run(
                [*command, sys.executable, "-c", PING], env=environment, capture_output=True, text=True, timeout=30
            )
            assert asked.stdout == "True\n", asked.stderr
        assert len(lab.client_commands) == clients


def test_nothing_is_left_after_a_failure() -> None:
    before = interfaces()
    made = []

    def fail() -> None:
        with Lab("kernel") as lab:
            lab.serve()
            network = os.readlink(f"/proc/{lab._hosts[0].pid}/ns/net")
            made.extend([lab, network, subprocess.Popen([*lab.server_command, "sleep", "1000"])])
            assert network in namespaces()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    lab, network, forgotten = made
    assert forgotten.wait(timeout=60) == -signal.SIGTERM
    assert network not in namespaces()
    assert interfaces() == before
    assert not lab.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    lab = subprocess.Popen(
        [*COMMAND, "--device", "kernel", "--clients", "2"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert lab.stdout is not None
    printed: list[str] = []
    for line in lab.stdout:
        printed.append(line)
        if "Ctrl-C" in line:
            break
    else:
        pytest.fail(f"it ended: {printed}")
    made = namespaces(lab.pid) - {os.readlink("/proc/self/ns/net")}
    assert len(made) >= 3, printed
    lab.send_signal(number)
    assert lab.wait(timeout=60) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    for network in made:
        wait_until_gone(network)
    lab.stdout.close()
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []
    else:  # the folder that the command makes for every benchmark stays behind, the lab's own goes
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("replay-lab-")] == []


def test_the_command_runs_on_the_clients_side_and_gives_its_exit_status() -> None:
    code = PING + "; raise SystemExit(7)"
    done = subprocess.run(
        [*COMMAND, "--device", "kernel", "--", sys.executable, "-c", code], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (7, "True\n"), done.stderr


def test_offloads_are_off_on_both_ends_unless_they_are_wanted() -> None:
    names = ("tcp-segmentation-offload", "generic-segmentation-offload", "tx-checksumming", "rx-checksumming")
    for offloads, state in ((False, "off"), (True, "on")):
        with Lab("kernel", offloads=offloads) as lab:
            for command in (lab.server_command, lab.client_command):
                shown = subprocess.run(
                    [*command, program("ethtool", "ethtool"), "-k", "eth0"], capture_output=True, text=True, check=True
                ).stdout
                features = dict(line.strip().split(": ")[:2] for line in shown.splitlines()[1:] if ": " in line)
                assert {features[name].split()[0] for name in names} == {state}


def test_a_device_of_user_space_has_no_address_of_the_kernel() -> None:
    with Lab("af_packet") as lab:
        shown = subprocess.run(
            [*lab.server_command, program("ip", "iproute2"), "-brief", "address", "show", "dev", "eth0"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert shown.stdout.split()[1:] == ["UP"]


def test_the_cable_can_be_pulled_and_plugged_in() -> None:
    with Lab("kernel") as lab:
        lab.serve()
        connects = [*lab.client_command, sys.executable, "-c",
                    f"import socket; socket.create_connection(('{lab.address}', 6379), 1)"]  # fmt: skip
        for up, status in ((True, 0), (False, 1), (True, 0)):
            lab.set_link(up)
            assert subprocess.run(connects, stderr=subprocess.DEVNULL, timeout=60).returncode == status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "af_xdp", "as_user": True}, "root"),
        ({"device": "af_xdp", "mtu": 9000}, "3300"),
        ({"device": "af_packet", "offloads": True}, "kernel"),
        ({"device": "tap", "clients": 2}, "one client"),
        ({"device": "memif", "relayed": True}, "no cable"),
        ({"device": "token ring"}, "af_packet"),
        ({"mtu": 100}, "576"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(LabError, match=said):
        Lab(**arguments)  # type: ignore[arg-type]


def test_programs_over_kernel_sockets_are_no_clients_of_memif() -> None:
    with Lab("memif") as lab, pytest.raises(LabError, match="no clients over kernel sockets"):
        _ = lab.client_command


def test_a_transport_that_does_not_fit_the_device_is_refused() -> None:
    with Lab("kernel") as lab:
        with pytest.raises(LabError, match="does not fit"):
            lab.serve("dpdk")
        with pytest.raises(LabError, match="DPDK needs"):
            lab.settings("dpdk")


@pytest.mark.skipif(not dpdk.available(), reason="DPDK was not there when this was built")
def test_dpdk_tells_what_it_finds_on_the_device() -> None:
    with Lab("af_packet") as lab:
        found = lab.examine_device()
    (port,) = found["ports"]
    assert (port["driver"], port["interface"], port["mtu"]) == ("net_af_packet", "eth0", 1500)
    assert port["statistics"]["frames_out"] == port["extended_statistics"]["tx_good_packets"] == 0
    assert found["heaps"][0]["total_bytes"] > 32 << 20
    assert found["version"] == dpdk.version()
    with Lab("kernel") as lab, pytest.raises(LabError, match="kernel's sockets"):
        lab.examine_device()


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(LabError, match="expected NAME=VALUE, got 'dpdk-mtu'"):
        main(["--config", "dpdk-mtu", "--", "true"], "")


def test_a_server_that_does_not_start_says_why() -> None:
    with Lab("kernel") as lab, pytest.raises(rs.ServerError, match="no-such-setting"):
        lab.serve(config={"no-such-setting": 1})
