"""MinionsRL's learned scheduler: its states and rewards by hand, its policy, and its training on whole jobs."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from replay_server.rl.folder_lock import alone_in
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.backends.in_process import InProcessPlatform
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.scalers.minions import Minions
from replay_server.serverless.scalers.uniform import Uniform
from replay_server.serverless.scheduler.decision import Goal, rewards, scheduler_state, windowed_scores
from replay_server.serverless.scheduler.job import PlayedJob, jobs
from replay_server.serverless.scheduler.main import main
from replay_server.serverless.scheduler.policy import SchedulerPolicy, SchedulerSettings, episode_fragment, load_policy
from replay_server.serverless.scheduler.reference import settled
from replay_server.serverless.scheduler.training import read_episodes, train_scheduler
from replay_server.serverless.settings import TrainSettings, check_settings, make_scaler

GOAL = Goal(target=200.0, budget=0.5)
JOB = {
    "env": "CartPole-v1", "rounds": 6, "steps": 8, "environments": 1, "scaler": "max", "actors_max": 3,
    "setting": {"hidden": 8, "iterations": 1},
}  # fmt: skip


def record(number: int, scores: tuple[float, ...] = (), cost: float = 0.1, round_s: float = 2.0) -> RoundRecord:
    return RoundRecord(
        round=number, version=number, actors=4, arrived=4, environments=1, steps=32, total_steps=32 * number,
        scores=scores, statistics={"loss": 1.5, "kl": 0.02}, round_s=round_s, learner_s=0.5, actor_s_mean=1.0,
        actor_s_max=1.5, cost=cost,
    )  # fmt: skip


def clock_of(settings: TrainSettings) -> Any:
    """A clock that depends on the round alone: a second, a tenth for each actor, a cent for each actor and second."""
    spent = [0.0]

    def clock(before: RoundRecord, invocations: Sequence[Invocation]) -> RoundRecord:
        seconds = 1.0 + 0.1 * before.actors
        spent[0] += 0.01 * before.actors * seconds
        return dataclasses.replace(
            before, round_s=seconds, learner_s=0.5, actor_s_mean=0.5, actor_s_max=seconds - 0.5, cost=spent[0]
        )

    return clock


# ---- states and rewards ----------------------------------------------------------------------------------------------


def test_the_state_has_the_eight_numbers_of_the_paper_in_their_order() -> None:
    first = scheduler_state(None, GOAL, 0.0)
    assert first.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    found = scheduler_state(record(3, (50.0,), cost=0.125), GOAL, 50.0)
    # k, L, R̄/J = 50/200, KL, P^l, P̄^a, P, (0.5 − 0.125)/0.5
    np.testing.assert_allclose(found, [4, 1.5, 0.25, 0.02, 0.5, 1.0, 2.0, 0.75], rtol=1e-6)
    assert found.dtype == np.float32
    assert scheduler_state(record(1), Goal(-200.0, 1.0), -100.0)[2] == -0.5


def test_rewards_are_seconds_and_what_was_missed_at_the_end() -> None:
    rounds = [record(1, (20.0,), 0.1, 2.0), record(2, (150.0, 170.0), 0.2, 3.0), record(3, (), 0.3, 4.0)]
    assert rewards(rounds, GOAL, True, 0.1) == pytest.approx([-0.2, -0.3, -0.4])
    # Without five rounds, all games: (20 + 150 + 170) / 3 is 86⅔ short of J.
    assert rewards(rounds, GOAL, False, 0.1) == pytest.approx([-0.2, -0.3, -0.4 - 86.0 - 2 / 3])
    # Windows of five: (100, 100, 100, 100, 300) → 140, then (100, 100, 100, 300, 60) → 132. One round of 300 is no J.
    more = [record(k, (score,)) for k, score in enumerate((100.0, 100.0, 100.0, 100.0, 300.0, 60.0), 1)]
    assert rewards(more, GOAL, False, 0.1) == pytest.approx([-0.2] * 5 + [-60.2])
    assert rewards([record(1, (230.0,))], GOAL, False, 0.1) == pytest.approx([-0.2])
    # Reached, but for more than the budget.
    assert rewards([record(1, (150.0,), cost=0.6)], GOAL, True, 0.5) == pytest.approx([-51.0])
    assert rewards([record(1)], GOAL, False, 0.1) == pytest.approx([-200.2])
    assert rewards([record(1)], Goal(-200.0, 1.0), False, 0.1) == pytest.approx([-0.2])


def test_a_goal_needs_dollars_and_a_score_that_shares_can_be_taken_of() -> None:
    for target, budget in ((float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("inf")), (1.0, float("nan"))):
        with pytest.raises(ValueError, match="finite"):
            Goal(target, budget)
    with pytest.raises(ValueError, match="budget above 0"):
        Goal(1.0, 0.0)
    with pytest.raises(ValueError, match="other than 0"):
        Goal(0.0, 1.0)


def test_the_target_is_nine_tenths_of_the_median_and_the_budget_the_median_cost_to_it() -> None:
    def job(scores: list[float]) -> PlayedJob:
        return PlayedJob(tuple(record(k, (score,), 0.1 * k) for k, score in enumerate(scores, 1)), "rounds")

    # Means of five: 100 at the end; 100 from round 5, 80 last; 60, so that it never has 0.9 · 80 = 72.
    played = [job([100] * 6), job([100] * 5 + [0]), job([60] * 6)]
    assert windowed_scores(played[1].rounds) == [None, None, None, None, 100.0, 80.0]
    found = settled(played)
    assert found.scores == (100.0, 80.0, 60.0)
    assert found.goal.target == pytest.approx(72.0)
    assert found.costs == pytest.approx((0.5, 0.5, 0.6))
    assert found.spent == pytest.approx((0.6, 0.6, 0.6))
    assert found.goal.budget == pytest.approx(0.5)
    assert found.reached == 2
    with pytest.raises(ValueError, match="five at least"):
        settled([job([1.0] * 4)])


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_the_policy_has_the_papers_shape_and_hyperparameters() -> None:
    policy = SchedulerPolicy()
    shapes = {name: tuple(value.shape) for name, value in policy.learner.network.named_parameters()}
    assert shapes["policy_body.0.weight"] == shapes["critic_body.0.weight"] == (64, 8)
    assert shapes["policy_body.2.weight"] == shapes["critic_body.2.weight"] == (64, 64)
    assert (shapes["policy_head.weight"], shapes["critic_head.weight"]) == ((32, 64), (1, 64))
    used = policy.learner.settings
    assert (used.learning_rate, used.clip, used.discount, used.kl_coefficient) == (0.005, 0.2, 0.99, 0.0)
    assert (used.entropy_coefficient, used.value_coefficient, policy.settings.time_weight) == (0.01, 0.5, 0.1)


def test_decisions_are_drawn_as_often_as_the_policy_says() -> None:
    policy = SchedulerPolicy(SchedulerSettings(actors_most=4))
    with torch.no_grad():
        policy.learner.network.policy_head.bias.copy_(torch.tensor([0.1, 0.4, 0.2, 0.3]).log())
        policy.learner.network.policy_head.weight.zero_()
    generator = np.random.default_rng(1)
    state = scheduler_state(None, GOAL, 0.0)
    drawn = [policy.decide(state, generator) for _ in range(2000)]
    counts = np.bincount([each.actors for each in drawn], minlength=5)[1:] / 2000
    np.testing.assert_allclose(counts, [0.1, 0.4, 0.2, 0.3], atol=0.04)
    assert policy.decide(state, None).actors == 2
    assert policy.decide(state, None).log_probability == pytest.approx(math.log(0.4), rel=1e-5)


def test_an_episode_is_learned_from_as_one_that_ends() -> None:
    policy = SchedulerPolicy(SchedulerSettings(actors_most=4))
    decisions = [policy.decide(scheduler_state(None, GOAL, 0.0), np.random.default_rng(k)) for k in range(3)]
    fragment = episode_fragment(decisions, [-1.0, -2.0, -3.0], 7)
    assert fragment["terminated"].tolist() == [[False, False, True]]
    assert fragment["action"].tolist() == [[each.actors - 1 for each in decisions]]
    assert fragment["reward"].tolist() == [[-1.0, -2.0, -3.0]]
    assert fragment["observation"].shape == (1, 3, 8)
    assert fragment["observation_count"].tolist() == [3.0]
    with pytest.raises(ValueError, match="a reward for each"):
        episode_fragment(decisions, [1.0], 0)


def test_the_policy_learns_which_number_pays() -> None:
    policy = SchedulerPolicy(SchedulerSettings(actors_most=8, discount=0.0))  # Each decision by its own round alone.
    state = scheduler_state(record(3, (50.0,)), GOAL, 50.0)
    generator = np.random.default_rng(3)
    for _ in range(15):
        decisions = [policy.decide(state, generator) for _ in range(20)]
        policy.learn(decisions, [-abs(each.actors - 6.0) for each in decisions])
    mean = np.mean([policy.decide(state, generator).actors for _ in range(100)])
    assert abs(mean - 6.0) < 1.0
    assert policy.episodes == 15


def trained_policy(episodes: int = 2) -> SchedulerPolicy:
    policy = SchedulerPolicy(SchedulerSettings(actors_most=8))
    generator = np.random.default_rng(1)
    for _ in range(episodes):
        decisions = [policy.decide(scheduler_state(record(k), GOAL, 1.0 * k), generator) for k in range(1, 13)]
        policy.learn(decisions, [-float(each.actors) for each in decisions])
    return policy


def test_a_policy_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    policy = trained_policy()
    path = policy.save(tmp_path / "checkpoints", {"env": "CartPole-v1"})
    assert sorted(each.name for each in path.iterdir()) == [
        "counters.json", "network.safetensors", "optimizer.safetensors",
    ]  # fmt: skip
    for folder in (path, tmp_path):
        loaded, counters = load_policy(folder)
        assert (counters["env"], loaded.episodes, loaded.settings) == ("CartPole-v1", 2, policy.settings)
        state = scheduler_state(record(5), GOAL, 70.0)
        ours, theirs = (each.decide(state, np.random.default_rng(9)) for each in (policy, loaded))
        assert ours.parameters.tobytes() == theirs.parameters.tobytes()
        assert ours.actors == theirs.actors


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no policy"):
        load_policy(tmp_path)
    (tmp_path / "counters.json").write_text('{"version": 3}')
    with pytest.raises(ValueError, match="no policy of a scheduler"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("counters.json", b'{"scheduler": {"hid', "counters.json is damaged"),
        ("counters.json", b"[]", "no policy of a scheduler"),
        ("counters.json", b'{"scheduler": {}}', "trained on states of None"),
        ("network.safetensors", b"\x20\x00", "is damaged"),
        ("optimizer.safetensors", b"", "is damaged"),
    ],
)
def test_a_damaged_policy_is_told_by_its_path(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Half a file left by a full disk ended in a traceback, or in words that named no file."""
    path = trained_policy().save(tmp_path / "checkpoints")
    (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_policy(tmp_path)
    assert str(path) in str(raised.value)


def test_a_policy_for_another_task_keeps_its_parameters_and_forgets_old_states_soon() -> None:
    policy = trained_policy()
    tuned = policy.for_another_task(policy.settings)
    for name, value in policy.learner.network.named_parameters():
        assert torch.equal(value, dict(tuned.learner.network.named_parameters())[name])
    assert (tuned.episodes, tuned.learner.optimizer.state_dict()["state"]) == (0, {})
    before, after = policy.learner.network.moments, tuned.learner.network.moments
    assert (before.count, after.count) == (24.0, 10.0)
    np.testing.assert_allclose(after.mean, before.mean)
    np.testing.assert_allclose(after.variance, before.variance)
    with pytest.raises(ValueError, match="decides on 1 to 8 actors"):
        policy.for_another_task(SchedulerSettings(actors_most=9))


# ---- scalers ---------------------------------------------------------------------------------------------------------


def test_the_scaler_is_made_of_a_saved_policy_and_goes_on_where_it_was(tmp_path: Path) -> None:
    trained_policy().save(tmp_path / "checkpoints")
    settings = TrainSettings(
        scaler="minions", scaler_option={"policy": str(tmp_path)}, actors_max=5, target_score=200.0, budget=0.5
    )  # fmt: skip
    check_settings(settings)
    rounds = [record(1, (30.0,)), record(2), record(3, (60.0,)), record(4)]

    def decided(scaler: Any, given: Sequence[RoundRecord]) -> list[int]:
        return [scaler.actors(each) for each in given]

    scaler = make_scaler(settings)
    whole = [scaler.actors(None), *decided(scaler, rounds)]
    assert all(1 <= count <= 5 for count in whole)
    for cut in range(len(rounds)):
        first, second = make_scaler(settings), make_scaler(settings)
        before = [first.actors(None), *decided(first, rounds[:cut])]
        second.restore(json.loads(json.dumps(first.state())))
        assert before + decided(second, rounds[cut:]) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scaler_option": {}}, "policy=DIR"),
        ({"budget": None}, "--target-score and --budget"),
        ({"scaler_option": {"policy": "/nowhere"}}, "holds no policy"),
    ],
)
def test_the_scaler_says_what_it_lacks(changes: dict[str, Any], message: str) -> None:
    settings = TrainSettings(scaler="minions", scaler_option={"policy": "/nowhere"}, target_score=1.0, budget=1.0)
    with pytest.raises(ValueError, match=message):
        check_settings(dataclasses.replace(settings, **changes))


