"""A replay server as a child process: started with its tables, ended with its parent."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from .codec import pack
from .connection import url_with_password
from .errors import ServerError
from .table import Table

TRANSPORTS = ("kernel", "dpdk", "fstack")
_READY = re.compile(
    r"ready url=(?P<url>\S*) unix=(?P<unix>.*) pid=(?P<pid>\d+)(?: admin=(?P<admin>\S+))?(?: tls=(?P<tls>\S+))?"
    r"(?: metrics=(?P<metrics>\S+))?$"
)
_MISSING = {
    "kernel": "install the package again (pip install .)",
    "dpdk": "it is built where DPDK and lwIP's source are: in the source tree, type make lwip; ./setup_dpdk.sh sets up "
    "the host as well",
    "fstack": "it is built where F-Stack is: install F-Stack, set FF_PATH to its folder, then run make setup",
}
_LOG_BYTES = 64 * 1024
"""What the server keeps of its standard error (LOG_KEPT_BYTES), however much it prints."""
_LOOK_S = 0.1
"""Between two looks at a server that starts."""

_running: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    # A forked child must neither hold its parent's lifelines open nor stop its servers.
    for server in list(_running):
        server._disown()
    _running.clear()


os.register_at_fork(after_in_child=_forget_in_forked_child)


def find_executable(transport: str = "kernel") -> Path:
    """The native server for a transport; the variable REPLAY_SERVER_EXECUTABLE, where set, names another one to run.

    Raises:
        ServerError: the package was built without it; the message says what to install.
    """
    if transport not in TRANSPORTS:
        raise ServerError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
    if override := os.environ.get("REPLAY_SERVER_EXECUTABLE"):
        return Path(override)
    return _installed(f"replay-server-{transport}", f"transport {transport!r}", _MISSING[transport])


def find_program(name: str) -> Path:
    """A program that was installed beside the native servers. Raises ServerError where the package has none."""
    return _installed(name, "this package", "it is built on Linux: install the package again (pip install .)")


def _installed(name: str, what: str, missing: str) -> Path:
    for folder in _folders():
        if (folder / "bin" / name).is_file():
            return folder / "bin" / name
    looked = " and ".join(dict.fromkeys(str(folder / "bin") for folder in _folders()))
    raise ServerError(f"{what}: {name} is not in {looked}: {missing}")


def _folders() -> list[Path]:
    # An editable install keeps Python files in the source tree and what was built beside the compiled extension.
    folders = [Path(__file__).parent]
    native = importlib.util.find_spec("replay_server._native")
    if native is not None and native.origin:
        folders.append(Path(native.origin).parent)
    return folders


def setup_message(
    tables: Iterable[Table],
    password: str | None = None,
    config: Mapping[str, Any] | None = None,
    reload: Sequence[str] = (),
) -> bytes:
    """What the native server reads from --setup-fd: passwords and tables do not travel on the command line.

    `reload` is the program that it runs at SIGHUP, with its arguments, and whose output is such a message; () = none.
    """
    values = {str(name): _config_value(value) for name, value in (config or {}).items()}
    message = {"password": password, "tables": [table.to_spec() for table in tables], "config": values}
    return pack({**message, "reload": list(reload)} if reload else message)


def _config_value(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def server_arguments(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    unix: str | os.PathLike[str] | None = None,
    maxmemory: int = 0,
    maxclients: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    unix_permissions: str | None = None,
    allow_remote: bool = False,
    restore: str | os.PathLike[str] | None = None,
) -> list[str]:
    """The native server's arguments, without the descriptors."""
    arguments = ["--host", host, "--port", str(port)]
    if unix is not None:
        arguments += ["--unixsocket", os.fspath(unix)]
    if unix_permissions is not None:
        arguments += ["--unixsocketperm", unix_permissions]
    if maxmemory:
        arguments += ["--maxmemory", str(maxmemory)]
    if maxclients is not None:
        arguments += ["--maxclients", str(maxclients)]
    if directory is not None:
        arguments += ["--dir", os.fspath(directory)]
    if restore is not None:
        arguments += ["--restore", os.fspath(restore)]
    if allow_remote:
        arguments += ["--allow-remote"]
    return arguments


