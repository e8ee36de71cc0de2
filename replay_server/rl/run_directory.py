"""The files of one run in one folder: config.json, job.json, metrics.jsonl, scores, checkpoints, replay, logs, …"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Protocol, TypeVar

from replay_server.connection import url_without_password
from replay_server.rl.folder_lock import FolderInUse, alone_in
from replay_server.whole_file import write_whole


class RunSettings(Protocol):
    """What any job's settings have: a dataclass, whose other fields are the job's own."""

    env: str
    seed: int
    logdir: str | None
    resume: bool


Settings = TypeVar("Settings", bound=RunSettings)

SCORE_COLUMNS: tuple[str, ...] = (
    "minutes", "transitions", "frames", "updates", "version", "episodes", "mean", "std", "min", "max",
)  # fmt: skip
MOST_SESSIONS = 100
NOT_WRITTEN = "cannot write to the run directory"
"""Said before the error, of whatever a full disk does not take."""
BEST = "best"
"""Folder, beside the step_N folders of checkpoints, of the network that evaluations judged best."""


class RunDirectory:
    """Paths and writers of a run's folder. `path` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.config = self.path / "config.json"
        self.job = self.path / "job.json"
        self.summary = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.replay = self.path / "replay"
        self.logs = self.path / "logs"
        self.scores = self.path / "scores.csv"
        self.plot = self.path / "scores.png"
        self._began_s = time.time()
        self._job: dict[str, Any] = {}
        self._sessions: list[float] | None = None

    def create(self, settings: RunSettings, alone: contextlib.ExitStack | None = None) -> None:
        """Makes the folder and writes config.json, without a server's password if there is a URL with one in it.

        FileExistsError if it holds a run and this is not `resume`, or if another process is at work in it; OSError,
        with what to do, if it cannot be written.

        Args:
            alone: keeps other processes that give one out of the folder until it is closed.
        """
        self.check(settings)
        values = dataclasses.asdict(settings)  # pyright: ignore[reportArgumentType]
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            if alone is not None:
                alone.enter_context(alone_in(self.path))
            write_json(self.config, {name: _without_password(value) for name, value in values.items()})
        except FolderInUse as error:
            raise FileExistsError(f"{error}: end that, or give another --logdir") from None
        except OSError as error:
            raise OSError(
                f"--logdir: expected a folder that can be written, got {self.path} ({error.strerror})"
            ) from error

    def check(self, settings: RunSettings) -> None:
        """Raises FileExistsError if the folder holds a run and this is not `resume`."""
        if self.config.exists() and not settings.resume:
            raise FileExistsError(
                f"{self.path} already holds a run: add --resume to go on with it, or give another --logdir"
            )

    def add_measured(self, values: dict[str, Any]) -> None:
        """Notes in config.json, as `measured`, what a part chose by measuring this machine; a resumed run chooses anew.

        Nothing is written where there is no config.json: such a folder is no run's.
        """
        if self.config.exists():
            write_json(self.config, {**json.loads(self.config.read_text()), "measured": values})

    def measured(self) -> dict[str, Any]:
        """What `add_measured` noted; {} before it did."""
        return json.loads(self.config.read_text()).get("measured", {}) if self.config.exists() else {}

    def write_job(self, kind: str, server: str, parts: list[dict[str, Any]] | None = None) -> None:
        """Writes job.json, for who looks at a run from outside: this process, when it and (of a run that was
        resumed) the sessions before it began, the server, its parts.

        Args:
            kind: apex, train, or the part that it is of: learner, evaluator.
            server: its URL; a password in it is left out.
            parts: of each process of the job name, running, restarts.
        """
        values = {
            "kind": kind,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_started": process_started(os.getpid()),
            "started_s": self._began_s,
            "sessions": self._earlier_sessions(),
            "server": _without_password(server),
            "parts": parts or [],
        }
        if values != self._job:
            self._job = values
            write_json(self.job, values)

    @property
    def session(self) -> int:
        """0 in a run's first session, in each later one a number of its own: when it began, in whole seconds."""
        return int(self._began_s) if self._earlier_sessions() else 0

    def _earlier_sessions(self) -> list[float]:
        """As job.json told before this session wrote it."""
        if self._sessions is None:
            self._sessions = _sessions_before(self.job)
        return self._sessions

    def settings(self, kind: type[Settings], given: dict[str, Any]) -> Settings:
        """Returns the settings (dataclass `kind`) of the run that is here, with the fields in `given` changed.

        FileNotFoundError if there is no run, ValueError if its config.json is not one of ours or `given` has another
        environment.
        """
        if not self.config.exists():
            raise FileNotFoundError(f"--resume: {self.path} holds no run (no config.json): check --logdir")
        values = json.loads(self.config.read_text())
        values.pop("measured", None)
        names = {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
        unknown = sorted(set(values) - names)
        if len(unknown) > len(values) / 2:
            raise ValueError(
                f"--resume: {self.path} holds a run of another command ({self._command()}): use that, or check --logdir"
            )
        if "env" in given and given["env"] != values.get("env"):
            raise ValueError(
                f"--resume: {self.path} holds a run of {values.get('env')}, which cannot go on with --env "
                f"{given['env']}: leave --env out, or begin another run with another --logdir"
            )
        if unknown:
            raise ValueError(f"{self.config} has settings that this version does not know: {', '.join(unknown)}")
        return kind(**{**values, **given})

    def _command(self) -> str:
        """Which command began the run that is here."""
        try:
            return f"replay-server {json.loads(self.job.read_text())['kind']}"
        except (OSError, ValueError, KeyError):
            return "which one is not told"

    def saved_steps(self) -> list[int]:
        """The learner steps of the checkpoints that are here, oldest first."""
        return sorted(int(path.name[5:]) for path in self.checkpoints.glob("step_*") if path.name[5:].isdigit())

    def append_score(self, evaluation: dict[str, Any]) -> None:
        """Adds one evaluation (keys `SCORE_COLUMNS`) to scores.csv."""
        new = not self.scores.exists()
        with open(self.scores, "a", newline="") as handle:
            writer = csv.DictWriter(handle, SCORE_COLUMNS, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(evaluation)

    def draw_scores(self, title: str) -> bool:
        """Draws scores.csv against transitions into scores.png; False without scores or without matplotlib."""
        if not self.scores.exists():
            return False
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return False
        with open(self.scores, newline="") as handle:
            rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(handle)]
        transitions = [row["transitions"] for row in rows]
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(
            transitions,
            [row["mean"] - row["std"] for row in rows],
            [row["mean"] + row["std"] for row in rows],
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(transitions, [row["mean"] for row in rows], marker=".")
        axes.set(title=title, xlabel="transitions added", ylabel="score (mean ± standard deviation of full games)")
        axes.grid(alpha=0.3)
        figure.savefig(self.plot, dpi=120)
        return True


def _sessions_before(path: Path) -> list[float]:
    """When the earlier sessions of a run began, as its job.json tells; the newest `MOST_SESSIONS`."""
    try:
        before = json.loads(path.read_text())
        began = [float(each) for each in (*before.get("sessions", ()), before["started_s"])]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
    return began[-MOST_SESSIONS:]


def process_started(pid: int) -> int:
    """When a process of this host began, in the kernel's ticks; 0 where there is no such process.

    With it a process id names one process only, however often the kernel has used the number.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def new_run_path(settings: RunSettings, part: str = "") -> Path:
    """Returns the folder a run, or a part of it, is written to: --logdir, or runs/<env>-<seed>-<time>[-<part>]."""
    if settings.logdir is not None:
        return Path(settings.logdir)
    env = re.sub(r"[^A-Za-z0-9.-]+", "-", settings.env)
    return Path("runs") / f"{env}-{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}{f'-{part}' if part else ''}"


def _without_password(value: Any) -> Any:
    """A URL keeps its place, and loses what must not be read from a file."""
    return url_without_password(value) if isinstance(value, str) and "://" in value else value


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON file whole, for people to read."""
    write_whole(path, json.dumps(values, indent=2) + "\n")
