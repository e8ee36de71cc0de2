"""What servers show, on their own page and on those of their jobs: latencies, priorities, the rate limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.dashboard import charts, words
from replay_server.dashboard.charts import AMBER, BLUE, TEAL, VIOLET
from replay_server.dashboard.cluster_source import ClusterSource
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.server_source import LATENCIES, ServerSource
from replay_server.dashboard.view import Banner

MOST_LABELLED = 6
"""Bars of a histogram that have a label each; of more those do that a power of ten is in."""
DECADES = (
    "(v) => { if (v === '0') return '0'; const e = Math.ceil(Math.log10(v) - 1e-9);"
    " if (10 ** e >= 1.999 * v) return '';"
    " const up = String(e).replace('-', '⁻').replace(/\\d/g, (d) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[d]);"
    " return e < -3 || e > 4 ? '10' + up : String(+(10 ** e).toPrecision(1)); }"
)
COLORS = {"add": TEAL, "item": AMBER, "sample": BLUE, "update": VIOLET}


def latency_options(server: ServerSource, run: RunSource | None = None) -> dict[str, Any] | None:
    """p99 and p50 of the last seconds' answers to the commands that move experience, over time.

    Against the clock, or seconds of a job, while that went on. Waits for the rate limiter are in them, hence the
    logarithm.
    """
    history = server.history
    series = []
    for short in LATENCIES:
        for percentile, dotted in (("p99", False), ("p50", True)):
            points: list[Any] = history.points(f"{short}_{percentile}")
            if run is not None:
                points = [
                    [round(run.elapsed(at / 1000), 1), value]
                    for at, value in points
                    if run.began_s <= at / 1000 <= run.ended_s
                ]
            if all(value is None for _, value in points):
                continue
            options = charts.line(f"{short} {percentile}" if dotted else short, points, COLORS[short], width=1 if dotted else 1.6)  # fmt: skip  # noqa: E501
            if dotted:
                options["lineStyle"] |= {"type": "dotted", "opacity": 0.8}
            series.append(options)
    if not series:
        return None
    x = charts.across("clock") if run is None else charts.across()
    y = [charts.axis(charts.MICROSECONDS, log=True)]
    options = charts.chart(series, x=x, y=y, unit=charts.MICROSECONDS)
    options["legend"]["data"] = [each["name"] for each in series if not each["name"].endswith(("p50", "p99"))]
    return options


def histogram_options(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """How raw priorities are spread, where the server tells: counts between powers of two."""
    buckets = priority_buckets(about)
    if not buckets:
        return None
    x = charts.across("category", ["0" if low is None else f"{low:.3g}" for low, _ in buckets])
    if len(buckets) > MOST_LABELLED:
        # The places of powers of ten say more than those of two: 0.01, not 0.00781.
        x["axisLabel"] |= {"interval": 0, ":formatter": DECADES}
    options = charts.chart(
        [charts.bars("items", [count for _, count in buckets], BLUE, gap="8%")],
        x=x,
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


def server_banner(server: ServerSource) -> Banner | None:
    """That a server is lost, and what to do; or that it was started again."""
    if server.state == "lost":
        since = f" since {words.clock(server.lost_s)}" if server.lost_s and server.process else ""
        why, advice = _why_lost(server)
        return Banner(
            " ".join(each for each in (f"{server.name} does not answer{since}: {why}", advice) if each), "bad"
        )
    if server.restarts:
        return Banner(
            f"{server.name} was started again at {words.clock(server.restarts[-1])}; its counters began anew.", "warn"
        )
    return None


def _why_lost(server: ServerSource) -> tuple[str, str]:
    """What its error means, and what to do about it."""
    error = server.error.rstrip(".")
    if "NOAUTH" in error or "HELLO must be called" in error or "Authentication required" in error:
        return "it asks for a password.", "Set REPLAY_SERVER_PASSWORD, or give redis://:PASSWORD@HOST:PORT."
    if server.process or not any(each in error for each in ("refused", "No such file")):
        return f"{error}.", ""
    address = server.address
    if isinstance(server, ClusterSource):
        return f"{error}.", "replay-server cluster start starts shards; --url gives another address."
    if address.path is not None:
        start = f"replay-server serve --unixsocket {address.path}"
    elif address.is_local:
        start = f"replay-server serve --port {address.port}"
    else:
        return f"{error}.", "Does a server run there? --url gives another address."
    return f"{error}.", f"{start} starts one; --url gives another address."
