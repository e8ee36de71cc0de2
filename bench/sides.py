"""The sides that a comparison of transports has: the same server over kernel sockets and in user space, and Redis.

Each side has two network namespaces and a veth pair of its own, all with the same settings, and a server on the
processor `server_processor`. Two sides show what is there without a cable: `kernel_loopback` and `dpdk_memif`. Between
its turns a server is stopped (SIGSTOP): one that polls would take the processor from the side whose turn it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

import replay_server as rs
from replay_server.bench import client as load
from replay_server.bench.client import Measured, Role
from replay_server.bench.lab import Lab, LabError
from replay_server.bench.line import Line
from replay_server.bench.load import cpu_seconds
from replay_server.bench.namespace import NamespaceError
from replay_server.bench.process import end_process
from replay_server.server import find_executable, find_program

PORT = 6379
MEMIF_MTU = 16_370
"""Of the side over shared memory, whose frames may be as long as its buffers. These are of 16,384 bytes: where their
length is no multiple of 64, DPDK's copies are slower."""
BUSY_POLL_US = 1_000_000
"""How long the busily polling kernel side goes on asking before it sleeps: longer than any request here."""
_TCP_COUNTS = {
    "retransmissions": ("transport_retransmissions", ["Tcp:RetransSegs"]),
    "recoveries": ("transport_recoveries", ["TcpExt:TCPSackRecovery"]),
    "timeouts": ("transport_timeouts", ["TcpExt:TCPTimeouts"]),
    "undone": ("transport_undone", [f"TcpExt:TCP{kind}Undo" for kind in ("Full", "Partial", "DSACK", "Loss")]),
}
"""Name → the field of INFO transport of this project's stack, and the kernel's counters that are added up."""
_START_SECONDS = 20.0
_STOP_SECONDS = 2.0


@dataclass(frozen=True)
class Side:
    """One way of serving.

    Attributes:
        device: of the lab.
        transport: of this project's server, or "redis".
        offloads: whether the veth's checksum and segmentation offloads are on.
        mtu: its own, in bytes; 0: the same as the others'.
        polls: whether it takes its processor whole, so that the process's time says nothing of what a request costs.
        config: settings of the server.
    """

    name: str
    about: str
    device: str = "kernel"
    transport: str = "kernel"
    offloads: bool = False
    mtu: int = 0
    polls: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_redis(self) -> bool:
        return self.transport == "redis"

    @property
    def bypasses(self) -> bool:
        """Whether its data port is in user space."""
        return self.transport in ("dpdk", "fstack")

    def missing(self) -> str | None:
        """Why it cannot be measured here; None: it can."""
        if self.is_redis:
            return None if shutil.which("redis-server") else "redis-server is not installed"
        if self.device == "af_xdp" and os.geteuid() != 0:
            return "AF_XDP needs root"
        try:
            find_executable(self.transport)
            if self.device == "memif":
                find_program("replay-bench-client-dpdk")
        except rs.ServerError as error:
            return str(error)
        return None


SIDES = {
    side.name: side
    for side in (
        Side("kernel", "kernel sockets, sleeping until something comes"),
        Side("kernel_busy_poll", "kernel sockets, asked without a pause", polls=True,
             config={"busy-poll-us": BUSY_POLL_US}),
        Side("kernel_offloads", "kernel sockets, with all offloads of the veth on", offloads=True),
        Side("kernel_loopback", "kernel sockets over the loopback: client and server on one host", "loopback"),
        Side("dpdk_af_xdp", "lwIP over DPDK, AF_XDP", "af_xdp", "dpdk", polls=True),
        Side("dpdk_af_packet", "lwIP over DPDK, af_packet", "af_packet", "dpdk", polls=True),
        Side("dpdk_memif", "lwIP over DPDK, memif: the client, too", "memif", "dpdk", mtu=MEMIF_MTU, polls=True),
        Side("fstack_af_xdp", "F-Stack over DPDK, AF_XDP", "af_xdp", "fstack", polls=True),
        Side("fstack_af_packet", "F-Stack over DPDK, af_packet", "af_packet", "fstack", polls=True),
        Side("redis", "Redis over kernel sockets", transport="redis"),
    )
}  # fmt: skip
BASELINE = "kernel"
OFFLOADS = "kernel_offloads"
"""What the kernel's sockets do where nothing is switched off for the sake of equal settings."""


def usual() -> list[str]:
    """The sides of a figure: the kernel's, both stacks in user space, Redis; over AF_XDP where one may."""
    device = usual_device()
    return [BASELINE, OFFLOADS, f"dpdk_{device}", f"fstack_{device}", "redis"]


