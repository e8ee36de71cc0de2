"""The clock of simulated jobs against rounds whose times and dollars are worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.cost import Bill, seconds_price
from replay_server.serverless.job_clock import JobClock, PlatformTimes, lambda_stage, reserved_stage
from replay_server.serverless.prices import load_prices
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.simulated_round import Host, Stage

NOTHING = PlatformTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
GB_S = 0.0000166667
REQUEST = 0.0000002


def attempt(kind: str, number: int, cpu_s: float, **changes: Any) -> Invocation:
    """One that ended well, warm, and was at work all the time."""
    measured = Measured(instance="a", invocation=2, cpu_s=cpu_s, phases={"act": cpu_s})
    whole = Invocation(
        request=f"r1-{kind}{number}", kind=kind, round=1, attempt=1, platform="process", queued=number, started=number,
        ended=number + 9.0, outcome="ok", cold=False, instance="a", memory_mb=1024, bytes_in=0, bytes_out=0,
        measured=measured,
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def record() -> RoundRecord:
    return RoundRecord(
        round=1, version=1, actors=2, arrived=2, environments=1, steps=512, total_steps=512, scores=(), statistics={},
        round_s=99.0, learner_s=99.0, actor_s_mean=99.0, actor_s_max=99.0, cost=99.0,
    )  # fmt: skip


def test_a_round_takes_its_longest_actor_and_its_learner() -> None:
    """Half a processor each: 1 s and 2 s of work take 2 s and 4 s; the learner has a whole one."""
    clock = JobClock(Stage(Host(10, cpu_share=0.5), learner_memory_mb=2048), NOTHING)
    played = clock.play([1.0, 2.0], 3.0)
    assert played.actor_s == (2.0, 4.0)
    assert (played.acting_s, played.learner_s, played.duration_s) == (4.0, 3.0, 7.0)
    # (2 + 4) GB·s of actors and 3·2 GB·s of the learner, three requests.
    assert played.cost == pytest.approx(12 * GB_S + 3 * REQUEST)
    assert clock.play([1.0, 2.0], 3.0).cost == pytest.approx(2 * played.cost)
    assert clock.now_s == 14.0


def test_instances_start_once_and_stay_warm() -> None:
    times = dataclasses.replace(NOTHING, actor_start_s=0.5, learner_start_s=2.0)
    clock = JobClock(Stage(Host(10)), times)
    first, second, third = clock.play([1.0], 1.0), clock.play([1.0, 1.0], 1.0), clock.play([1.0, 1.0], 1.0)
    assert (first.duration_s, first.cold) == (1.5 + 3.0, 1)
    assert (second.actor_s, second.cold, second.learner_s) == ((1.0, 1.5), 1, 1.0)
    assert (third.duration_s, third.cold) == (2.0, 0)


def test_what_the_platform_and_the_server_add() -> None:
    """Two actors: the second is submitted 0.1 s later; each handed over in 0.2 s; the server takes 0.3 s and 0.4 s."""
    clock = JobClock(Stage(Host(10)), PlatformTimes(0.1, 0.2, 0.0, 0.0, 0.3, 0.4))
    played = clock.play([1.0, 1.0], 2.0)
    # There at 0.2 and 0.3; fetched at 0.5 and 0.8; acted at 1.5 and 1.8; ended at 1.9 and 2.3 (one at a time).
    assert played.actor_s == pytest.approx((1.9, 2.2))
    assert played.duration_s == pytest.approx(2.3 + 2.2)


def test_reserved_machines_are_charged_as_long_as_the_job_lasts() -> None:
    """36 cores: 72 actors of 1 s take 2 s. Five machines of 16 actors and the learner's, for at least a minute each."""
    bill = Bill(load_prices(), "reserved-vms", "full")
    clock = JobClock(reserved_stage(36), NOTHING, bill)
    played = clock.play([1.0] * 72, 1.0)
    assert played.duration_s == pytest.approx(3.0)
    assert played.cold == 0
    assert played.cost == pytest.approx((3.06 + 5 * 0.68) / 60)
    later = [clock.play([1.0] * 72, 1.0) for _ in range(39)][-1]
    assert later.cost == pytest.approx((3.06 + 5 * 0.68) * 120 / 3600)


