"""A run's metrics for Weights & Biases: what is in metrics.jsonl, sent on as it is written.

One process follows the file, whoever writes it: learner, job and evaluator are several. Nothing is lost when the
network or the library fails: the file is the record, and a run that goes on (--resume) goes on where it was.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replay_server.whole_file import write_whole

MODES = ("off", "offline", "online")
PROJECT = "replay-server"
STATE = "wandb.json"
"""In the run directory: the run's id there, and how many bytes of metrics.jsonl it has."""


def check_wandb(mode: str) -> None:
    """Raises ValueError for a mode that is none, or one that needs the library where it is not installed."""
    if mode not in MODES:
        raise ValueError(f"--wandb: expected {', '.join(MODES)}, got {mode}")
    if mode != "off" and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--wandb {mode} needs wandb: pip install 'replay-server[wandb]'")


class WandbMirror:
    """Follows the metrics of one run directory; `poll` now and then, `close` at the end.

    Args:
        folder: run directory; files of offline runs go to its folder wandb/ (`wandb sync` sends them).
        mode: offline or online; the project is WANDB_PROJECT, or replay-server.
        on_message: told once when it fails; the run goes on without.
    """

    def __init__(self, folder: Path, mode: str, on_message: Callable[[str], None]) -> None:
        self._folder, self._on_message = folder, on_message
        self._rows = folder / "metrics.jsonl"
        state = self._state()
        self._done_bytes = int(state.get("bytes", 0))
        self._kinds: set[str] = set()
        self._run: Any = None
        with self._guarded():
            import wandb  # pyright: ignore[reportMissingImports]

            config = folder / "config.json"
            self._run = wandb.init(
                dir=str(folder),
                mode="offline" if mode == "offline" else "online",
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.name,
                id=state.get("id"),
                resume="allow" if state.get("id") else None,
                config=json.loads(config.read_text()) if config.exists() else {},
                settings=wandb.Settings(console="off", silent=True),
            )
            self._keep()

    def poll(self) -> None:
        """Sends on the whole lines that have come since."""
        if self._run is None or not self._rows.exists():
            return
        with self._guarded():
            with open(self._rows, "rb") as file:
                file.seek(self._done_bytes)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            for line in whole.splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    self._log(json.loads(line))
            if whole:
                self._done_bytes += len(whole)
                self._keep()

    def close(self) -> None:
        """Sends the rest; safe to call twice."""
        self.poll()
        if self._run is not None:
            with self._guarded():
                self._run.finish()
            self._run = None

    def _log(self, row: Mapping[str, Any]) -> None:
        kind = str(row.get("kind", "row"))
        if kind not in self._kinds:
            self._kinds.add(kind)
            # Each kind has steps of its own: updates of the learner, rounds, progress of the job.
            self._run.define_metric(f"{kind}/step")
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        self._run.log(_numbers(kind, {name: value for name, value in row.items() if name != "kind"}))

    def _state(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self._folder / STATE).read_text()))
        return {}

    def _keep(self) -> None:
        write_whole(self._folder / STATE, json.dumps({"id": self._run.id, "bytes": self._done_bytes}))

    @contextlib.contextmanager
    def _guarded(self):
        try:
            yield
        except Exception as error:  # it is others' code, and the run is worth more than its picture
            self._run = None
            self._on_message(f"Weights & Biases: {error}; the run goes on without, its numbers are in {self._rows}")


def _numbers(above: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by path; maps in maps are one."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _numbers(f"{above}/{name}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[f"{above}/{name}"] = value
    return flat


def start_wandb(mode: str, folder: Path, on_message: Callable[[str], None]) -> WandbMirror | None:
    """None where it is off."""
    return None if mode == "off" else WandbMirror(folder, mode, on_message)
