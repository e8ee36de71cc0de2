"""What a serverless job looks like while it runs."""

from __future__ import annotations

from typing import Any, TextIO

from replay_server import terminal
from replay_server.serverless.orchestrator import Progress


def make_view(title: str, stream: TextIO | None = None) -> terminal.PlainView | terminal.LiveView:
    """A live table where `stream` (standard output) is a terminal and rich is installed, a line a round elsewhere."""
    return terminal.make_view(plain_line, lambda progress: _table(progress, title), 0.0, stream)


def plain_line(progress: Progress) -> str:
    """Everything that matters, on one line."""
    parts = [f"round {progress.round}/{progress.rounds}", f"steps {progress.total_steps}"]
    if (record := progress.record) is not None:
        score = "–" if record.score is None else f"{record.score:.1f}"
        parts += [
            f"actors {record.arrived}/{record.actors}",
            f"score {score} ({len(record.scores)} games)",
            f"loss {record.statistics['loss']:.4g} KL {record.statistics['kl']:.3g}",
            f"{record.round_s:.2f} s (learner {record.learner_s:.2f})",
        ]
    parts.append(f"${progress.cost:.6f}")
    if progress.evaluation is not None:
        parts.append(f"evaluation {progress.evaluation['score_mean']:.1f}")
    if progress.attempts_lost:
        parts.append(f"lost {progress.attempts_lost}")
    return " · ".join(parts)


def _table(progress: Progress, title: str) -> Any:
    from rich.table import Table

    record, evaluation = progress.record, progress.evaluation
    table = Table(title=f"{title} · round {progress.round} of {progress.rounds}", show_header=False)
    for style, justify in (("bold", "left"), (None, "right")) * 2:
        table.add_column(style=style, justify=justify)  # pyright: ignore[reportArgumentType]

    def statistic(name: str) -> str:
        return f"{record.statistics[name]:.4g}" if record is not None and name in record.statistics else "–"

    actors = f"{record.arrived} of {record.actors}" if record is not None else "–"
    score = "–" if record is None or record.score is None else f"{record.score:.1f} ({len(record.scores)} games)"
    table.add_row("actors", actors, "steps", f"{progress.total_steps:,}")
    table.add_row("score", score, "evaluation", "–" if evaluation is None else f"{evaluation['score_mean']:.1f} ± {evaluation['score_std']:.1f}")  # fmt: skip  # noqa: E501
    table.add_row("loss", statistic("loss"), "KL", statistic("kl"))
    table.add_row("entropy", statistic("entropy"), "staleness", statistic("staleness"))
    if record is not None:
        table.add_row("round", f"{record.round_s:.2f} s", "learner", f"{record.learner_s:.2f} s")
        table.add_row("actor, mean", f"{record.actor_s_mean:.2f} s", "actor, slowest", f"{record.actor_s_max:.2f} s")
    table.add_row("cost", f"${progress.cost:.6f}", "attempts lost", str(progress.attempts_lost))
    return table
