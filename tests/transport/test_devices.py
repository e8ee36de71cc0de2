"""The transport over DPDK on every virtual device, with large and small frames, beside others, and without root."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
from typing import Any

import pytest

import replay_server as rs
from replay_server.bench.lab import Lab, LabError, LabServer
from replay_server.bench.namespace import NamespaceError, program
from replay_server.server import find_executable

pytestmark = pytest.mark.dpdk

EXCHANGE = """
import numpy as np, os, sys
import replay_server as rs
with rs.Client(os.environ["REPLAY_SERVER_URL"]) as client:
    value = np.random.default_rng(int(sys.argv[1])).bytes(6_000_000)
    name = "value" + sys.argv[1]
    for _ in range(3):
        client.redis.set(name, value)
        assert client.redis.get(name) == value
    print(client.redis.info("transport")["transport_mtu"])
"""


@pytest.fixture
def open_lab() -> Any:
    """Makes a lab for the transport over DPDK; skips with the reason where it cannot."""

    def make(*arguments: Any, **options: Any) -> Lab:
        try:
            find_executable("dpdk")
            return Lab(*arguments, **options)
        except (rs.ServerError, LabError, NamespaceError) as error:
            pytest.skip(str(error))

    return make


def exchange(lab: Lab, server: LabServer, client: int = 0) -> subprocess.Popen[str]:
    """Starts a client on a client's side that writes and reads megabytes."""
    return subprocess.Popen(
        [*lab.client_commands[client], sys.executable, "-c", EXCHANGE, str(client)],
        env={**os.environ, "REPLAY_SERVER_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return said.strip()


@pytest.mark.parametrize(("device", "mtu"), [("tap", 1500), ("af_packet", 576), ("af_xdp", 576), ("af_xdp", 3300)])
def test_values_pass_through_every_device_and_frame_size(open_lab: Any, device: str, mtu: int) -> None:
    with open_lab(device, mtu=mtu) as lab:
        server = lab.serve("dpdk", lcore=-1)
        assert finish(exchange(lab, server)) == str(mtu)
        assert server.stop() == 0


@pytest.mark.parametrize("device", ["af_packet", "tap"])
def test_it_serves_in_a_user_namespace(open_lab: Any, device: str) -> None:
    with open_lab(device, as_user=True) as lab:
        server = lab.serve("dpdk", lcore=-1)
        assert finish(exchange(lab, server)) == "1500"
        assert server.stop() == 0


def test_clients_on_several_hosts_share_a_server(open_lab: Any) -> None:
    with open_lab("af_packet", clients=4) as lab:
        server = lab.serve("dpdk", lcore=-1)
        for process in [exchange(lab, server, client) for client in range(4)]:
            finish(process)
        assert server.stop() == 0


def test_independent_servers_run_side_by_side_on_one_host(open_lab: Any) -> None:
    with open_lab("af_packet") as first, open_lab("af_packet") as second:
        table = rs.Table("t", 10, {"k": rs.Column("int64")})
        servers = [(lab, lab.serve("dpdk", [table], lcore=-1)) for lab in (first, second)]
        for process in [exchange(lab, server) for lab, server in servers]:
            finish(process)
        assert servers[0][1].stop() == 0
        assert finish(exchange(*servers[1])) == "1500"
        assert servers[1][1].stop() == 0


ADDRESS = {"dpdk-device": "net_null0", "dpdk-address": "10.80.0.1/24"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, r"exit status 2.*dpdk-address '': expected an IPv4 address and its mask"),
        ({"dpdk-address": "10.80.0.1"}, "exit status 2.*expected an IPv4 address and its mask"),
        ({"dpdk-address": "10.80.0.1/33"}, "exit status 2.*expected an IPv4 address and its mask"),
        ({"dpdk-address": "10.80.0.1/"}, "exit status 2.*expected an IPv4 address and its mask"),
        ({"dpdk-address": "10.80.0.0/24"}, "exit status 2.*the network's own"),
        ({"dpdk-address": "10.80.0.255/24"}, "exit status 2.*the network's broadcast"),
        ({"dpdk-address": "224.0.0.1/24"}, "exit status 2.*never is"),
        ({"dpdk-address": "127.0.0.1/8"}, "exit status 2.*never is"),
        ({"dpdk-address": "10.80.0.1/24"}, "no device: dpdk-device names one"),
        (ADDRESS | {"dpdk-gateway": "10.81.0.1"}, "not in the network"),
        (ADDRESS | {"dpdk-memory": 1000}, "at least"),
        (ADDRESS | {"dpdk-lcore": 1000}, "exit status 1.*core 1000"),
        (ADDRESS | {"dpdk-eal": "--no-such-option"}, "exit status 1.*unrecognized option '--no-such-option'"),
        (ADDRESS | {"dpdk-device": "eth0"}, "neither a PCI address"),
        (ADDRESS | {"dpdk-device": "net_af_packet0,iface=absent"}, "there is no interface absent"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(config: dict[str, Any], said: str) -> None:
    try:
        find_executable("dpdk")
    except rs.ServerError as error:
        pytest.skip(str(error))
    with pytest.raises(rs.ServerError, match=f"(?s){said}") as raised:
        rs.Server(transport="dpdk", password="secret", config=config)
    assert "Usage:" not in str(raised.value)


def test_a_host_beside_the_address_of_the_device_is_refused() -> None:
    try:
        find_executable("dpdk")
    except rs.ServerError as error:
        pytest.skip(str(error))
    with pytest.raises(rs.ServerError, match="with dpdk use 'dpdk-address'"):
        rs.Server(transport="dpdk", host="10.80.0.1", password="secret", config=ADDRESS)


@pytest.mark.parametrize("address", ["10.80.0.1/32", "10.80.0.0/31"])
def test_short_networks_have_neither_broadcast_nor_own_address(address: str) -> None:
    try:
        find_executable("dpdk")
    except rs.ServerError as error:
        pytest.skip(str(error))
    with rs.Server(transport="dpdk", password="secret", config=ADDRESS | {"dpdk-address": address}) as server:
        assert address.partition("/")[0] in server.url


BPF_CALLS = {"x86_64": 321, "aarch64": 280}
BPF_PROG_GET_FD_BY_ID = 13


def is_loaded(number: int) -> bool:
    """Whether the kernel has a program of that number."""
    attributes = (ctypes.c_uint32 * 32)(number)
    call = ctypes.CDLL(None, use_errno=True).syscall
    found = call(BPF_CALLS[platform.machine()], BPF_PROG_GET_FD_BY_ID, attributes, ctypes.sizeof(attributes))
    if found >= 0:
        os.close(found)
    return found >= 0


@pytest.mark.skipif(platform.machine() not in BPF_CALLS, reason="knows the number of the call bpf on x86 and ARM only")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_program_is_left_in_the_kernel(open_lab: Any, eventually: Any, number: int) -> None:
    """The one that hands frames to AF_XDP goes with its interface, however the server ended."""
    with open_lab("af_xdp") as lab:
        server = lab.serve("dpdk", lcore=-1)
        show = [*lab.server_command, program("ip", "iproute2"), "-json", "link", "show", "dev", "eth0"]
        shown = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
        loaded = shown[0]["xdp"]["prog"]["id"]
        assert is_loaded(loaded)
        os.kill(server.pid, number)
        eventually(lambda: not server.running, "the server ends")
    eventually(lambda: not is_loaded(loaded), "the program is gone")