def test_a_record_gets_the_clock_of_its_invocations() -> None:
    clock = JobClock(Stage(Host(10)), NOTHING)
    found = clock(
        record(),
        [
            attempt("actor", 1, 3.0),
            attempt("learner", 9, 5.0),
            attempt("actor", 0, 1.0, outcome="lost"),
            attempt("actor", 0, 1.0, attempt=2),
        ],
    )
    assert (found.round_s, found.learner_s, found.actor_s_mean, found.actor_s_max) == (8.0, 5.0, 2.0, 3.0)
    assert found.cost == clock.rounds[0].cost
    assert found.phases == {"acting": 3.0, "learning": 5.0}
    assert (clock.rounds[0].actor_cpu_s, clock.rounds[0].learner_cpu_s) == ((1.0, 3.0), 5.0)


def test_the_clock_of_asynchronous_learners_by_hand() -> None:
    """Each learner has a processor of its own; all that the parameter function does lies on the slowest one's way."""
    bill = Bill(load_prices(), "lambda", "full")
    clock = JobClock(Stage(Host(10)), PlatformTimes(0.0, 0.2, 0.0, 1.0, 0.0, 0.0), bill)
    first = clock.play([2.8], 0.0, [3.0, 4.0], 0.5)
    assert first.acting_s == pytest.approx(3.0)
    assert first.learner_s == pytest.approx(4.0 + 0.5 + 0.2 + 1.0)  # cold
    kinds = [(each.kind, each.cold, each.ended - each.started) for each in first.invocations]
    assert kinds == [
        ("actor", True, pytest.approx(3.0)),
        ("gradient", True, pytest.approx(3.0 + 0.5 + 0.2 + 1.0)),
        ("gradient", True, pytest.approx(4.0 + 0.5 + 0.2 + 1.0)),
        ("parameter", True, pytest.approx(4.0 + 0.5 + 0.2 + 1.0)),
    ]
    second = clock.play([2.8], 0.0, [3.0, 4.0, 1.0], 0.5)  # one function more: it starts cold
    assert [each.cold for each in second.invocations] == [False, False, False, False, True]
    assert second.duration_s == pytest.approx(3.0 + 5.7)
    per_s = float(seconds_price(load_prices().profile("lambda"), "gradient", 1769))
    actor_s = float(seconds_price(load_prices().profile("lambda"), "actor", 1024))
    seconds = 4.7 + 5.7 + 5.7 + 3.7 + 4.7 + 1.7 + 5.7
    assert second.cost == pytest.approx(seconds * per_s + 6.0 * actor_s + 9 * 2e-7)


def test_actors_that_play_ahead_do_so_while_learners_learn() -> None:
    clock = JobClock(Stage(Host(10)), NOTHING, actors_ahead=True)
    rounds = [clock.play([acting], 0.0, [2.0], 0.0) for acting in (3.0, 3.0, 1.0)]
    assert [each.acting_s for each in rounds] == [3.0, 1.0, 0.0]
    assert [each.duration_s for each in rounds] == [5.0, 3.0, 2.0]
    actor = rounds[1].invocations[0]
    assert (actor.started, actor.ended) == (3.0, 6.0)


def test_a_record_of_asynchronous_learners_gets_the_clock_of_their_invocations() -> None:
    clock = JobClock(Stage(Host(10)), NOTHING)
    found = clock(
        record(),
        [
            attempt("actor", 0, 3.0),
            attempt("gradient", 1, 5.0),
            attempt("gradient", 2, 9.0, outcome="lost"),
            attempt("gradient", 2, 1.0, attempt=2),
            attempt("parameter", 3, 0.5),
        ],
    )
    assert (found.round_s, found.learner_s) == (8.5, 5.5)
    assert clock.rounds[0].learner_cpu_s == 6.5


def test_this_machines_own_cold_starts_are_not_on_the_clock() -> None:
    """A cold one's processor time has imports in it: what a warm one took counts; else what its phases took."""
    clock = JobClock(Stage(Host(10)), NOTHING)
    imported = Measured(instance="b", invocation=1, cpu_s=7.0, import_s=2.0, phases={"act": 4.0})
    cold = attempt("actor", 1, 0.0, cold=True, measured=imported)
    clock(record(), [cold])
    clock(record(), [cold, attempt("actor", 2, 3.0)])
    clock(record(), [cold])
    assert [each.actor_cpu_s for each in clock.rounds] == [(4.0,), (3.0, 3.0), (3.0,)]


def test_a_lambda_function_of_1024_mb_has_58_percent_of_a_processor() -> None:
    assert JobClock(times=NOTHING).play([1.0], 0.0).duration_s == pytest.approx(1769 / 1024)
    assert lambda_stage(1769).host.cpu_share == 1.0
