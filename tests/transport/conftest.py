"""Hosts of a test: network namespaces on a switch (a bridge in a namespace of its own), so links can really fail."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

IP = shutil.which("ip") or "/usr/sbin/ip"
_serial = itertools.count()


def ip(*arguments: str) -> None:
    result = subprocess.run([IP, *arguments], capture_output=True, text=True, timeout=20)
    if result.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


class Network:
    """Hosts of the names given, each in a network namespace with eth0, all on one switch. The machine's own network is
    not touched. `close` ends the processes that were started on the hosts, and removes the namespaces."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.prefix = f"rs{os.getpid()}n{next(_serial)}"
        self.addresses = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 1)}
        self.processes: list[subprocess.Popen[str]] = []
        self._namespaces: list[str] = []
        try:
            switch = self._add_namespace("switch")
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge", "up")
            for number, host in enumerate(hosts, 1):
                namespace = self._add_namespace(host)
                port = f"port{number}"
                ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
                ip("-n", switch, "link", "set", port, "master", "bridge", "up")
                ip("-n", namespace, "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
                ip("-n", namespace, "link", "set", "eth0", "up")
                ip("-n", namespace, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _add_namespace(self, host: str) -> str:
        name = f"{self.prefix}-{host}"
        ip("netns", "add", name)
        self._namespaces.append(name)
        return name

    def start(
        self, host: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a process on a host; what it prints goes to `log`."""
        with open(log, "w") as output:
            process = subprocess.Popen(
                [IP, "netns", "exec", f"{self.prefix}-{host}", *command],
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
        number = list(self.addresses).index(host) + 1
        ip("-n", f"{self.prefix}-switch", "link", "set", f"port{number}", "up" if up else "down")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self._namespaces:
            with contextlib.suppress(RuntimeError):
                ip("netns", "delete", name)
        self._namespaces.clear()


@pytest.fixture
def network() -> Iterator[Network]:
    """Four hosts: a server, two actor hosts, a learner host."""
    if not Path(IP).exists():
        pytest.skip("needs the command ip (apt-get install iproute2)")
    try:
        hosts = Network(["server", "actors0", "actors1", "learner"])
    except RuntimeError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield hosts
    hosts.close()
