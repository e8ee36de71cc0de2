"""Which transports were built, and whether what they were built against is what is here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .. import dpdk
from ..errors import ServerError
from ..server import find_executable
from .finding import Finding, Subject, advice, fact, ok, output, problem, read

LWIP_TESTED = "2.1.3"
_RELEASES = {"21": "20.11", "22": "21.11", "23": "22.11", "24": "23.11", "25": "24.11", "26": "25.11"}
"""DPDK's releases by the number of their libraries: librte_eal.so.23."""
_FSTACK_WANTS = {"1.24": "22.11", "1.25": "23.11"}
_REPOSITORY = Path(__file__).resolve().parents[2]


def examine_build(subject: Subject) -> Iterator[Finding]:
    """The transports over DPDK: built, and able to load."""
    built = []
    for transport in ("dpdk", "fstack"):
        try:
            executable = find_executable(transport)
        except ServerError:
            continue
        built.append(transport)
        yield from _examine_executable(transport, executable)
    for transport in ("dpdk", "fstack"):
        if transport not in built and (subject.transport or (built or ["dpdk"])[0]) == transport:
            yield _not_built(transport, subject)
    if "fstack" not in built and subject.transport != "fstack":
        yield fact("transport", "transport fstack is not built: it needs an F-Stack, which you install yourself")
    yield from _examine_dpdk()
    yield from _examine_lwip(subject)
    yield from _examine_fstack(subject)


def _examine_executable(transport: str, executable: Path) -> Iterator[Finding]:
    if not executable.is_file():
        yield problem("transport", f"transport {transport}: there is no {executable}")
        return
    missing = missing_libraries(executable)
    if not missing:
        yield ok("transport", f"transport {transport} is built: {executable}")
        return
    yield problem(
        "version",
        f"transport {transport} was built against {', '.join(missing)}{_release_of(missing)}, which is not here"
        f"{_what_is_here()}",
        "make lwip",
    )


def missing_libraries(executable: Path) -> list[str]:
    """Shared libraries that an executable wants and the loader does not find."""
    return re.findall(r"^\s*(\S+) => not found", output("ldd", str(executable)) or "", re.MULTILINE)


def _release_of(libraries: list[str]) -> str:
    numbers = set(re.findall(r"^librte_\w+\.so\.(\d+)", "\n".join(libraries), re.MULTILINE))
    releases = [_RELEASES[number] for number in sorted(numbers) if number in _RELEASES]
    return f" (DPDK {releases[0]})" if releases else ""


def _what_is_here() -> str:
    numbers: set[str] = set(re.findall(r"librte_eal\.so\.(\d+)", output("ldconfig", "-p") or ""))
    releases = [_RELEASES[number] for number in sorted(numbers) if number in _RELEASES]
    return f"; here is DPDK {' and '.join(releases)}" if releases else ""


def _not_built(transport: str, subject: Subject) -> Finding:
    if transport == "fstack":
        folder = subject.environment.get("FF_PATH")
        if folder is None:
            wanted = "F-Stack, installed as its own README says (https://github.com/F-Stack/f-stack, tested: 1.24)"
            return problem(
                "transport",
                f"transport fstack is not built: it needs {wanted}, and FF_PATH as its folder's name",
                "FF_PATH=/path/to/f-stack make setup",
            )
        if not (Path(folder) / "lib" / "libfstack.a").exists():
            return problem(
                "transport",
                f"transport fstack is not built: FF_PATH is {folder}, and {folder}/lib/libfstack.a is not there",
                f"make -C {folder}/lib",
            )
        return problem("transport", "transport fstack is not built, though F-Stack is", "make setup")
    version = _development_version()
    if version is None:
        return problem(
            "transport",
            "transport dpdk is not built: DPDK's development files are not there",
            "sudo apt-get install libdpdk-dev pkg-config",
            "make lwip",
        )
    if not _is_new_enough(version):
        return problem("version", f"transport dpdk is not built: expected DPDK 22.11 or later, this is {version}")
    return problem("transport", "transport dpdk is not built: lwIP's source was not there", "make lwip")


def _development_version() -> str | None:
    version = output("pkg-config", "--modversion", "libdpdk")
    return version.strip() if version else None


def _is_new_enough(version: str) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return numbers >= [22, 11]


def _examine_dpdk() -> Iterator[Finding]:
    try:
        version = dpdk.version()
    except dpdk.DpdkError as error:
        yield advice("bindings", f"{error}; without it the doctor cannot try a device out")
        return
    development = _development_version()
    if development and development not in version:
        yield advice(
            "version",
            f"{version} runs here, and the development files are of {development}: what is built next is of that",
            "sudo apt-get install --reinstall libdpdk-dev dpdk",
            "make lwip",
        )
    else:
        yield fact("version", f"{version}")


def _examine_lwip(subject: Subject) -> Iterator[Finding]:
    folder = Path(subject.environment.get("REPLAY_LWIP") or _REPOSITORY / "build" / "lwip")
    for header in sorted([*folder.glob("src/include/lwip/init.h"), *folder.glob("lwip-*/src/include/lwip/init.h")]):
        numbers = re.findall(r"#define LWIP_VERSION_(?:MAJOR|MINOR|REVISION)\s+(\d+)", read(header))
        version = ".".join(numbers)
        level = "fact" if version == LWIP_TESTED else "advice"
        note = "" if version == LWIP_TESTED else f": the transport was tested with {LWIP_TESTED}"
        yield Finding("version", level, f"lwIP {version}{note}")
        return


def _examine_fstack(subject: Subject) -> Iterator[Finding]:
    folder = subject.environment.get("FF_PATH")
    version = read(Path(folder) / "VERSION") if folder else ""
    if not version:
        return
    wanted, here = _FSTACK_WANTS.get(version), _development_version()
    if wanted is None:
        known = ", ".join(f"{stack} on DPDK {release}" for stack, release in _FSTACK_WANTS.items())
        yield advice("version", f"F-Stack {version} in {folder} was not tried: known are {known} (tested: 1.24)")
    elif here and not here.startswith(wanted):
        yield Finding(
            "version",
            "problem" if subject.transport == "fstack" else "advice",
            f"F-Stack {version} wants DPDK {wanted}, here is {here}: install the F-Stack for it, or that DPDK",
        )
    else:
        yield fact("version", f"F-Stack {version}")
