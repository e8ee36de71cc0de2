"""What the server says on its standard error: an event a line, as text or as JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import redis

import replay_server as rs
from replay_server.server import find_executable

TABLE = rs.Table("t", 10, {"k": rs.Column("int64")})


def json_server(level: str, **more: Any) -> rs.Server:
    return rs.Server([TABLE], config={"log-format": "json", "log-level": level, **more.pop("config", {})}, **more)


def events(server: rs.Server) -> list[dict[str, Any]]:
    """What it has said so far: whoever reads a file while it is written may see the beginning of a line."""
    return [json.loads(line) for line in server.log().splitlines(keepends=True) if line.endswith("\n")]


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def log_in(server: rs.Server, user: bytes, password: bytes) -> None:
    """As anybody may try to, and is refused."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as stranger:
        words = (b"AUTH", user, password)
        stranger.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        assert stranger.recv(4096).startswith(b"-WRONGPASS")


def named(server: rs.Server, event: str) -> list[dict[str, Any]]:
    return [one for one in events(server) if one["event"] == event]


def test_a_server_that_is_well_says_nothing_unless_asked_to():
    with rs.Server([TABLE]) as server, rs.Client(server.url) as client:
        client.info("t")
    assert server.log() == ""


def test_json_lines_tell_time_level_event_message_and_fields(tmp_path):
    with json_server("debug", directory=tmp_path) as server:
        with rs.Client(server.url) as client:
            client.create_table(rs.Table("made", 10, {"k": rs.Column("int64")}))
            client.redis.execute_command("REPLAY.DROP", "made")
            client.checkpoint("kept")
        wait_for(lambda: named(server, "client_gone"))
        found = events(server)
        for one in found:
            assert {"time", "level", "program", "pid", "event", "message"} <= set(one)
            assert abs(datetime.fromisoformat(one["time"].replace("Z", "+00:00")).timestamp() - time.time()) < 3600
            assert one["pid"] == server.pid
        by_event = {one["event"]: one for one in found}
        assert {"ready", "client_connected", "client_gone"} <= set(by_event)
        assert by_event["table_created"]["table"] == "made"
        assert by_event["table_dropped"]["message"] == "table 'made' is dropped"
        assert by_event["snapshot_saved"]["file"].endswith("kept.snapshot")
        assert by_event["client_connected"]["peer"].startswith("127.0.0.1:")
        assert by_event["ready"]["port"] == int(server.url.rpartition(":")[2])
    assert named(server, "stopping")
    assert events(server)[-1]["event"] == "stopped"


def test_text_says_the_same_and_names_can_break_neither():
    name = 'quo"te\\☃'
    config = {"log-level": "info"}
    with rs.Server(config=config) as server, rs.Client(server.url) as client:
        client.create_table(rs.Table(name, 10, {"k": rs.Column("int64")}))
        assert f"replay-server: table '{name}' is there\n" in server.log()
    with json_server("info") as server, rs.Client(server.url) as client:
        client.create_table(rs.Table(name, 10, {"k": rs.Column("int64")}))
        client.redis.execute_command("WEIGHTS.PUBLISH", "x", "*", b"blob")
        assert named(server, "table_created")[0]["table"] == name
    with json_server("info", password="p") as server:
        for user in (b"\xff\n\x01", b'"', b"x" * 5000, b"\xed\xa7\x95\xc0\x80\xf5\x80\x80\x80", "☃".encode() * 1000):
            log_in(server, user, b"wrong")
        refused = wait_for(lambda: named(server, "login_refused"))
        assert refused[0]["user"] == "?\n\u0001"
        assert refused[1]["user"] == '"'
        assert set(refused[2]["user"]) == {"x"}
        assert set(refused[3]["user"]) == {"?"}
        assert set(refused[4]["user"]) == {"☃"}


def test_no_line_has_what_a_terminal_obeys():
    """Nor the control characters beyond ASCII, of which one begins an escape sequence as well."""
    name = "\u009b31mred\u0085\u00a0é"
    for style in ("text", "json"):
        with rs.Server(config={"log-level": "info", "log-format": style}) as server, rs.Client(server.url) as client:
            client.create_table(rs.Table(name, 10, {"k": rs.Column("int64")}))
            line = server.log().splitlines(keepends=True)[-1]
            assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in line.rstrip("\n"))
            assert "31mred" in line
            assert "\u00a0é" in line
            assert style == "text" or json.loads(line)["table"] == name


def test_a_server_does_not_wait_for_who_reads_its_log():
    """Of a pipe that is full lines are left out, and counted in the next that is taken."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reader, False)

    def taken() -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 1 << 16).decode()
        return ""

    process = subprocess.Popen(
        [find_executable(), "--port", "0"], stdout=subprocess.PIPE, stderr=writer, text=True
    )  # fmt: skip
    os.close(writer)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1].removeprefix("url=")
        with redis.Redis.from_url(url, socket_timeout=60) as one:
            one.config_set("log-level", "debug")
            for _ in range(200):
                with redis.Redis.from_url(url, socket_timeout=60) as another:
                    assert another.ping()
            assert taken().count("\n") < 200

            def told() -> str:
                with redis.Redis.from_url(url, socket_timeout=60) as another:
                    another.ping()
                return taken()

            assert wait_for(lambda: re.search(r"\(\d+ lines before it were left out\)", told()))
    finally:
        process.terminate()
        process.wait(60)
        os.close(reader)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0


def test_a_refused_login_is_told_without_the_password():
    with json_server("warning", password="right") as server:
        log_in(server, b"me", b"guessed-secret")
        refused = wait_for(lambda: named(server, "login_refused"))
        assert (refused[0]["user"], refused[0]["level"]) == ("me", "warning")
        assert "guessed-secret" not in server.log()


def test_level_and_format_change_while_it_runs():
    with rs.Server([TABLE]) as server, rs.Client(server.url) as client:
        client.redis.config_set("log-level", "info")
        client.create_table(rs.Table("one", 10, {"k": rs.Column("int64")}))
        client.redis.config_set("log-format", "json")
        client.create_table(rs.Table("two", 10, {"k": rs.Column("int64")}))
        client.redis.config_set("log-level", "error")
        client.create_table(rs.Table("three", 10, {"k": rs.Column("int64")}))
        first, second = server.log().splitlines()
        assert first == "replay-server: table 'one' is there"
        assert json.loads(second)["table"] == "two"
        with pytest.raises(redis.ResponseError):
            client.redis.config_set("log-level", "loud")


def test_a_flood_of_events_is_cut_and_counted():
    with json_server("debug") as server:
        port = int(server.url.rpartition(":")[2])

        def told() -> int:
            with redis.Redis(port=port) as one:
                one.ping()
            return sum(1 + one.get("left_out", 0) for one in events(server))

        for _ in range(120):
            told_now = told()
        # Every client came and went: what was not written is counted in a later line.
        assert wait_for(lambda: told() >= 240), told_now


def test_why_it_did_not_start_is_json_too(free_port):
    command = [sys.executable, "-m", "replay_server", "serve", "--port", str(free_port), "--log-format", "json"]
    with rs.Server(port=free_port):
        taken = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert taken.returncode == 3
    said = json.loads(taken.stderr)
    assert (said["event"], said["level"], said["status"]) == ("start_failed", "error", 3)
    assert "another server" in said["message"]


def test_serve_takes_level_and_format(free_port):
    command = [sys.executable, "-m", "replay_server", "serve", "--port", str(free_port), "--log-level", "info"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert said.splitlines() == [
        "replay-server: ready",
        "replay-server: stopping, with 0 clients",
        "replay-server: stopped",
    ]
