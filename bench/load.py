"""One load on one server: so many pushers and perhaps a learner, all at once, for some seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.bench.items import ItemKind
from replay_server.bench.process import Program

# One thread of arithmetic a process: the load must not compete with itself.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# By default glibc gives the memory of a dropped batch back to the system, and the next batch fetches it page by page:
# cpprb's and tianshou's large batches take twice as long. All sides are measured with it kept, which is their best.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31), "MALLOC_MMAP_THRESHOLD_": str(2**31)}


@dataclass(frozen=True)
class Target:
    """A server under load, or a cluster."""

    system: str
    """Its name in the results: replay, redis, ..."""
    url: str
    pids: tuple[int, ...]
    """Its processes: several where it is a cluster."""


class Crew:
    """The processes that load one system, kept from load to load: some take seconds to start.

    A context manager that ends them. `program` and `environment` as of `Program`; `options` are told to every process.
    """

    def __init__(
        self,
        program: str,
        environment: str | None = None,
        variables: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._program, self._environment = program, environment
        self.options = dict(options or {})
        self._variables = ONE_THREAD | KEEP_MEMORY | dict(variables or {})
        self._members: list[Program] = []

    def member(self, number: int) -> Program:
        """The process of that number, started if it is not there yet."""
        while len(self._members) <= number:
            self._members.append(Program(self._program, self._environment, self._variables))
        return self._members[number]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.close()
        self._members.clear()


@dataclass(frozen=True)
class Load:
    """How the server is loaded."""

    pushers: int
    learner: bool
    push_size: int
    batch_size: int
    seconds: float
    warm_up: float = 0.5
    capacity: int = 0

    @property
    def name(self) -> str:
        return f"pushers={self.pushers}" + ("" if self.learner else ",alone")


def run(crew: Crew, target: Target, kind: ItemKind, load: Load, seed: int = 1) -> dict[str, float]:
    """Runs the load and returns measurement → value, the names ending with units.

    Raises RuntimeError, with what the process printed, when one of the load's processes fails.
    """
    common = {"url": target.url, "columns": kind.columns, "capacity": load.capacity or kind.capacity, **crew.options}
    # The learner is always the same process, however many push.
    members = [crew.member(0)] if load.learner else []
    if load.learner:
        members[0].send("role", role="learner", size=load.batch_size, seed=seed + 1000, first=0, stride=1, **common)
    for i in range(load.pushers):
        members.append(crew.member(1 + i))
        members[-1].send(
            "role", role="pusher", size=load.push_size, seed=seed + i, first=i, stride=load.pushers, **common
        )
    for member in members:
        member.receive()
    cpu_before = sum(map(cpu_seconds, target.pids))
    for member in members:
        member.send("load", seconds=load.seconds, warm_up=load.warm_up)
    results = [member.receive() for member in members]
    cpu = sum(map(cpu_seconds, target.pids)) - cpu_before
    for member in members:
        member.ask("close")
    return _measurements(load, results, cpu)


def _measurements(load: Load, results: list[dict[str, Any]], cpu: float) -> dict[str, float]:
    measured: dict[str, float] = {}
    items_per_call = {"push": load.push_size, "sample": 1, "update": 1}
    units = {"push": "push_items_per_s", "sample": "sample_batches_per_s", "update": "update_batches_per_s"}
    for call, items in items_per_call.items():
        latencies = [latency for result in results for latency in result["latencies_us"][call]]
        if not latencies:
            continue
        measured[units[call]] = sum(items * len(r["latencies_us"][call]) / r["seconds"] for r in results)
        measured[f"{call}_latency_us_p50"] = float(np.percentile(latencies, 50))
        measured[f"{call}_latency_us_p99"] = float(np.percentile(latencies, 99))
    measured["server_cpu_share"] = cpu / (load.seconds + load.warm_up)
    if not load.learner:
        measured["server_cpu_us_per_push"] = measured["server_cpu_share"] * 1e6 / measured["push_items_per_s"]
    return {name: round(value, 3) for name, value in measured.items()}


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, user and system; without that of threads that have ended."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (FileNotFoundError, ProcessLookupError):  # a kernel without it: in hundredths of a second
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
