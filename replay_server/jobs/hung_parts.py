"""Parts of a job that hang: noticed by what they report, and named. `apex` kills and restarts one that stays silent.

`observer` collects the signs of life, and `record` looks at them with every line of progress.
"""

from __future__ import annotations

from typing import Any

SILENT_S = 30.0
"""A part that is silent for this long is named."""
MAKES_NO_UPDATE = "has made no update for {} s, though there are items to sample"
REPORTS_NOTHING = "has reported nothing for {} s"
LONGEST_LOOK_S = 5.0
"""More between two looks counts as this much: the server was away, or the job itself was stopped."""


class Silence:
    """Notices a part that is stopped, or hangs: what it reports stays the same.

    `silent_s`: seconds since it last changed, as far as the part's process ran and the server answered.

    Args:
        told: what is said of the part after `SILENT_S`, with "{}" for the seconds.
        from_start: whether silence counts before the first report of a process, too.
    """

    def __init__(self, told: str = REPORTS_NOTHING, from_start: bool = True) -> None:
        self._told, self._from_start = told, from_start
        self._looked_at = self.silent_s = 0.0
        self._sign: Any = None
        self._counts = self._is_told = False

    def look(self, now: float, sign: Any, running: bool = True) -> str:
        """Takes a sign of the part's life, and whether its process runs; returns what is to be said, or "".

        `sign`: None = none is due.
        """
        passed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        if sign is None or not running:
            self.silent_s, self._counts, self._is_told = 0.0, self._from_start, False
        elif sign != self._sign:
            told = f"goes on after {self.silent_s:.0f} s" if self._is_told else ""
            self._sign, self.silent_s, self._counts, self._is_told = sign, 0.0, True, False
            return told
        elif self._counts:
            self.silent_s += passed
            if not self._is_told and self.silent_s >= SILENT_S:
                self._is_told = True
                return self.told()
        return ""

    def told(self) -> str:
        """For how long the part has been silent."""
        return self._told.format(f"{self.silent_s:.0f}")
