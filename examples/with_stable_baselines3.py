# /// script
# requires-python = ">=3.10"
# dependencies = ["replay-server", "stable-baselines3==2.9.0"]
# ///
"""Stable-Baselines3 with its replay buffer replaced: in this process, or on a server.

    python examples/with_stable_baselines3.py                                      # SAC on Pendulum
    python examples/with_stable_baselines3.py --buffer original                    # Stable-Baselines3's own buffer
    python examples/with_stable_baselines3.py --buffer redis://127.0.0.1:6379      # a server's

An own program imports `ReplayServerBuffer` from `replay_server.adapters.stable_baselines3`.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from timing import Clock

from replay_server.adapters.stable_baselines3 import ReplayServerBuffer


def train(buffer: str, seed: int, steps: int) -> None:
    """Trains SAC on Pendulum, with everything but the buffer as Stable-Baselines3 has it."""
    clock = Clock()
    original = buffer == "original"
    kind = clock.timed(ReplayBuffer if original else ReplayServerBuffer, "add", "sample")
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        seed=seed,
        learning_rate=1e-3,
        learning_starts=min(100, steps),
        replay_buffer_class=kind,
        replay_buffer_kwargs={"url": buffer} if "://" in buffer else {},
        device="cpu",
    )
    model.learn(steps)
    print(f"{buffer}, seed {seed}, {steps} steps: {clock}")
    games = DummyVecEnv([lambda: Monitor(gym.make("Pendulum-v1"))])
    games.seed(seed + 10_000)  # the same for either buffer
    score, _ = evaluate_policy(model, games, n_eval_episodes=20)
    print(f"reached {score:.1f} on Pendulum-v1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4_000)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
