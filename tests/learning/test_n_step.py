"""n-step windows against a reference that looks each one up in the whole history of its environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from replay_server.rl.n_step import NStepAccumulator, TransitionBuffer

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


def accumulate(histories: list[list[Step]], n_step: int, rows: int = 100_000) -> TransitionBuffer:
    """Feeds histories side by side; the observation of environment e at time t is the pair (e, t)."""
    out = TransitionBuffer(rows, (2,), "int32")
    accumulator = NStepAccumulator(len(histories), n_step, GAMMA)
    for moment in zip(*histories, strict=True):
        accumulator.step(
            np.array([(e, step.observation) for e, step in enumerate(moment)], np.int32),
            np.stack([step.q_values for step in moment]),
            np.array([step.action for step in moment]),
            np.array([step.reward for step in moment]),
            np.array([step.terminated for step in moment]),
            np.array([step.truncated for step in moment]),
            np.array([step.ignored for step in moment]),
            out,
        )
    return out


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_windows_match_the_reference_over_random_episodes(n_step: int, seed: int) -> None:
    generator = np.random.default_rng([n_step, seed])
    end_chance = [0.0, 0.05, 0.2, 0.6][seed % 4]
    histories = [random_history(generator, 150, end_chance, lives=seed % 2 == 0) for _ in range(4)]
    out = accumulate(histories, n_step)
    for environment, history in enumerate(histories):
        rows = np.flatnonzero(out.obs[: out.count, 0] == environment)
        rows = rows[np.argsort(out.obs[rows, 1], kind="stable")]
        expected = reference_transitions(history, n_step)
        assert out.obs[rows, 1].tolist() == [row[0] for row in expected]
        assert (out.next_obs[rows, 0] == environment).all()
        assert out.action[rows].tolist() == [row[1] for row in expected]
        assert out.next_obs[rows, 1].tolist() == [row[3] for row in expected]
        np.testing.assert_allclose(out.reward[rows], [row[2] for row in expected], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out.discount[rows], [row[4] for row in expected], rtol=1e-6)
        np.testing.assert_allclose(out.td_error[rows], [row[5] for row in expected], rtol=1e-9, atol=1e-9)


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
    out = accumulate([one_episode([1.0, 10.0, 100.0], terminated=True)], n_step=3)
    np.testing.assert_allclose(out.reward[0], 1.0 + GAMMA * 10.0 + GAMMA**2 * 100.0, rtol=1e-6)


def test_initial_priority_is_the_absolute_error_and_not_its_huber_loss() -> None:
    out = accumulate([one_episode([30.0], terminated=True, q=2.0)], n_step=3)
    assert out.priorities(1e-6).tolist() == [pytest.approx(28.0 + 1e-6, abs=1e-12)]
    small = accumulate([one_episode([2.25], terminated=True, q=2.0)], n_step=3)
    assert small.priorities(1e-6).tolist() == [pytest.approx(0.25 + 1e-6, abs=1e-12)]


def test_termination_cuts_the_bootstrap_and_truncation_keeps_it() -> None:
    terminated = accumulate([one_episode([1.0, 1.0], terminated=True, q=7.0)], n_step=3)
    truncated = accumulate([one_episode([1.0, 1.0], terminated=False, q=7.0)], n_step=3)
    assert terminated.discount[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(truncated.discount[:2], [GAMMA**2, GAMMA], rtol=1e-6)
    assert truncated.next_obs[:2, 1].tolist() == [2, 2], "the true final observation"
    np.testing.assert_allclose(truncated.td_error[1], 1.0 + GAMMA * 7.0 - 7.0)


def test_a_window_never_reaches_over_an_end() -> None:
    first, second = one_episode([1.0] * 4, terminated=False), one_episode([5.0] * 4, terminated=True)
    for step in second:
        step.observation += 100
    out = accumulate([[*first, *second]], n_step=3)
    starts, ends = out.obs[: out.count, 1], out.next_obs[: out.count, 1]
    assert out.count == 8
    assert ((starts < 100) == (ends < 100)).all()


def test_a_buffer_without_room_is_refused_before_anything_changes() -> None:
    accumulator = NStepAccumulator(environments=2, n_step=3, discount=GAMMA)
    flags = np.zeros(2, bool)
    with pytest.raises(ValueError, match="room for 6 transitions"):
        accumulator.step(
            np.zeros((2, 1)), np.zeros((2, 3)), np.zeros(2, int), np.zeros(2), flags, flags, flags,
            TransitionBuffer(5, (1,), "float32"),
        )  # fmt: skip


def test_buffer_rows_are_reused_after_a_push() -> None:
    out = TransitionBuffer(4, (2,), "uint8")
    out.count = 3
    memory = out.columns()["obs"].__array_interface__["data"]
    out.clear()
    out.count = 2
    assert out.columns()["obs"].shape == (2, 2)
    assert out.columns()["obs"].__array_interface__["data"] == memory
