"""`replay-server bench lab`: a server on a virtual device in user space, and clients on the kernel's side of it.

Network namespaces stand for the hosts and a veth pair for the cable, or a tap device for both. It needs neither a NIC
nor hugepages, and without AF_XDP not even root. Everything is removed at the end, however that comes. docs/lab.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench.namespace import Namespace, NamespaceError, Switch, connect, is_real_root, program
from replay_server.server import TRANSPORTS

DEVICES = ("af_packet", "af_xdp", "tap", "kernel")
_OF_BENCHMARKS = ("memif", "loopback")
"""Devices where the clients are load clients."""
_WITHOUT_CABLE = ("tap", *_OF_BENCHMARKS)
_ON_KERNEL = ("kernel", "loopback")
NETWORK = "10.80.0"
MASK = 24
_MTU_MAX = {"af_packet": 1500, "af_xdp": 3300, "tap": 1500, "memif": 23400, "kernel": 9000, "loopback": 65536}
"""What DPDK's drivers carry: those of af_packet and tap no longer frames, that of AF_XDP what a page holds beside what
else it has to hold."""
_RING_BYTES = 16 << 20
_BLOCK_BYTES, _FRAME_BYTES = 64 << 10, 2048
_TAP = "tap0"
_ETHERNET_BYTES = 14
_MEMIF_RING = 6
"""Log2 of the buffers each way: few enough to stay in a processor's cache."""
_LONG_LINES = {
    "tcp_wmem": f"4096 16384 {32 << 20}",
    "tcp_rmem": f"4096 131072 {32 << 20}",
    "tcp_no_metrics_save": "1",  # else a connection begins with what the last one found
}


class LabError(RuntimeError):
    """The lab cannot be made as asked; the message says why and what to do."""


class LabServer(rs.Server):
    """A replay server on the server's side of a lab. As `rs.Server`; its `url` is reached from the client's side."""

    def __init__(self, prefix: Sequence[str], *arguments: Any, **options: Any) -> None:
        self._prefix = list(prefix)
        super().__init__(*arguments, **options)

    def _spawn(self, command: list[str], setup: bytes, lifeline: int) -> subprocess.Popen[bytes]:
        # Nobody else is on this network, so that a server without a password is let out of loopback.
        return super()._spawn([*self._prefix, *command, "--allow-remote"], setup, lifeline)


