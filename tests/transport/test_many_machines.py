"""A server, two actor hosts and a learner host, in four network namespaces; an actor host is cut off and comes back."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import replay_server as rs

pytest.importorskip("torch", reason="needs the extra rl (make setup installs it)")
pytest.importorskip("gymnasium", reason="needs the extra rl (make setup installs it)")

PASSWORD = "a password that nobody prints"
PORT = 6400
SEED = 1
SETTINGS = ["--env", "CartPole-v1", "--profile", "cartpole", "--actors", "2", "--seed", str(SEED)]
"""What the learner is told, and it alone: the others have the URL."""
ENVIRONMENT = {"REPLAY_SERVER_PASSWORD": PASSWORD, "OMP_NUM_THREADS": "1"}
LONGEST_S = 600.0
"""It only ends a test that hangs: a loaded machine takes many times as long as a quiet one."""
ID = re.compile(r"actor (\d+) of the run at table apex")

pytestmark = [pytest.mark.root, pytest.mark.learning]


def wait_for(what: str, condition: Callable[[], Any], running: list[subprocess.Popen[str]]) -> Any:
    """Polls until the condition holds; fails with what was waited for, or when one of the processes has ended."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        if value := condition():
            return value
        for process in running:
            assert process.poll() is None, f"while waiting for {what}: {process.args} ended with {process.returncode}"
        time.sleep(0.2)
    pytest.fail(f"waited {LONGEST_S:g} s for {what}")


def number(client: rs.Client, key: str, field: str) -> float:
    value = client.redis.hget(key, field)
    return float(value) if value is not None else 0.0


@contextmanager
def logs_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")
        raise


def test_an_actor_host_that_is_cut_off_comes_back_and_the_learner_goes_on(network: Any, tmp_path: Path) -> None:
    module = [sys.executable, "-m", "replay_server"]
    address = network.addresses["server"]
    socket = tmp_path / "s"
    url = f"redis://{address}:{PORT}"

    with logs_on_failure(tmp_path):
        serve = [*module, "serve", "--host", address, "--port", str(PORT), "--unixsocket", str(socket)]
        server = network.start("server", serve, tmp_path / "server.log", ENVIRONMENT)
        wait_for("the server's ready line", lambda: "ready url=" in (tmp_path / "server.log").read_text(), [server])
        learn = [*module, "learner", "--server", url, "--logdir", str(tmp_path / "run"), *SETTINGS]
        learner = network.start("learner", learn, tmp_path / "learner.log", ENVIRONMENT)
        actors = [
            network.start(
                f"actors{i}",
                [*module, "actor", "--server", url],
                tmp_path / f"actor{i}.log",
                ENVIRONMENT,
            )
            for i in range(2)
        ]
        running = [server, learner, *actors]

        # The hosts' network is not this process's: it looks on through the server's unix socket.
        with rs.Client(f"unix://:{PASSWORD}@{socket}") as client:
            ids = [
                wait_for("an id", lambda log=tmp_path / f"actor{i}.log": ID.search(log.read_text()), running)[1]
                for i in range(2)
            ]
            assert sorted(ids) == ["0", "1"]
            frames = [lambda i=i: number(client, f"apex:actor:{i}", "frames") for i in ids]
            updates = lambda: number(client, "apex:learner", "updates")  # noqa: E731
            wait_for("both actors and the learner at work", lambda: all(f() > 0 for f in frames) and updates(), running)

            network.set_link("actors1", up=False)
            time.sleep(2)  # what was already on its way arrives
            cut_frames, cut_updates, other_frames = frames[1](), updates(), frames[0]()
            wait_for("the learner to go on", lambda: updates() > cut_updates + 100, running)
            wait_for("the other actor to go on", lambda: frames[0]() > other_frames, running)
            assert frames[1]() == cut_frames, "the host was not cut off"

            network.set_link("actors1", up=True)
            wait_for("the cut-off actor to come back", lambda: frames[1]() > cut_frames, running)

            assert client.info("apex")["added"] > 0

        for process in (*actors, learner, server):
            process.terminate()
        assert [process.wait(timeout=LONGEST_S) for process in (*actors, learner)] == [130, 130, 130]
        assert server.wait(timeout=LONGEST_S) == 0
        assert not socket.exists()
        for file in tmp_path.rglob("*.log"):
            assert PASSWORD not in file.read_text(), f"{file.name} prints the password"


def test_another_host_joins_a_job_with_nothing_but_the_line_that_the_job_prints(network: Any, tmp_path: Path) -> None:
    job_log, actor_log = tmp_path / "job.log", tmp_path / "actor.log"
    small = ["--min-size-to-sample", "200", "--eval-episodes", "1", "--final-episodes", "1"]
    command = [sys.executable, "-m", "replay_server", "apex", "--host", network.addresses["server"], *SETTINGS, *small]
    with logs_on_failure(tmp_path):
        job = network.start("server", [*command, "--logdir", str(tmp_path / "run")], job_log, ENVIRONMENT)
        line = re.compile(r"to join from another host: REPLAY_SERVER_PASSWORD=… replay-server (.*)")
        words = wait_for("the line to type", lambda: line.search(job_log.read_text()), [job])[1].split()
        assert words[:2] == ["actor", "--server"]
        actor = network.start("actors0", [sys.executable, "-m", "replay_server", *words], actor_log, ENVIRONMENT)
        wait_for("it to join", lambda: "actor 2 has joined" in job_log.read_text(), [job, actor])
        wait_for("its scores", lambda: re.search(r"actor scores( \S+){3} ·", job_log.read_text()), [job, actor])
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=LONGEST_S) == 130
        assert actor.wait(timeout=LONGEST_S) == 0
        assert "actor 2 ends: table 'apex' is closed: the job ended (interrupted)" in actor_log.read_text()
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["ended_by"] == "interrupted"
        assert summary["actors_played"] >= 2, "it and one of the job's own at least"
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or PASSWORD.encode() not in file.read_bytes(), f"{file.name} has the password"


def test_a_server_on_an_open_address_wants_a_password(network: Any, tmp_path: Path) -> None:
    """Bound to an address that other hosts can reach, it is refused without one."""
    serve = [sys.executable, "-m", "replay_server", "serve", "--host", network.addresses["server"], "--port", "0"]
    assert network.start("server", serve, tmp_path / "refused.log").wait(timeout=LONGEST_S) == 2
    assert "password" in (tmp_path / "refused.log").read_text()
