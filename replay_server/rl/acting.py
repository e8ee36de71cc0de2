"""How the outputs of a network become actions: those of a Q-network, or of a stochastic policy."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from replay_server.rl.actions import Bounds, Branches, action_values
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.exploration import epsilon_greedy


class Acting(Protocol):
    """What to do in E environments, for the outputs (E, …) of the network that plays."""

    def explore(self, outputs: np.ndarray, epsilons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Actions (E, …) of an actor, as the table has them. `epsilons`: its rungs of the ladder, float64 (E,)."""
        ...

    def play(self, outputs: np.ndarray, epsilon: float, generator: np.random.Generator) -> np.ndarray:
        """Actions of an evaluator: the best ones but for the share `epsilon`, which is uniform."""
        ...

    def values(self, outputs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(value of the actions, value of the states), each float (E,), where the network tells of them.

        An actor makes initial priorities of them. Without them a transition gets the largest there is, and is drawn
        soon.
        """
        ...


class ValueActing:
    """By Q values: ε-greedily."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def explore(self, outputs: np.ndarray, epsilons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return epsilon_greedy(outputs, epsilons, generator, self._branches)

    def play(self, outputs: np.ndarray, epsilon: float, generator: np.random.Generator) -> np.ndarray:
        return epsilon_greedy(outputs, np.full(len(outputs), epsilon), generator, self._branches)

    def values(self, outputs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return action_values(outputs, actions, self._branches)


class GaussianActing:
    """By the parameters of a `replay_server.rl.distributions.SquashedGaussian`.

    Actors draw from it, which is all of their exploration: it needs no ladder. Evaluators take the mean.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def explore(self, outputs: np.ndarray, epsilons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        mean, log_std = np.split(outputs, 2, axis=1)
        noise = generator.standard_normal(mean.shape, np.float32)
        return self._bounds.actions(np.tanh(mean + np.exp(log_std) * noise))

    def play(self, outputs: np.ndarray, epsilon: float, generator: np.random.Generator) -> np.ndarray:
        mean, _ = np.split(outputs, 2, axis=1)
        anything = generator.random((len(mean), 1)) < epsilon
        return self._bounds.actions(np.where(anything, generator.uniform(-1.0, 1.0, mean.shape), np.tanh(mean)))

    def values(self, outputs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None


def make_acting(spec: EnvironmentSpec) -> Acting:
    """How the network that `replay_server.rl.networks.make_network` makes for an environment plays it."""
    return ValueActing(spec.branches) if spec.bounds is None else GaussianActing(spec.bounds)
