"""The learner's loop against a real server: what it writes back, publishes, reports and leaves behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.learner.dqn import Dqn
from replay_server.learner.loop import run_learner
from replay_server.learner.metrics import Metrics, read_metrics
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import STEP_COLUMN, apex_table

SETTINGS = ApexSettings(
    env="CartPole-v1", hidden=16, batch_size=32, capacity=1_000, min_size_to_sample=100, max_updates=30,
    publish_every=10, optimizer="adam", learning_rate=1e-3, learner_threads=1, device="cpu", precision="float32",
)  # fmt: skip


def add_transitions(client: rs.Client, count: int, priority: float | None = None) -> None:
    generator = np.random.default_rng(0)
    with client.writer("apex", flush_steps=64) as writer:
        for _ in range(count):
            writer.append({STEP_COLUMN: generator.normal(size=4).astype(np.float32)})
            columns = {"action": generator.integers(0, 2), "reward": np.float32(1), "discount": np.float32(0.97)}
            writer.create_item(priority, columns=columns)


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.fixture
def server(tmp_path):
    with rs.Server([apex_table(SETTINGS, environment_spec(SETTINGS))], unix=str(tmp_path / "s")) as server:
        yield server


@pytest.fixture
def client(server):
    with rs.Client(server.url, reconnect_timeout=0.5) as client:
        yield client


def test_learner_writes_every_priority_back_and_publishes_its_steps_as_versions(server, client, tmp_path):
    add_transitions(client, 200, priority=1e9)
    assert run_learner(SETTINGS, server.url, tmp_path / "run", threading.Event()) == 30
    # 30 batches of 32 have met all 200 items: had one write-back been dropped, its items would still have 1e9.
    info = client.info("apex")
    assert info["sampled"] >= 30 * 32
    assert info["stale_updates"] == 0
    assert info["max_priority"] < 1e3
    version, arrays = client.fetch_weights("apex")
    assert version == 30
    assert arrays["value.0.weight"].shape == (16, 16)
    assert float(client.redis.hget("apex:learner", "updates")) == 30


def test_frozen_priorities_are_all_written_as_one(server, client, tmp_path):
    add_transitions(client, 200, priority=1.0)
    settings = dataclasses.replace(SETTINGS, prioritized=False)
    run_learner(settings, server.url, tmp_path / "run", threading.Event())
    assert client.info("apex")["max_priority"] == 1.0
    np.testing.assert_allclose(client.sample("apex", 64).weights, 1.0)


def test_resumed_learner_goes_on_counting_steps_and_versions(server, client, tmp_path):
    add_transitions(client, 200)
    run_learner(SETTINGS, server.url, tmp_path / "run", threading.Event())
    resumed = dataclasses.replace(SETTINGS, resume=True, max_updates=45)
    assert run_learner(resumed, server.url, tmp_path / "run", threading.Event()) == 45
    # The server still holds version 30: the resumed learner's first weights had to be newer.
    assert client.fetch_weights("apex")[0] > 45
    assert (tmp_path / "run" / "checkpoints" / "step_45").is_dir()
    fresh_table = apex_table(SETTINGS, environment_spec(SETTINGS))
    with rs.Server([fresh_table]) as fresh, rs.Client(fresh.url) as second:
        add_transitions(second, 200)
        again = dataclasses.replace(resumed, max_updates=50)
        assert run_learner(again, fresh.url, tmp_path / "run", threading.Event()) == 50
        assert second.fetch_weights("apex")[0] == 50


def test_learner_that_waits_for_its_first_batch_stops_when_told(server, client, tmp_path):
    stop = threading.Event()
    thread = threading.Thread(target=run_learner, args=(SETTINGS, server.url, tmp_path / "run", stop))
    thread.start()
    wait_until(lambda: client.fetch_weights("apex") is not None)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert (tmp_path / "run" / "checkpoints" / "step_0").is_dir()


def test_learner_leaves_a_checkpoint_when_the_server_is_lost(server, client, tmp_path):
    add_transitions(client, 200)
    lost: list[BaseException] = []

    def learn() -> None:
        endless = dataclasses.replace(SETTINGS, max_updates=None)
        try:
            run_learner(endless, server.url, tmp_path / "run", threading.Event())
        except rs.ConnectionLost as error:
            lost.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    wait_until(lambda: (client.fetch_weights("apex") or (-1,))[0] >= 20)
    os.kill(server.pid, signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()
    assert len(lost) == 1
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert int(checkpoint.name[5:]) >= 20


def test_metrics_are_one_json_object_per_line_also_for_what_json_cannot_say(tmp_path):
    metrics = Metrics(tmp_path, "learner")
    metrics.write(5, {"loss": float("nan"), "updates": 3})
    metrics.write(6, {"score_mean": 2.5}, kind="evaluation")
    metrics.close()
    with open(tmp_path / "metrics.jsonl", "a") as handle:
        handle.write('{"kind": "learner", "step": 7, "lo')  # a crash in mid-line
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]]
    assert rows[0]["loss"] is None
    assert [row["step"] for row in read_metrics(tmp_path, "learner")] == [5]
    assert [row["score_mean"] for row in read_metrics(tmp_path, "evaluation")] == [2.5]
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_every_update_is_weighted_by_the_setting(server, client, tmp_path, monkeypatch, exponent):
    """What the update gets is (N·P)^−β over the batch's maximum, of probabilities that were told with the batch."""
    add_transitions(client, 100, priority=1.0)
    add_transitions(client, 100, priority=5.0)
    seen = []
    sample_of, update_of = rs.Client.sampler, Dqn.update

    def remember_batches(*arguments, **options):
        sampler = sample_of(*arguments, **options)
        take = type(sampler).__next__
        monkeypatch.setattr(type(sampler), "__next__", lambda self: seen.append([take(self), None]) or seen[-1][0])
        return sampler

    def remember_weights(self, data, weights):
        seen[-1][1] = np.array(weights)
        return update_of(self, data, weights)

    monkeypatch.setattr(rs.Client, "sampler", remember_batches)
    monkeypatch.setattr(Dqn, "update", remember_weights)
    settings = dataclasses.replace(SETTINGS, importance_sampling_exponent=exponent, max_updates=3)
    run_learner(settings, server.url, tmp_path / "run", threading.Event())
    assert len(seen) == 3
    first, weights = seen[0]
    assert len(np.unique(first.probabilities)) == 2
    expected = first.probabilities**-exponent
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
