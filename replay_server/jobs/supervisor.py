"""Child processes of a job: started, watched, started again when they die (with a bound), and stopped together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

RESTARTS_PER_MINUTE = 5
"""A part that dies more often than this is not coming back by restarting: the job ends."""
RESTART_DELAY_S = 1.0
EXIT_SERVER_LOST = 5


class PartFailed(Exception):
    """A part ended in a way that restarting does not mend; the message says which, how, and where its log is."""


class Part:
    """One child process, `python -m replay_server.jobs.child`, with its log file and its history of restarts."""

    def __init__(self, name: str, instructions: dict[str, Any], log: Path, restart: bool, threads: int = 0) -> None:
        self.name = name
        self.log = log
        self.restart = restart
        self.restarts = 0
        self.finished = False
        self._instructions = instructions
        self._threads = threads
        self._deaths: deque[float] = deque()
        self._start_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Starts the process and hands it its instructions."""
        self._start_at = None
        # Safe path: the package that is installed, not a folder of that name where the job was started.
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        if self._threads > 0:
            # Set before NumPy and torch are imported: they read it once.
            environment["OMP_NUM_THREADS"] = str(self._threads)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "replay_server.jobs.child"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is the job's to handle
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(self._instructions).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; watch() sees that

    def watch(self) -> int | None:
        """Restarts the process if it died and that is due. Returns the exit code once, when it has just ended.

        Raises PartFailed when it died too often, or if it is not one to restart and failed.
        """
        now = time.monotonic()
        if self._start_at is not None:
            if now >= self._start_at:
                self.start()
            return None
        if self._process is None or self.finished:
            return None
        code = self._process.poll()
        if code is None:
            return None
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.finished = code == 0 and not self.restart
        if self.finished or code == EXIT_SERVER_LOST:
            self._process = None
            return code
        if not self.restart:
            raise PartFailed(f"{self.name} {_ending(code)}; its log is {self.log}{_last_line(self.log)}")
        self._deaths.append(now)
        while now - self._deaths[0] > 60.0:
            self._deaths.popleft()
        if len(self._deaths) > RESTARTS_PER_MINUTE:
            raise PartFailed(
                f"{self.name} died {len(self._deaths)} times within a minute, the last time it {_ending(code)}; "
                f"its log is {self.log}{_last_line(self.log)}"
            )
        self.restarts += 1
        self._start_at = now + RESTART_DELAY_S
        return code

    def ask_to_stop(self) -> None:
        """Closes the lifeline, which tells the process to end; it is not started again."""
        self.restart = False
        self._start_at = None
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, deadline: float) -> bool:
        """Waits for the process until `deadline` (time.monotonic()), then kills it. True if it ended itself."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
            ended = True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            ended = False
        # Only now: an interrupt above must leave it to be waited for again.
        self._process = None
        return ended


def stop_parts(parts: list[Part], grace_s: float) -> list[str]:
    """Asks all parts to stop at once and waits `grace_s` seconds in all; returns the names of those it had to kill."""
    for part in parts:
        part.ask_to_stop()
    deadline = time.monotonic() + grace_s
    return [part.name for part in parts if not part.wait(deadline)]


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f" ({lines[-1].strip()})" if lines else ""
