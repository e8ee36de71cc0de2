"""What cannot be pickled or copied, since it has a thread, streams or memory of this process."""

from __future__ import annotations

from typing import Any


class Staying:
    """Says so in place of Python's own error, which names a lock, and says what to send instead."""

    _send_instead: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} stays in the process that made it: {self._send_instead}")
