"""Few descriptors (ulimit -n): fewer clients are served, which is said, and what the server needs is kept back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import replay_server as rs

# The limit is hard: root may not raise it either, without the capability to.
LIMITED = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.executable, [sys.executable, "-m", "replay_server", "serve", "--port", "0", *sys.argv[2:]])
"""


@contextlib.contextmanager
def start(folder: Path, limit: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LIMITED, str(limit), "--dir", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()  # passed on to the server


@contextlib.contextmanager
def serve(folder: Path, limit: int, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with start(folder, limit, *options) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1].removeprefix("url="), process


@pytest.mark.parametrize(("limit", "options", "most"), [
    (64, (), 40), (64, ("--admin-port", "0"), 24), (100, ("--admin-port", "0", "--metrics-port", "0"), 44),
    (127, (), 103), (128, (), 64), (1000, (), 936), (1000, ("--maxclients", "50"), 50), (30, ("--maxclients", "5"), 5),
])  # fmt: skip
def test_fewer_clients_are_let_in_and_that_is_said(tmp_path, limit, options, most):
    with serve(tmp_path, limit, *options) as (url, process):
        with rs.Client(url) as client:
            assert client.redis.config_get("maxclients") == {"maxclients": str(most)}
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    lowered = "--maxclients" not in options
    assert (f"the system allows {limit} descriptors, so maxclients is now {most}" in said) == lowered, said


def test_full_of_clients_the_server_still_writes_files_and_turns_others_away(
    tmp_path: Path, open_raw: Callable[[str], Any]
):
    with serve(tmp_path, 64) as (url, _):
        clients = [open_raw(url) for _ in range(40)]
        assert [client.command("PING") for client in clients] == ["PONG"] * 40
        refused = open_raw(url)
        assert str(refused.reply()) == "max number of clients reached"
        first = clients[0]
        assert first.command("SET", "key", "value") == "OK"
        assert first.command("REPLAY.SAVE", "full").endswith(b"/full.snapshot")
        assert first.command("CONFIG", "SET", "appendonly", "yes") == "OK"
        for number in (1, 2, 3):
            deadline = time.monotonic() + 60
            while f"aof_rewrites:{number}\r\n".encode() not in first.command("INFO", "persistence"):
                assert time.monotonic() < deadline, first.command("INFO", "persistence")
                time.sleep(0.01)
            assert first.command("REPLAY.SAVE", "full").endswith(b"/full.snapshot")
            if number < 3:
                assert "tarted" in first.command("BGREWRITEAOF")
        assert first.command("REPLAY.RESTORE", "full")[0].startswith(b"restored full.snapshot")
        said = first.command("INFO", "persistence")
        assert b"snapshots_failed:0\r\n" in said
        assert b"aof_last_bgrewrite_status:ok\r\n" in said


@pytest.mark.parametrize("limit", [20, 24])
def test_too_few_descriptors_to_serve_anyone_stop_the_start(tmp_path: Path, limit: int):
    with start(tmp_path, limit) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert f"the system allows {limit} descriptors (ulimit -n), expected at least 25" in said
