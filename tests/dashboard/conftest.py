"""Servers, run directories as jobs leave them, and dashboards over both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looked_at import DEADLINE_S, Dashboard, FakeApex, prioritized

import replay_server as rs


@pytest.fixture
def wait_for() -> Callable[[Callable[[], Any], str], Any]:
    """Waits until a condition holds and returns what it gave; fails with the text after a minute."""

    def wait(condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for {what}"
            time.sleep(0.1)
        return found

    return wait


@pytest.fixture
def server() -> Iterator[rs.Server]:
    with rs.Server([prioritized("apex")]) as running:
        yield running


@pytest.fixture
def fake_apex(tmp_path: Path) -> Callable[..., FakeApex]:
    def make(client: rs.Client | None = None, url: str = "", actors: int = 3, name: str = "job") -> FakeApex:
        return FakeApex(tmp_path / name, client, url, actors)

    return make


@pytest.fixture
def open_dashboard(tmp_path: Path) -> Iterator[Callable[..., Dashboard]]:
    opened: list[Dashboard] = []

    def start(*arguments: str) -> Dashboard:
        opened.append(Dashboard(*arguments, folder=tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.stop()
