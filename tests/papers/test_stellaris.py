"""`replay-server bench stellaris`: what it says, what it writes, and what it is taken of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from replay_server.bench.papers.stellaris.command import main
from replay_server.bench.papers.stellaris.job import Clock, Played, play
from replay_server.bench.papers.stellaris.methods import METHODS, Method, method
from replay_server.bench.papers.stellaris.simulated_learners import LearnerTimes
from replay_server.learner.algorithms import make_settings
from replay_server.learner.parameter_state import Tally
from replay_server.rl.asynchronous_learning import AsynchronousLearning
from replay_server.serverless.cost import Bill, seconds_price
from replay_server.serverless.prices import load_prices
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.run_log import RunLog, read_rounds
from replay_server.serverless.scheduler.policy import SchedulerPolicy, SchedulerSettings

SMALL = [
    "--env", "CartPole-v1", "--actors", "4", "--steps", "16", "--rounds", "2", "--episodes", "2", "--seeds", "1", "2",
    "--setting", "hidden=8", "--setting", "iterations=2", "--learners", "2",
]  # fmt: skip
SETTINGS = make_settings("ppo", "default", env="CartPole-v1", steps=16, hidden=8, iterations=2)


def test_methods_are_held_against_averaging_synchronously_with_the_same_seeds(tmp_path):
    lines: list[str] = []
    file = tmp_path / "stellaris.json"
    assert main([*SMALL, "--methods", "stellaris", "--delays", "0", "2", "--json", str(file)], say=lines.append) == 0
    content = json.loads(file.read_text())
    rows = content["methods"]
    assert [(row["method"], row["delay"]) for row in rows] == [
        ("synchronous", 0), ("stellaris", 0), ("synchronous", 2), ("stellaris", 2),
    ]  # fmt: skip
    assert rows[0]["staleness"] == 0
    assert rows[3]["staleness"] > rows[2]["staleness"] > 0
    for row in rows:
        assert len(row["final"]) == 2
        assert sum(row["staleness_shares"]) == pytest.approx(1)
    assert len(content["runs"]) == 8
    assert "simulated" in content["note"]
    assert any("simulated" in line for line in lines)
    told = next(line for line in lines if line.startswith("stellaris") and "seed" not in line)
    assert f"{rows[1]['staleness']:.2f}" in told


def test_delays_as_a_job_recorded_them_are_added_for_all_methods(tmp_path):
    record_round(tmp_path / "job", staleness={0: 1, 2: 2, 12: 1})
    delay = f"recorded:{tmp_path / 'job'}"
    file = tmp_path / "stellaris.json"
    words = [*SMALL, "--methods", "stellaris", "--folder", str(tmp_path / "cells"), "--json", str(file)]
    lines: list[str] = []
    assert main([*words, "--delays", "0", delay], say=lines.append) == 0
    rows = json.loads(file.read_text())["methods"]
    assert [(row["method"], row["delay"]) for row in rows] == [
        ("synchronous", 0), ("stellaris", 0), ("synchronous", delay), ("stellaris", delay),
    ]  # fmt: skip
    assert 0 < rows[2]["staleness"] < 12
    assert any("recorded" in line and line.startswith("stellaris") for line in lines)
    record_round(tmp_path / "job", staleness={3: 4})  # of other delays these are other jobs
    lines.clear()
    main([*words, "--delays", "0", delay], say=lines.append)
    assert any(line.startswith("4 of 8 jobs were played before") for line in lines)


def test_delays_that_nobody_recorded_are_refused_before_anything_is_played(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*SMALL, "--delays", f"recorded:{tmp_path}"], say=lambda text: pytest.fail(text))
    assert "no rounds of asynchronous learners" in capsys.readouterr().err


def record_round(folder: Path, staleness: dict[int, int]) -> None:
    """One more round of a job whose gradients were that stale: number of gradients by staleness."""
    tally = Tally(stalenesses=[each for each, count in staleness.items() for _ in range(count)])
    number = len(read_rounds(folder)) + 1 if folder.exists() else 1
    folder.mkdir(exist_ok=True)
    log = RunLog(folder, Bill(load_prices(), "lambda"))
    log.add_round(
        RoundRecord(round=number, version=number, actors=1, arrived=1, environments=1, steps=1, total_steps=number,
                    scores=(), statistics=tally.statistics(), round_s=1.0, learner_s=1.0, actor_s_mean=1.0,
                    actor_s_max=1.0, cost=0.0)
    )  # fmt: skip
    log.close()


def test_jobs_are_kept_and_the_same_command_goes_on_with_those_that_are_missing(tmp_path):
    lines: list[str] = []
    words = [*SMALL, "--methods", "serverful", "--env", "CartPole-v1", "Acrobot-v1", "--folder", str(tmp_path)]
    assert main([*words, "--json", str(tmp_path / "once.json")], say=lines.append) == 0
    kept = sorted(tmp_path.glob("*/*.json"))
    assert len(kept) == 2 * 2 * 2  # environments, methods, seeds
    assert any(line.startswith("8/8 ") and "0.0 minutes left" in line for line in lines)
    kept[0].unlink()
    before = {path: path.stat().st_mtime_ns for path in kept[1:]}
    lines.clear()
    assert main([*words, "--json", str(tmp_path / "again.json")], say=lines.append) == 0
    assert any(line.startswith("7 of 8 jobs were played before") for line in lines)
    assert kept[0].exists()
    assert {path: path.stat().st_mtime_ns for path in kept[1:]} == before
    once, again = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("once", "again"))
    assert once["methods"] == again["methods"]
    assert [(row["env"], row["method"]) for row in once["methods"]] == [
        (env, name) for env in ("CartPole-v1", "Acrobot-v1") for name in ("synchronous", "serverful")
    ]
    lines.clear()
    main([*words, "--rounds", "1"], say=lines.append)  # another job: none of these will do
    assert not any("before" in line for line in lines)


def test_the_learning_rate_is_chosen_on_seeds_of_its_own_by_every_method(tmp_path):
    file = tmp_path / "stellaris.json"
    words = [*SMALL, "--methods", "stellaris", "--learning-rates", "1e-3", "1e-9", "--tuning-seeds", "7"]
    main([*words, "--folder", str(tmp_path / "cells"), "--json", str(file)], say=lambda text: None)
    content = json.loads(file.read_text())
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*/*.json")]
    assert sorted(each["seed"] for each in cells) == [1, 1, 2, 2, 7, 7, 7, 7]
    for row in content["methods"]:
        scores = {
            each["rate"]: np.mean(each["final_scores"])
            for each in cells
            if each["seed"] == 7 and each["method"] == row["method"]
        }
        assert len(scores) == 2
        assert scores[row["learning_rate"]] == max(scores.values())
    assert {run["seed"] for run in content["runs"]} == {1, 2}


def test_minions_decides_how_many_actors_a_round_has_and_gets_as_many_samples(tmp_path):
    policy = SchedulerPolicy(SchedulerSettings(actors_most=6, hidden=8))
    policy.save(tmp_path / "checkpoints")
    (tmp_path / "config.json").write_text(json.dumps({"goal": {"target": 500.0, "budget": 1.0}}))
    found = method(f"minions:policy={tmp_path}", 4)
    assert found.learning.learners == 1
    played = play(SETTINGS, found, actors=4, rounds=4, clock=Clock(), episodes=1)
    counts = [int(each["actors"]) for each in played.rounds]
    assert sum(counts) == 4 * 4
    assert set(counts) <= set(range(1, 7))
    assert len(set(counts)) > 1
    assert played.rounds[-1]["steps"] == 4 * 4 * 16
    assert played.rounds == play(SETTINGS, found, actors=4, rounds=4, clock=Clock(), episodes=1).rounds


def test_scores_are_drawn_against_what_all_seeds_have_reached(tmp_path):
    pytest.importorskip("matplotlib")
    from replay_server.bench.papers.stellaris.pictures import resampled

    runs = [
        Played(({"time_s": 1.0, "score": 10.0}, {"time_s": 2.0}, {"time_s": 3.0, "score": 30.0}), ()),
        Played(({"time_s": 2.0, "score": 5.0}, {"time_s": 4.0, "score": 7.0}), ()),
    ]
    where, scores = resampled(runs, "time_s")
    assert (where[0], where[-1]) == (2.0, 3.0)
    assert scores[:, 0].tolist() == [15.0, 5.0]  # halfway from 10 to (10 + 30) / 2, which are there at 1 s and 3 s
    assert scores[:, -1].tolist() == [20.0, 5.5]
    assert resampled([*runs, Played(({"time_s": 1.0},), ())], "time_s")[0].size == 0
    picture = tmp_path / "scores.png"
    main([*SMALL, "--methods", "stellaris", "--plot", str(picture)], say=lambda text: None)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_synchronous_learners_with_late_actors_save_the_actors_time_alone():
    clock = Clock(learner=LearnerTimes(spread=0.0))
    waiting, late = (
        play(SETTINGS, method(name, 2), actors=4, rounds=4, clock=clock, episodes=1)
        for name in ("synchronous", "synchronous-late")
    )
    assert [each["gradient_staleness_max"] for each in late.rounds] == [0.0] * 4
    assert late.total("learning_s") == pytest.approx(waiting.total("learning_s"))
    acting_s = clock.actor_start_s + 16 * clock.step_s
    # The first round is waited for by both, and the second, before whose end nobody knows how long learning takes.
    assert waiting.rounds[-1]["time_s"] - late.rounds[-1]["time_s"] == pytest.approx(2 * acting_s)


def test_serverful_learners_do_not_start_and_are_billed_from_the_start_to_the_end():
    clock = Clock(learner=LearnerTimes(start_s=100.0, spread=0.0))
    functions, machines = (
        play(SETTINGS, method(name, 4), actors=4, rounds=2, clock=clock, episodes=1)
        for name in ("synchronous", "serverful")
    )
    assert functions.final_scores == machines.final_scores
    ends = functions.rounds[-1]["time_s"], machines.rounds[-1]["time_s"]
    assert ends[0] - ends[1] == pytest.approx(2 * 100.0)
    prices = load_prices()
    machine = prices.profile("reserved-vms").machine("actor")  # 16 vCPUs: enough for four learners and their server
    acting = 2 * 4 * (clock.actor_start_s + 16 * clock.step_s) * seconds_price(prices.profile("lambda"), "actor", 1024)
    billed_s = max(ends[1], float(machine.minimum_s))
    assert machines.rounds[-1]["cost"] == pytest.approx(acting + billed_s * float(machine.hour) / 3600)


def test_weak_scaling_tells_gradients_a_second_for_each_number_of_learners(tmp_path):
    file = tmp_path / "scaling.json"
    words = [*SMALL, "--seeds", "1", "--methods", "stellaris", "--scaling", "1", "2", "4", "--json", str(file)]
    assert main(words, say=lambda text: None) == 0
    rows = json.loads(file.read_text())["scaling"]
    assert [(row["method"], row["learners"]) for row in rows] == [
        (name, learners) for name in ("synchronous", "stellaris") for learners in (1, 2, 4)
    ]
    assert [rows[0]["efficiency"], rows[3]["efficiency"]] == [1.0, 1.0]
    assert rows[5]["gradients_per_s"] > 1.5 * rows[3]["gradients_per_s"]


def test_a_jobs_clock_and_cost_by_hand():
    clock = Clock(
        learner=LearnerTimes(start_s=1.0, pull_s=0.0, gradient_s=8.0, push_s=0.0, step_s=1.0, spread=0.0),
        actor_start_s=0.5, step_s=0.5, actor_memory_mb=1024, learner_memory_mb=1769,
    )  # fmt: skip
    # Acting: 0.5 + 16 · 0.5 = 8.5 s. 64 samples of one learner: a gradient of 64/256 of a minibatch takes 2 s, a flush
    # 1 s, two passes: 1 + 2 · 3 = 7 s.
    prices = load_prices().profile("lambda")
    actor, learner = seconds_price(prices, "actor", 1024), seconds_price(prices, "learner", 1769)
    for ahead, ends in ((0, [8.5 + 7, 2 * 15.5]), (1, [15.5, 17 + 7])):
        alone = Method("alone", AsynchronousLearning(learners=1, actors_ahead=ahead))
        played = play(SETTINGS, alone, actors=4, rounds=2, clock=clock, episodes=1)
        assert [each["time_s"] for each in played.rounds] == pytest.approx(ends)
        each_round = 4 * 8.5 * actor + 2 * 7 * learner  # the learner's and the parameter function's seconds
        assert [each["cost"] for each in played.rounds] == pytest.approx([each_round, 2 * each_round])
        assert [each["steps"] for each in played.rounds] == [64, 128]


def test_late_actors_end_as_the_learners_should_and_play_with_the_policy_of_then():
    clock = Clock(
        learner=LearnerTimes(start_s=1.0, pull_s=0.0, gradient_s=8.0, push_s=0.0, step_s=1.0, spread=0.0),
        actor_start_s=0.5, step_s=0.125,
    )  # fmt: skip
    # Acting takes 2.5 s and learning 7 s, of which 1 + 3 + 3. Nobody knows of the 7 s in the first round: the second's
    # actors start when it has ended, at 9.5. The third's start at 12 + 7 - 2.5.
    learning = AsynchronousLearning(learners=1)
    late = play(SETTINGS, Method("late", learning, late=True), actors=4, rounds=3, clock=clock, episodes=1)
    soon = play(SETTINGS, Method("soon", learning), actors=4, rounds=3, clock=clock, episodes=1)
    assert [each["time_s"] for each in late.rounds] == pytest.approx([9.5, 19.0, 26.0])
    assert [each["time_s"] for each in soon.rounds] == pytest.approx([9.5, 16.5, 23.5])
    assert [each["cost"] for each in late.rounds] == pytest.approx([each["cost"] for each in soon.rounds])
    # Staleness is told at the round's end, before its last version: two flushes, and what is between acting and that.
    assert [each["staleness"] for each in soon.rounds] == [2, 2 + 3, 2 + 3]
    assert [each["staleness"] for each in late.rounds] == [2, 2, 2 + 2]


def test_actors_ahead_are_what_the_methods_say():
    learning = {name: method(name, 4) for name in METHODS}
    assert [name for name, made in learning.items() if not made.learning.actors_ahead] == [
        "synchronous", "no-actors-ahead", "serverful",
    ]  # fmt: skip
    early = ["synchronous", "early-actors", "no-actors-ahead", "synchronous-ahead", "serverful"]
    assert [name for name, made in learning.items() if not made.late] == early


def test_methods_may_be_joined():
    both = method("no-truncation+early-actors", 4)
    assert not both.late
    assert both.learning == method("no-truncation", 4).learning
    assert method("serverful+soft-sync", 4).machines
    assert method("serverful+soft-sync", 4).learning.flush_count == 2
    with pytest.raises(ValueError, match="unknown method 'stellaris\\+nothing'"):
        method("stellaris+nothing", 4)


def test_rewards_are_compared_at_the_same_time():
    played = play(SETTINGS, method("stellaris", 2), actors=4, rounds=3, clock=Clock(), episodes=1)
    first = played.rounds[0]
    assert np.isnan(played.reward_by(first["time_s"] / 2))
    scored = [each for each in played.rounds if "score" in each]
    assert played.reward_by(played.rounds[-1]["time_s"]) == scored[-1]["score"]


@pytest.mark.parametrize(
    "words",
    [
        ["--methods", "stellar"],
        ["--setting", "hiden=3"],
        ["--learners", "0"],
        ["--delays", "99"],
        ["--methods", "minions:policy=/nowhere"],
    ],
)
def test_wrong_usage_is_told(words, capsys):
    with pytest.raises(SystemExit) as ending:
        main([*SMALL, *words], say=lambda text: None)
    assert ending.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_every_method_has_settings():
    assert {name: method(name, 4).learning.learners for name in METHODS} == dict.fromkeys(METHODS, 4)
    assert method("soft-sync", 4).learning.flush_count == 2
    assert not method("synchronous", 4).learning.keeps_history
