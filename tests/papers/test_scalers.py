"""`bench scalers`: what is read off cells, held against values worked out by hand; cells that are kept, and resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from replay_server.bench.papers.nitro.campaign import FIXED, Campaign
from replay_server.bench.papers.nitro.cell import (
    Cell,
    CellName,
    JobSettings,
    Target,
    lambda_clock,
    on_stage,
    played_again,
    reserved_clock,
    train_settings,
)
from replay_server.bench.papers.nitro.command import figures, main
from replay_server.bench.papers.nitro.load import at_even_load, usual_acting_s
from replay_server.bench.papers.nitro.measures import budget_of, reached, score_at, target_of
from replay_server.bench.papers.nitro.paced import Paced
from replay_server.bench.papers.nitro.scheme import Scheme
from replay_server.bench.papers.nitro.table import (
    add_training,
    comparison,
    environment_table,
    lines,
    over_environments,
    together_lines,
)
from replay_server.bench.papers.statistics import (
    interquartile_mean,
    paired_interval,
    restricted_mean,
    stratified_interval,
)
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.schedule import Schedule

JOB = JobSettings(rounds=4, steps=10, eval_every=2)


def cell(seed: int = 1, scheme: str = "fixed", **changes: Any) -> Cell:
    """Four rounds of 1 s and $1; evaluations 100 after round 2, 300 after round 4, and 200 at the end."""
    whole = Cell(
        env="CartPole-v1", scheme=scheme, seed=seed, counts=(2, 2, 2, 2), steps=(20, 40, 60, 80),
        scores=(None, 50.0, 60.0, 70.0), round_s=(1.0,) * 4, learner_s=(0.5,) * 4, cost=(1.0, 2.0, 3.0, 4.0),
        evaluations=((2, 100.0), (4, 300.0)), final=200.0, final_scores=(100.0, 300.0), statistics=({},) * 4,
        actor_cpu_s=((0.5, 0.25),) * 4, learner_cpu_s=(0.5,) * 4, scaler_state={}, wall_s=9.0,
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def after(number: int) -> RoundRecord:
    return RoundRecord(
        round=number, version=number, actors=8, arrived=8, environments=1, steps=1, total_steps=number, scores=(),
        statistics={}, round_s=1.0, learner_s=0.5, actor_s_mean=0.3, actor_s_max=0.5,
    )  # fmt: skip


# ---- even load -------------------------------------------------------------------------------------------------------


def clocked(slower: tuple[float, ...], learner_s: float = 0.5, **changes: Any) -> Cell:
    """As it is kept of a machine that took `slower` times as long in each round."""
    acting = tuple((0.5 * each, 0.25 * each, 0.5 * each) for each in slower)
    made = cell(actor_cpu_s=acting, learner_cpu_s=tuple(learner_s * each for each in slower), **changes)
    return played_again(made, lambda_clock(JOB))


def test_a_busy_machine_is_taken_out_of_the_times_and_what_a_scheme_costs_is_not() -> None:
    quiet = clocked((1.0,) * 4)
    busy = clocked((2.0,) * 4, scheme="nitro", learner_s=0.75)  # its learner has half as much again to do
    assert usual_acting_s([quiet, quiet, busy]) == 0.5
    assert at_even_load(quiet, 0.5, JOB) == quiet
    even = at_even_load(busy, 0.5, JOB)
    assert even == clocked((1.0,) * 4, scheme="nitro", learner_s=0.75)
    assert even.elapsed_s[-1] - quiet.elapsed_s[-1] == pytest.approx(4 * 0.25, abs=1e-9)
    assert even.final_scores == busy.final_scores


def test_a_load_that_came_late_is_taken_out_of_the_rounds_it_was_in() -> None:
    late = clocked((1.0, 1.0, 1.0, 3.0, 3.0, 3.0), counts=(3,) * 6, steps=tuple(range(30, 181, 30)))
    even = at_even_load(late, 0.5, JOB)
    assert even.learner_cpu_s[0] == 0.5
    assert even.learner_cpu_s[-1] == 0.5
    with pytest.raises(ValueError, match="expected cells"):
        usual_acting_s([])


def test_what_is_told_at_even_load_leaves_the_target_and_the_cells_as_they_are(tmp_path: Path) -> None:
    for seed, slower in ((1, 1.0), (2, 1.5), (3, 9.0)):
        clocked((slower,) * 4, seed=seed).write(CellName("CartPole-v1", FIXED, seed).path(tmp_path))
    what = tmp_path, JOB, ["CartPole-v1"], [FIXED]
    settled = Campaign(*what, [1]).target("CartPole-v1")
    even = Campaign(*what, [1, 2, 3], even_load=True)
    assert even.target("CartPole-v1") == settled
    first, second, third = even.of("CartPole-v1", FIXED)
    for other in (second, third):
        assert first.round_s == pytest.approx(other.round_s)
    assert first.round_s[0] > clocked((1.0,) * 4).round_s[0]  # the usual lies between them
    reserved, *_ = even.of("CartPole-v1", Scheme.parse("fixed@reserved"))
    assert reserved.scheme == "fixed@reserved"
    assert reserved.cost != first.cost
    told = comparison(even)["CartPole-v1"]
    assert told["target"]["score"] == settled.score
    assert told["target"]["budget"] == budget_of([first, second, third], settled.score) > settled.budget


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0]) == 2.0
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0  # a quarter of three is none
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 100]) == 4.5


def test_strata_are_resampled_apart() -> None:
    """Each stratum has equal values, so every resample is the sample, however far the strata lie apart."""
    found = stratified_interval([[1.0, 1.0], [9.0, 9.0]], resamples=50)
    assert (found.value, found.low, found.high) == (5.0, 5.0, 5.0)


def test_pairs_that_differ_by_the_same_have_no_width() -> None:
    found = paired_interval([11.0, 102.0, 1003.0], [10.0, 101.0, 1002.0])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    balanced = paired_interval([1.0, 0.0, -1.0, 1.0, -1.0], [0.0] * 5)
    assert balanced.low < 0.0 < balanced.high


def test_the_restricted_mean_is_the_area_under_kaplan_and_meiers_curve() -> None:
    """1 reached of 3 at time 1, one cut off at 2, the last at 3: 1·1 + ⅔·(3 − 1), then nobody is left."""
    assert restricted_mean([1.0, None, 3.0], [10.0, 2.0, 10.0], 4.0) == pytest.approx(1 + 2 / 3 * 2)
    assert restricted_mean([1.0, None, 3.0], [10.0, 2.0, 10.0], 2.0) == pytest.approx(1 + 2 / 3)
    assert restricted_mean([None, None], [5.0, 5.0], 5.0) == 5.0
    # Followed to 4 alone, of two one had reached it by then: the other half stays until the horizon.
    assert restricted_mean([2.0, None], [4.0, 4.0], 8.0) == 2 + 0.5 * (4 - 2) + 0.5 * (8 - 4)
    assert restricted_mean([None, None], [4.0, 4.0], 5.0) == 5.0
    assert restricted_mean([2.0, 4.0], [9.0, 9.0], 9.0) == 3.0


# ---- measures --------------------------------------------------------------------------------------------------------


def test_the_target_is_reached_by_the_first_evaluation_at_or_above_it() -> None:
    found = reached(cell(), 300.0)
    assert found is not None
    assert (found.round, found.time_s, found.cost, found.steps) == (4, 4.0, 4.0, 80)
    assert (early := reached(cell(), 100.0)) is not None
    assert early.round == 2
    assert reached(cell(), 301.0) is None


def test_target_and_budget_are_fixed_16s_medians() -> None:
    """Finals 100, 200, 400: J = 180. Paid to J: never, 4 (round 4's 300), 2 (round 2's 250): B = 4."""
    cells = [
        cell(1, final=100.0, evaluations=((2, 90.0),)),
        cell(2),
        cell(3, final=400.0, evaluations=((2, 250.0), (4, 300.0))),
    ]
    assert target_of(cells) == Target(pytest.approx(180.0), 4.0)
    assert target_of([cell(final=-100.0, evaluations=())]).score == pytest.approx(-110.0)


def test_a_score_for_so_many_dollars_lies_on_the_line_between_evaluations() -> None:
    """Evaluations at $2 (100) and, the last, at $4: the final reward, 200, takes the place of round 4's."""
    one = cell()
    assert [score_at(one, one.cost, dollars) for dollars in (1.0, 2.0, 3.0, 4.0, 9.0)] == [100, 100, 150, 200, 200]
    assert score_at(one, one.steps, 50) == 125.0


