"""Stable-Baselines3's PPO on the jobs of ``replay-server bench learning``, with the settings of both sides."""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

PACKAGES = ("stable-baselines3", "torch", "gymnasium")


class Curve(BaseCallback):
    """One entry a round: steps so far and the mean score of the games that ended in it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self._scores: list[float] = []

    def _on_step(self) -> bool:
        self._scores += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        row = {"round": len(self.rows) + 1, "steps": self.num_timesteps, "games": len(self._scores)}
        if self._scores:
            row["score"] = float(np.mean(self._scores))
        self.rows.append(row)
        self._scores = []


def train(
    env: str, seed: int, environments: int, steps: int, rounds: int, episodes: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Trains and plays `episodes` fresh games: scores, curve, processor seconds of the training."""
    torch.set_num_threads(1)
    vector = _normalized(env, environments, settings, training=True)
    width = settings["hidden"]
    model = PPO(
        "MlpPolicy",
        vector,
        learning_rate=settings["learning_rate"],
        n_steps=steps,
        batch_size=settings["minibatch_size"],
        n_epochs=settings["iterations"],
        gamma=settings["discount"],
        gae_lambda=settings["gae_lambda"],
        clip_range=settings["clip"],
        clip_range_vf=None,
        normalize_advantage=settings["standardize_advantages"] == "minibatch",
        ent_coef=settings["entropy_coefficient"],
        vf_coef=settings["value_coefficient"],
        max_grad_norm=settings["gradient_norm"],
        policy_kwargs={
            "net_arch": {"pi": [width, width], "vf": [width, width]},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": settings["initial_log_std"],
            "optimizer_kwargs": {"eps": settings["adam_epsilon"]},
        },
        seed=seed,
        device="cpu",
    )
    curve = Curve()
    began = time.process_time()
    model.learn(rounds * steps * environments, callback=curve)
    took = time.process_time() - began
    fresh = _normalized(env, min(episodes, 10), settings, training=False)
    if isinstance(fresh, VecNormalize) and isinstance(vector, VecNormalize):
        fresh.obs_rms = vector.obs_rms
    fresh.seed(seed + 10_000)
    scores, _ = evaluate_policy(model, fresh, episodes, deterministic=False, return_episode_rewards=True)
    return {"scores": [float(score) for score in scores], "curve": curve.rows, "cpu_s": took}


def _normalized(env: str, environments: int, settings: dict[str, Any], training: bool) -> DummyVecEnv | VecNormalize:
    vector = DummyVecEnv([lambda: Monitor(gymnasium.make(env)) for _ in range(environments)])
    if not settings["normalize_observations"]:
        return vector
    return VecNormalize(vector, training=training, norm_reward=False, clip_obs=settings["observation_clip"])
