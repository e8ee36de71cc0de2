"""`replay-server bench dashboard`: what being looked at costs a server, with and without the dashboard, in turns.

A server with one table whose actors and learner report once a second, and a learner that samples and updates a few
times a second. `replay-server dashboard` looks at it, as a process of its own; for the turns without it that process is
stopped (SIGSTOP). Times are microseconds of the processor a second: 10,000 are 1 % of a core. The dashboard's own is
without a page open.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.load import cpu_seconds

TABLE = "apex"
SETTLE_S = 2.0
ITEMS = 50_000
BATCH = 256
BATCHES_PER_S = 10.0


class Job(threading.Thread):
    """Reports as the actors and the learner of a job make them, and a learner's batches, until `stop` is set."""

    def __init__(self, url: str, actors: int) -> None:
        super().__init__(name="job", daemon=True)
        self.stop = threading.Event()
        self.actors = actors
        self._client = rs.Client(url)
        generator = np.random.default_rng(1)
        self._priorities = generator.lognormal(-2.0, 1.5, BATCH)
        columns = {"x": generator.standard_normal((ITEMS, 8)).astype(np.float32)}
        self._client.add(TABLE, columns, generator.lognormal(-2.0, 1.5, ITEMS))

    def run(self) -> None:
        began, turn = time.time(), 0
        while not self.stop.wait(1.0 / BATCHES_PER_S):
            batch = self._client.sample(TABLE, BATCH)
            self._client.update_priorities(TABLE, batch.ids, self._priorities)
            if turn % int(BATCHES_PER_S) == 0:
                self._report(turn, began)
            turn += 1
        self._client.close()

    def _report(self, turn: int, began: float) -> None:
        pipeline = self._client.redis.pipeline(transaction=False)
        learner: dict[Any, Any] = {
            "updates": turn,
            "version": turn,
            "loss": 0.1,
            "mean_q": 1.0,
            "td_error": 0.2,
            "waiting_share": 0.0,
        }
        pipeline.hset(f"{TABLE}:learner", mapping=learner)
        for actor in range(self.actors):
            report: dict[Any, Any] = {
                "frames": 100 * turn, "steps": 25 * turn, "transitions": 25 * turn, "episodes": turn, "score_mean": 1.5,
                "version": max(0, turn - actor), "blocked_s": 0.0, "environment_s": 1.0, "inference_s": 1.0,
                "push_s": 1.0, "pull_s": 1.0, "steps_per_s": 250.0, "started_at": began, "updated_at": time.time(),
            }  # fmt: skip
            pipeline.hset(f"{TABLE}:actor:{actor}", mapping=report)
        pipeline.execute()


def start_dashboard(url: str, folder: str) -> subprocess.Popen[str]:
    """The dashboard as a process, when its pages are there. RuntimeError where there is none."""
    command = [sys.executable, "-m", "replay_server", "dashboard", "--port", "0", "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    if not process.stdout.readline().startswith("dashboard http://"):
        raise RuntimeError("the dashboard did not start: pip install 'replay-server[dashboard]'")
    return process


def one_turn(server: rs.Server, dashboard: subprocess.Popen[str], looked_at: bool, seconds: float) -> dict[str, float]:
    """The server's share of a core, and the dashboard's, while that looks or is stopped."""
    dashboard.send_signal(signal.SIGCONT if looked_at else signal.SIGSTOP)
    time.sleep(SETTLE_S)
    begin, server_s, own_s = time.perf_counter(), cpu_seconds(server.pid), cpu_seconds(dashboard.pid)
    time.sleep(seconds)
    passed = time.perf_counter() - begin
    shares = {
        "server": (cpu_seconds(server.pid) - server_s) / passed,
        "own": (cpu_seconds(dashboard.pid) - own_s) / passed,
    }
    if not looked_at:
        return {"without.server_us_per_s": 1e6 * shares["server"]}
    return {"with.server_us_per_s": 1e6 * shares["server"], "with.dashboard_us_per_s": 1e6 * shares["own"]}


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    parser = Parser("replay-server bench dashboard", description=__doc__)
    parser.add_argument("--actors", type=int, default=64, help="that report once a second (64)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn (15)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each one turn with and one without (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    host = result.machine()
    table = rs.Table(
        TABLE,
        capacity=2 * ITEMS,
        signature={"x": rs.Column("float32", (8,))},
        sampler=rs.Prioritized(priority_exponent=0.6),
    )
    rounds: list[dict[str, float]] = []
    with rs.Server([table]) as server:
        job = Job(server.url, options.actors)
        job.start()
        dashboard = start_dashboard(server.url, folder or ".")
        try:
            time.sleep(SETTLE_S)
            for number in range(options.rounds):
                turns = (True, False) if number % 2 else (False, True)
                measured: dict[str, float] = {}
                for looked_at in turns:
                    measured |= one_turn(server, dashboard, looked_at, options.seconds)
                both = [measured[f"{side}.server_us_per_s"] for side in ("with", "without")]
                measured["server_us_per_s_for_it"] = both[0] - both[1]
                rounds.append({name: round(value, 4) for name, value in measured.items()})
                say(f"round {number + 1}/{options.rounds} done")
        finally:
            dashboard.kill()
            dashboard.wait()
            job.stop.set()
            job.join()
    command = " ".join(["replay-server bench dashboard", *argv])
    ratios = {"server with / without": ("with.server_us_per_s", "without.server_us_per_s")}
    content: dict[str, Any] = result.document("dashboard", command, host, vars(options), rounds, ratios)
    result.tell(content, say)
    if options.json:
        result.write(options.json, content)
    return 0
