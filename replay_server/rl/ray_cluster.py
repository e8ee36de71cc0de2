"""A Ray cluster that functions and actors are placed on: one of our own on this host, or one that is there already.

One of our own listens on loopback only, asks for a token, writes its files in a folder that goes with it, says nothing
to the terminal and reports nothing to anybody; when its last user closes it, its processes have ended. A cluster that
was joined, by address or because this process was connected to it before, goes on.

What is placed is a class that both sides can import; arguments and answers are bytes, strings and numbers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
import ray

OBJECT_STORE_BYTES = 80 << 20
"""The least that Ray lets one have, about: requests and answers are small, experience goes past Ray."""
END_S = 10.0
"""Patience with our own cluster's processes after they were told to end; then they are killed."""

_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray gives a node the loopback address, as it does by default on other systems. It is its one way to that:
`_node_ip_address="127.0.0.1"` is replaced by an address that others reach, and all servers listen on all addresses."""

_lock = threading.Lock()
_users: set[RayCluster] = set()
_token = secrets.token_hex(32)
"""Of our own clusters, unless the environment has one at the first start. Ray reads a process's token but once."""


class RayCluster:
    """This process's connection to one Ray cluster; several of them at a time share it.

    Args:
        address: of a cluster: ``host:port``, or ``ray://host:port`` through Ray's client server. None = the one that
            this process is connected to already, else one of our own on this host.
        runtime_env: Ray's environment of the processes that are placed, beside what this package needs.

    Raises:
        ValueError: this process is connected to another cluster.
        ConnectionError: there is no cluster at the address.
    """

    _directory: Path | None = None
    _joined_before = False
    _address: str | None = None

    def __init__(self, address: str | None = None, runtime_env: Mapping[str, Any] | None = None) -> None:
        self._runtime_env = dict(runtime_env or {})
        # One thread each: NumPy and torch read it once, and instances share the host's cores.
        self._runtime_env["env_vars"] = {
            "OMP_NUM_THREADS": "1",
            "PYTHONSAFEPATH": "1",
            **self._runtime_env.get("env_vars", {}),
        }
        with _lock:
            if not _users:
                _connect(address)
            elif address not in (None, RayCluster._address):
                raise ValueError(
                    f"expected the Ray cluster that this process is connected to ({RayCluster._address or 'its own'}), "
                    f"got {address}: a process can be connected to one only"
                )
            _users.add(self)

    @property
    def own(self) -> bool:
        """Whether it was started by this process, for itself."""
        return RayCluster._directory is not None

    @property
    def address(self) -> str:
        """Where other processes of this cluster's hosts reach it."""
        return str(ray.get_runtime_context().gcs_address)

    @property
    def host(self) -> str:
        """An address of this machine that the cluster's processes reach it by."""
        if self.own:
            return "127.0.0.1"
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing: asks for the way there
            return probe.getsockname()[0]

    def place(
        self,
        kind: type[Any],
        *arguments: Any,
        num_cpus: float,
        memory_bytes: int = 0,
        threads: int = 1,
        further: Mapping[str, Any] | None = None,
    ) -> Any:
        """Starts a process somewhere in the cluster with one object of a class in it; returns Ray's handle at once.

        Args:
            num_cpus: that Ray sets aside; 0 = none, and no bound on how many there are.
            memory_bytes: that Ray sets aside; it does not bound what is used.
            threads: of the object's methods that run at a time.
            further: Ray's options of an actor, such as a name; they win.
        """
        options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "max_restarts": 0,
            "max_concurrency": threads,
            "runtime_env": self._runtime_env,
        }
        if memory_bytes:
            options["memory"] = memory_bytes
        if not self.own:
            options["scheduling_strategy"] = "SPREAD"
        options |= further or {}
        return ray.remote(**options)(kind).remote(*arguments)

    def close(self) -> None:
        """Gives the connection up; with its last user a cluster of our own ends, and no process of it is left."""
        with _lock:
            if self not in _users:
                return
            _users.discard(self)
            if not _users:
                _disconnect()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _connect(address: str | None) -> None:
    RayCluster._joined_before = ray.is_initialized()
    RayCluster._address = address
    if RayCluster._joined_before:
        there = ray.get_runtime_context().gcs_address
        if address not in (None, there):
            raise ValueError(
                f"expected the Ray cluster that this process is connected to ({there}), got {address}: "
                "a process can be connected to one only"
            )
        return
    _print_what_the_cluster_says(False)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    with _signal_handlers_kept(), _ray_logs_errors_only():
        if address is not None:
            # A node of this host that is on loopback is found only by a process that takes itself to be there, too.
            with _environment({_LOOPBACK_ONLY: "0"} if _is_loopback(address) else {}):
                ray.init(address=address, **quiet)
            return
        # Mode 700. Ray's sockets lie below it in names of 80 letters, and a socket's path has at most 107.
        parent = "/tmp" if len(tempfile.gettempdir()) > 14 else None
        RayCluster._directory = Path(tempfile.mkdtemp(prefix="replay-ray-", dir=parent))
        variables = {_LOOPBACK_ONLY: "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        global _token
        _token = os.environ.get("RAY_AUTH_TOKEN") or _token
        if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
            # Else Ray makes a token of its own and leaves it in the user's home.
            variables["RAY_AUTH_TOKEN"] = _token
        try:
            with _environment(variables):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(RayCluster._directory),
                    # A process is started for who asks: what was started ahead would show no cold start.
                    _system_config={"enable_worker_prestart": False, "prestart_worker_first_driver": False},
                    **quiet,
                )
            if not (there := ray.util.get_node_ip_address()).startswith("127."):
                raise ConnectionError(f"expected Ray to listen on loopback only, got {there}: not used")
        except BaseException:
            _disconnect()
            raise
        atexit.register(_disconnect)


