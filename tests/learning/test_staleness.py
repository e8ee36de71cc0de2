"""Staleness threshold, rule and learning-rate modulation against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from replay_server.learner.parameter_state import ROUNDS_REMEMBERED, ParameterState
from replay_server.learner.staleness import factor, holds, threshold, threshold_bound
from replay_server.rl.asynchronous_learning import asynchronous_learning
from replay_server.rl.gradient_queue import Gradient


def test_the_threshold_decays_with_the_rounds_within_its_bounds():
    # M = 4: 4·0.9^0 = 4 → 5, clipped to 4; 3.6 → 4; 3.24 → 4; 2.916 → 3; … 2.126 → 3 (k = 7); 1.913 → 2;
    # … 1.017 → 2 (k = 14); 0.915 → 1.
    assert [threshold(4, k) for k in (1, 2, 3, 4, 7, 8, 14, 15, 50)] == [4, 4, 4, 3, 3, 2, 2, 1, 1]
    assert [threshold(1, k) for k in (1, 20)] == [1, 1]
    assert threshold(4, 2, decay=0.5) == 3
    assert threshold(None, 1) == math.inf
    with pytest.raises(ValueError, match="round from 1 on, got 0"):
        threshold(4, 0)


def test_the_bound_is_that_of_the_first_round_that_had_any_staleness():
    assert threshold_bound([0, 0, 0]) is None
    assert threshold_bound([]) is None
    assert threshold_bound([0, 1, 0, 0]) == 1
    assert threshold_bound([0, 1, 2, 3]) == 2  # mean 1.5
    state = ParameterState()
    for stalenesses, expected in [([0, 0], None), ([3, 4], 4), ([9, 9], 4)]:
        state.tally.stalenesses = stalenesses
        state.close_round()
        assert state.bound == expected


def test_gradients_are_applied_when_fresh_enough_or_when_none_is_missing():
    assert not holds([], math.inf, 4)
    assert holds([0], 1, 4)
    assert not holds([3], 1, 4)
    assert holds([3, 0, 0], 1, 4)  # mean 1
    assert not holds([3, 0, 1], 1, 4)  # mean 4/3
    assert holds([3, 0, 1, 7], 1, 4)
    assert holds([100], math.inf, 4)


def test_modulation_takes_the_root_of_the_staleness_and_is_no_no_op_for_whole_numbers():
    assert factor(0) == factor(1) == 1.0
    assert factor(8) == pytest.approx(0.5)
    assert factor(27) == pytest.approx(1 / 3)
    assert factor(4, root=1.0) == pytest.approx(0.25)
    assert factor(100) == pytest.approx(0.2154435)
    assert factor(100, root=None) == 1.0
    with pytest.raises(ValueError, match="version is newer than the policy"):
        factor(-1)


def test_a_recorded_sequence_of_arrivals_is_flushed_as_worked_out():
    # Round 2 with M = 2 (β = ⌊1.8⌋ + 1 = 2), three learners. (arrived with version, version then current)
    limit, flushed, queue, version = threshold(2, 2), [], [], 10
    assert limit == 2
    for computed_at in (10, 7, 6, 10, 8):
        queue.append(computed_at)
        if holds([version - each for each in queue], limit, 3):
            flushed.append([version - each for each in queue])
            queue, version = [], version + 1
    # 10: staleness 0, at once → 11. 7: 4 waits; 6: 4, 5 wait; 10: 4, 5, 1 is three → 12. 8: 4 waits.
    assert flushed == [[0], [4, 5, 1]]
    assert queue == [8]


def test_what_was_applied_is_told_from_what_was_not():
    state = ParameterState(round=9, applied={"a": [10, 2]})
    old, new, twice, other = (
        Gradient(5, 9 - ROUNDS_REMEMBERED, "z", 0), Gradient(20, 10, "a", 2), Gradient(20, 10, "a", 1),
        Gradient(21, 10, "b", 0),
    )  # fmt: skip
    fresh, spent = state.sorted_out([old, new, twice, other], version=20)
    assert fresh == [new]
    assert spent == [old, twice, other]
    assert (state.tally.duplicates, state.tally.refused) == (1, 2)
    state.dispose(fresh)
    assert state.sorted_out([new], 20) == ([], [new])
    assert ParameterState.from_plain(state.plain()) == state
    assert ParameterState.from_plain({}) == ParameterState()


def test_names_of_applied_gradients_are_forgotten_after_some_rounds():
    state = ParameterState(applied={"a": [1, 5]})
    for _ in range(ROUNDS_REMEMBERED):
        assert "a" in state.applied
        state.close_round()
    state.close_round()
    assert state.applied == {}
    assert state.sorted_out([Gradient(0, 1, "a", 4)], 50)[0] == []


def test_statistics_tell_every_staleness():
    state = ParameterState()
    state.tally.stalenesses, state.tally.rates = [0, 0, 2, 100], 3.0
    found = state.tally.statistics()
    assert (found["staleness_0"], found["staleness_2"], found["staleness_above_9"]) == (2, 1, 1)
    assert (found["gradients"], found["gradient_staleness"], found["gradient_staleness_max"]) == (4, 25.5, 100)
    assert found["learning_rate_factor"] == 0.75


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"learners": "0"}, "learners: expected at least 1, got 0"),
        ({"learnerz": "2"}, "no setting 'learnerz'"),
        ({"threshold_decay": "1.5"}, "threshold_decay: expected (0, 1], got 1.5"),
        ({"truncation": "nan"}, "truncation: expected a number above 0"),
        ({"flush": "never"}, "flush: expected one of staleness, count, every"),
        ({"delay": "31"}, "delay: expected at most 28"),
        ({"max_staleness": "-1"}, "max_staleness: expected at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(words, told):
    with pytest.raises(ValueError, match="learner option") as error:
        asynchronous_learning(words)
    assert told in str(error.value)


def test_settings_come_from_words():
    found = asynchronous_learning({"learners": "2", "truncation": "none", "patience_s": "0.5", "modulation_root": "1"})
    assert (found.learners, found.truncation, found.patience_s, found.modulation_root) == (2, None, 0.5, 1.0)
    assert not found.keeps_history
