"""Actors at the edge, learner in the cloud: the same accesses over a line with delay and limited bandwidth.

Between server and clients stands a relay that carries frames (`bench/line.py`): one way it takes 50 µs (10 km of
fibre), 5 ms or 50 ms, at 1 Gb/s, with room for 8 MB of waiting frames, so that none is dropped; "shallow" has 256 KiB.
The relay's own overhead is what "relay" (no delay, no bound) has above "direct" (no relay at all).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replay_server.bench import messages
from replay_server.bench.client import Role
from replay_server.bench.line import Line
from replay_server.bench.papers.in_network import access
from replay_server.bench.papers.in_network.figure import (
    STATISTIC,
    Measured,
    Options,
    Panel,
    Round,
    Say,
    changes,
    percent,
    turned,
)
from replay_server.bench.server import fill
from replay_server.bench.sides import BASELINE, OFFLOADS, SIDES, Host, start, usual

TITLE = "Edge and cloud: accesses over a line with delay"
PAPER = "future work there: actors at the edge, learner in a data centre, 10 km of fibre"
RATE_MBIT = 1000
CAPACITY = 2000


@dataclass(frozen=True)
class Path:
    """What is between server and client."""

    name: str
    relayed: bool = True
    delay_us: float = 0.0
    rate_mbit: float = 0.0
    queue_bytes: int = 8_000_000


PATHS = (
    Path("direct", relayed=False),
    Path("relay"),
    Path("50us", delay_us=50, rate_mbit=RATE_MBIT),
    Path("50us_shallow", delay_us=50, rate_mbit=RATE_MBIT, queue_bytes=256 * 1024),
    Path("5ms", delay_us=5_000, rate_mbit=RATE_MBIT),
    Path("50ms", delay_us=50_000, rate_mbit=RATE_MBIT),
)
WHATS: dict[str, tuple[str, Callable[[bool], bytes]]] = {
    "echo": ("64 B there and back", lambda _: messages.echo()),
    "push_43_mb": ("push of 43 MB", lambda _: messages.push_blob(messages.FAITHFUL_PUSH_BYTES)),
    "push_own": ("push of 50, frames once", lambda redis: messages.push_frames(access.OWN_PUSH, redis)),
    "pull": ("parameters pulled, 13 MB", messages.pull_weights),
    "sample_32": ("sample of 32", lambda redis: messages.sample(32, CAPACITY, redis)),
    "sample_512": ("sample of 512", lambda redis: messages.sample(512, CAPACITY, redis)),
}


def prepare(host: Host) -> None:
    access.prepare(host)
    with host.awake():
        if host.client is not None:
            fill(host.client.url, messages.ATARI, CAPACITY)
            return
        item = messages.random_bytes(messages.ATARI.item_bytes)
        for first in range(0, CAPACITY, 100):
            host.redis.mset({f"item:{first + i}": item for i in range(100)})


def values(host: Host, path: Path, seconds: float, whats: list[str]) -> Round:
    found: Round = {}
    with contextlib.ExitStack() as stack:
        line: Line | None = None
        if path.relayed:
            line = stack.enter_context(
                host.line(delay_us=path.delay_us, rate_mbit=path.rate_mbit, queue_bytes=path.queue_bytes)
            )
        for what in whats:
            request = WHATS[what][1](host.side.is_redis)
            # A connection of its own each time, and its first round warms it up: TCP has to find its window.
            longer_s = seconds + 20 * path.delay_us / 1e6
            turn = host.turn([Role("client", {"request": request})], longer_s, warm_up_s=longer_s / 5)
            measured = f"{what}.{host.side.name}.{path.name}"
            found[f"{measured}.{STATISTIC}"] = turn.measured.latency_us("client", "request")
            found[f"{measured}.retransmits"] = turn.measured.content["retransmits"]
        if line is not None:
            told_by_line = line.end()
            found[f"line.{host.side.name}.{path.name}.late_us_p50"] = told_by_line["late_us_p50"]
            found[f"line.{host.side.name}.{path.name}.late_us_p99"] = told_by_line["late_us_p99"]
            found[f"line.{host.side.name}.{path.name}.dropped_frames"] = sum(
                told_by_line[side][f"dropped_{why}"]
                for side in ("from_server", "from_client")
                for why in ("queue", "memory", "socket", "send")
            )
    return found


def ratios_of(names: list[str]) -> dict[str, tuple[str, str]]:
    """Of each side in user space over the kernel's and Redis on the same path; of the relay over none."""
    found = {}
    for measured in names:
        what, side, path, statistic = measured.split(".", 3)
        if statistic != STATISTIC:
            continue
        for other in (BASELINE, "redis") if SIDES[side].bypasses else ():
            below = f"{what}.{other}.{path}.{statistic}"
            if below in names:
                found[f"{what} {path} {side} / {other}"] = (measured, below)
        if path == "relay":
            found[f"{what} {side} relay / direct"] = (measured, f"{what}.{side}.direct.{statistic}")
    return found


def findings(rounds: list[Round], ratios: dict[str, tuple[str, str]]) -> list[str]:
    lines = [f"the paper: {PAPER}"]
    for side in (side.name for side in SIDES.values() if side.bypasses):
        for path in PATHS:
            parts = []
            for what, (about, _) in WHATS.items():
                wanted = f"{what} {path.name} {side} / {BASELINE}"
                change = changes(rounds, ratios, lambda of, w=wanted: of == w)
                if change is not None:
                    parts.append(f"{about} {change[0]:+.1f} %")
            if parts:
                lines.append(f"{path.name}, {side} over {BASELINE}: " + "; ".join(parts))
    own = changes(rounds, ratios, lambda of: of.startswith("echo ") and of.endswith("relay / direct"))
    lines.append(f"the relay's own share of a round trip of 64 B: {percent(own)} of that without it")
    return lines


def panels_of(names: list[str]) -> list[Panel]:
    panels = []
    for what, (about, _) in WHATS.items():
        bars: dict[str, dict[str, str]] = {}
        for measured in names:
            own, side, path, statistic = measured.split(".", 3)
            if own == what and statistic == STATISTIC:
                bars.setdefault(side, {})[path] = measured
        if bars:
            panels.append(Panel(about, "ms", 1e3, bars))
    return panels


def measure(options: Options, say: Say) -> Measured:
    whats = [what for what in WHATS if not options.quick or what in ("echo", "push_own", "pull")]
    paths = [path for path in PATHS if not options.quick or path.name in ("direct", "relay", "50us")]
    tables = [messages.ATARI.table(CAPACITY), messages.frames_table(access.FRAMES_CAPACITY)]
    # The relay carries frames of the line's MTU: with offloads they would be longer.
    sides = options.sides or [side for side in usual() if side != OFFLOADS]
    rounds: list[Round] = [{} for _ in range(options.rounds)]
    settings: dict[str, Any] = {"rate_mbit": RATE_MBIT}
    for relayed in (False, True):
        with contextlib.ExitStack() as stack:
            hosts, about = start(sides, stack, tables, relayed=relayed)
            settings |= about
            for host in hosts:
                prepare(host)
            for number in range(options.rounds):
                for path in paths:
                    if path.relayed == relayed:
                        for host in turned(hosts, number):
                            rounds[number] |= values(host, path, options.seconds, whats)
                say(f"edge, {'relayed' if relayed else 'direct'}: round {number + 1}/{options.rounds}")
    names = list(rounds[0])
    ratios = ratios_of(names)
    return Measured(rounds, ratios, panels_of(names), settings, findings(rounds, ratios))
