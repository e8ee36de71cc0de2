"""Functions in this very process, one after the other: nothing is started, so that short jobs cost no more than work.

For jobs whose times come from a clock (`replay_server.serverless.job_clock`). The functions are the same ones, with the
same server; only a time limit cannot be kept, and a function that ends its process ends this one.
"""

from __future__ import annotations

from replay_server.serverless.backends.backend import Attempt, unrecorded
from replay_server.serverless.function import handle


class InProcessPlatform:
    """A `Platform` for a `Backend` of concurrency 1; it may be lent to one job after another.

    Args:
        memory_mb: what an instance is reckoned to have.
    """

    name = "in-process"

    def __init__(self, memory_mb: int = 1024) -> None:
        self.memory_mb = memory_mb

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function; its time limit is not kept."""
        return handle(payload)

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """There is but one instance, and it is warm."""

    def close(self) -> None:
        """Nothing was started."""
