"""The boostable-rounds experiment: which rounds it takes, what it makes of their gains, and that it goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from replay_server.bench.papers.nitro.boosting import (
    BoostSettings,
    choose_rounds,
    gains,
    regression,
    run_seed,
)
from replay_server.bench.papers.nitro.branches import Job
from replay_server.bench.papers.nitro.figure_7 import main
from replay_server.learner.curvature import CurvatureOptions
from replay_server.learner.ppo import PpoSettings

SETTINGS = BoostSettings(rounds=10, horizon=2, first=2, random_rounds=2)


def test_the_rounds_of_the_lowest_median_and_highest_ratio_are_taken() -> None:
    """Of rounds 2 to 8 that have a ratio: 3 (lowest), 6 (third of five: 2, 3, 5, 6, 8), 8 (highest)."""
    ratios = {1: 0.1, 2: 2.0, 3: 1.0, 4: None, 5: 9.0, 6: 5.0, 7: None, 8: 20.0, 9: 99.0, 10: 0.0}
    chosen = choose_rounds(ratios, SETTINGS, 1)
    why = {name: point["round"] for point in chosen for name in point["why"] if name != "random"}
    assert why == {"lowest": 3, "median": 6, "highest": 8}
    drawn = [point["round"] for point in chosen if "random" in point["why"]]
    assert len(drawn) == 2
    assert set(drawn) <= {2, 3, 5, 6, 8}
    assert chosen == choose_rounds(ratios, SETTINGS, 1)
    with pytest.raises(ValueError, match="at least 3 rounds"):
        choose_rounds({3: 1.0, 4: 2.0, 5: None}, SETTINGS, 1)


def point(seed: int, number: int, ratio: float, gain: float, *why: str) -> dict[str, Any]:
    return {"seed": seed, "round": number, "ratio": ratio, "gain": gain, "why": list(why)}


def test_gains_are_means_over_seeds_and_pairs_within_them() -> None:
    points = [
        point(1, 3, 1.0, 10.0, "lowest"), point(1, 6, 9.0, 4.0, "highest", "random"), point(1, 7, 2.0, 2.0, "random"),
        point(2, 5, 1.0, 30.0, "lowest"), point(2, 6, 9.0, 24.0, "highest"),
    ]  # fmt: skip
    found = gains(points)
    assert (found["lowest"].value, found["highest"].value, found["random"].value) == (20.0, 14.0, 3.0)
    pairs = found["lowest − highest"]
    assert (pairs.value, pairs.low, pairs.high) == (6.0, 6.0, 6.0)
    assert found["lowest − random"].value == 7.0


def test_the_regression_finds_the_plane_that_points_lie_on() -> None:
    """gain = 5 − 2 ln R + 0.5 round: whatever seeds are drawn, the plane is the same."""
    points = [
        point(seed, number, ratio, 5.0 - 2.0 * math.log(ratio) + 0.5 * number)
        for seed in (1, 2, 3)
        for number, ratio in ((3, 1.0 + seed), (9, 0.5), (20, 40.0 * seed), (31, 3.0))
    ]
    found = regression(points, resamples=50)
    assert found["log_ratio"].value == pytest.approx(-2.0)
    assert (found["log_ratio"].low, found["round"].high) == (pytest.approx(-2.0), pytest.approx(0.5))


@pytest.mark.parametrize("wrong", [{"horizon": 0}, {"first": 0}, {"first": 48}])
def test_rounds_that_cannot_be_boosted_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="first round from 1 to"):
        BoostSettings(**wrong)
    try:
        status = main(["--folder", "x", *(f"--{name}={value}" for name, value in wrong.items())])
    except SystemExit as stop:  # A number that cannot be at all is refused as it is read.
        status = stop.code
    assert status == 2


def test_an_experiment_is_made_once_and_then_read(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--env", "CartPole-v1", "--seeds", "1", "2", "--rounds", "8", "--steps", "32", "--actors", "2"]
    words += ["--set", "hidden=8", "iterations=2", "--boosted", "4", "--horizon", "2", "--first", "1"]
    words += ["--episodes", "4", "--random-rounds", "1", "--subset", "1", "--folder", str(tmp_path / "kept")]
    outputs = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    first: list[str] = []
    assert main([*words, *outputs], say=first.append) == 0
    content = json.loads((tmp_path / "a.json").read_text())
    assert {why for each in content["points"] for why in each["why"]} == {"lowest", "median", "highest", "random"}
    assert all(len(each["scores"]["boosted"]) == 4 for each in content["points"])
    assert all(1 <= each["round"] <= 6 for each in content["points"])
    assert (tmp_path / "a.png").stat().st_size > 1000
    again: list[str] = []
    assert main(words, say=again.append) == 0  # from what is kept
    assert again == [line for line in first if "→" not in line]
    with pytest.raises(RuntimeError, match="of other settings"):
        main([*words, "--boosted", "7"])


def test_boosting_by_nothing_gains_nothing() -> None:
    """Both branches are then the same job: the same seeds, environments and games."""
    settings = BoostSettings(rounds=6, boosted=2, horizon=2, first=1, random_rounds=0, episodes=3)
    job = Job(PpoSettings(env="CartPole-v1", steps=32, hidden=8, iterations=2, seed=1), actors=2)
    found = run_seed(job, settings, CurvatureOptions(subset=1.0), lambda text: None)
    assert len(found) == 3
    assert [each["gain"] for each in found] == [0.0] * 3
    assert all(each["scores"]["boosted"] == each["scores"]["unboosted"] for each in found)
