"""The dashboard of a job: a process of its own, which only looks, and whose failure is nobody's but its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from replay_server.cluster_address import parse_address
from replay_server.connection import PASSWORD_VARIABLE

VARIABLE = "REPLAY_SERVER_DASHBOARD"
"""What `auto` means here: auto, off or a port."""
LEAVING_S = 0.5
"""That a job waits at its end for a dashboard nobody looks at."""


def check_dashboard(wish: str) -> None:
    """ValueError where it is not auto, off or a port."""
    if wish not in ("auto", "off") and not (wish.isdecimal() and int(wish) <= 65535):
        raise ValueError(f"--dashboard: expected auto, off or a port, got {wish!r}")


class DashboardProcess:
    """`replay-server dashboard` over one run directory. It ends when it is closed, or with this process."""

    def __init__(self, folder: Path, port: int, log: Path, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "replay_server.dashboard", "--logdir", str(folder), "--port", str(port)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                [*command, "--lifeline"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **environment, "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # a terminal's Ctrl-C is the job's to handle
            )
        self._closed = False
        self._log = log

    def tell(self, message: Callable[[str], None]) -> None:
        """Passes on the address as soon as there is one, or that there will be none; in a thread."""

        def read() -> None:
            stream = self._process.stdout
            assert stream is not None
            line = stream.readline().decode("utf-8", "replace").strip()
            with contextlib.suppress(Exception):  # Whoever showed messages may be gone.
                if line:
                    message(line)
                elif not self._closed:
                    message(f"no dashboard: its process ended; its log is {self._log}")
            stream.read()
            stream.close()
            self._process.wait()

        threading.Thread(target=read, name="dashboard", daemon=True).start()

    def close(self) -> None:
        """Lets it end: it shows the end of the job to who has a page open; else it is gone at once."""
        self._closed = True
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING_S)


def start_dashboard(
    wish: str, folder: Path, url: str | None, message: Callable[[str], None]
) -> DashboardProcess | None:
    """Starts the dashboard of a run directory, if it is wished for; None where not, or where it cannot be.

    Args:
        wish: off, a port, or auto: any free port, where NiceGUI is installed and `VARIABLE` says nothing else.
        url: of the job's server; a password in it is handed over in the child's environment.
        message: is given the address, or why there is none.
    """
    asked = wish != "auto"
    wish = wish if asked else os.environ.get(VARIABLE) or "auto"
    try:
        check_dashboard(wish)
        if wish == "off":
            return None
        if importlib.util.find_spec("nicegui") is None:
            if asked:
                message("no dashboard: it needs nicegui: pip install 'replay-server[dashboard]'")
            return None
        password = parse_address(url).password if url else None
        environment = {PASSWORD_VARIABLE: password} if password is not None else {}
        port = 0 if wish == "auto" else int(wish)
        process = DashboardProcess(folder, port, folder / "logs" / "dashboard.log", environment)
    except (OSError, ValueError) as error:
        message(f"no dashboard: {error}")
        return None
    process.tell(message)
    return process
