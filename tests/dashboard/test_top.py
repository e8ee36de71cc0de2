"""`replay-server top` in pipes and for programs, and how the two subcommands answer to what they cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from looked_at import FakeApex, fill

import replay_server as rs
from replay_server.dashboard.top import as_table
from replay_server.dashboard.watch import Watch


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replay_server", *arguments], capture_output=True, text=True, timeout=60, **options
    )


def test_once_in_plain_text(server: rs.Server, client: rs.Client) -> None:
    fill(client, "apex", 100)
    result = run("top", "--once", "--url", server.url)
    assert result.returncode == 0, result.stderr
    assert f"{server.url} · up" in result.stdout
    assert "table apex: 100 of 1,000 items" in result.stdout
    assert "limiter open" in result.stdout


def test_once_for_programs(server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]) -> None:
    fill(client, "apex", 100)
    client.sample("apex", 10)
    job = fake_apex(client, server.url)
    job.write_rows(3)
    result = run("top", "--once", "--json", "--url", server.url, "--logdir", str(job.path))
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    seen = json.loads(line)
    (found,) = seen["servers"]
    about = client.info("apex")
    assert found["state"] == "up"
    assert {name: found["tables"]["apex"][name] for name in ("size", "added", "sampled")} == {
        name: about[name] for name in ("size", "added", "sampled")
    }
    assert found["tables"]["apex"]["added_per_s"] == 0.0
    assert found["latency_us"]["replay.sample"]["p99"] > 0
    (found,) = seen["jobs"]
    assert (found["name"], found["state"], found["newest"]["evaluation"]["score_mean"]) == ("job", "running", 80.0)


def test_once_without_a_server_says_so() -> None:
    result = run("top", "--once", "--url", "redis://127.0.0.1:1")
    assert result.returncode == 5
    assert "lost" in result.stdout
    assert "does not answer" in result.stdout


def test_a_terminal_shows_the_same(server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]) -> None:
    rich = pytest.importorskip("rich.console", reason="rich draws in terminals: pip install 'replay-server[dashboard]'")
    fill(client, "apex", 100)
    job = fake_apex(client, server.url)
    job.write_rows(3)
    watch = Watch([server.url], [job.path])
    for _ in range(3):
        watch.look()
    written = StringIO()
    rich.Console(file=written, width=160).print(as_table(watch))
    watch.close()
    text = written.getvalue()
    assert "CartPole-v1 · Ape-X · seed 7 · running" in text
    assert f"{server.url} · up" in text
    assert "REPLAY.ADD" in text
    assert "apex" in text


def test_a_terminal_is_not_steered_by_names(server: rs.Server, tmp_path: Path) -> None:
    run_directory = tmp_path / "run"
    run_directory.mkdir()
    (run_directory / "config.json").write_text(json.dumps({"env": "\x1b[2Jgone", "actors": 1, "table": "apex"}))
    result = run("top", "--once", "--logdir", str(run_directory))
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert "·[2Jgone" in result.stdout


@pytest.mark.parametrize("name", ["top", "dashboard"])
def test_wrong_use_is_said(name: str, tmp_path: Path) -> None:
    assert run(name, "--help").returncode == 0
    assert run(name, "--url", "http://127.0.0.1").returncode == 2
    missing = run(name, "--logdir", str(tmp_path / "missing"))
    assert missing.returncode == 2
    assert "no such folder" in missing.stderr


def test_the_dashboard_says_what_it_needs(tmp_path: Path) -> None:
    """Where NiceGUI cannot be imported the command names the extra that brings it."""
    program = "import sys; sys.modules['nicegui'] = None; from replay_server.cli import main; "
    program += f"sys.exit(main(['dashboard', '--port', '0', '--logdir', {str(tmp_path)!r}]))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "pip install 'replay-server[dashboard]'" in result.stderr


def test_an_address_in_use_is_said(server: rs.Server, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    result = run("dashboard", "--port", port, "--logdir", str(tmp_path))
    assert result.returncode == 3
    assert "--port 0 takes any free port" in result.stderr


@pytest.mark.parametrize("module", ["replay_server.dashboard.main", "replay_server.dashboard.top"])
def test_the_terminal_view_needs_neither_nicegui_nor_torch(module: str) -> None:
    refused = ("nicegui", "rich", "torch", "tensorboard")
    program = f"import sys\nfor name in {refused}: sys.modules[name] = None\nimport {module}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
