"""Fragments that a policy learner's own network has played, and its weights, for the tests of such learners."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_server.actors.fragments import FragmentCollector
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.weights import module_arrays


def fragments_for(learner: Any, environments: int = 3) -> dict[str, np.ndarray]:
    spec, seeds = policy_spec(learner.settings), [learner.settings.seed, learner.version]
    collector = FragmentCollector(learner.settings, spec, environments, seeds)
    try:
        return collector.collect(learner.network, learner.version).fragments
    finally:
        collector.close()


def weights(network: Any) -> np.ndarray:
    """All in one array."""
    return np.concatenate([array.ravel() for array in module_arrays(network).values()])
