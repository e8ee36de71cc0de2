"""Tianshou's DQN on Atari, put together as its example `examples/atari/atari_dqn.py`, with the same hyperparameters."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from games import (
    WIDTH,
    Checkpoints,
    GymnasiumGames,
    TimeIsUp,
    load_network,
    play,
    register_game,
    save_network,
    values_of,
)
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env.atari.atari_network import DQNet
from tianshou.env.atari.atari_wrapper import make_atari_env, wrap_deepmind
from tianshou.trainer import OffPolicyTrainerParams

PACKAGES = ("tianshou", "gymnasium", "ale-py", "numpy", "torch")
EXAMPLE: dict[str, Any] = {
    "eps_train": 1.0,
    "eps_train_final": 0.05,
    "buffer_size": 100_000,
    "lr": 1e-4,
    "gamma": 0.99,
    "n_step": 3,
    "target_update_freq": 500,
    "epoch": 100,
    "epoch_num_steps": 100_000,
    "collection_step_num_env_steps": 10,
    "update_per_step": 0.1,
    "batch_size": 32,
    "num_training_envs": 10,
}
EXPLORATION_STEPS = 1_000_000
"""Over which ε falls linearly."""


def train(env: str, seed: int, seconds: float, every_s: float, sticky_actions: float, folder: str) -> dict[str, Any]:
    given = EXAMPLE
    one, games, _ = make_atari_env(register_game(env, sticky_actions), seed, given["num_training_envs"], 1)
    np.random.seed(seed)
    torch.manual_seed(seed)
    network = _network(int(one.action_space.n))
    policy = DiscreteQLearningPolicy(model=network, action_space=one.action_space, eps_training=given["eps_train"])
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=given["lr"]),
        gamma=given["gamma"],
        n_step_return_horizon=given["n_step"],
        target_update_freq=given["target_update_freq"],
    )
    buffer = VectorReplayBuffer(
        given["buffer_size"], buffer_num=len(games), ignore_obs_next=True, save_only_last_obs=True, stack_num=4
    )
    collector = Collector(algorithm, games, buffer, exploration_noise=True)
    checkpoints = Checkpoints(folder, seconds, every_s, lambda file: save_network(network, file))
    beforehand = given["batch_size"] * given["num_training_envs"]

    def before_each_step(epoch: int, steps: int) -> None:
        share = min(1.0, steps / EXPLORATION_STEPS)
        policy.set_eps_training(given["eps_train"] - share * (given["eps_train"] - given["eps_train_final"]))
        checkpoints.step(beforehand + steps)

    try:
        collector.reset()
        checkpoints.step(0)
        collector.collect(n_step=beforehand)
        algorithm.run_training(
            OffPolicyTrainerParams(
                training_collector=collector,
                test_collector=None,
                max_epochs=given["epoch"],
                epoch_num_steps=given["epoch_num_steps"],
                collection_step_num_env_steps=given["collection_step_num_env_steps"],
                batch_size=given["batch_size"],
                training_fn=before_each_step,
                update_step_num_gradient_steps_per_sample=given["update_per_step"],
                test_in_training=False,
            )
        )
    except TimeIsUp:
        return {"checkpoints": checkpoints.written, "used": given}
    finally:
        games.close()
    raise RuntimeError(f"{given['epoch']} epochs were over before the time was")


def evaluate(
    files: list[str], env: str, sticky_actions: float, games: int, epsilon: float, seed: int
) -> list[list[float]]:
    name = register_game(env, sticky_actions)
    width, found = min(games, WIDTH), []
    for file in files:
        made = [wrap_deepmind(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))) for _ in range(width)]
        network = load_network(_network(int(made[0].action_space.n)), file)
        values = values_of(lambda observations, network=network: network(observations)[0])
        found.append(play(GymnasiumGames(made, seed), width, values, games, epsilon, seed))
    return found


def _network(actions: int) -> Any:
    """Its inputs are 0 to 255, as in the example."""
    return DQNet(c=4, h=84, w=84, action_shape=actions)
