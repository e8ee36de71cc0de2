"""One run directory, read as its job writes it: Ape-X or serverless, live or of an earlier day."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay_server.dashboard.json_lines import JsonLines
from replay_server.rl.run_directory import RunDirectory, process_started

MOST_ROWS = 4000
"""Kept of each kind; of more every second one is left out, the newest stays."""
MOST_INVOCATIONS = 4000
"""Kept of the newest; counts are of all."""
ACTOR, LEARNER = ("actor", "warm"), ("learner", "gradient", "parameter")


class RunSource:
    """A run directory. `look` reads what is new there; cheap where nothing is.

    Attributes:
        name: the folder's name.
        key: its name among all that are watched.
        settings: config.json.
        kind: "apex", "train", or "" where neither can be told.
        job: job.json: where the job runs, its server, its processes; empty of a run of an earlier version.
        summary: summary.json of this session, empty until it ends.
        state: "running", "ended" (see `ended_by`), "killed" (its process is gone and left no summary), "unknown".
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.path = self.directory.path
        self.name = self.key = self.path.name
        self.settings: dict[str, Any] = {}
        self.job: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {"learner": [], "progress": [], "evaluation": [], "round": []}
        self.invocations: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        """Attempts at functions by outcome."""
        self.state = "unknown"
        self.looks = 0
        self._metrics = JsonLines(self.path / "metrics.jsonl")
        self._log = JsonLines(self.path / "invocations.jsonl")
        self._seen: dict[Path, tuple[int, int]] = {}

    @property
    def kind(self) -> str:
        if "algo" in self.settings and "rounds" in self.settings:
            return "train"
        return "apex" if "actors" in self.settings and "table" in self.settings else str(self.job.get("kind", ""))

    @property
    def title(self) -> str:
        """Environment, what learns, seed."""
        parts = [str(self.settings.get("env", self.name))]
        if self.kind == "train":
            parts += [str(self.settings.get("algo", "")), str(self.settings.get("scaler", ""))]
        elif self.kind == "apex":
            parts.append("Ape-X")
        if "seed" in self.settings:
            parts.append(f"seed {self.settings['seed']}")
        return " · ".join(part for part in parts if part)

    @property
    def server(self) -> str | None:
        """URL of the job's server, without a password; None where it is not said."""
        url = self.job.get("server")
        return url if isinstance(url, str) else None

    @property
    def ended_by(self) -> str:
        return str(self.summary.get("ended_by", "")) if self.state == "ended" else ""

    @property
    def began_s(self) -> float:
        """When its first row was written, or its job began, seconds since 1970."""
        firsts = [rows[0]["time_s"] for rows in self.rows.values() if rows]
        return min(firsts) if firsts else float(self.job.get("started_s", time.time()))

    def look(self) -> None:
        """Reads what is new. What cannot be understood is passed over: others are watched, too."""
        self.looks += 1
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
            self._look()

    def _look(self) -> None:
        self.settings = self._json(self.directory.config, self.settings)
        self.job = self._json(self.directory.job, self.job)
        self.summary = self._json(self.directory.summary, self.summary)
        with contextlib.suppress(OSError):
            status = self._metrics.path.stat()
            self._seen[self._metrics.path] = (status.st_mtime_ns, status.st_size)
        void, rows = self._metrics.read()
        if void:
            self.rows = {kind: [] for kind in self.rows}
        for row in rows:
            self._take_row(row)
        void, invocations = self._log.read()
        if void:
            self.invocations, self.counts = [], {}
        for each in invocations:
            self._take_invocation(each)
        self.state = self._state()

    @property
    def behind(self) -> bool:
        """Whether there is more to read than one look took."""
        return self._metrics.behind or self._log.behind

    def changed(self) -> bool:
        """Whether a run that had ended goes on, or has more to show."""
        if self.behind:
            return True
        for path in (self.directory.job, self.directory.summary, self._metrics.path):
            with contextlib.suppress(OSError):
                status = path.stat()
                if self._seen.get(path) != (status.st_mtime_ns, status.st_size):
                    return True
        return False

    def _json(self, path: Path, before: dict[str, Any]) -> dict[str, Any]:
        """A file's object; the one from before where the file is as it was, none where it is not there."""
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if self._seen.get(path) == stamp:
                return before
            value = json.loads(path.read_text())
        except FileNotFoundError:
            self._seen.pop(path, None)
            return {}
        except (OSError, ValueError):
            return before
        self._seen[path] = stamp
        return value if isinstance(value, dict) else {}

    def _take_row(self, row: dict[str, Any]) -> None:
        kept = self.rows.get(str(row.get("kind")))
        if kept is None or not isinstance(row.get("time_s"), int | float):
            return
        if row["kind"] == "round":
            # After --resume a round may be played again: of it and what followed only the newest counts.
            while kept and kept[-1].get("round", 0) >= row.get("round", 0):
                kept.pop()
        kept.append(row)
        if len(kept) > MOST_ROWS:
            del kept[1:-1:2]

    def _take_invocation(self, each: dict[str, Any]) -> None:
        if not all(isinstance(each.get(name), int | float) for name in ("queued", "started", "ended")):
            return
        outcome = str(each.get("outcome"))
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        self.counts["cold"] = self.counts.get("cold", 0) + bool(each.get("cold"))
        self.invocations.append(each)
        if len(self.invocations) > MOST_INVOCATIONS:
            del self.invocations[: MOST_INVOCATIONS // 4]

    def _state(self) -> str:
        started_s = float(self.job.get("started_s", 0.0))
        stamp = self._seen.get(self.directory.summary)
        # A summary of the session before a --resume is older than the job.
        if stamp is not None and stamp[0] / 1e9 >= started_s:
            return "ended"
        if self.job.get("host") != socket.gethostname():
            return "unknown"
        pid = int(self.job.get("pid", 0))
        if pid and process_started(pid) == self.job.get("pid_started"):
            return "running"
        # A learner by itself, for actors elsewhere, leaves no summary.
        return "ended" if self.job.get("kind") == "learner" else "killed"


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / "config.json").is_file()


def runs_below(path: Path, most: int) -> list[Path]:
    """The run directories that a folder is or holds, the newest `most`, newest first."""
    if is_run(path):
        return [path]
    try:
        with os.scandir(path) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    runs = [(folder.stat().st_mtime, folder) for folder in found if is_run(folder)]
    return [folder for _, folder in sorted(runs, reverse=True)[:most]]


def column(rows: list[dict[str, Any]], name: str, above: str | None = None) -> list[float | None]:
    """The values of a field of rows, of a map within them where `above` names it; None where it is no number."""

    def value(row: Mapping[str, Any]) -> float | None:
        place = row.get(above) if above else row
        found = place.get(name) if isinstance(place, Mapping) else None
        return float(found) if isinstance(found, int | float) else None

    return [value(row) for row in rows]
