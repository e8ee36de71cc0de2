"""Every gradient is applied once: whoever sends it again, whoever else applies it, and whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

import replay_server as rs

LEARNERS, GRADIENTS = 4, 25
LENGTH = LEARNERS * GRADIENTS


class Job:
    """Learners that push one-hot gradients, each of its own place, and appliers that add them up into weights.

    So the weights are how often each gradient was applied.
    """

    def __init__(self, url: str) -> None:
        self.url, self.over = url, threading.Event()
        self.refused = 0
        self._both = threading.Barrier(2)
        self._threads: list[threading.Thread] = []
        with self.client() as client:
            client.publish_applied("g", [], 1, {"counts": {"applied": np.zeros(LENGTH, np.float32)}})

    def client(self) -> rs.Client:
        return rs.Client(self.url, reconnect_timeout=60)

    def learn(self, learner: int, kept: int) -> None:
        """Pushes each gradient, some of them twice; at most `kept` wait at a time."""
        with self.client() as client:
            names: list[str] = []
            for sequence in range(GRADIENTS):
                vector = np.zeros(LENGTH, np.float32)
                vector[learner * GRADIENTS + sequence] = 1
                names.append(f"{learner}:{sequence}")
                client.push_gradient("g", sequence, names[-1], vector)
                if sequence % 3 == 0:
                    client.push_gradient("g", sequence, names[-1], vector)
                    client.push_gradient("g", 0, names[0], vector)  # late, and another's bytes under its name
                client.await_gradients("g", names[-8:], kept, timeout=60)

    def apply(self, dies: bool) -> None:
        """Adds up what waits and publishes it; where it `dies`, every third time between the two, and begins anew."""
        with self.client() as client:
            turn = meetings = 0
            while not self.over.is_set():
                turn += 1
                with contextlib.suppress(rs.Timeout):
                    headers = client.gradient_headers("g", 4, timeout=0.05)
                    version, arrays = client.fetch_weights("counts") or (0, {})
                    ones = np.ones(len(headers.names))
                    taken = client.take_gradients("g", len(ones), weights=ones, timeout=0)
                    if dies and turn % 3 == 0:
                        continue
                    if meetings < 2:  # from the same version: one of them is refused
                        meetings += 1
                        with contextlib.suppress(threading.BrokenBarrierError):
                            self._both.wait(60)
                    try:
                        weights = {"counts": {"applied": arrays["applied"] + taken.sum}}
                        client.publish_applied("g", taken.names, version + 1, weights)
                    except (rs.StaleVersion, rs.GradientNotWaiting, rs.ConnectionLost):
                        self.refused += 1

    def start(self) -> None:
        self._threads = [threading.Thread(target=self.learn, args=(i, 2), daemon=True) for i in range(LEARNERS)]
        self.appliers = [threading.Thread(target=self.apply, args=(i == 0,), daemon=True) for i in range(2)]
        for thread in [*self._threads, *self.appliers]:
            thread.start()

    def applied(self) -> np.ndarray:
        with self.client() as client:
            found = client.fetch_weights("counts")
        assert found is not None
        return found[1]["applied"]

    def finish(self) -> None:
        """Waits until the learners have pushed everything and nothing waits."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        deadline = time.monotonic() + 60
        with self.client() as client:
            while client.gradient_info("g")["waiting"] and time.monotonic() < deadline:
                time.sleep(0.02)
        self.over.set()
        for thread in self.appliers:
            thread.join(60)


def test_of_many_learners_and_two_appliers(server):
    job = Job(server.url)
    try:
        job.start()
        job.finish()
        np.testing.assert_array_equal(job.applied(), np.ones(LENGTH))
        assert job.refused > 0, "the two never met: the test shows less than it says"
        with job.client() as client:
            info = client.gradient_info("g")
            assert info["pushed"] == info["applied"] == LENGTH
            assert info["duplicates"] > LENGTH / 3
    finally:
        job.over.set()
        with rs.Client(server.url) as client:
            client.delete_gradients("g")
            client.redis.execute_command("WEIGHTS.DEL", "counts")


def test_of_a_server_that_is_killed_and_comes_back(tmp_path: Path, free_port: int):
    settings = {"appendonly": "yes", "appendfsync": "always"}

    def serve() -> rs.Server:
        return rs.Server([], port=free_port, directory=str(tmp_path), config=settings)

    server = serve()
    job = Job(server.url)
    try:
        job.start()
        for share in (0.2, 0.6):
            deadline = time.monotonic() + 60
            while job.applied().sum() < share * LENGTH and time.monotonic() < deadline:
                time.sleep(0.005)
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            server = serve()
        job.finish()
        np.testing.assert_array_equal(job.applied(), np.ones(LENGTH))
    finally:
        job.over.set()
        server.stop()
