"""What a function's work is given beside its request: the server, the deadline, and where its time and bytes go."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator

import replay_server as rs
from replay_server.rl.function_contract import Request


class DeadlineOver(Exception):
    """The work cannot be done by its deadline; nothing of it is kept."""


class StalePolicy(Exception):
    """The policy that was to act exactly is no longer the server's newest: the round is over."""


class FunctionContext:
    """One attempt at a request, in one process.

    Args:
        client: of the request's server; a warm function keeps it.
        cold: whether this is the process's first invocation.
    """

    def __init__(self, request: Request, client: rs.Client, cold: bool = False) -> None:
        self.request = request
        self.client = client
        self.cold = cold
        self.attempt = f"{request.request}:{uuid.uuid4().hex[:12]}"
        """Names what only this attempt writes."""
        self.phases: dict[str, float] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.committed = False
        """Whether the work is done and can no longer be taken back; see `commit`."""
        self._undo: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a part of the work; parts of one name add up."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began

    def left_s(self) -> float | None:
        """Seconds to the deadline, at least 0; None without one."""
        deadline = self.request.deadline
        return max(0.0, deadline - time.time()) if deadline else None

    def check_deadline(self) -> None:
        """DeadlineOver where the deadline has passed. Called between the parts of the work, and before it is kept."""
        if self.left_s() == 0.0:
            late_s = time.time() - self.request.deadline
            raise DeadlineOver(
                f"{self.request.request}: its deadline has passed, {late_s:.3g} s ago by this function's clock: give "
                "it more time, or less work, and see that this clock and the caller's agree"
            )

    def commit(self) -> None:
        """Says that the work counts from now on, whatever becomes of this attempt: nothing is taken back any more, and
        its deadline no longer holds. For work that another attempt would find done."""
        self.committed = True
        self._undo.clear()

    def undo(self, step: Callable[[], object]) -> None:
        """What takes back something that this attempt wrote, run if the attempt is not the one that counts."""
        self._undo.append(step)

    def discard(self) -> None:
        """Takes everything back, the last first; what cannot be is left to its expiry, or to its table's bounds."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()