def test_random_draws_every_number_alike() -> None:
    rounds = [None, *(record(number) for number in range(1, 2000))]
    counts = [Uniform(4, 7).actors(each) for each in rounds]
    np.testing.assert_allclose(np.bincount(counts)[1:] / len(counts), [0.25] * 4, atol=0.03)
    assert counts == [Uniform(4, 7).actors(each) for each in rounds]
    assert counts != [Uniform(4, 8).actors(each) for each in rounds]


# ---- whole jobs ------------------------------------------------------------------------------------------------------


def test_a_job_in_this_process_is_the_engines_own(tmp_path: Path) -> None:
    """The same settings on worker processes: the same trajectories and the same learning, round by round."""
    found = []
    for name, platform in (("here", InProcessPlatform()), ("there", None)):
        folder = RunDirectory(tmp_path / name)
        settings = TrainSettings(**{**JOB, "rounds": 3}, concurrency=1, final_episodes=0, logdir=str(folder.path))
        folder.create(settings)
        Orchestrator(settings, folder, platform=platform).run()
        found.append([(each.actors, each.scores, dict(each.statistics)) for each in read_rounds(folder.path)])
    assert found[0] == found[1]


def test_training_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    settings = TrainSettings(**JOB)
    goal = Goal(1000.0, 0.12)

    def fresh() -> SchedulerPolicy:
        return SchedulerPolicy(SchedulerSettings(actors_most=3))

    class Stop(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["episode"] == 2:
            raise Stop

    with jobs(settings, clock_of) as played:
        whole = fresh()
        train_scheduler(whole, played, goal, 3, tmp_path / "whole")
        with pytest.raises(Stop):
            train_scheduler(fresh(), played, goal, 3, tmp_path / "cut", stop)
        # As a process that was killed may leave it: an episode that was logged and not saved, and half a line.
        with open(tmp_path / "cut" / "episodes.jsonl", "a") as log:
            log.write('{"episode": 3}\n{"epis')
        resumed, _ = load_policy(tmp_path / "cut")
        assert resumed.episodes == 2
        train_scheduler(resumed, played, goal, 3, tmp_path / "cut")
    lines = [[(each["actors"], each["return"], each["scores"]) for each in read_episodes(tmp_path / name)]
             for name in ("whole", "cut")]  # fmt: skip
    assert lines[0] == lines[1]
    assert len(lines[0]) == 3
    assert {each["ended_by"] for each in read_episodes(tmp_path / "whole")} <= {"budget", "rounds"}
    for name, value in whole.learner.network.state_dict().items():
        assert torch.equal(value, resumed.learner.network.state_dict()[name])


def test_an_episodes_return_is_that_of_its_rounds(tmp_path: Path) -> None:
    policy = SchedulerPolicy(SchedulerSettings(actors_most=3))
    with jobs(TrainSettings(**JOB), clock_of) as played:
        train_scheduler(policy, played, Goal(1000.0, 10.0), 1, tmp_path)
    (line,) = read_episodes(tmp_path)
    assert (line["rounds"], line["ended_by"], line["reached"]) == (6, "rounds", False)
    expected = sum(-0.1 * (1.0 + 0.1 * count) for count in line["actors"]) + line["best_score"] - 1000.0
    assert line["return"] == pytest.approx(expected)
    assert line["cost"] == pytest.approx(sum(0.01 * count * (1.0 + 0.1 * count) for count in line["actors"]))


def test_a_policy_that_has_diverged_is_not_saved(tmp_path: Path) -> None:
    """It was, and what told of the episode ended in a traceback."""
    policy = SchedulerPolicy(SchedulerSettings(actors_most=3))
    with jobs(TrainSettings(**JOB), clock_of) as played:
        train_scheduler(policy, played, Goal(1000.0, 10.0), 1, tmp_path)
        with torch.no_grad():
            next(policy.learner.network.parameters()).fill_(math.nan)
        with pytest.raises(ValueError, match="has diverged in episode 2"):
            train_scheduler(policy, played, Goal(1000.0, 10.0), 2, tmp_path)
    assert [each["episode"] for each in read_episodes(tmp_path)] == [1]
    assert load_policy(tmp_path)[0].episodes == 1


SMALL = [
    "--task", "cartpole", "--rounds", "5", "--steps", "16", "--environments", "2", "--actors-max", "4",
    "--setting", "hidden=8", "--setting", "iterations=1",
]  # fmt: skip


def test_the_command_trains_resumes_and_tunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scratch, tuned = str(tmp_path / "scratch"), str(tmp_path / "tuned")
    assert main(["train", *SMALL, "--logdir", scratch, "--episodes", "1", "--reference-seeds", "101"]) == 0
    assert "target J = " in capsys.readouterr().out
    assert main(["train", "--logdir", scratch, "--resume", "--episodes", "2"]) == 0
    assert [each["episode"] for each in read_episodes(tmp_path / "scratch")] == [1, 2]
    assert "reference 1/1" not in capsys.readouterr().out
    goal = ["--target-score", "30", "--budget", "1"]
    assert main(["train", *SMALL, *goal, "--logdir", tuned, "--from-policy", scratch, "--episodes", "1"]) == 0
    assert load_policy(tmp_path / "tuned")[0].episodes == 1
    with pytest.raises(SystemExit):
        main(["train", *SMALL, "--logdir", scratch])
    assert "add --resume" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", *SMALL, "--logdir", str(tmp_path / "none"), "--budget", "1"])
    assert "give both, or neither" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", *SMALL, "--env", "NoSuchGame-v1", "--logdir", str(tmp_path / "none")])
    assert "NoSuchGame" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "setting",
    [
        {"iterations": 0}, {"minibatch_size": 0}, {"hidden": 0}, {"scheduler_seed": -1}, {"time_weight": float("nan")},
        {"learning_rate": float("inf")}, {"discount": 2.0}, {"gae_lambda": float("nan")}, {"clip": -1.0},
    ],
)  # fmt: skip
def test_settings_that_no_scheduler_can_have_are_told_by_name(setting: dict[str, Any]) -> None:
    """They ended the training in a traceback after its first episode, or trained nothing."""
    with pytest.raises(ValueError, match=f"{next(iter(setting))}: expected"):
        SchedulerSettings(**setting)


