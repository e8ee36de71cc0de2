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
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
