"""How long the methods of a buffer take: what the examples with replaced buffers report for either."""

from __future__ import annotations

import functools
import time
from typing import Any


class Clock:
    """Processor time of this process, of which some was spent in the methods that `timed` watches."""

    def __init__(self) -> None:
        self._began = time.process_time()
        self.watched_s = 0.0
        self.calls = 0

    def timed(self, kind: type, *methods: str) -> type:
        """A subclass of `kind` whose named methods are watched."""

        def watch(method: Any) -> Any:
            @functools.wraps(method)
            def watched(*arguments: Any, **options: Any) -> Any:
                began = time.process_time()
                try:
                    return method(*arguments, **options)
                finally:
                    self.watched_s += time.process_time() - began
                    self.calls += 1

            return watched

        return type(kind.__name__, (kind,), {name: watch(getattr(kind, name)) for name in methods})

    def __str__(self) -> str:
        """processor time 41.2 s, of it 1.3 s in 20000 calls of the buffer"""
        spent = time.process_time() - self._began
        return f"processor time {spent:.1f} s, of it {self.watched_s:.2f} s in {self.calls} calls of the buffer"
