"""A virtual machine with NICs behind an emulated IOMMU, on the network of a namespace that is the clients' host.

QEMU interprets the guest (TCG), so nothing in it is fast, and no time measured there says anything of a NIC.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest import CHECKOUT, Guest

from replay_server.bench.namespace import Namespace, NamespaceError, program

BOOT_SECONDS = 900.0  # a busy host takes ten times as long as a quiet one
COMMAND_SECONDS = 600.0
MANAGEMENT_MAC = "52:54:00:00:01:00"
_MEMORY_MB = 4096
_SSH_PORT = 2222  # on the namespace's own loopback
_IOMMU = "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"
_OPTIONS = {"virtio-net-pci": "disable-legacy=on,iommu_platform=on,ats=on"}


@dataclass(frozen=True)
class Nic:
    """A NIC of the guest, alone behind a root port, and the client's end of its cable.

    Attributes:
        model: as QEMU calls it.
        number: from 1 on; names addresses, too.
    """

    model: str
    number: int

    @property
    def name(self) -> str:
        """Of the cable, for QEMU."""
        return f"nic{self.number}"

    @property
    def mac(self) -> str:
        return f"52:54:00:00:00:{self.number:02x}"

    @property
    def network(self) -> str:
        return f"10.77.{self.number}"

    @property
    def server(self) -> str:
        """Address that the server in the guest is given."""
        return f"{self.network}.2"


class Result(subprocess.CompletedProcess[str]):
    """What a command in the guest printed (both streams), and its status."""


def qemu_models() -> set[str]:
    """The kinds of NIC that this QEMU has."""
    listed = subprocess.run([_qemu(), "-device", "help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r'name "([^"]+)"', listed.partition("Network devices:")[2].partition("\n\n")[0]))


def _qemu() -> str:
    return program("qemu-system-x86_64", "qemu-system-x86")


class Machine:
    """The guest, started. A context manager, which ends QEMU and the namespace."""

    def __init__(self, guest: Guest, nics: Sequence[Nic], folder: Path, iommu: bool = True) -> None:
        self.nics = list(nics)
        self.client = Namespace("clients", folder="")
        self._guest, self._folder = guest, folder
        self._qmp: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            overlay = folder / "overlay.qcow2"
            image = program("qemu-img", "qemu-utils")
            subprocess.run([image, "create", "-q", "-f", "qcow2", "-b", guest.disk, "-F", "raw", overlay], check=True)
            for nic in self.nics:
                self.client.run("ip", "tuntap", "add", "dev", nic.name, "mode", "tap")
                self.client.run("ip", "address", "add", f"{nic.network}.1/24", "dev", nic.name)
                self.client.run("ip", "link", "set", nic.name, "up")
            with open(folder / "qemu.log", "wb") as log:
                self._process = subprocess.Popen(
                    [*self.client.command, *self._command(overlay, iommu)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._qmp = self._connect()
            self.wait_for_boot()
        except BaseException:
            self.close()
            raise

    def _command(self, overlay: Path, iommu: bool) -> list[str]:
        arguments = "root=/dev/vda rw console=ttyS0 quiet" + (" intel_iommu=on iommu=pt" if iommu else "")
        command = [
            _qemu(), "-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
            "-m", str(_MEMORY_MB), "-nodefaults", "-display", "none", "-no-user-config",
            "-kernel", str(self._guest.kernel), "-initrd", str(self._guest.initrd), "-append", arguments,
            "-serial", f"file:{self._folder / 'console.log'}", "-qmp", f"unix:{self._folder / 'qmp'},server,wait=off",
            "-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
            "-drive", f"file={overlay},if=none,id=disk,format=qcow2,cache=unsafe",
            "-device", "virtio-blk-pci,drive=disk",
            "-netdev", f"user,id=management,hostfwd=tcp:127.0.0.1:{_SSH_PORT}-:22",
            "-device", f"virtio-net-pci,netdev=management,mac={MANAGEMENT_MAC}",
        ]  # fmt: skip
        if iommu:
            command += ["-device", _IOMMU]
        for nic in self.nics:
            port = f"port{nic.number}"
            options = _OPTIONS.get(nic.model, "")
            device = f"{nic.model},netdev={nic.name},bus={port},mac={nic.mac},id=dev-{nic.name}"
            command += [
                "-device", f"pcie-root-port,id={port},slot={nic.number},chassis={nic.number}",
                "-netdev", f"tap,id={nic.name},ifname={nic.name},script=no,downscript=no",
                "-device", f"{device},{options}" if options and iommu else device,
            ]  # fmt: skip
        return command

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the guest as a power failure does."""
        if self._qmp is not None:
            self._qmp.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        self.client.close()

    # ---- commands in the guest --------------------------------------------------------------------------------------

    def run(self, *command: str, timeout_s: float = COMMAND_SECONDS) -> Result:
        """Runs a command of root's in the checkout; standard error is part of what it printed."""
        line = f"cd {CHECKOUT} && {shlex.join(command)} 2>&1"
        result = subprocess.run(
            [*self._ssh(), line], capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
        return Result(command, result.returncode, result.stdout, result.stderr)

    def check(self, *command: str, timeout_s: float = COMMAND_SECONDS) -> str:
        """The same, of a command that succeeds."""
        result = self.run(*command, timeout_s=timeout_s)
        assert result.returncode == 0, f"{shlex.join(command)}: exit status {result.returncode}\n{result.stdout}"
        return result.stdout

    def wait_for(self, *command: str, timeout_s: float = COMMAND_SECONDS) -> str:
        """The same, of a command that succeeds sooner or later."""
        end = time.monotonic() + timeout_s
        while (result := self.run(*command)).returncode != 0:
            assert time.monotonic() < end, f"{shlex.join(command)}\n{result.stdout}{result.stderr}"
            time.sleep(1)
        return result.stdout

    def interface(self, nic: Nic) -> str:
        """The guest kernel's interface of a NIC."""
        links = json.loads(self.check("ip", "-json", "link"))
        return next(link["ifname"] for link in links if link["address"] == nic.mac)

    def _ssh(self) -> list[str]:
        options = (
            "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=60",
            "ServerAliveInterval=30", "ServerAliveCountMax=10", "BatchMode=yes",
        )  # fmt: skip
        ssh = [program("ssh", "openssh-client"), "-i", str(self._guest.key), "-p", str(_SSH_PORT), "-F", os.devnull]
        return [*self.client.command, *ssh, *(f"-o{option}" for option in options), "root@127.0.0.1"]

    def wait_for_boot(self) -> None:
        """Until root can log in."""
        end = time.monotonic() + BOOT_SECONDS
        while subprocess.run([*self._ssh(), "true"], capture_output=True).returncode != 0:
            assert self._process is not None
            if self._process.poll() is not None:
                raise NamespaceError(f"QEMU ended: {(self._folder / 'qemu.log').read_text(errors='replace')}")
            if time.monotonic() > end:
                console = (self._folder / "console.log").read_text(errors="replace")
                raise TimeoutError(f"the guest did not boot in {BOOT_SECONDS:.0f} s; its console: {console[-2000:]}")
            time.sleep(2)

    def restart(self) -> None:
        """Restarts the guest's system."""
        before = self.check("cat", "/proc/sys/kernel/random/boot_id")
        self.run("systemctl", "reboot")
        end = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                now = self.run("cat", "/proc/sys/kernel/random/boot_id", timeout_s=120)
                if now.returncode == 0 and now.stdout != before:
                    return
            time.sleep(3)
        raise TimeoutError(f"the guest did not come back in {BOOT_SECONDS:.0f} s")

    # ---- QEMU's monitor ---------------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        end = time.monotonic() + 60
        while True:
            monitor = socket.socket(socket.AF_UNIX)
            try:
                monitor.connect(str(self._folder / "qmp"))
                break
            except OSError:
                monitor.close()
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise NamespaceError(f"QEMU ended: {(self._folder / 'qemu.log').read_text()}") from None
                time.sleep(0.2)
        self._lines = monitor.makefile("r")
        self._lines.readline()  # its greeting
        self._qmp = monitor
        self._ask("qmp_capabilities")
        return monitor

    def _ask(self, command: str, **arguments: Any) -> None:
        assert self._qmp is not None
        self._qmp.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while "return" not in (answer := json.loads(self._lines.readline())):
            assert "error" not in answer, answer

    def set_cable(self, nic: Nic, plugged: bool) -> None:
        """Pulls a NIC's cable, or puts it back."""
        self._ask("set_link", name=f"dev-{nic.name}", up=plugged)
