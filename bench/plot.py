"""Draws results: loads against the number of pushers, scores against transitions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

from replay_server.bench.peers.table import Row

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

PANELS = (
    ("push_items_per_s", "pushed items per second"),
    ("sample_batches_per_s", "sampled batches per second"),
    ("push_latency_us", "latency of a push, ms (— p50, ·· p99)"),
    ("sample_latency_us", "latency of a sample, ms (— p50, ·· p99)"),
)


def plot_loads(content: Mapping[str, Any], path: str) -> None:
    """Writes a PNG: a row for each kind of item, a column for each panel; bars reach from lowest to highest."""
    names = list(content["median"])
    kinds = sorted({name.partition(".")[0] for name in names})
    figure, rows = plt.subplots(len(kinds), len(PANELS), figsize=(4.2 * len(PANELS), 3.4 * len(kinds)), squeeze=False)
    for kind, row in zip(kinds, rows, strict=True):
        # "replay." and "redis." in a comparison; nothing in between where one server was measured.
        systems = sorted(
            {match[1] or "" for name in names if (match := re.match(rf"{kind}\.(\w+\.)?pushers=\d+\.", name))}
        )
        for (what, title), axes in zip(PANELS, row, strict=True):
            for index, system in enumerate(systems):
                if what.endswith("_us"):
                    _line(axes, content, f"{kind}.{system}", f"{what}_p50", f"C{index}-", system, 1e3)
                    _line(axes, content, f"{kind}.{system}", f"{what}_p99", f"C{index}:", "", 1e3)
                else:
                    _line(axes, content, f"{kind}.{system}", what, f"C{index}-", system, 1)
            axes.set_title(f"{kind}: {title}", fontsize=9)
            axes.set_xlabel("pushers")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            if len(systems) > 1:
                axes.legend(fontsize=8)
    finish(figure, content, path, dpi=120)


def _line(
    axes: Any, content: Mapping[str, Any], prefix: str, what: str, style: str, label: str, divisor: float
) -> None:
    points = []
    for name, median in content["median"].items():
        match = re.fullmatch(rf"{re.escape(prefix)}\.?pushers=(\d+)\.{what}", name)
        if match:
            low, high = content["spread"][name]
            points.append((int(match[1]), median / divisor, (median - low) / divisor, (high - median) / divisor))
    if points:
        pushers, values, below, above = zip(*sorted(points), strict=True)
        axes.errorbar(
            pushers,
            values,
            yerr=(below, above),
            fmt=style,
            capsize=2,
            label=label.rstrip("."),
            marker="o",
            markersize=3,
        )


def plot_peers(rows: Sequence[Row], content: Mapping[str, Any], path: str) -> None:
    """Writes a PNG of bars: a panel for each measurement within a process and for each load, a bar for each side."""
    shown = [row for row in rows if re.search(r"_calls_per_s$|_items_per_s$|_batches_per_s$|_per_item$", row.name)]
    shown = [row for row in shown if "update_batches" not in row.name]
    sides = list(dict.fromkeys(side for row in shown for side in row.values))
    colors = {side: f"C{index % 10}" for index, side in enumerate(sides)}
    width = 4
    figure, grid = plt.subplots(
        -(-len(shown) // width), width, figsize=(16, 2.5 * -(-len(shown) // width)), squeeze=False
    )
    for axes in grid.flat[len(shown) :]:
        axes.axis("off")
    for row, axes in zip(shown, grid.flat, strict=False):
        section, kind, what = row.name.split(".", 2)
        for index, (side, median) in enumerate(row.values.items()):
            low, high = content["spread"][f"{section}.{kind}.{side}.{what}"]
            axes.barh(index, median, color=colors[side], xerr=[[median - low], [high - median]], capsize=2)
        axes.set_yticks(range(len(row.values)), list(row.values), fontsize=7)
        axes.invert_yaxis()
        axes.set_title(f"{section} {kind} {what}", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="x", alpha=0.3)
    finish(figure, content, path)


def plot_curves(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: str) -> None:
    """Writes a PNG with one line for each name: evaluation means against transitions."""
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for name, (transitions, means) in curves.items():
        axes.plot(transitions, means, marker=".", label=name)
    axes.set_xlabel("transitions")
    axes.set_ylabel("mean score of an evaluation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


class Scores(NamedTuple):
    """Mean scores of a run, in the order in which they were reached."""

    label: str | None
    """None: it has the label of another one."""
    color: str
    minutes: Sequence[float]
    frames: Sequence[float]
    means: Sequence[float]


def _score_panels(runs: Sequence[Scores], target: float | None, score: str) -> Figure:
    """A line for each run, against minutes and against frames."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.2), sharey=True)
    for run in runs:
        look = {"color": run.color, "marker": ".", "alpha": 0.8, "label": run.label}
        panels[0].plot(run.minutes, run.means, **look)
        panels[1].plot([frames / 1e6 for frames in run.frames], run.means, **look)
    for axes, what in zip(panels, ("minutes", "million frames"), strict=True):
        if target is not None:
            axes.axhline(target, color="black", linestyle=":", linewidth=1)
        axes.set_xlabel(what)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(score)
    panels[0].legend(fontsize=8)
    return figure


