"""n-step windows against a reference that looks each one up in the whole history of its environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from replay_server.rl.n_step import NStepAccumulator

GAMMA = 0.9
NUM_ACTIONS = 3


@dataclass
class Step:
    """What one environment went through in one call."""

    observation: int
    q_values: np.ndarray
    action: int
    reward: float
    terminated: bool
    truncated: bool
    ignored: bool


def random_history(generator: np.random.Generator, length: int, end_chance: float, lives: bool) -> list[Step]:
    """One environment with next-step autoreset: after an end comes an ignored step; after a lost life none."""
    steps: list[Step] = []
    resetting = False
    for time in range(length):
        kind = generator.choice(["terminated", "truncated", "both", "life"]) if generator.random() < end_chance else ""
        if resetting or (kind == "life" and not lives):
            kind = ""
        steps.append(
            Step(
                observation=time,
                q_values=generator.normal(size=NUM_ACTIONS) * 5,
                action=int(generator.integers(NUM_ACTIONS)),
                reward=0.0 if resetting else float(generator.normal()),
                terminated=kind in ("terminated", "both", "life"),
                truncated=kind in ("truncated", "both"),
                ignored=resetting,
            )
        )
        resetting = kind in ("terminated", "truncated", "both")
    return steps


def reference_transitions(history: list[Step], n_step: int) -> list[tuple[int, int, float, int, float, float]]:
    """(obs, action, reward, next_obs, discount, td error) of each window whose bootstrap value is in the history."""
    transitions = []
    for start, first in enumerate(history):
        if first.ignored:
            continue
        reward, steps, terminated = 0.0, 0, False
        while steps < n_step and start + steps < len(history):
            step = history[start + steps]
            reward += GAMMA**steps * step.reward
            steps += 1
            if step.terminated or step.truncated:
                terminated = step.terminated
                break
        else:
            if steps < n_step:
                continue
        if start + steps >= len(history):
            continue
        discount = GAMMA**steps * (not terminated)
        last = history[start + steps]
        td_error = reward + discount * last.q_values.max() - first.q_values[first.action]
        transitions.append((first.observation, first.action, reward, last.observation, discount, td_error))
    return transitions


@dataclass
class Row:
    """One transition: which environment's, from which observation to which, and what the accumulator says of it."""

    environment: int
    obs: int
    next_obs: int
    action: int
    reward: float
    discount: float
    td_error: float


def accumulate(histories: list[list[Step]], n_step: int) -> list[Row]:
    """Feeds histories side by side; observations are what each history calls them."""
    rows: list[Row] = []
    accumulator = NStepAccumulator(len(histories), n_step, GAMMA)
    for time, moment in enumerate(zip(*histories, strict=True)):
        finished = accumulator.step(
            np.stack([step.q_values for step in moment]),
            np.array([step.action for step in moment]),
            np.array([step.reward for step in moment]),
            np.array([step.terminated for step in moment]),
            np.array([step.truncated for step in moment]),
            np.array([step.ignored for step in moment]),
        )
        for windows in finished:
            for e in np.flatnonzero(windows.mask):
                started = histories[e][time - windows.steps]
                values = (windows.action[e], windows.reward[e], windows.discount[e], windows.td_error[e])
                rows.append(Row(int(e), started.observation, moment[e].observation, *values))
    return rows


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_windows_match_the_reference_over_random_episodes(n_step: int, seed: int) -> None:
    generator = np.random.default_rng([n_step, seed])
    end_chance = [0.0, 0.05, 0.2, 0.6][seed % 4]
    histories = [random_history(generator, 150, end_chance, lives=seed % 2 == 0) for _ in range(4)]
    rows = accumulate(histories, n_step)
    for environment, history in enumerate(histories):
        own = sorted((row for row in rows if row.environment == environment), key=lambda row: row.obs)
        expected = reference_transitions(history, n_step)
        assert [(row.obs, row.action, row.next_obs) for row in own] == [(row[0], row[1], row[3]) for row in expected]
        np.testing.assert_allclose([row.reward for row in own], [row[2] for row in expected], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose([row.discount for row in own], [row[4] for row in expected], rtol=1e-6)
        np.testing.assert_allclose([row.td_error for row in own], [row[5] for row in expected], rtol=1e-9, atol=1e-9)


def one_episode(rewards: list[float], *, terminated: bool, q: float = 0.0) -> list[Step]:
    """An episode with these rewards, then the ignored step that shows its final observation."""
    values = np.array([q, q - 1.0, q - 2.0])
    last = len(rewards) - 1
    steps = [
        Step(t, values, 0, reward, t == last and terminated, t == last and not terminated, False)
        for t, reward in enumerate(rewards)
    ]
    return [*steps, Step(last + 1, values, 0, 0.0, False, False, True)]


def test_the_first_reward_counts_whole_and_later_ones_are_discounted() -> None:
    rows = accumulate([one_episode([1.0, 10.0, 100.0], terminated=True)], n_step=3)
    assert rows[0].reward == pytest.approx(1.0 + GAMMA * 10.0 + GAMMA**2 * 100.0, rel=1e-6)


def test_the_error_that_priorities_come_from_is_not_its_huber_loss() -> None:
    rows = accumulate([one_episode([30.0], terminated=True, q=2.0)], n_step=3)
    assert [row.td_error for row in rows] == [pytest.approx(28.0, abs=1e-12)]
    small = accumulate([one_episode([2.25], terminated=True, q=2.0)], n_step=3)
    assert [row.td_error for row in small] == [pytest.approx(0.25, abs=1e-12)]


def test_termination_cuts_the_bootstrap_and_truncation_keeps_it() -> None:
    terminated = accumulate([one_episode([1.0, 1.0], terminated=True, q=7.0)], n_step=3)
    truncated = accumulate([one_episode([1.0, 1.0], terminated=False, q=7.0)], n_step=3)
    assert [row.discount for row in terminated[:2]] == [0.0, 0.0]
    np.testing.assert_allclose([row.discount for row in truncated[:2]], [GAMMA**2, GAMMA], rtol=1e-6)
    assert [row.next_obs for row in truncated[:2]] == [2, 2], "the true final observation"
    assert truncated[1].td_error == pytest.approx(1.0 + GAMMA * 7.0 - 7.0)


def test_a_window_never_reaches_over_an_end() -> None:
    first, second = one_episode([1.0] * 4, terminated=False), one_episode([5.0] * 4, terminated=True)
    for step in second:
        step.observation += 100
    rows = accumulate([[*first, *second]], n_step=3)
    assert len(rows) == 8
    assert all((row.obs < 100) == (row.next_obs < 100) for row in rows)


def test_windows_are_copies_of_what_the_accumulator_goes_on_with() -> None:
    accumulator = NStepAccumulator(environments=2, n_step=1, discount=GAMMA)
    no = np.zeros(2, bool)
    q = np.zeros((2, 3))
    accumulator.step(q, np.array([1, 2]), np.ones(2), no, no, no)
    (windows,) = accumulator.step(q, np.array([0, 0]), np.zeros(2), no, no, no)
    accumulator.step(q, np.array([2, 1]), np.full(2, 9.0), no, no, no)
    assert windows.action.tolist() == [1, 2]
    assert windows.reward.tolist() == [1.0, 1.0]
