"""Rollouts whose server is killed while workers and a learner are at work: the bound, and each sample once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keyed_samples import SIGNATURE, columns_of, sample

import replay_server as rs

UPDATES = 60


class Killed:
    """Workers and a learner of a server that is killed while they are at work; what each was told is written down."""

    def __init__(self, url: str, max_staleness: int, max_delay: int) -> None:
        self.url, self.over = url, threading.Event()
        self.settings = {"max_staleness": max_staleness, "max_delay": max_delay}
        self.acknowledged: list[tuple[int, int, int]] = []  # place, key, version
        self.trained: list[tuple[int, rs.RolloutBatch]] = []
        self.failures: list[BaseException] = []
        self.refused = 0
        self._keys = itertools.count()

    def rollouts(self, client: rs.Client) -> rs.Rollouts:
        settings = {"group_size": 3, "groups_per_batch": 2, "lease_s": 0.2, **self.settings}
        return rs.Rollouts(client, "r", SIGNATURE, **settings)

    def run(self, what: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                with rs.Client(self.url, reconnect_timeout=60) as client:
                    what(client, self.rollouts(client), *arguments)
            except BaseException as error:
                self.failures.append(error)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def work(self, client: rs.Client, rollouts: rs.Rollouts, seed: int) -> None:
        """Makes samples with the newest weights; now and then it loses one, or is late with it."""
        chance = random.Random(seed)
        while not self.over.is_set():
            version, _ = client.fetch_weights("policy") or (0, {})
            try:
                leases = rollouts.lease(chance.randint(1, 4), version, timeout=0.2)
            except (rs.Timeout, rs.StaleVersion):
                continue
            if chance.random() < 0.5:
                self.submit_at_once(rollouts, leases, version)
                continue
            for lease in leases:
                fate = chance.random()
                if fate < 0.05:
                    continue  # as a worker that died
                if fate < 0.1:
                    self.over.wait(0.3)  # longer than the lease
                key = next(self._keys)
                try:
                    rollouts.submit(lease, sample(key))
                    self.acknowledged.append((lease.place, key, version))
                    if fate > 0.8:
                        rollouts.submit(lease, sample(key))
                except rs.LeaseExpired:
                    self.refused += 1

    def submit_at_once(self, rollouts: rs.Rollouts, leases: list[rs.Lease], version: int) -> None:
        keys, lost = [next(self._keys) for _ in leases], []
        try:
            rollouts.submit_samples(leases, columns_of(keys))
        except rs.LeaseExpired as error:
            lost = error.lost
        self.refused += len(lost)
        for lease, key in zip(leases, keys, strict=True):
            if lease not in lost:
                self.acknowledged.append((lease.place, key, version))

    def learn(self, client: rs.Client, rollouts: rs.Rollouts) -> None:
        for version in range(UPDATES):
            batch = rollouts.take(version)
            self.trained.append((version, batch))
            client.publish_weights("policy", {"w": np.full(3, version, np.float32)}, version + 1)
        self.over.set()


@pytest.mark.parametrize(("max_staleness", "max_delay"), [(1, 0), (3, 1)])
def test_the_bound_and_each_sample_once_through_kills_of_the_server(
    tmp_path: Path, free_port: int, eventually, max_staleness: int, max_delay: int
):
    config = {"appendonly": "yes", "appendfsync": "always"}

    def serve() -> rs.Server:
        return rs.Server([], port=free_port, directory=str(tmp_path), config=config)

    server = serve()
    job = Killed(server.url, max_staleness, max_delay)
    try:
        threads = [job.run(job.work, seed) for seed in range(3)] + [job.run(job.learn)]
        for share in (0.2, 0.5, 0.8):
            eventually(lambda share=share: len(job.trained) >= share * UPDATES or job.failures, "the learner went on")
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            server = serve()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()
    finally:
        job.over.set()
        server.stop()
    assert not job.failures
    assert [version for version, _ in job.trained] == list(range(UPDATES))
    trained: dict[int, tuple[int, int]] = {}
    for version, batch in job.trained:
        assert 0 <= version - batch.policy_versions.min() <= max_staleness
        assert (batch.policy_versions <= version).all()
        keys = batch.data["reward"].astype(int).tolist()
        assert [rows.tolist() for rows in batch.data["tokens"]] == [[key] * 3 for key in keys]
        for row, (key, policy_version) in enumerate(zip(keys, batch.policy_versions.tolist(), strict=True)):
            place = 3 * int(batch.groups[row]) + row % 3
            assert batch.groups[row] == batch.groups[row // 3 * 3]
            assert place // 6 - (max_staleness - max_delay) <= version <= place // 6 + max_delay
            assert place not in trained
            trained[place] = (key, policy_version)
    used = [key for key, _ in trained.values()]
    assert len(set(used)) == len(used) == 6 * UPDATES, "a sample was trained on twice"
    if max_delay == 0:
        assert list(trained) == list(range(6 * UPDATES))
    lost = [place for place, key, version in job.acknowledged if trained.get(place, (key, version)) != (key, version)]
    assert lost == []
    assert len({place for place, _, _ in job.acknowledged}) == len(job.acknowledged)
    assert job.refused > 0, "no lease was lost: the test shows less than it says"
