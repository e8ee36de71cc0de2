"""`bench scalers` and its figures: what no comparison can have is refused at once, and leaves nothing behind."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from replay_server.bench.main import main as bench
from replay_server.bench.papers.nitro import command
from replay_server.bench.papers.nitro.branches import kept
from replay_server.bench.papers.nitro.campaign import FIXED, Campaign
from replay_server.bench.papers.nitro.cell import Cell, CellName, JobSettings
from replay_server.bench.papers.nitro.scheme import Scheme
from replay_server.bench.papers.nitro.table import comparison

ENV = "CartPole-v1"
JOB = JobSettings(rounds=4, steps=10, eval_every=2)


def cell(seed: int = 1, scheme: str = "fixed") -> Cell:
    return Cell(
        env=ENV, scheme=scheme, seed=seed, counts=(2,) * 4, steps=(20, 40, 60, 80), scores=(None,) * 4,
        round_s=(1.0,) * 4, learner_s=(0.5,) * 4, cost=(1.0, 2.0, 3.0, 4.0), evaluations=((2, 100.0), (4, 300.0)),
        final=200.0, final_scores=(100.0, 300.0), statistics=({},) * 4, actor_cpu_s=((0.5, 0.25),) * 4,
        learner_cpu_s=(0.5,) * 4, scaler_state={}, wall_s=9.0,
    )  # fmt: skip


def test_a_comparison_that_is_refused_leaves_no_settings_behind(tmp_path: Path) -> None:
    """They stayed, and the same command put right was refused for having others."""
    with pytest.raises(ValueError, match="nitro: expected 1 ≤ least ≤ most"):
        Campaign(tmp_path, dataclasses.replace(JOB, actors=2, actors_max=4), [ENV], [Scheme("nitro")], [1])
    Campaign(tmp_path, JOB, [ENV], [Scheme("nitro")], [1])
    assert [each.name for each in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_episodes": 0}, "--final-episodes"),
        ({"memory_mb": 0}, "--memory-mb"),
        ({"rounds": 0}, "--rounds"),
        ({"steps": -1}, "--steps"),
        ({"actors": 65}, "at most --actors-max 64"),
        ({"profile": "mine"}, "mine"),
        ({"setting": {"speed": 3}}, "speed"),
        ({"price_profile": "mine"}, "mine"),
    ],
)
def test_settings_that_no_cell_can_have_are_told_before_the_first(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Each cell failed with them when it had been trained, or trained with fewer actors than were asked for."""
    with pytest.raises(ValueError, match=message):
        Campaign(tmp_path / "cells", dataclasses.replace(JOB, **changes), [ENV], [FIXED], [1])
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("decay:decay=0.9", "expected no options"),
        ("shuffled:seed=3", "expected no options"),
        ("inverted:inverted=false", "inverted"),
        ("fixed:actors=128", "at most --actors-max 64"),
        ("fixed:actors=2.5", "whole number"),
        ("hydrozoa:every=2.5", "whole number"),
    ],
)
def test_options_that_were_left_aside_are_refused(tmp_path: Path, word: str, message: str) -> None:
    """A control was trained without them under a name that said otherwise."""
    with pytest.raises(ValueError, match=message):
        Campaign(tmp_path, JOB, [ENV], [Scheme.parse(word)], [1])


def test_what_a_control_needs_is_checked_with_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nitro: expected 1 ≤ least ≤ most"):
        Campaign(tmp_path, dataclasses.replace(JOB, actors=2, actors_max=4), [ENV], [Scheme("shuffled")], [1])


def test_a_seed_that_is_given_twice_is_one_run(tmp_path: Path) -> None:
    """It counted as two that agree, and made intervals narrower; two lanes trained the same cell."""
    campaign = Campaign(tmp_path, JOB, [ENV, ENV], [FIXED], [1, 2, 1])
    assert [(each.env, each.seed) for each in campaign.cells()] == [(ENV, 1), (ENV, 2)]


def test_a_report_of_seeds_that_fixed_has_not_says_what_is_missing(tmp_path: Path) -> None:
    """It was KeyError: 'fixed'."""
    cell(1).write(CellName(ENV, FIXED, 1).path(tmp_path))
    assert Campaign(tmp_path, JOB, [ENV], [FIXED], [1]).target(ENV) is not None
    others = Campaign(tmp_path, JOB, [ENV], [FIXED], [6])
    assert comparison(others) == {}
    assert [each.seed for each in others.missing()] == [6]


def report(folder: Path) -> list[str]:
    return ["scalers", "--folder", str(folder), "--env", ENV, "--seeds", "1", "--report", "--schemes", "fixed",
            "--rounds", "4", "--steps", "10", "--eval-every", "2"]  # fmt: skip


