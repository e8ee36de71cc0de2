"""`replay-server bench fairness --transport T`: what bulk readers leave to others, and to each other, over a transport.

Bulk readers, one connection each, sample 29 MB batches without a pause. Beside them an actor pushes transitions, and
somebody sends a PING every millisecond. Each of the three is a process of its own. Within a round the push and the PING
come alone first (idle), then beside each number of readers. A reader's share is what it received over what an equal
share would be.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.bench import client as load
from replay_server.bench import messages, result
from replay_server.bench.client import Measured, Role
from replay_server.bench.items import ItemKind
from replay_server.bench.messages import ATARI
from replay_server.bench.server import fill
from replay_server.bench.sides import SIDES, Host, start, usual_device

TRANSPORTS = ("kernel", "dpdk", "fstack")
DEVICES = ("af_packet", "af_xdp")
QUANTILES = ("p50", "p99", "p99.9")
EDGE_S = 0.5
PING_EVERY_US = 1000.0
SHARE_LEAST = 0.8
"""Of a fair share that no reader should fall below."""
PING_MOST_US = 1000.0
PUSH_MORE_US = 1000.0
"""A push beside readers may take this much longer than two idle ones."""


def side_of(transport: str, device: str | None) -> str:
    """The side of `SIDES` that a transport is measured as."""
    if transport == "kernel":
        return transport
    return f"{transport}_{device or usual_device()}"


def beside(host: Host, readers: int, options: argparse.Namespace, kind: ItemKind = ATARI) -> dict[str, float]:
    """One measurement: push and PING beside so many readers."""
    push = Role("push", {"push": messages.push(kind, options.push)}, pause_us=1e6 * options.push_every_s)
    ping = Role("ping", {"ping": messages.echo(1)}, pause_us=PING_EVERY_US)
    loads = [[push], [ping]]
    if readers:
        loads.append([Role("readers", {"sample": messages.sample(options.batch)}, readers)])

    def run(number: int) -> Measured:
        folder = Path(host.lab.folder) / f"load{number}"
        folder.mkdir(exist_ok=True)
        is_reading = number == 2
        return load.run(
            host.address,
            loads[number],
            folder,
            seconds=options.seconds + (EDGE_S if is_reading else 0),  # they begin first and end last
            warm_up_s=EDGE_S / 2 if is_reading else EDGE_S,
            processor=host.client_processor,
            prefix=host.lab.client_command,
        )

    with host.awake(), ThreadPoolExecutor(len(loads)) as threads:
        measured = list(threads.map(run, range(len(loads))))
    name = f"{host.side.name}.{readers or 'idle'}"
    found = {
        f"{name}.{what}_us_{quantile}": measured[number].latency_us(what, what, quantile)
        for number, what in enumerate(("push", "ping"))
        for quantile in QUANTILES
    }
    if readers:
        received = np.asarray(measured[2].received_bytes("readers"), dtype=float)
        shares = received / received.mean()
        found[f"{name}.readers_mb_per_s"] = received.sum() / (options.seconds + EDGE_S) / 1e6
        found[f"{name}.share_least"], found[f"{name}.share_most"] = float(shares.min()), float(shares.max())
        found |= {f"{name}.share_{number}": float(share) for number, share in enumerate(shares)}
    return {key: round(value, 3) for key, value in found.items()}


def judge(side: str, median: dict[str, float], readers: Sequence[int]) -> list[str]:
    """What is to be said of each number of readers."""
    lines = []
    for many in readers:
        of = f"{side}.{many}"
        push, idle = median[f"{of}.push_us_p99"], median[f"{side}.idle.push_us_p99"]
        most = 2 * idle + PUSH_MORE_US
        lines.append(
            f"{side}, {many} bulk readers: push p99 {push / 1e3:.2f} ms (idle {idle / 1e3:.2f}, at most "
            f"{most / 1e3:.2f} wanted), PING p99 {median[f'{of}.ping_us_p99'] / 1e3:.2f} ms (at most "
            f"{PING_MOST_US / 1e3:.0f}), least share {median[f'{of}.share_least']:.2f} (at least {SHARE_LEAST}), "
            f"{median[f'{of}.readers_mb_per_s']:.0f} MB/s"
        )
    return lines


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """All rounds, the transports in turn in each."""
    rounds: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        names = [side_of(transport, options.device) for transport in options.transport]
        hosts, about = start(names, stack, [ATARI.table(options.capacity)])
        for host in hosts:
            assert host.client is not None
            with host.awake():
                fill(host.client.url, ATARI, options.capacity)
        for number in range(options.rounds):
            rounds.append({})
            for host in hosts:
                for readers in (0, *options.readers):
                    rounds[-1] |= beside(host, readers, options)
                for line in judge(host.side.name, rounds[-1], options.readers):
                    say(f"round {number + 1}/{options.rounds}  {line}")
    return rounds, about | {"sides": {host.side.name: SIDES[host.side.name].about for host in hosts}}


def main(options: argparse.Namespace, argv: Sequence[str], say: Callable[[str], None]) -> int:
    """Measures, says the medians, writes the file."""
    machine = result.machine()
    rounds, about = measure(options, say)
    sides = list(about["sides"])
    settings = {
        name: getattr(options, name)
        for name in ("transport", "readers", "batch", "capacity", "push", "push_every_s", "seconds", "rounds")
    }
    ratios = {
        f"{side} {many} readers: push p99 / idle": (f"{side}.{many}.push_us_p99", f"{side}.idle.push_us_p99")
        for side in sides
        for many in options.readers
    }
    command = " ".join(["replay-server bench fairness", *argv])
    content = result.document("fairness-transports", command, machine, settings | about, rounds, ratios)
    say("medians:")
    for side in sides:
        for line in judge(side, content["median"], options.readers):
            say(f"  {line}")
    if options.json:
        result.write(options.json, content)
    return 0
