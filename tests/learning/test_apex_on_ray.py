"""Ape-X with its actors on Ray: a whole short job, an actor that dies, and a cluster that others use, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from apex_job import Job, alive, wait_for_updates, wait_until

SMALL = [
    "--env", "CartPole-v1", "--actors", "2", "--envs-per-actor", "2", "--min-size-to-sample", "200", "--hidden", "16",
    "--eval-episodes", "2", "--eval-every-updates", "50", "--final-episodes", "2", "--max-updates", "400",
    "--actors-on", "ray",
]  # fmt: skip


def ray_workers(root: int) -> set[int]:
    """Processes below `root` that run a part for Ray."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "comm").read_text()
            except OSError:
                continue
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid for pid in below if names[pid].startswith("ray::PartHost")}


@pytest.mark.slow
def test_a_job_with_actors_on_ray_goes_on_when_they_die(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    with open(output, "wb") as stream:
        job = subprocess.Popen(
            [sys.executable, "-m", "replay_server.jobs.apex", "--logdir", str(run), *SMALL],
            stdout=stream, stderr=stream, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while "evaluation after" not in output.read_text():
            assert job.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        actors = ray_workers(job.pid)
        assert len(actors) == 2
        for pid in actors:
            os.kill(pid, signal.SIGKILL)
        assert job.wait(120) == 0, output.read_text()
    finally:
        job.kill()
        job.wait()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended_by"], summary["restarts"]) == ("max_updates", 2)
    assert summary["updates"] >= 400
    assert summary["eval_episodes"] == 2
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert "starting it again" in output.read_text()
    assert "Ray lost it" in "".join(log.read_text() for log in (run / "logs").glob("actor-*.log"))
    assert not ray_workers(os.getpid())


@pytest.mark.slow
def test_a_job_with_its_shards_on_ray_goes_on_when_one_is_killed_and_is_resumed(start: Callable[..., Job]) -> None:
    words = ("--replay-shards", "2", "--shards-on", "ray", "--checkpoint-replay-every-s", "0.5")
    job = start(*words)
    pids = [int(pid) for pid in job.wait_for(r"2 shards on Ray, processes (\d+), (\d+)").groups()]
    wait_for_updates(job)
    wait_until(lambda: len(list((job.run / "replay" / "shards").glob("shard-*/*.snapshot"))) >= 2)
    os.kill(pids[0], signal.SIGKILL)
    job.wait_for("a shard has ended, and was started again")
    job.wait_for(r"2 shards on Ray, processes .*[\s\S]*2 shards on Ray, processes .* with a replay of \d+ transitions")
    wait_for_updates(job)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130, job.text
    assert not any(map(alive, pids))
    resumed = start("--resume", "--max-updates", "1")
    resumed.wait_for(r"2 shards on Ray, processes .* with a replay of \d+ transitions")
    assert resumed.wait() == 0, resumed.text


@pytest.mark.parametrize("option", ["--actors-on", "--shards-on"])
def test_a_place_that_is_none_is_refused(tmp_path: Path, option: str) -> None:
    words = ["--env", "CartPole-v1", option, "mars", "--logdir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "replay_server.jobs.apex", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "expected processes, ray or ray:HOST:PORT, got mars" in done.stderr
