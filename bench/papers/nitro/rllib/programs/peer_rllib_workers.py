"""RLlib's PPO with its own rollout worker: what `peer_rllib_learner` has in its place is held against.

One worker plays as many environments side by side as there are actors on the other side, and normalises observations
at every step. It begins with the same weights.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED
from rllib_ppo import build, learner_state, ppo, seed_everything, take_state

PACKAGES = ("ray", "torch", "gymnasium")


class TimedWorker(SingleAgentEnvRunner):
    """RLlib's rollout worker, how much of the processor it took, and the scores of whole games."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cpu_s = 0.0
        self.scores: list[float] = []
        self._running: dict[str, float] = {}

    def sample(self, **options: Any) -> Any:
        began = time.process_time()
        episodes = super().sample(**options)
        self.cpu_s += time.process_time() - began
        for episode in episodes:  # A game comes in as many pieces as rounds that it lasted, under one name.
            score = self._running.pop(episode.id_, 0.0) + float(episode.get_return())
            if episode.is_done:
                self.scores.append(score)
            else:
                self._running[episode.id_] = score
        return episodes


def learner(env: str, actors: int, steps: int, seed: int, settings: dict[str, Any], given: str) -> Callable[..., Any]:
    """Takes rounds of one job, beginning with the parameters in the file `given` (as `rllib_ppo.take_state`)."""
    seed_everything([seed])
    opened = gymnasium.make(env)
    continuous = not isinstance(opened.action_space, gymnasium.spaces.Discrete)
    opened.close()
    config = (
        ppo(continuous, settings)
        # Actions are drawn as they are, and clipped for the environment: as on the other side.
        .environment(env, normalize_actions=False, clip_actions=True)
        .env_runners(
            env_runner_cls=TimedWorker,
            num_env_runners=0,
            num_envs_per_env_runner=actors,
            rollout_fragment_length=steps,
            env_to_module_connector=(lambda *_, **__: MeanStdFilter()) if settings["normalize_observations"] else None,
        )
        .training(train_batch_size_per_learner=actors * steps)
        .debugging(seed=seed)
    )
    algorithm = build(config, settings)
    with np.load(given, allow_pickle=False) as file:
        take_state(algorithm.learner_group._learner, dict(file))
    algorithm.env_runner_group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
    return functools.partial(_round, algorithm)


def _round(algorithm: Any, found: str) -> dict[str, Any]:
    """One round; parameters, and moments of observations where there are any, go to the file `found`."""
    worker = algorithm.env_runner
    worker.scores.clear()
    began, acted = time.process_time(), worker.cpu_s
    results = algorithm.train()
    cpu_s = time.process_time() - began
    acting_cpu_s = worker.cpu_s - acted
    arrays = learner_state(algorithm.learner_group._learner)
    for connector in worker._env_to_module.connectors:
        if isinstance(connector, MeanStdFilter):
            filters: Any = connector._filters
            (moments,) = (each.running_stats for each in filters.values())
            arrays |= {"moments.count": np.array(float(moments.num_pushes)), "moments.mean": moments.mean_array}
            arrays["moments.squared_deviations"] = moments.sum_sq_diff_array
    np.savez(found, **arrays)  # pyright: ignore[reportArgumentType]
    told = results["learners"][DEFAULT_MODULE_ID]
    return {
        "results": {name: float(value) for name, value in told.items() if isinstance(value, int | float | np.number)},
        "scores": worker.scores, "acting_cpu_s": acting_cpu_s, "learning_cpu_s": cpu_s - acting_cpu_s,
        "steps": float(results[ENV_RUNNER_RESULTS][NUM_ENV_STEPS_SAMPLED]),
    }  # fmt: skip
