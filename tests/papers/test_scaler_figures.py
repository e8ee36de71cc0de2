"""`bench scalers --figure`: schedules of equal actor counts, groups of actors on the clock, parts of a round."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from replay_server.bench.papers.minions import figure_2, figure_8
from replay_server.bench.papers.nitro import figure_4, figure_18, figure_19, figure_20
from replay_server.bench.papers.nitro.cell import Cell, CellName, JobSettings
from replay_server.bench.papers.nitro.command import main
from replay_server.bench.papers.nitro.figure_18 import group
from replay_server.bench.papers.nitro.replayed_clock import MeasuredRound, Measurements
from replay_server.bench.papers.nitro.scheme import Scheme
from replay_server.bench.pictures import bill_of
from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.scalers.schedule import Schedule
from replay_server.serverless.settings import TrainSettings


def counts(scheme: str, settings: TrainSettings) -> list[int]:
    scaler = Scheme.parse(scheme).scaler(settings)
    return [scaler.actors(None) for _ in range(settings.rounds)]


# ---- MinionsRL's Figure 2 --------------------------------------------------------------------------------------------


def test_each_count_of_a_schedule_is_for_so_many_rounds() -> None:
    schedule = Schedule([3, 1], rounds=2)
    assert [schedule.actors(None) for _ in range(3)] == [3, 3, 1]
    later = Schedule([3, 1], rounds=2)
    later.restore(schedule.state())
    assert [later.actors(None) for _ in range(2)] == [1, 1]
    with pytest.raises(ValueError, match="at least 1 of rounds"):
        Schedule([1], rounds=0)


def test_fixed_decrease_and_increase_have_as_many_actors_in_all() -> None:
    settings = TrainSettings(rounds=50, actors=30, actors_max=50)
    fixed, decrease, increase = (counts(each, settings) for each in figure_2.schemes(5, 10, 10))
    assert fixed == [30] * 50
    assert decrease == [50] * 10 + [40] * 10 + [30] * 10 + [20] * 10 + [10] * 10
    assert increase == decrease[::-1]
    assert sum(fixed) == sum(decrease) == sum(increase) == 1500


@pytest.mark.parametrize("figure", [figure_2, figure_19])
def test_figures_of_whole_runs_hand_over_what_they_compare(figure: Any, monkeypatch, tmp_path: Path) -> None:
    given: list[Any] = []
    monkeypatch.setattr(figure, "compare", lambda *arguments: given.append(arguments) or 0)
    assert figure.main(["--folder", str(tmp_path)]) == 0
    options, schemes, command, *_ = given[0]
    assert len({Scheme.parse(each) for each in schemes}) == 3  # A list of counts is part of a key.
    assert command.startswith("replay-server bench scalers --figure ")
    assert (options.actors, options.actors_max) == {figure_2: (30, 50), figure_19: (96, 128)}[figure]


def test_stages_that_have_no_mean_count_are_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--figure", "minions-2", "--folder", str(tmp_path), "--stages", "4", "--rounds", "8"])
    assert "an odd number of --stages" in capsys.readouterr().err


# ---- Nitro's Figure 4 ------------------------------------------------------------------------------------------------


def scored(curvatures: list[tuple[float, float]], env: str = "A", seed: int = 1, scheme: str = "nitro") -> Cell:
    """A run whose rounds have these largest and smallest eigenvalues."""
    rounds = len(curvatures)
    statistics = tuple({"curvature_max": most, "curvature_min": least} for most, least in curvatures)
    return Cell(
        env=env, scheme=scheme, seed=seed, counts=(1,) * rounds, steps=(1,) * rounds, scores=(None,) * rounds,
        round_s=(1.0,) * rounds, learner_s=(1.0,) * rounds, cost=(1.0,) * rounds, evaluations=(), final=0.0,
        final_scores=(0.0,), statistics=statistics, actor_cpu_s=((1.0,),) * rounds, learner_cpu_s=(1.0,) * rounds,
        scaler_state={}, wall_s=1.0,
    )  # fmt: skip


def ratios(values: list[float], env: str = "A", algorithm: str = "ppo", seed: int = 1) -> figure_4.Series:
    return figure_4.series(scored([(value, -1.0) for value in values], env, seed), algorithm)


def test_scores_of_a_run_by_hand() -> None:
    """R is 1, 2, ½, none (no minimum), 2: S of the window's highest is 0, of its lowest d^k, and the first has none."""
    found = figure_4.series(scored([(1.0, -1.0), (2.0, -1.0), (1.0, -2.0), (1.0, 1.0), (4.0, -2.0)]), "ppo")
    assert found.ratios == (1.0, 2.0, 0.5, None, 2.0)
    assert found.scores == (None, 0.0, pytest.approx(0.96**3), None, 0.0)
    with pytest.raises(ValueError, match="rounds with their curvature"):
        figure_4.series(Cell(**{**scored([(1.0, -1.0)]).__dict__, "statistics": ({},)}), "ppo")


