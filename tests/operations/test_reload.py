"""SIGHUP: the configuration file is read again, what can change live changes, and what cannot is named."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import replay_server as rs
from replay_server.server import find_executable

TABLE = """
[[tables]]
name = "{name}"
capacity = {capacity}
sampler = {{ kind = "uniform" }}
rate_limiter = {{ kind = "min_size", min_size_to_sample = {least} }}
[tables.signature]
x = {{ dtype = "float32", shape = [{width}] }}
"""


def table(name: str = "t", capacity: int = 100, least: int = 1, width: int = 2) -> str:
    return TABLE.format(name=name, capacity=capacity, least=least, width=width)


class Service:
    """`replay-server serve` as a service manager starts it: its log, and what it tells of itself."""

    def __init__(
        self, folder: Path, *arguments: str, text: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.file = folder / "replay.toml"
        self.write(text)
        self.log_path = folder / "log"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(folder / "notify"))
        self.notify.settimeout(60)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replay_server", "serve", "--config", "replay.toml", "--port", "0", *arguments],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
                env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), **(environment or {})},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        if self.ready:
            assert self.told() == "READY=1"

    @property
    def url(self) -> str:
        return self.ready.split()[1].removeprefix("url=")

    def told(self) -> str:
        """The next datagram to the service manager."""
        return self.notify.recv(4096).decode()

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def log(self) -> list[str]:
        return self.log_path.read_text().splitlines()

    def reload(self, text: str | None = None) -> list[str]:
        """Sends SIGHUP and waits until that has been dealt with; the lines it logged."""
        if text is not None:
            self.write(text)
        before = len(self.log())
        self.process.send_signal(signal.SIGHUP)
        assert self.told().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert self.told() == "READY=1"
        return self.log()[before:]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.notify.close()
        return self.process.wait(60)


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    services: list[Service] = []

    def begin(text: str = "", *arguments: str, **environment: str) -> Service:
        services.append(Service(tmp_path, *arguments, text=text, environment=environment))
        return services[-1]

    yield begin
    for service in services:
        service.stop()


def config(client: rs.Client, name: str) -> str:
    return str(client.redis.config_get(name)[name])


def test_a_setting_changes_and_the_log_says_from_what_to_what(start: Start) -> None:
    service = start("[config]\ntimeout = 10\n")
    with rs.Client(service.url) as client:
        said = service.reload('maxmemory = "1gb"\n[config]\ntimeout = 20\nappendfsync = "always"\n')
        assert config(client, "timeout") == "20"
        assert config(client, "maxmemory") == str(1 << 30)
        assert config(client, "appendfsync") == "always"
    assert "replay-server: reload: timeout '10' to '20'" in said
    assert said[-1] == "replay-server: reload: done: 3 changed, 0 not changed before a restart"


def test_what_is_taken_out_of_the_file_has_its_default_again(start: Start) -> None:
    service = start("[config]\ntimeout = 10\n")
    with rs.Client(service.url) as client:
        service.reload("")
        assert config(client, "timeout") == "0"


def test_a_setting_of_config_set_is_put_back_to_what_the_file_says(start: Start) -> None:
    service = start("[config]\ntimeout = 10\n")
    with rs.Client(service.url) as client:
        client.redis.config_set("timeout", 30)
        assert "replay-server: reload: timeout '30' to '10'" in service.reload()


def test_options_of_the_command_line_win_over_the_file_again(start: Start) -> None:
    service = start("maxclients = 50\n", "--maxclients", "60")
    with rs.Client(service.url) as client:
        said = service.reload("maxclients = 70\n[config]\ntimeout = 5\n")
        assert config(client, "maxclients") == "60"
        assert config(client, "timeout") == "5"
    assert said[-1].endswith("done: 1 changed, 0 not changed before a restart")


def test_what_needs_a_restart_is_named_and_the_rest_changes(start: Start) -> None:
    service = start("")
    with rs.Client(service.url) as client:
        said = service.reload('unixsocket = "here"\n[config]\ntimeout = 5\nappendfilename = "other"\n')
        assert config(client, "timeout") == "5"
        assert config(client, "unixsocket") == ""
    assert "replay-server: reload: needs a restart: unixsocket '' to 'here'" in said
    assert "replay-server: reload: needs a restart: appendfilename 'appendonly.aof' to 'other'" in said
    assert said[-1].endswith("done: 1 changed, 2 not changed before a restart")


def test_a_port_that_was_chosen_at_the_start_is_no_change(start: Start) -> None:
    service = start("")
    assert service.reload() == ["replay-server: reload: done: 0 changed, 0 not changed before a restart"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("maxmemory = \n", "Invalid value"),
        ("maxmemori = 5\n", "unknown key 'maxmemori'"),
        ("maxmemory = 5\ntransport = 'quic'\n", "transport must be one of"),
        ("[config]\ntimeout = 5\ntimeouts = 5\n", "Unknown option 'timeouts'"),
        ("[config]\ntimeout = 5\nappendfsync = 'never'\n", "setting appendfsync = never"),
        ("[config]\ntimeout = 5\n" + table(capacity=0), "capacity"),
        ("password_file = 'nowhere'\n[config]\ntimeout = 5\n", "No such file"),
    ],
)  # fmt: skip
def test_a_file_with_a_mistake_changes_nothing(start: Start, text: str, why: str) -> None:
    service = start("[config]\ntimeout = 10\n")
    with rs.Client(service.url) as client:
        before = client.redis.config_get("*")
        said = service.reload(text)
        assert client.redis.config_get("*") == before
        assert client.tables() == []
        assert client.redis.info("server")["config_last_reload_status"] == "err"
        service.reload("")
        assert client.redis.info("server")["config_last_reload_status"] == "ok"
        assert client.redis.info("server")["config_reloads"] == 2
    assert any(why in line for line in said), said
    assert all(line.startswith("replay-server: reload: ") for line in said), said
    assert said[-1].startswith("replay-server: reload: nothing has changed"), said


def test_a_file_that_is_gone_changes_nothing(start: Start) -> None:
    service = start("[config]\ntimeout = 10\n")
    service.file.unlink()
    with rs.Client(service.url) as client:
        assert any("replay.toml: No such file" in line for line in service.reload())
        assert config(client, "timeout") == "10"


def test_a_password_that_was_changed_counts_from_then_on_and_is_not_logged(start: Start, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("first-secret\n")
    service = start('password_file = "password"\n')
    (tmp_path / "password").write_text("second-secret\n")
    said = service.reload()
    assert "requirepass, which is not shown" in said[0]
    assert "secret" not in "".join(service.log())
    with rs.Client(service.url.replace("redis://", "redis://:second-secret@")) as client:
        assert client.tables() == []
    with pytest.raises(rs.ReplayError), rs.Client(service.url.replace("redis://", "redis://:first-secret@")) as client:
        client.tables()


def test_a_password_out_of_the_environment_stays(start: Start) -> None:
    service = start("", REPLAY_SERVER_PASSWORD="secret")
    service.reload("[config]\ntimeout = 5\n")
    with rs.Client(service.url.replace("redis://", "redis://:secret@")) as client:
        assert config(client, "timeout") == "5"
        assert config(client, "requirepass") == "secret"


def test_tables_are_made_and_changed_and_keep_their_items(start: Start) -> None:
    service = start(table("old", capacity=100, least=50))
    with rs.Client(service.url) as client:
        client.add("old", {"x": [[1.0, 2.0]] * 10})
        said = service.reload(table("old", capacity=100, least=5) + table("new"))
        assert client.tables() == ["old", "new"]
        assert len(client.sample("old", 4, timeout=0).ids) == 4
    assert "replay-server: reload: table 'old' has the settings given now" in said
    assert "replay-server: reload: table 'new' is made" in said


def test_a_sample_that_waits_goes_on_when_the_limit_is_lowered(start: Start) -> None:
    service = start(table(least=50))
    with rs.Client(service.url) as client, rs.Client(service.url) as other:
        client.add("t", {"x": [[1.0, 2.0]] * 10})
        with client.sampler("t", 4, prefetch=1) as batches:
            deadline = time.monotonic() + 60
            while other.info("t")["waiting"] == 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            service.reload(table(least=5))
            assert len(next(iter(batches)).ids) == 4


def test_a_table_that_would_lose_its_items_is_named_and_stays(start: Start) -> None:
    service = start(table(width=2))
    with rs.Client(service.url) as client:
        client.add("t", {"x": [[1.0, 2.0]]})
        said = service.reload("[config]\ntimeout = 5\n" + table(width=3))
        assert client.info("t")["size"] == 1
        assert config(client, "timeout") == "5"
    assert any("table 't' differs in more than can change" in line for line in said), said


def test_a_table_that_is_no_longer_in_the_file_stays(start: Start) -> None:
    service = start(table())
    service.reload("")
    with rs.Client(service.url) as client:
        assert client.tables() == ["t"]


def test_signals_while_the_file_is_read_are_not_lost(start: Start) -> None:
    service = start("")
    with rs.Client(service.url) as client:
        service.process.send_signal(signal.SIGHUP)
        assert service.told().startswith("RELOADING")
        service.write("[config]\ntimeout = 7\n")
        service.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while config(client, "timeout") != "7":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_clients_are_served_while_the_file_is_read(start: Start) -> None:
    """The program that reads it hangs; a stop does not wait for it."""
    service = start("")
    service.file.unlink()
    os.mkfifo(service.file)
    service.process.send_signal(signal.SIGHUP)
    assert service.told().startswith("RELOADING")
    with rs.Client(service.url) as client:
        assert client.tables() == []
    assert service.stop() == 0


def test_without_a_file_the_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "replay_server", "serve", "--port", "0"]
    with open(log, "wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while "without --config" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 0


def test_the_child_of_a_program_ignores_it_and_tells_no_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with rs.Server() as server, rs.Client(server.url) as client:
            os.kill(server.pid, signal.SIGHUP)
            assert client.tables() == []
            assert server.log() == ""
        with pytest.raises(BlockingIOError):
            notify.recv(100)


def test_the_service_manager_hears_of_start_and_stop(tmp_path: Path) -> None:
    """Over an abstract socket, as systemd has it in containers, too."""
    name = f"replay-{os.getpid()}-notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(f"\0{name}")
        notify.settimeout(60)
        command = [find_executable(), "--port", "0"]
        environment: dict[str, Any] = {**os.environ, "NOTIFY_SOCKET": f"@{name}"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path) as process:
            assert notify.recv(100) == b"READY=1"
            port = int(process.stdout.readline().split(b"redis://127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port)) as unread:
                # A stop sends what clients have still to get. This one reads only once the stop is told.
                unread.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$64000000\r\n" + bytes(64_000_000) + b"\r\n")
                assert unread.recv(5) == b"+OK\r\n"
                unread.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n")
                assert unread.recv(11) == b"$64000000\r\n"
                process.terminate()
                assert notify.recv(100) == b"STOPPING=1"
                with unread.makefile("rb") as rest:
                    assert len(rest.read()) == 64_000_002
            assert process.wait(60) == 0


def test_certificates_are_read_again(start: Start, tmp_path: Path) -> None:
    """One that was renewed counts for new connections; one that is broken changes nothing."""
    import ssl

    def renew() -> str:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
             "-days", "2", "-subj", "/CN=localhost"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
        return (tmp_path / "cert.pem").read_text()

    def shown(port: int) -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    first = renew()
    service = start(
        '[config]\ntls-port = 0\ntls-cert-file = "cert.pem"\ntls-key-file = "key.pem"\ntls-auth-clients = "no"\n'
    )
    port = int(service.ready.split("tls=rediss://")[1].strip().rpartition(":")[2])
    assert shown(port).split() == first.split()
    second = renew()
    service.reload()
    assert shown(port).split() == second.split() != first.split()
    (tmp_path / "cert.pem").write_text("nothing")
    assert "nothing has changed" in service.reload()[-1]
    assert shown(port).split() == second.split()
    # Nor does one that is well, where something else cannot be had.
    renew()
    (tmp_path / "appendonlydir").write_text("a file where a folder should be")
    said = service.reload(service.file.read_text() + 'appendonly = "yes"\ntimeout = 7\n')
    assert "nothing has changed" in said[-1]
    assert shown(port).split() == second.split()
    with rs.Client(service.url) as client:
        assert (config(client, "appendonly"), config(client, "timeout")) == ("no", "0")


def test_the_level_of_the_log_is_changed_by_the_words_of_redis_too(start: Start) -> None:
    service = start('[config]\nloglevel = "verbose"\n')
    with rs.Client(service.url) as client:
        assert (config(client, "log-level"), config(client, "loglevel")) == ("info", "verbose")
        client.redis.config_set("loglevel", "warning")
        assert config(client, "log-level") == "warning"
        service.reload('[config]\nlog-level = "notice"\n')
        assert config(client, "loglevel") == "notice"


def test_more_clients_than_the_system_allows_are_refused_when_they_are_asked_for() -> None:
    """As in Redis, and by all that was asked for with it; a start and a reload take what there is, and say so."""
    with rs.Server() as server, rs.Client(server.url) as client:
        _, most = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        before = config(client, "maxclients")
        # Root may raise what it may have, up to a limit of the system for all.
        asked = max(most, int(Path("/proc/sys/fs/nr_open").read_text()))
        if asked + 64 > 1_000_000:
            asked = 1_000_000 - 64
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        with pytest.raises(redis.ResponseError, match="not able to handle"):
            client.redis.config_set("maxclients", asked + 64, "timeout", 9)
        assert (config(client, "maxclients"), config(client, "timeout")) == (before, "0")
