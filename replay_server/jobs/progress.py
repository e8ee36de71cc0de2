"""What a running job looks like: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TextIO

from replay_server import terminal
from replay_server.terminal import LiveView, PlainView

PLAIN_EVERY_S = 10.0
RATE_WINDOW_S = 10.0


@dataclass
class ActorState:
    """One actor as the job sees it."""

    frames: int = 0
    episodes: int = 0
    score_mean: float = 0.0
    version: int = -1
    restarts: int = 0
    alive: bool = True
    """Whether it has reported lately."""
    updated_at: float = 0.0
    """When it reported last, in seconds of its own clock; 0 = never."""


@dataclass
class Snapshot:
    """The numbers of one moment; totals are over the whole run, restarts of parts and earlier sessions included."""

    elapsed_s: float = 0.0
    """Since the first actor step."""
    frames: int = 0
    transitions: int = 0
    updates: int = 0
    frames_per_s: float = 0.0
    transitions_per_s: float = 0.0
    updates_per_s: float = 0.0
    size: int = 0
    capacity: int = 0
    samples_per_insert: float = 0.0
    """Items sampled for each one added after learning began, as the rate limiter counts it."""
    waiting: str = ""
    """Why sampling would wait now, "" if it would not."""
    waiting_add: str = ""
    """And adding."""
    closed: bool = False
    """Whether the table is closed."""
    learner: dict[str, float] = field(default_factory=dict)
    """loss, mean_q, td_error, version, waiting_share …, as the learner last reported them."""
    actors: dict[int, ActorState] = field(default_factory=dict)
    """By their ids."""
    signs: dict[str, Any] = field(default_factory=dict)
    """By the names of parts: what changes while the part lives (`hung_parts.Silence.look`)."""
    evaluation: dict[str, Any] | None = None
    evaluations: int = 0
    restarts: int = 0
    batches_not_finite: int = 0
    """Batches that changed nothing, since their loss or gradient was not finite."""

    @property
    def weight_staleness(self) -> int:
        """Learner steps between the newest published weights and the oldest that an actor plays with."""
        playing = [actor.version for actor in self.actors.values() if actor.alive]
        return max(0, int(self.learner.get("version", 0)) - max(0, min(playing))) if playing else 0


class Rate:
    """Counts per second over the last `RATE_WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> float:
        """Takes the count at a time, returns the rate; one that has gone back is counted from there on."""
        if self._points and count < self._points[-1][1]:
            self._points.clear()
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if end > start else 0.0


View = PlainView | LiveView


def make_view(title: str, stream: TextIO | None = None) -> View:
    """A live view where `stream` (standard output) is a terminal and rich is installed, plain lines elsewhere."""
    return terminal.make_view(plain_line, lambda snapshot: _table(snapshot, title), PLAIN_EVERY_S, stream)


def plain_line(snapshot: Snapshot) -> str:
    """Everything that matters, on one line."""
    learner = snapshot.learner
    parts = [
        f"{_clock(snapshot.elapsed_s)}",
        f"frames {snapshot.frames} ({snapshot.frames_per_s:.0f}/s)",
        f"transitions {snapshot.transitions} ({snapshot.transitions_per_s:.0f}/s)",
        f"updates {snapshot.updates} ({snapshot.updates_per_s:.1f}/s)",
        f"replay {snapshot.size}/{snapshot.capacity}",
        f"samples/insert {snapshot.samples_per_insert:.2f}",
    ]
    if learner:
        parts.append(
            f"loss {learner.get('loss', 0.0):.4g} Q {learner.get('mean_q', 0.0):.4g} "
            f"TD {learner.get('td_error', 0.0):.4g}"
        )
    if snapshot.waiting and not (learner and snapshot.updates_per_s):
        parts.append(f"learner waits: {snapshot.waiting}")
    if snapshot.waiting_add and not snapshot.transitions_per_s:
        parts.append(f"actors wait: {snapshot.waiting_add}")
    scores = " ".join(f"{actor.score_mean:.1f}" for actor in snapshot.actors.values() if actor.episodes)
    if scores:
        parts.append(f"actor scores {scores}")
    if snapshot.evaluation is not None:
        parts.append(f"evaluation {snapshot.evaluation['score_mean']:.1f}")
    parts.append(f"actors' weights {snapshot.weight_staleness} updates old")
    if snapshot.restarts:
        parts.append(f"restarts {snapshot.restarts}")
    if snapshot.batches_not_finite:
        parts.append(f"batches not finite {snapshot.batches_not_finite}")
    return " · ".join(parts)


def _table(snapshot: Snapshot, title: str) -> Any:
    from rich.table import Table

    learner, evaluation = snapshot.learner, snapshot.evaluation
    table = Table(title=f"{title} · {_clock(snapshot.elapsed_s)}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="bold")
    table.add_column(justify="right")

    def row(*cells: str) -> None:
        table.add_row(*cells)

    row("frames/s", f"{snapshot.frames_per_s:,.0f}", "frames", f"{snapshot.frames:,}")
    row("transitions/s", f"{snapshot.transitions_per_s:,.0f}", "transitions", f"{snapshot.transitions:,}")
    row("updates/s", f"{snapshot.updates_per_s:,.1f}", "updates", f"{snapshot.updates:,}")
    row(
        "replay", f"{snapshot.size:,} of {snapshot.capacity:,}",
        "samples per insert", f"{snapshot.samples_per_insert:.2f}",
    )  # fmt: skip
    row("loss", _number(learner, "loss"), "mean Q", _number(learner, "mean_q"))
    row("TD error", _number(learner, "td_error"), "gradient norm", _number(learner, "gradient_norm"))
    row(
        "weight staleness", f"{snapshot.weight_staleness} updates",
        "learner waits", f"{100 * learner['waiting_share']:.0f} %" if "waiting_share" in learner else snapshot.waiting,
    )  # fmt: skip
    score = "–" if evaluation is None else f"{evaluation['score_mean']:.1f} ± {evaluation['score_std']:.1f}"
    row("evaluation", score, "evaluations", str(snapshot.evaluations))
    row("restarts", str(snapshot.restarts), "batches not finite", str(snapshot.batches_not_finite))
    for index, actor in snapshot.actors.items():
        state = f"{actor.score_mean:.1f}" if actor.alive else "not playing"
        row(f"actor {index} score", state, "games", f"{actor.episodes:,}")
    return table


def _number(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.4g}" if name in values else "–"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}"
