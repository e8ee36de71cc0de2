"""Pictures of a comparison: reward against rounds, simulated time and cost, and the actors of each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from replay_server.bench.scalers.campaign import Campaign
from replay_server.bench.scalers.cell import Cell
from replay_server.bench.scalers.scheme import Scheme
from replay_server.bench.scalers.statistics import interquartile_mean

mpl.use("Agg")
import matplotlib.pyplot as plt

POINTS = 100
"""Of a curve along time or cost."""
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
    figure, grid = plt.subplots(1, 4, figsize=(20, 4.2))
    for name, cells in found.items():
        for axes, (label, along) in zip(grid, AXES.values(), strict=False):
            at, values = _curve(cells, along)
            axes.plot(at, values, label=name)
            axes.set_xlabel(label)
            axes.set_ylabel("reward (interquartile mean over seeds)")
        length = min(len(cell.counts) for cell in cells)
        grid[3].plot(range(1, length + 1), np.mean([cell.counts[:length] for cell in cells], axis=0), label=name)
    target = campaign.target(env)
    for axes in grid[:3]:
        if target is not None:
            axes.axhline(target.score, color="grey", linewidth=0.8, linestyle="--")
    grid[3].set_xlabel("round")
    grid[3].set_ylabel("actors (mean over seeds)")
    for axes in grid:
        axes.grid(alpha=0.3)
    grid[3].legend(fontsize=7)
    figure.suptitle(f"{env}: {title} (times and dollars simulated; dashed: target)", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return True


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
