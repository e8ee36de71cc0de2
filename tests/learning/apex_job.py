"""A job as users start it, watched from outside: its processes, what it prints, what it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import replay_server as rs

SMALL = [
    "--env", "CartPole-v1", "--actors", "2", "--envs-per-actor", "2", "--min-size-to-sample", "200",
    "--hidden", "16", "--eval-episodes", "2", "--eval-every-updates", "200", "--final-episodes", "2",
    "--precision", "float32", "--targets-ahead", "off",
]  # fmt: skip
QUICKLY_TOLD = {"replay_server.jobs.progress.PLAIN_EVERY_S": 0.5}
"""Tests that wait for what a job prints would wait up to 10 s each time, with two cores at work."""
LONGEST_S = 600.0
"""It only ends a test that hangs: a loaded machine takes many times as long as a quiet one."""


class Job:
    """`replay-server apex` in a child process, with its output in a file and its temporary files in a folder.

    `constants`: module.NAME → value, of the job's own process, for what takes minutes otherwise.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        temporary: str = "t",
        constants: Mapping[str, float] | None = None,
        settings: Sequence[str] = SMALL,
    ) -> None:
        self.run = folder / "run"
        self.temporary = folder / temporary
        self.temporary.mkdir(exist_ok=True)
        self.output = folder / "output"
        with open(self.output, "ab") as output:
            self._from = output.tell()
            program = _program({**QUICKLY_TOLD, **(constants or {})})
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "--logdir", str(self.run), *settings, *words],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What it has printed itself, without a job of which it is the resumed one."""
        return self.output.read_bytes()[self._from :].decode()

    def children(self) -> dict[int, str]:
        """Process ids of the job's parts and servers that are alive, with their command lines."""
        parents, lines = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    if fields[0] != "Z":
                        parents[int(entry.name)] = int(fields[1])
                        lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except (OSError, IndexError):
                    continue
        own = [pid for pid, parent in parents.items() if parent == self.process.pid]
        helpers = [pid for pid in own if "replay_server.jobs.fork_server" in lines[pid]]
        forked = [pid for pid, parent in parents.items() if parent in helpers]
        return {pid: lines[pid] for pid in (*own, *forked) if pid not in helpers}

    def wait_for(self, what: str, timeout_s: float = LONGEST_S) -> re.Match[str]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if match := re.search(what, self.text):
                return match
            assert self.process.poll() is None, self.text
            time.sleep(0.1)
        raise AssertionError(f"no {what!r} in time:\n{self.text}")

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        return self.process.wait(timeout_s)

    def summary(self) -> dict:
        return json.loads((self.run / "summary.json").read_text())


def _program(constants: Mapping[str, float]) -> str:
    lines = ["import importlib, sys"]
    for path, value in constants.items():
        module, _, name = path.rpartition(".")
        lines.append(f"setattr(importlib.import_module({module!r}), {name!r}, {value!r})")
    lines += ["from replay_server.jobs.apex import main_apex", "sys.exit(main_apex(sys.argv[1:]))"]
    return "\n".join(lines)


def processes_of(job: Job, part: str) -> list[int]:
    """Ids of the job's processes that write this part's log."""
    return [pid for pid in job.children() if Path(f"/proc/{pid}/fd/1").resolve().name == f"{part}.log"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def wait_for_updates(job: Job, more: int = 50) -> int:
    """Waits until the learner has made `more` updates than its last report says; their number."""
    with rs.Client(address_of(job), reconnect_timeout=LONGEST_S) as client:

        def updates() -> int:
            told: Any = client.redis.hget("apex:learner", "updates")
            return int(told or 0)

        before = updates()
        wait_until(lambda: updates() >= before + more or job.process.poll() is not None)
        assert job.process.poll() is None, job.text
        return updates()


def address_of(job: Job) -> str:
    return job.wait_for(r"server (redis(?:\+cluster)?://\S+)")[1]


def gone(processes: dict[int, str]) -> bool:
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in processes):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
