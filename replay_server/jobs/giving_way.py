"""Actors that take what the learner leaves of this machine's cores.

A core that is not the learner's for a moment is of no use to it then: its threads wait for each other. What actors do
can wait, since the replay ratio holds learner and actors together: where actors fall behind, the learner waits for
them, and they have the cores. So they run in Linux's idle class, whose processes never take a core from others'. On two
cores that made a sixth more updates of 64 screens than processes of one class did.

Other work may keep all cores busy for ever, though, and would leave nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay_server.jobs.supervisor import Part

POSSIBLE = hasattr(os, "SCHED_IDLE") and Path("/proc/self/schedstat").exists()
"""Whether this is Linux, and tells how long threads wait for a core."""
WATCHED_S = 5.0
STARVING = 0.05
"""An actor starves that was ready to run for half the time and more, and ran for less than this share of that. Beside
a learner alone it runs for a third of it or more."""


def give_way() -> None:
    """This process takes no core from processes of other classes from now on."""
    for thread in _threads(os.getpid()):
        with contextlib.suppress(OSError):  # where a container forbids it, they are equals
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


class GivingWay:
    """The actors of a job, until one of them starves: then they are all equals of the learner, for good."""

    def __init__(self, actors: Sequence[Part]) -> None:
        self._actors = actors
        self._seen: dict[int, _Seen] = {}
        self.ended = False

    def look(self) -> str:
        """Looks how they fare, at most every `WATCHED_S` seconds each; what people should know, else ""."""
        if self.ended or not any(self._starves(actor.pid) for actor in self._actors if actor.pid is not None):
            return ""
        for actor in self.end():
            actor.kill()
        return "other work keeps all cores busy: the actors give way to it no longer"

    def end(self) -> list[Part]:
        """The actors give way no longer; those whose processes still do, as where only root may raise them again."""
        self.ended, found = True, []
        for actor in self._actors:
            actor.instruct(gives_way=False)
            try:
                be_equal(actor.pid)
            except OSError:
                found.append(actor)
        return found

    def _starves(self, pid: int) -> bool:
        before = self._seen.get(pid)
        if before is not None and time.monotonic() - before.at < WATCHED_S:
            return False
        now = self._seen[pid] = _Seen.of(pid)
        if before is None:
            return False
        ran, ready = now.ran - before.ran, now.ready - before.ready
        return ready > 0.5 * (now.at - before.at) and ran < STARVING * ready


def be_equal(pid: int | None) -> None:
    """The threads of a process have their share of the cores again. OSError: it cannot be, or only root may."""
    for thread in _threads(pid):
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


@dataclass(frozen=True)
class _Seen:
    """How long the threads of a process ran, and were ready to, each for itself, in seconds."""

    at: float
    ran: float
    ready: float

    @staticmethod
    def of(pid: int) -> _Seen:
        ran = waited = 0
        for thread in _threads(pid):
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                ran, waited = ran + int(fields[0]), waited + int(fields[1])
        return _Seen(time.monotonic(), 1e-9 * ran, 1e-9 * (ran + waited))


def _threads(pid: int | None) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