def plot_runs(runs: Sequence[Scores], target: float | None, path: str) -> None:
    """Writes a PNG: a line for each run, its evaluations against minutes and frames."""
    figure = _score_panels(runs, target, "mean score of an evaluation")
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_side_by_side(content: Mapping[str, Any], path: str) -> None:
    """Writes a PNG for whole jobs: a line for each run, the scores of its checkpoints against minutes and frames."""
    settings = content["settings"]
    told: set[str] = set()
    runs = []
    for name, run in content["runs"].items():
        side, checkpoints = name.partition(".seed=")[0], run["checkpoints"]
        minutes, frames, means = ([each[what] for each in checkpoints] for what in ("minutes", "frames", "mean"))
        color = f"C{settings['sides'].index(side)}"
        runs.append(Scores(None if side in told else side, color, minutes, frames, means))
        told.add(side)
    score = f"{settings['env']}: mean of {settings['episodes']} whole games"
    finish(_score_panels(runs, settings["target"], score), content, path, dpi=110)


def plot_sides(content: Mapping[str, Any], measurements: Sequence[str], sides: Sequence[str], path: str) -> None:
    """Writes a PNG for `bench latency`: a panel for each measurement; of each side the median and p99.

    Points, for on a logarithmic axis the length of a bar says nothing.
    """
    width = 4
    height = -(-len(measurements) // width)
    figure, grid = plt.subplots(height, width, figsize=(16, 2.6 * height), squeeze=False)
    for axes in grid.flat[len(measurements) :]:
        axes.axis("off")
    for name, axes in zip(measurements, grid.flat, strict=False):
        for index, side in enumerate(sides):
            median = content["median"].get(f"{name}.{side}.latency_us_p50")
            if median is None:
                continue
            low, high = content["spread"][f"{name}.{side}.latency_us_p50"]
            slow = content["median"][f"{name}.{side}.latency_us_p99"]
            axes.plot([median, slow], [index, index], color=f"C{index}", alpha=0.4)
            axes.errorbar(median, index, xerr=[[median - low], [high - median]], fmt="o", color=f"C{index}", capsize=2)
            axes.plot(slow, index, "|", color=f"C{index}", markersize=9)
        axes.set_yticks(range(len(sides)), list(sides), fontsize=7)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(f"{name}: latency, µs (● p50, | p99)", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="x", alpha=0.3)
    finish(figure, content, path)


def finish(figure: Any, content: Mapping[str, Any], path: str, dpi: int = 90) -> None:
    """Writes a figure as PNG, under the command and the machine that a result file names."""
    host = content["machine"]
    command = textwrap.fill(content["command"], int(13 * figure.get_figwidth()), break_on_hyphens=False)
    figure.suptitle(f"{command}\n{host['processor']}, {host['cores']} cores, {content['time']}", fontsize=9)
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
