"""A load on a server, and a PING beside it from a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import replay_server as rs
from replay_server.bench.client import Measured, Role, request, run

PINGS_PER_S = 1000
QUANTILES = ("p50", "p99", "p99.9")


def address_of(server: rs.Server) -> str:
    """Host and port."""
    return server.url.partition("//")[2]


def pushing(requests: dict[str, bytes], transitions: int, connections: int, per_s: float = 0) -> Role:
    """Connections that push a round of so many transitions again and again; `per_s`: transitions a second of all."""
    return Role("pusher", requests, connections, rate_per_s=per_s / transitions, spread=per_s > 0)


def load(server: rs.Server, roles: Sequence[Role], folder: Path, seconds: float) -> tuple[Measured, dict[str, float]]:
    """What the roles measured in so many seconds, and the quantiles of PING in microseconds."""
    ping = Role("ping", {"ping": request(["PING"])}, rate_per_s=PINGS_PER_S)
    (folder / "ping").mkdir(exist_ok=True)
    with ThreadPoolExecutor(1) as pool:
        pinged = pool.submit(run, address_of(server), [ping], folder / "ping", seconds=seconds)
        measured = run(address_of(server), roles, folder, seconds=seconds)
    return measured, {
        f"ping_us_{quantile}": pinged.result().latency_us("ping", "ping", quantile) for quantile in QUANTILES
    }


def fill(server: rs.Server, requests: dict[str, bytes], transitions: int, capacity: int, folder: Path) -> None:
    """Pushes rounds until the table is full."""
    run(address_of(server), [Role("pusher", requests, rounds=-(-capacity // transitions))], folder)
