"""``invocations.jsonl``: one line for each attempt at a function, as it ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation

NAME = "invocations.jsonl"
"""Of the file, in a run directory."""


def invocation_line(invocation: Invocation) -> str:
    """One line of the log, with its end. Times keep all their digits: the line gives the same invocation again."""
    return json.dumps(dataclasses.asdict(invocation)) + "\n"


def read_invocations(path: str | Path) -> list[Invocation]:
    """The invocations of a log, or of the run directory that it lies in, in its order.

    FileNotFoundError without one; ValueError names a line that is none. A last line that a killed writer did not finish
    is left out.
    """
    path = Path(path)
    return list(_read(path / NAME if path.is_dir() else path))


def _read(path: Path) -> Iterator[Invocation]:
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _invocation(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines):
                return
            raise ValueError(f"{path}, line {number}: expected an invocation, got {line[:80]!r}: {error}") from error


def _invocation(values: dict[str, Any]) -> Invocation:
    measured = values.pop("measured", None)
    return Invocation(**values, measured=None if measured is None else Measured(**measured))
