"""docs/images/peers.svg: the README's chart, drawn from the files of docs/benchmarks that hold its figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from pages import REPOSITORY

BENCHMARKS = REPOSITORY / "docs/benchmarks"
OWN, OTHER = "#2463a8", "#a9adb3"
TEXT, QUIET = "#1d2126", "#5b626b"
PANEL, LABELS, BAR, GAP, TOP = 370, 148, 18, 7, 58


class Bar(NamedTuple):
    """One system: its label, the side's name in the file, and whether it is this project."""

    label: str
    side: str
    own: bool


class Panel(NamedTuple):
    """One measurement of several systems. `scale` turns the file's unit into the unit that is shown."""

    title: str
    note: str
    file: str
    name: str
    scale: float
    digits: str
    bars: Sequence[Bar]


PANELS = (
    Panel(
        "Added by four actors alone", "thousand transitions/s, more is better",
        "loads.json", "load.atari.{}.pushers=4,alone.push_items_per_s", 1e-3, "{:.0f}",
        (
            Bar("this, frames once", "replay_windows", True),
            Bar("this, whole", "replay", True),
            Bar("Redis", "redis", False),
            Bar("Ray and cpprb", "ray", False),
            Bar("Reverb", "reverb", False),
        ),
    ),
    Panel(
        "Sampled beside four actors", "batches of 512 per second, more is better",
        "loads.json", "load.atari.{}.pushers=4.sample_batches_per_s", 1, "{:.0f}",
        (
            Bar("this, shared memory", "replay_shared", True),
            Bar("this, TCP", "replay_windows", True),
            Bar("Ray and cpprb", "ray", False),
            Bar("Redis", "redis", False),
            Bar("Reverb", "reverb", False),
        ),
    ),
    Panel(
        "Memory of a Breakout transition", "kB, less is better",
        "experience.json", "experience.breakout.{}.memory_bytes_per_item", 1e-3, "{:.1f}",
        (
            Bar("this, LZ4", "replay_lz4", True),
            Bar("this, frames once", "replay_windows", True),
            Bar("Reverb, frames once", "reverb_frames", False),
            Bar("Reverb", "reverb", False),
            Bar("Redis", "redis", False),
        ),
    ),
)  # fmt: skip
"""What is drawn, from left to right. Batches are of frames that are stored once, on this project's side."""


def page() -> str:
    """The whole picture."""
    height = TOP + max(len(panel.bars) for panel in PANELS) * (BAR + GAP) + 6
    drawn = "".join(_panel(panel, at * PANEL) for at, panel in enumerate(PANELS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PANEL * len(PANELS)} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{drawn}</svg>\n'
    )


def _panel(panel: Panel, left: int) -> str:
    medians = json.loads((BENCHMARKS / panel.file).read_text())["median"]
    values = [medians[panel.name.format(bar.side)] * panel.scale for bar in panel.bars]
    longest = PANEL - LABELS - 50
    lines = [
        f'<text x="{left + 12}" y="22" fill="{TEXT}" font-size="15" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{left + 12}" y="41" fill="{QUIET}">{escape(panel.note)}</text>',
    ]
    for at, (bar, value) in enumerate(zip(panel.bars, values, strict=True)):
        y = TOP + at * (BAR + GAP)
        width = max(1.0, longest * value / max(values))
        colour = OWN if bar.own else OTHER
        weight = ' font-weight="bold"' if bar.own else ""
        lines += [
            f'<text x="{left + LABELS - 6}" y="{y + 13}" text-anchor="end" fill="{TEXT}"{weight}>'
            f"{escape(bar.label)}</text>",
            f'<rect x="{left + LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{left + LABELS + width + 5:.1f}" y="{y + 13}" fill="{TEXT}"{weight}>'
            f"{panel.digits.format(value)}</text>",
        ]
    return "\n".join(lines) + "\n"
