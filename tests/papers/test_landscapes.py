"""Rounds played more than once from one checkpoint, landscapes around a policy, and the figures made of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.bench.papers.nitro import figure_3, figure_8, figure_9, landscape  # noqa: E402
from replay_server.bench.papers.nitro.branches import Job, kept, lowest_median_highest, rounds_of  # noqa: E402
from replay_server.bench.papers.nitro.repeated import repeated_ratios  # noqa: E402
from replay_server.learner.curvature import (  # noqa: E402
    CurvatureOptions,
    chosen_samples,
    hessian_product,
    objective_of,
    parameters_of,
)
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402

SETTINGS = PpoSettings(env="CartPole-v1", steps=32, hidden=8, iterations=2, minibatch_size=24, seed=5)
WHOLE = CurvatureOptions(subset=1.0)
TINY = ["--env", "CartPole-v1", "--set", "hidden=8", "iterations=2", "--steps", "32"]


def assert_same(one: Job, other: Job) -> None:
    assert one.round == other.round
    theirs = module_arrays(other.learner.network)
    for name, array in module_arrays(one.learner.network).items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_a_copy_goes_on_as_the_job_does_and_a_boost_leaves_the_job_as_it_was():
    job = Job(SETTINGS)
    job.play()
    copy, boosted = job.copy(), job.copy()
    fragments = boosted.play(4)
    assert fragments["reward"].shape == (4, 32)
    assert sorted(fragments["environment"].tolist()) == [0, 1, 2, 3]
    for one in (job, copy):
        assert one.play()["reward"].shape == (1, 32)
        one.play()
    assert_same(job, copy)
    with pytest.raises(ValueError, match="expected at least the job's 1 actors, got 0"):
        job.play(0)


def test_the_jobs_own_actor_plays_the_same_in_a_boosted_round():
    job = Job(SETTINGS)
    job.play()
    alone, boosted = job.copy().play(), job.copy().play(3)
    np.testing.assert_array_equal(alone["action"][0], boosted["action"][0])
    np.testing.assert_array_equal(alone["observation"][0], boosted["observation"][0])


def test_a_second_measurement_of_r_leaves_the_job_as_it_would_be():
    """Its first value is the job's own; the second differs, as its trajectories do."""
    plain = rounds_of(Job(SETTINGS), 3, WHOLE)
    job = Job(SETTINGS)
    pairs = repeated_ratios(job, 3, WHOLE)
    assert_same(job, plain[-1].job)
    assert [own for own, _ in pairs] == [each.ratio for each in plain]
    assert any(own != other for own, other in pairs)


def test_rounds_are_ranked_by_their_ratio():
    played = rounds_of(Job(SETTINGS), 5, WHOLE)
    assert [each.job.round for each in played] == [1, 2, 3, 4, 5]
    ratios = sorted(each.ratio for each in played if each.ratio is not None)
    found = lowest_median_highest(played)
    assert [found[which].ratio for which in ("lowest", "median", "highest")] == [
        ratios[0], ratios[len(ratios) // 2], ratios[-1]
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="expected at least 3 rounds with a ratio"):
        lowest_median_highest(played[:2])


def test_directions_are_eigenvectors_of_the_largest_magnitudes():
    job = Job(SETTINGS)
    fragments = job.play(4)
    vectors, values = landscape.top_two(job, fragments)
    samples = chosen_samples(job.learner, fragments, WHOLE, torch.Generator())
    product = hessian_product(objective_of(job.learner, samples, WHOLE), parameters_of(job.learner, WHOLE))
    for vector, value in zip(vectors, values, strict=True):
        torch.testing.assert_close(product(vector), float(value) * vector, atol=2e-3, rtol=0.0)
    assert abs(values[0]) >= abs(values[1]) > 0.0
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(2), atol=1e-4, rtol=0.0)


