"""An Ape-X job: from its run directory, and from its server while that lives."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts, words
from replay_server.dashboard.charts import AMBER, BLUE, GREY, RED, TEAL, VIOLET
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.server_panels import histogram_options, latency_options, limiter_words
from replay_server.dashboard.server_source import ServerSource, staleness
from replay_server.dashboard.view import Banner, Cells, Fact, Panel, Tile
from replay_server.dashboard.watch import Watch

MOST_LINES = 8
"""Actors drawn as a line each; more are a heatmap."""
MOST_COLUMNS = 60
ACTOR_COLORS = (BLUE, TEAL, AMBER, VIOLET, RED, "#6cc04a", "#d672b4", GREY)
SILENT_S = 30.0
"""An actor that has not reported for so long is shown as silent."""


class ApexView:
    """Tiles and panels of one job. `compare`: another run, drawn dashed."""

    def __init__(self, run: RunSource, watch: Watch, compare: RunSource | None = None) -> None:
        self.run = run
        self.watch = watch
        self.compare = compare
        self.tiles: Sequence[Tile] = (
            Tile("Evaluation", self._evaluation),
            Tile("Actors' score", self._actors_score),
            Tile("Frames", self._frames),
            Tile("Updates", self._updates),
            Tile("Replay", self._replay),
            Tile("Samples per insert", self._ratio),
            Tile("Weights behind", self._behind),
            Tile("Processes", self._processes),
        )
        self.panels: Sequence[Panel] = (
            Panel("Score of full games", 5, self.score, empty="no evaluation yet", note=self._score_note),
            Panel("Score of each actor", 4, self.actors, empty="no game has ended yet", note=self._actors_note),
            Panel("Priorities", 3, self.priorities),
            Panel("Loss", 4, self.loss, empty="the learner has not begun"),
            Panel("Items a second", 4, self.rates, empty="not begun", note=self._limiter),
            Panel("Latency, request to answer", 4, self.latency, note=lambda: "p99, dotted p50"),
            Panel("Replay memory", 3, self.memory, empty="not begun"),
            Panel("Weights", 4, self.weights, empty="no weights yet", note=lambda: "updates"),
            Panel(
                "Processes", 5, rows=self.process_rows, note=self._restarts,
                columns=(("name", "process"), ("state", "state"), ("restarts", "restarts"), ("score", "score"),
                         ("frames", "frames/s"), ("behind", "behind")),
            ),
        )  # fmt: skip

    # -- the page's head

    @property
    def title(self) -> str:
        return self.run.title

    @property
    def subtitle(self) -> str:
        began = time.strftime("%d %b %H:%M", time.localtime(self.run.began_s))
        server = f" · {self.run.server}" if self.run.server else ""
        return f"{self.run.path} · began {began}{server}"

    @property
    def state(self) -> tuple[str, str]:
        return run_state(self.run)

    def banner(self) -> Banner | None:
        return run_banner(self.run, self.server)

    def gist(self) -> list[list[Any]]:
        return self._points("evaluation", "score_mean") or self._actor_points()

    def version(self) -> Any:
        server = self.server
        return (self.run.looks, server.looks if server else 0)

    # -- sources

    @property
    def server(self) -> ServerSource | None:
        return self.watch.server_of(self.run)

    @property
    def table(self) -> str:
        return str(self.run.settings.get("table", "apex"))

    @property
    def about(self) -> Mapping[str, Any]:
        """REPLAY.INFO of the job's table, the last that was seen."""
        server = self.server
        return server.reading.tables.get(self.table, {}) if server else {}

    @property
    def learner(self) -> Mapping[str, Any]:
        server = self.server
        live = server.reading.learners.get(self.table, {}) if server else {}
        rows = self.run.rows["learner"]
        return live or ({**rows[-1], "updates": rows[-1].get("step")} if rows else {})

    @property
    def reports(self) -> Mapping[int, Mapping[str, float]]:
        server = self.server
        return server.reading.actors.get(self.table, {}) if server else {}

    @property
    def progress(self) -> Mapping[str, Any]:
        rows = self.run.rows["progress"]
        return rows[-1] if rows else {}

    def _points(self, kind: str, name: str, run: RunSource | None = None) -> list[list[Any]]:
        run = run or self.run
        began = run.began_s
        return [
            [round(row["time_s"] - began, 1), row.get(name) if isinstance(row.get(name), int | float) else None]
            for row in run.rows[kind]
        ]

    def _live(self, name: str, rate: bool = False) -> list[list[Any]]:
        """A number of the job's table over time, since the dashboard looks at it."""
        server = self.server
        history = server.tables.get(self.table) if server else None
        if history is None:
            return []
        began = self.run.began_s
        return [[round(at / 1000 - began, 1), value] for at, value in history.points(name, rate) if at is not None]

    def _with_past(self, live: list[list[Any]], kind: str, name: str) -> list[list[Any]]:
        """What the server showed since it is looked at, before that what the run directory has."""
        first = live[0][0] if live else float("inf")
        return [point for point in self._points(kind, name) if point[0] < first] + live

    # -- tiles

    def _evaluation(self) -> Fact:
        rows = self.run.rows["evaluation"]
        if not rows:
            return Fact(words.NOTHING, "none yet")
        newest, best = rows[-1], max(row.get("score_mean", 0.0) for row in rows)
        return Fact(words.number(newest.get("score_mean")), f"± {words.number(newest.get('score_std'))} · best {words.number(best)}")  # fmt: skip  # noqa: E501

    def _actors_score(self) -> Fact:
        scores = sorted(self._scores().values())
        if not scores:
            return Fact(words.NOTHING, "no game yet")
        return Fact(
            words.number(scores[len(scores) // 2]), f"of {words.number(scores[0])} to {words.number(scores[-1])}"
        )

    def _scores(self) -> dict[int, float]:
        live = {i: each["score_mean"] for i, each in self.reports.items() if each.get("episodes")}
        if live:
            return live
        return {
            index: float(self.progress[name])
            for index in range(int(self.run.settings.get("actors", 0)))
            if isinstance(self.progress.get(name := f"actor_{index}_score"), int | float)
        }

    def _frames(self) -> Fact:
        total = max(self.progress.get("frames", 0), self._last(self._live("frames")) or 0)
        if not self._running:
            return Fact(words.number(total), f"{words.number(self.run.summary.get('frames_per_s'))}/s on the whole")
        rate = self._last(self._live("frames", rate=True)) or self.progress.get("frames_per_s")
        return Fact(f"{words.number(rate)}/s", f"{words.number(total)} in all")

    def _updates(self) -> Fact:
        total = words.number(self.learner.get("updates"))
        if not self._running:
            return Fact(total, f"{words.number(self.run.summary.get('updates_per_s'))}/s on the whole")
        rate = self._last(self._live("learner_updates", rate=True)) or self.progress.get("updates_per_s")
        waits = self.learner.get("waiting_share")
        more = f"waits {100 * waits:.0f} %" if isinstance(waits, float) else "in all"
        return Fact(f"{words.number(rate)}/s", f"{total} · {more}")

    def _replay(self) -> Fact:
        size = self.about.get("size", self.progress.get("size"))
        capacity = self.run.settings.get("capacity") or 1
        share = size / capacity if isinstance(size, int | float) else None
        held = f" · {words.size(self.about['bytes'])}" if "bytes" in self.about else ""
        return Fact(words.number(size), f"of {words.number(capacity)}{held}", share=share)

    def _ratio(self) -> Fact:
        target = self.run.settings.get("samples_per_insert")
        about = self.about
        ratio = self.progress.get("samples_per_insert")
        if about.get("added", 0) > (least := int(self.run.settings.get("min_size_to_sample", 0))):
            ratio = about["sampled"] / (about["added"] - least)
        return Fact(words.number(ratio), f"held at {words.number(target)}" if target else "not held")

    def _behind(self) -> Fact:
        behind = staleness(self.learner, self.reports.values()) if self.reports else None
        behind = self.progress.get("weight_staleness") if behind is None else behind
        version = words.number(self.learner.get("version"))
        return Fact(words.number(behind) if self._running else words.NOTHING, f"updates · at {version}")

    def _processes(self) -> Fact:
        parts = self.run.job.get("parts") or []
        restarts = sum(int(part.get("restarts", 0)) for part in parts) or self.progress.get("restarts", 0)
        if not self._running:
            return Fact("0", f"{words.number(restarts)} restarts")
        running = sum(bool(part.get("running")) for part in parts)
        tone = "" if running == len(parts) else "warn"
        return Fact(f"{running} of {len(parts)}", f"running · {words.number(restarts)} restarts", tone)

    @property
    def _running(self) -> bool:
        return self.run.state in ("running", "unknown")

    @staticmethod
    def _last(points: list[list[Any]]) -> Any:
        return next((value for _, value in reversed(points[-4:]) if value is not None), None)

    # -- panels

    def score(self) -> dict[str, Any] | None:
        means = self._points("evaluation", "score_mean")
        if not means and self.compare is None:
            return None
        deviations = self._points("evaluation", "score_std")
        lower = [[at, None if mean is None else mean - (std or 0)] for (at, mean), (_, std) in zip(means, deviations)]
        upper = [[at, None if mean is None else mean + (std or 0)] for (at, mean), (_, std) in zip(means, deviations)]
        series = charts.band("evaluation ±", lower, upper, BLUE)
        series.append(charts.line("evaluation", means, BLUE, width=2, dots=len(means) < 40))
        middle = self._actor_points()
        if middle:
            series.append(charts.line("actors' median", middle, TEAL, width=1.2))
        if self.compare is not None:
            series.append(charts.line(self.compare.name, self._points("evaluation", "score_mean", self.compare), GREY, dashed=True))  # fmt: skip  # noqa: E501
        target = self.run.settings.get("target_score")
        if isinstance(target, int | float):
            series[2]["markLine"] = charts.marker(target, f"target {target:g}", AMBER)
        return charts.chart(series)

    def _actor_points(self) -> list[list[Any]]:
        began, names = self.run.began_s, self._score_names()
        found = []
        for row in self.run.rows["progress"]:
            scores = sorted(row[name] for name in names if isinstance(row.get(name), int | float))
            found.append([round(row["time_s"] - began, 1), scores[len(scores) // 2] if scores else None])
        return found

    def _score_names(self) -> list[str]:
        return [f"actor_{index}_score" for index in range(int(self.run.settings.get("actors", 0)))]

    def _score_note(self) -> str:
        count = len(self.run.rows["evaluation"])
        return f"{count} evaluations of {self.run.settings.get('eval_episodes', '?')} games" if count else ""

    def actors(self) -> dict[str, Any] | None:
        names, rows = self._score_names(), self.run.rows["progress"]
        if not rows or not names:
            return None
        if len(names) <= MOST_LINES:
            lines = [
                charts.line(
                    f"{index}", self._points("progress", name), ACTOR_COLORS[index % len(ACTOR_COLORS)], width=1.3
                )
                for index, name in enumerate(names)
            ]
            return charts.chart(lines)
        step = -(-len(rows) // MOST_COLUMNS)
        shown = rows[(len(rows) - 1) % step :: step]
        cells, values = [], []
        for place, row in enumerate(shown):
            for index, name in enumerate(names):
                if isinstance(value := row.get(name), int | float):
                    cells.append([place, index, round(value, 2)])
                    values.append(value)
        if not values:
            return None
        times = [words.duration(row["time_s"] - self.run.began_s) for row in shown]
        return charts.heatmap(times, [str(index) for index in range(len(names))], cells, min(values), max(values))

    def _actors_note(self) -> str:
        scores = self._scores()
        if len(scores) <= MOST_LINES:
            return "mean of the last 100 games"
        order = sorted(scores, key=lambda index: scores[index])
        return f"best {order[-1]}, {order[-2]}, {order[-3]} · lowest {order[0]}, {order[1]}, {order[2]}"

    def priorities(self) -> dict[str, Any] | None:
        return histogram_options(self.about)

    def loss(self) -> dict[str, Any] | None:
        if not self.run.rows["learner"]:
            return None
        series = [
            charts.line("loss", self._points("learner", "loss"), BLUE),
            charts.line("|TD error|", self._points("learner", "td_error"), AMBER, width=1.2),
            charts.line("mean Q", self._points("learner", "mean_q"), VIOLET, axis=1, width=1.2),
        ]
        if self.compare is not None:
            series.append(charts.line(f"{self.compare.name} loss", self._points("learner", "loss", self.compare), GREY, dashed=True))  # fmt: skip  # noqa: E501
        return charts.chart(series, y=[charts.axis(), charts.axis(right=True)])

    def rates(self) -> dict[str, Any] | None:
        added = self._with_past(self._live("added", rate=True), "progress", "transitions_per_s")
        sampled = self._live("sampled", rate=True)
        if not added:
            return None
        if not sampled:  # There is no server any more, and the run directory has no such rows.
            return charts.chart([charts.line("inserted", added, TEAL, area=True)], y=[charts.axis(zero=True)])
        ratio = [
            [at, new / old if new and old else None] for (at, new), (_, old) in zip(sampled, self._live("added", True))
        ]
        series = [
            charts.line("inserted", added, TEAL, area=True),
            charts.line("sampled", sampled, BLUE),
            charts.line("ratio", ratio, AMBER, axis=1, width=1.1),
        ]
        target = self.run.settings.get("samples_per_insert")
        if isinstance(target, int | float):
            series[2]["markLine"] = charts.marker(target, f"held at {target:g}", AMBER)
        return charts.chart(series, y=[charts.axis(zero=True), charts.axis(zero=True, right=True)])

    def _limiter(self) -> str:
        return limiter_words(self.about) if self._running else ""

    def latency(self) -> dict[str, Any] | None:
        server = self.server
        return latency_options(server, self.run.began_s) if server else None

    def memory(self) -> dict[str, Any] | None:
        size = self._with_past(self._live("size"), "progress", "size")
        if not size:
            return None
        series = [
            charts.line("items", size, TEAL, area=True),
        ]
        y = [charts.axis(zero=True)]
        if live := self._live("bytes"):
            series.append(charts.line("bytes", live, VIOLET, axis=1, width=1.2))
            y.append(charts.axis(charts.BYTES, zero=True, right=True))
        return charts.chart(series, y=y)

    def weights(self) -> dict[str, Any] | None:
        version = self._points("learner", "version")
        behind = self._with_past(self._live("staleness"), "progress", "weight_staleness")
        if not version and not behind:
            return None
        series = [
            charts.line("version", version, BLUE, axis=1),
            charts.line("oldest in use, behind", behind, AMBER, area=True),
        ]
        return charts.chart(series, y=[charts.axis(zero=True), charts.axis(zero=True, right=True)])

    # -- processes

    def process_rows(self) -> list[dict[str, Any]]:
        """One row for each process: what is in trouble first."""
        now, version = time.time(), self.learner.get("version")
        parts = {str(part.get("name")): part for part in self.run.job.get("parts") or [] if isinstance(part, dict)}
        names = list(parts) or [f"actor {index}" for index in sorted(self.reports)]
        found = []
        for name in names:
            part, report = parts.get(name, {}), self._report_of(name)
            running = self._running and part.get("running", True)
            state = "running" if running else "starting again" if self._running else "ended"
            if state == "running" and report and now - report.get("updated_at", now) > SILENT_S:
                state = f"silent {words.duration(now - report['updated_at'])}"
            found.append({
                "name": name, "state": state, "restarts": int(part.get("restarts", 0)),
                "score": words.number(report.get("score_mean")) if report.get("episodes") else "",
                "frames": words.number(report.get("steps_per_s")) if report else "",
                "behind": words.number(max(0.0, version - max(0.0, report["version"])))
                if isinstance(version, int | float) and "version" in report else "",
                "tone": {"running": "good", "ended": ""}.get(state, "warn"),
            })  # fmt: skip
        found.sort(key=lambda row: (row["tone"] != "warn", -row["restarts"]))
        cells = Cells()
        for row in found:
            cells.add(**row)
        return cells.rows

    def _report_of(self, name: str) -> Mapping[str, float]:
        with contextlib.suppress(ValueError):
            if name.startswith("actor "):
                return self.reports.get(int(name.removeprefix("actor ")), {})
        return {}

    def _restarts(self) -> str:
        troubled = sum(row["tone"] == "warn" for row in self.process_rows())
        return f"{troubled} in trouble" if troubled else ""


def run_state(run: RunSource) -> tuple[str, str]:
    """A word for how a run is, and its tone."""
    if run.state == "running":
        return "running", "good"
    if run.state == "ended":
        why = f": {run.ended_by.replace('_', ' ')}" if run.ended_by else ""
        return f"ended{why}", "bad" if run.ended_by in ("failure", "server lost") else ""
    return ("killed", "bad") if run.state == "killed" else ("not known", "warn")


def run_banner(run: RunSource, server: ServerSource | None) -> Banner | None:
    """What changes how the page is to be read."""
    if run.state == "ended":
        score = run.summary.get("eval_mean")
        games = (
            f" Score {score:.1f} over {run.summary.get('eval_episodes')} games."
            if isinstance(score, int | float)
            else ""
        )
        bad = run.ended_by in ("failure", "server lost")
        why = f" ({run.ended_by.replace('_', ' ')})" if run.ended_by else ""
        return Banner(f"The job has ended{why}.{games}", "bad" if bad else "")
    if run.state == "killed":
        return Banner("The job's process is gone, and it left no summary: it was killed.", "bad")
    if server is not None:
        return server_banner(server)
    return None


def server_banner(server: ServerSource) -> Banner | None:
    """That a server is lost, or was started again a short time ago."""
    if server.state == "lost":
        since = f" since {words.clock(server.lost_s)}" if server.lost_s else ""
        return Banner(f"{server.name} does not answer{since}: {server.error}", "bad")
    if server.restarts:
        return Banner(
            f"{server.name} was started again at {words.clock(server.restarts[-1])}; its counters began anew.", "warn"
        )
    return None
