"""Returns where fragments are at their edges: all terminated, all truncated, one step long, final observations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from replay_server.rl.returns import gae, next_values, v_trace  # noqa: E402

REWARDS = torch.tensor([[1.0, 2.0, 4.0]])
VALUES = torch.tensor([[10.0, 20.0, 30.0]])
SUCCESSORS = torch.tensor([[7.0, 8.0, 9.0]])
NONE = torch.zeros(1, 3, dtype=torch.bool)
ALL = ~NONE


def test_successors_are_the_next_row_or_a_final_observation():
    values = torch.arange(8.0).reshape(2, 4)
    final_values = torch.tensor([[50.0, 51.0, 0.0], [60.0, 0.0, 0.0]])
    final_steps = torch.tensor([[1, 3, -1], [3, -1, -1]])
    assert next_values(values, final_values, final_steps).tolist() == [[1, 50, 3, 51], [5, 6, 7, 60]]


def test_where_all_terminate_advantages_are_rewards_minus_values():
    advantages, targets = gae(REWARDS, VALUES, SUCCESSORS, ALL, NONE, 0.9, 0.8)
    assert advantages.tolist() == [[-9.0, -18.0, -26.0]]
    assert targets.tolist() == REWARDS.tolist()
    trace = v_trace(REWARDS, VALUES, SUCCESSORS, ALL, NONE, torch.zeros(1, 3), 0.9)
    assert (trace.advantages.tolist(), trace.targets.tolist()) == ([[-9.0, -18.0, -26.0]], REWARDS.tolist())


def test_where_all_are_truncated_each_step_bootstraps_from_its_own_final_observation():
    advantages, targets = gae(REWARDS, VALUES, SUCCESSORS, NONE, ALL, 0.5, 0.8)
    assert targets.tolist() == [[4.5, 6.0, 8.5]]
    assert advantages.tolist() == [[-5.5, -14.0, -21.5]]
    trace = v_trace(REWARDS, VALUES, SUCCESSORS, NONE, ALL, torch.zeros(1, 3), 0.5)
    assert (trace.advantages.tolist(), trace.targets.tolist()) == ([[-5.5, -14.0, -21.5]], [[4.5, 6.0, 8.5]])


@pytest.mark.parametrize(("terminated", "expected"), [(True, 1.0), (False, 1.0 + 0.9 * 7.0)])
def test_a_fragment_of_one_step(terminated, expected):
    ends = torch.tensor([[terminated]])
    one = (REWARDS[:, :1], VALUES[:, :1], SUCCESSORS[:, :1], ends, torch.zeros_like(ends))
    assert gae(*one, 0.9, 0.95)[1].item() == pytest.approx(expected)
    assert v_trace(*one, torch.zeros(1, 1), 0.9).targets.item() == pytest.approx(expected)


def test_v_trace_of_the_same_policy_is_the_discounted_return():
    successors = next_values(VALUES, torch.tensor([[40.0]]), torch.tensor([[2]]))
    trace = v_trace(REWARDS, VALUES, successors, NONE, NONE, torch.zeros(1, 3), 0.5)
    assert trace.targets.tolist() == [[1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 40)), 2 + 0.5 * (4 + 0.5 * 40), 24.0]]
    with_lambda_1, targets = gae(REWARDS, VALUES, successors, NONE, NONE, 0.5, 1.0)
    assert (targets.tolist(), with_lambda_1.tolist()) == (trace.targets.tolist(), trace.advantages.tolist())


def test_ratios_above_the_clips_count_as_the_clips_and_those_below_as_they_are():
    log_ratios = torch.log(torch.tensor([[3.0, 0.5, 1.0]]))
    trace = v_trace(REWARDS, VALUES, SUCCESSORS, NONE, ALL, log_ratios, 0.5)
    assert trace.ratios.tolist()[0] == pytest.approx([1.0, 0.5, 1.0])
    assert trace.advantages.tolist()[0] == pytest.approx([-5.5, 0.5 * -14.0, -21.5])


def test_discounted_sums_of_large_values_keep_their_digits():
    rewards, values = torch.full((1, 1000), 1e-3), torch.full((1, 1000), 1e4)
    ends = torch.zeros(1, 1000, dtype=torch.bool)
    advantages, _ = gae(rewards, values, values, ends, ends, 1.0, 1.0)
    assert advantages[0, 0].item() == pytest.approx(1.0, rel=1e-6)
