"""One run directory, read as its job writes it: Ape-X or serverless, live or of an earlier day."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay_server.cluster_address import parse_address
from replay_server.dashboard.json_lines import JsonLines, finite, load_json
from replay_server.rl.run_directory import MOST_SESSIONS, RunDirectory, process_started

MOST_ROWS = 4000
"""Kept of each kind; of more every second one is left out, the newest stays."""
MOST_VALUES = 400_000
"""Kept of each kind, values of all rows together: rows of many actors are long."""
MOST_ACTORS = 4096
"""Whose scores are looked for in each row."""
MOST_INVOCATIONS = 4000
"""Kept of the newest; counts are of all."""
MOST_UNFINISHED = 512
RUNNING = "running"
"""In place of the outcome of an attempt that has none yet."""
OUTCOMES = ("ok", "failed", "timeout", "lost")
LATEST_S = 1e11
"""A time that is later is none."""


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
        pauses: (from, to), seconds since 1970: when nothing ran, between a session and the one that went on with it.
        best_evaluation: of all evaluations that count, the one with the highest mean, the later of equal ones.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.path = self.directory.path
        self.name = self.key = self.path.name
        self.settings: dict[str, Any] = {}
        self.job: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {"learner": [], "progress": [], "evaluation": [], "round": []}
        self.best_evaluation: dict[str, Any] | None = None
        self.invocations: list[dict[str, Any]] = []
        self.unfinished: list[dict[str, Any]] = []
        """Attempts that run or wait, shaped like those that have ended: to now, and of the outcome `RUNNING`."""
        self.counts: dict[str, int] = {}
        """Attempts at functions by outcome, and how many of them began cold."""
        self.pauses: list[tuple[float, float]] = []
        self.state = "unknown"
        self.looks = 0
        self.began_s = time.time()
        """When its first session began, or the first thing of it was written, seconds since 1970."""
        self._first_s = self._newest_s = 0.0
        self._starts: list[float] = []
        self._before: dict[float, float] = {}
        """When something was written last before each session's beginning."""
        self._metrics = JsonLines(self.path / "metrics.jsonl")
        self._unfinished: dict[str, Any] = {}
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
            if (part := self.job.get("kind")) in ("learner", "evaluator"):
                parts.append(str(part))
        if "seed" in self.settings:
            parts.append(f"seed {self.settings['seed']}")
        return " · ".join(part for part in parts if part)

    @property
    def server(self) -> str | None:
        """URL of the job's server, without a password; None where it is not said."""
        url = self.job.get("server")
        return url if isinstance(url, str) else None

    @property
    def server_name(self) -> str | None:
        """The same as servers are called; None where it is no address."""
        try:
            return str(parse_address(self.server)) if self.server is not None else None
        except ValueError:
            return None

    @property
    def ended_by(self) -> str:
        return str(self.summary.get("ended_by", "")) if self.state == "ended" else ""

    @property
    def keeps_best(self) -> bool:
        """Whether what the job keeps is the network of its best evaluation; else it is the newest."""
        return self.kind != "train"

    def elapsed(self, time_s: float) -> float:
        """Seconds of the job that lie before a time: pauses between its sessions do not count."""
        paused = sum(min(time_s, end) - begin for begin, end in self.pauses if time_s > begin)
        return time_s - self.began_s - paused

    @property
    def ended_s(self) -> float:
        """When it ended, seconds since 1970; infinite while it has not, or nobody knows."""
        stamp = self._seen.get(self.directory.summary) if self.state == "ended" else None
        return stamp[0] / 1e9 if stamp else math.inf

    def setting_text(self, name: str) -> str:
        """A word of config.json; "" where it is not there."""
        value = self.settings.get(name)
        return value if isinstance(value, str) else ""

    @property
    def actors(self) -> int:
        """How many actors an Ape-X job has."""
        return min(max(0, int(finite(self.settings.get("actors")) or 0)), MOST_ACTORS)

    def newest(self, kind: str) -> dict[str, Any] | None:
        """The newest row of a kind."""
        rows = self.rows[kind]
        return rows[-1] if rows else None

    def look(self) -> None:
        """Reads what is new. What cannot be understood is passed over: others are watched, too."""
        self.looks += 1
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
            self._look()

    def _look(self) -> None:
        self.settings = self._json(self.directory.config, self.settings)
        self.job = self._json(self.directory.job, self.job)
        self._starts = session_starts(self.job)
        self.summary = self._json(self.directory.summary, self.summary)
        with contextlib.suppress(OSError):
            status = self._metrics.path.stat()
            self._seen[self._metrics.path] = (status.st_mtime_ns, status.st_size)
        void, rows = self._metrics.read()
        if void:
            self.rows = {kind: [] for kind in self.rows}
            self.best_evaluation = None
            self._first_s, self._newest_s, self._before = 0.0, 0.0, {}
        for row in rows:
            self._take_row(row)
        void, invocations = self._log.read()
        if void:
            self.invocations, self.counts = [], {}
        for each in invocations:
            self._take_invocation(each)
        self.began_s, self.pauses = self._began(), self._pauses()
        self.state = self._state()
        self._unfinished = self._json(self.path / "running.json", self._unfinished)
        # Of a job that was killed nothing runs any more, whatever it wrote last.
        self.unfinished = self._take_unfinished() if self.state in ("running", "unknown") else []

    def _began(self) -> float:
        found = [*self._starts, *([self._first_s] if self._first_s else [])]
        written = self._seen.get(self.directory.config)
        return min(found) if found else written[0] / 1e9 if written else time.time()

    def _pauses(self) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        for start in self._starts:
            begin = self._before.get(start, self._newest_s if self._newest_s < start else 0.0)
            begin = max(begin, found[-1][1] if found else 0.0)
            if 0 < begin < start:
                found.append((begin, start))
        return found

    @property
    def behind(self) -> bool:
        """Whether there is more to read than one look took."""
        return self._metrics.behind or self._log.behind

    @property
    def read_share(self) -> float:
        """How much of what the run has written was read, 0 to 1."""
        size = self._metrics.size + self._log.size
        return (self._metrics.read_bytes + self._log.read_bytes) / size if size else 1.0

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
            value = load_json(path.read_text())
        except FileNotFoundError:
            self._seen.pop(path, None)
            return {}
        except (OSError, ValueError):
            return before
        self._seen[path] = stamp
        return value if isinstance(value, dict) else {}

    def _take_row(self, row: dict[str, Any]) -> None:
        kind, time_s = row.get("kind"), finite(row.get("time_s"))
        kept = self.rows.get(kind) if isinstance(kind, str) else None
        if kept is None or time_s is None or not 0 < time_s < LATEST_S:
            return
        if kind == "round":
            number = finite(row.get("round"))
            if number is None:
                return
            # After --resume a round may be played again: of it and what followed only the newest counts.
            while kept and kept[-1]["round"] >= number:
                kept.pop()
            self._forget_evaluations(number)
        elif kind == "evaluation":
            self._judge(row)
        self._take_time(time_s)
        kept.append(row)
        if len(kept) > MOST_ROWS or (len(kept) % 64 == 0 and len(kept) * _values(row) > MOST_VALUES):
            del kept[1:-1:2]

    def _take_time(self, time_s: float) -> None:
        self._first_s = min(self._first_s or time_s, time_s)
        self._newest_s = max(self._newest_s, time_s)
        for start in self._starts:
            if time_s < start:
                self._before[start] = max(self._before.get(start, 0.0), time_s)

    def _judge(self, row: dict[str, Any]) -> None:
        mean, best = finite(row.get("score_mean")), self.best_evaluation
        if mean is not None and (best is None or mean >= best["score_mean"]):
            self.best_evaluation = row

    def _forget_evaluations(self, number: float) -> None:
        """Those of a round that is played again, and of later ones."""
        kept = self.rows["evaluation"]
        if kept and (finite(kept[-1].get("round")) or 0) >= number:
            kept[:] = [row for row in kept if (finite(row.get("round")) or 0) < number]
            self.best_evaluation = None
            for row in kept:
                self._judge(row)

    def _take_invocation(self, each: dict[str, Any]) -> None:
        times = [finite(each.get(name)) for name in ("queued", "started", "ended")]
        if any(at is None or not 0 < at < LATEST_S for at in times):
            return
        self._take_time(each["queued"])
        self._take_time(each["ended"])
        outcome = each.get("outcome")
        name = outcome if outcome in OUTCOMES else "failed"
        self.counts[name] = self.counts.get(name, 0) + 1
        self.counts["cold"] = self.counts.get("cold", 0) + bool(each.get("cold"))
        self.invocations.append(each)
        if len(self.invocations) > MOST_INVOCATIONS:
            del self.invocations[: MOST_INVOCATIONS // 4]

    def _take_unfinished(self) -> list[dict[str, Any]]:
        now, functions = finite(self._unfinished.get("at_s")), self._unfinished.get("functions")
        ended = {_attempt(each) for each in self.invocations[-2 * MOST_UNFINISHED :]}
        found = []
        for each in functions[:MOST_UNFINISHED] if isinstance(functions, list) else ():
            if not isinstance(each, dict) or (queued := finite(each.get("queued"))) is None or _attempt(each) in ended:
                continue
            started = finite(each.get("started"))
            if now is not None and 0 < queued <= now < LATEST_S and (started is None or queued <= started <= now):
                begun = now if started is None else started
                found.append({**each, "started": begun, "ended": now, "outcome": RUNNING, "cold": False})
        return found

    def _state(self) -> str:
        stamp = self._seen.get(self.directory.summary)
        # A summary of the session before a --resume is older than the job.
        if stamp is not None and stamp[0] / 1e9 >= (finite(self.job.get("started_s")) or 0.0):
            return "ended"
        if self.job.get("host") != socket.gethostname():
            return "unknown"
        pid = finite(self.job.get("pid"))
        began = process_started(int(pid)) if pid else 0
        if began and began == self.job.get("pid_started"):
            return "running"
        return "killed"


def _attempt(invocation: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells an attempt from every other one."""
    return tuple(str(invocation.get(name)) for name in ("request", "attempt", "queued"))


def session_starts(job: Mapping[str, Any]) -> list[float]:
    """When a run's sessions began, as its job.json tells, oldest first."""
    sessions = job.get("sessions")
    given = [*(sessions if isinstance(sessions, list) else ()), job.get("started_s")]
    found = [at for each in given if (at := finite(each)) is not None and 0 < at < LATEST_S]
    return sorted(found)[-MOST_SESSIONS:]


def _values(row: dict[str, Any]) -> int:
    """How many values a row holds, those of lists and maps in it included."""
    return sum(1 + (len(each) if isinstance(each, list | dict | str) else 0) for each in row.values())


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / "config.json").is_file()


def runs_below(path: Path, most: int) -> list[Path]:
    """The run directories that a folder is or holds, the newest `most`, newest first; none that cannot be read."""
    found: list[tuple[float, Path]] = []
    try:
        if is_run(path):
            return [path]
        with os.scandir(path) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    for folder in folders:
        with contextlib.suppress(OSError):  # Removed since, or not ours to read.
            if is_run(folder):
                found.append((folder.stat().st_mtime, folder))
    return [folder for _, folder in sorted(found, reverse=True)[:most]]
