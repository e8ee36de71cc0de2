"""A serverless job: its rounds, its functions, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts, gantt, words
from replay_server.dashboard.charts import AMBER, BLUE, GREY, TEAL, VIOLET
from replay_server.dashboard.job_view import JobView
from replay_server.dashboard.json_lines import finite
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.view import Fact, Panel, Tile

SCORE_ROUNDS = 5
"""Rounds whose games the score is the mean of: the job's own target is held against that."""


class TrainView(JobView):
    """Tiles and panels of one job; places are rounds."""

    def make_tiles(self) -> Sequence[Tile]:
        return (
            Tile("Round", self._round),
            Tile("Score", self._score),
            Tile("Evaluation", self._evaluation),
            Tile("Actors", self._actors),
            Tile("Cost", self._cost),
            Tile("Staleness", self._staleness),
            Tile("Functions", self._functions),
            Tile("Round time", self._round_time),
        )

    def make_panels(self) -> Sequence[Panel]:
        return (
            Panel("Score by round", 5, self.score, empty="no round yet"),
            Panel("Actors per round", 3, self.actors, empty="no round yet"),
            Panel("Cost", 4, self.cost, empty="no round yet", note=self._cost_note),
            Panel("Functions", 12, self.functions, empty="no function yet", height=176),
            Panel("Learner", 4, self.learner, empty="no round yet"),
            Panel("Where a round's time goes", 4, self.times, empty="no round yet"),
            Panel("Staleness", 4, self.staleness, empty="no round yet", note=lambda: "versions"),
            Panel("Gradients on the server", 4, self.gradients),
        )

    def place(self, row: Mapping[str, Any], run: RunSource) -> float | None:
        return finite(row.get("round"))

    def gist(self) -> list[list[Any]]:
        return self._points("score")

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return self.run.rows["round"]

    def _points(self, name: str, above: str | None = None) -> list[list[Any]]:
        """[round, number] of each round."""
        return self.points("round", name, above)

    def _last(self, name: str, above: str | None = None) -> Any:
        points = self._points(name, above)
        return points[-1][1] if points else None

    # -- tiles

    def _round(self) -> Fact:
        rounds, done = self.setting("rounds"), self._last("round") or 0
        steps = words.number(self._last("total_steps"))
        share = done / rounds if rounds else None
        return Fact(f"{words.number(done)} of {words.number(rounds)}", f"{steps} steps", share=share)

    def _score(self) -> Fact:
        scores = [score for row in self.rounds[-SCORE_ROUNDS:] for score in _scores(row)]
        if not scores:
            return Fact(words.NOTHING, "no game has ended yet")
        target = self.setting("target_score")
        more = f" · target {words.number(target)}" if target is not None else ""
        return Fact(words.number(sum(scores) / len(scores)), f"last {len(scores)} games{more}")

    def _evaluation(self) -> Fact:
        every = self.setting("eval_every")
        return self.evaluation() or Fact(words.NOTHING, f"every {every:g} rounds" if every else "at the end")

    def _actors(self) -> Fact:
        asked, arrived = self._last("actors"), self._last("arrived")
        scaler = self.run.setting_text("scaler")
        tone = "warn" if asked and arrived is not None and arrived < asked else ""
        return Fact(words.number(asked), f"{words.number(arrived)} arrived · {scaler}", tone)

    def _cost(self) -> Fact:
        cost, budget = self._last("cost"), self.setting("budget")
        if not budget:
            return Fact(words.dollars(cost), "no budget set")
        share = (cost or 0.0) / budget
        return Fact(words.dollars(cost), f"of {words.dollars(budget)}", "warn" if share > 0.9 else "", share)

    def _staleness(self) -> Fact:
        value, limit = self._last("gradient_staleness", "statistics"), self._last("staleness_threshold", "statistics")
        value = self._last("staleness", "statistics") if value is None else value
        more = f"versions · flushed at {words.number(limit)}" if limit is not None and limit >= 0 else "versions behind"
        return Fact(words.number(value), more)

    def _functions(self) -> Fact:
        counts = self.run.counts
        bad = sum(counts.get(name, 0) for name in ("lost", "timeout", "failed"))
        total = sum(count for name, count in counts.items() if name != "cold")
        detail = f"{counts.get('cold', 0)} cold · {bad} failed or lost"
        return Fact(words.number(total), detail, "warn" if bad else "")

    def _round_time(self) -> Fact:
        whole, learner = self._last("round_s"), self._last("learner_s")
        if whole is None:
            return Fact(words.NOTHING)
        return Fact(f"{words.number(whole)} s", f"learner {words.number(learner)} s")

    # -- panels

    def _chart(self, series: list[dict[str, Any]], **options: Any) -> dict[str, Any] | None:
        if not self.rounds and self.compare is None:
            return None
        return charts.chart(series, x=charts.across("number"), header="(v) => 'round ' + Math.round(v)", **options)

    def score(self) -> dict[str, Any] | None:
        lower, upper = [], []
        for row in charts.some(self.rounds):
            at, scores = self.place(row, self.run), _scores(row)
            lower.append([at, min(scores) if scores else None])
            upper.append([at, max(scores) if scores else None])
        series = charts.band("lowest to highest", lower, upper, TEAL)
        games = charts.line("games of the round", self._points("score"), TEAL, dots=len(self.rounds) < 40)
        series.append(games | self.target("target_score", "target"))
        evaluations = self.points("evaluation", "score_mean")
        series.append(charts.line("evaluation", evaluations, BLUE, width=2, dots=True))
        series += self.compared("round", "score")
        return self._chart(series)

    def actors(self) -> dict[str, Any] | None:
        arrived, asked = self._points("arrived"), self._points("actors")
        missing = [[at, (wanted or 0) - (came or 0) or None] for (at, wanted), (_, came) in zip(asked, arrived)]
        series = [charts.bars("arrived", arrived, TEAL, stack="actors")]
        if any(value for _, value in missing):
            series.append(charts.bars("missing", missing, charts.RED, stack="actors"))
        y = [charts.axis(zero=True) | {"minInterval": 1}]
        if boosts := self.boosting():
            series.append(charts.line("boosting score", boosts, AMBER, axis=1, dots=len(boosts) < 40))
            y.append(charts.axis(zero=True, right=True) | {"max": 1, "interval": 0.5})
        found = self._chart(series, y=y)
        if found is not None:
            found["xAxis"] = charts.across("category", [f"{at:g}" for at, _ in asked])
            for each in series:  # A place in the order of rounds, in place of the round's number.
                each["data"] = [value for _, value in each["data"]]
        return found

    def boosting(self) -> list[list[Any]]:
        """[round, S] of the scaler nitro, from the curvature that the learner measured; none with another scaler.

        S of a round decides the actors of the next; where a round has none of its own the one before holds.
        """
        if self.run.setting_text("scaler") != "nitro" or not self.rounds:
            return []
        from replay_server.serverless.scalers.nitro import Nitro, convexity_ratio

        options = self.run.settings.get("scaler_option")
        options = options if isinstance(options, dict) else {}
        known = {name: options[name] for name in ("decay", "window", "inverted") if name in options}
        try:
            scaler = Nitro(**{name: json.loads(str(value).lower()) for name, value in known.items()})
        except (TypeError, ValueError):
            return []
        found = []
        for row in self.rounds:
            curvature = row.get("statistics")
            curvature = curvature if isinstance(curvature, dict) else {}
            most, least = finite(curvature.get("curvature_max")), finite(curvature.get("curvature_min"))
            ratio = convexity_ratio(most, least) if most is not None and least is not None else None
            scaler.look_at(int(row["round"]), ratio)
            found.append([row["round"], scaler.state()["score"]])
        return charts.some(found)

    def cost(self) -> dict[str, Any] | None:
        line = charts.line("cost", self._points("cost"), AMBER, area=True, width=2)
        series = [line, *self.compared("round", "cost")]
        budget = self.setting("budget")
        y = charts.axis(charts.DOLLARS, zero=True)
        if budget and self.rounds:
            line["markLine"] = charts.marker(budget, f"budget {words.dollars(budget)}")
            if (self._last("cost") or 0.0) > 0.4 * budget:  # Else the line would lie flat at the bottom.
                y["max"] = budget * 1.08
                y["axisLabel"]["showMaxLabel"] = False
        return self._chart(series, y=[y], unit=charts.DOLLARS)

    def _cost_note(self) -> str:
        profile, column = self.run.setting_text("price_profile"), self.run.setting_text("price_column")
        return f"{profile} prices, {column}" if self.rounds and profile else ""

    def functions(self) -> dict[str, Any] | None:
        shown = [*self.run.invocations, *self.run.unfinished]
        return gantt.chart(shown, self.run.elapsed) if shown else None

    def learner(self) -> dict[str, Any] | None:
        series = [
            charts.line("loss", self._points("loss", "statistics"), BLUE),
            charts.line("KL", self._points("kl", "statistics"), AMBER, axis=1, width=1.2),
            charts.line("entropy", self._points("entropy", "statistics"), VIOLET, axis=1, width=1.2),
        ]
        return self._chart(series, y=[charts.axis(), charts.axis(right=True)])

    def times(self) -> dict[str, Any] | None:
        whole, learner, actor = self._points("round_s"), self._points("learner_s"), self._points("actor_s_max")
        rest = [
            [at, None if total is None else max(0.0, total - (first or 0) - (second or 0))]
            for (at, total), (_, first), (_, second) in zip(whole, actor, learner)
        ]
        series = []
        for name, points, color in (
            ("slowest actor", actor, TEAL),
            ("learner", learner, VIOLET),
            ("the rest", rest, GREY),
        ):
            options = charts.line(name, points, color, width=1)
            series.append(options | {"stack": "time", "areaStyle": {"opacity": 0.35}})
        seconds = "(v) => v === null ? '–' : +Number(v).toPrecision(3) + ' s'"
        return self._chart(series, y=[charts.axis(seconds, zero=True)], unit=seconds)

    def staleness(self) -> dict[str, Any] | None:
        series = [charts.line("experience", self._points("staleness", "statistics"), AMBER, area=True)]
        y = [charts.axis(zero=True)]
        gradients = self._points("gradient_staleness", "statistics")
        if any(value is not None for _, value in gradients):
            # Of another size than experience's: gradients are few versions old, fragments are of many.
            limit = [
                [at, value if value is not None and value >= 0 else None]
                for at, value in self._points("staleness_threshold", "statistics")
            ]
            series.append(charts.line("gradients", gradients, BLUE, axis=1))
            series.append(charts.line("flushed at", limit, GREY, axis=1, dashed=True))
            y.append(charts.axis(zero=True, right=True))
        return self._chart(series, y=y)

    def gradients(self) -> dict[str, Any] | None:
        server = self.server
        if server is None or not server.reading.info.get("gradients_pushed"):
            return None
        history = server.history
        series = [
            charts.line("waiting", history.points("gradients_waiting"), AMBER, area=True),
            charts.line("applied/s", history.points("gradients_applied", True), BLUE),
        ]
        return charts.chart(series, x=charts.across("clock"), y=[charts.axis(zero=True)])


def _scores(row: Mapping[str, Any]) -> list[float]:
    """Of the games that ended in a round."""
    scores = row.get("scores")
    return [score for each in (scores if isinstance(scores, list) else ()) if (score := finite(each)) is not None]
