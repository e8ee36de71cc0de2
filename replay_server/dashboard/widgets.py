"""How tiles and panels are drawn, and kept up to date on one page. All texts go in as texts, never as HTML."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from replay_server.dashboard import gantt
from replay_server.dashboard.view import Fact, Panel, Tile

TONES = ("good", "warn", "bad")


def division(classes: str) -> Any:
    """An empty <div>, to be used with `with`."""
    return ui.element("div").classes(classes)


def text(words: str, classes: str) -> Any:
    """A text, escaped."""
    return ui.label(words).classes(classes)


class Text:
    """A label that is sent only when it changes; its tone is a class."""

    def __init__(self, classes: str) -> None:
        self._label = ui.label("").classes(classes)
        self._tone = ""

    def show(self, words: str, tone: str = "") -> None:
        """New words, and how they are meant."""
        if self._label.text != words:
            self._label.set_text(words)
        if tone != self._tone:
            self._label.classes(remove=" ".join(f"d-{each}" for each in TONES), add=f"d-{tone}" if tone else "")
            self._tone = tone

    def visible(self, shown: bool) -> None:
        """Whether it takes room."""
        if self._label.visible != shown:
            self._label.set_visibility(shown)


class TileBox:
    """A tile on a page."""

    def __init__(self, tile: Tile) -> None:
        self._shown: Fact | None = None
        with division("d-tile") as self._box:
            text(tile.title, "d-label")
            self._value = Text("d-value")
            self._detail = Text("d-detail")
            self._share = division("d-share")

    def show(self, fact: Fact | None) -> None:
        """Shows what is now."""
        if fact == self._shown and fact is not None:
            return
        self._box.set_visibility(fact is not None)
        self._shown = fact
        if fact is None:
            return
        self._value.show(fact.value, fact.tone)
        self._detail.show(fact.detail)
        share = 0.0 if fact.share is None else min(max(fact.share, 0.0), 1.0)
        self._share.style(f"width: {100 * share:.1f}%")


class PanelBox:
    """A panel on a page: a card with a chart or a table, which is made when there is something for it."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._chart: Any = None
        self._table: Any = None
        self._structure: Any = None
        self._data: Any = None
        self._moved = False
        with division("d-card").style(f"grid-column: span {panel.span}") as self._card:
            with division("d-cardhead"):
                text(panel.title, "d-cardtitle")
                if panel.title == "Functions":
                    _legend()
                    self._note = None
                else:
                    self._note = Text("d-note")
            # A table across the whole page is as high as it is long, up to that.
            height = "max-height" if panel.rows is not None and panel.span == 12 else "height"
            self._body = division("d-body").style(f"{height}: {panel.height}px")
        with self._body:
            self._empty = Text("d-empty")

    def show(self, found: Any, note: str) -> None:
        """Shows what is now (`Panel.shown`); sends nothing where nothing has changed."""
        if self._panel.rows is not None:
            self._refresh_table(found)
        else:
            self._refresh_chart(found)
        if self._note is not None:
            self._note.show(note)

    def _move(self) -> None:
        self._moved = True

    def _refresh_table(self, rows: list[dict[str, Any]]) -> None:
        if rows == self._data:
            return
        self._data = rows
        self._empty.visible(False)
        self._card.set_visibility(bool(rows) or bool(self._panel.empty))
        if self._table is None:
            first = self._panel.columns[0][0]
            columns = [
                {
                    "name": key,
                    "label": label,
                    "field": key,
                    "align": "left" if key in (first, "state", "limiter") else "right",
                }
                for key, label in self._panel.columns
            ]
            with self._body:
                self._table = ui.table(rows=rows, columns=columns, row_key="key").classes("d-table w-full")
                self._table.props('dense flat hide-pagination :rows-per-page-options="[0]"')
                # A function of each row, in the browser; cells stay escaped.
                self._table.props[":table-row-class-fn"] = "(row) => row.tone ? 'd-' + row.tone : ''"
                self._table.props["pagination"] = {"rowsPerPage": 0}
        else:
            self._table.rows = rows
            self._table.update()

    def _refresh_chart(self, options: dict[str, Any] | None) -> None:
        if options is None:
            self._card.set_visibility(bool(self._panel.empty))
            self._empty.show(self._panel.empty)
            self._empty.visible(True)
            if self._chart is not None:
                self._chart.set_visibility(False)
            return
        self._card.set_visibility(True)
        self._empty.visible(False)
        data, structure = options["series"], _structure(options)
        if self._chart is None:
            with self._body:
                self._chart = ui.echart(dict(options)).style("width: 100%; height: 100%")
            if "dataZoom" in options:
                self._chart.on("chart:datazoom", self._move, [])
        elif structure != self._structure:
            self._chart.set_visibility(True)
            self._chart.options.clear()
            self._chart.options.update(options)
            self._chart.update()
        elif data != self._data:
            self._chart.set_visibility(True)
            parts = [{key: each[key] for key in ("id", "type", "data") if key in each} for each in data]
            more: dict[str, Any] = {"series": parts}
            if "dataZoom" in options and not self._moved:
                # It goes with what is newest, until somebody has looked for something else.
                more["dataZoom"] = [
                    {key: each[key] for key in ("startValue", "endValue")} for each in options["dataZoom"]
                ]
            self._chart.run_chart_method("setOption", more)
        self._structure, self._data = structure, data


def _structure(options: dict[str, Any]) -> Any:
    """What a chart is but for its data: when that changes it is drawn whole."""
    axes = options["xAxis"].get("data"), [axis.get("max") for axis in _list(options["yAxis"])]
    zoom = None if "dataZoom" not in options else len(options["series"])
    scale = options.get("visualMap")
    return [each.get("id") for each in options["series"]], axes, zoom, scale


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _legend() -> None:
    with division("d-note"):
        text("paler: still running", "").style("display: inline")
        for name, color in gantt.COLORS.items():
            with ui.element("span").classes("d-key"):
                ui.element("i").style(f"background: {color}")
                ui.element("span").classes("").props["innerText"] = name
