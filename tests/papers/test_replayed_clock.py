"""The replayed clock against rounds whose times can be worked out by hand, and against its own input."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_server.bench.papers.nitro.replayed_clock import (
    Measurements,
    estimate,
    real_durations_s,
    relative_errors,
    replay,
)
from replay_server.cli import main
from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import NAME, invocation_line
from replay_server.serverless.prices import load_prices
from replay_server.serverless.simulated_round import ActorWork, Host, Stage, cpu_share, play_actors

PRICES = load_prices()
LAMBDA = PRICES.profile("lambda")


def last_end(works: list[ActorWork], host: Host, warm: int = 10_000, dispatch_s: float = 0.0) -> float:
    return max(each.ended for each in play_actors(works, host, warm=warm, dispatch_s=dispatch_s))


def test_with_processors_of_their_own_actors_take_as_long_as_the_longest() -> None:
    works = [ActorWork(1.0), ActorWork(3.0), ActorWork(2.0)]
    assert last_end(works, Host(3)) == pytest.approx(3.0)
    assert last_end(works, Host(3, cpu_share=0.5)) == pytest.approx(6.0)
    assert last_end(works, Host(3, cpu_share=4.0)) == pytest.approx(3.0)  # one thread gains nothing by four


def test_four_equal_actors_on_two_cores_take_twice_as_long() -> None:
    works = [ActorWork(1.0)] * 4
    assert last_end(works, Host(4, cores=2)) == pytest.approx(2.0)
    assert last_end(works, Host(2, cores=2)) == pytest.approx(2.0)
    assert last_end(works, Host(1, cores=2)) == pytest.approx(4.0)


def test_a_core_is_shared_evenly_by_those_who_work() -> None:
    """1 s and 3 s of work on one core: both at half speed until 2 s, then the longer one alone until 4 s."""
    times = play_actors([ActorWork(1.0), ActorWork(3.0)], Host(2, cores=1), warm=2)
    assert [each.ended for each in times] == pytest.approx([2.0, 4.0])
    # The second comes when the first has done half: 0.5 left takes 1 s more.
    times = play_actors([ActorWork(1.0), ActorWork(3.0)], Host(2, cores=1), warm=2, dispatch_s=0.5)
    assert [each.ended for each in times] == pytest.approx([1.5, 4.0])


def test_more_actors_than_the_cap_wait_in_order() -> None:
    times = play_actors([ActorWork(1.0)] * 5, Host(2), warm=5)
    assert [each.started for each in times] == pytest.approx([0, 0, 1, 1, 2])
    assert all(each.queued == 0 for each in times)


def test_only_instances_that_are_not_there_start_cold() -> None:
    works = [ActorWork(1.0, cold_wait_s=0.3, cold_cpu_s=0.2)] * 3
    times = play_actors(works, Host(3, cpu_share=0.5), warm=1)
    assert [each.cold for each in times] == [False, True, True]
    assert [each.ended for each in times] == pytest.approx([2.0, 2.7, 2.7])
    # With one place the instance that has ended is warm for the next.
    times = play_actors(works, Host(1), warm=0)
    assert [each.cold for each in times] == [True, False, False]
    assert times[-1].ended == pytest.approx(3.5)


def test_the_server_serves_one_at_a_time() -> None:
    works = [ActorWork(1.0, fetch_s=0.1, ingest_s=0.2)] * 10
    times = play_actors(works, Host(10), warm=10)
    assert [each.fetched for each in times] == pytest.approx([0.1 * (index + 1) for index in range(10)])
    # The first is done acting at 1.1 and adds until 1.3; from then on the server has always one waiting.
    assert last_end(works, Host(10)) == pytest.approx(1.1 + 10 * 0.2)


@pytest.mark.parametrize("host", [Host(0), Host(1, cpu_share=0.0)])
def test_a_host_without_place_or_processor_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match="expected a"):
        play_actors([ActorWork(1.0)], host)


seconds = st.floats(0, 10, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(
    works=st.lists(
        st.builds(ActorWork, act_cpu_s=seconds, platform_s=seconds, fetch_s=seconds, ingest_s=seconds), min_size=1
    ),
    concurrency=st.integers(1, 8),
    cores=st.integers(1, 4),
    share=st.floats(0.1, 2),
)
def test_no_round_is_shorter_than_its_work_nor_longer_than_all_of_it_in_a_row(
    works: list[ActorWork], concurrency: int, cores: int, share: float
) -> None:
    times = play_actors(works, Host(concurrency, share, cores), warm=len(works))
    end = max(each.ended for each in times)
    speed = min(1.0, share)
    alone = [each.platform_s + each.fetch_s + each.act_cpu_s / speed + each.ingest_s for each in works]
    assert end <= sum(alone) * (1 + 1e-9) + 1e-6
    assert end >= max(alone) * (1 - 1e-9) - 1e-6
    assert end >= sum(each.act_cpu_s for each in works) / min(cores, concurrency * speed) * (1 - 1e-9) - 1e-6
    assert end >= sum(each.fetch_s + each.ingest_s for each in works) * (1 - 1e-9) - 1e-6
    for one in times:
        assert one.queued <= one.started <= one.fetched <= one.acted <= one.ended
    running = sorted([(each.started, 1) for each in times] + [(each.ended, -1) for each in times])
    at_a_time = most = 0
    for _, change in running:
        at_a_time += change
        most = max(most, at_a_time)
    assert most <= concurrency


# ---- from a log ----------------------------------------------------------------------------------------------------


def real(
    kind: str, number: int, index: int, queued: float, handler_s: float, cpu_s: float, *, cold: bool = False
) -> Invocation:
    """An invocation that waits 10 ms for its platform; a cold one starts for 0.5 s and imports for 0.25 s."""
    start_s = 0.5 if cold else 0.0
    started = 1e9 + queued
    measured = Measured(
        instance=f"i{index}",
        started=started + 0.01 + start_s,
        ended=started + 0.01 + start_s + handler_s,
        cpu_s=cpu_s,
        startup_s=start_s,
        import_s=0.25 if cold else 0.0,
    )
    return Invocation(
        request=f"{number}:{kind}:{index}",
        kind=kind,
        round=number,
        attempt=1,
        platform="process",
        queued=started,
        started=started,
        ended=measured.ended,
        outcome="ok",
        cold=cold,
        instance=f"i{index}",
        memory_mb=1024,
        bytes_in=0,
        bytes_out=0,
        measured=measured,
    )


def log(rounds: int = 3, actors: int = 2) -> list[Invocation]:
    """Rounds of 4 s: actors from 0 to 2.01 s, a learner from 2.11 to 3.12 s; nothing for 0.88 s."""
    found = []
    for number in range(1, rounds + 1):
        begins = (number - 1) * 4.0
        found += [real("actor", number, index, begins, 2.0, 1.5) for index in range(actors)]
        found.append(real("learner", number, actors, begins + 2.11, 1.0, 1.0))
    return found


def test_measurements_are_those_of_the_log() -> None:
    measured = Measurements.of(log())
    assert [each.actor_cpu_s for each in measured.rounds] == [(1.5, 1.5)] * 3
    assert [each.learner_s for each in measured.rounds] == pytest.approx([1.0] * 3)
    assert measured.platform_s == pytest.approx([0.01] * 9, abs=1e-6)
    assert measured.gap_s == pytest.approx([0.1] * 3, abs=1e-6)
    assert measured.between_s == pytest.approx([0.88] * 2, abs=1e-6)
    assert list(real_durations_s(log()).values()) == pytest.approx([3.12] * 3, abs=1e-6)


def test_a_cold_start_is_taken_off_the_work_and_counted_apart() -> None:
    cold = real("actor", 1, 0, 0.0, 2.0, 1.75, cold=True)
    measured = Measurements.of([cold, real("actor", 1, 1, 0.0, 2.0, 1.5)])
    assert measured.rounds[0].actor_cpu_s == pytest.approx((1.5, 1.5))
    assert measured.cold_cpu_s == pytest.approx((0.75,), abs=1e-6)
    alone = Measurements.of([cold])  # nothing but its own measure of its imports
    assert alone.rounds[0].actor_cpu_s == pytest.approx((1.5,))
    assert alone.cold_cpu_s == pytest.approx((0.75,), abs=1e-6)


def test_imports_that_had_to_wait_for_a_core_do_not_eat_up_the_work() -> None:
    """Two cold starts at a time on a busy host: imports that took 5 s on the clock, of 0.25 s of processor time."""
    cold = real("actor", 1, 0, 0.0, 7.0, 1.75, cold=True)
    assert cold.measured is not None
    cold = dataclasses.replace(cold, measured=dataclasses.replace(cold.measured, import_s=5.0))
    measured = Measurements.of([cold, real("actor", 2, 0, 9.0, 2.0, 1.5)])
    assert measured.rounds[0].actor_cpu_s == pytest.approx((1.5,))
    assert measured.cold_cpu_s == pytest.approx((0.75,), abs=1e-6)


def test_an_instance_that_was_started_ahead_did_not_take_as_long_as_it_waited() -> None:
    waited = real("actor", 1, 0, 0.0, 2.0, 1.75, cold=True)
    assert waited.measured is not None
    waited = dataclasses.replace(waited, measured=dataclasses.replace(waited.measured, startup_s=60.0))
    assert Measurements.of([waited]).cold_cpu_s[0] < 1.0


def test_lost_attempts_give_no_samples_but_a_log_of_nothing_else_is_refused() -> None:
    lost = dataclasses.replace(real("actor", 1, 5, 0.0, 2.0, 9.9), outcome="lost", measured=None)
    assert Measurements.of([*log(), lost]).rounds == Measurements.of(log()).rounds
    with pytest.raises(ValueError, match="at least one actor"):
        Measurements.of([lost])


def test_measurements_are_saved_and_loaded(tmp_path: Path) -> None:
    measured = Measurements.of(log(), {1: 0.001, 64: 0.002}, {1: 0.003})
    measured.save(tmp_path / "measurements.json")
    assert Measurements.load(tmp_path / "measurements.json") == measured
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="expected measurements"):
        Measurements.load(tmp_path / "other.json")


def test_a_round_of_the_log_is_replayed_with_its_own_samples() -> None:
    stage = Stage(Host(8, cpu_share=0.5), memory_mb=1024, learner_memory_mb=2048, warm=8)
    (one,) = replay(Measurements.of(log()), [2], stage, LAMBDA)
    actors_s = 0.01 + 1.5 / 0.5
    assert one.actors_s == pytest.approx(actors_s, abs=1e-5)
    assert one.duration_s == pytest.approx(actors_s + 0.1 + 1.0 + 0.01, abs=1e-5)
    assert one.cost == pytest.approx(0.0000166667 * (2 * actors_s + 2 * 1.01), rel=1e-5)
    assert one.learner_share == pytest.approx(1.01 / one.duration_s, abs=1e-6)
    assert {each.platform for each in one.invocations} == {"simulated"}


def test_rounds_follow_each_other_and_their_bill_is_that_of_use() -> None:
    stage = Stage(Host(2), warm=2)
    rounds = replay(Measurements.of(log()), [2] * 5, stage, LAMBDA)
    begins = [min(each.queued for each in one.invocations) for one in rounds]
    ends = [max(each.ended for each in one.invocations) for one in rounds]
    for end, begin in zip(ends, begins[1:], strict=False):
        assert begin - end == pytest.approx(0.88, abs=1e-5)
    bill = Bill(PRICES, "lambda", "code")
    bill.add(*(each for one in rounds for each in one.invocations))
    assert bill.dollars == pytest.approx(math.fsum(one.cost for one in rounds), rel=1e-4)


def test_the_learner_alone_is_faster_with_a_faster_learner() -> None:
    measured = Measurements.of(log())
    slow, fast = (
        replay(measured, [2], Stage(Host(8), warm=8, learner_speed=speed), LAMBDA)[0] for speed in (1.0, 10.0)
    )
    assert slow.actors_s == fast.actors_s
    assert slow.learner_s - fast.learner_s == pytest.approx(0.9, abs=1e-5)


def test_the_learner_takes_longer_for_more_actors() -> None:
    measured = Measurements.of(log())
    assert measured.learner_s(2) == pytest.approx(1.0)
    assert measured.learner_s(200) == pytest.approx(100.0)  # nothing else is known than 2 actors' rounds
    sizes = [*log(1, 2), *(dataclasses.replace(each, round=2) for each in log(1, 6))]
    slower = [
        dataclasses.replace(each, measured=dataclasses.replace(each.measured, ended=each.measured.ended + 1.0))
        if each.kind == "learner" and each.round == 2 and each.measured
        else each
        for each in sizes
    ]
    two_sizes = Measurements.of(slower)  # 1 s for 2 actors, 2 s for 6
    assert two_sizes.learner_s(4) == pytest.approx(1.5)
    assert two_sizes.learner_s(10) == pytest.approx(3.0)


def test_the_same_seed_gives_the_same_rounds() -> None:
    uneven = [
        dataclasses.replace(each, measured=dataclasses.replace(each.measured, cpu_s=0.1 * index))
        for index, each in enumerate(log(8, 4))
        if each.measured
    ]
    measured = Measurements.of(uneven)
    stage = Stage(Host(100), warm=100)
    first, again = (replay(measured, [50, 100], stage, LAMBDA, seed=7) for _ in range(2))
    assert first == again
    assert replay(measured, [50, 100], stage, LAMBDA, seed=8) != first


def test_instances_stay_warm_from_one_round_to_the_next() -> None:
    measured = Measurements.of([*log(), real("actor", 1, 9, 0.0, 2.0, 1.75, cold=True)])
    rounds = replay(measured, [3, 3, 8], Stage(Host(100)), LAMBDA)
    assert [each.cold for each in rounds] == [3, 0, 5]
    rounds = replay(measured, [3, 3], Stage(Host(100), keeps_instances=False), LAMBDA)
    assert [each.cold for each in rounds] == [3, 3]


def test_a_thousand_actors_are_estimated_with_their_spread_and_the_learners_share() -> None:
    measured = Measurements.of(log(), {1: 0.0001, 1000: 0.0002}, {1: 0.0005, 1000: 0.001})
    stage = Stage(Host(1000, cpu_share=cpu_share(1024)), warm=1000)
    eight, thousand = (
        estimate(measured, count, stage, Bill(PRICES, "lambda"), rounds=3, repetitions=2) for count in (8, 1000)
    )
    assert thousand.duration_s.low <= thousand.duration_s.median <= thousand.duration_s.high
    # 1,000 additions of 1 ms each, one after the other, and 500 times the learner's work of 2 actors.
    assert thousand.duration_s.median > 500
    assert thousand.learner_share.median > eight.learner_share.median


def test_a_function_of_1024_mb_has_058_of_a_processor() -> None:
    assert cpu_share(1024) == pytest.approx(0.58, abs=0.005)
    assert cpu_share(1769) == 1.0
    with pytest.raises(ValueError, match="at least 1 MB"):
        cpu_share(0)


def test_errors_are_relative_to_the_real_time() -> None:
    assert relative_errors([2.0, 4.0], [2.2, 3.0]) == pytest.approx([0.1, 0.25])


# ---- the benchmark -------------------------------------------------------------------------------------------------


def test_the_benchmark_plays_a_run_with_more_actors_and_says_that_it_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / NAME).write_text("".join(map(invocation_line, log())))
    command = ["bench", "replayed", "--run", str(tmp_path), "--env", "CartPole-v1", "--steps", "8", "--rounds", "2"]
    command += ["--actors", "2", "40", "--connections", "1", "30", "--repetitions", "2", "--learner-speed", "1", "10"]
    command += ["--save-measurements", str(tmp_path / "m.json"), "--json", str(tmp_path / "result.json")]
    assert main([*command, "--plot", str(tmp_path / "plot.png")]) == 0
    measured = Measurements.load(tmp_path / "m.json")
    assert set(measured.fetch_s) == set(measured.ingest_s) == {1, 30}
    assert all(seconds > 0 for seconds in (*measured.fetch_s.values(), *measured.ingest_s.values()))
    simulated = json.loads((tmp_path / "result.json").read_text())["simulated"]
    names = [f"actors={actors}.learner={speed}x" for speed in (1, 10) for actors in (2, 40)]
    assert list(simulated) == names
    assert simulated["actors=40.learner=1x"]["duration_s"]["median"] > 20.0  # 20 times the learner's work of 2 actors
    assert capsys.readouterr().out.count("SIMULATED") == 1
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_validation_sets_every_real_round_beside_a_simulated_one(tmp_path: Path) -> None:
    command = ["bench", "replayed", "--validate", "--env", "CartPole-v1", "--rounds", "3", "--job-actors", "2"]
    command += ["--steps", "32", "--processes", "1", "2", "--repetitions", "2", "--json", str(tmp_path / "result.json")]
    assert main(command) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rounds"]
    assert len(rows) == 3
    for row in rows:
        for processes in (1, 2):
            real, simulated = row[f"processes={processes}.real_s"], row[f"processes={processes}.simulated_s"]
            assert row[f"processes={processes}.error"] == pytest.approx(abs(real - simulated) / real)