class Lab:
    """Two sides and what joins them. A context manager: what it made is gone when it ends, and what it ran has ended.

    Args:
        device: the server's: "af_packet", "af_xdp" or "tap" for DPDK, "kernel" for kernel sockets over the same veth;
            "memif" for DPDK on both sides, where the load client alone can be a client; "loopback" for kernel sockets
            and no cable.
        mtu: of IP, in bytes; the loopback has its own.
        offloads: leaves the veth's checksum and segmentation offloads on; only the kernel's sockets can use them.
        clients: hosts on the client's side; more than one are joined by a switch. With "tap" there is one.
        relayed: puts a host between server and client that forwards nothing by itself: a program run by
            `relay_command` has to carry frames between its interfaces "server" and "client".
        cubic: gives the kernel's TCP CUBIC and windows of up to 32 MB, whatever the machine's own choice.
        as_user: in a user namespace; None: unless the caller is root. AF_XDP needs a real root.

    Attributes:
        address: of the server, IPv4 without a mask.
        server_command: what to put before a command that is to run on the server's side.
        client_command: likewise on the client's (the first client's) side.
        client_commands: of every client.
        relay_command: of the host between them, where there is one.
        folder: removed at the end, for sockets, logs and DPDK's files.

    Raises:
        LabError: it cannot be made here; `NamespaceError` likewise, where it is the system that refuses.
    """

    def __init__(
        self,
        device: str = "af_packet",
        mtu: int = 1500,
        offloads: bool = False,
        clients: int = 1,
        relayed: bool = False,
        as_user: bool | None = None,
        cubic: bool = False,
    ) -> None:
        self.device, self.mtu = device, mtu
        self._check(offloads, clients, relayed)
        if device == "af_xdp" and (as_user or not is_real_root()):
            raise LabError("AF_XDP loads a program into the kernel: run it as the machine's root, or take af_packet")
        self.address = f"{NETWORK}.1"
        self.folder = Path(tempfile.mkdtemp(prefix="replay-lab-"))
        self._servers: list[LabServer] = []
        self._hosts: list[Namespace] = []
        self._clients: list[Namespace] = []
        self._relay: Namespace | None = None
        self._switch: Switch | None = None
        try:
            self._make(offloads, clients, relayed, as_user)
            if cubic:
                self._use_cubic()
        except BaseException:
            self.close()
            raise

    def _check(self, offloads: bool, clients: int, relayed: bool) -> None:
        known = (*DEVICES, *_OF_BENCHMARKS)
        if self.device not in known:
            raise LabError(f"device must be one of {', '.join(known)}, got {self.device!r}")
        if offloads and self.device != "kernel":
            raise LabError(
                f"offloads of a veth are the kernel's: a server on {self.device} in user space has none of them"
            )
        if not 1 <= clients <= 200:
            raise LabError(f"clients must be between 1 and 200, got {clients}")
        if self.device in _WITHOUT_CABLE and (clients > 1 or relayed):
            raise LabError(f"{self.device} has one client and no cable: take af_packet for more")
        if relayed and clients > 1:
            raise LabError("a relay stands between the server and one client")
        if not 576 <= self.mtu <= _MTU_MAX[self.device]:
            most = _MTU_MAX[self.device]
            raise LabError(f"mtu on {self.device} must be between 576 and {most} bytes, got {self.mtu}")

    def _make(self, offloads: bool, clients: int, relayed: bool, as_user: bool | None) -> None:
        self._server = Namespace("server", None, as_user, self.folder)
        self._hosts.append(self._server)
        if self.device in _OF_BENCHMARKS:
            self._clients = [self._server]
            if self.device == "loopback":
                self._server.ip("address", "add", f"{self.address}/{MASK}", "dev", "lo")
            return
        if self.device == "tap":
            # The interface is there before the driver opens it, so that it has its address when the server is ready.
            self._clients = [self._server]
            self._server.ip("tuntap", "add", "dev", _TAP, "mode", "tap", "multi_queue")
            self._server.set_up(_TAP, f"{NETWORK}.2/{MASK}", self.mtu)
            return
        self._clients = [self._add_host(f"client{number}", self._server) for number in range(clients)]
        if clients > 1:
            self._switch = Switch([self._server, *self._clients], self.mtu, offloads)
        elif relayed:
            self._relay = self._add_host("relay", self._server)
            for name, host in (("server", self._server), ("client", self._clients[0])):
                connect(self._relay, name, host, "eth0")
                self._relay.set_up(name, mtu=self.mtu, offloads=offloads)
        else:
            connect(self._server, "eth0", self._clients[0], "eth0")
        address = f"{self.address}/{MASK}" if self.device == "kernel" else None
        self._server.set_up("eth0", address, self.mtu, offloads)
        for number, host in enumerate(self._clients, 2):
            host.set_up("eth0", f"{NETWORK}.{number}/{MASK}", self.mtu, offloads)

    def _add_host(self, name: str, owner: Namespace) -> Namespace:
        host = Namespace(name, owner)
        self._hosts.append(host)
        return host

    def _use_cubic(self) -> None:
        for host in (self._server, *self._clients):
            host.run("sysctl", "-w", *(f"net.ipv4.{name}={value}" for name, value in _LONG_LINES.items()))
            # By the route: only the machine itself may choose for all connections.
            for route in host.ip("route", "show", "dev", "eth0").splitlines():
                host.ip("route", "change", *route.split(), "dev", "eth0", "congctl", "cubic")

    @property
    def server_command(self) -> list[str]:
        # DPDK keeps its files there; without it, it would look for root's folder, or mix with another lab's.
        environment = ["env", f"RUNTIME_DIRECTORY={self.folder}"]
        return [*self._server.command_with_sysfs, *environment]

    @property
    def admin_command(self) -> list[str]:
        """For clients of the admin port, which is on the loopback of the server's side."""
        return list(self._server.command)

    @property
    def client_command(self) -> list[str]:
        if self.device == "memif":
            raise LabError("on memif there are no clients over kernel sockets: take af_packet, af_xdp, tap or kernel")
        return list(self._clients[0].command)

    @property
    def load(self) -> dict[str, Any]:
        """How `bench.client.run` comes to the server: `prefix`, and `device` where DPDK is on both sides."""
        if self.device != "memif":
            return {"prefix": self.client_command}
        return {"prefix": self.server_command, "device": (self._memif("client"), f"{NETWORK}.2/{MASK}", "0")}

    @property
    def client_commands(self) -> list[list[str]]:
        return [list(host.command) for host in self._clients]

    @property
    def relay_command(self) -> list[str]:
        if self._relay is None:
            raise LabError("this lab has no relay: make it with relayed=True")
        return list(self._relay.command)

    @property
    def dpdk_device(self) -> str:
        """The device as DPDK's EAL is told of it."""
        if self.device == "af_xdp":
            return "net_af_xdp0,iface=eth0,start_queue=0,queue_count=1"
        if self.device == "af_packet":
            frames = self._ring_bytes() // _FRAME_BYTES
            return f"net_af_packet0,iface=eth0,framesz={_FRAME_BYTES},blocksz={_BLOCK_BYTES},framecnt={frames}"
        if self.device == "tap":
            return f"net_tap0,iface={_TAP}"
        if self.device == "memif":
            return self._memif("server")
        raise LabError("device 'kernel' is for the kernel's sockets: DPDK needs af_packet, af_xdp or tap")

    def _memif(self, role: str) -> str:
        socket = f"socket-abstract=no,socket={self.folder}/memif"
        return f"net_memif0,role={role},id=0,{socket},bsize={self.mtu + _ETHERNET_BYTES},rsize={_MEMIF_RING}"

    def _ring_bytes(self) -> int:
        # The driver's own ring of 512 frames drops under fan-in. It locks a ring to receive and one to send in memory,
        # of which only root may lock as much as it likes; half of what others may is left to the rest.
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if (is_real_root() and not self._server.as_user) or limit == resource.RLIM_INFINITY:
            return _RING_BYTES
        if limit < 16 * _BLOCK_BYTES:
            raise LabError(
                f"af_packet needs 1 MB of locked memory, and ulimit -l is {limit // 1024} kB: raise it, or take tap"
            )
        return min(_RING_BYTES, limit // 4 // _BLOCK_BYTES * _BLOCK_BYTES)

    def examine_device(self) -> dict[str, Any]:
        """What DPDK says of the device, as ``python -m replay_server.dpdk`` tells it; no server may be on it meanwhile.

        Raises:
            LabError: DPDK is not there, or refused the device.
        """
        arguments = ["--no-huge", "-m", "64", "--no-pci", f"--vdev={self.dpdk_device}"]
        command = [*self.server_command, sys.executable, "-m", "replay_server.dpdk", *arguments]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if asked.returncode:
            raise LabError(f"DPDK does not take {self.dpdk_device}: {asked.stderr.strip()}")
        return json.loads(asked.stdout)

    def settings(self, transport: str) -> dict[str, Any]:
        """CONFIG settings of a server here, by name; without "dpdk-lcore". Of the kernel's transport there are none."""
        if transport == "kernel":
            return {}
        if transport not in TRANSPORTS:
            raise LabError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
        return {
            "dpdk-device": self.dpdk_device,
            "dpdk-address": f"{self.address}/{MASK}",
            "dpdk-mtu": 0 if self.device == "memif" else self.mtu,
        }

    def serve(
        self,
        transport: str | None = None,
        tables: Iterable[rs.Table] = (),
        config: Mapping[str, Any] | None = None,
        port: int = 6379,
        lcore: int = 0,
        password: str | None = None,
        **options: Any,
    ) -> LabServer:
        """Starts a server on the server's side.

        Args:
            transport: "kernel" for device "kernel", else "dpdk" (the default there) or "fstack".
            tables: as of `rs.Server`, as are config, port and password.
            lcore: the processor it runs on, −1 = any.
            options: further ones of `rs.Server`: unix, directory, restore, maxmemory, start_timeout.

        Raises:
            LabError: the transport does not fit the device.
            ServerError: it did not start; the message holds what it printed.
        """
        transport = transport or ("kernel" if self.device in _ON_KERNEL else "dpdk")
        if (transport == "kernel") != (self.device in _ON_KERNEL):
            raise LabError(
                f"transport {transport!r} does not fit device {self.device!r}: kernel goes with kernel alone"
            )
        config = {**self.settings(transport), **(config or {})}
        prefix = self.server_command
        if transport == "kernel":
            options["host"] = self.address
            config.setdefault("admin-port", 0)
            if lcore >= 0:
                prefix = [*prefix, program("taskset", "util-linux"), "--cpu-list", str(lcore)]
        else:
            config.setdefault("dpdk-lcore", lcore)
        server = LabServer(prefix, tables, port=port, password=password, transport=transport, config=config, **options)
        self._servers.append(server)
        return server

    def on_client(self, number: int = 0) -> AbstractContextManager[None]:
        """Has the calling thread stand on a client's side, as `Namespace.entered` does; as root alone."""
        return self._clients[number].entered()

    def on_server(self) -> AbstractContextManager[None]:
        """Likewise on the server's side, where the admin port is."""
        return self._server.entered()

    def set_link(self, up: bool) -> None:
        """Pulls the cable at the client's end, or plugs it in again; with several clients, at the server's."""
        if self._switch is not None:
            self._switch.set_link(0, up)
            return
        interface = _TAP if self.device == "tap" else "eth0"
        self._clients[0].ip("link", "set", interface, "up" if up else "down")

    def end(self) -> None:
        """Stops the servers, in order."""
        for server in self._servers:
            server.stop()
        self._servers.clear()

    def close(self) -> None:
        """Stops the servers, ends every process on either side, removes hosts and files. Once more does nothing."""
        with contextlib.ExitStack() as stack:  # each of them, whatever happens to the others
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for host in self._hosts:
                stack.callback(host.close)
            if self._switch is not None:
                stack.callback(self._switch.close)
            if self._hosts and self.device not in _WITHOUT_CABLE:
                stack.callback(self._remove_cable)
            for host in self._hosts:
                stack.callback(host.end_processes)
            stack.callback(self.end)
        self._hosts.clear()
        self._switch = None

    def _remove_cable(self) -> None:
        # A namespace goes some time after its last process; a cable goes at once.
        with contextlib.suppress(NamespaceError):
            self._server.ip("link", "delete", "eth0")

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ---- as a command ----------------------------------------------------------------------------------------------------


def _on_termination(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="replay-server bench lab",
        description=__doc__,
        epilog="With COMMAND: runs it on the client's side, the variable REPLAY_SERVER_URL set, and ends with its exit "
        "status. Without: says how to reach the server, and waits for Ctrl-C.",
    )
    parser.add_argument("--device", choices=DEVICES, default="af_packet", help="the server's (%(default)s)")
    parser.add_argument("--transport", choices=TRANSPORTS, help="(kernel for device kernel, else dpdk)")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes (%(default)s)")
    parser.add_argument("--offloads", action="store_true", help="leave the veth's on; for device kernel alone")
    parser.add_argument("--clients", type=int, default=1, help="hosts on the client's side (%(default)s)")
    parser.add_argument("--port", type=int, default=6379, help="(%(default)s)")
    parser.add_argument("--lcore", type=int, default=0, help="processor of the server; -1 = any (%(default)s)")
    parser.add_argument(
        "--config", metavar="NAME=VALUE", action="append", default=[], help="a setting, as of CONFIG SET"
    )
    parser.add_argument("--unixsocket", metavar="PATH", help="of the server, for clients of this host's own network")
    parser.add_argument("--as-user", action="store_true", default=None, help="in a user namespace, even as root")
    parser.add_argument("--log", action="store_true", help="at the end, print what the server printed")
    parser.add_argument("--examine", action="store_true", help="print what DPDK says of the device, as JSON; no server")
    return parser


def _tell(lab: Lab, server: LabServer, port: int) -> None:
    device = lab.device if lab.device == "kernel" else lab.dpdk_device
    print(f"server   {server.url}  pid {server.pid}  device {device}")
    for number, command in enumerate(lab.client_commands):
        print(f"client{number}  {' '.join(command)} redis-cli -h {lab.address} -p {port}")
    if server.admin_url is not None:
        print(f"admin    {' '.join(lab.admin_command)} redis-cli -p {server.admin_url.rpartition(':')[2]}")
    if server.unix_url is not None:
        print(f"unix     {server.unix_url}")
    print("Ctrl-C ends it.", flush=True)


def _others(lcore: int) -> list[str]:
    """Before a client's command: keeps it away from a processor that a server polls on."""
    others = os.sched_getaffinity(0) - {lcore}
    if lcore < 0 or not others:
        return []
    return [program("taskset", "util-linux"), "--cpu-list", ",".join(str(number) for number in sorted(others))]


def _wait(server: LabServer) -> int:
    while server.running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server._process.wait(timeout=1.0)
    print(f"the server ended (exit status {server.returncode}): {server.log().strip()}", file=sys.stderr)
    return 1


def main(argv: list[str], folder: str) -> int:
    """Makes a lab, serves in it, runs a command or waits. Returns the exit status."""
    del folder  # the lab has its own
    own, command = argv, []
    if "--" in argv:
        place = argv.index("--")
        own, command = argv[:place], argv[place + 1 :]
    arguments = _parser().parse_args(own)
    if shapeless := [setting for setting in arguments.config if "=" not in setting]:
        raise LabError(f"--config: expected NAME=VALUE, got {shapeless[0]!r}")
    config = dict(setting.partition("=")[::2] for setting in arguments.config)
    signal.signal(signal.SIGTERM, _on_termination)
    with Lab(arguments.device, arguments.mtu, arguments.offloads, arguments.clients, as_user=arguments.as_user) as lab:
        if arguments.examine:
            print(json.dumps(lab.examine_device(), indent=2))
            return 0
        server = lab.serve(arguments.transport, (), config, arguments.port, arguments.lcore, unix=arguments.unixsocket)
        try:
            if not command:
                _tell(lab, server, arguments.port)
                return _wait(server)
            environment = {**os.environ, "REPLAY_SERVER_URL": server.url}
            away = _others(-1 if lab.device == "kernel" else arguments.lcore)
            return subprocess.run([*lab.client_command, *away, *command], env=environment).returncode
        finally:
            if arguments.log:
                server.stop()
                print(server.log(), file=sys.stderr, end="")
