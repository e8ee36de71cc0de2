"""A trial: DPDK takes the device in a process of its own, for a moment, and tells of its link and of the address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from .. import dpdk
from .address import conflict, who_has, who_has_on_interface
from .device import Target, interface_state, vfio_file
from .finding import Finding, Subject, fact, ok, problem

_TRIAL_SECONDS = 40.0
_LINK_SECONDS = 9.0  # what a NIC may take to negotiate
_POLL_SECONDS = 0.001


def examine_by_trial(subject: Subject, target: Target) -> Iterator[Finding]:
    """Whether DPDK can use the device, whether its link is up, and whether somebody else has the address."""
    users = users_of(target)
    if users:
        yield fact("trial", f"{users}, so the device was not tried out")
    elif dpdk.available():
        yield from _examine_answer(subject, target, _run(subject, target))
        return
    yield from examine_address_by_kernel(subject, target)


def users_of(target: Target) -> str:
    """Who uses the device now, in words; "" = nobody. To try it then would disturb them, or wait for them."""
    if target.kind == "pci" and target.found is not None and target.found.driver == "vfio-pci":
        wanted = str(vfio_file(target.found))
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                opened = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{process}/fd")}
            except OSError:
                continue  # gone, or somebody else's
            if wanted in opened:
                return f"process {process} uses {wanted}"
    state = interface_state(target.interface) if target.interface else None
    if state is not None and ("xdp" in state or state.get("linkinfo", {}).get("info_xdp")):
        return f"an XDP program is on {target.interface} (a server's, as long as one runs)"
    return ""


def examine_address_by_kernel(subject: Subject, target: Target) -> Iterator[Finding]:
    """Asks for the address through the kernel's interface, where there is one and packet sockets are allowed."""
    state = interface_state(target.interface) if target.interface else None
    if not subject.address or state is None or "LOWER_UP" not in state["flags"]:
        return
    address = subject.address.partition("/")[0]
    try:
        answer = who_has_on_interface(address, target.interface)
    except PermissionError:
        message = f"whether another host has {address} was not asked: that needs CAP_NET_RAW"
        yield fact("address", message, "sudo replay-server doctor …")
        return
    except OSError as error:
        yield fact("address", f"whether another host has {address} could not be asked: {error.strerror}")
        return
    yield conflict(address, answer) if answer else ok("address", f"no other host has {address}")


# ---- the child's answer ---------------------------------------------------------------------------------------------


def _run(subject: Subject, target: Target) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="replay-doctor-") as folder:
        order = {
            "device": target.pci or subject.device,
            "pci": target.kind == "pci",
            "address": (subject.address or "").partition("/")[0],
            "prefix": os.path.basename(folder),
            "mtu": subject.mtu,
        }
        try:
            result = subprocess.run(
                [sys.executable, "-m", __name__],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                timeout=_TRIAL_SECONDS,
                env={**subject.environment, "RUNTIME_DIRECTORY": folder},
            )
        except subprocess.TimeoutExpired:
            return {"error": f"DPDK did not come to an end within {_TRIAL_SECONDS:.0f} s"}
    try:
        return json.loads(result.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = " | ".join((result.stderr or result.stdout).splitlines()[-4:])
        return {"error": f"DPDK ended with status {result.returncode}: {said}"}


def _examine_answer(subject: Subject, target: Target, answer: dict[str, Any]) -> Iterator[Finding]:
    if "error" in answer:
        yield problem("trial", f"DPDK cannot use {subject.device}: {answer['error']}")
        return
    offloads = ", ".join(answer["offloads"]) or "none"
    told = (
        f"DPDK uses {subject.device}: driver {answer['driver']}, mac {answer['mac']}, mtu at most {answer['mtu_max']}, "
    )
    yield ok("trial", told + f"offloads for sending: {offloads}")
    if answer["mtu_refused"]:
        yield problem(
            "mtu",
            f"the device does not take an mtu of {subject.mtu} bytes, which the server is told "
            f"({answer['mtu_refused']}): say dpdk-mtu = 1500 in its file",
        )
    if not answer["up"]:
        yield problem("link", f"the link of {subject.device} is down: cable, switch port, or the other end")
        return
    if target.kind != "interface":
        speed = f", {answer['speed_mbps']} Mb/s" if answer["speed_mbps"] else ""
        yield ok("link", f"the link is up{speed}")
    address = (subject.address or "").partition("/")[0]
    if answer["answer"]:
        yield conflict(address, bytes.fromhex(answer["answer"]))
    elif address:
        yield ok("address", f"no other host has {address}")


# ---- the child ------------------------------------------------------------------------------------------------------


def _try(order: dict[str, Any]) -> dict[str, Any]:
    device = order["device"]
    memory = ["--in-memory"] if order["pci"] else ["--no-shconf", "--no-huge", "-m", "64"]
    devices = ["-a", device] if order["pci"] else ["--no-pci"]
    with dpdk.Eal("--no-telemetry", "--file-prefix", order["prefix"], *memory, *devices) as eal:
        ports = eal.ports() if order["pci"] else [eal.attach(device)]
        if not ports:
            said = " | ".join(eal.log().splitlines()[-4:])
            raise dpdk.DpdkError(f"no driver of DPDK took it; DPDK says: {said}", 19)
        port = ports[0]
        info = port.info()
        mtu_refused = _start(port, order["mtu"])
        end = time.monotonic() + _LINK_SECONDS
        while not (link := port.link()).up and time.monotonic() < end:
            time.sleep(0.1)
        answer = None
        if link.up and order["address"]:
            mac = bytes.fromhex(info.mac.replace(":", ""))
            answer = who_has(order["address"], mac, lambda frame: port.send([frame]), lambda _: _receive(port))
        return {
            "driver": info.driver,
            "mac": info.mac,
            "mtu_max": info.mtu_max,
            "mtu_refused": mtu_refused,
            "offloads": list(info.transmit_offloads),
            "up": link.up,
            "speed_mbps": link.speed_mbps,
            "answer": answer.hex() if answer else "",
        }


def _start(port: dpdk.Port, mtu: int) -> str:
    """Starts the port, and returns why not with that MTU: a driver may refuse less than the most that it names."""
    try:
        port.start(mtu=mtu)
    except dpdk.DpdkError as error:
        if mtu == 0:
            raise
        port.start()
        return str(error)
    return ""


def _receive(port: dpdk.Port) -> list[bytes]:
    frames = port.receive()
    if not frames:
        time.sleep(_POLL_SECONDS)
    return frames


def _main() -> None:
    try:
        answer = _try(json.load(sys.stdin))
    except dpdk.DpdkError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