def _disconnect() -> None:
    directory, RayCluster._directory = RayCluster._directory, None
    if RayCluster._joined_before:
        return
    processes = _processes(str(directory)) if directory is not None else {}
    with _signal_handlers_kept():
        ray.shutdown()
    _print_what_the_cluster_says(True)
    if directory is None:
        return
    atexit.unregister(_disconnect)
    deadline = time.monotonic() + END_S
    while left := [pid for pid, started in processes.items() if _started(pid) == started]:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def _is_loopback(address: str) -> bool:
    return address.removeprefix("ray://").startswith(("127.", "localhost:", "[::1]"))


# -- what Ray changes of the process that it is used by


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Ray's processes inherit these; ours has them no longer than it takes to start them."""
    before = {name: os.environ.get(name) for name in (*variables, "RAY_AUTH_MODE")}  # Ray sets the last one itself
    os.environ.update(variables)
    # Read once, when Ray is imported, which may have been before.
    constants: Any = sys.modules["ray._private.ray_constants"]
    clusters = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = clusters and variables.get(_LOOPBACK_ONLY) != "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray puts a handler of its own in the place of SIGTERM's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _ray_logs_errors_only() -> Iterator[None]:
    """Ray's remarks on how it was started are not for who runs a job."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _print_what_the_cluster_says(whether: bool) -> None:
    """Ray prints every process's death, whatever it was told of logs; who asked for the process is told otherwise."""
    worker: Any = sys.modules["ray._private.worker"]
    worker._worker_logs_enabled = whether


# -- our own cluster's processes


def _processes(directory: str) -> dict[int, int]:
    """Ray's processes and all that they started: process id → when it was started (clock ticks)."""
    parents: dict[int, int] = {}
    ours: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if directory.encode() in (entry / "cmdline").read_bytes():
                ours.add(int(entry.name))
    ours = {pid for pid in ours if parents.get(pid) == os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {pid: started for pid in ours if (started := _started(pid)) is not None}


def _started(pid: int) -> int | None:
    """When a process was started, in clock ticks since the host was; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
