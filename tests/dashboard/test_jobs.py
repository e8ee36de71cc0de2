"""The dashboard that a job starts: its address is printed, it goes with the job, and its failure is its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from looked_at import DEADLINE_S

from replay_server.dashboard.main import main as dashboard_main
from replay_server.rl import dashboard_process
from replay_server.rl.dashboard_process import VARIABLE, check_dashboard, start_dashboard
from replay_server.rl.run_directory import RunDirectory

APEX = (
    "apex", "--env", "CartPole-v1", "--actors", "1", "--envs-per-actor", "1",
    "--min-size-to-sample", "100", "--batch-size", "16", "--final-episodes", "0", "--eval-episodes", "1",
)  # fmt: skip
TRAIN = ("train", "--env", "CartPole-v1", "--rounds", "9999", "--actors", "1", "--steps", "64", "--final-episodes", "0")


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return urlopen(url, timeout=DEADLINE_S).status == 200
    return False


@pytest.mark.parametrize("job", [APEX, TRAIN], ids=["apex", "train"])
def test_a_job_has_a_dashboard_that_goes_with_it(
    job: tuple[str, ...], tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    pytest.importorskip("nicegui", reason="the dashboard needs nicegui: pip install 'replay-server[dashboard]'")
    pytest.importorskip("torch", reason="jobs need torch: pip install 'replay-server[rl]'")
    command = [sys.executable, "-m", "replay_server", *job, "--dashboard", "0", "--logdir", str(tmp_path / "run")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    assert running.stdout is not None
    lines: list[str] = []
    try:
        for line in running.stdout:
            lines.append(line)
            if line.startswith("dashboard http://127.0.0.1:"):
                break
        assert lines[-1].startswith("dashboard http://"), "".join(lines)
        url = lines[-1].split()[1]
        running.send_signal(signal.SIGINT)  # not before: how long the dashboard takes to come depends on the machine
        lines += running.stdout
        assert running.wait(DEADLINE_S) == 130, "".join(lines)
    finally:
        running.kill()
        running.stdout.close()
    wait_for(lambda: not answers(url), "the dashboard to end with its job")
    written = json.loads((tmp_path / "run" / "job.json").read_text())
    assert written["kind"] == job[0]
    assert written["pid"] == running.pid
    assert written["server"].startswith("redis://127.0.0.1:")
    if job is APEX:
        assert [part["name"] for part in written["parts"]] == ["learner", "actor 0", "evaluator"]


def test_a_page_answers_while_its_owner_lives_and_where_nobody_looks_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    pytest.importorskip("nicegui", reason="the dashboard needs nicegui: pip install 'replay-server[dashboard]'")
    (tmp_path / "config.json").write_text(json.dumps({"env": "CartPole-v1", "actors": 1, "table": "apex"}))
    told: list[str] = []
    process = start_dashboard("0", tmp_path, None, told.append)
    assert process is not None
    wait_for(lambda: told, "the address")
    url = told[0].split()[1]
    assert answers(url)
    monkeypatch.setattr(dashboard_process, "LEAVING_S", DEADLINE_S)
    process.close()
    assert not answers(url)


def test_what_a_dashboard_cannot_do_is_told_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(dashboard_process.importlib.util, "find_spec", lambda name: None)
    assert start_dashboard("8080", tmp_path, None, told.append) is None
    assert "pip install 'replay-server[dashboard]'" in told.pop()
    monkeypatch.delenv(VARIABLE, raising=False)
    assert start_dashboard("auto", tmp_path, None, told.append) is None
    assert told == []
    monkeypatch.undo()
    # Standard output at its end without an address: whatever went wrong, the log knows.
    monkeypatch.setattr(dashboard_process.sys, "executable", "/bin/false")
    process = start_dashboard("0", tmp_path, None, told.append)
    assert process is not None
    wait_for(lambda: told, "word of its end")
    assert told[0].startswith("no dashboard: its process ended")
    monkeypatch.setattr(dashboard_process.sys, "executable", str(tmp_path / "no such program"))
    told.clear()
    assert start_dashboard("0", tmp_path, None, told.append) is None
    assert told[0].startswith("no dashboard: ")


def test_other_hosts_are_shown_nothing_unless_it_is_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        dashboard_main(["--host", "0.0.0.0", "--port", "0", "--logdir", str(tmp_path)])
    assert "add --allow-remote" in capfd.readouterr().err


def test_off_is_off_and_a_wrong_wish_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    assert start_dashboard("off", tmp_path, None, told.append) is None
    monkeypatch.setenv(VARIABLE, "off")
    assert start_dashboard("auto", tmp_path, None, told.append) is None
    assert told == []
    for wrong in ("on", "-1", "70000", ""):
        with pytest.raises(ValueError, match="auto, off or a port"):
            check_dashboard(wrong)


def test_where_a_job_runs_is_written_without_a_password(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_job("apex", "redis://:secret@127.0.0.1:7000", [{"name": "learner", "running": True, "restarts": 0}])
    text = directory.job.read_text()
    assert "secret" not in text
    written = json.loads(text)
    assert (written["pid"], written["server"]) == (os.getpid(), "redis://127.0.0.1:7000")
    stamp = directory.job.stat().st_mtime_ns
    directory.write_job("apex", "redis://:secret@127.0.0.1:7000", [{"name": "learner", "running": True, "restarts": 0}])
    assert directory.job.stat().st_mtime_ns == stamp, "what has not changed is not written again"
    directory.write_job("apex", "redis://127.0.0.1:7000", [{"name": "learner", "running": False, "restarts": 1}])
    again = json.loads(directory.job.read_text())
    assert again["started_s"] == written["started_s"]
    assert again["parts"][0]["restarts"] == 1
