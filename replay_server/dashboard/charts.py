"""Options of the charts (Apache ECharts), as plain data. Colours that change with the theme stay out of them: the same
options are readable on light and dark ground.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from replay_server.dashboard.json_lines import finite

BLUE, TEAL, AMBER, RED, VIOLET, GREY = "#4f8ef7", "#1a9c8e", "#c78413", "#e4605e", "#9b7fe6", "#87919f"
GREEN, PINK, SAND = "#55a335", "#d066ab", "#968f80"
"""Each stands out from both grounds at least 3 to 1."""
INK, LINES = "#76808e", "rgba(139,149,163,0.18)"
MOST_POINTS = 300
"""Drawn of one line: more than a card is wide enough for."""
MOST_ROWS = 250
"""Of those that lines are made of; fewer than points, so that none is left out twice."""

# Numbers as people read them: 1.25 M, 980 k, 0.0031.
NUMBER = (
    "(v) => { if (v === null || v === undefined || v === '-') return '–'; const a = Math.abs(v);"
    " if (a >= 1e9) return +(v / 1e9).toPrecision(3) + ' G'; if (a >= 1e6) return +(v / 1e6).toPrecision(3) + ' M';"
    " if (a >= 1e4) return +(v / 1e3).toPrecision(3) + ' k';"
    " return String(+Number(v).toPrecision(a >= 1000 ? 4 : 3)); }"
)
BYTES = (
    "(v) => { if (v === null || v === undefined) return '–'; const u = ['B', 'kB', 'MB', 'GB', 'TB']; let i = 0;"
    " while (Math.abs(v) >= 1000 && i < 4) { v /= 1000; i++; } return +Number(v).toPrecision(3) + ' ' + u[i]; }"
)
MICROSECONDS = (
    "(v) => { if (v === null || v === undefined) return '–'; return v >= 1e6 ? +(v / 1e6).toPrecision(3) + ' s' :"
    " v >= 1e3 ? +(v / 1e3).toPrecision(3) + ' ms' : +Number(v).toPrecision(3) + ' µs'; }"
)
DOLLARS = "(v) => v === null || v === undefined ? '–' : '$' + +Number(v).toPrecision(3)"
ELAPSED = (
    "(v) => { const s = Math.abs(Math.round(v)), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;"
    " const sign = v < 0 ? '-' : '', two = (n) => String(n).padStart(2, '0');"
    " return sign + (h ? h + ':' + two(m) + ' h' : m + ':' + two(s % 60)); }"
)

Point = Sequence[Any]
Row = TypeVar("Row")


def some(rows: Sequence[Row]) -> list[Row]:
    """Of many rows as many as a line shows, evenly, the last one always: what is made of each is not made in vain."""
    step = -(-len(rows) // MOST_ROWS)
    return list(rows) if step <= 1 else [*rows[: len(rows) - 1 : step], rows[-1]]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most about `most` of the points, evenly; the first, the last and every gap stay."""
    if len(points) <= most:
        return list(points)
    step = -(-len(points) // most)
    last = len(points) - 1
    return [point for index, point in enumerate(points) if index % step == 0 or index == last or point[1] is None]


def line(
    name: str, points: Sequence[Point], color: str, *, axis: int = 0, dashed: bool = False, area: bool = False,
    width: float = 1.6, step: bool = False, dots: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """One line; its name is its identity when it is drawn again. `dots`: on each point, as where one is alone."""
    shown = thin(points)
    options: dict[str, Any] = {
        "id": name,
        "name": name,
        "type": "line",
        "data": shown,
        "yAxisIndex": axis,
        "showSymbol": dots or _has_one_alone(shown),
        "symbol": "circle",
        "symbolSize": 5,
        "connectNulls": False,
        "animation": False,
        "lineStyle": {"width": width, "type": "dashed" if dashed else "solid", "opacity": 0.75 if dashed else 1},
        "itemStyle": {"color": color},
        "emphasis": {"disabled": True},
    }
    if step:
        options["step"] = "end"
    if area:
        options["areaStyle"] = {"opacity": 0.14}
    return options


def _has_one_alone(points: Sequence[Point]) -> bool:
    """Whether a point has none on either side: no line would show it."""
    there = [False, *(point[1] is not None for point in points), False]
    return any(here and not before and not after for before, here, after in zip(there, there[1:], there[2:]))


def band(name: str, lower: Sequence[Point], upper: Sequence[Point], color: str) -> list[dict[str, Any]]:
    """A shaded band between two lines at the same places, as two series; not in the legend."""
    differences = [
        [low[0], None if low[1] is None or high[1] is None else finite(high[1] - low[1])]
        for low, high in zip(lower, upper)
    ]
    return [
        {
            "id": f"{name} {part}", "type": "line", "data": thin(points), "stack": name, "stackStrategy": "all",
            "showSymbol": False, "animation": False, "silent": True, "lineStyle": {"width": 0},
            "areaStyle": {"color": color, "opacity": opacity}, "itemStyle": {"color": color},
            "tooltip": {"show": False}, "emphasis": {"disabled": True},
        }
        for part, points, opacity in (("from", lower, 0.0), ("to", differences, 0.16))
    ]  # fmt: skip


def bars(name: str, points: Sequence[Any], color: str, *, stack: str | None = None, gap: str = "20%") -> dict[str, Any]:
    """Bars; those of the same `stack` upon one another."""
    options: dict[str, Any] = {
        "id": name, "name": name, "type": "bar", "data": list(points), "animation": False, "barCategoryGap": gap,
        "itemStyle": {"color": color}, "barMaxWidth": 26,
    }  # fmt: skip
    if stack:
        options["stack"] = stack
    return options


def axis(unit: str = NUMBER, *, zero: bool = False, log: bool = False, right: bool = False) -> dict[str, Any]:
    """A vertical axis whose labels the JavaScript function `unit` writes; `zero`: it begins there."""
    options: dict[str, Any] = {
        "type": "log" if log else "value",
        "scale": not zero,
        "splitNumber": 4,
        "axisLabel": {"color": INK, "fontSize": 10, ":formatter": unit, "hideOverlap": True},
        "splitLine": {"show": not right, "lineStyle": {"color": LINES}},
        "axisLine": {"show": False},
        "axisTick": {"show": False},
    }
    if zero and not log:
        options["min"] = 0
    return options


def across(kind: str = "elapsed", data: Sequence[Any] | None = None, name: str = "") -> dict[str, Any]:
    """A horizontal axis: elapsed (seconds since the job began), clock (milliseconds since 1970), number, category."""
    label: dict[str, Any] = {"color": INK, "fontSize": 10, "hideOverlap": True}
    options: dict[str, Any] = {
        "axisLine": {"lineStyle": {"color": LINES}},
        "axisTick": {"show": False},
        "splitLine": {"show": False},
        "axisLabel": label,
    }
    if kind == "elapsed":
        options |= {"type": "value", "min": "dataMin", "max": "dataMax", "splitNumber": 5}
        label |= {":formatter": ELAPSED, "showMaxLabel": False}
    elif kind == "clock":
        options |= {"type": "time", "splitNumber": 4}
        label["formatter"] = "{HH}:{mm}:{ss}"
    elif kind == "number":
        options |= {"type": "value", "min": "dataMin", "max": "dataMax", "minInterval": 1}
        label[":formatter"] = NUMBER
    else:
        options |= {"type": "category", "data": list(data or [])}
    if name:
        options |= {
            "name": name,
            "nameLocation": "middle",
            "nameGap": 20,
            "nameTextStyle": {"color": INK, "fontSize": 10},
        }
    return options


def chart(
    series: Sequence[dict[str, Any]],
    *,
    x: Mapping[str, Any] | None = None,
    y: Sequence[Mapping[str, Any]] | None = None,
    legend: bool = True,
    unit: str = NUMBER,
    header: str = ELAPSED,
) -> dict[str, Any]:
    """A whole chart. `unit` writes the tooltip's values, `header` its first line (JavaScript functions)."""
    y = list(y or [axis(unit)])
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "textStyle": {"fontFamily": "inherit"},
        "grid": {
            "left": 46, "right": 46 if len(y) > 1 else 14, "top": 24 if legend else 8, "bottom": 20,
        },
        "legend": {
            "show": legend, "top": 0, "right": 4, "itemWidth": 10, "itemHeight": 3, "itemGap": 10, "icon": "roundRect",
            "textStyle": {"color": INK, "fontSize": 11}, "type": "scroll", "pageIconSize": 8,
            "pageTextStyle": {"color": INK, "fontSize": 10},
            "data": [each["name"] for each in series if "name" in each],
        },
        "tooltip": tooltip() | {
            "trigger": "axis", ":valueFormatter": unit,
            "axisPointer": {"type": "line", "lineStyle": {"color": GREY, "width": 1, "type": "dotted"},
                            "label": {":formatter": f"(p) => ({header})(p.value)"}},
        },
        "xAxis": dict(x or across()),
        "yAxis": list(y),
        "series": list(series),
    }  # fmt: skip


def tooltip() -> dict[str, Any]:
    """Dark on both grounds."""
    return {
        "confine": True, "backgroundColor": "rgba(28,34,43,0.94)", "borderWidth": 0, "padding": [6, 10],
        "textStyle": {"color": "#eef1f5", "fontSize": 11},
    }  # fmt: skip


def sparkline(points: Sequence[Point], color: str) -> dict[str, Any]:
    """One line without anything around it."""
    options = chart([line("shown", points, color, area=True)], legend=False)
    hidden = {"show": False}
    options["grid"] = {"left": 1, "right": 1, "top": 3, "bottom": 1}
    options["xAxis"] |= hidden
    options["yAxis"] = [each | hidden for each in options["yAxis"]]
    return options | {"tooltip": hidden, "legend": hidden}


def heatmap(columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[Any]], lowest: float, highest: float) -> dict[str, Any]:  # fmt: skip  # noqa: E501
    """Cells [column, row, value] with a scale beside them: many rows that would be unreadable as lines.

    Columns are seconds.
    """
    x = across("category", columns)
    x["axisLabel"] |= {":formatter": ELAPSED}
    return {
        "animation": False,
        "textStyle": {"fontFamily": "inherit"},
        "grid": {"left": 34, "right": 62, "top": 8, "bottom": 20},
        "tooltip": tooltip() | {"trigger": "item", ":valueFormatter": NUMBER},
        "xAxis": x,
        "yAxis": {
            "type": "category", "data": list(rows), "inverse": True, "axisTick": {"show": False},
            "axisLine": {"show": False},
            "axisLabel": {"color": INK, "fontSize": 10, "interval": max(0, -(-len(rows) // 8) - 1)},
        },
        "visualMap": {
            "min": lowest, "max": max(highest, lowest + 1e-9), "calculable": False, "orient": "vertical", "right": 2,
            "top": "middle", "itemWidth": 8, "itemHeight": 90, "precision": 0, ":formatter": NUMBER,
            "textStyle": {"color": INK, "fontSize": 10}, "text": [_short(highest), _short(lowest)],
            "inRange": {"color": ["#25356b", "#2f6fb0", "#2fae9f", "#a7d65c", "#f7e05a"]},
        },
        "series": [
            {"id": "cells", "type": "heatmap", "data": list(cells), "animation": False, "progressive": 0,
             "emphasis": {"disabled": True}},
        ],
    }  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 10_000 else f"{value / 1000:.3g} k"


def marker(value: float, text: str, color: str = RED) -> dict[str, Any]:
    """A dashed horizontal line across a chart, for a series' `markLine`."""
    return {
        "silent": True, "symbol": "none", "animation": False, "precision": 15,
        "lineStyle": {"color": color, "type": "dashed", "width": 1},
        "label": {"formatter": text, "color": color, "fontSize": 10, "position": "insideStartTop"},
        "data": [{"yAxis": value}],
    }  # fmt: skip


# Rectangles [lane, begin, end, colour, …]: ECharts has no chart of that kind, only a way to draw one's own.
_RECTANGLE = (
    "(params, api) => { const lane = api.value(0);"
    " const a = api.coord([api.value(1), lane]), b = api.coord([api.value(2), lane]);"
    " const h = Math.max(2, Math.min(14, api.size([0, 1])[1] * 0.74));"
    " const r = echarts_clip(params.coordSys, {x: a[0], y: a[1] - h / 2, width: Math.max(1, b[0] - a[0]), height: h});"
    " return r && {type: 'rect', shape: Object.assign(r, {r: Math.min(2, h / 4)}), style: {fill: api.value(3)}}; }"
)


def rectangle_function() -> str:
    """The JavaScript that draws a rectangle, cut to the chart's area."""
    clip = (
        "((area, s) => { const x = Math.max(s.x, area.x), e = Math.min(s.x + s.width, area.x + area.width);"
        " return e > x ? {x: x, y: s.y, width: e - x, height: s.height} : null; })"
    )
    return _RECTANGLE.replace("echarts_clip", clip)
