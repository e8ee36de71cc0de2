"""Ctrl-C at any moment while a server starts. Of what holds a connection: test_holders.py."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import replay_server as rs

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
]


class Interrupted(BaseException):
    """What the signal's handler raises, as Python's own raises KeyboardInterrupt."""


@pytest.fixture
def striking() -> Iterator[None]:
    def strike(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


def children() -> set[int]:
    """Processes whose parent is this one, but those that have ended."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()) and fields[0] != "Z":
            found.add(int(status.parent.name))
    return found


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_no_server_is_left_behind_where_its_start_was_interrupted(striking, eventually):
    before = children()

    def start_and_stop() -> None:
        with rs.Server() as server:
            assert server.running

    moments, count = random.Random(7), 0
    for _ in range(60):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * 300 ** moments.random())
                start_and_stop()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            count += 1
    assert count >= 20, "too few starts were interrupted for the test to say anything"
    gc.collect()
    eventually(lambda: children() <= before, "every server has ended")
