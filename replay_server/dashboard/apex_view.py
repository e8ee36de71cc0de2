"""An Ape-X job: from its run directory, and from its server while that lives."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts, words
from replay_server.dashboard.charts import AMBER, BLUE, GREEN, GREY, PINK, RED, TEAL, VIOLET
from replay_server.dashboard.job_view import JobView
from replay_server.dashboard.json_lines import finite
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.server_panels import histogram_options, latency_options, limiter_words
from replay_server.dashboard.server_source import staleness
from replay_server.dashboard.view import Cells, Fact, Panel, Tile

MOST_LINES = 8
"""Actors drawn as a line each; more are a heatmap."""
MOST_COLUMNS, LEAST_COLUMNS, MOST_CELLS = 60, 12, 12_000
"""Of the heatmap: moments shown, fewer where there are many actors."""
MOST_PROCESSES = 128
"""In the list of processes, those in trouble first."""
ACTOR_COLORS = (BLUE, TEAL, AMBER, VIOLET, RED, GREEN, PINK, GREY)
SILENT_S = 30.0
"""An actor that has not reported for so long is shown as silent."""


class ApexView(JobView):
    """Tiles and panels of one job; places are seconds since it began."""

    def make_tiles(self) -> Sequence[Tile]:
        return (
            Tile("Evaluation", self._evaluation),
            Tile("Actors' score", self._actors_score),
            Tile("Frames", self._frames),
            Tile("Updates", self._updates),
            Tile("Replay", self._replay),
            Tile("Samples per insert", self._ratio),
            Tile("Weights behind", self._behind),
            Tile("Processes", self._processes),
        )

    def make_panels(self) -> Sequence[Panel]:
        return (
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

    def place(self, row: Mapping[str, Any], run: RunSource) -> float:
        return round(run.elapsed(row["time_s"]), 1)

    def gist(self) -> list[list[Any]]:
        return self.points("evaluation", "score_mean") or self._actor_points()

    # -- sources

    @property
    def table(self) -> str:
        return self.run.setting_text("table") or "apex"

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

    def _live(self, name: str, rate: bool = False) -> list[list[Any]]:
        """A number of the job's table over time, since the dashboard looks at it."""
        server = self.server
        history = server.tables.get(self.table) if server else None
        if history is None:
            return []
        run, found = self.run, []
        for at, value in history.points(name, rate):
            # A server may have been there before the job, and be another's after it.
            if at is not None and run.began_s <= at / 1000 <= run.ended_s:
                found.append([round(run.elapsed(at / 1000), 1), value])
        return found

    def _with_past(self, live: list[list[Any]], kind: str, name: str) -> list[list[Any]]:
        """What the server showed since it is looked at, before that what the run directory has."""
        first = live[0][0] if live else float("inf")
        return [[at, value] for at, value in self.points(kind, name) if at is not None and at < first] + live

    # -- tiles

    def _evaluation(self) -> Fact:
        return self.evaluation() or Fact(words.NOTHING, "none yet")

    def _actors_score(self) -> Fact:
        scores = list(self._scores().values())
        if not scores:
            return Fact(words.NOTHING, "no game yet")
        lowest, highest = words.number(min(scores)), words.number(max(scores))
        return Fact(words.number(statistics.median(scores)), f"median of {lowest} to {highest}")

    def _scores(self) -> dict[int, float]:
        """The mean score of each actor that has ended a game."""
        live = {
            index: score
            for index, each in self.reports.items()
            if each.get("episodes") and (score := finite(each.get("score_mean"))) is not None
        }
        row = self.progress
        return live or {
            index: score for index in self._actors_seen() if (score := finite(row.get(_score_name(index)))) is not None
        }

    def _frames(self) -> Fact:
        total = max(self._progressed("frames") or 0.0, self._last(self._live("frames")) or 0.0)
        return self._pace(total, "frames_per_s", self._last(self._live("frames", rate=True)), "in all")

    def _updates(self) -> Fact:
        waits = finite(self.learner.get("waiting_share"))
        more = "in all" if waits is None else f"waits {100 * waits:.0f} %"
        return self._pace(
            finite(self.learner.get("updates")),
            "updates_per_s",
            self._last(self._live("learner_updates", rate=True)),
            more,
        )

    def _pace(self, total: float | None, name: str, rate: float | None, more: str) -> Fact:
        """What is counted, by the second while it goes on; `rate` is live, and may well be 0."""
        if not self.running:
            return Fact(words.number(total), f"{words.number(self.run.summary.get(name))}/s on the whole")
        rate = self._progressed(name) if rate is None else rate
        return Fact(f"{words.number(rate)}/s", f"{words.number(total)} {'' if more == 'in all' else '· '}{more}")

    def _replay(self) -> Fact:
        about = self.about
        size = finite(about.get("size"), self._progressed("size"))
        capacity = self.setting("capacity")
        share = size / capacity if size is not None and capacity else None
        held = f" · {words.size(about['bytes'])}" if "bytes" in about else ""
        return Fact(words.number(size), f"of {words.number(capacity)}{held}", share=share)

    def _ratio(self) -> Fact:
        target = self.setting("samples_per_insert")
        about, least = self.about, self.setting("min_size_to_sample", 0.0) or 0.0
        ratio, added = self._progressed("samples_per_insert"), finite(about.get("added"), 0.0) or 0.0
        if added > least:
            ratio = (finite(about.get("sampled")) or 0.0) / (added - least)
        return Fact(words.number(ratio), f"held at {words.number(target)}" if target else "not held")

    def _behind(self) -> Fact:
        behind = staleness(self.learner, self.reports.values()) if self.reports else None
        behind = self._progressed("weight_staleness") if behind is None else behind
        version = words.number(self.learner.get("version"))
        return Fact(words.number(behind) if self.running else words.NOTHING, f"updates · at {version}")

    def _processes(self) -> Fact:
        parts = self.parts
        restarts = sum(finite(part.get("restarts")) or 0.0 for part in parts)
        restarts = max(restarts, self._progressed("restarts") or 0.0)  # Those of earlier sessions are in the rows.
        if not self.running:
            return Fact("0", f"{words.number(restarts)} restarts")
        alive = sum(bool(part.get("running")) for part in parts)
        return Fact(f"{alive} of {len(parts)}", f"running · {words.number(restarts)} restarts",
                    "" if alive == len(parts) else "warn")  # fmt: skip

    @property
    def parts(self) -> list[Mapping[str, Any]]:
        """The processes of the job, as job.json has them."""
        parts = self.run.job.get("parts")
        return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []

    def _progressed(self, name: str) -> float | None:
        """A number of the newest row of progress."""
        return finite(self.progress.get(name))

    @staticmethod
    def _last(points: list[list[Any]]) -> float | None:
        return next((value for _, value in reversed(points[-4:]) if value is not None), None)

    # -- panels

    def score(self) -> dict[str, Any] | None:
        means = self.points("evaluation", "score_mean")
        if not means and self.compare is None:
            return None
        deviations = self.points("evaluation", "score_std")
        lower = [[at, None if mean is None else mean - (std or 0)] for (at, mean), (_, std) in zip(means, deviations)]
        upper = [[at, None if mean is None else mean + (std or 0)] for (at, mean), (_, std) in zip(means, deviations)]
        series = charts.band("evaluation ±", lower, upper, BLUE)
        evaluation = charts.line("evaluation", means, BLUE, width=2, dots=len(means) < 40)
        series.append(evaluation | self.target("target_score", "target"))
        middle = self._actor_points()
        if middle:
            series.append(charts.line("actors' median", middle, TEAL, width=1.2))
        series += self.compared("evaluation", "score_mean")
        return charts.chart(series)

    def _actor_points(self) -> list[list[Any]]:
        names, found = [_score_name(actor) for actor in self._actors_seen()], []
        for row in charts.some(self.run.rows["progress"]):
            scores = [score for name in names if (score := finite(row.get(name))) is not None]
            found.append([self.place(row, self.run), statistics.median(scores) if scores else None])
        return found

    def _actors_seen(self) -> list[int]:
        """The run's own actors, and those that have joined it and ended a game."""
        joined = (_SCORE_NAME.fullmatch(name) for name in self.progress)
        return sorted({*range(self.run.actors), *(int(match[1]) for match in joined if match)})

    def _score_note(self) -> str:
        count = len(self.run.rows["evaluation"])
        games = words.number(self.setting("eval_episodes"))
        return f"{words.number(count)} evaluation{'s' if count > 1 else ''} of {games} games" if count else ""

    def actors(self) -> dict[str, Any] | None:
        actors, rows = self._actors_seen(), self.run.rows["progress"]
        if not rows or not actors:
            return None
        if len(actors) <= MOST_LINES:
            lines = [
                charts.line(
                    f"{actor}", self.points("progress", _score_name(actor)), ACTOR_COLORS[place % len(ACTOR_COLORS)],
                    width=1.3,
                )
                for place, actor in enumerate(actors)
            ]  # fmt: skip
            return charts.chart(lines)
        most = max(LEAST_COLUMNS, min(MOST_COLUMNS, MOST_CELLS // len(actors)))
        step = -(-len(rows) // most)
        shown = rows[(len(rows) - 1) % step :: step]
        cells, values = [], []
        for place, row in enumerate(shown):
            for index, actor in enumerate(actors):
                if (value := finite(row.get(_score_name(actor)))) is not None:
                    cells.append([place, index, round(value, 2)])
                    values.append(value)
        if not values:
            return None
        times = [str(self.place(row, self.run)) for row in shown]
        return charts.heatmap(times, [str(actor) for actor in actors], cells, min(values), max(values))

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
            charts.line("loss", self.points("learner", "loss"), BLUE),
            charts.line("|TD error|", self.points("learner", "td_error"), AMBER, width=1.2),
            charts.line("mean Q", self.points("learner", "mean_q"), VIOLET, axis=1, width=1.2),
        ]
        series += self.compared("learner", "loss", "loss")
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
            charts.line("ratio", ratio, AMBER, axis=1, width=1.1) | self.target("samples_per_insert", "held at"),
        ]
        return charts.chart(series, y=[charts.axis(zero=True), charts.axis(zero=True, right=True)])

    def _limiter(self) -> str:
        return limiter_words(self.about) if self.running else ""

    def latency(self) -> dict[str, Any] | None:
        server = self.server
        return latency_options(server, self.run) if server else None

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
        version = self.points("learner", "version")
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
        """One row for each process, `MOST_PROCESSES` at most: what is in trouble first."""
        version, server = finite(self.learner.get("version")), self.server
        parts = {str(part.get("name")): part for part in self.parts}
        names = list(dict.fromkeys([*parts, *(f"actor {index}" for index in sorted(self.reports))]))
        found = []
        for name in names:
            part, index = parts.get(name, {}), _actor_index(name)
            report = self.reports.get(index, {})
            running = self.running and part.get("running", True)
            state = "running" if running else "starting again" if self.running else "ended"
            if running and report and server is not None and (quiet_s := server.silent_s(self.table, index)) > SILENT_S:
                # One that has joined goes when it likes.
                state = f"silent {words.duration(quiet_s)}" if index < self.run.actors else "left"
            rate = server.frame_rate(self.table, index) if report and server is not None and self.running else None
            found.append({
                "name": name, "state": state, "restarts": int(finite(part.get("restarts")) or 0),
                "score": words.number(report.get("score_mean")) if report.get("episodes") else "",
                "frames": "" if rate is None else words.number(rate),
                "behind": words.number(max(0.0, version - max(0.0, report["version"])))
                if version is not None and "version" in report else "",
                "tone": {"running": "good", "ended": "", "left": ""}.get(state, "warn"),
            })  # fmt: skip
        found.sort(key=lambda row: (row["tone"] != "warn", -row["restarts"]))
        cells = Cells()
        for row in found[:MOST_PROCESSES]:
            cells.add(**row)
        return cells.rows

    def _restarts(self) -> str:
        rows, count = self.process_rows(), len(self.parts)
        troubled = sum(row["tone"] == "warn" for row in rows)
        more = [f"{troubled} in trouble"] if troubled else []
        return " · ".join(more + ([f"{len(rows)} of {words.number(count)} shown"] if len(rows) < count else []))


_SCORE_NAME = re.compile(r"actor_(\d{1,4})_score")


def _score_name(actor: int) -> str:
    """Of an actor's mean score in a row of progress."""
    return f"actor_{actor}_score"


def _actor_index(name: str) -> int:
    """The number of an actor's process, −1 of another one."""
    number = name.removeprefix("actor ")
    return int(number) if number != name and number.isdecimal() else -1