@pytest.mark.parametrize("name", [f"{ENV}/fixed/seed-1.json", f"{ENV}/target.json", "settings.json"])
def test_a_damaged_file_is_told_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Half a file ended in a traceback."""
    cell(1).write(CellName(ENV, FIXED, 1).path(tmp_path))
    assert bench(report(tmp_path)) == 0
    (tmp_path / name).write_text((tmp_path / name).read_text()[:20])
    assert bench(report(tmp_path)) != 0
    assert str(tmp_path / name) in capsys.readouterr().err


def test_a_cell_of_another_scheme_is_not_taken_for_its_namesake(tmp_path: Path) -> None:
    """Policies in a/b and in a-b have one file name: the second was told with the first one's numbers."""
    campaign = Campaign(tmp_path, JOB, [ENV], [FIXED], [1])
    ours, theirs = (Scheme("minions", (("policy", folder),)) for folder in ("a/b", "a-b"))
    cell(1, ours.trained_name).write(CellName(ENV, ours, 1).path(tmp_path))
    assert campaign.read(ENV, ours, 1) is not None
    with pytest.raises(ValueError, match="is of CartPole-v1 minions:policy=a/b seed 1"):
        campaign.read(ENV, theirs, 1)


def test_a_figure_is_a_figure_however_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--figure=99 trained the whole comparison in its place."""
    assert command.main(["--figure=99", "--folder", str(tmp_path)]) == 2
    assert "unknown figure '99'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--fig", "99", "--folder", str(tmp_path), "--report"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "--figure 3 --grid 1", "--figure 3 --boosts 0", "--figure 3 --round 11", "--figure 3 --actors 4",
        "--figure 4 --rounds 0", "--figure 5 --episodes 0", "--figure 5 --actors 17",
        "--figure 5 --machine-start-s nan", "--figure 7 --subset 0",
        "--figure 7 --random-rounds -1", "--figure 7 --boosted 8", "--figure 8 --episodes 0",
        "--figure 9 --periods 0", "--figure 9 --factors 0", "--figure 16 --memory 0", "--figure 18 --actors 0",
        "--figure 20 --rounds 1", "--lanes 0", "--seeds -1",
    ],
)  # fmt: skip
def test_numbers_that_no_figure_can_have_are_wrong_usage(tmp_path: Path, words: str) -> None:
    """They ended in a traceback after the job had been played, or in a mean over no games."""
    given = [
        *words.split(),
        *(["--folder", str(tmp_path / "cells")] if "18" not in words and "20" not in words else []),
    ]
    try:
        status = command.main(given, str(tmp_path), lambda text: None)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert not (tmp_path / "cells").exists()


def test_half_a_panel_is_told_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "figure.json"
    assert kept(path, {"seed": 1}, lambda: {"found": 2})["found"] == 2
    path.write_text(path.read_text()[:12])
    with pytest.raises(RuntimeError, match="is damaged"):
        kept(path, {"seed": 1}, dict)


def test_what_is_given_twice_counts_once() -> None:
    from replay_server.bench.papers.option_types import Once, at_least

    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=at_least(0), nargs="+", action=Once, default=[7])
    assert parser.parse_args(["--seeds", "2", "1", "2"]).seeds == [2, 1]
    assert parser.parse_args([]).seeds == [7]
    assert json.dumps(vars(parser.parse_args(["--seeds", "3"]))) == '{"seeds": [3]}'


def test_equal_values_share_their_rank() -> None:
    """By hand: ranks 0.5 0.5 2 3 against 0 1 2.5 2.5; of values that are all equal nothing correlates."""
    from replay_server.bench.papers.nitro.curvature import rank_correlation

    ranks = [[0.5, 0.5, 2.0, 3.0], [0.0, 1.0, 2.5, 2.5]]
    middles = [[each - 1.5 for each in one] for one in ranks]
    product = sum(a * b for a, b in zip(*middles, strict=True))
    spread = math.prod(math.sqrt(sum(each * each for each in one)) for one in middles)
    assert rank_correlation([1.0, 1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 3.0]) == pytest.approx(product / spread)
    assert rank_correlation([4.0, 1.0, 3.0], [9.0, 2.0, 5.0]) == pytest.approx(1.0)
    assert math.isnan(rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))


@pytest.mark.parametrize("words", ["--rounds 0", "--hidden-exact 0", "--seed -1"])
def test_curvature_of_no_rounds_is_wrong_usage(words: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench(["curvature", *words.split()])


def test_a_probe_that_cannot_be_had_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback."""
    assert bench(["curvature", "--subset", "2"]) == 1
    assert "expected a subset in (0, 1]" in capsys.readouterr().err


def test_a_damaged_job_or_training_of_a_scheduler_is_told_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told in words that named no file."""
    from replay_server.bench.papers.minions.comparison import Comparison
    from replay_server.serverless.scheduler.decision import Goal
    from replay_server.serverless.settings import TrainSettings

    comparison = Comparison(TrainSettings(), Goal(1.0, 1.0), tmp_path, (1,))
    comparison.path("random", 1).write_text('{"return": -')
    with pytest.raises(ValueError, match="is damaged") as raised:
        comparison.cell("random", 1)
    assert str(comparison.path("random", 1)) in str(raised.value)
    (tmp_path / "config.json").write_text('{"goal": null}')
    assert bench(["minions", "--policy", str(tmp_path), "--folder", str(tmp_path)]) == 1
    assert f"{tmp_path / 'reference.json'}" in capsys.readouterr().err
