"""The host: what this process may do, hugepages, processors."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

from .. import dpdk
from ..errors import ServerError
from ..server import find_executable
from .device import Target, vfio_file
from .finding import PAGES_APART_BYTES, Finding, Subject, advice, fact, ok, problem, read

_CAPABILITIES = {"cap_net_admin": 12, "cap_net_raw": 13, "cap_ipc_lock": 14, "cap_sys_admin": 21, "cap_bpf": 39}
_NEEDED = {
    "net_af_packet": ("cap_net_raw", "cap_net_admin"),
    "net_af_xdp": ("cap_net_raw", "cap_net_admin", "cap_bpf"),
    "net_tap": ("cap_net_admin",),
}


# ---- privileges -----------------------------------------------------------------------------------------------------


def capabilities(executable: Path | None = None) -> set[str]:
    """Capabilities that this process has, or that the executable would be given."""
    bits = int(re.findall(r"^CapEff:\s*(\w+)", read(Path("/proc/self/status")), re.MULTILINE)[0], 16)
    if executable is not None:
        bits |= _file_capabilities(executable)
    return {name for name, bit in _CAPABILITIES.items() if bits >> bit & 1}


def _file_capabilities(executable: Path) -> int:
    """Capabilities that a file gives to who runs it: the permitted sets of its attribute (capabilities(7))."""
    try:
        value = os.getxattr(executable, "security.capability")
    except OSError:
        return 0
    words = struct.unpack(f"<{len(value) // 4}I", value)
    return words[1] | (words[3] << 32 if len(words) > 3 else 0)


def _is_in_a_user_namespace() -> bool:
    return read(Path("/proc/self/uid_map")).split() != ["0", "0", "4294967295"]


def examine_privileges(subject: Subject, target: Target) -> Iterator[Finding]:
    """What the server's process will be allowed to do, if it is started as this one was."""
    executable = None
    with contextlib.suppress(ServerError):  # that it was not built is another finding
        executable = find_executable(subject.transport or "dpdk")
    has = capabilities(executable)
    missing = [name for name in _NEEDED.get(target.driver, ()) if name not in has]
    if "cap_bpf" in missing and "cap_sys_admin" in has:
        missing.remove("cap_bpf")
    if missing:
        whole = ",".join((*_NEEDED[target.driver], "cap_ipc_lock"))
        grant = f"sudo setcap {whole}+ep {executable}" if executable else "sudo replay-server serve …"
        yield problem(
            "privileges",
            f"{target.driver} needs {', '.join(name.upper() for name in missing)}: start the server as root, or let "
            "its executable give them",
            grant,
        )
    elif target.driver == "net_af_xdp" and _is_in_a_user_namespace():
        message = (
            "AF_XDP loads a program into the kernel, which root of a user namespace may not: net_af_packet works there"
        )
        yield problem("privileges", message)
    elif target.driver in _NEEDED:
        yield ok("privileges", f"{target.driver}: has {', '.join(_NEEDED[target.driver])}")
    if target.kind == "pci" and target.found is not None and target.found.driver == "vfio-pci":
        yield from _examine_vfio_access(target.found)
    yield from _examine_locked_memory(subject, target, has)


def _examine_vfio_access(device: dpdk.Device) -> Iterator[Finding]:
    for file in dict.fromkeys((Path("/dev/vfio/vfio"), vfio_file(device))):
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            message = f"{file} cannot be opened by this user: start the server as root, or give the file away"
            yield problem("privileges", message, f"sudo chown {os.geteuid()} {file}")


def _examine_locked_memory(subject: Subject, target: Target, has: set[str]) -> Iterator[Finding]:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    wanted = 0
    if target.kind == "pci":
        wanted = subject.memory_bytes  # vfio locks what the device may write to
    elif target.driver == "net_af_packet":
        frames, frame_bytes = target.argument("framecnt", "8192"), target.argument("framesz", "2048")
        wanted = 2 * int(frames) * int(frame_bytes)  # a ring each way; what is not said, the transport chooses so
    if not wanted or limit == resource.RLIM_INFINITY or ("cap_ipc_lock" in has and not _is_in_a_user_namespace()):
        return
    who = os.environ.get("USER", "*")
    if limit < wanted:
        yield problem(
            "memlock",
            f"at most {limit >> 10} kB of memory may be locked (ulimit -l), and {wanted >> 10} kB will be: raise it in "
            "/etc/security/limits.d and log in again",
            f"echo '{who} - memlock unlimited' | sudo tee /etc/security/limits.d/replay-server.conf",
        )
    else:
        yield ok("memlock", f"{limit >> 10} kB of memory may be locked")


