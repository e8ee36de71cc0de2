"""Functions as a Gantt view: each attempt a bar in a lane, coloured by what it was and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts
from replay_server.dashboard.json_lines import finite
from replay_server.dashboard.run_source import RUNNING

Elapsed = Callable[[float], float]
"""Seconds since 1970 → seconds of the job."""

COLORS = {
    "queued": "rgba(139,149,163,0.30)",
    "cold start": charts.BLUE,
    "actor": charts.TEAL,
    "learner": charts.VIOLET,
    "gradient": charts.AMBER,
    "parameter": charts.PINK,
    "evaluation": charts.GREY,
    "warm": charts.SAND,
    "failed, timed out, lost": charts.RED,
}
PALER = "80"
"""Half of the colour, after its six digits."""
MOST_BARS = 1200
ROUNDS = 6
"""The newest rounds that the view shows at first; it can be moved and zoomed."""


def lanes(invocations: Sequence[Mapping[str, Any]]) -> list[int]:
    """A lane for each attempt, such that no two of a lane overlap; as few lanes as that needs."""
    order = sorted(range(len(invocations)), key=lambda index: invocations[index]["queued"])
    ends: list[float] = []
    found = [0] * len(invocations)
    for index in order:
        each = invocations[index]
        free = next((lane for lane, end in enumerate(ends) if end <= each["queued"]), len(ends))
        if free == len(ends):
            ends.append(0.0)
        ends[free] = each["ended"]
        found[index] = free
    return found


def bars(invocations: Sequence[Mapping[str, Any]], elapsed: Elapsed) -> list[dict[str, Any]]:
    """Bars [lane, from, to, colour] with a name each; seconds since the job began.

    An attempt is up to three: in the queue, starting its instance, running. One that has not ended yet is paler.
    """
    shown = list(invocations)[-MOST_BARS // 2 :]
    found = []
    for each, lane in zip(shown, lanes(shown)):
        kind, outcome = str(each.get("kind")), str(each.get("outcome"))
        queued, started, ended = (elapsed(float(each[name])) for name in ("queued", "started", "ended"))
        measured = each.get("measured")
        measured = measured if isinstance(measured, dict) else {}
        # What an instance imports before its first work is of its start, too: most of it, with torch.
        startup = sum(finite(measured.get(name)) or 0.0 for name in ("startup_s", "import_s"))
        startup = min(max(startup, 0.0), ended - started) if each.get("cold") else 0.0
        title = f"{each.get('request')} · {kind}, attempt {each.get('attempt')}, {outcome}"
        color = COLORS.get(kind, charts.GREY)
        if outcome == RUNNING:
            color += PALER
        elif outcome != "ok":
            color = COLORS["failed, timed out, lost"]
        if started - queued > 0.02:
            found.append((lane, queued, started, COLORS["queued"], f"{title}: waited"))
        if startup > 0.02:
            found.append((lane, started, started + startup, COLORS["cold start"], f"{title}: cold start"))
        if outcome != RUNNING or ended > started:
            found.append((lane, started + startup, ended, color, title))
    return [
        {"name": name, "value": [lane, round(begin, 3), round(end, 3), color]}
        for lane, begin, end, color, name in found[-MOST_BARS:]
    ]


def series(invocations: Sequence[Mapping[str, Any]], elapsed: Elapsed) -> dict[str, Any]:
    """The one series of the view."""
    return {
        "id": "functions", "type": "custom", ":renderItem": charts.rectangle_function(), "animation": False,
        "encode": {"x": [1, 2], "y": 0}, "data": bars(invocations, elapsed), "progressive": 0,
        "tooltip": {":formatter": "(p) => { const e = document.createElement('div');"
                    " e.textContent = p.name + ' · ' + (p.value[2] - p.value[1]).toFixed(2) + ' s'; return e; }"},
    }  # fmt: skip


def window(invocations: Sequence[Mapping[str, Any]], elapsed: Elapsed) -> tuple[float, float]:
    """From when to when the newest rounds went, seconds since the job began."""
    if not invocations:
        return 0.0, 1.0
    newest = max(_round(each) for each in invocations)
    last = [each for each in invocations if _round(each) >= newest - ROUNDS + 1]
    begin = elapsed(min(each["queued"] for each in last))
    return begin, max(elapsed(max(each["ended"] for each in last)), begin + 1.0)


def _round(invocation: Mapping[str, Any]) -> float:
    return finite(invocation.get("round")) or 0.0


def chart(invocations: Sequence[Mapping[str, Any]], elapsed: Elapsed) -> dict[str, Any]:
    """The whole view, with a slider to look at earlier rounds."""
    begin, end = window(invocations, elapsed)
    x = charts.across() | {"min": None, "max": None, "scale": True}
    x["axisLabel"] |= {"showMinLabel": False}
    x["axisLine"] = {"onZero": False, "lineStyle": {"color": charts.LINES}}
    most = max(lanes(list(invocations)[-MOST_BARS // 2 :]), default=0)
    y = charts.axis() | {
        "inverse": True,
        "minInterval": 1,
        "min": -0.7,
        "max": most + 0.7,
        "splitLine": {"show": False},
    }
    y["axisLabel"] = {"show": False}
    options = charts.chart([series(invocations, elapsed)], x=x, y=[y], legend=False)
    options["grid"] = {"left": 14, "right": 14, "top": 6, "bottom": 44}
    options["tooltip"] = charts.tooltip() | {"trigger": "item"}
    options["dataZoom"] = [
        {"type": "inside", "startValue": begin, "endValue": end, "filterMode": "weakFilter",
         "zoomOnMouseWheel": "ctrl"},
        {"type": "slider", "startValue": begin, "endValue": end, "filterMode": "weakFilter", "height": 14, "bottom": 4,
         "borderColor": "transparent", "showDetail": False, "backgroundColor": charts.LINES,
         "fillerColor": "rgba(79,142,247,0.22)", "handleSize": "90%", "brushSelect": False,
         "dataBackground": {"lineStyle": {"opacity": 0}, "areaStyle": {"opacity": 0}},
         "selectedDataBackground": {"lineStyle": {"opacity": 0}, "areaStyle": {"opacity": 0}}},
    ]  # fmt: skip
    return options