def usual_device() -> str:
    """Of a server in user space: the fastest that this user may have."""
    return "af_xdp" if os.geteuid() == 0 else "af_packet"


def choose(names: Sequence[str]) -> tuple[list[Side], dict[str, str]]:
    """The sides of those names that can be measured here, and why the others cannot.

    Raises:
        RuntimeError: no such side, or none of them can.
    """
    if unknown := [name for name in names if name not in SIDES]:
        raise RuntimeError(f"no side is called {unknown[0]!r}: expected some of {', '.join(SIDES)}")
    reasons = {name: reason for name in names if (reason := SIDES[name].missing()) is not None}
    chosen = [SIDES[name] for name in names if name not in reasons]
    if not chosen:
        raise RuntimeError("none of the sides can be measured here: " + "; ".join(reasons.values()))
    return chosen, reasons


def processors() -> tuple[int, int]:
    """For the server, and for its clients.

    Raises:
        RuntimeError: there is but one.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise RuntimeError("needs two processors: a server that polls takes one of them whole")
    return allowed[0], allowed[1]


@dataclass(frozen=True)
class Turn:
    """What a load measured, and what it cost.

    Attributes:
        server_cpu_us_per_round: time of the server's that a round of requests took: of its process where it sleeps, of
            what INFO calls transport_busy_us where it polls; None where neither tells.
        server_core_us_per_round: time during which the server's processor was not idle, interrupts and all.
    """

    measured: Measured
    server_cpu_us_per_round: float | None
    server_core_us_per_round: float


class Waker:
    """Continues and ends a process when this one goes, however it goes: a stopped server notices nothing by itself."""

    def __init__(self, pid: int) -> None:
        script = f"cat >/dev/null; kill -CONT {pid} && sleep 2; kill -KILL {pid}"
        self._process = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def dismiss(self) -> None:
        """It is no longer needed."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Host:
    """A side that runs, resting between its turns. A context manager.

    Args:
        tables: created on this project's server.
        relayed: with room for a line in between; `line` lays it.
        mtu: of the veth, in bytes; a side may have its own.
        cubic: as `Lab` takes it.
        config: further settings of this project's server.

    Attributes:
        address: of the server, for `load`.
        client_processor: that clients are to run on.
        client: of this project's server, over a unix socket and so without a transport in user space; None for Redis.
        redis: likewise, of either.
    """

    def __init__(
        self,
        side: Side,
        tables: Iterable[rs.Table] = (),
        *,
        relayed: bool = False,
        mtu: int = 1500,
        cubic: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.side = side
        self._server_processor, self.client_processor = processors()
        self._stack = contextlib.ExitStack()
        self.client: rs.Client | None = None
        try:
            lab = Lab(side.device, mtu=side.mtu or mtu, offloads=side.offloads, relayed=relayed, cubic=cubic)
            self.lab = self._stack.enter_context(lab)
            self.address = f"{self.lab.address}:{PORT}"
            socket = self.lab.folder / "control.sock"
            if side.is_redis:
                self.pid = self._start_redis(socket)
            else:
                server = self.lab.serve(
                    side.transport, tables, {**side.config, **(config or {})}, PORT, self._server_processor, unix=socket
                )
                self.pid = server.pid
                self.client = self._stack.enter_context(rs.Client(f"unix://{socket}"))
            self.redis = redis.Redis(unix_socket_path=str(socket), socket_timeout=60)
            self._stack.callback(self.redis.close)
            self._stack.callback(self.wake)
            waker = Waker(self.pid)
            self._stack.callback(waker.dismiss)
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _start_redis(self, socket: Path) -> int:
        options = {"--bind": self.lab.address, "--port": str(PORT), "--unixsocket": str(socket), "--save": "",
                   "--appendonly": "no", "--protected-mode": "no", "--dir": str(self.lab.folder)}  # fmt: skip
        command = [*self.lab.server_command, "taskset", "--cpu-list", str(self._server_processor), "redis-server"]
        process = subprocess.Popen(
            [*command, *(word for pair in options.items() for word in pair)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._stack.callback(end_process, process)
        return process.pid

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.redis.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > end:
                    raise RuntimeError(f"{self.side.name} did not answer in {_START_SECONDS:.0f} s") from None
                time.sleep(0.02)

    # ---- turns -------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Stops the server until `wake`; it has stopped when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + _STOP_SECONDS
        while _state(self.pid) not in "TZ" and time.monotonic() < end:
            time.sleep(0.001)

    def wake(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """The server runs meanwhile, and rests afterwards."""
        self.wake()
        try:
            yield
        finally:
            self.rest()

    def turn(self, roles: Sequence[Role], seconds: float, warm_up_s: float = 0.1, **options: Any) -> Turn:
        """Loads the server for so long (0: until the rounds of all roles are done); it rests afterwards."""
        warm_up_s = warm_up_s if seconds else 0.0
        with self.awake():
            cpu, core, begin = self._busy_us(), _core_busy_us(self._server_processor), time.perf_counter()
            measured = load.run(
                self.address,
                roles,
                self.lab.folder,
                seconds=seconds,
                warm_up_s=warm_up_s,
                processor=self.client_processor,
                **self.lab.load,
                **options,
            )
            took = time.perf_counter() - begin
            core = _core_busy_us(self._server_processor) - core
            cpu_after = self._busy_us()
            if self.lab.device == "memif":
                self._wait_until_unlinked()
        # Over the whole load, the warm-up and the client's start with it: what goes on beside requests counts little.
        rounds = sum(
            measured.rounds_per_s(role.name) * (seconds + warm_up_s) if seconds else role.rounds * role.connections
            for role in roles
        )
        if self.side.polls:
            core = took * 1e6
        cpu_us = None if cpu is None or cpu_after is None else (cpu_after - cpu) / rounds
        return Turn(measured, cpu_us, core / rounds)

    def _wait_until_unlinked(self) -> None:
        """A server that is stopped while its client leaves may crash when it goes on: DPDK's interrupt thread unmaps
        what the loop reads."""
        end = time.monotonic() + _STOP_SECONDS
        while self.redis.info("transport")["transport_link"] != "down" and time.monotonic() < end:  # type: ignore[index]
            time.sleep(0.001)
        time.sleep(0.01)

    def _busy_us(self) -> float | None:
        if not self.side.polls:
            return cpu_seconds(self.pid) * 1e6
        busy = self.redis.info("all").get("transport_busy_us") if self.side.bypasses else None  # type: ignore[union-attr]
        return None if busy is None else float(busy)

    def tcp_counts(self) -> dict[str, int]:
        """What the server's TCP has done, where it is known: of the stack in user space, or of the kernel."""
        if self.side.bypasses:
            with self.awake():
                info: Any = self.redis.info("transport")
            return {name: info[field] for name, (field, _) in _TCP_COUNTS.items() if field in info}
        told: dict[str, int] = {}
        for name in ("snmp", "netstat"):
            rows = [row.split() for row in Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()]
            for (protocol, *fields), (_, *counts) in zip(rows[::2], rows[1::2], strict=True):
                told |= {protocol + field: int(count) for field, count in zip(fields, counts, strict=True)}
        return {name: sum(told[field] for field in fields) for name, (_, fields) in _TCP_COUNTS.items()}

    def line(self, **options: Any) -> Line:
        """A line between server and clients, of a host made with `relayed`."""
        return Line(self.lab.relay_command, processor=self.client_processor, **options)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _state(pid: int) -> str:
    """One letter, as ps shows it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _core_busy_us(processor: int) -> float:
    """Time that a processor was not idle since the system started, in steps of 10 ms."""
    for row in Path("/proc/stat").read_text().splitlines():
        name, *counts = row.split()
        if name == f"cpu{processor}":
            user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, counts)
            return (user + nice + system + irq + softirq) * 1e6 / os.sysconf("SC_CLK_TCK")
    raise RuntimeError(f"/proc/stat does not tell of processor {processor}")


def start(
    names: Sequence[str], stack: contextlib.ExitStack, tables: Iterable[rs.Table] = (), **options: Any
) -> tuple[list[Host], dict[str, Any]]:
    """Starts the sides of those names, each resting; `options` are those of `Host`.

    Returns:
        The hosts; and for settings of a result "versions" of the servers, and "not_measured": why others are not there.

    Raises:
        RuntimeError: no such side, or none could be started.
    """
    sides, missing = choose(names)
    hosts, versions = [], {}
    for side in sides:
        try:
            host = stack.enter_context(Host(side, tables, **options))
        except (LabError, NamespaceError, rs.ServerError) as error:
            missing[side.name] = str(error)
            continue
        told: Any = host.redis.info("server")
        versions[side.name] = str(told["redis_version" if side.is_redis else "replay_server_version"])
        host.rest()
        hosts.append(host)
    if not hosts:
        raise RuntimeError("none of the sides could be started: " + "; ".join(missing.values()))
    return hosts, {"versions": versions, "not_measured": missing}
