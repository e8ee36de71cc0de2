"""Files that are replaced whole: at any time the old one or the new one is there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """The file is the one before, or this one, whole, even if the machine fails; on return it is this one. OSError if
    it cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # another process may write it at the same time
    with open(partial, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
