"""`replay-server bench stellaris`: what it says, what it writes, and what it is taken of."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from replay_server.bench.stellaris.command import main
from replay_server.bench.stellaris.job import Clock, play
from replay_server.bench.stellaris.methods import METHODS, method
from replay_server.learner.algorithms import make_settings
from replay_server.serverless.cost import seconds_price
from replay_server.serverless.prices import load_prices
from replay_server.serverless.simulated_learners import LearnerTimes

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
        learning = method("synchronous", 1)
        played = play(
            SETTINGS, type(learning)(learners=1, actors_ahead=ahead), actors=4, rounds=2, clock=clock, episodes=1
        )
        assert [each["time_s"] for each in played.rounds] == pytest.approx(ends)
        each_round = 4 * 8.5 * actor + 2 * 7 * learner  # the learner's and the parameter function's seconds
        assert [each["cost"] for each in played.rounds] == pytest.approx([each_round, 2 * each_round])
        assert [each["steps"] for each in played.rounds] == [64, 128]


def test_rewards_are_compared_at_the_same_time():
    played = play(SETTINGS, method("stellaris", 2), actors=4, rounds=3, clock=Clock(), episodes=1)
    first = played.rounds[0]
    assert np.isnan(played.reward_by(first["time_s"] / 2))
    scored = [each for each in played.rounds if "score" in each]
    assert played.reward_by(played.rounds[-1]["time_s"]) == scored[-1]["score"]


@pytest.mark.parametrize(
    "words", [["--methods", "stellar"], ["--setting", "hiden=3"], ["--learners", "0"], ["--delays", "99"]]
)
def test_wrong_usage_is_told(words, capsys):
    with pytest.raises(SystemExit) as ending:
        main([*SMALL, *words], say=lambda text: None)
    assert ending.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_every_method_has_settings():
    assert {name: method(name, 4).learners for name in METHODS} == dict.fromkeys(METHODS, 4)
    assert method("soft-sync", 4).flush_count == 2
    assert not method("synchronous", 4).keeps_history
