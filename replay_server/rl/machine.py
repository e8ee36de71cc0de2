"""What this process may use of its machine: cores and memory, also where a container has less than the host."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """The cores of this process: those that it may run on, or, where that is less, the time that its control groups
    have (`docker --cpus`), rounded up. At least 1. `root`: of the file systems /proc and /sys."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _groups(root, "cpu"):
        quota = _words(folder / "cpu.max")
        if not quota:
            quota = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():  # else "max", or -1
            cores = min(cores, int(quota[0]) / max(int(quota[1]), 1))
    return max(1, math.ceil(cores))


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Memory that this process and new ones can have without swapping: what the kernel says is available, or, where
    that is less, what is left in its control groups (`docker --memory`). None where nothing tells."""
    found = [1024 * int(words[1]) for words in _lines(root / "proc/meminfo") if words[0] == "MemAvailable:"]
    for folder in _groups(root, "memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            numbers = [*_words(folder / limit), *_words(folder / used)]
            if len(numbers) == 2 and numbers[0].isdigit():  # else "max"
                # The kernel takes files that it has cached back before it ends a process.
                cache = sum(int(words[1]) for words in _lines(folder / "memory.stat") if words[0] == cached)
                found.append(max(0, int(numbers[0]) - int(numbers[1]) + cache))
    return min(found, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that this process is in, and of those above, of version 2 and 1.

    In a container without a namespace of its own the path is the host's, and only the top of it is there.
    """
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mounted / controllers
        below = Path(path.lstrip("/"))
        for each in (below, *below.parents):
            yield top / each


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _lines(path: Path) -> list[list[str]]:
    return [words for line in _text(path).splitlines() if len(words := line.split()) > 1]
