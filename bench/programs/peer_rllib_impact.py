"""RLlib's APPO, which is IMPACT, on the jobs of ``replay-server bench learning``.

RLlib learns in a thread of its own while it acts, so that how often a batch is traversed depends on the machine. Here
each batch is waited for until it was traversed K times, and the newest weights act, as on this project's side.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

PACKAGES = ("ray", "torch", "gymnasium")
WAIT_S = 120.0


def train(
    env: str, seed: int, environments: int, steps: int, rounds: int, episodes: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Trains and plays `episodes` fresh games: scores, curve, processor seconds of the training."""
    torch.set_num_threads(1)
    ray.init(include_dashboard=False, num_cpus=1, log_to_driver=False, logging_level=logging.ERROR)
    played: list[float] = []
    algorithm: Any = _config(env, seed, environments, steps, episodes, settings, played).build_algo()
    curve: list[dict[str, float]] = []
    began = time.process_time()
    for number in range(rounds):
        played.clear()
        algorithm.train()
        _wait_for_passes(algorithm)
        row: dict[str, float] = {"round": number + 1, "steps": (number + 1) * environments * steps}
        row["games"] = len(played)
        if played:
            row["score"] = float(np.mean(played))
        curve.append(row)
    took = time.process_time() - began
    played.clear()
    # Observations are normalised in the evaluation as they were at the training's end.
    algorithm.eval_env_runner.set_state(algorithm.env_runner.get_state())
    algorithm.evaluate()
    scores = played[:episodes]
    algorithm.stop()
    ray.shutdown()
    if len(scores) != episodes:
        raise RuntimeError(f"expected {episodes} games at the end, RLlib played {len(scores)}")
    return {"scores": scores, "curve": curve, "cpu_s": took}


def _config(
    env: str, seed: int, environments: int, steps: int, episodes: int, settings: dict[str, Any], played: list[float]
) -> APPOConfig:
    width, batches = settings["hidden"], settings["buffer_batches"]
    normalizes = settings["normalize_observations"]
    # RLlib counts the passes between two copies of the policy in N·K batches.
    every = settings["target_update_every"] / (batches * settings["passes"])
    return (
        APPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=environments,
            rollout_fragment_length=steps,
            env_to_module_connector=(lambda *_, **__: MeanStdFilter()) if normalizes else None,
        )
        .learners(num_learners=0, num_aggregator_actors_per_learner=0)
        .training(
            lr=settings["learning_rate"],
            gamma=settings["discount"],
            train_batch_size_per_learner=environments * steps,
            num_epochs=1,
            minibatch_size=steps * max(1, settings["minibatch_size"] // steps),
            circular_buffer_num_batches=batches,
            circular_buffer_iterations_per_batch=settings["passes"],
            target_network_update_freq=every,
            clip_param=settings["clip"],
            use_kl_loss=True,
            kl_coeff=settings["kl_coefficient"],
            kl_target=settings["kl_target"],
            entropy_coeff=settings["entropy_coefficient"],
            # There is a ½ in RLlib's value loss.
            vf_loss_coeff=2.0 * settings["value_coefficient"],
            grad_clip=settings["gradient_norm"],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[width, width], fcnet_activation="tanh", vf_share_layers=False, free_log_std=True
            )
        )
        .callbacks(on_episode_end=lambda *, episode, **_: played.append(float(episode.get_return())))
        .evaluation(
            # Never by itself, but None would play on with the environments of the training.
            evaluation_interval=10**9,
            evaluation_duration=episodes,
            evaluation_duration_unit="episodes",
            # One environment: of several, the first games to finish would favour short ones.
            evaluation_config={"explore": True, "num_envs_per_env_runner": 1},
        )
        .debugging(seed=seed, log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=environments * steps)
    )


def _wait_for_passes(algorithm: Any) -> None:
    """Until nothing is left in the circular buffer; then the newest weights act."""
    buffer = algorithm.learner_group._learner._learner_thread_in_queue
    end = time.monotonic() + WAIT_S
    while (left := buffer.qsize()) > 0:
        if time.monotonic() > end:
            raise RuntimeError(f"expected RLlib to make all its passes in {WAIT_S} s, {left} are left")
        time.sleep(0.005)
    algorithm.env_runner_group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
