"""The trainer in one process and ``replay-server bench learning``: what they take, tell and leave. No scores."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from replay_server.bench.environments import is_ready
from replay_server.bench.learning import EQUAL, PEER, paired_difference
from replay_server.bench.main import main as bench
from replay_server.bench.training import ALGORITHMS, make_settings, train


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


def test_the_difference_is_that_of_pairs():
    found = paired_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert (found["mean"], found["theirs"]) == (2.0, 20.0)
    assert 1.0 <= found["low"] <= found["mean"] <= found["high"] <= 3.0
    assert found["low_over_theirs"] == pytest.approx(found["low"] / 20.0)
    same = paired_difference([5.0, 500.0], [6.0, 501.0])
    assert (same["low"], same["high"]) == (-1.0, -1.0), "what all pairs have in common must not widen the interval"


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


def test_impact_has_no_peer(capsys):
    assert bench(f"learning --algorithm impact --against {PEER} {SMALL}".split()) == 1
    assert "leave out --against" in capsys.readouterr().err


@pytest.mark.skipif(not is_ready(PEER), reason=f"needs {PEER}: replay-server bench learning --against {PEER} --setup")
def test_both_sides_are_given_the_same_work(tmp_path):
    file = tmp_path / "learning.json"
    assert bench(f"learning {SMALL} --seeds 1 --against {PEER} --json {file}".split()) == 0
    content = json.loads(file.read_text())
    sides = [content["curves"][f"CartPole-v1.{side}.seed=1"] for side in ("replay", PEER)]
    assert [[row["steps"] for row in side] for side in sides] == [[32, 64]] * 2
    assert content["difference"]["CartPole-v1"]["theirs"] == content["rounds"][0][f"CartPole-v1.{PEER}.score"]
