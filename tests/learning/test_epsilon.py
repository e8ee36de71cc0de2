"""The ε ladder over all environments of all actors, and the ε-greedy choice."""

from __future__ import annotations

import numpy as np
import pytest

from replay_server.rl.exploration import actor_epsilons, epsilon_greedy, epsilon_ladder


def test_the_ladder_falls_from_base_to_base_to_the_eighth() -> None:
    ladder = epsilon_ladder(360)
    assert ladder[0] == pytest.approx(0.4)
    assert ladder[-1] == pytest.approx(0.4**8)
    assert ladder[100] == pytest.approx(0.4 ** (1 + 7 * 100 / 359))


def test_a_single_environment_explores_with_the_base() -> None:
    assert epsilon_ladder(1).tolist() == [0.4]


def test_actors_share_the_whole_ladder_among_all_their_environments() -> None:
    dealt = np.concatenate([actor_epsilons(actor, 3, 5) for actor in range(3)])
    np.testing.assert_allclose(np.sort(dealt)[::-1], epsilon_ladder(15))


@pytest.mark.parametrize("actor", [3, 5, 7])
def test_actors_beyond_those_of_the_run_share_its_ladder(actor: int) -> None:
    """So that those that are there keep their ε, and each round of more actors has the whole ladder again."""
    np.testing.assert_array_equal(actor_epsilons(actor, 3, 5), actor_epsilons(actor % 3, 3, 5))


def test_an_actor_id_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="of 0 or more, got -1"):
        actor_epsilons(-1, 2, 8)


def test_actions_are_greedy_or_uniform() -> None:
    generator = np.random.default_rng(0)
    q_values = np.tile([0.0, 2.0, 1.0, -1.0], (4_000, 1))
    epsilons = np.repeat([0.0, 1.0], 2_000)
    actions = epsilon_greedy(q_values, epsilons, generator)
    assert actions.dtype == np.int64
    assert (actions[:2_000] == 1).all()
    assert (np.bincount(actions[2_000:], minlength=4) > 400).all()
