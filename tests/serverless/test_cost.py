"""Bills: what is billed, exact sums in any order, reserved machines beside it, and price files of the user's own."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_server.bench.papers.nitro.replayed_clock import round_cost
from replay_server.rl.function_contract import Measured
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.cost import Bill, seconds_price
from replay_server.serverless.invocation_log import invocation_line, read_invocations
from replay_server.serverless.prices import COLUMNS, PriceError, load_prices

PRICES = load_prices()
EPOCH = 1_700_000_000.0


def invocation(
    started: float = 0.0,
    duration: float = 1.0,
    *,
    kind: str = "actor",
    memory_mb: int = 1024,
    outcome: str = "ok",
    instance: str = "",
    queued: float | None = None,
    request: str = "job-1-0",
    attempt: int = 1,
) -> Invocation:
    return Invocation(
        request=request,
        kind=kind,
        round=1,
        attempt=attempt,
        platform="process",
        queued=EPOCH + (started if queued is None else queued),
        started=EPOCH + started,
        ended=EPOCH + started + duration,
        outcome=outcome,
        cold=False,
        instance=instance,
        memory_mb=memory_mb,
        bytes_in=1,
        bytes_out=1,
        measured=Measured(instance=instance) if outcome == "ok" else None,
    )


def bill(profile: str, *invocations: Invocation, column: str = "full", provisioned: int = 0) -> Bill:
    made = Bill(PRICES, profile, column, provisioned)
    made.add(*invocations)
    return made


def test_a_gigabyte_second_on_demand_costs_what_the_list_says() -> None:
    assert bill("lambda", invocation(), column="paper").dollars == pytest.approx(0.0000166667, abs=1e-15)
    assert bill("lambda", invocation(), column="full").dollars == pytest.approx(0.0000166667 + 0.0000002, abs=1e-15)
    half = invocation(memory_mb=512)
    assert bill("lambda", half, column="code").dollars == pytest.approx(0.0000166667 / 2, abs=1e-15)


def test_only_the_full_column_rounds_durations_up_to_the_millisecond() -> None:
    short = invocation(duration=0.0102)
    assert bill("lambda", short, column="paper").dollars == pytest.approx(0.0102 * 0.0000166667, abs=1e-15)
    assert bill("lambda", short, column="full").dollars == pytest.approx(0.011 * 0.0000166667 + 2e-7, abs=1e-15)
    nothing = invocation(duration=0.0)
    assert bill("lambda", nothing, column="full").dollars == pytest.approx(0.001 * 0.0000166667 + 2e-7, abs=1e-15)


def test_a_duration_of_whole_milliseconds_is_not_rounded_up_by_the_error_of_a_float() -> None:
    short = invocation(started=0.0, duration=0.002)
    assert short.ended - short.started > 0.002  # in floats, so far from zero
    (charge,) = bill("lambda", short).charges()
    assert charge.billed_s == 0.002


@pytest.mark.parametrize("outcome", ["failed", "timeout", "lost"])
def test_what_brought_nothing_is_billed_all_the_same(outcome: str) -> None:
    assert bill("lambda", invocation(outcome=outcome)).dollars == bill("lambda", invocation()).dollars


def test_a_second_attempt_is_billed_beside_the_first() -> None:
    once, twice = invocation(), [invocation(), invocation(attempt=2, started=1)]
    assert bill("lambda", *twice).dollars == pytest.approx(2 * bill("lambda", once).dollars, abs=1e-15)


def test_waiting_in_the_queue_costs_nothing() -> None:
    waited = invocation(started=5, queued=0)
    assert bill("lambda", waited).dollars == bill("lambda", invocation()).dollars


def test_provisioned_concurrency_bills_idle_instances_and_use_apart() -> None:
    actors = [invocation(0, 10), invocation(90, 10)]
    made = bill("lambda-provisioned", *actors, column="paper", provisioned=2)
    assert made.dollars == pytest.approx(2 * 100 * 0.0000041667 + 20 * 0.0000097222, abs=1e-14)
    assert made.resources()["provisioned"]["gb_s"] == pytest.approx(200)
    assert made.resources()["provisioned use"]["gb_s"] == pytest.approx(20)
    assert made.idle()["provisioned_s"] == pytest.approx(180)
    # Full: five minutes, rounded up, and a request each. Code: nothing but use, on demand.
    expected = 2 * 300 * 0.0000041667 + 20 * 0.0000097222 + 2 * 2e-7
    assert float(made.exact("full")) == pytest.approx(expected, abs=1e-14)
    assert float(made.exact("code")) == pytest.approx(20 * 0.0000166667, abs=1e-14)


def test_more_actors_than_are_kept_warm_run_on_demand() -> None:
    actors = [invocation(0, 2), invocation(1, 2), invocation(2, 2)]  # two at a time between 1 and 3
    made = bill("lambda-provisioned", *actors, provisioned=1, column="paper")
    assert [charge.resource for charge in made.charges()] == ["provisioned use", "function", "provisioned use"]
    assert made.dollars == pytest.approx(4 * 0.0000041667 + 4 * 0.0000097222 + 2 * 0.0000166667, abs=1e-14)


def test_provisioned_concurrency_needs_its_number_of_instances() -> None:
    with pytest.raises(ValueError, match="tell how many"):
        Bill(PRICES, "lambda-provisioned")


def test_a_learner_vm_is_billed_for_the_whole_job_and_in_the_code_column_for_its_use() -> None:
    made = bill("lambda-learner-vm", invocation(0, 30), invocation(3000, 600, kind="learner"), column="paper")
    assert made.dollars == pytest.approx(3.06 + 30 * 0.0000166667, abs=1e-12)
    assert float(made.exact("code")) == pytest.approx(3.06 / 6 + 30 * 0.0000166667, abs=1e-12)
    assert made.resources()["learner machine"]["hours"] == pytest.approx(1.0)
    assert made.idle()["learner_machine_s"] == pytest.approx(3000)


def test_the_same_work_on_reserved_machines_takes_as_many_as_hold_the_actors() -> None:
    actors = [invocation(0, 1800) for _ in range(17)]  # 16 fit one machine
    made = bill("lambda", *actors, invocation(1800, 1800, kind="learner"))
    reserved = made.reserved()
    assert reserved is not None
    assert reserved.dollars == pytest.approx(3.06 + 2 * 0.68, abs=1e-12)
    assert reserved.resources()["actor machine"]["hours"] == pytest.approx(2.0)
    idle = made.idle()
    assert idle["actor_machine_s"] == pytest.approx(32 * 3600 - 17 * 1800)
    assert idle["learner_machine_s"] == pytest.approx(1800)


def test_warm_instances_between_invocations_are_idle_and_not_billed() -> None:
    calls = [invocation(0, 1, instance="a"), invocation(11, 1, instance="a"), invocation(0, 5, instance="b")]
    made = bill("lambda", *calls, column="paper")
    assert made.idle()["warm_s"] == pytest.approx(10)
    assert made.dollars == pytest.approx(7 * 0.0000166667, abs=1e-14)


def test_calls_that_made_instances_warm_are_billed_as_actors() -> None:
    for profile in PRICES.profiles:
        warm, actor = (bill(profile, invocation(0, 7, kind=kind), provisioned=2) for kind in ("warm", "actor"))
        assert warm.dollars == actor.dollars > 0
    assert set(bill("lambda-learner-vm", invocation(kind="warm")).resources()) >= {"function", "requests"}


def test_evaluations_are_off_the_bill_and_off_the_clock() -> None:
    made = bill("lambda-learner-vm", invocation(), invocation(100, 60, kind="evaluation"))
    assert made.dollars == bill("lambda-learner-vm", invocation()).dollars
    assert made.summary()["evaluation"]["seconds"] == pytest.approx(60)


def test_an_empty_bill_is_nothing() -> None:
    for profile in PRICES.profiles:
        made = bill(profile, provisioned=4)
        assert made.dollars == 0.0
        assert made.summary()["duration_s"] == 0.0


times = st.floats(0, 5000, allow_nan=False)
logs = st.lists(
    st.builds(
        invocation,
        started=times,
        duration=st.floats(0, 900, allow_nan=False),
        kind=st.sampled_from(["actor", "learner"]),
        memory_mb=st.sampled_from([128, 512, 1024, 1769, 3008]),
        outcome=st.sampled_from(["ok", "failed", "timeout", "lost"]),
        request=st.sampled_from("abcdef"),
        attempt=st.integers(1, 3),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(log=logs, shuffled=st.randoms(use_true_random=False), profile=st.sampled_from(list(PRICES.profiles)))
def test_the_sum_over_the_log_is_the_bill_in_any_order(log: list, shuffled, profile: str) -> None:
    made = bill(profile, *log, provisioned=3)
    other_order = list(log)
    shuffled.shuffle(other_order)
    again = bill(profile, provisioned=3)
    for each in other_order:
        again.add(each)
    for column in COLUMNS:
        of_log = math.fsum(float(charge.dollars) for charge in made.charges(column))
        standing = math.fsum(map(float, made.standing(column).values()))
        assert abs(of_log + standing - float(made.exact(column))) < 1e-9
        by_resource = math.fsum(amount["dollars"] for amount in made.resources(column).values())
        assert abs(by_resource - float(made.exact(column))) < 1e-9
        assert again.exact(column) == made.exact(column)
    assert len(made.charges()) == len(log)


def test_the_bill_of_functions_is_the_sum_that_a_plain_loop_over_the_log_gives(tmp_path: Path) -> None:
    log = [
        invocation(0.37 * index, 0.001 * (index % 97) + 0.0005, memory_mb=(512, 1024)[index % 2])
        for index in range(1000)
    ]
    path = tmp_path / "invocations.jsonl"
    path.write_text("".join(map(invocation_line, log)))
    dollars = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        milliseconds = math.ceil(round((row["ended"] - row["started"]) * 1000, 3))
        dollars.append(milliseconds / 1000 * row["memory_mb"] / 1024 * 0.0000166667 + 0.0000002)
    assert abs(math.fsum(dollars) - bill("lambda", *log).dollars) < 1e-9


def test_a_log_read_again_gives_the_same_bill(tmp_path: Path) -> None:
    log = [invocation(index / 3, index / 7, outcome=("ok", "lost")[index % 2]) for index in range(20)]
    path = tmp_path / "invocations.jsonl"
    path.write_text("".join(map(invocation_line, log)) + '{"request": "cut off by a ki')
    assert read_invocations(path) == log
    assert read_invocations(tmp_path) == log
    assert bill("lambda", *read_invocations(path)).exact() == bill("lambda", *log).exact()


def test_a_line_that_is_no_invocation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "invocations.jsonl"
    path.write_text('{"request": 1}\n' + invocation_line(invocation()))
    with pytest.raises(ValueError, match="line 1"):
        read_invocations(path)


def test_minions_round_bills_all_actors() -> None:
    assert round_cost(2.0, [1.0, 4.0, 3.0], learner_price_s=10.0, actor_price_s=1.0) == 28.0
    assert round_cost(2.0, [3.0], learner_price_s=2.0) == 10.0
    price = seconds_price(PRICES.profile("lambda-learner-vm"), "actor", 2048)
    assert price == pytest.approx(2 * 0.0000166667, abs=1e-15)
    assert seconds_price(PRICES.profile("lambda-learner-vm"), "learner", 0) == pytest.approx(3.06 / 3600)


def test_rounds_of_use_add_up_to_the_code_column() -> None:
    log = [invocation(0, 1.5), invocation(0, 2.5), invocation(2.5, 1, kind="learner", memory_mb=3008)]
    prices = [seconds_price(PRICES.profile("lambda"), kind, mb) for kind, mb in (("learner", 3008), ("actor", 1024))]
    assert round_cost(1, [1.5, 2.5], *prices) == pytest.approx(bill("lambda", *log, column="code").dollars, abs=1e-15)


OWN = """
[functions.container]
vcpu_s = 0.5
gb_s = 0.25
vcpus = 2
step_s = 1

