"""What jobs leave behind and dashboards over it, for tests: a real server's tables, run directories, a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import replay_server as rs
from replay_server.rl.run_directory import process_started

DEADLINE_S = 60.0


def prioritized(name: str, capacity: int = 1000) -> rs.Table:
    """A table for items of two numbers."""
    signature = {"x": rs.Column("float32", (2,))}
    return rs.Table(name, capacity=capacity, signature=signature, sampler=rs.Prioritized(priority_exponent=0.6))


def fill(client: rs.Client, table: str, count: int, priority: float = 1.0) -> np.ndarray:
    """Adds items of one priority; their ids."""
    return client.add(table, {"x": np.zeros((count, 2), np.float32)}, priorities=np.full(count, priority))


class FakeApex:
    """What an Ape-X job writes: its run directory, and its actors' reports on the server."""

    def __init__(self, path: Path, client: rs.Client | None, url: str, actors: int) -> None:
        self.path, self.client, self.url, self.actors = path, client, url, actors
        path.mkdir(parents=True)
        settings = {
            "env": "CartPole-v1", "seed": 7, "actors": actors, "table": "apex", "capacity": 1000, "logdir": str(path),
            "min_size_to_sample": 10, "samples_per_insert": 8.0, "target_score": 475.0, "eval_episodes": 20,
        }  # fmt: skip
        (path / "config.json").write_text(json.dumps(settings))
        self.began_s = time.time() - 300.0
        self.write_job()

    def write_job(self, restarts: int = 0, pid: int | None = None) -> None:
        pid = os.getpid() if pid is None else pid
        parts = [{"name": "learner", "running": True, "restarts": 0}]
        parts += [{"name": f"actor {index}", "running": True, "restarts": restarts} for index in range(self.actors)]
        job = {
            "kind": "apex", "host": socket.gethostname(), "pid": pid, "pid_started": process_started(pid) or 1,
            "started_s": self.began_s, "server": self.url, "parts": parts,
        }  # fmt: skip
        (self.path / "job.json").write_text(json.dumps(job))

    def write_rows(self, count: int, first: int = 0) -> None:
        """Rows as of every ten seconds: the learner, the progress, an evaluation."""
        with open(self.path / "metrics.jsonl", "a") as file:
            for place in range(first, first + count):
                at = {"time_s": self.began_s + 10.0 * place, "step": 100 * place}
                scores = {f"actor_{index}_score": float(10 * place + index) for index in range(self.actors)}
                progress = {
                    "elapsed_s": 10.0 * place, "frames": 1000 * place, "transitions": 900 * place,
                    "frames_per_s": 100.0, "transitions_per_s": 90.0, "updates_per_s": 10.0,
                    "size": min(1000, 900 * place), "restarts": 0,
                    "samples_per_insert": 8.0, "weight_staleness": 25,
                }  # fmt: skip
                learner = {"loss": 10.0 / (place + 1), "mean_q": float(place), "td_error": 1.0, "version": 100 * place}
                evaluation = {"score_mean": float(min(500, 40 * place)), "score_std": 5.0, "version": 100 * place}
                for row in (
                    {"kind": "learner", **at, **learner},
                    {"kind": "progress", **at, **progress, **scores},
                    {"kind": "evaluation", **at, **evaluation},
                ):
                    file.write(json.dumps(row) + "\n")

    def report(self, version: int = 1000) -> None:
        """What the learner and every actor tell the server."""
        assert self.client is not None
        learner = {
            "updates": version, "loss": 0.5, "mean_q": 9.0, "td_error": 0.1, "version": version, "waiting_share": 0.25,
        }  # fmt: skip
        self.client.redis.hset("apex:learner", mapping=learner)
        for index in range(self.actors):
            report = {
                "frames": 1000 + index, "steps_per_s": 50.0, "episodes": 20, "score_mean": 100.0 + index,
                "version": version - 25, "started_at": self.began_s, "updated_at": time.time(),
            }  # fmt: skip
            self.client.redis.hset(f"apex:actor:{index}", mapping=report)

    def end(self, ended_by: str = "minutes") -> None:
        summary = {"env": "CartPole-v1", "seed": 7, "ended_by": ended_by, "eval_mean": 498.5, "eval_episodes": 20}
        (self.path / "summary.json").write_text(json.dumps(summary))


def write_train(
    path: Path, rounds: int, budget: float | None = 0.01, env: str = "Hopper-v5", request: str = "r"
) -> None:
    """A running serverless job's directory; the names of its requests begin with `request`."""
    path.mkdir(parents=True, exist_ok=True)
    settings = {
        "env": env, "algo": "ppo", "scaler": "fixed", "seed": 3, "rounds": 20, "actors": 4, "budget": budget,
        "backend": "process", "price_profile": "lambda", "price_column": "full",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(settings))
    pid = os.getpid()
    began_s = time.time() - 100.0
    job = {"kind": "train", "host": socket.gethostname(), "pid": pid, "pid_started": process_started(pid), "parts": []}
    (path / "job.json").write_text(json.dumps({**job, "started_s": began_s, "server": "redis://127.0.0.1:1"}))
    with open(path / "metrics.jsonl", "w") as rows, open(path / "invocations.jsonl", "w") as log:
        for number in range(1, rounds + 1):
            at = began_s + 4.0 * number
            row = {
                "kind": "round", "time_s": at, "step": number, "round": number, "version": number, "actors": 4,
                "arrived": 3 if number == 2 else 4, "steps": 1024, "total_steps": 1024 * number,
                "scores": [10.0 * number, 30.0 * number], "score": 20.0 * number, "round_s": 4.0, "learner_s": 1.5,
                "actor_s_mean": 1.8, "actor_s_max": 2.0, "cost": 0.001 * number,
                "statistics": {"loss": 1.0 / number, "kl": 0.01, "entropy": 0.7, "staleness": 0.5},
            }  # fmt: skip
            rows.write(json.dumps(row) + "\n")
            for actor in range(4):
                outcome = "lost" if (number, actor) == (2, 3) else "ok"
                call = {
                    "request": f"{request}{number}-a{actor}", "kind": "actor", "round": number, "attempt": 1,
                    "queued": at - 4.0, "started": at - 3.9, "ended": at - 2.0, "outcome": outcome,
                    "cold": number == 1, "instance": str(actor), "measured": {"startup_s": 0.5},
                }  # fmt: skip
                log.write(json.dumps(call) + "\n")
            learner = {
                "request": f"r{number}-l", "kind": "learner", "round": number, "attempt": 1, "queued": at - 1.9,
                "started": at - 1.8, "ended": at - 0.2, "outcome": "ok", "cold": False, "measured": None,
            }  # fmt: skip
            log.write(json.dumps(learner) + "\n")


class Dashboard:
    """`replay-server dashboard` as a process."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self._log = open(folder / "dashboard.log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "replay_server", "dashboard", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("dashboard http://127.0.0.1:"), (line, (folder / "dashboard.log").read_text())
        self.url = line.split()[1].rstrip("/")

    def stop(self, by: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(by)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self._log.close()
            assert self.process.stdout is not None
            self.process.stdout.close()
