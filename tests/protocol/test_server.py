"""The server as a process: started, supervised and stopped from Python and from the command line."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from slow_server import slow_server

import replay_server as rs
from replay_server.server import find_executable

TABLE = rs.Table("t", 100, {"k": rs.Column("int64")})


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- rs.Server -------------------------------------------------------------------------------------------------------


def test_a_server_starts_with_its_tables_and_stops_in_order(tmp_path):
    with rs.Server([TABLE], unix=tmp_path / "s") as server:
        assert server.url.startswith("redis://127.0.0.1:")
        assert server.unix_url == f"unix://{tmp_path}/s"
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
        assert server.running
        assert alive(server.pid)
        with rs.Client(server.url) as client:
            assert client.table("t") == TABLE
    assert not server.running
    assert server.returncode == 0
    assert not (tmp_path / "s").exists()
    assert server.stop() == 0


@pytest.mark.parametrize("path", ["s", "a b", "100%20", "why?", "#1"])
def test_the_url_of_a_unix_socket_is_one_for_clients_wherever_it_lies(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with rs.Server(port=-1, unix=path) as server, rs.Client(server.url) as client:
        assert client.tables() == []
        assert client.redis.ping()


def test_settings_are_those_of_config_set():
    settings = {"maxmemory-policy": "noeviction"}
    with rs.Server(maxmemory=10 << 20, config=settings) as server, rs.Client(server.url) as client:
        assert client.redis.config_get("maxmemory")["maxmemory"] == str(10 << 20)
        assert client.redis.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"host": "0.0.0.0"}, "password"),
        ({"host": "127.example.org"}, "password"),
        ({"host": "not a host"}, "not a host"),
        ({"unix": "/no/such/directory/s"}, "/no/such/directory/s"),
        ({"config": {"no-such-setting": "1"}}, "no-such-setting"),
        ({"transport": "carrier pigeon"}, "carrier pigeon"),
        ({"directory": "/no/such/directory"}, "/no/such/directory"),
    ],
)
def test_a_server_that_does_not_start_says_why(arguments, said):
    with pytest.raises(rs.ServerError, match=said):
        rs.Server([TABLE], **arguments)


@pytest.mark.parametrize(("transport", "said"), [("dpdk", "setup_dpdk.sh"), ("fstack", "FF_PATH")])
def test_a_transport_that_was_not_built_says_what_to_install(transport, said, monkeypatch, tmp_path):
    monkeypatch.setattr("replay_server.server._folders", lambda: [tmp_path])
    with pytest.raises(rs.ServerError, match=said):
        rs.Server([TABLE], transport=transport)


def test_an_admin_port_lets_in_when_all_other_places_are_taken():
    with rs.Server([TABLE], config={"admin-port": 0, "maxclients": 1}, password="secret") as server:
        assert server.admin_url is not None
        with rs.Client(server.url) as client, rs.Client(server.admin_url) as admin:
            assert client.tables() == admin.tables() == ["t"]
            assert admin.redis.info("server")["admin_port"] == int(server.admin_url.rpartition(":")[2])
            with pytest.raises(rs.ReplayError, match="max number of clients"), rs.Client(server.url) as another:
                another.tables()


def test_a_server_that_polls_without_sleeping_serves_and_stops(eventually):
    with rs.Server([TABLE], config={"busy-poll-us": 1_000_000}) as server, rs.Client(server.url) as client:
        assert client.tables() == ["t"]
        turns = int(client.redis.info("stats")["loop_turns"])
        eventually(lambda: int(client.redis.info("stats")["loop_turns"]) > turns + 1000, "it turns by itself")
        client.redis.config_set("busy-poll-us", 0)
        turns = int(client.redis.info("stats")["loop_turns"])
        time.sleep(0.2)
        assert int(client.redis.info("stats")["loop_turns"]) < turns + 100
        assert server.stop() == 0


def test_a_server_that_goes_on_with_its_files_is_waited_for(tmp_path, monkeypatch):
    moved = itertools.count()
    monkeypatch.setattr(rs.Server, "_bytes_moved", lambda _: next(moved))
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(slow_server(tmp_path, seconds=2.0, reads=False)))
    with rs.Server(start_timeout=0.5) as server:
        assert server.running


@pytest.mark.parametrize(
    "does", ["open('/dev/zero', 'rb', buffering=0).read(1 << 20)", "open('/dev/null', 'wb').write(bytes(1 << 20))"]
)
def test_what_a_server_reads_and_writes_counts(does):
    command = [sys.executable, "-S", "-c", f"print(flush=True); input(); {does}; print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = SimpleNamespace(_process=process)
        process.stdout.readline()
        before = rs.Server._bytes_moved(server)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert rs.Server._bytes_moved(server) >= before + (1 << 20)
        process.communicate(b"\n")


def test_a_server_that_hangs_at_its_start_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(slow_server(tmp_path, seconds=100.0, reads=False)))
    with pytest.raises(rs.ServerError, match="not ready in time, and read and wrote nothing for 2 s"):
        rs.Server(start_timeout=2.0)


def test_a_start_is_given_up_where_somebody_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(slow_server(tmp_path, seconds=100.0)))
    given_up = threading.Event()
    threading.Timer(1.0, given_up.set).start()
    with pytest.raises(rs.ServerError, match="the start was given up"):
        rs.Server(given_up=given_up)


def test_an_address_in_use_is_an_error():
    with rs.Server() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(rs.ServerError, match=r"exit status 3.*in use"):
            rs.Server(port=port)


def test_a_socket_file_left_by_a_killed_server_is_taken_over(tmp_path):
    first = rs.Server(unix=tmp_path / "s")
    os.kill(first.pid, signal.SIGKILL)
    while first.running:
        time.sleep(0.005)
    assert (tmp_path / "s").exists()
    with rs.Server(unix=tmp_path / "s") as server, rs.Client(server.unix_url) as client:
        assert client.tables() == []
    first.stop()


def test_a_socket_in_use_is_not_taken_over(tmp_path):
    with rs.Server(unix=tmp_path / "s") as server:
        with pytest.raises(rs.ServerError, match="another server answers there"):
            rs.Server(unix=tmp_path / "s")
        with rs.Client(server.unix_url) as client:
            assert client.tables() == []


@pytest.mark.parametrize("end", ["returns", "is killed"])
def test_a_server_dies_with_its_parent(end):
    program = "import os, signal, replay_server as rs; server = rs.Server(); print(server.pid, flush=True); "
    program += "os._exit(0)" if end == "returns" else "os.kill(os.getpid(), signal.SIGKILL)"
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    pid = int(parent.stdout)
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_neither_stops_nor_keeps_a_server():
    with rs.Server([TABLE]) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with rs.Client(server.url) as client:
            assert client.tables() == ["t"]


def test_a_forked_child_leaves_several_servers_alone():
    program = (
        "import os, replay_server as rs\n"
        "servers = [rs.Server(), rs.Server()]\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "for server in servers: server.stop()\n"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (parent.returncode, parent.stderr) == (0, "")


def test_ctrl_c_in_the_terminal_reaches_the_parent_alone():
    with rs.Server() as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_stop_finishes_a_reply_that_is_being_sent():
    import numpy as np

    table = rs.Table("f", 100, {"obs": rs.Column("uint8", (4, 84, 84))})
    with rs.Server([table]) as server, rs.Client(server.url) as client:
        client.add("f", {"obs": np.zeros((64, 4, 84, 84), np.uint8)})
        host, port = server.url.removeprefix("redis://").split(":")
        with socket.create_connection((host, int(port))) as reader:
            reader.sendall(b"REPLAY.SAMPLE f 64\r\n")
            reader.recv(1)
            os.kill(server.pid, signal.SIGTERM)
            count = 1
            while chunk := reader.recv(1 << 20):
                count += len(chunk)
        assert count > 64 * 4 * 84 * 84
        assert server.stop() == 0


# ---- replay-server serve ---------------------------------------------------------------------------------------------


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "replay_server", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd="/",
    )


def refused(*arguments: str, **environment: str) -> tuple[int, str]:
    process = start(*arguments, **environment)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready url=redis://"), line + process.stderr.read()  # type: ignore[union-attr]
    assert line.rstrip().endswith(f"pid={process.pid}")
    return line.split()[1].removeprefix("url=")


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_becomes_the_server_and_ends_by_a_signal(tmp_path, number):
    process = start("--port", "0", "--unixsocket", str(tmp_path / "s"))
    with rs.Client(ready_url(process)) as client:
        client.create_table(TABLE)
    assert Path(f"/proc/{process.pid}/exe").resolve() == find_executable().resolve()
    assert ended(process, number) == 0
    assert not (tmp_path / "s").exists()


def test_serve_says_what_to_do_about_a_folder_that_is_not_there(tmp_path):
    status, said = refused("--port", "0", "--dir", str(tmp_path / "nowhere"))
    assert status == 2
    assert f"--dir {tmp_path}/nowhere: No such file or directory; make the folder, or name another" in said


def test_serve_reads_a_configuration_file(tmp_path):
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "serve.toml").write_text(
        f"""
        port = 0
        maxmemory = "64mb"
        dir = "{tmp_path}"
        password_file = "{tmp_path}/password"

        [config]
        maxmemory-policy = "noeviction"

        [[tables]]
        name = "t"
        capacity = 100
        [tables.signature]
        k = {{ dtype = "int64" }}
        """
    )
    process = start("--config", str(tmp_path / "serve.toml"))
    url = ready_url(process)
    with rs.Client(url.replace("redis://", "redis://:secret@")) as client:
        assert client.table("t") == TABLE
        assert client.redis.config_get("maxmemory")["maxmemory"] == str(64 << 20)
    assert ended(process) == 0


def test_serve_takes_the_password_from_the_environment_and_forgets_it():
    process = start("--port", "0", REPLAY_SERVER_PASSWORD="secret")
    url = ready_url(process)
    assert b"secret" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    with rs.Client(url) as client, pytest.raises(rs.ServerError, match="needs a password"):
        client.tables()
    with rs.Client(url.replace("redis://", "redis://:secret@")) as client:
        assert client.tables() == []
    assert ended(process) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "70000"),
        (["--port", "x"], "x"),
        (["--nonsense"], "nonsense"),
        (["--port", "-1"], "nothing to listen on"),
        (["--transport", "dpdk", "--host", "10.0.0.1"], "--dpdk-address"),
        (["--admin-port", "70000"], "admin-port"),
        (["--maxmemory", "much"], "much"),
        (["--unixsocketperm", "999"], "octal"),
        (["--config", "/no/such/file.toml"], "/no/such/file.toml"),
        (["--password-file", "/no/such/file"], "/no/such/file"),
        (["--host", "0.0.0.0", "--port", "0"], "password"),
    ],
)
def test_wrong_usage_is_exit_2_with_the_reason(arguments, said):
    status, text = refused(*arguments)
    assert status == 2
    assert said in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = ", "file.toml"),
        ("ports = 1", "unknown key 'ports'"),
        ('port = "x"', "port must be int"),
        ("port = true", "port must be int"),
        ('[[tables]]\nname = "t"', "capacity"),
        ('[[tables]]\nname = "t"\ncapacity = 1\nsignature = { x = { dtype = "nope" } }', "nope"),
    ],
)
def test_a_wrong_configuration_file_is_exit_2_with_the_reason(tmp_path, text, said):
    (tmp_path / "file.toml").write_text(text)
    status, message = refused("--config", str(tmp_path / "file.toml"))
    assert status == 2
    assert "file.toml" in message
    assert said in message


def test_an_address_in_use_is_exit_3():
    with rs.Server() as server:
        status, text = refused("--port", server.url.rpartition(":")[2])
    assert status == 3
    assert "in use" in text


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replay_server", *arguments], capture_output=True, text=True, check=False, cwd="/"
    )


def test_usage():
    assert run("--help").returncode == 0
    assert "serve" in run("--help").stdout
    assert run().returncode == 2
    assert run("--version").stdout.startswith("replay-server ")
    assert run("serve", "--help").returncode == 0
    assert run("nonsense").returncode == 2


def test_a_client_needs_neither_torch_nor_the_native_core():
    program = "import sys, replay_server as rs; rs.Client('redis://h'); "
    program += "print([name for name in ('torch', 'replay_server._native', 'redis', 'asyncio') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout == "[]\n"


def test_the_longest_turn_counts_the_commands_that_came_in_it():
    """It counted what was due beside them only, and a sample of a million items went unseen. (One without replacement
    is drawn in one go; others are drawn in parts.)"""
    items = 1 << 20
    table = rs.Table("t", capacity=items, signature={"x": rs.Column("uint8")}, sampler=rs.Uniform())
    with rs.Server([table]) as server, rs.Client(server.url) as client:
        client.add("t", {"x": np.zeros(items, np.uint8)})
        client.redis.config_resetstat()
        before = client.redis.info("stats")["loop_turn_us_max"]
        client.sample("t", items, replace=False)
        # A million draws, pins and ids take no processor less than this.
        assert client.redis.info("stats")["loop_turn_us_max"] > max(before, 2_000)


def test_what_a_server_prints_takes_little_room_however_much_it_is():
    with rs.Server(password="secret") as server, rs.Client(server.url) as client:
        printed = f"/proc/{server.pid}/fd/2"
        deadline = time.monotonic() + 120
        while os.stat(printed).st_size < 512 * 1024:  # of lines of a kind, there are 100 a second
            assert time.monotonic() < deadline
            with pytest.raises(rs.ServerError, match="WRONGPASS"):
                client.command("AUTH", "u" * 2000, "wrong")
        assert os.stat(printed).st_blocks * 512 <= 128 * 1024
        assert server.log().count("u" * 1000) >= 16
        assert "\0" not in server.log()
