# /// script
# requires-python = ">=3.10"
# dependencies = ["replay-server", "ray[rllib]==2.60.0", "torch", "gymnasium==1.2.2"]
# ///
"""RLlib's DQN with its prioritized replay buffer replaced: in this process, or on a server.

    python examples/with_rllib.py                                      # CartPole
    python examples/with_rllib.py --buffer original                    # RLlib's own PrioritizedEpisodeReplayBuffer
    python examples/with_rllib.py --buffer redis://127.0.0.1:6379      # a server's
    python examples/with_rllib.py --n-step 3                           # returns over three steps

An own program names `replay_server.adapters.rllib.ReplayServerEpisodeReplayBuffer` in RLlib's `replay_buffer_config`
(the new API stack; one agent, no recurrent modules).
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from timing import Clock

from replay_server.adapters.rllib import ReplayServerEpisodeReplayBuffer

CLOCK = Clock()


TIMED = ("add", "sample", "update_priorities")
TimedReplayServerEpisodeReplayBuffer = CLOCK.timed(ReplayServerEpisodeReplayBuffer, *TIMED)
TimedOriginalEpisodeReplayBuffer = CLOCK.timed(PrioritizedEpisodeReplayBuffer, *TIMED)


def train(buffer: str, seed: int, steps: int, n_step: int) -> None:
    """Trains double DQN on CartPole; everything but the buffer is RLlib's."""
    import with_rllib  # RLlib imports the buffer by its name: not as __main__, whose clock is another

    np.random.seed(seed)
    kind = "TimedOriginalEpisodeReplayBuffer" if buffer == "original" else "TimedReplayServerEpisodeReplayBuffer"
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=8)
        .debugging(seed=seed)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[128, 128], fcnet_activation="relu"))
        .training(
            lr=1e-3,
            train_batch_size_per_learner=64,
            n_step=n_step,
            target_network_update_freq=400,
            num_steps_sampled_before_learning_starts=min(1_000, steps // 2),
            epsilon=[(0, 1.0), (8_000, 0.05)],
            replay_buffer_config={
                "type": f"with_rllib.{kind}",
                "capacity": 50_000,
                "alpha": 0.6,
                "beta": 0.4,
                **({"url": buffer} if "://" in buffer else {}),
            },
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=min(1_000, steps))
    )
    algorithm = config.build_algo()
    best, result = -np.inf, {}
    while result.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0) < steps:
        result = algorithm.train()[ENV_RUNNER_RESULTS]
        score = float(result.get(EPISODE_RETURN_MEAN, np.nan))
        print(f"step {result[NUM_ENV_STEPS_SAMPLED_LIFETIME]} score {score:.1f}", flush=True)
        best = max(best, score)
    print(f"{buffer}, seed {seed}, {steps} steps: {with_rllib.CLOCK}")
    print(f"reached {best:.1f} on CartPole-v1")
    algorithm.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--n-step", type=int, default=1)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
