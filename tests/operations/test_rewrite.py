"""CONFIG REWRITE: what CONFIG SET has changed goes into the configuration file, and all else in it stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import replay_server as rs
from replay_server.build_info import native_settings
from replay_server.config import ConfigError, load_config, tomllib
from replay_server.rewrite import ALIASES, rewritten

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Begins a server with a file of this text; its URL."""
    running: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> str:
        (tmp_path / "replay.toml").write_text(text)
        command = [sys.executable, "-m", "replay_server", "serve", "--config", "replay.toml", "--port", "0", *arguments]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
        stdout = running[-1].stdout
        assert stdout is not None
        return stdout.readline().split()[1].removeprefix("url=")

    yield begin
    for process in running:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


# ---- the text --------------------------------------------------------------------------------------------------------


def test_a_line_is_changed_in_its_place_and_all_else_stays():
    text = (
        '# The server of the lab.\nhost = "127.0.0.1"   # here\nmaxmemory = "1gb"\n\n[config]\n'
        '# before\ntimeout   = 10 # seconds\nsave = "3600 1"\n\n[[tables]] # one\nname = "t"\n'
    )
    changes = {"timeout": "20", "save": 'a "b" \\ \x7f', "maxmemory": "2147483648"}
    assert rewritten(text, changes) == (
        '# The server of the lab.\nhost = "127.0.0.1"   # here\nmaxmemory = 2147483648\n\n[config]\n'
        '# before\ntimeout   = 20 # seconds\nsave = "a \\"b\\" \\\\ \\u007f"\n\n[[tables]] # one\nname = "t"\n'
    )


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("", "\n[config]\ntimeout = 5\n"[1:]),
        ("port = 1\n", "port = 1\n\n[config]\ntimeout = 5\n"),
        ("[config]", "[config]\ntimeout = 5\n"),
        ("[config]\n# timeout = 0\n# more\n", "[config]\n# timeout = 0\ntimeout = 5\n# more\n"),
        (
            "[config]\nsave = ''\n\n# Tables.\n[[tables]]\n",
            "[config]\nsave = ''\ntimeout = 5\n\n# Tables.\n[[tables]]\n",
        ),
        ("[config]\n'timeout' = 1\n", "[config]\n'timeout' = 5\n"),
        ("[config]\ntimeout = 'x#y'#z\n", "[config]\ntimeout = 5#z\n"),
        ("[ config ] # c\n", "[ config ] # c\ntimeout = 5\n"),
    ],
)
def test_a_setting_that_is_not_there_finds_its_place(text: str, new: str):
    assert rewritten(text, {"timeout": "5"}) == new
    assert rewritten(new, {"timeout": "5"}) == new


def test_what_is_shown_in_the_file_of_the_project_is_set_below_its_comment(repository: Path, tmp_path: Path):
    """Every setting that can change live, all at once."""
    text = (repository / "deploy" / "replay-server.toml").read_text()
    changes = {each["name"]: each["default"] for each in native_settings() if each["live"] and each["effect"]}
    del changes["requirepass"]
    new = rewritten(text, changes)
    added = [line for line in new.splitlines() if line not in text.splitlines()]
    assert [line for line in new.splitlines() if line not in added] == text.splitlines()
    assert len(added) >= len(changes) - len(ALIASES)  # of two names for one setting the first is written
    for above, line in zip(new.splitlines(), new.splitlines()[1:], strict=False):
        if line in added:
            assert above.startswith("# " + line.split(" = ")[0] + " = "), line
    (tmp_path / "new.toml").write_text(new)
    settings = load_config(tmp_path / "new.toml")
    assert settings.maxmemory == 0
    assert settings.config["timeout"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "config = { timeout = 1 }\n",
        "config.timeout = 1\n",
        '[config]\ntimeout = """\n1"""\n',
        '[config]\n"time\\u006fut" = 1\n',
    ],
)
def test_what_only_a_person_can_change_is_refused_with_what_to_write(text: str):
    assert tomllib.loads(text)["config"]
    with pytest.raises(ConfigError, match="timeout = 5"):
        rewritten(text, {"timeout": "5"})


def test_the_name_that_counts_is_changed_of_two_for_one_setting():
    changes = {"log-level": "info", "loglevel": "verbose"}
    assert rewritten("[config]\n", changes) == '[config]\nlog-level = "info"\n'
    assert rewritten('[config]\nloglevel = "debug"\n', changes) == '[config]\nloglevel = "verbose"\n'
    both = '[config]\nloglevel = "debug"\nlog-level = "error"\n'
    assert rewritten(both, changes) == '[config]\nloglevel = "verbose"\nlog-level = "info"\n'


# ---- the command -----------------------------------------------------------------------------------------------------


