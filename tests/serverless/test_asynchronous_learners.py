"""A job with asynchronous learners, real functions in worker processes and a real server."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.bench.papers.stellaris.recorded_delays import RecordedDelays
from replay_server.learner.checkpoint import newest_checkpoint
from replay_server.rl.function_contract import ActorRequest, GradientRequest, Names, ParameterRequest
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless import asynchronous_learners
from replay_server.serverless.backends.backend import FunctionLost
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.rounds import TrainingFailed
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

STEPS, ENVIRONMENTS, ACTORS = 16, 2, 2


def settings_of(path: Path, **given: Any) -> TrainSettings:
    small: dict[str, Any] = {
        "env": "CartPole-v1", "steps": STEPS, "environments": ENVIRONMENTS, "actors": ACTORS, "rounds": 3,
        "learners": "async", "learner_option": {"learners": 2}, "final_episodes": 0, "logdir": str(path),
        "setting": {"hidden": 8, "iterations": 2},
    }  # fmt: skip
    return TrainSettings(**{**small, **given})


def run(path: Path, platform: Any, **given: Any) -> Orchestrator:
    settings = settings_of(path, **given)
    directory = RunDirectory(path)
    directory.create(settings)
    job = Orchestrator(settings, directory, platform=platform)
    assert job.run() == "rounds"
    return job


def test_learners_are_started_by_the_data_that_waits_and_their_gradients_all_count(tmp_path, platform, server):
    run(tmp_path, platform, server=server.url)
    records = read_rounds(tmp_path)
    assert [record.round for record in records] == [1, 2, 3]
    # A share is two fragments of 16 steps: one minibatch a pass, two passes, two learners.
    assert [record.statistics["gradients"] for record in records] == [4, 4, 4]
    assert [record.steps for record in records] == [64, 64, 64]
    assert [record.arrived for record in records] == [2, 2, 2]
    assert all(0 < record.statistics["learner_utilization"] <= 1 for record in records)
    versions = [record.version for record in records]
    flushes = [record.statistics["flushes"] for record in records]
    assert versions == np.cumsum(np.array(flushes) + 1).tolist()
    kinds = [each.kind for each in read_invocations(tmp_path)]
    assert kinds.count("gradient") == 6
    assert kinds.count("parameter") == 3


def test_how_stale_its_gradients_were_can_be_played_again(tmp_path, platform, server):
    run(tmp_path / "job", platform, server=server.url, learner_option={"learners": 2, "delay": 2})
    recorded = RecordedDelays.read(tmp_path / "job")
    rounds = read_rounds(tmp_path / "job")
    assert [sum(counts) for counts in recorded.rounds] == [each.statistics["gradients"] for each in rounds]
    stale = sum(each.statistics["gradient_staleness"] * each.statistics["gradients"] for each in rounds)
    assert recorded.mean == pytest.approx(stale / sum(each.statistics["gradients"] for each in rounds))
    assert recorded.mean > 0
    random = np.random.default_rng(1)
    drawn = {recorded.draw(len(rounds), random) for _ in range(200)}
    assert drawn == {each for each, count in enumerate(recorded.rounds[-1]) if count}


def test_one_learner_and_actors_that_wait_give_the_weights_of_synchronous_rounds(tmp_path, platform, server):
    found = []
    for learners in ("sync", "async"):
        options = {"learners": 1, "actors_ahead": 0} if learners == "async" else {}
        path = tmp_path / learners
        run(path, platform, server=server.url, learners=learners, learner_option=options, job=learners, keep=True,
            setting={"hidden": 8, "iterations": 2, "minibatch_size": 24}, env="Pendulum-v1")  # fmt: skip
        with rs.Client(server.url) as client:
            weights = client.fetch_weights(Names(learners).policy)
        assert weights is not None
        found.append(weights[1])
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("algo", "scaler", "options"),
    [
        ("impact", "hydrozoa", {"start": 2}),
        ("ppo", "nitro", {"least": 2}),
    ],
)
def test_any_scaler_runs_beside_them(tmp_path, platform, server, algo, scaler, options):
    small = {"hidden": 8, "passes": 2} if algo == "impact" else {"hidden": 8, "iterations": 1}
    run(tmp_path, platform, server=server.url, algo=algo, scaler=scaler, scaler_option=options, actors_max=4, rounds=2,
        setting=small)  # fmt: skip
    assert [record.arrived > 0 for record in read_rounds(tmp_path)] == [True, True]


def test_functions_that_are_lost_are_asked_again_and_the_job_ends_as_it_should(tmp_path, platform, server):
    """Every function's first attempt is lost: half before it began, half when it was done and could not answer."""
    lost: set[str] = set()
    lock = threading.Lock()

    def lose(request: Any, before: bool) -> None:
        early = sum(request.request.encode()) % 2 == 0
        with lock:
            if request.request in lost or early != before:
                return
            lost.add(request.request)
        raise FunctionLost(f"{request.request}: lost by the test")

    platform.before = lambda request: lose(request, before=True)
    platform.after = lambda request: lose(request, before=False)
    run(tmp_path, platform, server=server.url)
    records = read_rounds(tmp_path)
    assert [record.statistics["gradients"] for record in records] == [4, 4, 4]
    assert [record.statistics["gradients_duplicate"] for record in records] == [0, 0, 0]
    assert len([name for name in lost if "learner" in name]) == 6
    assert len([name for name in lost if "parameter" in name]) == 3


