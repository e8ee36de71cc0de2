"""Rewards around a policy: its parameters shifted along the top two eigenvectors of the objective's Hessian.

Nitro's Figures 3 and 8, after Li et al. 2018 and Yao et al. 2020: episodic rewards at θ + x·v₁ + y·v₂ for x and y from
−1 to 1 on a grid of 30 × 30. Here v₁ and v₂ have norm 1 and belong to the two eigenvalues of largest magnitude, as a
power iteration finds them; every point plays the same games.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.actors.fragments import evaluate_policy
from replay_server.bench import result
from replay_server.bench.papers.nitro.branches import Job
from replay_server.bench.papers.option_types import at_least
from replay_server.learner.curvature import CurvatureOptions, spectrum
from replay_server.rl.fragments import Fragments
from replay_server.rl.policy_networks import ActorCritic

DIRECTION_STEPS = 60
"""Products for eigenvectors, which take more than their values do."""
OPTIONS = ("grid", "extent", "episodes")
"""Of `options`, what a panel depends on."""


def options(parser: argparse.ArgumentParser) -> None:
    """Those of every landscape."""
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--grid", type=at_least(2), default=30, help="points along each direction (30)")
    parser.add_argument("--extent", type=float, default=1.0, help="how far they reach either way (1)")
    parser.add_argument("--episodes", type=at_least(1), default=1, help="games at each point (1)")


def panel(
    job: Job, fragments: Fragments, options: argparse.Namespace, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """The landscape around a job's policy, in directions found on these fragments, as plain data."""
    directions, eigenvalues = top_two(job, fragments)

    def tell_row(row: int) -> None:
        if (row + 1) % 10 == 0 or row + 1 == options.grid:
            say(f"after round {job.round}: {row + 1} of {options.grid} rows")

    scores = surface(job, directions, options.grid, options.extent, options.episodes, tell_row)
    centre = float(np.mean(evaluate_policy(job.learner.network, job.settings, job.spec, 20, job.settings.seed)))
    return {"scores": scores, "extent": options.extent, "eigenvalues": eigenvalues.tolist(), "centre": centre}


def top_two(job: Job, fragments: Fragments) -> tuple[Tensor, np.ndarray]:
    """The vectors (2, P) of the policy's parameters, and their eigenvalues (2,), the larger magnitude first.

    A vector's sign is as good as its opposite: here its largest component is positive.
    """
    options = CurvatureOptions(steps=DIRECTION_STEPS, tolerance=0.0, subset=1.0)
    found = spectrum(job.learner, fragments, options, with_vectors=True)
    order = np.argsort(-np.abs(found.values), kind="stable")[:2]
    vectors = found.vectors[torch.from_numpy(order.copy())]
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign(), found.values[order]


def shifted(network: ActorCritic, direction: Tensor) -> ActorCritic:
    """A copy whose policy parameters have moved by `direction` (P,)."""
    moved = copy.deepcopy(network)
    parameters = list(moved.policy_parameters())
    with torch.no_grad():
        for parameter, part in zip(parameters, direction.split([each.numel() for each in parameters]), strict=True):
            nn.Parameter.add_(parameter, part.reshape(parameter.shape))
    return moved


def surface(
    job: Job,
    directions: Tensor,
    grid: int,
    extent: float,
    episodes: int,
    on_row: Callable[[int], None] = lambda row: None,
) -> list[list[float]]:
    """Mean rewards (grid, grid) of `episodes` games, row by y and column by x, each from −extent to extent."""
    steps = np.linspace(-extent, extent, grid)
    rows = []
    for number, y in enumerate(steps):
        row = []
        for x in steps:
            network = shifted(job.learner.network, float(x) * directions[0] + float(y) * directions[1])
            scores = evaluate_policy(network, job.settings, job.spec, episodes, job.settings.seed)
            row.append(float(np.mean(scores)))
        rows.append(row)
        on_row(number)
    return rows


def high_share(scores: Sequence[Sequence[float]], level: float) -> float:
    """The share of points whose reward is at least `level`."""
    return float((np.asarray(scores) >= level).mean())


def tell(panels: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> None:
    """A line for each panel. High is the upper half of all rewards that any of them shows."""
    low = min(np.min(each["scores"]) for each in panels.values())
    high = max(np.max(each["scores"]) for each in panels.values())
    level = float(low + high) / 2.0
    for name, each in panels.items():
        share = high_share(each["scores"], level)
        scores = np.asarray(each["scores"])
        say(
            f"{name}: rewards {scores.min():.0f} to {scores.max():.0f}, mean {scores.mean():.0f}, policy itself "
            f"{each['centre']:.0f}; {share:.1%} of points above {level:.0f}"
        )


def write(
    panels: Mapping[str, dict[str, Any]],
    options: argparse.Namespace,
    host: Mapping[str, Any],
    command: Sequence[str],
    title: str,
) -> None:
    """The result file and the picture, where they were asked for."""
    if options.json:
        measured = {f"{name}.mean_reward": float(np.mean(each["scores"])) for name, each in panels.items()}
        content = result.document("landscape", " ".join(command), host, vars(options), [measured], {})
        result.write(options.json, {**content, "panels": dict(panels)})
    if options.plot:
        draw(panels, f"{title}: {options.env}, seed {options.seed}", Path(options.plot))


def draw(panels: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> None:
    """Writes a PNG: a surface for each panel, with one scale of rewards for all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    figure.suptitle(title, fontsize=10)
    low = min(np.min(panel["scores"]) for panel in panels.values())
    high = max(np.max(panel["scores"]) for panel in panels.values())
    for index, (name, panel) in enumerate(panels.items(), 1):
        scores = np.asarray(panel["scores"])
        steps = np.linspace(-panel["extent"], panel["extent"], len(scores))
        axes: Any = figure.add_subplot(1, len(panels), index, projection="3d")
        axes.plot_surface(*np.meshgrid(steps, steps), scores, cmap="coolwarm", vmin=low, vmax=high)
        axes.set_zlim(low, high if high > low else low + 1.0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("along v₁")
        axes.set_ylabel("along v₂")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
