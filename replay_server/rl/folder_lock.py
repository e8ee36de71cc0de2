"""One process at a time in a folder whose files go on from what the last one left."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUse(RuntimeError):
    """Another process is at work in the folder."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Alone in the folder, which is there: by a lock that goes with its process, however it ends.

    FolderInUse where another process has it.
    """
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{folder}: another process is at work in it") from None
        yield
