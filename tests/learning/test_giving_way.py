"""Actors in the idle class, and what becomes of them where other work leaves them nothing: real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replay_server.jobs import giving_way
from replay_server.jobs.giving_way import GivingWay
from replay_server.jobs.supervisor import Part

pytestmark = pytest.mark.skipif(not giving_way.POSSIBLE, reason="Linux alone has an idle class and tells of waiting")

BUSY = "import os, sys\n{first}\nprint(flush=True)\nwhile True: pass"
GIVES_WAY = "from replay_server.jobs.giving_way import give_way; give_way()"


class Busy:
    """A process that never rests (`replay_server.jobs.supervisor.PartProcess`)."""

    def __init__(self, instructions: dict[str, Any], log: Path) -> None:
        first = GIVES_WAY if instructions["gives_way"] else ""
        self._process = subprocess.Popen([sys.executable, "-c", BUSY.format(first=first)], stdout=subprocess.PIPE)
        self.pid: int | None = self._process.pid
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def poll(self) -> int | None:
        return self._process.poll()

    def hang_up(self) -> None:
        pass

    def wait(self, timeout_s: float) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    monkeypatch.setattr(giving_way, "WATCHED_S", 1.0)
    part = Part("actor 0", {"gives_way": True}, tmp_path / "log", launch=Busy)
    part.start()
    yield part
    part.wait(0.0)


@pytest.fixture
def other_work() -> Iterator[None]:
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        pytest.skip("the tests themselves run in the idle class, and so would the other work")
    cores = sorted(os.sched_getaffinity(0))
    spinners = [subprocess.Popen([sys.executable, "-c", BUSY.format(first="")]) for _ in cores]
    yield
    for spinner in spinners:
        spinner.kill()
        spinner.wait()


def classes(part: Part) -> set[int]:
    return {os.sched_getscheduler(int(name)) for name in os.listdir(f"/proc/{part.pid}/task")}


def first_news(found: GivingWay, within_s: float) -> str:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if news := found.look():
            return news
        time.sleep(0.1)
    return ""


def test_an_actor_is_of_the_idle_class(actor: Part) -> None:
    assert classes(actor) == {os.SCHED_IDLE}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a process again")
def test_one_that_is_to_end_is_an_equal(actor: Part) -> None:
    """On a busy machine it would not end in time."""
    assert GivingWay([actor]).end() == []
    assert classes(actor) == {os.SCHED_OTHER}


@pytest.mark.usefixtures("other_work")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a process again")
def test_one_that_starves_is_an_equal_from_then_on(actor: Part) -> None:
    found = GivingWay([actor])
    assert "other work keeps all cores busy" in first_news(found, 30.0)
    assert classes(actor) == {os.SCHED_OTHER}
    assert actor.watch() is None, "it was not ended for that"
    assert first_news(found, 2.0) == "", "said once"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL])
def test_one_that_cannot_be_raised_is_told_of(actor: Part, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fails(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sched_setscheduler", fails)
    assert GivingWay([actor]).end() == [actor]


@pytest.mark.usefixtures("other_work")
def test_where_that_is_forbidden_it_is_started_again_as_an_equal(actor: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    monkeypatch.setattr("replay_server.jobs.supervisor.RESTART_DELAY_S", 0.0)
    first = actor.pid
    assert first_news(GivingWay([actor]), 30.0)
    assert actor.watch() == -9
    assert actor.watch() is None
    assert actor.pid != first
    assert classes(actor) == {os.SCHED_OTHER}


def test_one_that_waits_for_something_else_does_not_starve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_way, "WATCHED_S", 0.3)
    part = Part("actor 0", {"gives_way": True}, tmp_path / "log", launch=Busy)
    part.start()
    assert part.pid is not None
    os.kill(part.pid, signal.SIGSTOP)
    os.waitpid(
        part.pid, os.WUNTRACED
    )  # it may have had to wait for a core until it stopped; it is not ready to run now
    try:
        assert first_news(GivingWay([part]), 1.5) == ""
    finally:
        part.wait(0.0)


def test_an_actor_that_is_gone_is_none_that_starves(actor: Part) -> None:
    found = GivingWay([actor])
    actor.kill()
    assert first_news(found, 2.5) == ""
