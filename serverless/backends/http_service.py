"""One functions-framework service on loopback, seen from who started it: it runs one invocation at a time."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from replay_server.serverless.backends.worker_process import TAIL_BYTES, worker_environment
from replay_server.serverless.cloud_event import LIFELINE, TOKEN

ENTRY = Path(__file__).parents[1] / "entry_http.py"
HOST = "127.0.0.1"
LOOK_EVERY_S = 0.03
LAST_WORDS_S = 1.0
"""How long a service that hung up may take to end, so that its exit status is its own."""


class ServiceDied(Exception):
    """The service ended, or never began; the message tells how."""


class HttpService:
    """A service; used by one thread at a time, but for `kill`.

    Args:
        token: what it asks for.
        environment: variables on top of those that every worker process gets.
    """

    def __init__(self, token: str, environment: Mapping[str, str]) -> None:
        self.instance = uuid.uuid4().hex
        self.calls = 0
        self.port = _free_port()
        self._token = token
        self._tail = b""
        self._directory = tempfile.mkdtemp(prefix="replay-function-")
        self._lifeline, theirs = socket.socketpair()
        own = {
            "THREADS": "1",
            "WORKERS": "1",
            "PYTHONSAFEPATH": "1",
            TOKEN: token,
            LIFELINE: "1",
        }
        command = [sys.executable, "-m", "functions_framework", "--source", str(ENTRY), "--target", "handle"]
        command += ["--signature-type", "http", "--host", HOST, "--port", str(self.port)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=worker_environment(self._directory, self.instance, {**environment, **own}),
                start_new_session=True,  # it has a child: both are ended as one group
            )
        except BaseException:
            self._lifeline.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        finally:
            theirs.close()
        self._reader = threading.Thread(target=self._read_printed, name="http-printed", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, deadline: float) -> None:
        """Waits until it answers, until `deadline` (time.monotonic()).

        TimeoutError; ServiceDied, also where another program has the port.
        """
        while self.alive:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(HOST, self.port, timeout=left_s)
                with contextlib.closing(connection):
                    connection.request("GET", "/", headers={"Authorization": f"Bearer {self._token}"})
                    said = connection.getresponse().read(200)
                if said == self.instance.encode():
                    return
                raise ServiceDied(f"another program answers on port {self.port}")
            time.sleep(LOOK_EVERY_S)
        raise ServiceDied(self.obituary())

    def obituary(self) -> str:
        """How it ended, with what it had printed last; waits a little for that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_S)
        status = self._process.returncode
        told = "it lives" if status is None else f"it ended with exit status {status}"
        if status is not None:
            self._reader.join(LAST_WORDS_S)
        text = self._tail.decode(errors="replace").strip()
        return told + (f"; it had printed last:\n{text}" if text else "")

    def kill(self) -> None:
        """Ends it and what it started, at once, from any thread; `end` is still to be called."""
        # Also where its first process has ended: its child may live on, and the group with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends it, waits for that, and removes its directory."""
        self.kill()
        self._process.wait()
        self._lifeline.close()
        self._reader.join(LAST_WORDS_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read_printed(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            while data := os.read(printed.fileno(), 1 << 16):
                self._tail = (self._tail + data)[-TAIL_BYTES:]


def _free_port() -> int:
    # Another program may take it before the service does: `wait_ready` sees that.
    with socket.create_server((HOST, 0)) as found:
        return found.getsockname()[1]
