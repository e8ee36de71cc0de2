"""What the doctor is asked about, and what it finds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Level = Literal["ok", "fact", "advice", "problem"]
_COMMAND_SECONDS = 20.0
PAGES_APART_BYTES = 128 << 20
"""Of hugepages, what DPDK needs beside packets; setup_dpdk.sh reserves it too."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: its name: "hugepages", "driver", "address", …
        level: "problem": a server will not run, or not be reached; "advice": it will, but worse than it could.
        message: what is there, and what was expected.
        type: commands that change it, in order. What only a person can do stands in the message.
    """

    check: str
    level: Level
    message: str
    type: tuple[str, ...] = ()


def problem(check: str, message: str, *type: str) -> Finding:
    """Something that is wrong."""
    return Finding(check, "problem", message, type)


def advice(check: str, message: str, *type: str) -> Finding:
    """Something that could be better."""
    return Finding(check, "advice", message, type)


def fact(check: str, message: str, *type: str) -> Finding:
    """Something that is neither good nor bad, and worth knowing."""
    return Finding(check, "fact", message, type)


def ok(check: str, message: str) -> Finding:
    """Something that is as it should be."""
    return Finding(check, "ok", message)


@dataclass(frozen=True)
class Subject:
    """What the doctor is asked about; None, "" and −1: not said.

    Attributes:
        device: PCI address, DPDK's virtual device ("net_af_xdp0,iface=eth1"), or an interface.
        address: the server's, with its mask: "10.0.0.2/24".
        gateway: for clients elsewhere.
        transport: "dpdk" or "fstack".
        mtu: bytes of IP, 0 = the device's.
        lcore: processor that the server polls on.
        memory_bytes: for packets.
        sysfs: /sys, or a folder like it.
        environment: of processes that the doctor starts, and where FF_PATH is looked for.
    """

    device: str | None = None
    address: str | None = None
    gateway: str | None = None
    transport: str | None = None
    mtu: int = 0
    lcore: int = -1
    memory_bytes: int = (1 << 30) - PAGES_APART_BYTES
    sysfs: Path = Path("/sys")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def set_up_command(self) -> str:
        """setup_dpdk.sh with what is known."""
        options = f"--device {self.device or 'DEVICE'} --address {self.address or 'ADDRESS/MASK'}"
        return f"sudo ./setup_dpdk.sh {options}" + (f" --transport {self.transport}" if self.transport else "")


def read(path: Path, missing: str = "") -> str:
    """A small file's text without the blanks around it."""
    try:
        return path.read_text().strip()
    except OSError:
        return missing


def program(name: str) -> str | None:
    """Path of a program, also of an administrator's that stands outside an ordinary user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def output(*command: str) -> str | None:
    """What a short command prints; None where it is not installed or fails."""
    path = program(command[0])
    if path is None:
        return None
    try:
        result = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
