"""Pictures of a comparison: reward against rounds, simulated time and cost, and the actors of each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from replay_server.bench.papers.nitro.campaign import Campaign
from replay_server.bench.papers.nitro.cell import Cell
from replay_server.bench.papers.nitro.scheme import Scheme
from replay_server.bench.papers.statistics import interquartile_mean

mpl.use("Agg")
import matplotlib.pyplot as plt

POINTS = 100
"""Of a curve along time or cost."""
WIDE = 8.0
"""Costs that lie further apart than that are drawn on a logarithmic axis."""
AXES: dict[str, tuple[str, Callable[[Cell], Sequence[float]]]] = {
    "rounds": ("round", lambda cell: range(1, len(cell.counts) + 1)),
    "time": ("simulated time, s", lambda cell: cell.elapsed_s),
    "cost": ("simulated cost, $", lambda cell: cell.cost),
}


def draw(campaign: Campaign, env: str, schemes: Sequence[Scheme], path: Path, title: str) -> bool:
    """Writes a PNG of four panels; False where there is no cell."""
    found = {str(scheme): cells for scheme in schemes if (cells := campaign.of(env, scheme))}
    if not found:
        return False
    figure, grid = plt.subplots(2, 2, figsize=(13, 8), layout="constrained")
    panels = grid.flat
    colours = _colours(found)
    for name, cells in found.items():
        look = {"color": colours[name], "label": name, "linewidth": 1.3, "linestyle": "--" if "@" in name else "-"}
        for axes, (label, along) in zip(panels[:3], AXES.values(), strict=True):
            axes.plot(*_curve(cells, along), **look)
            axes.set_xlabel(label)
            axes.set_ylabel("reward (interquartile mean over seeds)")
        length = min(len(cell.counts) for cell in cells)
        panels[3].plot(range(1, length + 1), np.mean([cell.counts[:length] for cell in cells], axis=0), **look)
    target = campaign.target(env)
    for axes in panels[:3]:
        if target is not None:
            axes.axhline(target.score, color="grey", linewidth=0.8, linestyle=":")
    if _spread(cell.cost[-1] for cells in found.values() for cell in cells) > WIDE:
        panels[2].set_xscale("log")
    panels[3].set_xlabel("round")
    panels[3].set_ylabel("actors (mean over seeds)")
    for axes in panels:
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle(f"{env}: {title} (times and dollars simulated; dotted: target)", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return True


def _colours(names: Iterable[str]) -> dict[str, Any]:
    """One for each scheme; the same scheme on other machines has its colour."""
    bases = list(dict.fromkeys(name.partition("@")[0] for name in names))
    drawn = plt.get_cmap("tab10" if len(bases) <= 10 else "tab20")
    return {name: drawn(bases.index(name.partition("@")[0]) % drawn.N) for name in names}


def _spread(values: Iterable[float]) -> float:
    """The largest over the smallest."""
    found = sorted(values)
    return found[-1] / found[0] if found[0] > 0 else np.inf


def _curve(cells: Sequence[Cell], along: Callable[[Cell], Sequence[float]]) -> tuple[np.ndarray, list[float]]:
    """Interquartile mean over runs at points that all of them have come to."""
    ends = []
    starts = []
    lines = []
    for cell in cells:
        places = along(cell)
        rounds = [number for number, _ in cell.evaluations if number < len(cell.counts)]
        means = [mean for number, mean in cell.evaluations if number < len(cell.counts)]
        points = [places[number - 1] for number in (*rounds, len(cell.counts))]
        lines.append((points, [*means, cell.final]))
        starts.append(points[0])
        ends.append(points[-1])
    at = np.linspace(max(starts), max(max(starts), min(ends)), POINTS)
    return at, [interquartile_mean([float(np.interp(each, *line)) for line in lines]) for each in at]