def test_what_config_set_changed_is_there_after_a_restart(serve: Serve, tmp_path: Path):
    text = '# mine\nmaxmemory = "1gb"\n\n[config]\ntimeout = 10 # s\nclient-output-backlog = "64mb"\n'
    file = tmp_path / "replay.toml"
    with redis.Redis.from_url(serve(text)) as client:
        assert client.config_rewrite()
        assert file.read_text() == text  # nothing was changed, in whatever way it is written
        os.chmod(file, 0o640)
        client.config_set("timeout", 20, "notify-keyspace-events", "KEA", "maxmemory", "2gb", "loglevel", "verbose")
        assert client.config_rewrite()
        assert file.read_text() == (
            '# mine\nmaxmemory = 2147483648\n\n[config]\ntimeout = 20 # s\nclient-output-backlog = "64mb"\n'
            'log-level = "info"\nnotify-keyspace-events = "AKE"\n'
        )
        assert file.stat().st_mode & 0o777 == 0o640
        assert [path.name for path in tmp_path.iterdir()] == ["replay.toml"]
        client.config_set("timeout", 10)  # what was written counts from then on
        assert client.config_rewrite()
        kept = file.read_text()
        assert "timeout = 10 # s" in kept
        before = client.config_get("*")
    with redis.Redis.from_url(serve(kept)) as client:
        assert {**client.config_get("*"), "port": None} == {**before, "port": None}


def test_why_the_file_is_not_rewritten_is_told_and_it_stays(serve: Serve, tmp_path: Path):
    text = "[config]\ntimeout = 10\n"
    file = tmp_path / "replay.toml"
    with redis.Redis.from_url(serve(text, "--maxclients", "50", "--log-level", "warning")) as client:

        def refused() -> str:
            with pytest.raises(redis.ResponseError) as caught:
                client.execute_command("CONFIG", "REWRITE")
            return str(caught.value)

        client.config_set("maxclients", 60)
        assert "command line" in refused()
        client.config_set("maxclients", 50, "loglevel", "notice")
        assert "log-level = warning" in refused()
        client.config_set("loglevel", "warning", "requirepass", "secret")
        assert "password_file" in refused()
        client.config_set("requirepass", "", "timeout", 30)
        assert file.read_text() == text
        file.write_text("[config\n")
        assert "replay.toml" in refused()
        assert file.read_text() == "[config\n"
        file.unlink()
        assert "No such file" in refused()
        file.write_text(text)
        assert client.config_rewrite()
        assert file.read_text() == "[config]\ntimeout = 30\n"


def test_whom_it_follows_is_there_after_a_restart(serve: Serve, tmp_path: Path):
    file = tmp_path / "replay.toml"
    with redis.Redis.from_url(serve(text := "[config]\n# mine\ntimeout = 10\n")) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        assert client.config_rewrite()
        assert file.read_text() == f'{text}replicaof = "127.0.0.1 1"\n'
    with redis.Redis.from_url(serve(file.read_text())) as client:
        assert client.role()[:3] == [b"slave", b"127.0.0.1", 1]
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert client.config_rewrite()
        assert file.read_text() == text


def test_a_transaction_does_not_wait_and_what_it_set_last_is_written(serve: Serve, tmp_path: Path):
    file = tmp_path / "replay.toml"
    with redis.Redis.from_url(serve('[config]\nslaveof = "127.0.0.1 1" # here\n')) as client:
        for port in (2, 3):  # as Sentinel sends it
            with client.pipeline(transaction=True) as pipeline:
                pipeline.execute_command("SLAVEOF", "127.0.0.1", port).config_rewrite()
                assert all(pipeline.execute())
        wanted = '[config]\nslaveof = "127.0.0.1 3" # here\n'
        deadline = time.monotonic() + 60
        while file.read_text() != wanted:
            assert time.monotonic() < deadline, file.read_text()
            time.sleep(0.02)


def test_a_client_that_is_unblocked_is_told_that_the_file_is_rewritten_nevertheless(serve: Serve, tmp_path: Path):
    with redis.Redis.from_url(serve("[config]\n")) as client:
        waiting = client.connection_pool.get_connection()
        waiting.send_command("CLIENT", "ID")
        waiting_id = waiting.read_response()
        client.config_set("timeout", 7)
        waiting.send_command("CONFIG", "REWRITE")  # runs a program, which takes a while
        deadline = time.monotonic() + 60
        while not client.client_unblock(waiting_id, error=True):
            assert time.monotonic() < deadline
        with pytest.raises(redis.ResponseError, match="Rewriting config file continues unless the server stops"):
            waiting.read_response()
        while (tmp_path / "replay.toml").read_text() != "[config]\ntimeout = 7\n":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        waiting.disconnect()


def test_without_a_file_it_is_refused_as_in_redis():
    with rs.Server() as server, rs.Client(server.url) as client, pytest.raises(redis.ResponseError) as caught:
        client.redis.config_rewrite()
    assert str(caught.value) == "The server is running without a config file"