class Server:
    """A replay server in a child process; a context manager.

    The child stops when this process ends, in whatever way it ends.

    Args:
        tables: created before any client can connect.
        host: address to listen on; addresses other than loopback need a password.
        port: 0 = any free port, -1 = no TCP.
        unix: path of an additional unix socket, None = none.
        password: clients must send it; `url` contains it.
        directory: of the server's files, such as snapshots. It must exist. None = the current directory.
        maxmemory: bytes that the key-value store may hold, 0 = no limit.
        transport: "kernel"; or "dpdk" or "fstack" if the package was built with them. For these two, the device and
            its address are settings ("dpdk-device", "dpdk-address"; docs/nic-host.md), and an admin port is open
            on loopback unless `config` has "admin-port" -1.
        config: further settings, as for CONFIG SET.
        restore: snapshot to start from, or a file of Redis (dump.rdb): a file's path, absolute or relative to
            `directory`, or "latest" for the newest snapshot in `directory` (the server starts empty if there is none).
            A table of `tables` that the snapshot also has must equal it, except in what `Client.configure` changes;
            there `tables` overrides. `log()` shows what was restored and what is lost.
        start_timeout: seconds in which the server must be ready, or have read or written more of its files: one that
            loads is waited for.
        given_up: ends the start with a ServerError once it is set.

    Attributes:
        url: for `Client`: TCP, else TLS, else the unix socket.
        tls_url: the TLS port (`config`: "tls-port", "tls-cert-file", "tls-key-file"), None = none. It names
            "tls-ca-cert-file", if that is set, as the authority that a client trusts.
        unix_url: the unix socket, None = none.
        admin_url: the admin port, None = none.
        metrics_url: the metrics for Prometheus (`config`: "metrics-port"), None = none.
        pid: process id.

    Raises:
        ServerError: the server did not start; the message contains what it printed. For a snapshot that is damaged,
            incomplete or does not fit (exit status 4), it names the place.
    """

    def __init__(
        self,
        tables: Iterable[Table] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        unix: str | os.PathLike[str] | None = None,
        password: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        maxmemory: int = 0,
        transport: str = "kernel",
        config: Mapping[str, Any] | None = None,
        *,
        restore: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
        given_up: threading.Event | None = None,
    ) -> None:
        command = [str(find_executable(transport))]
        if transport != "kernel" and host != "127.0.0.1":
            raise ServerError(f"host {host!r} belongs to the kernel transport; with {transport} use 'dpdk-address'")
        command += server_arguments(
            host=host, port=port, unix=unix, maxmemory=maxmemory, directory=directory, restore=restore
        )
        if transport != "kernel":
            config = {"admin-port": 0, **(config or {})}
        setup = setup_message(tables, password, config)
        self._owner = os.getpid()
        self._last_words = ""
        self._stderr = tempfile.TemporaryFile(prefix="replay-server-")  # noqa: SIM115 - closed with the server
        # Its end here is closed with the last reference to it, whatever happens, and that ends the server.
        lifeline, self._lifeline = socket.socketpair()
        _running.add(self)
        try:
            with lifeline:
                self._process = self._spawn(command, setup, lifeline.fileno())
            ready = self._await_ready(start_timeout, given_up)
        except BaseException:
            self.stop(timeout=0)
            raise
        path = quote(os.path.abspath(ready["unix"]))
        self.unix_url = url_with_password(f"unix://{path}", password) if ready["unix"] else None
        self.admin_url = url_with_password(ready["admin"], password) if ready["admin"] else None
        self.metrics_url: str | None = ready["metrics"]
        authorities = (config or {}).get("tls-ca-cert-file")
        trust = (
            f"?ssl_ca_certs={quote(os.path.abspath(os.path.join(directory or '', authorities)))}" if authorities else ""
        )
        self.tls_url = url_with_password(ready["tls"], password) + trust if ready["tls"] else None
        url = url_with_password(ready["url"], password) if ready["url"] else self.tls_url or self.unix_url
        if url is None:
            raise ServerError("expected a port or a unix socket, got neither: the server would listen nowhere")
        self.url: str = url
        self.pid = int(ready["pid"])

    def _spawn(self, command: list[str], setup: bytes, lifeline: int) -> subprocess.Popen[bytes]:
        """Starts the child with the two descriptors."""
        try:
            with tempfile.TemporaryFile(prefix="replay-server-setup-") as setup_file:
                setup_file.write(setup)
                setup_file.seek(0)
                descriptors = (setup_file.fileno(), lifeline)
                command += ["--setup-fd", str(descriptors[0]), "--lifeline-fd", str(descriptors[1])]
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    pass_fds=descriptors,
                    # Ctrl-C in a terminal reaches the parent alone, which then stops the server in its own time.
                    start_new_session=True,
                )
        except OSError as error:
            raise ServerError(f"cannot run {command[0]}: {error.strerror or error}") from error

    def _await_ready(self, patience_s: float, given_up: threading.Event | None) -> dict[str, str | Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        text, bytes_moved, deadline = b"", -1, 0.0
        while b"\n" not in text:
            if given_up is not None and given_up.is_set():
                raise ServerError("the start was given up")
            if (now_moved := self._bytes_moved()) != bytes_moved:
                bytes_moved, deadline = now_moved, time.monotonic() + patience_s
            if (left := deadline - time.monotonic()) <= 0:
                printed = self.log().strip() or "nothing"
                raise ServerError(
                    f"the server was not ready in time, and read and wrote nothing for {patience_s:g} s; it printed: "
                    f"{printed}"
                )
            if not select.select([descriptor], [], [], min(left, _LOOK_S))[0]:
                continue
            chunk = os.read(descriptor, 4096)
            if not chunk:
                status = self._process.wait()
                printed = (self.log() + text.decode("utf-8", "replace")).strip() or "nothing"
                raise ServerError(f"the server did not start (exit status {status}); it printed: {printed}")
            text += chunk
        line = text.split(b"\n")[0].decode("utf-8", "replace")
        if (match := _READY.match(line)) is None:
            printed = self.log().strip() or "nothing"
            raise ServerError(
                f"expected a line 'ready url=… unix=… pid=…' from the server, got {line!r}; it printed: {printed}"
            )
        return match.groupdict()

    def _bytes_moved(self) -> int:
        """What the child has read and written so far, of files above all; 0 where the system does not tell."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = Path(f"/proc/{self._process.pid}/io").read_text().split()  # rchar: N wchar: N …
            return int(words[1]) + int(words[3])
        return 0

    def log(self) -> str:
        """The end of what the server has printed on its standard error."""
        # pread leaves the offset alone, which the child shares.
        if self._stderr.closed:
            return self._last_words
        descriptor = self._stderr.fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode("utf-8", "replace")

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit status after its end: 0 = stopped cleanly, −N = killed by signal N; None while it runs."""
        return self._process.poll()

    def stop(self, timeout: float = 10.0) -> int | None:
        """Stops the server: it finishes pending replies, removes its socket file and exits; killed after `timeout`.

        Returns:
            Its exit status; None in a process that did not start it.
        """
        if self._owner != os.getpid():
            return None
        if not hasattr(self, "_process"):  # its start was interrupted: the lifeline ends it
            self._close()
            return None
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()
        return self._process.returncode

    def _close(self) -> None:
        self._lifeline.close()
        if hasattr(self, "_process") and self._process.stdout is not None:
            self._process.stdout.close()
        self._last_words = self.log()
        self._stderr.close()
        _running.discard(self)

    def _disown(self) -> None:
        """In a forked child: lets go of the server without touching it."""
        self._close()
        if hasattr(self, "_process"):
            self._process.returncode = 0  # keeps Popen's destructor from waiting for a process that is not its child

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if hasattr(self, "_lifeline") and self._lifeline.fileno() >= 0 and self._owner == os.getpid():
            self.stop()

    def __repr__(self) -> str:
        return f"Server(pid={self._process.pid}, running={self.running})"


def port_of(server: Server) -> int:
    """Of its `url`; 0: it is one of a unix socket."""
    return urlsplit(server.url).port or 0


def tls_port_of(server: Server) -> int:
    """Of its `tls_url`; 0: it has none."""
    return (urlsplit(server.tls_url).port or 0) if server.tls_url else 0