def test_panels_differ_in_one_thing() -> None:
    one, env, algorithm, seed = (
        ratios([1.0, 2.0, 3.0], *words)
        for words in (("A", "ppo", 1), ("B", "ppo", 1), ("A", "impact", 1), ("A", "ppo", 2))
    )
    assert figure_4.panels_of([one, env, algorithm, seed]) == {"a": [one, env], "b": [one, algorithm], "c": [one, seed]}
    assert figure_4.panels_of([one]) == {}


def test_agreement_and_persistence_are_rank_correlations() -> None:
    pytest.importorskip("torch")
    rising, falling = ratios([1.0, 2.0, 3.0, 9.0]), ratios([4.0, 3.0, 2.0, 1.0])
    assert figure_4.agreement([rising, rising]) == pytest.approx(1.0)
    assert figure_4.agreement([rising, falling, falling]) == pytest.approx((-1.0 - 1.0 + 1.0) / 3)
    assert figure_4.persistence([rising, falling]) == pytest.approx(1.0)
    # R of 1, 3, 2, 4 → the next ones' 3, 2, 4: ranks 1 3 2 against 2 1 3, ρ = 1 − 6 (1 + 4 + 1) / (3 · 8).
    assert figure_4.persistence([ratios([1.0, 3.0, 2.0, 4.0])]) == pytest.approx(-0.5)
    assert figure_4.agreement([ratios([1.0, 2.0]), rising]) is None


