"""`replay-server bench learner`: what it measures, and how a job's processor time is divided. No timings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from replay_server.bench.job import Look, Process, divide
from replay_server.bench.main import main

SMALL = ["--env", "CartPole-v1", "--threads", "1", "--precision", "float32"]


def test_the_loop_and_plain_torch_are_measured_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "learner.json"
    turns = ["--transitions", "200", "--seconds", "0.1", "--warm-up", "0", "--rounds", "2"]
    assert main(["learner", *SMALL, *turns, "--set", "batch_size=16", "hidden=16", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert len(content["rounds"]) == 2
    for measured in content["rounds"]:
        parts = ("sampling", "training", "write_back", "publish", "rest")
        told = sum(measured[f"loop.{part}_ms"] for part in parts)
        assert told == pytest.approx(measured["loop.update_ms"], abs=0.01)
        assert measured["loop.training_ms"] > 0
        assert measured["loop.updates_per_s"] == pytest.approx(1e3 / measured["loop.update_ms"], rel=0.01)
        assert measured["plain.updates_per_s"] > 0
        assert measured["loop.cpu_ms"] > 0
        assert measured["plain.cpu_ms"] > 0
    for ratio in ("loop / plain", "plain / loop, processor"):
        low, high = content["ratio_spread"][ratio]
        assert low <= content["ratio"][ratio] <= high
    assert content["settings"]["used"]["batch_size"] == 16
    assert content["settings"]["used"]["precision"] == "float32"
    assert "loop / plain" in capsys.readouterr().out


def test_what_feeds_the_updates_is_measured_way_by_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU, where all of it runs but for pinned memory and graphs."""
    file = tmp_path / "feeds.json"
    turns = ["--transitions", "200", "--seconds", "0.1", "--warm-up", "0", "--rounds", "1", "--feeds"]
    sizes = ["--set", "batch_size=16", "hidden=16", "device=cpu"]
    assert main(["learner", *SMALL, *turns, *sizes, "--json", str(file)]) == 0
    (measured,) = json.loads(file.read_text())["rounds"]
    assert {name for name in measured if name.startswith("feed.")} == {
        f"feed.{feed}_updates_per_s" for feed in ("resident", "pageable", "pinned", "registered")
    }
    assert all(value > 0 for name, value in measured.items() if name.startswith("feed."))
    assert "feed.registered_updates_per_s" in capsys.readouterr().out


def test_a_whole_job_is_looked_at_part_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    settings = ["--set", "actors=1", "min_size_to_sample=200", "hidden=16", "targets_ahead=off"]
    assert main(["learner", *SMALL, "--job", "--seconds", "2", "--warm-up", "0", *settings, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    measured = content["median"]
    for part in ("learner", "actor-0", "evaluator", "server", "job"):
        assert measured[f"part.{part}_share"] >= 0
    # What learner and actors report once a second, torch's and the emulator's part, may not be there yet.
    assert measured["emulator_share"] + measured["torch_share"] + measured["rest_share"] > 0
    assert measured["emulator_or_torch_share"] == pytest.approx(
        measured["emulator_share"] + measured["torch_share"], abs=1e-3
    )
    assert content["settings"]["used"]["actors"] == 1
    assert "% of the cores' time" in capsys.readouterr().out


def test_a_job_that_ends_at_once_is_told_with_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learner", *SMALL, "--job", "--set", "batch_size=0"]) == 1
    assert "--batch-size: expected at least 1" in capsys.readouterr().err


def test_processor_time_goes_to_the_emulator_to_torch_and_to_the_rest() -> None:
    begin = Look(
        100.0,
        {
            "actor-0": Process(10, {10: 5.0}, 6.0),
            "learner": Process(20, {20: 7.0, 21: 3.0, 22: 1.0}, 9.0),
            "evaluator": Process(30, {30: 2.0}, 2.0),
            "server": Process(40, {40: 1.0}, 1.0),
        },
        {"actor-0": {"environment_s": 1.0, "inference_s": 1.0, "push_s": 0.5, "blocked_s": 1.0}},
        50.0,
    )
    end = Look(
        110.0,
        {
            # It ran for 4 s and had no core for as long: of these 8 s, 4 in the emulator and 2 in torch. Otherwise it
            # waited for the server.
            "actor-0": Process(10, {10: 9.0}, 14.0),
            # Its main thread worked for 5 s, 4 of them in torch; of the others the busier computes for torch.
            "learner": Process(20, {20: 12.0, 21: 7.0, 22: 1.5, 23: 0.25}, 15.0),
            "evaluator": Process(30, {30: 3.0}, 3.0),
            "server": Process(40, {40: 1.25}, 1.25),
        },
        {
            "actor-0": {"environment_s": 5.0, "inference_s": 3.0, "push_s": 1.0, "blocked_s": 1.5},
            "learner": {"sampling_s": 5.0, "training_s": 4.0},
        },
        68.0,
    )
    shares = divide(begin, end, cores=2, learner_threads=2)
    assert shares["emulator_share"] == pytest.approx(4.0 * 4 / 8 / 20)
    assert shares["torch_share"] == pytest.approx((4.0 * 2 / 8 + 5.0 * 4 / 5 + 4.0 + 1.0) / 20)
    assert shares["rest_share"] == pytest.approx((4.0 * 2 / 8 + 5.0 * 1 / 5 + 0.5 + 0.25 + 0.25) / 20)
    assert shares["emulator_or_torch_share"] == pytest.approx(shares["emulator_share"] + shares["torch_share"])
    used = 4.0 + 9.75 + 1.0 + 0.25
    of_job = (2.0 + 1.0 + 4.0 + 4.0 + 1.0) / used
    assert shares["emulator_or_torch_of_job_share"] == pytest.approx(of_job, abs=1e-4)
    assert shares["part.learner_share"] == pytest.approx(9.75 / 20, abs=1e-4)
    assert shares["others_share"] == pytest.approx((18.0 - used) / 20)
    assert shares["idle_share"] == pytest.approx((20.0 - 18.0) / 20)
