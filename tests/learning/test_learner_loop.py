"""The learner's loop against a real server: what it writes back, publishes, reports and leaves behind."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import SafetensorError  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.learner import checkpoint as saving  # noqa: E402
from replay_server.learner import loop  # noqa: E402
from replay_server.learner.dqn import Dqn  # noqa: E402
from replay_server.learner.finite_checks import Diverged  # noqa: E402
from replay_server.learner.loop import run_learner  # noqa: E402
from replay_server.learner.metrics import Metrics, read_metrics  # noqa: E402
from replay_server.rl.environment_spec import environment_spec  # noqa: E402
from replay_server.rl.networks import make_network  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402
from replay_server.rl.tables import STEP_COLUMN, apex_rate_limiter, apex_table  # noqa: E402

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


def wait_until(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
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


def test_a_later_replay_ratio_is_told_to_the_table_and_again_after_a_restart(tmp_path):
    two = dataclasses.replace(
        SETTINGS, samples_per_insert=8.0, samples_per_insert_end=2.0, samples_per_insert_end_updates=20, max_updates=19
    )
    with rs.Server([apex_table(two, environment_spec(two))]) as server, rs.Client(server.url) as client:
        add_transitions(client, 150)

        def learn(updates: int) -> rs.RateLimiter:
            settings = dataclasses.replace(two, max_updates=updates, resume=True)
            assert run_learner(settings, server.url, tmp_path / "run", threading.Event()) == updates
            return client.table("apex").rate_limiter

        early, later = apex_rate_limiter(two, 8.0), apex_rate_limiter(two, 2.0)
        assert early != later
        assert learn(19) == early
        assert learn(22) == later
        client.configure("apex", rate_limiter=early)  # as a server has it that came back from an older snapshot
        assert learn(24) == later


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


def test_a_learner_opens_its_table_and_ends_with_what_it_learned_when_somebody_closes_it(server, client, tmp_path):
    add_transitions(client, 200)
    client.close_table("apex", "an earlier run ended")
    settings = dataclasses.replace(SETTINGS, max_updates=None, samples_per_insert=None)
    raised: list[BaseException] = []

    def learn() -> None:
        try:
            run_learner(settings, server.url, tmp_path / "run", threading.Event())
        except rs.ReplayError as error:
            raised.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    wait_until(lambda: int(client.redis.hget("apex:learner", "updates") or 0) > 10)
    assert not client.info("apex")["closed"]
    client.close_table("apex", "enough")
    client.reset("apex")  # with items in it a closed table goes on giving batches
    thread.join(300)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [rs.TableClosed]
    newest = saving.newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert client.fetch_weights("apex")[0] == int(newest.name.removeprefix("step_"))


def test_learner_that_waits_for_its_first_batch_stops_when_told(server, client, tmp_path):
    stop = threading.Event()
    thread = threading.Thread(target=run_learner, args=(SETTINGS, server.url, tmp_path / "run", stop))
    thread.start()
    wait_until(lambda: client.fetch_weights("apex") is not None)
    stop.set()
    thread.join(300)
    assert not thread.is_alive()
    assert (tmp_path / "run" / "checkpoints" / "step_0").is_dir()


def test_learner_leaves_a_checkpoint_when_the_server_is_lost(server, client, tmp_path):
    add_transitions(client, 200)
    lost: list[BaseException] = []

    def learn() -> None:
        endless = dataclasses.replace(SETTINGS, max_updates=None)
        try:
            run_learner(endless, server.url, tmp_path / "run", threading.Event(), patience_s=1.0)
        except rs.ConnectionLost as error:
            lost.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    wait_until(lambda: (client.fetch_weights("apex") or (-1,))[0] >= 20)
    os.kill(server.pid, signal.SIGKILL)
    thread.join(300)
    assert not thread.is_alive()
    assert len(lost) == 1
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert int(checkpoint.name[5:]) >= 20


def learning(settings: ApexSettings, url: str, run: Path, stop: threading.Event) -> tuple[threading.Thread, list]:
    """run_learner in a thread, and what it returned or raised."""
    outcome: list = []

    def learn() -> None:
        try:
            outcome.append(run_learner(settings, url, run, stop))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=learn, daemon=True)
    thread.start()
    return thread, outcome


def test_the_learner_goes_on_with_a_server_that_comes_back_empty(tmp_path):
    """As actors do; it makes the table anew, publishes its weights there, and loses no update."""
    path, stop = tmp_path / "s", threading.Event()
    settings = dataclasses.replace(SETTINGS, max_updates=None)
    with rs.Server(unix=path, port=-1) as first, rs.Client(first.url) as client:
        thread, outcome = learning(settings, first.url, tmp_path / "run", stop)
        wait_until(lambda: "apex" in client.tables())
        add_transitions(client, 200)
        wait_until(lambda: (client.fetch_weights("apex") or (-1,))[0] >= 20)
        version = client.fetch_weights("apex")[0]
        os.kill(first.pid, signal.SIGKILL)
    with rs.Server(unix=path, port=-1) as second, rs.Client(second.url) as client:
        wait_until(lambda: client.fetch_weights("apex") is not None)
        assert client.fetch_weights("apex")[0] >= version
        assert client.info("apex")["size"] == 0
        add_transitions(client, 200)
        wait_until(lambda: client.fetch_weights("apex")[0] >= version + 40)
        stop.set()
        thread.join(300)
    assert len(outcome) == 1
    assert outcome[0] >= version + 40


def test_the_learner_publishes_anew_where_a_server_came_back_with_older_weights(tmp_path):
    path, stop = tmp_path / "s", threading.Event()
    settings = dataclasses.replace(SETTINGS, max_updates=None)
    with rs.Server(unix=path, port=-1, directory=tmp_path) as first, rs.Client(first.url) as client:
        thread, outcome = learning(settings, first.url, tmp_path / "run", stop)
        wait_until(lambda: client.fetch_weights("apex") is not None)
        client.checkpoint("early")  # without a single transition
        add_transitions(client, 200)
        wait_until(lambda: client.fetch_weights("apex")[0] >= 20)
        version = client.fetch_weights("apex")[0]
        os.kill(first.pid, signal.SIGKILL)
    with rs.Server(unix=path, port=-1, directory=tmp_path, restore="early.snapshot") as second:
        with rs.Client(second.url) as client:
            wait_until(lambda: outcome or client.fetch_weights("apex")[0] >= version)
            assert not outcome
            assert client.info("apex")["added"] == 0
        stop.set()
        thread.join(300)
    assert not thread.is_alive()
    assert outcome[0] >= version


def add_bad_rewards(client: rs.Client, count: int = 1, reward: float = math.nan, priority: float = 1e9) -> None:
    with client.writer("apex") as writer:
        for _ in range(count):
            writer.append({STEP_COLUMN: np.zeros(4, np.float32)})
            columns = {"action": 0, "reward": np.float32(reward), "discount": np.float32(0.97)}
            writer.create_item(priority, columns=columns)


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e25])  # 1e25 is finite, and its square is not
def test_a_batch_that_is_not_finite_is_left_out_and_counted(server, client, tmp_path, reward, prioritized):
    """Its row has the least priority from then on, so that learning goes on."""
    settings = dataclasses.replace(SETTINGS, prioritized=prioritized)
    add_transitions(client, 200, priority=1.0)
    add_bad_rewards(client, reward=reward)
    assert run_learner(settings, server.url, tmp_path / "run", threading.Event()) == 30
    rows = read_metrics(tmp_path / "run", "learner")
    # The row was in the batches that were sampled ahead, too.
    assert 1 <= rows[-1]["batches_not_finite"] <= 5 + SETTINGS.prefetch
    assert all(math.isfinite(row["loss"]) for row in rows if "loss" in row)
    assert float(client.redis.hget("apex:learner", "batches_not_finite")) == rows[-1]["batches_not_finite"]
    assert client.info("apex")["max_priority"] < 1e3
    assert all(np.isfinite(array).all() for array in client.fetch_weights("apex")[1].values())
    # And the count goes on with the run.
    resumed = dataclasses.replace(settings, resume=True, max_updates=35)
    run_learner(resumed, server.url, tmp_path / "run", threading.Event())
    assert read_metrics(tmp_path / "run", "learner")[-1]["batches_not_finite"] >= rows[-1]["batches_not_finite"]


def test_a_run_that_diverges_stops_and_neither_publishes_nor_keeps_what_is_not_finite(server, client, tmp_path):
    run = tmp_path / "run"
    add_transitions(client, 200)
    assert run_learner(SETTINGS, server.url, run, threading.Event()) == 30
    add_bad_rewards(client, 900, priority=1.0)
    resumed = dataclasses.replace(SETTINGS, resume=True, max_updates=None, publish_every=1, checkpoint_every_s=0.0)
    said = r"[0-9]+ batches in a row are not finite, the last with a loss of nan .*learned before is in .*checkp"
    with pytest.raises(Diverged, match=said):
        run_learner(resumed, server.url, run, threading.Event())
    assert all(np.isfinite(array).all() for array in client.fetch_weights("apex")[1].values())
    newest = saving.newest_checkpoint(run / "checkpoints")
    assert newest == saving.checkpoints(run / "checkpoints")[-1]  # none had to be passed over
    learner = Dqn(SETTINGS, lambda: make_network(SETTINGS, environment_spec(SETTINGS)), torch.device("cpu"))
    assert saving.read_checkpoint(newest, learner)["step"] >= 30


@pytest.mark.parametrize("publish_every", [1, 10**9])
def test_weights_that_are_not_finite_are_neither_published_nor_kept(server, client, tmp_path, publish_every):
    """One step with a finite gradient makes them so: noticed where they are published, or at the next batch."""
    settings = dataclasses.replace(SETTINGS, learning_rate=math.inf, max_updates=None, publish_every=publish_every)
    add_transitions(client, 200)
    with pytest.raises(Diverged, match=r"is not finite(: update 1 is not published| after update [1-9])"):
        run_learner(settings, server.url, tmp_path / "run", threading.Event())
    assert client.fetch_weights("apex")[0] == 0
    assert not list((tmp_path / "run").rglob("step_*"))


RESUMED = dataclasses.replace(SETTINGS, resume=True, max_updates=35)


@pytest.fixture
def newest(server, client, tmp_path):
    """The newest checkpoint, step_40, of a run that has one of step_30, too: both are what its learner wrote."""
    add_transitions(client, 200)
    run_learner(SETTINGS, server.url, tmp_path / "run", threading.Event())
    folder = tmp_path / "run" / "checkpoints"
    return shutil.copytree(folder / "step_30", folder / "step_40")


def test_resuming_passes_over_a_checkpoint_that_is_not_finite_and_says_so(server, newest, tmp_path, capsys):
    """Such as one of a version that did not look."""
    run = tmp_path / "run"
    file = newest / "target.safetensors"
    tensors = load_file(file)
    tensors["value.0.bias"][3] = math.nan
    save_file(tensors, file)
    assert run_learner(RESUMED, server.url, run, threading.Event()) == 35
    assert "step_40 is passed over: value.0.bias in target.safetensors is not finite" in capsys.readouterr().out
    for path in (run / "checkpoints").iterdir():
        save_file(tensors, path / "network.safetensors")
    with pytest.raises(ValueError, match="expected a checkpoint whose values are finite, got none"):
        run_learner(RESUMED, server.url, run, threading.Event())


def test_resuming_without_a_checkpoint_is_told(server, client, tmp_path, capsys):
    """A learner that was killed before its first one went on from update 0 as if nothing had been lost."""
    add_transitions(client, 200)
    resumed = dataclasses.replace(SETTINGS, resume=True, max_updates=5)
    assert run_learner(resumed, server.url, tmp_path / "run", threading.Event()) == 5
    assert "learns anew from update 0: there is no checkpoint in" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["network.safetensors", "optimizer.safetensors", "counters.json"])
def test_resuming_passes_over_a_checkpoint_that_is_damaged_and_says_so(server, newest, tmp_path, capsys, name):
    damaged = newest / name
    damaged.write_bytes(damaged.read_bytes()[:20])
    assert run_learner(RESUMED, server.url, tmp_path / "run", threading.Event()) == 35
    assert f"step_40 is passed over: {name} is damaged: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["network.safetensors", "target.safetensors", "optimizer.safetensors"])
def test_resuming_passes_over_a_checkpoint_that_lacks_a_file_and_says_so(server, newest, tmp_path, capsys, name):
    (newest / name).unlink()
    assert run_learner(RESUMED, server.url, tmp_path / "run", threading.Event()) == 35
    assert f"step_40 is passed over: {name} is missing" in capsys.readouterr().out


def test_a_checkpoint_that_was_passed_over_takes_no_place_among_those_kept(server, newest, tmp_path):
    """The resumed learner's own were removed as soon as they were written, for the damaged one's greater step."""
    folder = newest.parent
    (newest / "network.safetensors").write_bytes(b"")
    shutil.copytree(newest, folder / "damaged_step_40")  # of an earlier session
    resumed = dataclasses.replace(RESUMED, checkpoints_kept=1)
    assert run_learner(resumed, server.url, tmp_path / "run", threading.Event()) == 35
    assert sorted(path.name for path in folder.iterdir()) == ["damaged_step_40", "step_35"]


def test_a_full_disk_stops_no_learner_that_can_write_its_last_checkpoint(server, client, tmp_path, capsys, monkeypatch):
    """It died, was started again six times, and the run failed."""
    write, full = loop.write_checkpoint, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_last(folder, learner, *arguments):
        if learner.step < 30:
            raise full
        return write(folder, learner, *arguments)

    def write_row(*arguments):
        raise full

    monkeypatch.setattr(loop, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(loop, "write_checkpoint", write_last)
    monkeypatch.setattr(Metrics, "write", write_row)
    add_transitions(client, 200)
    settings = dataclasses.replace(SETTINGS, checkpoint_every_s=0.0)
    assert run_learner(settings, server.url, tmp_path / "run", threading.Event()) == 30
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")] == ["step_30"]
    assert capsys.readouterr().out.count("cannot write to the run directory: [Errno 28] No space left") == 1
    assert int(client.redis.hget("apex:learner", "not_written")) > 30

    def write_none(*arguments):
        raise full

    monkeypatch.setattr(loop, "write_checkpoint", write_none)
    with pytest.raises(OSError, match="No space left"):
        run_learner(settings, server.url, tmp_path / "other", threading.Event())


def test_a_network_that_the_disk_does_not_take_is_an_error_of_the_system(tmp_path, monkeypatch):
    """Safetensors has an error of its own for it."""

    def save(tensors, file):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(saving, "save_file", save)
    with pytest.raises(OSError, match=r"a\.safetensors: .*No space left"):
        saving.save_tensors({"weight": torch.zeros(1)}, tmp_path / "a.safetensors")


def test_a_row_that_a_full_disk_cut_short_spoils_none_that_follows(tmp_path, monkeypatch):
    metrics, write = Metrics(tmp_path, "learner", tensorboard=False), os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:20]))
    with pytest.raises(OSError, match="No space left"):
        metrics.write(1, {"loss": 1.0})
    monkeypatch.undo()
    metrics.write(2, {"loss": 2.0})
    metrics.write(3, {"loss": 3.0})
    metrics.close()
    assert [row["step"] for row in read_metrics(tmp_path, "learner")] == [2, 3]


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
    sample_of, prepare_of = rs.Client.sampler, Dqn.prepare

    def remember_batches(*arguments, **options):
        sampler = sample_of(*arguments, **options)
        take = type(sampler).__next__
        monkeypatch.setattr(type(sampler), "__next__", lambda self: seen.append([take(self), None]) or seen[-1][0])
        return sampler

    def remember_weights(self, data, weights):
        if seen:  # before the first batch, updates are timed
            seen[-1][1] = np.array(weights)
        return prepare_of(self, data, weights)

    monkeypatch.setattr(rs.Client, "sampler", remember_batches)
    monkeypatch.setattr(Dqn, "prepare", remember_weights)
    settings = dataclasses.replace(SETTINGS, importance_sampling_exponent=exponent, max_updates=3)
    run_learner(settings, server.url, tmp_path / "run", threading.Event())
    assert len(seen) in (3, 4)  # where targets are computed beside, one is taken ahead
    first, weights = seen[0]
    assert len(np.unique(first.probabilities)) == 2
    expected = first.probabilities**-exponent
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
