"""``replay-server doctor``: what is wrong with this host for a server over DPDK, and what to type.

Every check is a function of what is asked about that gives findings; nothing on the host is changed. The last one lets
DPDK take the device for a moment, in a process of its own, unless somebody uses it. docs/nic-host.md tells the
whole way.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser

from .. import dpdk
from ..config import ConfigError, ServeConfig, load_config, parse_size
from .address import examine_address
from .build import examine_build
from .device import examine_interface, examine_mtu_of_stack, examine_pci, find_target
from .finding import Finding, Subject, fact, problem
from .host import examine_hugepages, examine_privileges, examine_processors
from .trial import examine_address_by_kernel, examine_by_trial, users_of

__all__ = ["Finding", "Subject", "examine", "main"]

_INDENT = 21
_COLOURS = {"problem": "31;1", "advice": "33", "ok": "32", "fact": "0"}


def examine(subject: Subject, trial: bool = True) -> list[Finding]:
    """All findings, in the order in which they are worth reading.

    Args:
        subject: what is asked about.
        trial: lets DPDK take the device for some seconds, where everything before was in order.
    """
    target = find_target(subject)
    found = [
        *examine_build(subject),
        *examine_processors(subject, target),
        *examine_hugepages(subject, target, users_of(target)),
    ]
    found += examine_address(subject)
    found += examine_mtu_of_stack(subject)
    if target.kind == "none":
        return [*found, _no_device(subject)]
    found += examine_privileges(subject, target)
    if target.kind == "pci":
        found += examine_pci(subject, target)
    elif target.kind == "interface":
        found += examine_interface(subject, target)
    about_others = {"transport", "version", "processors"}
    ready = not any(finding.level == "problem" and finding.check not in about_others for finding in found)
    if trial and ready and (target.kind == "pci" or target.driver):
        found += examine_by_trial(subject, target)
    else:
        found += examine_address_by_kernel(subject, target)
    return found


def _no_device(subject: Subject) -> Finding:
    devices = dpdk.devices(subject.sysfs)
    ready = [device.address for device in devices if device.is_ready]
    if ready:
        return fact("device", f"ready for DPDK: {', '.join(ready)} (--device looks closer)")
    held = ", ".join(f"{d.address} ({' '.join(d.interfaces) or d.driver or 'no driver'})" for d in devices) or "none"
    message = f"no PCI network device is ready for DPDK; there are: {held}. A virtual device is named with --device"
    return problem("device", message, subject.set_up_command())


# ---- the command ----------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="replay-server doctor",
        description="What is wrong with this host for a server over DPDK, and what to type.",
        epilog="Exit status: 0 nothing is wrong, 1 something is, 2 usage. It changes nothing. See docs/nic-host.md.",
    )
    parser.add_argument("--device", help="as of serve's --dpdk-device: PCI address or virtual device; or an interface")
    parser.add_argument("--address", metavar="A/MASK", help="the server's, as of serve's --dpdk-address")
    parser.add_argument("--gateway", metavar="A")
    parser.add_argument("--transport", choices=("dpdk", "fstack"))
    parser.add_argument("--mtu", type=int, help="that the server is told, in bytes")
    parser.add_argument("--lcore", type=int, help="that the server polls on")
    parser.add_argument("--memory", metavar="BYTES", help="for packets, as of serve's --dpdk-memory (896mb)")
    parser.add_argument("--config", metavar="FILE.toml", help="takes all that from the file of serve; options win")
    parser.add_argument("--no-trial", action="store_true", help="do not let DPDK take the device for a moment")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    return parser


def _number(file: str | None, config: Mapping[str, Any], name: str, missing: int) -> int:
    given = config.get(name, missing)
    try:
        return int(given)
    except (TypeError, ValueError):
        raise ConfigError(f"{file}: {name} must be a whole number, got {given!r}") from None


def _subject(options: argparse.Namespace) -> Subject:
    settings = load_config(options.config) if options.config else ServeConfig()
    config = settings.config
    transport = options.transport or (settings.transport if settings.transport != "kernel" else None)
    memory = options.memory or config.get("dpdk-memory")
    for name in ("dpdk-device", "dpdk-address", "dpdk-gateway"):
        if not isinstance(config.get(name, ""), str):
            raise ConfigError(f"{options.config}: {name} must be str, got {config[name]!r}")
    subject = Subject(
        device=options.device or config.get("dpdk-device"),
        address=options.address or config.get("dpdk-address"),
        gateway=options.gateway or config.get("dpdk-gateway"),
        transport=transport,
        mtu=options.mtu or _number(options.config, config, "dpdk-mtu", 0),
        lcore=options.lcore if options.lcore is not None else _number(options.config, config, "dpdk-lcore", -1),
        sysfs=Path(os.environ.get("SYSFS", "/sys")),  # for tests
    )
    return replace(subject, memory_bytes=parse_size(memory)) if memory else subject


def _wrapped(text: str, width: int) -> list[str]:
    # Commands and paths stay whole, to be copied.
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _as_text(subject: Subject, findings: Sequence[Finding], is_terminal: bool) -> str:
    width = max(60, shutil.get_terminal_size().columns) if is_terminal else 0  # in a file, a finding is one line
    about = ", ".join(filter(None, (subject.device, subject.address, subject.transport))) or "this host"
    lines = [f"replay-server doctor: {about}", ""]
    for finding in findings:
        level = f"{finding.level:<9}"
        if is_terminal:
            level = f"\033[{_COLOURS[finding.level]}m{level}\033[0m"
        first, *more = _wrapped(finding.message, width - _INDENT) if width else [finding.message]
        lines += [f"{level}{finding.check:<12}{first}", *(" " * _INDENT + line for line in more)]
        lines += [f"{'':<{_INDENT}}type: {command}" for command in finding.type]
    problems = sum(finding.level == "problem" for finding in findings)
    counted = {0: "Nothing is wrong.", 1: "1 problem."}.get(problems, f"{problems} problems.")
    return "\n".join([*lines, "", counted])


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        subject = _subject(options)
    except ConfigError as error:
        print(f"replay-server doctor: {error}", file=sys.stderr)
        return 2
    findings = examine(subject, trial=not options.no_trial)
    wrong = any(finding.level == "problem" for finding in findings)
    if options.json:
        said = {
            "ok": not wrong,
            "device": subject.device,
            "address": subject.address,
            "transport": subject.transport,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(said, indent=2))
    else:
        print(_as_text(subject, findings, sys.stdout.isatty()))
    return 1 if wrong else 0
