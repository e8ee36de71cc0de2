"""One process at a time in a folder whose files go on from what the last one left."""

from __future__ import annotations

import errno
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What a file system without locks answers."""


class FolderInUse(RuntimeError):
    """Another process is at work in the folder."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Alone in the folder, which is there: by a lock that goes with its process, however it ends.

    FolderInUse where another process has it. Where the file system has no locks, it says so and goes on.
    """
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{folder}: another process is at work in it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            text = f"{folder} cannot be locked ({error.strerror}): see to it that no other process works in it"
            print(text, file=sys.stderr, flush=True)
        yield
