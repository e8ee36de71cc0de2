"""What programs of RLlib's PPO share: its configuration by this project's settings, its Learner's state as arrays."""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def seed_everything(seed: Sequence[int]) -> None:
    """Random numbers of all that RLlib draws from in its process, from `seed` alone."""
    generator = np.random.SeedSequence(seed)
    for start, word in zip((random.seed, np.random.seed, torch.manual_seed), generator.generate_state(3), strict=True):
        start(int(word))


def _start_ray() -> None:
    """Ray gives its own processes 30 s to start, which on a busy machine is not always enough."""
    left = 3
    while not ray.is_initialized():
        left -= 1
        try:
            ray.init(include_dashboard=False, num_cpus=1, log_to_driver=False, logging_level=logging.ERROR)
        except Exception:  # It has none of its own for this.
            if not left:
                raise
            ray.shutdown()


def ppo(continuous: bool, settings: Mapping[str, Any]) -> Any:
    """RLlib's configuration of PPO but for its workers and environment; settings as this project's PPO has them."""
    torch.set_num_threads(1)
    _start_ray()
    width = settings["hidden"]
    return (
        PPOConfig()
        .learners(num_learners=0)
        .training(
            lr=settings["learning_rate"],
            gamma=settings["discount"],
            lambda_=settings["gae_lambda"],
            clip_param=settings["clip"],
            use_kl_loss=settings["kl_coefficient"] > 0.0,
            kl_coeff=settings["kl_coefficient"],
            kl_target=settings["kl_target"],
            entropy_coeff=settings["entropy_coefficient"],
            vf_loss_coeff=settings["value_coefficient"],
            vf_clip_param=float("inf") if settings["value_clip"] is None else settings["value_clip"],
            grad_clip=settings["gradient_norm"],
            num_epochs=settings["iterations"],
            minibatch_size=settings["minibatch_size"],
            train_batch_size_per_learner=settings["minibatch_size"] or 1,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[width, width],
                fcnet_activation="tanh",
                vf_share_layers=False,
                free_log_std=continuous,
            )
        )
        .debugging(log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0, log_gradients=True)
    )


def build(config: Any, settings: Mapping[str, Any]) -> Any:
    """The algorithm of a configuration."""
    algorithm = config.build_algo()
    shutil.rmtree(algorithm.logdir, ignore_errors=True)  # Nothing is logged there.
    for group in _optimizer(algorithm.learner_group._learner).param_groups:
        group["eps"] = settings["adam_epsilon"]  # RLlib has no setting for it.
    return algorithm


def _parameters(core: Any) -> dict[str, Any]:
    return dict(core.module[DEFAULT_MODULE_ID].named_parameters())


def _optimizer(core: Any) -> Any:
    return core.get_optimizer(DEFAULT_MODULE_ID)


def _kl(core: Any) -> Any:
    return core.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID]


def take_state(core: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Makes RLlib's Learner the one whose state this is: the outcome of `learner_state`, or one without moments."""
    parameters = _parameters(core)
    names = {name.removeprefix("parameter.") for name in arrays if name.startswith("parameter.")}
    if names != set(parameters):
        raise ValueError(f"expected parameters {sorted(parameters)}, got {sorted(names)}")
    state = _optimizer(core).state
    state.clear()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(arrays[f"parameter.{name}"]))
            if "step" in arrays:
                moments = {each: torch.from_numpy(arrays[f"{each}.{name}"].copy()) for each in MOMENTS}
                state[parameter] = {"step": torch.tensor(float(arrays["step"])), **moments}
        _kl(core).fill_(float(arrays["kl_coefficient"]))


def learner_state(core: Any) -> dict[str, np.ndarray]:
    """``parameter.NAME`` by RLlib's names, ``exp_avg.NAME``, ``exp_avg_sq.NAME`` and ``step`` of Adam, and
    ``kl_coefficient``; parameters share the Learner's memory."""
    found = {"kl_coefficient": np.array(float(_kl(core)))}
    state = _optimizer(core).state
    for name, parameter in _parameters(core).items():
        found[f"parameter.{name}"] = parameter.detach().numpy()
        found |= {f"{each}.{name}": state[parameter][each].numpy() for each in MOMENTS}
        found["step"] = np.array(float(state[parameter]["step"]))
    return found
