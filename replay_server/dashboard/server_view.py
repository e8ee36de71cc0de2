"""A server by itself: its tables, commands, memory and connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replay_server.dashboard import charts, words
from replay_server.dashboard.charts import AMBER, BLUE, GREY, TEAL, VIOLET
from replay_server.dashboard.cluster_panels import shard_panel, shard_tiles
from replay_server.dashboard.cluster_source import ClusterSource
from replay_server.dashboard.history import History
from replay_server.dashboard.server_panels import histogram_options, latency_options, limiter_words, server_banner
from replay_server.dashboard.server_source import ServerSource
from replay_server.dashboard.view import Banner, Cells, Fact, Panel, Tile

MOST_CHARTED = 6
"""Tables with charts of their own, in the server's order, those first that something was added to."""


class ServerView:
    """Tiles and panels of one server."""

    def __init__(self, server: ServerSource) -> None:
        self.server = server
        self.tiles: Sequence[Tile] = (
            Tile("Memory", self._known(self._memory)),
            Tile("Tables", self._known(self._tables)),
            Tile("Commands", self._known(self._commands)),
            Tile("Network", self._known(self._network)),
            Tile("Clients", self._known(self._clients)),
            Tile("Processor", self._known(self._processor)),
            Tile("Errors", self._known(self._errors)),
            Tile("Up", self._known(self._up)),
        )
        panels = [
            Panel(
                "Tables", 12, rows=self.table_rows, height=112, note=self._tables_note,
                columns=(("name", "table"), ("size", "items"), ("capacity", "of"), ("bytes", "bytes"),
                         ("added", "added/s"), ("sampled", "sampled/s"), ("ratio", "samples per insert"),
                         ("stale", "stale updates"),
                         ("limiter", "limiter")),
            ),
        ]  # fmt: skip
        panels += self._panels_of(0)
        panels += [
            Panel("Commands a second", 4, self.commands, empty="not seen yet"),
            Panel("Latency, request to answer", 4, lambda: latency_options(server), empty="no experience moved yet",
                  note=lambda: "p99, dotted p50"),
            Panel("Commands", 4, rows=self.command_rows,
                  columns=(("name", "command"), ("calls", "calls"), ("p50", "p50"), ("p99", "p99"),
                           ("failed", "failed"))),
            Panel("Memory", 4, self.memory, empty="not seen yet"),
            Panel("Network", 4, self.network, empty="not seen yet"),
            Panel("Weights", 4, rows=self.weight_rows, note=self._weights_note,
                  columns=(("name", "key"), ("version", "version"), ("bytes", "bytes"), ("age", "published"))),
            Panel("Gradients", 4, self.gradients),
        ]  # fmt: skip
        for place in range(1, MOST_CHARTED):
            panels += self._panels_of(place)
        if isinstance(server, ClusterSource):
            self.tiles = [*shard_tiles(server), *self.tiles]
            panels.insert(0, shard_panel(server))
        self.panels: Sequence[Panel] = panels

    def _charted(self) -> list[str]:
        tables = self.server.reading.tables
        used = [name for name, about in tables.items() if about.get("added") or about.get("size")]
        return (used or list(tables)[:1])[:MOST_CHARTED]

    def _tables_note(self) -> str:
        shown, count = len(self.server.reading.tables), self._info.get("tables")
        return f"{shown} of {words.number(count)} shown" if isinstance(count, int) and shown < count else ""

    def _panels_of(self, place: int) -> list[Panel]:
        """Those of the table at a place in the server's order: found anew each time, since tables come and go."""

        def name() -> str | None:
            names = self._charted()
            return names[place] if place < len(names) else None

        def rates() -> dict[str, Any] | None:
            found = name()
            return self.rates(found) if found is not None else None

        def priorities() -> dict[str, Any] | None:
            return histogram_options(self.server.reading.tables.get(name() or "", {}))

        def words_of() -> str:
            found = name()
            return f"{found[:40]} · {limiter_words(self.server.reading.tables[found])}" if found is not None else ""

        return [
            Panel("Items a second", 8, rates, note=words_of),
            Panel("Priorities", 4, priorities, note=lambda: (name() or "")[:40]),
        ]

    @property
    def title(self) -> str:
        return self.server.name

    @property
    def subtitle(self) -> str:
        info = self.server.reading.info
        if not info:
            return ""
        return f"version {info.get('replay_server_version')} · transport {info.get('transport0')} · process {info.get('process_id')}"  # fmt: skip  # noqa: E501

    @property
    def state(self) -> tuple[str, str]:
        return {"up": ("up", "good"), "lost": ("lost", "bad")}.get(self.server.state, ("connecting", "warn"))

    def banner(self) -> Banner | None:
        return server_banner(self.server)

    def gist(self) -> list[list[Any]]:
        return [list(point) for point in self.server.history.points("total_commands_processed", True)]

    def version(self) -> Any:
        return self.server.looks

    # -- tiles

    @property
    def _info(self) -> Mapping[str, Any]:
        return self.server.reading.info

    def _known(self, fact: Callable[[], Fact]) -> Callable[[], Fact]:
        """Nothing but a dash of a server that has not answered yet: 0 tables would be a number."""
        return lambda: fact() if self._info else Fact(words.NOTHING)

    def _rate(self, name: str, table: History | None = None) -> float | None:
        rates = (table or self.server.history).rate(name)
        return rates[-1] if rates else None

    def _memory(self) -> Fact:
        limit = self._info.get("maxmemory") or 0
        used = self._info.get("used_memory")
        share = used / limit if limit and used is not None else None
        of = (
            f"store limited to {words.size(limit)}"
            if limit
            else f"resident {words.size(self._info.get('used_memory_rss'))}"
        )
        return Fact(words.size(used), of, share=share)

    def _tables(self) -> Fact:
        tables = self.server.reading.tables
        items = sum(about.get("size", 0) for about in tables.values())
        some = len(tables) < self._info.get("tables", 0)
        return Fact(words.number(self._info.get("tables")),
                    f"{words.number(items)} items{f' in {len(tables)}' if some else ''}")  # fmt: skip

    def _commands(self) -> Fact:
        return Fact(f"{words.number(self._rate('total_commands_processed'))}/s",
                    f"{words.number(self._info.get('total_commands_processed'))} in all")  # fmt: skip

    def _network(self) -> Fact:
        return Fact(f"{words.size(self._rate('total_net_output_bytes'))}/s", f"out · in {words.size(self._rate('total_net_input_bytes'))}/s")  # fmt: skip  # noqa: E501

    def _clients(self) -> Fact:
        blocked = self._info.get("blocked_clients")
        return Fact(words.number(self._info.get("connected_clients")), f"{words.number(blocked)} waiting")

    def _processor(self) -> Fact:
        share = self._rate("cpu_s")
        return Fact(words.percent(share), "of one core", "warn" if share and share > 0.9 else "", share)

    def _errors(self) -> Fact:
        rate = self._rate("errors")
        detail = f"{words.number(rate)}/s · {words.number(self.server.history.last('timeouts'))} waits timed out"
        return Fact(words.number(self.server.history.last("errors")), detail, "warn" if rate else "")

    def _up(self) -> Fact:
        restarts = len(self.server.restarts)
        return Fact(words.duration(self._info.get("uptime_in_seconds")), f"seen to restart {restarts}×" if restarts else "", "warn" if restarts else "")  # fmt: skip  # noqa: E501

    # -- panels

    def table_rows(self) -> list[dict[str, Any]]:
        """One row for each table."""
        cells = Cells()
        for name, about in self.server.reading.tables.items():
            history = self.server.tables.get(name)
            added, sampled = about.get("added", 0), about.get("sampled", 0)
            cells.add(
                name=name,
                size=words.number(about.get("size")),
                capacity=words.number(about.get("capacity")),
                bytes=words.size(about.get("bytes")),
                added=words.number(self._rate("added", history) if history else None),
                sampled=words.number(self._rate("sampled", history) if history else None),
                ratio=words.number(sampled / added if added else None),
                stale=words.number(about.get("stale_updates")),
                limiter=limiter_words(about, short=False),
            )
        return cells.rows

    def command_rows(self) -> list[dict[str, Any]]:
        """Commands by their calls, the most first."""
        cells, latency = Cells(), self.server.latency
        for name, stat in sorted(self.server.calls.items(), key=lambda each: -each[1].get("calls", 0)):
            times = latency.get(name, {})
            cells.add(
                name=name.upper(),
                calls=words.number(stat.get("calls")),
                p50=words.microseconds(times.get("p50")),
                p99=words.microseconds(times.get("p99")),
                failed=words.number(stat.get("failed_calls")),
            )
        return cells.rows

    def weight_rows(self) -> list[dict[str, Any]]:
        """Keys of weights, the one that was published last first."""
        cells = Cells()
        for name, about in sorted(self.server.reading.weights.items(), key=lambda each: each[1].get("age_ms", 0)):
            cells.add(
                name=name,
                version=words.number(about.get("version")),
                bytes=words.size(about.get("bytes")),
                age=f"{words.duration(about.get('age_ms', 0) / 1000)} ago",
            )
        return cells.rows

    def _weights_note(self) -> str:
        shown, count = len(self.server.reading.weights), self.server.weight_keys
        return f"{shown} of {words.number(count)} shown" if 0 < shown < count else ""

    def _lines(self, *lines: tuple[str, str, str, bool], unit: str = charts.NUMBER) -> dict[str, Any] | None:
        history = self.server.history
        if len(history) < 2:
            return None
        series = [
            charts.line(name, history.points(column, rate), color, area=index == 0)
            for index, (name, column, color, rate) in enumerate(lines)
        ]
        return charts.chart(series, x=charts.across("clock"), y=[charts.axis(unit, zero=True)], unit=unit)

    def commands(self) -> dict[str, Any] | None:
        return self._lines(("commands", "total_commands_processed", BLUE, True), ("errors", "errors", AMBER, True))

    def memory(self) -> dict[str, Any] | None:
        return self._lines(
            ("used", "used_memory", VIOLET, False), ("resident", "used_memory_rss", GREY, False), unit=charts.BYTES
        )

    def network(self) -> dict[str, Any] | None:
        return self._lines(
            ("out", "total_net_output_bytes", BLUE, True),
            ("in", "total_net_input_bytes", TEAL, True),
            unit=charts.BYTES,
        )

    def gradients(self) -> dict[str, Any] | None:
        if not self._info.get("gradients_pushed"):
            return None
        return self._lines(
            ("applied/s", "gradients_applied", BLUE, True), ("waiting", "gradients_waiting", AMBER, False),
            ("dropped/s", "gradients_dropped", GREY, True),
        )  # fmt: skip

    def rates(self, table: str) -> dict[str, Any] | None:
        """Items added, sampled and removed each second of one table, and its size."""
        history = self.server.tables.get(table)
        if history is None or len(history) < 2:
            return None
        series = [
            charts.line("inserted", history.points("added", True), TEAL, area=True),
            charts.line("sampled", history.points("sampled", True), BLUE),
            charts.line("removed", history.points("removed", True), GREY, width=1.2),
            charts.line("items", history.points("size"), VIOLET, axis=1, width=1.2),
        ]
        y = [charts.axis(zero=True), charts.axis(zero=True, right=True)]
        return charts.chart(series, x=charts.across("clock"), y=y)
