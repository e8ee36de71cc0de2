"""A peer's program in a process of its own, spoken to by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay_server.bench.environments import ENVIRONMENTS, PROGRAMS, is_ready, python_of


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Asks a process to end, and kills it if it has not within 10 s."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Program:
    """One side of a benchmark: a process that answers requests in order. A context manager that ends it.

    Args:
        peer: the program's name, of `programs/peer_NAME.py`.
        environment: the peer's environment whose interpreter runs it; None: this one.
        variables: further environment variables.
        programs: the folder of the program; `programs/` of this package unless told.

    Raises:
        RuntimeError: the environment is not there.
    """

    def __init__(
        self,
        peer: str,
        environment: str | None,
        variables: Mapping[str, str] | None = None,
        programs: Path = PROGRAMS,
    ) -> None:
        if environment is not None and not is_ready(environment):
            raise RuntimeError(f"{peer} has no environment: make it by `{ENVIRONMENTS[environment].made_by}`")
        self.peer = peer
        self._ended = False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        kept = {key: value for key, value in os.environ.items() if environment is None or not key.startswith("PYTHON")}
        python = str(python_of(environment)) if environment else sys.executable
        self._process = subprocess.Popen(
            [python, str(PROGRAMS / "program.py"), peer, str(programs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**kept, "TF_CPP_MIN_LOG_LEVEL": "2", **(variables or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended, or is about to: it no longer answers."""
        return self._ended or self._process.poll() is not None

    def send(self, do: str, **arguments: Any) -> None:
        """Sends a request; `receive` gives its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._ended = True
            raise self._failure("it ended") from None

    def receive(self) -> Any:
        """The answer to the oldest request not yet answered. Raises RuntimeError with what the program said."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._ended = True
            raise self._failure("it ended")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer["answer"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends a request and waits for its answer."""
        self.send(do, **arguments)
        return self.receive()

    def _failure(self, what: str) -> RuntimeError:
        self._errors.seek(0)
        said = self._errors.read()[-2000:]
        return RuntimeError(f"the program of {self.peer} failed: {what}\n{said}")

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
