"""The trainer in one process and ``replay-server bench learning``: what they take, tell and leave. No scores."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from replay_server.actors.fragments import random_scores
from replay_server.bench.environments import is_ready
from replay_server.bench.learning import (
    EQUAL,
    IMPACT_EQUAL,
    IMPACT_PEER,
    PEER,
    combined,
    mean_interval,
    paired_difference,
)
from replay_server.bench.main import main as bench
from replay_server.bench.training import train
from replay_server.learner.algorithms import ALGORITHMS, make_settings
from replay_server.rl.policy_spec import policy_spec


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_training_twice_gives_the_same_scores_and_curve(algorithm):
    settings = make_settings(algorithm, "default", env="CartPole-v1", steps=20, hidden=8, seed=3)
    one, other = (train(settings, environments=2, rounds=3, episodes=3) for _ in range(2))
    assert one.scores == other.scores
    assert [row["steps"] for row in one.curve] == [40, 80, 120]
    np.testing.assert_equal(one.curve, other.curve)


def test_training_ends_early_when_it_is_told_to():
    settings = make_settings("ppo", "paper", env="CartPole-v1", steps=10, hidden=8)
    assert len(train(settings, 2, 10, episodes=1, on_round=lambda row: row["round"] == 2).curve) == 2


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(ValueError, match="ppo has no setting 'clipping': expected one of"):
        make_settings("ppo", "default", clipping=0.1)


def test_equal_settings_are_settings():
    assert make_settings("ppo", "default", **EQUAL).clip == EQUAL["clip"]
    assert all(hasattr(make_settings("impact", "default"), name) for name in IMPACT_EQUAL)


def test_the_difference_is_that_of_pairs():
    found = paired_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert (found["mean"], found["theirs"]) == (2.0, 20.0)
    assert 1.0 <= found["low"] <= found["mean"] <= found["high"] <= 3.0
    assert found["low_over_theirs"] == pytest.approx(found["low"] / 20.0)
    same = paired_difference([5.0, 500.0], [6.0, 501.0])
    assert (same["low"], same["high"]) == (-1.0, -1.0), "what all pairs have in common must not widen the interval"


def test_the_interval_of_a_mean_is_as_wide_as_its_standard_error_says():
    values = np.random.default_rng(2).normal(50.0, 10.0, 400)
    found = mean_interval(values)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["low"] < found["mean"] < found["high"]
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * 10.0 / 20.0, rel=0.15)


def test_random_games_score_what_cartpole_gives_for_nothing():
    settings = make_settings("ppo", "default", env="CartPole-v1")
    scores = random_scores(settings, policy_spec(settings), 200, seed=1)
    assert len(scores) == 200
    assert 19.0 < np.mean(scores) < 26.0, "a uniform policy's games last 22 steps on average"
    assert scores == random_scores(settings, policy_spec(settings), 200, seed=1)
    assert scores != random_scores(settings, policy_spec(settings), 200, seed=2)


def test_random_games_draw_continuous_actions_from_all_of_their_range():
    pytest.importorskip("mujoco")
    settings = make_settings("ppo", "default", env="Hopper-v5")
    scores = random_scores(settings, policy_spec(settings), 20, seed=1)
    assert 5.0 < np.mean(scores) < 40.0, "a uniform policy scores about 18"


SMALL = "--env CartPole-v1 --environments 2 --steps 16 --rounds 2 --episodes 2 --set hidden=8"


def test_a_run_leaves_scores_and_curves(tmp_path, capsys):
    file, plot = tmp_path / "learning.json", tmp_path / "learning.png"
    words = f"learning {SMALL} minibatch_size=None --seeds 1 2 --json {file} --plot {plot}"
    assert bench(words.split()) == 0
    content = json.loads(file.read_text())
    assert [round["CartPole-v1.replay.score"] > 0 for round in content["rounds"]] == [True, True]
    assert [row["optimizer_steps"] for row in content["curves"]["CartPole-v1.replay.seed=2"]] == [10, 10]
    assert content["settings"]["given"] == {"hidden": 8, "minibatch_size": None}
    assert plot.stat().st_size > 0
    assert "seed 2 CartPole-v1" in capsys.readouterr().out


def test_against_random_games_says_whether_the_intervals_are_apart(tmp_path, capsys):
    file = tmp_path / "learning.json"
    assert bench(f"learning {SMALL} --seeds 1 --against random --json {file}".split()) == 0
    content = json.loads(file.read_text())
    assert len(content["scores"]["CartPole-v1.random.seed=1"]) == 2
    found = content["above_random"]["CartPole-v1.seed=1"]
    assert found["above"] == (found["replay"]["low"] > found["random"]["high"])
    assert "above" in capsys.readouterr().out


def test_runs_of_single_seeds_make_the_result_of_one_run(tmp_path, capsys):
    files = [tmp_path / f"{seed}.json" for seed in (2, 1)]
    for seed, file in zip((2, 1), files, strict=True):
        assert bench(f"learning {SMALL} --seeds {seed} --against random --json {file}".split()) == 0
    both, joined = tmp_path / "both.json", tmp_path / "joined.json"
    assert bench(f"learning {SMALL} --seeds 1 2 --against random --json {both}".split()) == 0
    assert bench(["learning", "--combine", *map(str, files), "--json", str(joined)]) == 0
    expected, content = (json.loads(file.read_text()) for file in (both, joined))
    for name in ("scores", "curves", "above_random"):
        assert content[name] == expected[name]
    assert [round["CartPole-v1.replay.score"] for round in content["rounds"]] == [
        round["CartPole-v1.replay.score"] for round in expected["rounds"]
    ]
    assert [part["command"].split("--seeds ")[1][0] for part in content["parts"]] == ["2", "1"]
    assert "--seeds 1 2" in content["command"]
    again = combined([content])
    assert (again["parts"], again["command"]) == (content["parts"], content["command"])


def test_runs_that_differ_are_not_combined(tmp_path):
    documents = []
    for seed, hidden in ((1, 8), (2, 9), (1, 8)):
        file = tmp_path / "learning.json"
        words = f"learning --env CartPole-v1 --environments 1 --steps 8 --rounds 1 --episodes 1 --seeds {seed}"
        assert bench([*words.split(), "--set", f"hidden={hidden}", "--json", str(file)]) == 0
        documents.append(json.loads(file.read_text()))
    with pytest.raises(ValueError, match="expected set \\['hidden=8'\\] as in the first file"):
        combined(documents[:2])
    with pytest.raises(ValueError, match="got seed 1 again"):
        combined([documents[0], documents[2]])


@pytest.mark.parametrize(("algorithm", "peer"), [("impact", PEER), ("ppo", IMPACT_PEER)])
def test_a_peer_has_one_algorithm(algorithm, peer, capsys):
    assert bench(f"learning --algorithm {algorithm} --against {peer} {SMALL}".split()) == 1
    assert "leave out --against" in capsys.readouterr().err


@pytest.mark.skipif(not is_ready(PEER), reason=f"needs {PEER}: replay-server bench learning --against {PEER} --setup")
def test_both_sides_are_given_the_same_work(tmp_path):
    file = tmp_path / "learning.json"
    assert bench(f"learning {SMALL} --seeds 1 --against {PEER} --json {file}".split()) == 0
    content = json.loads(file.read_text())
    sides = [content["curves"][f"CartPole-v1.{side}.seed=1"] for side in ("replay", PEER)]
    assert [[row["steps"] for row in side] for side in sides] == [[32, 64]] * 2
    assert content["difference"]["CartPole-v1"]["theirs"] == content["rounds"][0][f"CartPole-v1.{PEER}.score"]


@pytest.mark.slow
@pytest.mark.skipif(not is_ready(IMPACT_PEER), reason=f"needs {IMPACT_PEER}: the same with --against {IMPACT_PEER}")
def test_rllib_is_given_the_same_work(tmp_path):
    pytest.importorskip("mujoco")
    file = tmp_path / "learning.json"
    words = "learning --algorithm impact --env Hopper-v5 --environments 2 --steps 16 --rounds 2 --episodes 2 --seeds 1"
    words += f" --set hidden=8 minibatch_size=16 --against {IMPACT_PEER} --json {file}"
    assert bench(words.split()) == 0
    content = json.loads(file.read_text())
    sides = [content["curves"][f"Hopper-v5.{side}.seed=1"] for side in ("replay", IMPACT_PEER)]
    assert [[row["steps"] for row in side] for side in sides] == [[32, 64]] * 2
    assert len(content["scores"][f"Hopper-v5.{IMPACT_PEER}.seed=1"]) == 2
