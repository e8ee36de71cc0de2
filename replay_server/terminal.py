"""What a running job shows: a table that is drawn again in place in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO


class PlainView:
    """A line for what is shown, at most one every `every_s` seconds and a last one, for logs and pipes."""

    def __init__(self, line: Callable[[Any], str], every_s: float, stream: TextIO) -> None:
        self._line = line
        self._every_s = every_s
        self._stream = stream
        self._next = 0.0
        self._unshown: Any = None

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._unshown is not None:
            self.message(self._line(self._unshown))

    def message(self, text: str) -> None:
        """Prints a line, now; nothing where the stream does not take it, such as a log on a full disk."""
        with contextlib.suppress(OSError):
            print(text, file=self._stream, flush=True)

    def show(self, state: Any) -> None:
        """Shows how things are, if it is time to."""
        now = time.monotonic()
        self._unshown = state
        if now >= self._next:
            self._next, self._unshown = now + self._every_s, None
            self.message(self._line(state))


class LiveView:
    """A table (rich) that is drawn again in place, with messages scrolling above it."""

    def __init__(self, table: Callable[[Any], Any], stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._table = table
        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def message(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, state: Any) -> None:
        """Draws the table anew."""
        self._live.update(self._table(state))


def make_view(
    line: Callable[[Any], str], table: Callable[[Any], Any], every_s: float, stream: TextIO | None = None
) -> PlainView | LiveView:
    """A live view where `stream` (standard output) is a terminal and rich is installed, plain lines elsewhere."""
    output = sys.stdout if stream is None else stream
    if not output.isatty():
        return PlainView(line, every_s, output)
    try:
        return LiveView(table, output)
    except ImportError:
        return PlainView(line, every_s, output)
