"""Real Ape-X parts whose time is taken, on the clients' side.

``python -m replay_server.bench.papers.in_network.parts URL``.

It reads requests from its input, a line of JSON each: {"actors": N, "seconds": S}. For each it lets N actors
(`replay_server.actors`) and a learner (`replay_server.learner`) work on a fresh table, each in a process of its own,
until the learner has trained for S seconds, and answers with the seconds that each spent in each of its phases
meanwhile. The processes are forked from this one, which has loaded what takes long to load.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import replay_server as rs
from replay_server.actors.rollout import ActorProgress, run_actor
from replay_server.learner.loop import run_learner
from replay_server.learner.metrics import read_metrics
from replay_server.rl.profiles import apply_profile
from replay_server.rl.settings import PROFILES, ApexSettings

ACTOR_PHASES = ("environment_s", "inference_s", "push_s", "pull_s")
LEARNER_PHASES = ("sampling_s", "training_s", "update_s", "publish_s")
Seconds = dict[str, float]
Row = tuple[float, Mapping[str, float]]
"""A part's report: when, and the seconds spent so far, by phase."""
_SLACK_S = 1.0
"""Parts report about once a second, each in its own time."""
_PATIENCE_S = 60.0


def settings(actors: int, table: str) -> ApexSettings:
    """Breakout for two processors; weights travel five times as often as otherwise, to be seen in a few seconds."""
    given: dict[str, Any] = {
        "actors": actors,
        "envs_per_actor": 4,
        "table": table,
        "capacity": 10_000,
        "min_size_to_sample": 400,
        "samples_per_insert": None,
        "publish_every": 5,
        "pull_every_frames": 80,
        "learner_threads": 1,
        "prefetch": 1,
        "checkpoint_every_s": 1e9,
    }
    return apply_profile(ApexSettings(profile="atari-small", **given), set(given), PROFILES)


def spent(rows: list[Row], begin: float, end: float, names: tuple[str, ...]) -> Seconds:
    """What a part's reports say of the time from `begin` to `end`, and "elapsed_s" between the reports next to these.

    Raises:
        RuntimeError: there is but one report in that time.
    """
    within = [row for row in rows if begin - _SLACK_S <= row[0] <= end + _SLACK_S]
    if len(within) < 2:
        raise RuntimeError(f"too short: {len(within)} reports in {end - begin:.1f} s")
    (began, first), (ended, last) = within[0], within[-1]
    return {**{name: last[name] - first[name] for name in names}, "elapsed_s": ended - began}


def act(url: str, chosen: ApexSettings, actor: int, over: Path) -> list[Row]:
    """Plays until the file `over` is there; its reports."""
    rows: list[Row] = []

    def keep(progress: ActorProgress) -> None:
        values = {name: float(getattr(progress, name)) for name in (*ACTOR_PHASES, "transitions")}
        rows.append((time.time(), values))

    run_actor(chosen, url, actor, over.exists, keep)
    return rows


def learn(url: str, chosen: ApexSettings, seconds: float, over: Path) -> list[Row]:
    """Trains for so long after its first report; its reports."""
    stop = threading.Event()

    def watch(folder: Path) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not stop.wait(0.1) and time.monotonic() < end:
            reports = read_metrics(folder, "learner")
            if reports and time.time() - reports[0]["time_s"] > seconds:
                break
        stop.set()

    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        threading.Thread(target=watch, args=(Path(folder),), daemon=True).start()
        try:
            run_learner(chosen, url, Path(folder), stop, tensorboard=False)
        finally:
            over.touch()
        reports = read_metrics(Path(folder), "learner")
        return [
            (row["time_s"], {**{name: row[name] for name in LEARNER_PHASES}, "updates": row["step"]}) for row in reports
        ]


def forked(work: Callable[[], list[Row]]) -> tuple[int, int]:
    """Runs in a child process; its id, and a descriptor from which its answer can be read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    sys.stdout = sys.stderr  # answers alone are printed: what a part says is not one
    try:
        answer: dict[str, Any] = {"answer": work()}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with os.fdopen(writing, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)


def collected(children: list[tuple[int, int]]) -> list[list[Row]]:
    """The answers of all of them, when they have ended."""
    answers = []
    for child, reading in children:
        with os.fdopen(reading) as pipe:
            answers.append(pipe.read())
        os.waitpid(child, 0)
    found: list[dict[str, Any]] = [
        json.loads(answer) if answer else {"error": "a part ended without an answer"} for answer in answers
    ]
    if errors := [answer["error"] for answer in found if "error" in answer]:
        raise RuntimeError(errors[0])
    return [answer["answer"] for answer in found]


def run(url: str, table: str, actors: int, seconds: float) -> dict[str, Any]:
    """One run of all parts: what each spent while the learner trained."""
    chosen = settings(actors, table)
    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        over = Path(folder) / "over"
        children = [forked(lambda: learn(url, chosen, seconds, over))]
        children += [forked(lambda i=i: act(url, chosen, i, over)) for i in range(actors)]
        learner, *acted = collected(children)
    with rs.Client(url) as client:
        client.drop_table(table)
    if not learner:
        raise RuntimeError(f"the learner got no batch in {_PATIENCE_S:.0f} s")
    begin, end = learner[0][0], learner[-1][0]
    return {
        "learner": spent(learner, begin, end, (*LEARNER_PHASES, "updates")),
        "actors": [spent(rows, begin, end, (*ACTOR_PHASES, "transitions")) for rows in acted],
    }


def main(url: str) -> int:
    torch.set_num_threads(1)
    for number, line in enumerate(sys.stdin):
        try:
            answer: dict[str, Any] = {"answer": run(url, f"apex{number}", **json.loads(line))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
