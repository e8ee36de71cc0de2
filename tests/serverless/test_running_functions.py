"""What runs between two lines of the log: told by the backend, written beside it, drawn, and gone with its job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_backend import Backends, FunctionDouble, LoopDouble, answer, backends, request

from replay_server.dashboard import gantt
from replay_server.dashboard.run_source import RUNNING, RunSource
from replay_server.rl.function_contract import Request
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import FunctionLost
from replay_server.serverless.invocation_log import invocation_line, read_invocations
from replay_server.serverless.running_functions import NAME, RunningFunctions

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return found


@pytest.fixture(params=[FunctionDouble, LoopDouble], ids=["threads", "loop"])
def backend(request: pytest.FixtureRequest) -> Backends:
    """Makes a backend on a function: with a thread for each invocation, or on a loop."""
    return backends(request.param)


def test_a_backend_tells_what_runs_and_what_waits(backend: Backends) -> None:
    go, attempts = threading.Event(), 0

    def function(to: Request, timeout_s: float) -> bytes:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise FunctionLost("gone")
        go.wait(DEADLINE_S)
        return answer(to)

    with backend(function, concurrency=1) as (functions, records):
        futures = [functions.submit(request(name)) for name in ("first", "second")]
        wait_for(lambda: functions.unfinished()[0].attempt == 2 and functions.unfinished()[0].started)
        first, second = functions.unfinished()
        assert (first.request, first.kind, first.round, first.attempt) == ("first", "actor", 3, 2)
        assert first.started is not None
        assert first.queued == records[0].ended <= first.started
        assert (second.request, second.attempt, second.started) == ("second", 1, None)
        go.set()
        for future in futures:
            future.result(DEADLINE_S)
        wait_for(lambda: not functions.unfinished())
    assert [(each.request, each.attempt, each.queued) for each in records][1:] == [
        ("first", 2, first.queued),
        ("second", 1, second.queued),
    ]


def test_instances_that_are_made_warm_are_among_them(backend: Backends) -> None:
    seen: list[Any] = []

    def function(to: Request, timeout_s: float) -> bytes:
        seen.extend(functions.unfinished())
        return answer(to)

    with backend(function) as (functions, _):
        functions.prewarm(1)
        assert [each.kind for each in seen] == ["warm"]
        assert functions.unfinished() == []


def test_they_are_drawn_while_they_run_and_count_once_when_they_have_ended(backend: Backends, tmp_path: Path) -> None:
    directory, go = RunDirectory(tmp_path), threading.Event()
    (tmp_path / "config.json").write_text(json.dumps({"env": "CartPole-v1", "algo": "ppo", "rounds": 5}))
    directory.write_job("train", "redis://127.0.0.1:1")
    run = RunSource(tmp_path)

    def look() -> list[dict[str, Any]]:
        run.look()
        return run.unfinished

    def function(to: Request, timeout_s: float) -> bytes:
        go.wait(DEADLINE_S)
        return answer(to)

    with (
        backend(function, concurrency=1) as (functions, records),
        RunningFunctions(tmp_path, functions.unfinished),
    ):
        futures = [functions.submit(request(name)) for name in ("first", "second")]
        running, waiting = wait_for(
            lambda: len(found := look()) == 2 and found[0]["ended"] > found[0]["started"] and found
        )
        assert (running["request"], running["outcome"]) == ("first", RUNNING)
        bars = gantt.bars(run.unfinished, run.elapsed)
        colors = {bar["name"].partition(" ")[0]: bar["value"][3] for bar in bars}
        assert colors == {"first": gantt.COLORS["actor"] + gantt.PALER, "second": gantt.COLORS["queued"]}
        assert waiting["started"] == waiting["ended"]
        # The log has it now; the file beside it is of before.
        ended = {"request": "first", "attempt": 1, "queued": running["queued"], "started": running["started"]}
        (tmp_path / "invocations.jsonl").write_text(json.dumps({**ended, "ended": time.time(), "outcome": "ok"}) + "\n")
        assert [each["request"] for each in look()] == ["second"]
        # A job that is gone has nothing that runs.
        job = json.loads(directory.job.read_text())
        directory.job.write_text(json.dumps({**job, "pid_started": 1}))
        assert look() == []
        assert run.state == "killed"
        go.set()
        for future in futures:
            future.result(DEADLINE_S)
    assert not (tmp_path / NAME).exists()
    # Its readers have what they always had: every attempt once, as it ended.
    (tmp_path / "invocations.jsonl").write_text("".join(map(invocation_line, records)))
    assert [each.request for each in read_invocations(tmp_path)] == ["first", "second"]


def test_a_folder_that_cannot_be_written_stops_nothing(backend: Backends, tmp_path: Path) -> None:
    with backend(lambda to, timeout_s: answer(to)) as (functions, _):
        writer = RunningFunctions(tmp_path / "missing", functions.unfinished)
        functions.submit(request("first")).result(DEADLINE_S)
        writer.close()
        writer.close()
    assert not (tmp_path / "missing").exists()