def test_a_learner_lost_for_good_takes_its_share_with_it_and_the_round_goes_on(tmp_path, platform, server):
    def lose(request: Any) -> None:
        if isinstance(request, GradientRequest) and request.learner == 1 and request.round == 2:
            raise FunctionLost(f"{request.request}: lost by the test")

    platform.before = lose
    run(tmp_path, platform, server=server.url)
    records = read_rounds(tmp_path)
    assert [record.statistics["learners_lost"] for record in records] == [0, 1, 0]
    assert [record.steps for record in records] == [64, 32, 64]


def test_a_job_ends_with_an_error_when_no_learner_succeeds(tmp_path, platform, server):
    def lose(request: Any) -> None:
        if isinstance(request, GradientRequest):
            raise FunctionLost(f"{request.request}: lost by the test")

    platform.before = lose
    with pytest.raises(TrainingFailed, match="none of 2 learner functions succeeded"):
        run(tmp_path, platform, server=server.url, retries=0)


def test_a_parameter_function_whose_time_is_over_is_followed_by_another(tmp_path, platform, server, monkeypatch):
    # What is left of its time limit when it stops is long: other work on this machine may keep it from answering.
    monkeypatch.setattr(asynchronous_learners, "SERVE_SHARE", 0.001)
    seen: list[ParameterRequest] = []

    def note(request: Any) -> None:
        if isinstance(request, ParameterRequest):
            seen.append(request)

    platform.before = note
    run(
        tmp_path, platform, server=server.url, learner_timeout_s=60.0, rounds=2, setting={"hidden": 8, "iterations": 60}
    )
    assert all(request.serve_s == pytest.approx(0.06) for request in seen)
    assert len(seen) > 2
    assert [record.statistics["gradients"] for record in read_rounds(tmp_path)] == [120, 120]


def test_actors_are_asked_for_no_more_than_they_may_be_ahead(tmp_path, platform, server):
    asked: list[str] = []

    def note(request: Any) -> None:
        if isinstance(request, ActorRequest):
            asked.append(request.request)

    platform.before = note
    run(tmp_path, platform, server=server.url, learner_option={"learners": 2, "actors_ahead": 0})
    assert sorted(asked) == sorted(f"a{actor}-s{sequence}" for actor in range(2) for sequence in range(3))


def test_what_is_played_ahead_is_not_of_the_policy_of_a_round_before(tmp_path, platform, server):
    """A learner makes two versions a round, and its end one more. Actors that begin with the learners bring data of the
    round before, 5 versions old when it has been learned from."""
    asked = threading.Event()

    def note(request: Any) -> None:
        if isinstance(request, ActorRequest) and request.sequence == 2:
            asked.set()

    def wait(request: Any) -> None:
        if isinstance(request, GradientRequest) and request.round == 2:
            assert asked.wait(60), "nobody played ahead of the second round's learner"

    platform.before, platform.after = note, wait
    run(tmp_path, platform, server=server.url, learner_option={"learners": 1})
    staleness = [record.statistics["staleness"] for record in read_rounds(tmp_path)]
    assert staleness[:2] == [2, 2]  # Nobody knows in the first round how long learning takes: no actor plays ahead.
    assert 2 < staleness[2] <= 5


def test_a_job_that_is_resumed_goes_on_with_the_next_round_and_the_same_threshold(tmp_path, platform, server):
    delayed = {"learners": 2, "delay": 2}
    run(tmp_path, platform, server=server.url, rounds=2, learner_option=delayed)
    thresholds = [record.statistics["staleness_threshold"] for record in read_rounds(tmp_path)]
    assert thresholds[0] == -1  # The first round that had any staleness sets it.
    assert thresholds[1] >= 1
    saved = json.loads((newest_checkpoint(tmp_path / "checkpoints") / "counters.json").read_text())
    assert saved["staleness_bound"] == thresholds[1]
    run(tmp_path, platform, server=server.url, rounds=3, learner_option=delayed, resume=True)
    records = read_rounds(tmp_path)
    assert [record.round for record in records] == [1, 2, 3]
    assert records[2].version > records[1].version
    assert records[2].statistics["staleness_threshold"] >= 1
    assert records[2].statistics["gradients"] == 4
    assert records[2].statistics["gradients_duplicate"] == 0
