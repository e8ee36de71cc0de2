"""How a job on one machine shares its cores."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from replay_server.jobs import giving_way  # noqa: E402
from replay_server.jobs import plan as plan_module  # noqa: E402
from replay_server.jobs.plan import actors_for, make_plan, transitions_an_update  # noqa: E402
from replay_server.learner import execution_choice  # noqa: E402
from replay_server.learner.execution_choice import Choice, Way  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402

SETTINGS = ApexSettings(
    env="CartPole-v1", hidden=16, batch_size=32, samples_per_insert=8.0, learner_threads=1, targets_ahead="off",
    precision="float32", device="cpu", envs_per_actor=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "acting_s", "update_s", "actors"),
    [
        (2, 0.02, 0.06, 1),  # a third of a core keeps up
        (2, 0.09, 0.10, 2),  # one would have no time to spare
        (4, 0.25, 0.10, 4),  # acting takes two and a half cores
        (4, 10.0, 0.10, 4),  # more than there are: the learner waits
        (2, 0.02, 0.0, 1),  # nothing was measured
        (8, 0.02, 0.0, 7),
    ],
)
def test_there_are_as_many_actors_as_keep_up_with_the_learner(cores, acting_s, update_s, actors):
    assert actors_for(cores, acting_s, update_s) == actors


def test_replay_ratio_says_how_much_is_acted_for_an_update():
    assert transitions_an_update(SETTINGS) == 4.0
    assert transitions_an_update(dataclasses.replace(SETTINGS, samples_per_insert=None)) == 0.0
    two = dataclasses.replace(SETTINGS, samples_per_insert_end=2.0, samples_per_insert_end_updates=100)
    assert [transitions_an_update(two, step) for step in (0, 99, 100)] == [4.0, 4.0, 16.0]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_machine_is_measured_by_a_process_of_its_own(env):
    plan = make_plan(dataclasses.replace(SETTINGS, env=env, targets_ahead="auto"))
    found = Choice.of_values(plan.execution)
    assert found.rows in (1, 2, 8, 32), "as many as there is time for on this machine"
    assert (found.way.precision, found.way.threads) == ("float32", 1)
    assert plan.acting_ms > 0
    assert plan.actors >= 1
    assert "each transition takes" in plan.told()
    assert plan.gives_way == giving_way.POSSIBLE


def test_actors_are_as_many_as_the_later_replay_ratio_needs(monkeypatch):
    """32 ms are acted for an update of 100 ms at first, and 128 ms later."""
    acted_s = []

    def found(*arguments):
        acted_s.append(arguments[-1])
        return Choice(Way(), 32, {str(Way()): 100.0})

    monkeypatch.setattr(execution_choice, "choose_execution", found)
    monkeypatch.setattr(plan_module, "transition_seconds", lambda _: 0.008)
    monkeypatch.setattr(plan_module, "usable_cores", lambda: 2)
    assert plan_module.measured_plan(SETTINGS).actors == 1
    later = dataclasses.replace(SETTINGS, samples_per_insert_end=2.0, samples_per_insert_end_updates=100)
    assert plan_module.measured_plan(later).actors == 2
    assert acted_s == pytest.approx([0.032, 0.128]), "the way to do updates is chosen beside as much acting"


@pytest.mark.parametrize(("rows", "actors"), [(8, 1), (32, 2)])
def test_actors_are_as_many_as_whole_batches_need_also_where_fewer_rows_were_timed(monkeypatch, rows, actors):
    """For 32 rows 80 ms are acted. An update takes 200 ms where 8 rows take 50, and 50 ms where all 32 do."""
    found = Choice(Way(), rows, {str(Way()): 50.0})
    monkeypatch.setattr(execution_choice, "choose_execution", lambda *_: found)
    monkeypatch.setattr(plan_module, "transition_seconds", lambda _: 0.02)
    monkeypatch.setattr(plan_module, "usable_cores", lambda: 2)
    assert plan_module.measured_plan(SETTINGS).actors == actors


def test_a_number_of_actors_that_was_given_is_told_beside_what_was_measured():
    plan = make_plan(dataclasses.replace(SETTINGS, actors=7, targets_ahead="auto"), actors_given=True)
    assert plan.actors == 7
    assert plan.told().startswith("7 actor processes: each transition takes ")


def test_nothing_is_measured_where_nothing_is_left_to_choose():
    plan = make_plan(dataclasses.replace(SETTINGS, device="cuda:99", targets_ahead="on", actors=3), actors_given=True)
    assert Choice.of_values(plan.execution) == Choice(Way("float32", 1, True))
    assert (plan.actors, plan.told()) == (3, "")


def test_acting_is_not_measured_where_the_number_of_actors_does_not_follow_from_it():
    plan = make_plan(dataclasses.replace(SETTINGS, samples_per_insert=None, actors=3))
    assert (plan.actors, plan.acting_ms, plan.told()) == (3, 0.0, "")


def test_a_measurement_that_takes_too_long_says_what_to_give(monkeypatch):
    monkeypatch.setattr(plan_module, "LONGEST_S", 0.01)
    with pytest.raises(ValueError, match=r"took longer than 0\.01 s: give --actors"):
        make_plan(SETTINGS)


def test_what_fails_there_is_told_here():
    with pytest.raises(ValueError, match=r"measuring this machine failed with exit code 1: .*cuda"):
        make_plan(dataclasses.replace(SETTINGS, device="cuda:99"))
