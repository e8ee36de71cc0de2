"""`bench scalers --figure 5`: a boost by functions, by a machine that starts first, and by one beside replayed data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.bench.papers.nitro import figure_5  # noqa: E402
from replay_server.bench.papers.nitro.branches import Job  # noqa: E402
from replay_server.bench.papers.nitro.waiting import WAYS, Clocks, WaitSettings, replay, run  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402
from replay_server.serverless.prices import load_prices  # noqa: E402

SETTINGS = PpoSettings(env="CartPole-v1", steps=32, hidden=8, iterations=2, minibatch_size=24, seed=5)
SHORT = WaitSettings(round=3, rounds=4, boosted=3, machine_start_s=0.4, replays=4, episodes=2)


def quiet(text: str) -> None:
    assert "updates while the machine starts" in text


def arrays(job: Job) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in module_arrays(job.learner.network).items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


# ---- times -----------------------------------------------------------------------------------------------------------


def test_times_and_dollars_of_a_boost_by_hand():
    """An actor of 0.5 s, with 0.7 ms of the server's time and 10 ms of the platform's; 1 ms between submissions.

    On a function of 1,769 MB, one vCPU, it starts after 0.3 s more. The server is busy 0.5 ms with each fetch, less
    than lies between two submissions, so nobody waits.
    """
    clocks = Clocks(WaitSettings(boosted=4, memory_mb=1769), actors=1)
    assert clocks.round_s(0.5, 0.2) == pytest.approx(0.5 + 0.0107 + 0.2 + 0.01, abs=1e-3)
    assert clocks.learning_s(0.2) == pytest.approx(0.21)
    functions_s, functions_dollars = clocks.boosted_s(0.5, by_functions=True)
    machine_s, machine_dollars = clocks.boosted_s(0.5, by_functions=False)
    assert functions_s == pytest.approx(0.003 + 0.3 + 0.5107, abs=1e-3)
    assert functions_s - machine_s == pytest.approx(0.3)
    # 4 × 0.811 s × 1.7275 GB, and 4 requests; a minute of a c5.4xlarge at least, at $0.68 an hour.
    assert functions_dollars == pytest.approx(4 * (0.811 * 1769 / 1024 * 0.0000166667 + 0.0000002), rel=2e-3)
    assert machine_dollars == pytest.approx(60 * 0.68 / 3600)


def test_what_a_machine_takes_to_start_is_in_the_price_file():
    machine = load_prices().profile("reserved-vms").machine("actor")
    assert machine.start_s == 30
    parsed = figure_5._parser().parse_args(["--folder", "x"])
    assert (parsed.machine_start_s, parsed.function_start_s, parsed.round, parsed.boosted) == (30.0, 0.3, 4, 16)


# ---- learning --------------------------------------------------------------------------------------------------------


def test_a_replay_moves_the_policy_and_nothing_else():
    job = Job(SETTINGS)
    old = [job.play(), job.play()]
    before = arrays(job)
    counters, moments = job.learner.counters(), job.learner.network.moments
    one, other, none = job.copy(), job.copy(), job.copy()
    replay(none, old, 0)
    assert_same(arrays(none), before)
    replay(one, old, 3)
    replay(other, old, 3)
    assert_same(arrays(one), arrays(other))
    assert any(not np.array_equal(array, before[name]) for name, array in arrays(one).items())
    assert one.learner.counters() == counters
    assert one.learner.network.moments.count == moments.count
    np.testing.assert_array_equal(one.learner.network.moments.mean, moments.mean)
    assert_same(arrays(job), before)


def test_pause_is_functions_later_and_the_rounds_before_are_everyones():
    found = run(Job(SETTINGS), SHORT, quiet)
    points = found["points"]
    assert set(points) == set(WAYS)
    for way in WAYS:
        assert points[way][:2] == points["functions"][:2]
        assert [row["round"] for row in points[way]][:4] == [1, 2, 3, 4]
        times = [row["time_s"] for row in points[way]]
        assert times == sorted(times)
    later_s = found["boost_s"]["machine"] - found["boost_s"]["functions"]
    assert later_s > 0.4 - 0.3 - 0.1
    for one, other in zip(points["functions"][2:], points["pause"][2:], strict=True):
        assert (other["round"], other["score"]) == (one["round"], one["score"])
        assert other["time_s"] - one["time_s"] == pytest.approx(later_s)
    # It never waits: by the end of the others' boosted rounds it has played on.
    assert points["unboosted"][-1]["time_s"] >= max(points[way][2]["time_s"] for way in ("pause", "replay"))
    assert found["replays"] == 4


def test_a_machine_that_is_there_at_once_replays_nothing():
    found = run(Job(SETTINGS), WaitSettings(round=2, rounds=3, boosted=3, machine_start_s=0.0, episodes=2), quiet)
    assert found["replays"] == 0
    assert found["score_after_replays"] == found["score_before"]
    scores = {way: [row["score"] for row in found["points"][way]] for way in WAYS}
    assert scores["replay"] == scores["functions"] == scores["pause"]


@pytest.mark.parametrize("wrong", [{"round": 1}, {"round": 11}, {"machine_start_s": -1.0}, {"replays": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="expected"):
        WaitSettings(**wrong)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in wrong.items()]
    try:
        status = figure_5.main(["--folder", "x", *words])
    except SystemExit as stop:  # A number that cannot be at all is refused as it is read.
        status = stop.code
    assert status == 2


# ---- what comes of it ------------------------------------------------------------------------------------------------


def cell(functions: list[float], replayed: list[float], unboosted: list[float]) -> dict[str, Any]:
    """Rounds 1 to 3, the second is boosted: a round lasts 1 s, the boost by functions 2 s, by the machine 10 s."""

    def rows(scores: list[float], times: list[float]) -> list[dict[str, float]]:
        return [{"round": number, "time_s": at, "score": score} for number, (score, at) in
                enumerate(zip(scores, times, strict=True), 1)]  # fmt: skip

    points = {
        "functions": rows(functions, [1.0, 3.0, 4.0]),
        "pause": rows(functions, [1.0, 11.0, 12.0]),
        "replay": rows(replayed, [1.0, 11.0, 12.0]),
        "unboosted": [*rows(unboosted[:3], [1.0, 2.0, 3.0]), {"round": 11, "time_s": 11.0, "score": unboosted[3]}],
    }
    return {"points": points}


def test_differences_by_hand():
    settings = WaitSettings(round=2, rounds=3)
    cells = [cell([10.0, 60.0, 80.0], [10.0, 40.0, 50.0], [10.0, 20.0, 30.0, 110.0])]
    assert figure_5.measures(cells[0], settings) == {
        "functions": {"boosted": 60.0, "mean": 70.0, "final": 80.0, "s": 4.0},
        "pause": {"boosted": 60.0, "mean": 70.0, "final": 80.0, "s": 12.0},
        "replay": {"boosted": 40.0, "mean": 45.0, "final": 50.0, "s": 12.0},
        "unboosted": {"boosted": 20.0, "mean": 25.0, "final": 30.0, "s": 3.0},
    }
    found = {name: each.value for name, each in figure_5.differences(cells, settings).items()}
    assert found == {
        "functions − replay, boosted": 20.0,
        "functions − replay, mean": 25.0,
        "functions − replay, final": 30.0,
        "functions − unboosted, boosted": 40.0,
        "functions − unboosted, mean": 45.0,
        "functions − unboosted, final": 50.0,
        # At 3 s it has 30, at 11 s 110.
        "functions − unboosted, at equal time": 30.0,
        "pause − unboosted, at equal time": -50.0,
        "replay − unboosted, at equal time": -70.0,
    }


def test_the_figure_is_made_once_and_then_read(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    words = ["--folder", str(tmp_path), "--env", "CartPole-v1", "--set", "hidden=8", "iterations=2", "--steps", "32"]
    words += ["--seeds", "1", "2", "--rounds", "3", "--round", "2", "--boosted", "3", "--machine-start-s", "0.1"]
    words += ["--replays", "2", "--episodes", "2", "--json", str(tmp_path / "out" / "5.json")]
    first: list[str] = []
    assert figure_5.main([*words, "--plot", str(tmp_path / "out" / "5.png")], say=first.append) == 0
    content = json.loads((tmp_path / "out" / "5.json").read_text())
    assert content["median"]["pause.final"] == content["median"]["functions.final"]
    assert content["median"]["pause.s"] > content["median"]["functions.s"] - 0.3
    assert (tmp_path / "out" / "5.png").stat().st_size > 1000
    monkeypatch.setattr(figure_5, "run", None)
    again: list[str] = []
    assert figure_5.main(words, say=again.append) == 0
    assert again == [line for line in first if "updates while" not in line]
