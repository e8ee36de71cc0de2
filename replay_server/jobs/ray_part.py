"""Actors of a job as processes that Ray places, on this machine or on many."""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import threading
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from replay_server.jobs.supervisor import PartFailed
from replay_server.rl.ray_cluster import RayCluster

EXIT_LOST = -9
"""What stands for the exit code of a process that Ray lost."""
KILL_S = 5.0


class PartHost:
    """What runs in a process of the cluster: one part, and beside it who tells it to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def run(self, instructions: str) -> tuple[int, str]:
        """Runs the part (`replay_server.jobs.child`); its exit code, and what it said of a failure."""
        from replay_server.jobs.child import make_part, run_part

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = run_part(make_part(json.loads(instructions)), self._stop)
        return code, said.getvalue()

    def stop(self) -> None:
        """Has the part end."""
        self._stop.set()


class RayActors:
    """Where a job's actors run.

    Args:
        address: of a Ray cluster; None = one of our own on this machine.

    Raises:
        PartFailed: there is no such cluster.
    """

    def __init__(self, address: str | None) -> None:
        try:
            self._cluster = RayCluster(address)
        except (ValueError, OSError, RuntimeError) as error:
            raise PartFailed(f"expected a Ray cluster {f'at {address}' if address else 'here'}: {error}") from error
        self.host = self._cluster.host
        """Address for the job's server to listen on: actors reach it there."""
        self.password = None if self.host == "127.0.0.1" else secrets.token_hex(16)
        """For the server, where others can reach it."""

    def launch(self, instructions: dict[str, Any], log: Path) -> RayProcess:
        """Starts a part in the cluster; its log holds what it said of a failure."""
        # On our own cluster nothing is set aside: the job decides how many actors there are.
        num_cpus = 0.0 if self._cluster.own else 1.0
        return RayProcess(self._cluster.place(PartHost, num_cpus=num_cpus, threads=2), instructions, log)

    def close(self) -> None:
        """Ends a cluster of our own; one that was joined goes on."""
        self._cluster.close()


class RayProcess:
    """A part in a process that Ray placed (`replay_server.jobs.supervisor.PartProcess`)."""

    pid = None

    def __init__(self, host: Any, instructions: dict[str, Any], log: Path) -> None:
        self._host = host
        self._log = log
        self._code: int | None = None
        self._running = host.run.remote(json.dumps(instructions))

    def poll(self) -> int | None:
        self.wait(0.0)
        return self._code

    def hang_up(self) -> None:
        if self._code is None:
            self._host.stop.remote()

    def wait(self, timeout_s: float) -> bool:
        if self._code is not None:
            return True
        try:
            code, said = ray.get(self._running, timeout=timeout_s)
        except GetTimeoutError:
            return False
        except RayError as error:
            code, said = EXIT_LOST, f"Ray lost it: {error}\n"
        with open(self._log, "a") as log:
            log.write(said)
        self._code = code
        # The process is this part's alone.
        ray.kill(self._host)
        return True

    def kill(self) -> None:
        ray.kill(self._host)
        self.wait(KILL_S)
