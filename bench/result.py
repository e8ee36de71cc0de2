"""The file that a benchmark leaves: what was measured, on what machine, by what command, round by round."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay_server import dpdk
from replay_server.whole_file import write_whole


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores this process may use, memory, kernel, DPDK and library versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "dpdk": dpdk.version() if dpdk.available() else None,
        "hugepage_bytes": sum(size.size_bytes * size.total for size in dpdk.hugepages()),
        "packages": {name: _version(name) for name in ("replay-server", "numpy", "redis", "hiredis")},
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def summarize(rounds: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Median, and [lowest, highest], of every measurement over the rounds."""
    names = [name for name in rounds[0] if all(name in measured for measured in rounds)]
    median = {name: statistics.median(measured[name] for measured in rounds) for name in names}
    spread = {
        name: [min(measured[name] for measured in rounds), max(measured[name] for measured in rounds)] for name in names
    }
    return median, spread


def document(
    name: str,
    command: str,
    host: Mapping[str, Any],
    settings: Mapping[str, Any],
    rounds: Sequence[Mapping[str, float]],
    ratios: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    """The content of a result file.

    `rounds` holds one map of measurement → value a round; a measurement's name ends with its unit. `ratios` names a
    ratio and the two measurements that it divides; it is taken within each round, and its median is given.
    """
    median, spread = summarize(rounds)
    ratio = {
        of: statistics.median(measured[above] / measured[below] for measured in rounds)
        for of, (above, below) in ratios.items()
        if all(measured.get(below) and above in measured for measured in rounds)
    }
    return {
        "name": name,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": dict(host),
        "command": command,
        "settings": dict(settings),
        "rounds": [dict(measured) for measured in rounds],
        "median": median,
        "spread": spread,
        "ratio": ratio,
    }


def tell(content: Mapping[str, Any], say: Callable[[str], None], width: int = 28, ratio_digits: int | None = 2) -> None:
    """Says each median with its spread, names `width` wide, then the ratios (None: without them)."""
    for name, median in content["median"].items():
        low, high = content["spread"][name]
        say(f"{name:{width}} {median:14,.1f}   ({low:,.1f} to {high:,.1f})")
    for name, ratio in content["ratio"].items() if ratio_digits is not None else ():
        say(f"{name:{width}} {ratio:14.{ratio_digits}f}")


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes a result file, making its folder if need be. One that is there is replaced whole, or not at all.

    A device or a pipe, such as /dev/null, is written to and stays.
    """
    file, text = Path(path), json.dumps(content, indent=1) + "\n"
    if file.exists() and not file.is_file():
        file.write_text(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file.resolve(), text)  # a link stays


def conclude(
    name: str,
    argv: Sequence[str],
    options: argparse.Namespace,
    host: Mapping[str, Any],
    rounds: Sequence[Mapping[str, float]],
    ratios: Mapping[str, tuple[str, str]],
    say: Callable[[str], None],
    width: int = 28,
) -> None:
    """Tells the result of `replay-server bench NAME`, and writes it where `--json` says; `width` as for `tell`."""
    settings = {key: value for key, value in vars(options).items() if key not in ("part", "folder")}
    content = document(name, " ".join([f"replay-server bench {name}", *argv]), host, settings, rounds, ratios)
    tell(content, say, width, ratio_digits=3)
    if options.json:
        write(options.json, content)