def test_a_shift_moves_the_policys_parameters_alone():
    network = Job(SETTINGS).learner.network
    size = sum(each.numel() for each in network.policy_parameters())
    moved = landscape.shifted(network, torch.full((size,), 0.5))
    for (name, before), after in zip(network.named_parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(after - before, torch.full_like(before, 0.0 if name.startswith("critic_") else 0.5))


def test_the_middle_of_a_landscape_is_the_policy_itself():
    job = Job(SETTINGS)
    vectors, _ = landscape.top_two(job, job.play(2))
    scores = landscape.surface(job, vectors, grid=3, extent=20.0, episodes=2)
    assert np.shape(scores) == (3, 3)
    alone = landscape.surface(job, torch.zeros_like(vectors), grid=1, extent=0.0, episodes=2)
    assert scores[1][1] == alone[0][0]
    assert len(set(np.ravel(scores))) > 1
    assert landscape.high_share([[1.0, 2.0], [3.0, 4.0]], 3.0) == 0.5


def test_gains_and_efficiency_by_hand():
    def point(period: int, before: float, unboosted: float, boosts: list[tuple[int, float]]) -> dict:
        rows = [{"actors": actors, "score": score} for actors, score in boosts]
        return {
            "period": period,
            "round": 10 * period,
            "before": before,
            "unboosted": {"score": unboosted},
            "boosts": rows,
        }

    cells = [
        {"points": [point(1, 10.0, 12.0, [(4, 50.0), (8, 90.0)]), point(2, 100.0, 105.0, [(4, 104.0), (8, 116.0)])]},
        {"points": [point(1, 20.0, 18.0, [(4, 40.0), (8, 100.0)])]},
    ]
    rows = figure_9.table(cells, 2, [4, 8])
    assert [row["gain"] for row in rows] == [30.0, 80.0, 4.0, 16.0]
    assert [row["net_gain"] for row in rows] == [30.0, 80.0, -1.0, 11.0]
    # For each actor: (40/4 + 20/4)/2 = 7.5, (80/8 + 80/8)/2 = 10, 1, 2; the most is 10.
    assert [row["efficiency"] for row in rows] == [0.75, 1.0, 0.1, 0.2]
    assert [row["seeds"] for row in rows] == [2, 2, 1, 1]


def test_a_cell_is_kept_and_not_made_again(tmp_path):
    path = tmp_path / "deep" / "cell.json"
    assert kept(path, {"seed": 1}, lambda: {"found": 3}) == {"settings": {"seed": 1}, "found": 3}
    assert kept(path, {"seed": 1}, lambda: {"found": 4})["found"] == 3
    with pytest.raises(RuntimeError, match="of other settings"):
        kept(path, {"seed": 2}, lambda: {"found": 4})
    assert [each.name for each in path.parent.iterdir()] == ["cell.json"]


@pytest.mark.parametrize(
    ("figure", "more", "panels"),
    [
        (figure_3, ["--boosts", "1", "3", "--rounds", "4", "--grid", "2"], 2),
        (figure_8, ["--rounds", "6", "--grid", "2"], 3),
        (
            figure_9,
            ["--rounds", "4", "--periods", "2", "--factors", "2", "3", "--episodes", "2", "--seeds", "1", "2"],
            2,
        ),
    ],
)
def test_figures_are_made_once_and_then_read(figure, more, panels, tmp_path, monkeypatch):
    arguments = [*TINY, *more, "--folder", str(tmp_path), "--json", str(tmp_path / "out" / "all.json")]
    first: list[str] = []
    assert figure.main([*arguments, "--plot", str(tmp_path / "out" / "all.png")], say=first.append) == 0
    assert len(list(tmp_path.glob("figure-*.json"))) == panels
    assert (tmp_path / "out" / "all.png").stat().st_size > 1000
    assert json.loads((tmp_path / "out" / "all.json").read_text())["median"]
    monkeypatch.setattr(figure, "job_of", None)
    again: list[str] = []
    assert figure.main(arguments, say=again.append) == 0
    assert set(again) <= set(first)
