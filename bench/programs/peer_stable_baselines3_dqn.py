"""Stable-Baselines3's DQN on Atari, with the hyperparameters of its RL Zoo (`hyperparams/dqn.yml`, section atari)."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
from games import WIDTH, Checkpoints, TimeIsUp, load_network, play, register_game, save_network, values_of
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

PACKAGES = ("stable-baselines3", "gymnasium", "ale-py", "numpy", "torch")
ZOO: dict[str, Any] = {
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "batch_size": 32,
    "learning_starts": 100_000,
    "target_update_interval": 1_000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
    "optimize_memory_usage": False,
}
TIMESTEPS = 10_000_000
"""What exploration is a share of."""
FRAME_STACK = 4


def train(env: str, seed: int, seconds: float, every_s: float, sticky_actions: float, folder: str) -> dict[str, Any]:
    games = VecFrameStack(make_atari_env(register_game(env, sticky_actions), n_envs=1, seed=seed), FRAME_STACK)
    model = DQN("CnnPolicy", games, seed=seed, **ZOO)
    checkpoints = Checkpoints(folder, seconds, every_s, lambda file: save_network(model.q_net, file))

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            checkpoints.step(self.num_timesteps)
            return True

    try:
        model.learn(TIMESTEPS, callback=Look())
    except TimeIsUp:
        return {"checkpoints": checkpoints.written, "used": {**ZOO, "n_timesteps": TIMESTEPS}}
    raise RuntimeError(f"{TIMESTEPS} steps were over before the time was")


def evaluate(
    files: list[str], env: str, sticky_actions: float, games: int, epsilon: float, seed: int
) -> list[list[float]]:
    width, found = min(games, WIDTH), []
    for file in files:
        played = VectorGames(env, sticky_actions, width, seed)
        model = DQN("CnnPolicy", played.environments, buffer_size=1)
        found.append(play(played, width, values_of(load_network(model.q_net, file)), games, epsilon, seed))
    return found


class VectorGames:
    """Games as `train` makes them. Their monitor keeps the score of whole games below the other wrappers."""

    def __init__(self, env: str, sticky_actions: float, width: int, seed: int) -> None:
        made = make_atari_env(register_game(env, sticky_actions), n_envs=width, seed=seed)
        self.environments = VecTransposeImage(VecFrameStack(made, FRAME_STACK))

    def reset(self) -> np.ndarray:
        return np.asarray(self.environments.reset())

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
        observations, _, _, infos = self.environments.step(actions)
        over = [(number, float(info["episode"]["r"])) for number, info in enumerate(infos) if "episode" in info]
        return np.asarray(observations), over
