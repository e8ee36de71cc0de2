"""A file of JSON objects that somebody else appends to, read as it grows."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 1024 * 1024
"""Read at a time; of a longer file the rest comes with the next look. A longer line than that is left out."""

_DECODER = json.JSONDecoder(parse_constant=lambda name: None)


def finite(value: Any, otherwise: float | None = None) -> float | None:
    """A value that is a finite number, or `otherwise`: what others write may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    try:
        return value if math.isfinite(value) else otherwise
    except OverflowError:  # An integer that no float holds.
        return otherwise


def load_json(text: str | bytes) -> Any:
    """A JSON value, with null for NaN and the infinities, which are none. ValueError where it is none."""
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None


class JsonLines:
    """New rows of a file at each look. A line that is not whole yet waits; one that is no JSON object is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False
        """Whether there was more to read than one look takes."""
        self.size = 0
        """Bytes of the file as it was seen last."""
        self._offset = 0
        self._file: tuple[int, int] | None = None

    @property
    def read_bytes(self) -> int:
        """Bytes of it that were read."""
        return self._offset

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether what was read before is void, new rows): a file that was cut or replaced is read from its start."""
        try:
            with open(self.path, "rb") as file:
                return self._read(file)
        except OSError:
            return False, []

    def _read(self, file: Any) -> tuple[bool, list[dict[str, Any]]]:
        status = os.fstat(file.fileno())
        void = self._file is not None and (
            self._file != (status.st_dev, status.st_ino) or status.st_size < self._offset
        )
        if void:
            self._offset = 0
        self._file = (status.st_dev, status.st_ino)
        self.size = status.st_size
        file.seek(self._offset)
        piece = file.read(MOST_BYTES)
        whole = piece.rfind(b"\n") + 1
        self.behind = len(piece) == MOST_BYTES
        self._offset += len(piece) if self.behind and not whole else whole
        rows = []
        for line in piece[:whole].splitlines():
            try:
                row = load_json(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return void, rows
