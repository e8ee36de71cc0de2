"""One load on one server: so many pushers and perhaps a learner, all at once, for some seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.bench.items import ItemKind


@dataclass(frozen=True)
class Target:
    """A server under load."""

    system: str
    """replay or redis: whose workers are used."""
    url: str
    pid: int


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


def run(target: Target, kind: ItemKind, load: Load, seed: int = 1) -> dict[str, float]:
    """Runs the load and returns measurement → value, the names ending with units.

    Raises RuntimeError, with what the process printed, when one of the load's processes fails.
    """
    common = {
        "url": target.url,
        "kind": kind.name,
        "seconds": load.seconds,
        "warm_up": load.warm_up,
        "capacity": load.capacity or kind.capacity,
    }
    arguments = [
        {
            **common,
            "role": f"{target.system}_pusher",
            "size": load.push_size,
            "seed": seed + i,
            "first": i,
            "stride": load.pushers,
        }
        for i in range(load.pushers)
    ]
    if load.learner:
        arguments.append({**common, "role": f"{target.system}_learner", "size": load.batch_size, "seed": seed + 1000})
    workers: list[subprocess.Popen[str]] = []
    try:
        workers = [_start(argument) for argument in arguments]
        for worker in workers:
            _expect_ready(worker)
        cpu_before = cpu_seconds(target.pid)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        results = [_result(worker, load) for worker in workers]
        cpu = cpu_seconds(target.pid) - cpu_before
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
    return _measurements(load, results, cpu)


def _start(argument: dict[str, Any]) -> subprocess.Popen[str]:
    # One thread of arithmetic a process: the load must not compete with itself.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "replay_server.bench.worker", json.dumps(argument)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _expect_ready(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        _, errors = worker.communicate(timeout=10)
        raise RuntimeError(f"a process of the load did not start:\n{errors[-2000:]}")


def _result(worker: subprocess.Popen[str], load: Load) -> dict[str, Any]:
    output, errors = worker.communicate(timeout=load.seconds + load.warm_up + 120)
    if worker.returncode != 0:
        raise RuntimeError(f"a process of the load failed with exit status {worker.returncode}:\n{errors[-2000:]}")
    return json.loads(output)


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
    return {name: round(value, 3) for name, value in measured.items()}


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
