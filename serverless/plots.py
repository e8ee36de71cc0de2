"""Pictures of a run, from its directory: reward, actors, where rounds spent their time, and every function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_server.learner.metrics import read_metrics
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.breakdown import PARTS, by_round, cold_start_s, round_breakdown
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.prices import part_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "plots"
"""In the run directory."""
ZOOMED_ROUNDS = 3
"""That the lower half of functions.png shows."""
COLORS = {
    "queued": "#d0d4da",
    "cold start": "#4c78a8",
    "actor": "#54a24b",
    "warm": "#bab0ac",
    "learner": "#b279a2",
    "gradient": "#eeca3b",
    "parameter": "#f58518",
    "evaluation": "#9d9d9d",
    "failed, timed out, lost": "#e45756",
}
PART_COLORS = (
    "#d0d4da", "#4c78a8", "#72b7b2", "#9ecae9", "#54a24b", "#eeca3b", "#ffbf79", "#b279a2", "#d6a5c9",
    "#e45756", "#f58518", "#9d9d9d",
)  # fmt: skip


def draw_run(directory: Path) -> list[Path]:
    """Draws what the run directory has records of into its folder plots; the pictures' paths.

    ModuleNotFoundError without matplotlib; FileNotFoundError where there is no log of invocations.
    """
    invocations = read_invocations(directory)
    rounds = _rounds(directory)
    evaluations = read_metrics(directory, "evaluation")
    if not invocations:
        return []
    title = _title(directory)
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    began = min(each.queued for each in invocations)
    drawn = []
    if rounds:
        drawn.append(_saved(draw_reward(rounds, evaluations, invocations, title), folder / "reward.png"))
    if by_round(invocations):
        drawn.append(_saved(draw_actors(rounds, invocations, title), folder / "actors.png"))
        drawn.append(_saved(draw_breakdown(invocations, title), folder / "latency.png"))
    drawn.append(_saved(draw_functions(invocations, began, title), folder / "functions.png"))
    return drawn


def _rounds(directory: Path) -> list[dict[str, Any]]:
    """Rows of the rounds, in order; of one that was played again after --resume the last."""
    found: dict[int, dict[str, Any]] = {}
    for row in read_metrics(directory, "round"):
        found = {number: earlier for number, earlier in found.items() if number < row["round"]}
        found[row["round"]] = row
    return list(found.values())


def _title(directory: Path) -> str:
    """Env, algorithm, scaler, backend, seed, as the run's settings say."""
    try:
        values = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        return directory.name
    return ", ".join(
        str(values[name]) if name in ("env", "algo", "backend") else f"{name} {values[name]}"
        for name in ("env", "algo", "scaler", "actors", "backend", "seed")
        if values.get(name) is not None
    )


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path


def _figure(width: float, height: float, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=10)
    return figure


# ---- reward ----------------------------------------------------------------------------------------------------------


def draw_reward(
    rounds: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    invocations: Sequence[Invocation],
    title: str,
) -> Figure:
    """Mean score of each round's games, and of evaluations, against rounds, hours on the clock and dollars.

    Args:
        rounds: rows with round, scores and cost (`RoundRecord`).
        evaluations: rows with round and score_mean.
    """
    ends = {number: max(each.ended for each in members) for number, members in by_round(invocations).items()}
    began = min((each.queued for members in by_round(invocations).values() for each in members), default=0.0)
    last = max((end - began for end in ends.values()), default=0.0)
    unit, seconds = ("minutes", 60.0) if last >= 180 else ("seconds", 1.0)
    times = {number: (end - began) / seconds for number, end in ends.items()}
    costs = {row["round"]: row["cost"] for row in rounds}
    figure = _figure(12, 3.8, title)
    panels = figure.subplots(1, 3, sharey=True)
    played = [row for row in rounds if row["scores"]]
    for axes, where, label in zip(
        panels,
        ({row["round"]: row["round"] for row in rounds}, times, costs),
        ("round", f"time, {unit}", "cost, $"),
        strict=True,
    ):
        shown = [row for row in played if row["round"] in where]
        means = [sum(row["scores"]) / len(row["scores"]) for row in shown]
        places = [where[row["round"]] for row in shown]
        axes.plot(places, means, ".", color="#4c78a8", alpha=0.45, label="games of a round, mean")
        axes.plot(places, _running_mean(means, 5), color="#4c78a8", label="running mean of 5 rounds")
        marks = [(where[row["round"]], row["score_mean"]) for row in evaluations if row["round"] in where]
        if marks:
            axes.plot(*zip(*marks, strict=True), "D", color="#f58518", markersize=6, label="evaluation")
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=5)
        axes.grid(alpha=0.3)
    _whole_ticks(panels[0])
    panels[0].set_ylabel("score")
    panels[0].legend(fontsize=8)
    return figure


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    means = []
    for index in range(len(values)):
        part = values[max(0, index - width + 1) : index + 1]
        means.append(sum(part) / len(part))
    return means


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


# ---- actors and latency ----------------------------------------------------------------------------------------------


