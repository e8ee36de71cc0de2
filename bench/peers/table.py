"""The tables of docs/benchmarks.md, from a result file: medians of all sides, and ratios to the best of the peers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OWN = "replay"
NO_PEERS = ("ceiling",)
"""Sides that are a bound and no system."""
UNIFORM = ("stable_baselines3", "redis")
"""Peers that draw uniformly: they are shown, and are not what a prioritized system is measured by."""


@dataclass(frozen=True)
class Row:
    """One measurement of all sides.

    Attributes:
        name: section.kind.what, without the side.
        values: side → median over the rounds.
        own, best: the best of this project's variants and the best prioritized peer, None where there is none.
        ratio: how many times better the first is; [lowest, highest] in `spread`, taken within rounds.
    """

    name: str
    values: Mapping[str, float]
    own: str | None = None
    best: str | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None


def is_own(side: str) -> bool:
    """Whether a side is this project, in whatever way it is used."""
    return side == OWN or side.startswith(OWN + "_")


def less_is_better(name: str) -> bool:
    """Whether a measurement is a cost."""
    return not name.endswith("_per_s")


def rows(content: Mapping[str, Any]) -> list[Row]:
    """All measurements of a result file, in its order."""
    sides: dict[str, dict[str, float]] = {}
    for name, median in content["median"].items():
        section, kind, side, what = name.split(".", 3)
        sides.setdefault(f"{section}.{kind}.{what}", {})[side] = median
    return [_row(name, values, content["rounds"]) for name, values in sides.items()]


def _row(name: str, values: Mapping[str, float], rounds: Sequence[Mapping[str, float]]) -> Row:
    pick = min if less_is_better(name) else max
    own = [side for side in values if is_own(side)]
    peers = [side for side in values if not is_own(side) and side not in NO_PEERS and side not in UNIFORM]
    if not own or not peers:
        return Row(name, values)
    mine, best = pick(own, key=values.__getitem__), pick(peers, key=values.__getitem__)
    section, kind, what = name.split(".", 2)
    ratios = []
    for measured in rounds:
        above, below = measured[f"{section}.{kind}.{mine}.{what}"], measured[f"{section}.{kind}.{best}.{what}"]
        if less_is_better(name):
            above, below = below, above
        if below:
            ratios.append(above / below)
    if not ratios:
        return Row(name, values)
    return Row(name, values, mine, best, statistics.median(ratios), (min(ratios), max(ratios)))


SHOWN = {
    "tree": ("Sum trees alone, calls/s", r"tree\.(\d+)\.(sample|update)_calls_per_s"),
    "buffer": ("Buffers in one process, calls/s", r"buffer\.(\w+)\.(add|sample|update|cycle)_calls_per_s"),
    "push": ("Across processes: pushed items/s", r"load\.(\w+)\.(pushers=[^.]+)\.push_items_per_s"),
    "batches": ("Across processes: sampled batches/s", r"load\.(\w+)\.(pushers=[^.]+)\.sample_batches_per_s"),
    "cpu": ("Server's processor time a push, µs an item", r"load\.(\w+)\.(pushers=[^.]+)\.server_cpu_us_per_push"),
    "experience": ("One real Breakout transition", r"experience\.(\w+)\.(\w+)_per_item"),
}


def markdown(content: Mapping[str, Any]) -> str:
    """A table for each kind of measurement; the last column is this project over the best prioritized peer."""
    found = rows(content)
    parts = []
    for title, pattern in SHOWN.values():
        chosen = [(match, row) for row in found if (match := re.fullmatch(pattern, row.name))]
        if chosen:
            parts.append("\n".join(_table(title, chosen)))
    return "\n\n".join(parts) + "\n"


def _table(title: str, chosen: Sequence[tuple[re.Match[str], Row]]) -> Iterator[str]:
    sides = list(dict.fromkeys(side for _, row in chosen for side in row.values))
    yield f"**{title}**"
    yield ""
    yield "| | " + " | ".join(sides) + " | ratio (range) |"
    yield "|---" * (len(sides) + 2) + "|"
    for match, row in chosen:
        label = " ".join(f"{int(group):,}" if group.isdigit() else group.replace("_", " ") for group in match.groups())
        cells = [number(row.values[side]) if side in row.values else "–" for side in sides]
        yield f"| {label} | {' | '.join(cells)} | {_ratio(row)} |"


def _ratio(row: Row) -> str:
    if row.ratio is None or row.spread is None:
        return "–"
    own = "" if row.own == OWN else f"{row.own} "
    return f"**{row.ratio:.1f}** ({row.spread[0]:.1f}–{row.spread[1]:.1f}) {own}over {row.best}"


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    if value >= 1e4:
        return f"{value / 1e3:.3g} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
