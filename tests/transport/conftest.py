"""Hosts of a test: network namespaces on a switch (a bridge in a namespace of its own), so links can really fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from replay_server.bench.namespace import Namespace, NamespaceError, Switch


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
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._switch is not None:
            self._switch.close()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()


@pytest.fixture
def network() -> Iterator[Network]:
    """Four hosts: a server, two actor hosts, a learner host."""
    try:
        hosts = Network(["server", "actors0", "actors1", "learner"])
    except NamespaceError as error:
        pytest.skip(str(error))
    yield hosts
    hosts.close()