def draw_actors(rounds: Sequence[Mapping[str, Any]], invocations: Sequence[Invocation], title: str) -> Figure:
    """Actors of each round: asked for, and those whose fragments arrived; attempts that brought nothing."""
    figure = _figure(8, 3.4, title)
    axes = figure.subplots()
    groups = by_round(invocations)
    if rounds:
        numbers = [row["round"] for row in rounds]
        axes.step(numbers, [row["actors"] for row in rounds], where="mid", color="#4c78a8", label="asked for")
        axes.bar(numbers, [row["arrived"] for row in rounds], 0.8, color="#54a24b", alpha=0.6, label="arrived")
    else:
        arrived = [sum(each.kind == "actor" and each.outcome == "ok" for each in ours) for ours in groups.values()]
        axes.bar(list(groups), arrived, 0.8, color="#54a24b", alpha=0.6, label="ended well")
    wrong = [sum(each.kind == "actor" and each.outcome != "ok" for each in ours) for ours in groups.values()]
    if any(wrong):
        axes.bar(
            list(groups), wrong, 0.35, color=COLORS["failed, timed out, lost"], label="attempts that brought nothing"
        )
    axes.set_xlabel("round")
    axes.set_ylabel("actors")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _whole_ticks(axes)
    return figure


def draw_breakdown(invocations: Sequence[Invocation], title: str) -> Figure:
    """Each round's time as a stack of parts, along the slowest actor and the learner."""
    groups = by_round(invocations)
    stacks = {number: round_breakdown(members) for number, members in groups.items()}
    figure = _figure(10, 4.2, title)
    axes = figure.subplots()
    bottoms = [0.0] * len(stacks)
    for part, color in zip(PARTS, PART_COLORS, strict=True):
        heights = [stack[part] for stack in stacks.values()]
        if not sum(heights):
            continue
        axes.bar(list(stacks), heights, 0.85, bottom=bottoms, color=color, label=part)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xlabel("round")
    axes.set_ylabel("seconds")
    axes.grid(axis="y", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _whole_ticks(axes)
    return figure


# ---- functions -------------------------------------------------------------------------------------------------------


def draw_functions(invocations: Sequence[Invocation], began: float, title: str) -> Figure:
    """A bar for every attempt: queued, starting cold, running, failed. Above all of them, below a few rounds.

    Simulated invocations are named so in the title.
    """
    if any(each.platform == "simulated" for each in invocations):
        title += " — SIMULATED times"
    figure = _figure(12, 7.5, title)
    above, below = figure.subplots(2, 1)
    _lanes(above, invocations, began)
    above.set_title("all invocations", fontsize=9)
    groups = by_round(invocations)
    chosen = _typical(groups)
    few = [each for number in chosen for each in groups[number]]
    if few:
        _lanes(below, few, began)
        names = f"{chosen[0]} to {chosen[-1]}" if len(chosen) > 1 else str(chosen[0])
        below.set_title(f"rounds {names}", fontsize=9)
    else:
        below.axis("off")
    below.set_xlabel("seconds since the first submission")
    from matplotlib.patches import Patch

    seen = {name for each in invocations for name in _pieces_of(each)}
    figure.legend(
        handles=[Patch(color=color, label=name) for name, color in COLORS.items() if name in seen],
        loc="outside lower center",
        ncols=len(COLORS),
        fontsize=8,
    )
    return figure


def _typical(groups: Mapping[int, Sequence[Invocation]]) -> list[int]:
    """Rounds in a row in the middle of the job."""
    numbers = list(groups)
    first = max(0, (len(numbers) - ZOOMED_ROUNDS) // 2)
    return numbers[first : first + ZOOMED_ROUNDS]


def _pieces_of(invocation: Invocation) -> dict[str, tuple[float, float]]:
    """Name of a colour → from when to when."""
    pieces = {}
    if invocation.started > invocation.queued:
        pieces["queued"] = (invocation.queued, invocation.started)
    if invocation.outcome != "ok":
        return {**pieces, "failed, timed out, lost": (invocation.started, invocation.ended)}
    runs = invocation.started
    if cold_s := cold_start_s(invocation):
        runs = min(invocation.ended, runs + cold_s)
        pieces["cold start"] = (invocation.started, runs)
    kind = invocation.kind if invocation.kind in COLORS else "learner"
    return {**pieces, kind: (runs, invocation.ended)}


def _lanes(axes: Axes, invocations: Sequence[Invocation], began: float) -> None:
    """Attempts one below the other, learners lowest; one that begins when another has ended takes its lane."""
    bars: dict[str, list[tuple[float, int, float]]] = {}
    lanes: list[tuple[bool, float]] = []
    for each in sorted(invocations, key=lambda each: (part_of(each.kind) == "actor", each.queued, each.started)):
        is_actor = part_of(each.kind) == "actor"
        free = (index for index, (of, until) in enumerate(lanes) if of == is_actor and until <= each.queued)
        lane = next(free, len(lanes))
        lanes[lane : lane + 1] = [(is_actor, each.ended)]
        for name, (begin, end) in _pieces_of(each).items():
            bars.setdefault(name, []).append((begin - began, lane, end - begin))
    for name, pieces in bars.items():
        begins, rows, lengths = zip(*pieces, strict=True)
        axes.barh(rows, lengths, 0.8, left=begins, color=COLORS[name], linewidth=0)
    axes.set_ylim(-0.7, len(lanes) - 0.3)
    axes.set_ylabel("functions at a time")
    axes.grid(axis="x", alpha=0.3)
    axes.locator_params(axis="y", integer=True)
