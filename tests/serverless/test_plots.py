"""Pictures of a run, and the parts of a round's time that one of them shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay_server.bench.papers.nitro.replayed_clock import Measurements, real_durations_s, replay
from replay_server.cli import main
from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.breakdown import PARTS, round_breakdown
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import NAME, invocation_line
from replay_server.serverless.plots import draw_breakdown, draw_functions, draw_reward, draw_run
from replay_server.serverless.prices import load_prices
from replay_server.serverless.simulated_round import Host, Stage

EPOCH = 1_700_000_000.0


def invocation(
    kind: str,
    number: int,
    index: int,
    queued: float,
    started: float,
    ended: float,
    phases: dict[str, float] | None = None,
    *,
    cold_s: float = 0.0,
    outcome: str = "ok",
) -> Invocation:
    """A cold one's handler begins `cold_s` after it was handed over."""
    measured = None
    if outcome == "ok":
        measured = Measured(
            instance=f"i{index}",
            started=EPOCH + started + cold_s,
            ended=EPOCH + ended,
            cpu_s=ended - started - cold_s,
            startup_s=cold_s,
            phases=phases or {},
        )
    return Invocation(
        request=f"{number}:{kind}:{index}",
        kind=kind,
        round=number,
        attempt=1,
        platform="process",
        queued=EPOCH + queued,
        started=EPOCH + started,
        ended=EPOCH + ended,
        outcome=outcome,
        cold=cold_s > 0,
        instance=f"i{index}",
        memory_mb=1024,
        bytes_in=1,
        bytes_out=1,
        measured=measured,
    )


ACTING = {"fetch_weights": 0.1, "make_environments": 0.2, "restore": 0.1, "act": 1.0, "push": 0.2}
LEARNING = {"fetch_state": 0.1, "fetch_fragments": 0.1, "learn": 1.5, "publish": 0.1}


def members(number: int = 1, begins: float = 0.0, cold_s: float = 0.0) -> list[Invocation]:
    """A round of 5 s: two actors, the second of which waits for 0.5 s and ends last; then the learner."""
    late = begins + 0.5
    return [
        invocation("actor", number, 0, begins, begins, begins + 1.9, ACTING, cold_s=cold_s),
        invocation("actor", number, 1, begins, late, late + 2.0, ACTING, cold_s=cold_s),
        invocation("learner", number, 2, begins + 3.0, begins + 3.0, begins + 5.0, LEARNING),
    ]


def test_the_parts_of_a_round_add_up_to_its_time() -> None:
    parts = round_breakdown(members())
    assert parts["waiting"] == pytest.approx(0.5 + 0.5, abs=1e-5)
    assert parts["act"] == pytest.approx(1.0)
    assert parts["environments"] == pytest.approx(0.3)
    assert parts["fetch fragments"] == pytest.approx(0.2)
    assert parts["learn"] == pytest.approx(1.5)
    assert parts["platform"] == pytest.approx(0.4 + 0.2, abs=1e-5)
    assert sum(parts.values()) == pytest.approx(5.0, abs=1e-5)
    assert set(parts) == set(PARTS)


