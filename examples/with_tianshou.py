# /// script
# requires-python = ">=3.11"
# dependencies = ["replay-server", "tianshou==2.0.1"]
# ///
"""Tianshou with the tree of its prioritized replay buffer replaced.

    python examples/with_tianshou.py                        # double DQN on CartPole
    python examples/with_tianshou.py --buffer original      # Tianshou's own tree

Tianshou's algorithms go through their buffer by position (the next step, n-step returns, the ends of episodes), so what
is replaced is what draws the positions: the sum tree. An own program imports it from `replay_server.adapters.tianshou`.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, PrioritizedVectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from timing import Clock

from replay_server.adapters.tianshou import SumTreeReplayBuffer


def train(buffer: str, seed: int, steps: int) -> None:
    """Trains double DQN with prioritized replay on CartPole; everything but the tree is Tianshou's."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    clock = Clock()
    kind = PrioritizedVectorReplayBuffer if buffer == "original" else SumTreeReplayBuffer
    options: dict[str, Any] = {} if buffer == "original" else {"seed": seed}
    timed = clock.timed(kind, "add", "sample", "update_weight")
    environments, tests = (DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(n)]) for n in (10, 20))
    environments.seed(seed)
    tests.seed(seed + 1000)
    space = gym.make("CartPole-v1")
    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128, 128])
    policy = DiscreteQLearningPolicy(model=network, action_space=space.action_space, eps_training=0.1)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=3,
        target_update_freq=320,
    )
    replay = timed(20_000, buffer_num=10, alpha=0.6, beta=0.4, **options)
    collector = Collector(algorithm, environments, replay, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=1_000, random=True)
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, tests),
            max_epochs=max(1, steps // 2_500),
            epoch_num_steps=min(steps, 2_500),
            collection_step_num_env_steps=10,
            test_step_num_episodes=20,
            batch_size=64,
            update_step_num_gradient_steps_per_sample=0.1,
            verbose=False,
            show_progress=False,
        )
    )
    print(f"{buffer}, seed {seed}, {steps} steps: {clock}")
    print(f"reached {result.best_score:.1f} on CartPole-v1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server or original")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
