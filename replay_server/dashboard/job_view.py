"""What the page of any job has: its head, its scores, a run to compare with.

A kind of job adds its tiles and panels (`apex_view`, `train_view`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts, words
from replay_server.dashboard.charts import AMBER, GREY
from replay_server.dashboard.json_lines import finite
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.server_panels import server_banner
from replay_server.dashboard.server_source import ServerSource
from replay_server.dashboard.view import Banner, Fact, Panel, Tile
from replay_server.dashboard.watch import Watch

BAD_ENDS = ("failure", "server lost", "diverged")


class JobView:
    """One job's page. `compare`: another run, drawn dashed.

    A kind of job says what its tiles and panels are, the place of a row on the horizontal axis (`place`), and the line
    that says most of it (`gist`).
    """

    def __init__(self, run: RunSource, watch: Watch, compare: RunSource | None = None) -> None:
        self.run = run
        self.watch = watch
        self.compare = compare
        self.tiles: Sequence[Tile] = self.make_tiles()
        self.panels: Sequence[Panel] = self.make_panels()

    # -- what a kind of job says itself

    def make_tiles(self) -> Sequence[Tile]:
        """Eight of them are a row on a laptop."""
        raise NotImplementedError

    def make_panels(self) -> Sequence[Panel]:
        """In reading order; spans of a row add up to twelve."""
        raise NotImplementedError

    def place(self, row: Mapping[str, Any], run: RunSource) -> float | None:
        """Where a row of `run` stands on the horizontal axis."""
        raise NotImplementedError

    def gist(self) -> list[list[Any]]:
        """[place, number]: the one line that says most, for the overview."""
        raise NotImplementedError

    # -- the page's head

    @property
    def title(self) -> str:
        return self.run.title

    @property
    def subtitle(self) -> str:
        began = time.strftime("%d %b %H:%M", time.localtime(self.run.began_s))
        resumed = f", resumed {len(self.run.pauses)}×" if self.run.pauses else ""
        parts = [
            str(self.run.path),
            self.run.setting_text("backend"),
            f"began {began}{resumed}",
            self.run.server_name or "",
        ]
        return " · ".join(part for part in parts if part)

    @property
    def state(self) -> tuple[str, str]:
        run = self.run
        if run.state == "running":
            return "running", "good"
        if run.state == "ended":
            why = f": {run.ended_by.replace('_', ' ')}" if run.ended_by else ""
            return f"ended{why}", "bad" if run.ended_by in BAD_ENDS else ""
        return ("killed", "bad") if run.state == "killed" else ("not known", "warn")

    def banner(self) -> Banner | None:
        """What changes how the page is to be read."""
        run = self.run
        if run.behind:
            return Banner(f"Still reading what the run has written: {100 * run.read_share:.0f} %.", "")
        if run.state == "ended":
            score, games = finite(run.summary.get("eval_mean")), run.summary.get("eval_episodes")
            result = f" Score {score:.1f} over {games} games." if score is not None else ""
            why = f" ({run.ended_by.replace('_', ' ')})" if run.ended_by else ""
            return Banner(f"The job has ended{why}.{result}", "bad" if run.ended_by in BAD_ENDS else "")
        if run.state == "killed":
            return Banner("The job's process is gone, and it left no summary: it was killed.", "bad")
        return server_banner(self.server) if self.server is not None else None

    def version(self) -> Any:
        """Changes where there is something new to show."""
        server = self.server
        return (self.run.looks, server.looks if server else 0, self.compare.looks if self.compare else 0)

    # -- sources

    @property
    def server(self) -> ServerSource | None:
        return self.watch.server_of(self.run)

    @property
    def running(self) -> bool:
        """Whether it goes on, as far as that can be told from here."""
        return self.run.state in ("running", "unknown")

    def setting(self, name: str, otherwise: float | None = None) -> float | None:
        """A number of config.json."""
        return finite(self.run.settings.get(name), otherwise)

    def points(
        self, kind: str, name: str, above: str | None = None, run: RunSource | None = None
    ) -> list[list[float | None]]:
        """[place, number] of the rows of a kind, as many as a line shows; None where there is no number.

        Of a map within the rows where `above` names it.
        """
        run = run or self.run
        found = []
        for row in charts.some(run.rows[kind]):
            holder = row.get(above) if above else row
            value = finite(holder.get(name)) if isinstance(holder, Mapping) else None
            found.append([self.place(row, run), value])
        return found

    # -- what any job shows

    def evaluation(self) -> Fact | None:
        """The newest evaluation, and the best: the score of what a job keeps. None before the first."""
        newest, best = self.run.newest("evaluation"), self.run.best_evaluation
        if newest is None:
            return None
        deviation = words.number(newest.get("score_std"))
        name = "kept" if self.run.keeps_best else "best"
        detail = f"last, ± {deviation} · {name} {words.number(best.get('score_mean'))}" if best else f"± {deviation}"
        return Fact(words.number(newest.get("score_mean")), detail)

    def compared(self, kind: str, name: str, title: str = "") -> list[dict[str, Any]]:
        """The dashed line of the run to compare with, where there is one."""
        if self.compare is None:
            return []
        shown = f"{words.short(self.compare.key)} {title}".strip()
        # Its own name, so that a run that is called like one of this page's lines does not take its place.
        line = charts.line(shown, self.points(kind, name, run=self.compare), GREY, dashed=True)
        return [line | {"id": f"compared {name}"}]

    def target(self, name: str, words_before: str) -> dict[str, Any]:
        """The mark of a setting's number across a chart, for a series; none where it is not set."""
        value = self.setting(name)
        if value is None:
            return {}
        return {"markLine": charts.marker(value, f"{words_before} {value:g}", AMBER)}
