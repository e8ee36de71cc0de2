"""What the figures share: options, rounds in turns, names of measurements, comparisons with the paper's numbers.

A measurement is called ``sizes.what.side.actors.statistic_unit``: ``faithful.actor_push.dpdk_af_xdp.4.latency_us_p50``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replay_server.bench.sides import BASELINE, OFFLOADS, SIDES, Host

Round = dict[str, float]
Say = Callable[[str], None]
STATISTIC = "latency_us_p50"


@dataclass(frozen=True)
class Options:
    """What is asked of every figure."""

    sides: Sequence[str] | None = None
    actors: Sequence[int] = (1, 2, 4, 8)
    sizes: Sequence[str] = ("faithful", "own")
    rounds: int = 3
    seconds: float = 0.5
    quick: bool = False


@dataclass(frozen=True)
class Panel:
    """Bars of one diagram: series → group (the number of actors, say) → measurement; stacked or side by side."""

    title: str
    unit: str
    divisor: float
    bars: Mapping[str, Mapping[str, str]]
    stacked: bool = False


@dataclass
class Measured:
    """A figure's outcome.

    Attributes:
        rounds: measurement → value.
        ratios: ratio → the measurements that it divides.
        panels: to draw.
        findings: sentences for people: what the paper had and what was seen.
        settings: what it was measured with.
    """

    rounds: list[Round]
    ratios: dict[str, tuple[str, str]]
    panels: list[Panel]
    settings: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def turned(hosts: Sequence[Host], number: int) -> Iterable[Host]:
    """The hosts, another one first in each round."""
    return (hosts[(number + i) % len(hosts)] for i in range(len(hosts)))


def name(sizes: str, what: str, side: str, actors: int, statistic: str = STATISTIC) -> str:
    return f"{sizes}.{what}.{side}.{actors}.{statistic}"


def ratios_between_sides(names: Iterable[str], statistic: str = STATISTIC) -> dict[str, tuple[str, str]]:
    """Of each side in user space over the kernel, with offloads and without, and Redis; of the kernel over Redis."""
    known = set(names)
    found = {}
    for measured in sorted(known):
        sizes, what, side, actors, own = measured.split(".", 4)
        if own != statistic or side not in SIDES:
            continue
        for other in (BASELINE, OFFLOADS, "redis") if SIDES[side].bypasses else ("redis",):
            below = f"{sizes}.{what}.{other}.{actors}.{own}"
            if side != other and below in known and not SIDES[side].is_redis:
                found[f"{sizes} {what} actors={actors} {side} / {other}"] = (measured, below)
    return found


def panels_of(
    names: Iterable[str], titles: Mapping[str, str], statistic: str = STATISTIC, unit: str = "ms", divisor: float = 1e3
) -> list[Panel]:
    """A panel for each kind of size and each of `titles`, a series for each side, a group for each number of actors."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for measured in names:
        sizes, what, side, actors, own = measured.split(".", 4)
        if own == statistic and what in titles:
            found.setdefault((sizes, what), {}).setdefault(side, {})[actors] = measured
    return [
        Panel(f"{titles[what]} ({sizes} sizes)", unit, divisor, found[sizes, what])
        for sizes in ("faithful", "own")
        for what in titles
        if (sizes, what) in found
    ]


def changes(
    rounds: Sequence[Mapping[str, float]], ratios: Mapping[str, tuple[str, str]], selected: Callable[[str], bool]
) -> tuple[float, float] | None:
    """The least and the greatest change, in per cent, among the medians of the ratios that `selected` names."""
    medians = []
    for ratio, (above, below) in ratios.items():
        if selected(ratio):
            taken = [measured[above] / measured[below] for measured in rounds if measured.get(below)]
            if taken:
                medians.append((statistics.median(taken) - 1) * 100)
    return (min(medians), max(medians)) if medians else None


def percent(change: tuple[float, float] | None) -> str:
    """A range of changes for people."""
    if change is None:
        return "not measured"
    low, high = change
    return f"{low:+.1f} %" if low == high else f"{low:+.1f} % to {high:+.1f} %"


def findings_by_side(
    rounds: Sequence[Mapping[str, float]],
    ratios: Mapping[str, tuple[str, str]],
    whats: Mapping[str, str],
    paper: str,
) -> list[str]:
    """A sentence for each kind of size, side and thing measured: its change against the kernel's, over all actors."""
    lines = [f"the paper: {paper}"]
    sides = [side.name for side in SIDES.values() if side.bypasses]
    for sizes in ("faithful", "own"):
        for side in sides:
            for other in (BASELINE, OFFLOADS, "redis"):
                parts = []
                for what, about in whats.items():
                    begin, end = f"{sizes} {what} actors=", f" {side} / {other}"
                    change = changes(rounds, ratios, lambda of, b=begin, e=end: of.startswith(b) and of.endswith(e))
                    if change is not None:
                        parts.append(f"{about} {percent(change)}")
                if parts:
                    lines.append(f"{sizes} sizes, {side} over {other}: " + "; ".join(parts))
    return lines