# ---- hugepages ------------------------------------------------------------------------------------------------------


def examine_hugepages(subject: Subject, target: Target, users: str) -> Iterator[Finding]:
    """Pages for packets. Only PCI devices need them: virtual ones work on ordinary memory. `users`: of the device."""
    if target.kind in ("interface", "virtual"):
        yield ok("hugepages", "not needed by a virtual device")
        return
    node = target.found.node if target.found is not None else -1
    pages = dpdk.hugepages(subject.sysfs)
    if not pages:
        yield problem("hugepages", "this kernel has no hugepages")
        return
    nodes = {found.node for found in pages}
    near = [found for found in pages if node not in nodes or found.node == node]
    free, wanted = sum(found.free_bytes for found in near), subject.memory_bytes + PAGES_APART_BYTES
    where = f" on memory node {node}" if node in nodes and len(nodes) > 1 else ""
    if free >= wanted:
        yield ok("hugepages", f"{free >> 20} MB free{where}")
        return
    total = sum(found.size_bytes * found.total for found in near)
    state = "none are reserved" if total == 0 else f"{free >> 20} of {total >> 20} MB are free"
    message = f"hugepages: {state}{where}, {wanted >> 20} MB are wanted"
    if total and users:
        yield fact("hugepages", f"{free >> 20} of {total >> 20} MB are free{where}, and {users}")
        return
    if total:
        message += " (does another server use them?)"
    yield problem("hugepages", message, _reserve(wanted, near, node if where else None))


def _reserve(wanted: int, near: list[dpdk.Hugepages], node: int | None) -> str:
    smallest = near[0]
    count = smallest.total - smallest.free + -(-wanted // smallest.size_bytes)
    name = f"hugepages-{smallest.size_bytes >> 10}kB/nr_hugepages"
    folder = f"/sys/devices/system/node/node{node}/hugepages" if node is not None else "/sys/kernel/mm/hugepages"
    return f"echo {count} | sudo tee {folder}/{name}"


# ---- processors -----------------------------------------------------------------------------------------------------


def expand_list(text: str) -> list[int]:
    """ "0-2,5" → 0, 1, 2, 5."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def examine_processors(subject: Subject, target: Target) -> Iterator[Finding]:
    """The server polls on one processor, without a pause."""
    folder = subject.sysfs / "devices/system/cpu"
    online, isolated = expand_list(read(folder / "online")), expand_list(read(folder / "isolated"))
    if len(online) < 2:
        yield problem("processors", "there is one processor: the server would take it whole, two are needed")
        return
    lcore = subject.lcore
    if lcore >= 0 and lcore not in online:
        yield problem("processors", f"lcore {lcore} is not there: expected one of {read(folder / 'online')}")
        return
    candidates = [lcore] if lcore >= 0 else isolated
    if not set(candidates) & set(isolated):
        one = lcore if lcore >= 0 else online[-1]
        others = ",".join(str(number) for number in online if number != one)
        yield advice(
            "processors",
            f"processor {one}, on which the server {'polls' if lcore >= 0 else 'could poll'}, is not isolated: what "
            "else runs there shows in the slowest requests. Append to GRUB_CMDLINE_LINUX in /etc/default/grub: "
            f"isolcpus=managed_irq,domain,{one} nohz_full={one} rcu_nocbs={one} irqaffinity={others}",
            "sudo update-grub",
            "sudo reboot",
        )
    else:
        yield ok("processors", f"isolated: {read(folder / 'isolated')}")
    node = target.found.node if target.found is not None else -1
    near = expand_list(read(subject.sysfs / f"devices/system/node/node{node}/cpulist")) if node >= 0 else []
    if lcore >= 0 and near and lcore not in near:
        message = f"processor {lcore} is not on the NIC's memory node {node}: every packet crosses between nodes"
        yield advice("processors", f"{message}. Its processors are {', '.join(map(str, near))}: --dpdk-lcore")