def test_scores_come_from_cells_of_a_comparison_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    comparison, json_path, picture = tmp_path / "kept", tmp_path / "4.json", tmp_path / "4.png"
    comparison.mkdir()
    (comparison / "settings.json").write_text(json.dumps(JobSettings(rounds=4).__dict__))
    for env, seed, curvatures in (("A-v1", 1, [1.0, 2.0, 3.0, 4.0]), ("A-v1", 2, [1.0, 3.0, 2.0, 4.0])):
        one = scored([(value, -1.0) for value in curvatures], env, seed)
        one.write(CellName(env, Scheme("nitro"), seed).path(comparison))
    words = ["--figure", "4", "--folder", str(tmp_path / "own"), "--kept", f"ppo={comparison}", "--algo", "ppo"]
    words += ["--env", "A-v1", "--seeds", "1", "2", "3", "--json", str(json_path), "--plot", str(picture)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "1 of 3 cells are missing" in said
    assert re.search(r"A-v1 ppo seed 1 +S +– 0\.00 0\.00 0\.00 +highest in round 2", said)
    content = json.loads(json_path.read_text())
    assert content["agreement"] == {"c": pytest.approx(0.8)}  # 1 − 6 (1 + 1) / (4 · 15)
    assert picture.stat().st_size > 1000
    assert main([*words, "--kept", f"impact={comparison}", "--algo", "impact"]) == 2
    assert "its comparison is of ppo" in capsys.readouterr().err
    assert main(["--figure", "4", "--folder", str(tmp_path), "--kept", "dqn=x"]) == 2


def test_each_series_is_wanted_once() -> None:
    options = argparse.Namespace(env=["A", "B"], algo=["ppo", "impact"], seeds=[1, 2])
    assert figure_4.wanted(options) == [("A", "ppo", 1), ("B", "ppo", 1), ("A", "impact", 1), ("A", "ppo", 2)]


@pytest.mark.slow
def test_figure_4_trains_what_is_missing_and_boosts_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["--figure", "4", "--folder", str(tmp_path), "--env", "CartPole-v1", "--seeds", "1", "--rounds", "4"]
    words += ["--steps", "32", "--set", "hidden=8", "--algo", "ppo", "impact", "impala"]
    said: list[str] = []
    assert main([*words, "--json", str(tmp_path / "4.json")], say=said.append) == 0
    content = json.loads((tmp_path / "4.json").read_text())
    found = content["series"]
    assert len(content["twice"]) == 4
    assert "other trajectories of the same policies" in said[-1]
    assert [each["algorithm"] for each in found] == ["ppo", "impact", "impala"]
    assert all(each["counts"] == [1] * 4 and any(each["ratios"]) for each in found)
    assert "[3/3] CartPole-v1 impala seed 1" in said[2]
    again: list[str] = []
    assert main(words, say=again.append) == 0
    assert again == said[3:]


# ---- MinionsRL's Figures 7 and 8 -------------------------------------------------------------------------------------


def test_what_an_actor_more_adds_to_a_round_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Actors of 0.58 s at a time, whatever their number; the learner has 0.1 s for each of their fragments."""
    pytest.importorskip("matplotlib")
    path, json_path, picture = tmp_path / "measured.json", tmp_path / "7.json", tmp_path / "7.png"
    measured(0.0, 0.0).save(path)
    words = ["--figure", "minions-7", "--measurements", str(path), "--env", "A", "B", "--memory-mb", "1769"]
    words += ["--actors", "1", "4", "8", "--repetitions", "2", "--json", str(json_path), "--plot", str(picture)]
    assert main(words, str(tmp_path)) == 0
    assert "B: 100.0 ms for each actor more, the learner's 100.0" in capsys.readouterr().out
    content = json.loads(json_path.read_text())
    assert content["growth"]["A"] == {
        "each_s": pytest.approx(0.1), "learner_s": pytest.approx(0.1), "share": pytest.approx(0.8 / 1.38),
    }  # fmt: skip
    assert content["median"]["A.actors=4.learner=1x.round_s"] == pytest.approx(0.58 + 0.4)
    assert picture.stat().st_size > 1000


def call(kind: str, number: int, queued: float, ended: float, cold: bool, phases: dict[str, float]) -> Invocation:
    return Invocation(
        request=f"{kind}{number}", kind=kind, round=number, attempt=1, platform="p", queued=queued, started=queued,
        ended=ended, outcome="ok", cold=cold, instance="", memory_mb=1, bytes_in=0, bytes_out=0,
        measured=Measured(
            started=queued, ended=ended - 0.3 if cold else ended, import_s=0.5 if cold else 0.0, phases=phases
        ),
    )  # fmt: skip


def test_starts_and_communication_by_hand() -> None:
    cold = [call("actor", 1, 0.0, 2.0, True, {}), call("learner", 1, 2.0, 5.0, True, {})]
    acted = {"fetch_weights": 0.1, "act": 0.6, "push": 0.1}
    learned = {"fetch_fragments": 0.2, "learn": 0.7, "publish": 0.1}
    warm = [call("actor", 2, 5.0, 6.0, False, acted), call("learner", 2, 6.0, 7.0, False, learned)]
    # The caller saw 0.3 s more than the handler took, and imports took 0.5 s.
    assert figure_8.starts(cold) == {"actor": pytest.approx(0.8), "learner": pytest.approx(0.8)}
    assert figure_8.starts(warm) == {"actor": None, "learner": None}
    seconds, share = figure_8.communication(figure_20.breakdown([*cold, *warm]))
    assert (seconds, share) == (pytest.approx(0.5), pytest.approx(0.25))


def test_jobs_of_several_environments_have_folders_of_their_own(tmp_path: Path) -> None:
    """A second one in the first one's folder was refused: figures of several environments ended after one."""
    first, second = (figure_18.folder_of(str(tmp_path), env) for env in ("Hopper-v5", "ALE/Qbert-v5"))
    assert first != second
    assert second == tmp_path / "ALE-Qbert-v5"
    assert second.is_dir()


@pytest.mark.slow
def test_figures_of_minions_measure_real_jobs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = ["--env", "CartPole-v1", "Acrobot-v1", "--rounds", "3", "--steps", "16", "--job-actors", "4"]
    said: list[str] = []
    json_path = tmp_path / "8.json"
    assert main(["--figure", "minions-8", *job, "--json", str(json_path)], str(tmp_path / "8"), said.append) == 0
    content = json.loads(json_path.read_text())
    assert all(of_env["actor"] > 0.1 for of_env in content["start_s"].values())
    assert all(0 < each["share"] < 1 for each in content["communication"].values())
    words = [*job, "--connections", "0", "--actors", "1", "4", "--repetitions", "2"]
    assert main(["--figure", "minions-7", *words], str(tmp_path / "7"), said.append) == 0
    assert [line.split(":")[0] for line in said if "each actor more" in line] == ["CartPole-v1", "Acrobot-v1"]


# ---- Nitro's Figure 18 -----------------------------------------------------------------------------------------------


def measured(fetch_s: float, ingest_s: float) -> Measurements:
    """Actors of 0.58 s of processor time, 1 s on 1,026 MB; a call that takes no time, and no dispatch."""
    return Measurements(
        (MeasuredRound((0.58,), 0.1, 1),), (0.0,), (0.0,), (0.0,), (0.0,), 0.0, {1: fetch_s}, {1: ingest_s}
    )


def test_a_group_takes_the_same_where_the_server_takes_no_time_and_longer_where_it_does() -> None:
    profile = bill_of(argparse.Namespace(prices=None, price_profile="lambda", price_column="full", provisioned=0))
    lambda_profile = profile.prices.profile("lambda")
    memory_mb = 1769
    for actors in (100, 1000):
        free = group(measured(0.0, 0.0), actors, memory_mb, lambda_profile, warm=True, plays=2)
        assert free.acting_s.median == pytest.approx(0.58)
        assert free.server_s == 0.0
        # All fetch at once, one after the other; each adds when it has acted, as far apart as they fetched.
        busy = group(measured(0.001, 0.0005), actors, memory_mb, lambda_profile, warm=True, plays=2)
        assert busy.acting_s.median == pytest.approx(0.58 + actors * 0.001 + 0.0005, rel=1e-3)
        assert busy.server_s == pytest.approx(actors * 0.0015)


def test_figure_18_tells_draws_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path, json_path, picture = tmp_path / "measured.json", tmp_path / "18.json", tmp_path / "18.png"
    measured(0.001, 0.0).save(path)
    words = ["--measurements", str(path), "--actors", "10", "20", "--plays", "2", "--memory-mb", "1769"]
    assert main(["--figure", "18", *words, "--json", str(json_path), "--plot", str(picture)]) == 0
    assert re.search(r"20 +0\.600 .* 1\.02 +0\.020", capsys.readouterr().out)
    groups = json.loads(json_path.read_text())["simulated"]["Hopper-v5"]
    assert [each["actors"] for each in groups] == [10, 20]
    assert picture.stat().st_size > 0


# ---- Nitro's Figure 20 -----------------------------------------------------------------------------------------------


def test_overhead_is_all_but_acting_learning_and_waiting() -> None:
    parts = {"waiting": 100.0, "act": 6.0, "learn": 3.0, "push": 0.5, "probe": 0.5}
    assert figure_20.overhead(parts) == pytest.approx(0.1)


def test_the_first_round_is_left_out() -> None:
    def actor(number: int, took_s: float) -> Invocation:
        return Invocation(
            request="a", kind="actor", round=number, attempt=1, platform="p", queued=0.0, started=0.0, ended=took_s,
            outcome="ok", cold=False, instance="", memory_mb=1, bytes_in=0, bytes_out=0, measured=None,
        )  # fmt: skip

    found = figure_20.breakdown([actor(1, 50.0), actor(2, 1.0), actor(3, 2.0), actor(4, 9.0)])
    assert found["platform"] == 2.0
    with pytest.raises(ValueError, match="at least two rounds"):
        figure_20.breakdown([actor(1, 50.0)])


@pytest.mark.slow
def test_figure_20_measures_a_real_job(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    json_path, picture = tmp_path / "20.json", tmp_path / "20.png"
    words = ["--figure", "20", "--env", "CartPole-v1", "--rounds", "3", "--steps", "16", "--job-actors", "8"]
    assert main([*words, "--json", str(json_path), "--plot", str(picture)], str(tmp_path)) == 0
    content = json.loads(json_path.read_text())
    assert content["median"]["CartPole-v1.probe_s"] > 0
    assert 0 < content["overhead"]["CartPole-v1"] < 1
    assert picture.stat().st_size > 0
    assert os.listdir(tmp_path / "CartPole-v1")
