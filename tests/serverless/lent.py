"""A platform that outlives the job that it is lent to, for test files that run several jobs on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay_server.rl.function_contract import decode_request
from replay_server.serverless.backends.backend import Attempt, Platform, unrecorded


class Lent:
    """`before` and `after` are called with each request that passes."""

    def __init__(self, platform: Platform) -> None:
        self.name, self.memory_mb = platform.name, platform.memory_mb
        self._platform = platform
        self.before: Callable[[Any], Any] = lambda request: None
        self.after: Callable[[Any], Any] = lambda request: None

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        request = decode_request(payload)
        self.before(request)
        found = self._platform.invoke(payload, timeout_s)
        self.after(request)
        return found

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        self._platform.prewarm(count, attempt)

    def close(self) -> None:
        pass
