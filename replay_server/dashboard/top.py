"""`replay-server top`: servers and jobs in the terminal, drawn again once a second."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay_server import terminal
from replay_server.arguments import Parser
from replay_server.dashboard import words
from replay_server.dashboard.cluster_panels import shard_facts, shard_rows
from replay_server.dashboard.cluster_source import ClusterSource
from replay_server.dashboard.kinds import job_view
from replay_server.dashboard.main import DEFAULT_URL
from replay_server.dashboard.server_panels import limiter_words
from replay_server.dashboard.server_source import ServerSource
from replay_server.dashboard.server_view import ServerView
from replay_server.dashboard.view import Fact, View
from replay_server.dashboard.watch import EVERY_S, Watch, password_from_environment

EXIT_FAILED, EXIT_SERVER_LOST, EXIT_INTERRUPTED = 1, 5, 130
NOTHING_TO_SHOW = "nothing to show: no run directory was found below --logdir; a job makes one, or --url names a server"
MOST_RUNS = 6
"""Shown of a folder, the newest."""
MOST_ROWS = 12
"""Of a table, in a terminal."""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(
        prog="replay-server top",
        description="Servers and jobs, live, in the terminal; plain lines where standard output is none. Without --url "
        f"and --logdir: the server at {DEFAULT_URL}.",
        epilog="A password that is in no URL comes from the variable REPLAY_SERVER_PASSWORD. Exit status: 0 done, "
        "2 usage, 5 with --once: no server answered, 130 interrupted.",
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="a server, or a cluster (redis+cluster://host:port); again for more",
    )
    parser.add_argument("--logdir", action="append", default=[], type=Path, metavar="DIR", help="a run directory; again for more")  # fmt: skip  # noqa: E501
    parser.add_argument("--once", action="store_true", help="show it once and end; rates are over the second before")
    parser.add_argument("--json", action="store_true", help="one line of JSON each time, for programs")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Shows what is watched until it is interrupted; its exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    urls = options.url or ([] if options.logdir else [DEFAULT_URL])
    for folder in options.logdir:
        if not folder.is_dir():
            parser.error(f"no such folder: {folder}")
    try:
        watch = Watch(urls, options.logdir, password=password_from_environment())
    except ValueError as error:
        parser.error(str(error))
    view: Any = terminal.PlainView(as_text, 0.0, sys.stdout)
    if not options.json and not options.once:
        view = terminal.make_view(as_text, as_table, 5.0)
    try:
        watch.look()
        with view:
            while True:
                time.sleep(EVERY_S)
                watch.look()
                if options.json:
                    print(json.dumps(as_json(watch), default=str), flush=True)
                else:
                    view.show(watch)
                if options.once:
                    lost = watch.servers and all(server.state == "lost" for server in watch.servers)
                    return EXIT_SERVER_LOST if lost else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # Whoever read, `head` for one, has read enough.
        return 0
    finally:
        watch.close()


# ---- as text ---------------------------------------------------------------------------------------------------------


def _views(watch: Watch) -> list[View]:
    return [
        *(job_view(run, watch) for run in watch.runs[:MOST_RUNS]),
        *(ServerView(server) for server in watch.servers),
    ]


def as_text(watch: Watch) -> str:
    """Some lines for each job and server, and one for each table."""
    lines = []
    for view in _views(watch):
        lines.append(f"{view.title} · {view.state[0]}")
        message = view.banner()
        if message is not None:
            lines.append(f"  {message.text}")
        facts = _facts(view)
        for place in range(0, len(facts), 4):
            lines.append(
                "  "
                + " · ".join(
                    f"{title} {fact.value}" + (f" ({fact.detail})" if fact.detail else "")
                    for title, fact in facts[place : place + 4]
                )
            )
        if isinstance(view, ServerView):
            if isinstance(view.server, ClusterSource):
                lines += [
                    f"  shard {row['name']}: {row['state']}, {row['items']} items ({row['share']}), {row['memory']}, "
                    f"inserted {row['added']}/s, sampled {row['sampled']}/s, {row['slots']} slots"
                    + (f", {row['moving']}" if row["moving"] != words.NOTHING else "")
                    for row in shard_rows(view.server)
                ]
            lines += [
                f"  table {row['name']}: {row['size']} of {row['capacity']} items, {row['bytes']}, "
                f"inserted {row['added']}/s, sampled {row['sampled']}/s, {row['limiter']}"
                for row in view.table_rows()
            ]
    return "\n".join(_printable(line) for line in lines) if lines else NOTHING_TO_SHOW


def _facts(view: View) -> list[tuple[str, Fact]]:
    """Titles and what is said of them, where there is anything to say."""
    found = [(tile.title, tile.shown()) for tile in view.tiles]
    return [(title, fact) for title, fact in found if fact is not None and (fact.value != words.NOTHING or fact.detail)]


def _printable(text: str) -> str:
    """Without control characters: a name must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def as_table(watch: Watch) -> Any:
    """What a terminal shows (rich)."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tones = {"good": "green", "warn": "yellow", "bad": "red", "": "dim"}
    parts: list[Any] = []
    for view in _views(watch):
        word, tone = view.state
        parts.append(Text.assemble((_printable(view.title), "bold"), " · ", (_printable(word), tones[tone])))
        if (message := view.banner()) is not None:
            parts.append(Text(_printable(message.text), tones[message.tone]))
        grid = Table.grid(padding=(0, 3))
        facts = _facts(view)
        for place in range(0, len(facts), 4):
            row = facts[place : place + 4]
            grid.add_row(*(Text(_printable(title), "dim") for title, _ in row))
            grid.add_row(
                *(Text(_printable(fact.value), f"bold {tones[fact.tone]}" if fact.tone else "bold") for _, fact in row)
            )
            grid.add_row(*(Text(_printable(fact.detail), "dim") for _, fact in row))
        parts.append(grid)
        for panel in view.panels:
            rows = panel.shown()[0] if panel.rows is not None else []
            if not rows:
                continue
            table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2))
            for key, heading in panel.columns:
                table.add_column(heading, justify="left" if key in ("name", "state", "limiter") else "right")
            for row in rows[:MOST_ROWS]:
                cells = (_printable(str(row[key])) for key, _ in panel.columns)
                table.add_row(
                    *(Text(cell, tones[row.get("tone", "")] if row.get("tone") == "warn" else "") for cell in cells)
                )
            parts += [Text(""), table]
        parts.append(Text(""))
    return Group(*parts) if parts else Text(NOTHING_TO_SHOW)


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def as_json(watch: Watch) -> dict[str, Any]:
    """Numbers as they are: bytes, microseconds, counts; rates a second."""
    return {
        "time_s": round(time.time(), 3),
        "servers": [_server(server) for server in watch.servers],
        "jobs": [
            {
                "name": run.name, "path": str(run.path), "kind": run.kind, "state": run.state, "ended_by": run.ended_by,
                "server": run.server, "newest": {kind: rows[-1] for kind, rows in run.rows.items() if rows},
                "summary": {name: value for name, value in run.summary.items() if name != "evaluations"},
            }
            for run in watch.runs
        ],
    }  # fmt: skip


def _server(server: ServerSource) -> dict[str, Any]:
    info = server.reading.info
    shards = {}
    if isinstance(server, ClusterSource):
        version = server.topology.version if server.topology else None
        shards = {
            "topology_version": version,
            "moving_slots": server.moving_slots,
            "shards": shard_facts(server),
        }
    names = ("used_memory", "connected_clients", "blocked_clients", "uptime_in_seconds", "process_id", "run_id")
    return {
        "url": server.name,
        "state": server.state,
        "error": server.error,
        **{name: info[name] for name in names if name in info},
        "commands_per_s": _newest(server.history.rate("total_commands_processed")),
        "processor": _newest(server.history.rate("cpu_s")),
        "latency_us": server.latency,
        **shards,
        "tables": {name: _table(server, name, about) for name, about in server.reading.tables.items()},
    }


def _table(server: ServerSource, name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    history = server.tables.get(name)
    rates = {each: _newest(history.rate(each)) if history else None for each in ("added", "sampled", "removed")}
    return {
        **{key: value for key, value in about.items() if isinstance(value, int | float | str)},
        **{f"{each}_per_s": rate for each, rate in rates.items()},
        "limiter": limiter_words(about),
    }


def _newest(rates: list[float | None]) -> float | None:
    return rates[-1] if rates else None


if __name__ == "__main__":
    sys.exit(main())
