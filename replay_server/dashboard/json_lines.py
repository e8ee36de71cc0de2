"""A file of JSON objects that somebody else appends to, read as it grows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 1024 * 1024
"""Read at a time; of a longer file the rest comes with the next look. A longer line than that is left out."""


class JsonLines:
    """New rows of a file at each look. A line that is not whole yet waits; one that is no JSON object is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False
        """Whether there was more to read than one look takes."""
        self._offset = 0
        self._file: tuple[int, int] | None = None

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
        file.seek(self._offset)
        piece = file.read(MOST_BYTES)
        whole = piece.rfind(b"\n") + 1
        self.behind = len(piece) == MOST_BYTES
        self._offset += len(piece) if self.behind and not whole else whole
        rows = []
        for line in piece[:whole].splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return void, rows
