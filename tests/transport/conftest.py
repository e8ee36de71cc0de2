"""Hosts of a test: network namespaces on a switch (a bridge in a namespace of its own), so links can really fail; and a
lab for every transport, on whose client's side the test stands."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from peers import ACK, PEERS_PORTS, RST, STRANGER, Peer, Wire

import replay_server as rs
from replay_server.bench.lab import Lab, LabError, LabServer
from replay_server.bench.namespace import Namespace, NamespaceError, Switch, is_real_root, program
from replay_server.server import find_executable

TRANSPORTS = [
    pytest.param(("kernel", "kernel"), id="kernel"),
    pytest.param(("dpdk", "af_packet"), id="dpdk-af_packet", marks=pytest.mark.dpdk),
    pytest.param(("dpdk", "af_xdp"), id="dpdk-af_xdp", marks=pytest.mark.dpdk),
    pytest.param(("fstack", "af_xdp" if is_real_root() else "af_packet"), id="fstack", marks=pytest.mark.dpdk),
]
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
PAGES_NEEDED = 160


class Network:
    """Hosts of the names given, each with eth0 on one switch. The machine's own network is not touched. `close` ends
    the processes that were started on the hosts, and removes them."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.addresses = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 1)}
        self.processes: list[subprocess.Popen[str]] = []
        self._hosts: dict[str, Namespace] = {}
        self._switch: Switch | None = None
        try:
            for name in hosts:
                self._hosts[name] = Namespace(name, owner=next(iter(self._hosts.values()), None))
            self._switch = Switch(list(self._hosts.values()))
            for name, host in self._hosts.items():
                host.set_up("eth0", f"{self.addresses[name]}/24")
        except BaseException:
            self.close()
            raise

    def start(
        self, host: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a process on a host; what it prints goes to `log`."""
        with open(log, "w") as output:
            process = subprocess.Popen(
                [*self._hosts[host].command, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        self.processes.append(process)
        return process

    def set_link(self, host: str, up: bool) -> None:
        """Cuts a host off, as by pulling its cable out of the switch, or plugs it in again."""
        assert self._switch is not None
        self._switch.set_link(list(self.addresses).index(host), up)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._switch is not None:
            self._switch.close()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()


@pytest.fixture(scope="session")
def sent_again() -> Callable[[socket.socket], int]:
    """How many segments of a connection its client has sent more than once, its SYN among them."""
    total_retrans = 100  # where struct tcp_info has it

    def count(connection: socket.socket) -> int:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, total_retrans + 4)
        return int.from_bytes(told[total_retrans:], sys.byteorder)

    return count


@pytest.fixture
def network() -> Iterator[Network]:
    """Four hosts: a server, two actor hosts, a learner host."""
    try:
        hosts = Network(["server", "actors0", "actors1", "learner"])
    except NamespaceError as error:
        pytest.skip(str(error))
    yield hosts
    hosts.close()


# ---- a lab for every transport ---------------------------------------------------------------------------------------


class Site:
    """A lab with one transport. It has one server at a time, since a device has: the shared one, which is started when
    it is asked for and serves tests that leave it alive, or one of a test's own."""

    def __init__(
        self, transport: str, device: str, config: Mapping[str, Any] | None = None, **lab_options: Any
    ) -> None:
        self.transport, self.device, self.config = transport, device, dict(config or {})
        # A server that polls and its clients keep off each other: who shares a processor with it waits milliseconds.
        first, *others = sorted(os.sched_getaffinity(0))
        polls = transport != "kernel" and bool(others)
        self.lcore, self.processors = (first, set(others)) if polls else (-1, {first, *others})
        self.lab = Lab(device, **lab_options)
        self._shared: LabServer | None = None

    @property
    def address(self) -> str:
        return self.lab.address

    @property
    def shared(self) -> LabServer:
        if self._shared is None or not self._shared.running:
            self._shared = self.serve()
        return self._shared

    def serve(self, tables: Sequence[rs.Table] = (), **options: Any) -> LabServer:
        """Starts a server; the shared one is stopped before."""
        self.stop_shared()
        config = {**self.config, **options.pop("config", {})}
        return self.lab.serve(self.transport, tables, config, lcore=self.lcore, **options)

    def stop_shared(self) -> None:
        if self._shared is not None:
            server, self._shared = self._shared, None
            assert server.running, f"the server died: {server.log()}"
            assert server.stop() == 0, server.log()

    def close(self) -> None:
        with contextlib.closing(self.lab):
            self.stop_shared()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Has this thread stand on the client's side, away from the server's processor."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.processors)
        try:
            with self.lab.on_client():
                yield
        finally:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _open_site(transport: str, device: str, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user cannot stand in a network namespace: test_without_root.py runs these in its own")
    try:
        find_executable(transport)
        site = Site(transport, device, config, **options)
    except (rs.ServerError, LabError, NamespaceError) as error:
        pytest.skip(str(error))
    with contextlib.closing(site):
        yield site


@pytest.fixture(scope="session")
def open_site() -> Callable[..., AbstractContextManager[Site]]:
    """Makes labs (transport, device, a server's settings, `Lab`'s options); skips with the reason where it cannot."""
    return _open_site


@pytest.fixture(scope="session", params=TRANSPORTS)
def built(request: pytest.FixtureRequest, open_site: Any) -> Iterator[Site]:
    """A lab for each transport in turn."""
    with open_site(*request.param) as site:
        yield site


@pytest.fixture
def site(built: Site) -> Iterator[Site]:
    """The lab, while this thread stands on its client's side."""
    with built.entered():
        yield built


@pytest.fixture
def server(site: Site) -> Iterator[LabServer]:
    """The shared server of a transport."""
    server = site.shared
    yield server
    assert server.running, f"the server died: {server.log()}"


@pytest.fixture
def own_server(site: Site) -> Iterator[LabServer]:
    """A server that the test may end."""
    server = site.serve()
    yield server
    server.stop()


@pytest.fixture
def wire(site: Any, client: Any) -> Iterator[Wire]:
    client.redis.ping()  # so that the server's address is known
    made = Wire(site.address)
    with made.socket:
        yield made


@pytest.fixture
def peer(site: Any, client: Any, eventually: Any) -> Iterator[Peer]:
    client.redis.ping()
    made = Peer(site.address, random.choice(PEERS_PORTS))
    yield made
    made.say(RST | ACK)
    made.close()
    # Those that it left behind. A reset from a place in the stream that the server does not expect ends nothing.
    for told in client.redis.client_list():
        if told["addr"].startswith(f"{STRANGER}:"):
            client.redis.client_kill_filter(addr=told["addr"])
    eventually(
        lambda: client.redis.info("clients")["connected_clients"] <= len(client.redis.client_list()),
        "what was written before they were closed is delivered, or given up",
    )


# ---- huge pages, which servers on one device share -------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of huge pages; those that are missing are reserved meanwhile."""
    if not is_real_root():
        pytest.skip("huge pages are reserved and mounted by the machine's root alone")
    folder = tmp_path_factory.mktemp("pages")
    before = int((PAGES / "nr_hugepages").read_text())
    missing = max(0, PAGES_NEEDED - int((PAGES / "free_hugepages").read_text()))
    try:
        (PAGES / "nr_hugepages").write_text(str(before + missing))
        if int((PAGES / "free_hugepages").read_text()) < PAGES_NEEDED:
            pytest.skip(f"the machine cannot reserve {PAGES_NEEDED} huge pages of 2 MB now")
        mount = [program("mount", "mount"), "-t", "hugetlbfs", "-o", "pagesize=2M", "nodev", str(folder)]
        mounted = subprocess.run(mount, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"huge pages cannot be mounted: {mounted.stderr.strip()}")
        yield folder
        subprocess.run([program("umount", "mount"), str(folder)], check=True)
    finally:
        (PAGES / "nr_hugepages").write_text(str(before))


@pytest.fixture
def lab(pages: Path) -> Iterator[Lab]:
    """One whose device several servers can share."""
    try:
        find_executable("dpdk")
        made = Lab("tap")
    except (rs.ServerError, LabError, NamespaceError) as error:
        pytest.skip(str(error))
    with made:
        yield made
