"""Who explores how much: the constant ε of every environment in a run."""

from __future__ import annotations

import numpy as np

from replay_server.rl.actions import Branches, greedy


def epsilon_ladder(environments: int, base: float = 0.4, exponent: float = 7.0) -> np.ndarray:
    """ε_i = base^(1 + exponent · i / (N − 1)) for i in 0 … N−1 (Horgan et al. 2018, section 4); N = 1 gives base.

    `environments` counts all environments of all actors. Returns float64 (environments,), falling from base.
    """
    if environments < 1:
        raise ValueError(f"expected at least 1 environment in the run, got {environments}")
    fraction = np.arange(environments) / max(environments - 1, 1)
    return base ** (1.0 + exponent * fraction)


def actor_epsilons(
    actor_id: int, actors: int, envs_per_actor: int, base: float = 0.4, exponent: float = 7.0
) -> np.ndarray:
    """The rungs of one actor: float64 (envs_per_actor,). Raises ValueError for an id below 0.

    Rungs are dealt out in turn (actor k has k, k + actors, …), so that losing an actor thins the ladder evenly. More
    actors than the run has rungs for share them: actor k explores as k − actors does. Those that are there keep theirs,
    and what ε the whole run explores with stays as it was chosen. (Horgan et al. 2018, appendix B, had actors of any
    number share six values.)
    """
    if actor_id < 0:
        raise ValueError(f"expected an actor id of 0 or more, got {actor_id}")
    return epsilon_ladder(actors * envs_per_actor, base, exponent)[actor_id % actors :: actors]


def epsilon_greedy(
    q_values: np.ndarray, epsilons: np.ndarray, generator: np.random.Generator, branches: Branches = ()
) -> np.ndarray:
    """q_values (E, A), epsilons (E,) → actions int64 (E,): greedy, or uniform over A with probability ε.

    Of branches, int64 (E, branches): each is greedy or uniform by itself. Were all of them uniform together, a branch's
    better choice would be seen beside bad choices of the others alone, and look worse than it is.
    """
    environments, num_actions = q_values.shape
    actions = greedy(q_values, branches)
    if not branches:
        explore = generator.random(environments) < epsilons
        return np.where(explore, generator.integers(num_actions, size=environments), actions).astype(np.int64)
    explore = generator.random(actions.shape) < epsilons[:, None]
    return np.where(explore, generator.integers(branches, size=actions.shape), actions).astype(np.int64)