[profiles.containers]
about = "by processor and memory"
function = "container"
actor = "function"
learner = "function"
"""


def test_a_price_file_of_the_users_own_bills_processors_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    made = Bill(load_prices(path), "containers")
    made.add(invocation(duration=1.2, memory_mb=512))
    assert made.dollars == 2 * (2 * 0.5 + 0.5 * 0.25)
    assert made.reserved() is None
    with pytest.raises(PriceError, match="expected one of containers"):
        Bill(load_prices(path), "lambda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("vcpu_s = 0.5", "vcpu = 0.5"), "functions.container: unknown key 'vcpu'"),
        (("vcpu_s = 0.5", "vcpu_s = -0.5"), "functions.container.vcpu_s: expected a number of at least 0"),
        (("vcpu_s = 0.5", "vcpu_s = nan"), "functions.container.vcpu_s: expected a number"),
        (("vcpu_s = 0.5", 'vcpu_s = "0.5"'), "functions.container.vcpu_s: expected a number"),
        (('function = "container"', 'function = "other"'), "there is no table 'other'"),
        (('actor = "function"', 'actor = "provisioned"'), "functions.NAME.provisioned"),
        (('actor = "function"', 'actor = "machine"'), "needs actor_machine"),
        (('actor = "function"', 'actor = "lamp"'), "expected one of function, provisioned, machine"),
        (('learner = "function"', ""), "profiles.containers: learner is missing"),
        (("[functions", "[function"), "unknown table 'function'"),
        (("= 0.5", "= = 0.5"), "own.toml"),
    ],
)
def test_a_wrong_price_file_is_refused_with_what_is_wrong(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(*change))
    with pytest.raises(PriceError) as caught:
        load_prices(path)
    assert message in str(caught.value)


def test_a_missing_price_file_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"none\.toml: No such file"):
        load_prices(tmp_path / "none.toml")


def test_a_killed_invocation_in_the_log_keeps_its_field_values(tmp_path: Path) -> None:
    killed = dataclasses.replace(invocation(outcome="lost"), error="its process died")
    path = tmp_path / "invocations.jsonl"
    path.write_text(invocation_line(killed))
    assert read_invocations(path) == [killed]
