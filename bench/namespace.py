"""Hosts made of network namespaces: with cables and a switch between them, as root or in a user namespace.

A namespace is held by a process that ends with the one that made it, so nothing is left behind even after kill -9.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro")
_SYSFS = 'umount -l /sys 2>/dev/null; mount -t sysfs sysfs /sys 2>/dev/null; exec "$@"'
_HOLD = 'echo held && read -r _; [ -z "$1" ] || rm -rf -- "$1"'
_CLONE_NEWNET = 0x40000000
_COMMAND_SECONDS = 20.0
_END_SECONDS = 10.0


class NamespaceError(RuntimeError):
    """Namespaces, or what is in them, cannot be made here; the message says why and what to do."""


def is_real_root() -> bool:
    """Whether the caller is the machine's root, and not that of a user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]


def program(name: str, package: str) -> str:
    """Path of an administrator's program, which may stand outside an ordinary user's PATH.

    Raises:
        NamespaceError: it is not installed.
    """
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise NamespaceError(f"needs the command {name}: apt-get install {package}")
    return path


def _set_namespace(descriptor: int) -> None:
    # os.setns is of Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NamespaceError(f"cannot enter a network namespace: {os.strerror(number)}")


class Namespace:
    """A host: a network namespace with a loopback of its own, and processes. A context manager.

    Args:
        name: as messages call it.
        owner: a namespace whose user namespace this one shall share.
        folder: removed with it, even when the caller was killed; "" = none.
        as_user: in a user namespace, where the caller becomes root; None: unless the caller is root, or `owner` is not.

    Attributes:
        command: what to put before a command that is to run in it.
        command_with_sysfs: the same, with a /sys of its network and not the caller's, which DPDK's drivers read.
        pid: of the process that holds it.
    """

    def __init__(
        self,
        name: str,
        owner: Namespace | None = None,
        as_user: bool | None = None,
        folder: str | os.PathLike[str] = "",
    ) -> None:
        self.name = name
        self.as_user = (os.geteuid() != 0 if as_user is None else as_user) if owner is None else owner.as_user
        unshare, nsenter = program("unshare", "util-linux"), program("nsenter", "util-linux")
        hold = [unshare, "--net"]
        if self.as_user and owner is None:
            hold += ["--user", "--map-root-user"]
        elif self.as_user and owner is not None:
            hold = [nsenter, "--target", str(owner.pid), "--user", "--preserve-credentials", *hold]
        # It ends when this process lets go of its standard input, at the latest when this process ends.
        self._holder = subprocess.Popen(
            [*hold, "sh", "-c", _HOLD, "sh", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"held\n":
            said = self._holder.stderr.read().decode(errors="replace").strip()
            self._let_go()
            advice = "root without CAP_SYS_ADMIN, as in a container, cannot make network namespaces"
            if self.as_user:
                advice = "this system lets only root make user namespaces (sysctl kernel.unprivileged_userns_clone, "
                advice += "kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces): run it as root"
            raise NamespaceError(f"no network namespace can be made: {said}: {advice}")
        self._closed = False
        self.pid = self._holder.pid
        self._network = os.readlink(f"/proc/{self.pid}/ns/net")
        self.command = [nsenter, f"--net=/proc/{self.pid}/ns/net"]
        if self.as_user:
            self.command = [nsenter, "--target", str(self.pid), "--user", "--net", "--preserve-credentials"]
        # Every link of this chain becomes the next: the process id stays the caller's child.
        mounts = [unshare, "--mount", "--propagation", "private"]
        self.command_with_sysfs = [*self.command, *mounts, "sh", "-c", _SYSFS, "sh"]
        self.ip("link", "set", "lo", "up")

    def run(self, *command: str) -> str:
        """Runs a short command in it; what that printed.

        Raises:
            NamespaceError: it failed; the message holds what it said.
        """
        result = subprocess.run(
            [*self.command, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
        )
        if result.returncode != 0:
            said = result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}"
            raise NamespaceError(f"on {self.name}: {' '.join(command)}: {said}")
        return result.stdout

    def ip(self, *arguments: str) -> str:
        """Runs `ip` in it."""
        return self.run(program("ip", "iproute2"), *arguments)

    def set_up(self, interface: str, address: str | None = None, mtu: int = 1500, offloads: bool = True) -> None:
        """Brings an interface up, with an IPv4 address and its mask, or with none at all for a device of user space."""
        if not offloads:
            self.disable_offloads(interface)
        if address is not None:
            self.ip("address", "add", address, "dev", interface)
        # No IPv6: the kernel's own neighbour discovery would talk into a device that is not its. A kernel without IPv6
        # refuses.
        with contextlib.suppress(NamespaceError):
            self.ip("link", "set", interface, "addrgenmode", "none")
        self.ip("link", "set", interface, "mtu", str(mtu), "up")

    def disable_offloads(self, interface: str) -> None:
        """Has every frame carry its checksum, and be one frame: what a device in user space sends and expects.

        With offloads a veth passes checksums that nobody has computed and segments of 64 kB: TCP never connects, or
        large transfers hang.
        """
        switches = [word for name in _OFFLOADS for word in (name, "off")]
        self.run(program("ethtool", "ethtool"), "-K", interface, *switches)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Has the calling thread stand in it: sockets that it opens, processes and threads that it starts, are there.

        Raises:
            NamespaceError: it belongs to another user namespace, which a thread cannot enter.
        """
        if self.as_user:
            raise NamespaceError(f"{self.name} is in a user namespace, which only a process of its own can enter")
        with open("/proc/thread-self/ns/net") as home, open(f"/proc/{self.pid}/ns/net") as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(home.fileno())

    def processes(self) -> list[int]:
        """Ids of the processes in it, without the one that holds it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns" / "net") == self._network:
                        found.append(int(entry.name))
        return found

    def end_processes(self) -> None:
        """Ends what still runs in it: asks, and then kills."""
        for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + seconds
            while self.processes():
                if time.monotonic() > end:
                    break
                time.sleep(0.02)
            else:
                return

    def close(self) -> None:
        """Ends its processes, then the namespace, and with it the interfaces in it."""
        if self._closed:
            return
        self._closed = True
        try:
            self.end_processes()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._holder.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Namespace({self.name!r}, pid={self.pid})"


def connect(left: Namespace, left_interface: str, right: Namespace, right_interface: str) -> None:
    """Lays a cable (a veth pair) between two hosts; its ends are down."""
    # One queue: frames come in where the peer sent them from, and a device of user space looks at the first one.
    queues = ("numtxqueues", "1", "numrxqueues", "1")
    peer = ("peer", "name", right_interface, "netns", str(right.pid), *queues)
    left.ip("link", "add", "name", left_interface, *queues, "type", "veth", *peer)


class Switch:
    """A bridge in a namespace of its own, with a cable to each host's eth0; the ends at the hosts are down."""

    def __init__(self, hosts: Sequence[Namespace], mtu: int = 1500, offloads: bool = True) -> None:
        self.namespace = Namespace("switch", owner=hosts[0])
        try:
            self.namespace.ip("link", "add", "bridge", "type", "bridge")
            self.namespace.set_up("bridge", mtu=mtu)
            for number, host in enumerate(hosts):
                connect(self.namespace, f"port{number}", host, "eth0")
                self.namespace.ip("link", "set", f"port{number}", "master", "bridge")
                self.namespace.set_up(f"port{number}", mtu=mtu, offloads=offloads)
        except BaseException:
            self.namespace.close()
            raise

    def set_link(self, number: int, up: bool) -> None:
        """Pulls the cable of a host, by its place among them, out of the switch, or plugs it in again."""
        self.namespace.ip("link", "set", f"port{number}", "up" if up else "down")

    def close(self) -> None:
        self.namespace.close()
