"""Metrics of a run: one JSON object per line in metrics.jsonl, and the same numbers for TensorBoard."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Metrics:
    """Appends rows to `folder`/metrics.jsonl; scalars also go to TensorBoard's event files where it is installed.

    Learner and job write to the same file: each row is one append of one line, which the kernel does not interleave.
    """

    def __init__(self, folder: Path, kind: str, tensorboard: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._kind = kind
        self._cut = False
        """Whether the last row was cut short, by a full disk."""
        self._file = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._events = _event_file(folder / "tensorboard", kind) if tensorboard else None

    def write(self, step: int, values: Mapping[str, Any], kind: str | None = None) -> None:
        """Writes one row: its kind (learner, progress, evaluation), the time in seconds, the learner step, values.

        OSError where the disk does not take it. Event files that could not be written get no more.
        """
        kind = kind or self._kind
        row = {"kind": kind, "time_s": round(time.time(), 3), "step": step, **values}
        line = json.dumps({name: _json_number(value) for name, value in row.items()}) + "\n"
        content = ("\n" * self._cut + line).encode()
        written = os.write(self._file, content)
        self._cut = written < len(content)
        if self._cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._events is not None:
            try:
                self._events.add(step, _flat(kind, values))
            except OSError:  # its thread has ended for good
                self._close_events()
                raise

    def close(self) -> None:
        """Flushes and closes; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._close_events()

    def _close_events(self) -> None:
        """What TensorBoard's files do not take any more is not worth a run."""
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
            self._events = None


def read_metrics(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the rows of one kind, oldest first; a last line cut short by a crash is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row.get("kind") == kind:
            rows.append(row)
    return rows


def _json_number(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, in maps too."""
    if isinstance(value, Mapping):
        return {name: _json_number(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(above: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Maps in maps as one, with paths for names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(f"{above}/{name}", value) if isinstance(value, Mapping) else {f"{above}/{name}": value}
    return flat


class _EventFile:
    """TensorBoard's event file, written with TensorBoard's own writer: the job need not import torch for it."""

    def __init__(self, folder: Path, suffix: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder), flush_secs=10, filename_suffix=f".{suffix}")

    def add(self, step: int, scalars: Mapping[str, Any]) -> None:
        values = [
            self._summary.Value(tag=tag, simple_value=float(value))
            for tag, value in scalars.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


def _event_file(folder: Path, suffix: str) -> _EventFile | None:
    try:
        return _EventFile(folder, suffix)
    except ImportError:
        return None
