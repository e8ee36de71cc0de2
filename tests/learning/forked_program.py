"""`replay-server` with a command line, forked from a process that has imported torch, for test files to import: each
import takes seconds of a core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from replay_server.jobs import fork_server, progress
from replay_server.jobs.fork_server import ForkedProcess, asked

HERE = Path(__file__).resolve().parent
_ours: object = None


class ForkedProgram:
    """As `subprocess.Popen(["replay-server", *words], cwd=folder)`, in a session of its own; it prints into `log`."""

    def __init__(self, words: list[str], folder: Path, log: Path) -> None:
        _have_the_fork_server_find_this_module()
        log.touch()
        self._process = ForkedProcess("replay-server", "forked_program", log)
        self._process.write({"words": words, "folder": str(folder)})
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._process.wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("replay-server", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _have_the_fork_server_find_this_module() -> None:
    global _ours
    if _ours is None or fork_server._server is not _ours:
        fork_server._server = None
        with mock.patch.dict(os.environ, {"PYTHONPATH": str(HERE)}):
            _ours = fork_server.warm_up()


def main() -> int:
    """What the forked process does."""
    from replay_server.cli import main as replay_server

    given = asked()
    os.chdir(given["folder"])
    sys.argv[1:] = given["words"]
    progress.PLAIN_EVERY_S, progress.RATE_WINDOW_S = 0.5, 1.0  # a test would wait for it up to 20 s
    return replay_server(given["words"])
