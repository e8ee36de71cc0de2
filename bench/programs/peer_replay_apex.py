"""This project's Ape-X, as `replay-server apex` runs it: server, actors, learner and evaluator.

The evaluator of the job plays beside the others and takes its share of the machine; what it finds is not used.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from games import LOOK_EVERY_S, is_left

from replay_server.actors.evaluator import evaluate as evaluate_network
from replay_server.bench.process import end_process
from replay_server.learner.checkpoint import checkpoints, read_network
from replay_server.learner.metrics import read_metrics
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.networks import make_acting_network
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings

PACKAGES = ("replay-server", "gymnasium", "ale-py", "numpy", "torch")


def train(
    env: str,
    seed: int,
    seconds: float,
    every_s: float,
    sticky_actions: float,
    folder: str,
    words: list[str],
) -> dict[str, Any]:
    run = Path(folder) / "run"
    Path(folder).mkdir(parents=True, exist_ok=True)
    given = {
        "env": env,
        "seed": seed,
        "sticky-actions": sticky_actions,
        "minutes": seconds / 60,
        "checkpoint-every-s": every_s,
        "checkpoints-kept": math.ceil(seconds / every_s) + 2,
        "final-episodes": 0,
        "dashboard": "off",
        "checkpoint-replay": "off",  # nobody resumes it, and it is as large as the replay
        "logdir": run,
    }
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    with open(Path(folder) / "job.log", "wb") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "replay_server.jobs.apex", *options, *words], stdout=log, stderr=log
        )
    try:
        while (status := _status(job)) is None:
            if is_left():
                raise SystemExit("nobody waits for this run any more")
    finally:
        end_process(job)
    if status != 0:
        raise RuntimeError(f"the job failed:\n{(Path(folder) / 'job.log').read_text()[-2000:]}")
    return {"checkpoints": _written(run), "used": json.loads((run / "config.json").read_text())}


def _status(job: subprocess.Popen[bytes]) -> int | None:
    """Its exit status, once it has ended; waits a while for it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return job.wait(LOOK_EVERY_S)
    return None


def _written(run: Path) -> list[dict[str, Any]]:
    """The checkpoints, by the job's own clock: it begins with the first step of an actor."""
    rows = read_metrics(run, "progress")
    began = rows[-1]["time_s"] - rows[-1]["elapsed_s"]
    found = []
    for path in checkpoints(run / "checkpoints"):
        at = (path / "counters.json").stat().st_mtime
        # The first and the last are written by a learner that has learned nothing yet, or has just ended.
        frames = [row["frames"] for row in rows if row["time_s"] <= at] or [0]
        minutes, updates = round(max(0.0, at - began) / 60, 4), int(path.name.removeprefix("step_"))
        found.append({"file": str(path), "minutes": minutes, "frames": frames[-1], "updates": updates})
    return found


def evaluate(
    files: list[str], env: str, sticky_actions: float, games: int, epsilon: float, seed: int, words: list[str]
) -> list[list[float]]:
    found = []
    for file in files:
        settings = RunDirectory(Path(file).parents[1]).settings(ApexSettings, {})
        network = make_acting_network(settings, environment_spec(settings))
        read_network(Path(file), network)
        found.append(evaluate_network(network, settings, games, seed, epsilon))
    return found
