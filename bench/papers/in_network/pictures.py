"""Draws a figure: panels of bars, with the range of all rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replay_server.bench.papers.in_network.figure import Panel
from replay_server.bench.plot import finish, plt


def plot_bars(content: Mapping[str, Any], panels: Sequence[Panel], path: str) -> None:
    """Writes a PNG for `bench figures`: in each panel groups of bars, one bar for each series, with its range."""
    width = min(3, len(panels))
    height = -(-len(panels) // width)
    figure, grid = plt.subplots(height, width, figsize=(5.2 * width, 3.0 * height + 1.0), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    names = list(dict.fromkeys(series for panel in panels for series in panel.bars))
    for panel, axes in zip(panels, grid.flat, strict=False):
        groups = list(dict.fromkeys(group for bars in panel.bars.values() for group in bars))
        share = 0.8 if panel.stacked else 0.8 / len(panel.bars)
        bottoms = dict.fromkeys(groups, 0.0)
        for index, (series, bars) in enumerate(panel.bars.items()):
            medians = {group: content["median"][measurement] / panel.divisor for group, measurement in bars.items()}
            spreads = [content["spread"][measurement] for measurement in bars.values()]
            below = [median - low / panel.divisor for median, (low, _) in zip(medians.values(), spreads, strict=True)]
            above = [high / panel.divisor - median for median, (_, high) in zip(medians.values(), spreads, strict=True)]
            axes.bar(
                [groups.index(group) + (0 if panel.stacked else share * (index + 0.5) - 0.4) for group in bars],
                list(medians.values()),
                share,
                bottom=[bottoms[group] for group in bars],
                yerr=None if panel.stacked else (below, above),
                capsize=2,
                label=series,
                color=f"C{names.index(series) % 10}",
            )
            if panel.stacked:
                bottoms |= {group: bottoms[group] + median for group, median in medians.items()}
        axes.set_xticks(range(len(groups)), groups, fontsize=7, rotation=30 if panel.stacked else 0)
        axes.set_title(panel.title, fontsize=9)
        axes.set_ylabel(panel.unit, fontsize=8)
        axes.grid(axis="y", alpha=0.3)
        if panel.stacked:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
        else:
            axes.legend(fontsize=7)
    finish(figure, content, path)
