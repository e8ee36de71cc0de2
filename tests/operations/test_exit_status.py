"""Exit statuses, as docs/operations.md lists them, of real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import replay_server as rs

COMMAND = [sys.executable, "-m", "replay_server"]


def status(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and last line of what went wrong."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_0_stopped_by_a_signal(how: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "serve", "--port", "0"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        process.send_signal(how)
        assert process.wait(60) == 0


def test_1_a_failure() -> None:
    code, said = status("serve", "--port", "0", REPLAY_SERVER_EXECUTABLE="/nowhere/replay-server-kernel")
    assert (code, said) == (1, "replay-server: cannot run /nowhere/replay-server-kernel: No such file or directory")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], [], ["serve", "--prot", "1"], ["serve", "--port", "70000"], ["serve", "--config", "/nowhere.toml"],
     ["serve", "--host", "0.0.0.0", "--port", "0"], ["serve", "--port", "0", "--dir", "/nowhere"],
     ["serve", "--port", "0", "--tls-auth-clients", "perhaps"], ["bench", "nonsense"], ["completion"]],
)  # fmt: skip
def test_2_wrong_usage(arguments: list[str]) -> None:
    code, said = status(*arguments)
    assert code == 2
    assert said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("port = 'any'", "port must be int"),
        ("[config]\nappendfsync = 'never'", "setting appendfsync = never"),
        ("[config]\nrename-command = 'nonsense other'", "there is no command 'nonsense'"),
        ("[config]\ntls-port = 0\ntls-cert-file = 'nowhere.pem'", "nowhere.pem"),
        ("[config]\naclfile = 'nowhere.acl'", "nowhere.acl"),
        ("[[tables]]\nname = 't'\ncapacity = 0\n[tables.signature]\nx = { dtype = 'int64' }", "capacity"),
    ],
)  # fmt: skip
def test_a_check_finds_what_a_start_would_refuse(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "replay.toml").write_text(text)
    code, said = status("serve", "--config", str(tmp_path / "replay.toml"), "--dir", str(tmp_path), "--check")
    assert code in (1, 2)
    assert why in said
    assert os.listdir(tmp_path) == ["replay.toml"]


def test_a_check_of_what_is_in_order_neither_listens_nor_writes(repository: Path, tmp_path: Path) -> None:
    """Also beside the server that it is for: on its port, and in its folder."""
    file = repository / "deploy" / "replay-server.toml"
    with rs.Server(directory=tmp_path, config={"appendonly": "yes"}) as server:
        before = sorted(os.listdir(tmp_path))
        done = subprocess.run(
            [*COMMAND, "serve", "--config", str(file), "--port", server.url.rpartition(":")[2], "--dir", str(tmp_path),
             "--check"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "the settings are in order\n"), done.stderr
        assert sorted(os.listdir(tmp_path)) == before


def test_3_the_address_is_in_use() -> None:
    with rs.Server() as server:
        code, said = status("serve", "--port", server.url.rpartition(":")[2])
    assert code == 3
    assert "another server has it" in said


def test_4_a_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.snapshot").write_bytes(b"RPLYSNAP")
    code, said = status("serve", "--port", "0", "--dir", str(tmp_path), "--restore", "torn.snapshot")
    assert code == 4
    assert "torn.snapshot" in said


@pytest.fixture
def actor() -> list[str]:
    pytest.importorskip("gymnasium")
    return [*COMMAND, "actor", "--server"]


def test_5_the_server_was_lost(actor: list[str]) -> None:
    with rs.Server() as server:
        url = server.url
    done = subprocess.run([*actor, url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 5, done.stderr
    assert "replay server lost" in done.stderr


def test_130_interrupted(actor: list[str]) -> None:
    with rs.Server() as server, subprocess.Popen([*actor, server.url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "looking for a run on redis://127.0.0.1" in process.stdout.readline()
        assert "no run yet" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_page_lists_those_of_the_code(repository: Path) -> None:
    """No file of the package ends with another status than the page knows."""
    page = (repository / "docs" / "operations.md").read_text()
    table = page.partition("| status |")[2].partition("\n\n")[0]
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {0, 1, 2, 3, 4, 5, 130}
    used = set()
    for folder in ("replay_server", "serverless"):
        for path in (repository / folder).rglob("*.py"):
            for values in re.findall(r"^EXIT_\w+(?:, EXIT_\w+)* = ([\d, ]+)$", path.read_text(), re.MULTILINE):
                used |= {int(value) for value in values.split(", ")}
    native = (repository / "native" / "server" / "process" / "command_line.h").read_text()
    used |= {int(value) for value in re.findall(r"EXIT_\w+ = (\d+)", native)}
    assert used <= listed
    assert len(used) > 5


def test_130_where_the_interrupt_left_an_exec(tmp_path: Path) -> None:
    """An interrupt amid an import often leaves an exec(): after it CPython would end by SIGINT, not by the status."""
    (tmp_path / "sitecustomize.py").write_text(
        "import replay_server.cli\n"
        "def main():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        return replay_server.cli.EXIT_INTERRUPTED\n"
        "replay_server.cli.main = main\n"
    )
    assert status(PYTHONPATH=str(tmp_path)) == (130, "")