def test_a_stage_changes_times_and_dollars_alone() -> None:
    one = cell()
    reserved = on_stage(one, Scheme.parse("fixed@reserved"), JOB)
    assert (reserved.final, reserved.counts) == (one.final, one.counts)
    # 16 cores: 0.5 s of acting, 0.5 s of learning, and 21 ms: two dispatches' gap, platform and server.
    assert reserved.round_s[0] == pytest.approx(1.0 + 0.0207, abs=2e-3)
    assert reserved.cost == pytest.approx(((3.06 + 0.68) / 60,) * 4)  # a minute at least
    assert on_stage(one, FIXED, JOB) is one


@pytest.mark.parametrize(("actors", "machines"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_reserved_machines_are_clocked_by_the_cores_that_are_paid_for(actors: int, machines: int) -> None:
    clock = reserved_clock(actors, "full")
    assert clock.stage.host.cores == 16 * machines
    assert clock.play([1.0] * actors, 1.0).cost == pytest.approx((3.06 + 0.68 * machines) / 60)


# ---- schemes ---------------------------------------------------------------------------------------------------------


def test_schemes_are_words() -> None:
    scheme = Scheme.parse("nitro:decay=0.9,window=3@memory_mb=2048")
    assert (scheme.name, scheme.options, scheme.stage) == ("nitro", (("decay", 0.9), ("window", 3)), "memory_mb=2048")
    assert str(scheme) == "nitro:decay=0.9,window=3@memory_mb=2048"
    assert scheme.trained_name == "nitro:decay=0.9,window=3"
    assert Scheme.parse("schedule:counts=[1,2]").options == (("counts", (1, 2)),)
    for wrong in ("nitr", "fixed@moon", "nitro:decay"):
        with pytest.raises(ValueError, match="expected"):
            Scheme.parse(wrong)


@pytest.mark.parametrize("name", ["constant", "decay", "shuffled", "inverted"])
def test_controls_have_nitros_total(name: str) -> None:
    boosted = [64, 8, 30, 9, 50, 8, 20, 40, 8, 12] * 5
    job = JobSettings()
    settings = train_settings(CellName("CartPole-v1", Scheme(name), 3), job, "")
    scaler = Scheme.parse(name).scaler(settings, boosted)
    records = [
        dataclasses.replace(after(number), statistics={"curvature_max": float(number % 7), "curvature_min": -1.0})
        for number in range(1, 50)
    ]
    counts = [scaler.actors(before) for before in (None, *records)]
    assert sum(counts) == pytest.approx(sum(boosted), rel=0.02)
    assert min(counts) >= 8 or name == "decay"
    assert max(counts) <= 64


def test_paced_counts_come_to_the_total() -> None:
    """Raw 10, 10, 20 with even prospects, total 20: 10·20/30; then 10·13/20 + ½; then what is left."""
    scaler = Paced(Schedule([10, 10, 20]), 20, (1.0, 1.0, 1.0), 1, 64)
    assert [scaler.actors(None if not k else after(k)) for k in range(3)] == [7, 7, 6]


def test_paced_counts_leave_the_rounds_to_come_what_they_must_have() -> None:
    scaler = Paced(Schedule([60, 60, 60]), 30, (1.0, 0.001, 0.001), 8, 64)
    first = scaler.actors(None)
    again = Paced(Schedule([60, 60, 60]), 30, (1.0, 0.001, 0.001), 8, 64)
    again.actors(None)
    scaler.restore(json.loads(json.dumps(again.state())))
    assert [first, scaler.actors(after(1)), scaler.actors(after(2))] == [14, 8, 8]


def test_an_option_of_a_scheme_may_be_a_map(tmp_path: Path) -> None:
    """It was parsed, and then could be no key of a table of schemes."""
    scheme = Scheme.parse('nitro:curvature={"subset": 1.0},least=1')
    assert scheme.options == (("curvature", {"subset": 1.0}), ("least", 1))
    assert [each.scheme for each in Campaign(tmp_path, JOB, ["CartPole-v1"], [scheme], [1]).cells()][1:] == [scheme]


# ---- campaigns -------------------------------------------------------------------------------------------------------


def test_a_campaign_trains_what_others_need_first(tmp_path: Path) -> None:
    campaign = Campaign(
        tmp_path, JOB, ["CartPole-v1"], [Scheme.parse("shuffled"), Scheme.parse("nitro@reserved")], [1, 2]
    )
    names = [f"{each.scheme} {each.seed}" for each in campaign.cells()]
    assert names == ["fixed 1", "fixed 2", "nitro 1", "shuffled 1", "nitro 2", "shuffled 2"]
    for seed in (1, 2):
        assert campaign.target("CartPole-v1") is None
        cell(seed).write(CellName("CartPole-v1", FIXED, seed).path(tmp_path))
    assert campaign.target("CartPole-v1") == Target(180.0, 4.0)
    assert [f"{each.scheme} {each.seed}" for each in campaign.missing()] == names[2:]
    # The target stays as it was before the others ran.
    cell(1, final=900.0).write(CellName("CartPole-v1", FIXED, 1).path(tmp_path))
    assert campaign.target("CartPole-v1") == Target(180.0, 4.0)
    assert campaign.read("CartPole-v1", FIXED, 2) == cell(2)


def test_a_comparison_has_one_set_of_settings(tmp_path: Path) -> None:
    Campaign(tmp_path, JOB, ["CartPole-v1"], [FIXED], [1])
    with pytest.raises(ValueError, match=r"nitro:decays=0.9: .*does not take that"):
        Campaign(tmp_path, JOB, ["CartPole-v1"], [Scheme.parse("nitro:decays=0.9")], [1])
    with pytest.raises(ValueError, match="rounds=4"):
        Campaign(tmp_path, dataclasses.replace(JOB, rounds=5), ["CartPole-v1"], [FIXED], [1])


def test_a_table_tells_pairs_and_whether_nitro_is_reproduced(tmp_path: Path) -> None:
    schemes = [Scheme.parse(name) for name in ("nitro", "decay", "shuffled")]
    campaign = Campaign(tmp_path, JOB, ["CartPole-v1"], schemes, [1, 2, 3])
    gains = {"fixed": 0.0, "nitro": 50.0, "decay": 20.0, "shuffled": -10.0}
    for name, gain in gains.items():
        for seed in (1, 2, 3):
            one = cell(seed, name, final=200.0 + 100.0 * seed + gain)
            one.write(CellName("CartPole-v1", Scheme(name), seed).path(tmp_path))
    target = campaign.target("CartPole-v1")
    assert target is not None
    assert target.score == pytest.approx(360.0)
    table = environment_table(campaign, "CartPole-v1", target)
    assert table["differences"]["nitro − decay"]["final"] == {"value": 30.0, "low": 30.0, "high": 30.0}
    assert table["nitro_reproduced"] is True
    assert table["rows"]["fixed"]["reached"] == pytest.approx(2 / 3)
    assert table["rows"]["decay"]["at_equal_dollars"]["value"] == pytest.approx(420.0)
    text = "\n".join(lines("CartPole-v1", table))
    assert "nitro − shuffled" in text
    assert "clear of 0: yes" in text


def test_environments_are_taken_together_in_units_of_fixed_16(tmp_path: Path) -> None:
    """Medians of fixed are 100 and 1000: Nitro's 150 and 1500 are 1.5 in both, whatever seeds are drawn."""
    campaign = Campaign(tmp_path, JOB, ["A-v1", "B-v1"], [Scheme("nitro"), Scheme("max")], [1, 2])
    for env, unit in (("A-v1", 100.0), ("B-v1", 1000.0)):
        for name, share in (("fixed", 1.0), ("nitro", 1.5), ("max", 2.0)):
            for seed in (1, 2):
                one = cell(seed, name, env=env, final=unit * share)
                one.write(CellName(env, Scheme(name), seed).path(tmp_path))
    tables = comparison(campaign)
    together = over_environments(tables)
    assert together["rows"]["nitro"] == {"value": 1.5, "low": 1.5, "high": 1.5}
    assert together["differences"]["nitro − fixed"]["value"] == 0.5
    add_training(tables, "max", 50.0)
    assert tables["A-v1"]["rows"]["max"]["cost_with_training"] == {"1": 54.0, "10": 9.0, "100": 4.5}
    assert "cost_with_training" not in tables["A-v1"]["rows"]["nitro"]
    assert "1.500" in "\n".join(together_lines(together))
    assert over_environments({"A-v1": tables["A-v1"]}) == {}


def test_unknown_schemes_and_figures_are_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path), "--schemes", "nitr"]) == 2
    assert main(["--figure", "99", "--folder", str(tmp_path)]) == 2
    assert "unknown figure" in capsys.readouterr().err
    assert "15" in figures()


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "replay_server", "bench", "scalers", "--folder", str(tmp_path / "cells"), "--env",
        "CartPole-v1", "--seeds", "1", "2", "--rounds", "3", "--steps", "32", "--actors", "2", "--actors-max", "16",
        "--eval-episodes", "2", "--final-episodes", "2", "--schemes", "fixed", "nitro", "shuffled", "inverted", "max",
        "nitro@reserved", "--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png"),
    ]  # fmt: skip
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ended = time.monotonic() + 300
    cells = tmp_path / "cells" / "CartPole-v1"
    while not list(cells.glob("*/seed-*.json")) and time.monotonic() < ended:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("*/seed-*.json")}
    assert 1 <= len(kept) < 10
    said = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True).stdout
    assert f"{10 - len(kept)} of 10 cells to train" in said
    assert "left" in said
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    content = json.loads((tmp_path / "found.json").read_text())
    rows = content["tables"]["CartPole-v1"]["rows"]
    assert content["missing"] == []
    assert set(rows) == {"fixed", "nitro", "shuffled", "inverted", "max", "nitro@reserved"}
    assert rows["shuffled"]["actors"] == rows["nitro"]["actors"]
    assert (tmp_path / "found.png").stat().st_size > 10_000
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "to train" not in again
