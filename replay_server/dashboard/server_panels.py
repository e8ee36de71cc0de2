"""What servers show, on their own page and on those of their jobs: latencies, priorities, the rate limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.dashboard import charts
from replay_server.dashboard.charts import AMBER, BLUE, TEAL, VIOLET
from replay_server.dashboard.server_source import LATENCIES, ServerSource

COLORS = {"add": TEAL, "item": AMBER, "sample": BLUE, "update": VIOLET}


def latency_options(server: ServerSource, began_s: float | None = None) -> dict[str, Any] | None:
    """p99 and p50 of the last seconds' answers to the commands that move experience, over time.

    Against the clock, or seconds since `began_s`. Waits for the rate limiter are in them, hence the logarithm.
    """
    history = server.history
    series = []
    for short in LATENCIES:
        for percentile, dotted in (("p99", False), ("p50", True)):
            points: list[Any] = history.points(f"{short}_{percentile}")
            if all(value is None for _, value in points):
                continue
            if began_s is not None:
                points = [[round(at / 1000 - began_s, 1), value] for at, value in points]
            options = charts.line(f"{short} {percentile}" if dotted else short, points, COLORS[short], width=1 if dotted else 1.6)  # fmt: skip  # noqa: E501
            if dotted:
                options["lineStyle"] |= {"type": "dotted", "opacity": 0.8}
            series.append(options)
    if not series:
        return None
    x = charts.across("clock") if began_s is None else charts.across()
    y = [charts.axis(charts.MICROSECONDS, log=True)]
    options = charts.chart(series, x=x, y=y, unit=charts.MICROSECONDS)
    options["legend"]["data"] = [each["name"] for each in series if not each["name"].endswith(("p50", "p99"))]
    return options


def histogram_options(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """How raw priorities are spread, where the server tells: counts between powers of two."""
    buckets = priority_buckets(about)
    if not buckets:
        return None
    options = charts.chart(
        [charts.bars("items", [count for _, count in buckets], BLUE, gap="8%")],
        x=charts.across("category", ["0" if low is None else f"{low:.3g}" for low, _ in buckets]),
        y=[charts.axis(zero=True)],
        legend=False,
        header="(v) => v === '0' ? 'priority 0' : 'from ' + v + ' to ' + +(2 * v).toPrecision(3)",
    )
    options["grid"]["left"] = 40
    return options


def priority_buckets(about: Mapping[str, Any]) -> list[tuple[float | None, int]]:
    """(lowest priority, items), each up to twice as much, rising and without gaps; priority zero as None, if there is.

    From the fields `priorities` and `zero_priorities` of REPLAY.INFO; none where the server does not tell.
    """
    given = about.get("priorities")
    if not isinstance(given, list):
        return []
    counts = {int(exponent): int(count) for exponent, count in given}
    zero = int(about.get("zero_priorities") or 0)
    found: list[tuple[float | None, int]] = [(None, zero)] if zero else []
    if counts:
        found += [(2.0**each, counts.get(each, 0)) for each in range(min(counts), max(counts) + 1)]
    return found


def limiter_words(about: Mapping[str, Any], short: bool = True) -> str:
    """What the rate limiter does now; `short`: without the numbers that the server gives as its reason."""
    if not about:
        return ""
    who, reason = "", ""
    if about.get("reason_add"):
        who = f"inserting {'waits' if about.get('waiting_add') else 'would wait'}"
        reason = str(about["reason_add"])
    elif about.get("reason"):
        who = f"sampling {'waits' if about.get('waiting_sample') else 'would wait'}"
        reason = str(about["reason"])
    if not who:
        return "limiter open"
    return f"{who}: {reason.partition(':')[0] if short else reason}"