def test_one_training_at_a_time_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second one took the first one's episodes out of their common log."""
    words = [*SMALL, "--target-score", "30", "--budget", "1", "--logdir", str(tmp_path), "--episodes", "0"]
    assert main(["train", *words]) == 0
    with alone_in(tmp_path):
        assert main(["train", "--resume", "--logdir", str(tmp_path)]) == 1
    assert f"{tmp_path}: another process is at work in it" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"job": {}}')
    with pytest.raises(SystemExit):
        main(["train", "--resume", "--logdir", str(tmp_path)])
    assert f"{tmp_path / 'config.json'}: expected a training of this version" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_that_is_killed_loses_no_more_than_its_episode(tmp_path: Path) -> None:
    folder = tmp_path / "scheduler"
    words = [*SMALL, "--target-score", "500", "--budget", "1", "--logdir", str(folder), "--episodes", "50"]
    command = [sys.executable, "-m", "replay_server", "scheduler", "train"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("episode 1/"):  # The folder was not there, and is its own all the same.
                assert main(["train", "--resume", "--logdir", str(folder)]) == 1
            if line.startswith("episode 3/"):
                break
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    done = load_policy(folder)[0].episodes
    assert done >= 2
    asked = ["--logdir", str(folder), "--resume", "--episodes", str(done + 1)]
    subprocess.run([*command, *asked], check=True, capture_output=True)
    assert [each["episode"] for each in read_episodes(folder)] == list(range(1, done + 2))


@pytest.mark.slow
def test_the_scheduler_learns_from_real_jobs_that_one_actor_is_cheapest(tmp_path: Path) -> None:
    """Where a second costs more than anything and no target can be reached, fewer actors are better."""
    settings = TrainSettings(**JOB)
    policy = SchedulerPolicy(SchedulerSettings(actors_most=3, time_weight=1e5, discount=0.0))
    with jobs(settings, clock_of) as played:
        train_scheduler(policy, played, Goal(1000.0, 10.0), 30, tmp_path)
        last = played.play(Minions(policy, Goal(1000.0, 10.0), 3, 5), 5)
    means = [np.mean(each["actors"]) for each in read_episodes(tmp_path)]
    assert np.mean(means[-5:]) < np.mean(means[:5]) - 0.3
    assert np.mean(last.actors) < 1.8
