"""``running.json``: the attempts at functions that have no end yet, for who looks at a job from outside.

`invocations.jsonl` stays the record: it has every attempt once, when it has ended. This file has what is between. It is
written again every second while a function runs, and is gone with the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from replay_server.rl.run_directory import write_json
from replay_server.serverless.backends.backend import Unfinished

NAME = "running.json"
"""Of the file, in a run directory."""
EVERY_S = 1.0
MOST = 512
"""Attempts written down, the oldest: a page has no room for more."""


class RunningFunctions:
    """Writes them down in a thread of its own, until closed; a context manager. A disk that is full stops nothing.

    Args:
        unfinished: `Backend.unfinished`.
    """

    def __init__(self, folder: Path, unfinished: Callable[[], Sequence[Unfinished]]) -> None:
        self._path = folder / NAME
        self._unfinished = unfinished
        self._shown: Sequence[Unfinished] = ()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="running functions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes the file away; safe to call twice."""
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def __enter__(self) -> RunningFunctions:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            now = self._unfinished()[:MOST]
            if now or self._shown:
                values = {"at_s": time.time(), "functions": [dataclasses.asdict(each) for each in now]}
                with contextlib.suppress(OSError):
                    write_json(self._path, values)
            self._shown = now
