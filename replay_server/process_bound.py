"""What cannot be pickled or copied, since it has a thread, streams or memory of this process."""

from __future__ import annotations

import os
from typing import Any

from .errors import ReplayError


class Staying:
    """Says so in place of Python's own error, which names a lock, and says what to send instead."""

    _send_instead: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} stays in the process that made it: {self._send_instead}")


def check_process(process: int, holder: str, kind: str, how: str = "made") -> None:
    """Raises ReplayError in any process but the one that made the holder: a forked child has not what it needs."""
    if process != os.getpid():
        raise ReplayError(
            f"expected {holder} to be used by process {process}, which {how} it, got process {os.getpid()}, "
            f"forked from it: make another {kind} here"
        )
