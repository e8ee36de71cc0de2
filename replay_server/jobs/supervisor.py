"""Processes of a job: started, watched, started again when they die (with a bound), and stopped together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from replay_server.jobs.fork_server import ForkedProcess

RESTARTS_PER_MINUTE = 5
"""A part, or the server, that dies more often than this is not coming back by restarting: the job ends."""
RESTART_DELAY_S = 1.0
EXIT_FAILED = 1
"""Of a part that would fail the same way again, with settings that cannot be."""
EXIT_SERVER_LOST = 5
DIVERGED = 71
"""Of a part whose learning has diverged: it would do so again from where it was."""


class PartFailed(Exception):
    """A part ended in a way that restarting does not mend; the message says which, how, and where its log is."""


class PartDiverged(PartFailed):
    """Going on with the same settings would not mend it either."""


class Deaths:
    """How often something has died."""

    def __init__(self) -> None:
        self._at: deque[float] = deque()

    def count(self) -> int | None:
        """Counts a death that was noticed now; how many there were within a minute, if those are too many."""
        now = time.monotonic()
        self._at.append(now)
        while now - self._at[0] > 60.0:
            self._at.popleft()
        return len(self._at) if len(self._at) > RESTARTS_PER_MINUTE else None


class PartProcess(Protocol):
    """A process that runs a part, somewhere."""

    @property
    def pid(self) -> int | None:
        """On this machine; None elsewhere."""
        ...

    def poll(self) -> int | None:
        """Its exit code, None while it runs; negative: the signal that ended it."""
        ...

    def hang_up(self) -> None:
        """Tells it to end. May be called again, and when it has ended."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end; whether it came."""
        ...

    def kill(self) -> None:
        """Ends it at once; returns when it has ended."""
        ...


class ChildProcess:
    """`replay_server.jobs.child` on this machine; standard input is its instructions and its lifeline."""

    def __init__(self, instructions: dict[str, Any], log: Path) -> None:
        self._process = ForkedProcess(log.stem, "replay_server.jobs.child", log)
        self.pid: int | None = self._process.pid
        self._process.write(instructions)

    def poll(self) -> int | None:
        return self._process.wait(0.0)

    def hang_up(self) -> None:
        self._process.hang_up()

    def wait(self, timeout_s: float) -> bool:
        return self._process.wait(timeout_s) is not None

    def kill(self) -> None:
        self._process.kill()


Launch = Callable[[dict[str, Any], Path], PartProcess]
"""Starts a part, with its instructions and its log file."""


class Part:
    """One part of a job: its process, its log file and its history of restarts. `launch` says where it runs.

    A part that dies is started again, with `restarts` in its instructions; one whose exit code is 0 is done. The job
    has failed when one that `ends` it has the exit code `EXIT_FAILED` or `DIVERGED`.
    """

    def __init__(
        self,
        name: str,
        instructions: dict[str, Any],
        log: Path,
        ends: bool = False,
        launch: Launch = ChildProcess,
    ) -> None:
        self.name = name
        self.log = log
        self.ends = ends
        self.restarts = 0
        self.finished = False
        self._instructions = instructions
        self._launch = launch
        self._deaths = Deaths()
        self._start_at: float | None = None
        self._process: PartProcess | None = None

    @property
    def running(self) -> bool:
        """Whether its process was running when it was last looked at."""
        return self._process is not None and self._start_at is None

    @property
    def pid(self) -> int | None:
        """Of its process, where that is on this machine and was running when it was last looked at."""
        return self._process.pid if self._process is not None and self._start_at is None else None

    def instruct(self, **changes: Any) -> None:
        """Changes the instructions that it is started with the next time."""
        self._instructions = {**self._instructions, **changes}

    def kill(self) -> None:
        """Ends the process at once; `watch` starts it again."""
        if self._process is not None and self._start_at is None:
            self._process.kill()

    def start(self) -> None:
        """Starts the process with its instructions. Raises PartFailed where there can be none."""
        self._start_at = None
        instructions = {**self._instructions, "restarts": self.restarts}
        try:
            self._process = self._launch(instructions, self.log)
        except OSError as error:
            raise PartFailed(f"{self.name} could not be started: {error}") from error

    def watch(self) -> int | None:
        """Restarts the process if it died and that is due. Returns the exit code once, when it has just ended.

        Raises PartFailed when it died too often, or would fail again.
        """
        now = time.monotonic()
        if self._start_at is not None:
            if now >= self._start_at:
                self.start()
            return None
        if self._process is None or self.finished:
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._process.hang_up()
        self.finished = code == 0
        if self.finished:
            self._process = None
            return code
        if self.ends and code == DIVERGED:
            raise PartDiverged(f"{self.name} has diverged; its log is {self.log}{_last_line(self.log)}")
        if self.ends and code == EXIT_FAILED:
            raise PartFailed(f"{self.name} {_ending(code)}; its log is {self.log}{_last_line(self.log)}")
        if (deaths := self._deaths.count()) is not None:
            raise PartFailed(
                f"{self.name} died {deaths} times within a minute, the last time it {_ending(code)}; "
                f"its log is {self.log}{_last_line(self.log)}"
            )
        self.restarts += 1
        self._start_at = now + RESTART_DELAY_S
        return code

    def ask_to_stop(self) -> None:
        """Closes the lifeline, which tells the process to end; it is not started again."""
        self._start_at = None
        if self._process is not None:
            self._process.hang_up()

    def wait(self, deadline: float) -> bool:
        """Waits for the process until `deadline` (time.monotonic()), then kills it. True if it ended itself."""
        if self._process is None:
            return True
        ended = self._process.wait(max(0.0, deadline - time.monotonic()))
        if not ended:
            self._process.kill()
        # Only now: an interrupt above must leave it to be waited for again.
        self._process = None
        return ended


def stop_parts(parts: list[Part], grace_s: float) -> list[str]:
    """Asks all parts to stop at once and waits `grace_s` seconds in all; returns the names of those it had to kill."""
    for part in parts:
        part.ask_to_stop()
    deadline = time.monotonic() + grace_s
    return [part.name for part in parts if not part.wait(deadline)]


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f" ({lines[-1].strip()})" if lines else ""