def test_the_parts_of_a_round_with_asynchronous_learners_add_up_to_its_time() -> None:
    """An actor until 2 s; learners from 2.1 s to 4 s and 4.5 s, which wait for flushes; the round is closed at 5 s."""
    computing = {"fetch_state": 0.1, "fetch_weights": 0.2, "learn": 1.0, "wait": 0.8, "push": 0.2}
    round_members = [
        invocation("actor", 1, 0, 0.0, 0.0, 2.0, ACTING),
        invocation("actor", 1, 1, 2.0, 2.0, 9.0, ACTING),  # of the next round's data
        invocation("gradient", 1, 2, 2.0, 2.1, 4.0, computing),
        invocation("gradient", 1, 3, 2.0, 2.1, 4.5, computing),
        invocation("parameter", 1, 4, 2.0, 2.0, 5.0, {"wait": 2.0, "aggregate": 0.5}),
    ]
    parts = round_breakdown(round_members)
    assert sum(parts.values()) == pytest.approx(5.0, abs=1e-5)
    assert (parts["act"], parts["learn"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert parts["wait for flush"] == pytest.approx(0.8)
    assert parts["publish"] == pytest.approx(0.5, abs=1e-5)
    assert parts["waiting"] == pytest.approx(0.1, abs=1e-5)
    assert parts["push"] == pytest.approx(0.2 + 0.2)
    assert real_durations_s(round_members) == {1: pytest.approx(5.0, abs=1e-5)}
    assert Measurements.of(round_members).rounds[0].learner_s == pytest.approx(2.9, abs=1e-5)


def test_a_cold_start_is_a_part_of_its_own() -> None:
    parts = round_breakdown(members(cold_s=0.25))
    assert parts["cold start"] == pytest.approx(0.25, abs=1e-5)
    assert sum(parts.values()) == pytest.approx(5.0, abs=1e-5)


def test_phases_of_another_clock_never_make_a_round_longer() -> None:
    phases = {**ACTING, "act": 100.0}
    parts = round_breakdown([invocation("actor", 1, 0, 0.0, 0.0, 2.0, phases)])
    assert sum(parts.values()) == pytest.approx(2.0, abs=1e-5)


def test_time_that_lost_attempts_took_is_waiting() -> None:
    lost = invocation("actor", 1, 0, 0.0, 0.0, 4.0, outcome="lost")
    again = invocation("actor", 1, 0, 4.0, 4.0, 5.7, ACTING)
    parts = round_breakdown([lost, again])
    assert parts["waiting"] == pytest.approx(4.0, abs=1e-5)
    assert sum(parts.values()) == pytest.approx(5.7, abs=1e-5)


def write_run(folder: Path, rounds: int = 6) -> list[Invocation]:
    found = [each for number in range(1, rounds + 1) for each in members(number, number * 6.0, 0.3 * (number == 1))]
    found.append(invocation("actor", 2, 0, 12.0, 12.0, 12.4, outcome="lost"))
    found.append(invocation("evaluation", rounds, 9, 70.0, 70.0, 75.0, {"act": 4.9}))
    (folder / NAME).write_text("".join(map(invocation_line, found)))
    rows = [
        {
            "kind": "round",
            "round": number,
            "actors": 3,
            "arrived": 2,
            "scores": [number, 2.0 * number],
            "cost": 0.1 * number,
        }
        for number in range(1, rounds + 1)
    ]
    rows.append({"kind": "evaluation", "round": rounds, "score_mean": 9.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.json").write_text(json.dumps({"env": "Hopper-v5", "algo": "ppo", "seed": 1}))
    return found


def test_a_run_directory_is_drawn(tmp_path: Path) -> None:
    write_run(tmp_path)
    pictures = draw_run(tmp_path)
    assert [path.name for path in pictures] == ["reward.png", "actors.png", "latency.png", "functions.png"]
    for path in pictures:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


def test_a_run_without_rounds_shows_its_functions(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert [path.name for path in draw_run(tmp_path)] == ["actors.png", "latency.png", "functions.png"]


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        draw_run(tmp_path)


def test_an_empty_log_draws_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    assert draw_run(tmp_path) == []


def test_rewards_are_drawn_against_rounds_time_and_dollars(tmp_path: Path) -> None:
    found = write_run(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    figure = draw_reward(rows[:-1], rows[-1:], found, "a run")
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["round", "time, seconds", "cost, $"]
    ends = [5.0 + 6.0 * index for index in range(6)]
    for axes, places in zip(figure.axes, ([1, 2, 3, 4, 5, 6], ends, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), strict=True):
        line = axes.get_lines()[0]
        assert list(line.get_xdata()) == pytest.approx(places, abs=1e-5)
        assert list(line.get_ydata()) == pytest.approx([1.5 * number for number in range(1, 7)])


def test_the_stack_of_a_round_is_as_high_as_it_took() -> None:
    axes = draw_breakdown(members(), "a run").axes[0]
    tops = [patch.get_y() + patch.get_height() for patch in axes.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert max(tops) == pytest.approx(5.0, abs=1e-5)


def test_functions_that_run_at_a_time_have_lanes_of_their_own() -> None:
    figure = draw_functions([*members(1), *members(2, 6.0)], EPOCH, "a run")
    rows = {patch.get_y() for patch in figure.axes[0].patches}  # pyright: ignore[reportAttributeAccessIssue]
    assert len(rows) == 3  # the learner's, and two actors' at a time


def test_simulated_functions_are_called_so() -> None:
    measured = Measurements.of(members())
    bill = Bill(load_prices(), "lambda")
    simulated = replay(measured, [2, 2], Stage(Host(8)), bill.prices.profile("lambda"))
    invocations = [each for one in simulated for each in one.invocations]
    figure = draw_functions(invocations, 0.0, "a run")
    assert "SIMULATED" in figure.get_suptitle()


def test_a_run_is_billed_again_by_other_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = write_run(tmp_path)
    bill = Bill(load_prices(), "lambda-learner-vm")
    bill.add(*found)
    command = ["bench", "pictures", str(tmp_path), "--price-profile", "lambda-learner-vm", "--json"]
    assert main([*command, str(tmp_path / "bill.json")]) == 0
    assert json.loads((tmp_path / "bill.json").read_text())["dollars"] == bill.dollars
    said = capsys.readouterr().out
    assert f"${bill.dollars:.8f}   <- the bill" in said
    assert str(tmp_path / "plots" / "functions.png") in said


def test_an_unknown_price_profile_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    assert main(["bench", "pictures", str(tmp_path), "--price-profile", "moon"]) == 1
    assert "no price profile 'moon': expected one of lambda" in capsys.readouterr().err
